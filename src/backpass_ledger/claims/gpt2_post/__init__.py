"""The claims of the GPT-2 FLOPs post: the backward of each operation, and its FLOPs."""

PARTS = (
    *("overview", "vectors", "matrices", "contractions", "softmax", "log_softmax"),
    *("layer_norm", "norm_flops", "gelu", "elementwise", "embeddings", "loss", "tally"),
)
