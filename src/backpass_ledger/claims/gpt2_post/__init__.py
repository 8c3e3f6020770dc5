"""The claims of the GPT-2 FLOPs post: the backward of each operation, and its FLOPs."""

PARTS = {
    "overview": "The network, the chain rule, and the classes of operations",
    "vectors": "A row times a matrix",
    "matrices": "Matrices, weights, and activations",
    "contractions": "The FLOPs of the products",
    "softmax": "Softmax",
    "log_softmax": "Log-softmax",
    "layer_norm": "LayerNorm, derived",
    "norm_flops": "LayerNorm's FLOPs",
    "gelu": "GELU",
    "elementwise": "The scale and the residual connection",
    "embeddings": "Embeddings",
    "loss": "The negative log-likelihood",
    "tally": "The tally",
}
