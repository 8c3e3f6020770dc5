"""The claims of one text."""

PARTS: tuple[str, ...] = (
    "precision_hierarchy",
    "small_updates",
    "loss_scaling",
    "saved_activations",
    "checkpoint_code",
    "checkpoint_memory",
    "checkpoint_work",
    "selective",
    "clipping",
    "layer_code",
    "layer_feed_forward",
    "layer_attention",
    "layer_flops",
    "training_step",
    "challenges",
)
