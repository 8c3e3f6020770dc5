"""Claims that recur in texts and tools, each with its source where one can be
cited."""

PARTS = {
    "rules": "FLOPs of a network",
    "attention": "FLOPs of attention",
    "layers": "FLOPs of layers, and of recomputation",
    "memory": "Bytes saved for the backward",
    "backwards": "What a backward needs, and what its gradient is",
    "updates": "From the gradient to the weights",
}
