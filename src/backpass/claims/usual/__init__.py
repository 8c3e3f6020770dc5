"""Claims that many texts and tools repeat, each with owners to cite."""

PARTS = ("rules", "attention", "layers", "memory", "backwards", "updates")
