"""The claims of the gradient-flow post."""

PARTS: tuple[str, ...] = (
    "setting",
    "rms",
    "heads",
    "softmax",
    "queries",
    "swiglu",
    "paths",
    "ratios",
    "stream",
)
