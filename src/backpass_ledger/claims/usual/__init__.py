"""Claims that recur in texts and tools, each with its source where one can be
cited."""

PARTS = ("rules", "attention", "layers", "memory", "backwards", "updates")
