"""The claims of one text."""

PARTS: tuple[str, ...] = (
    "program",
    "forward_code",
    "backward_code",
    "derivatives",
    "values_and_weights",
    "normalisations",
    "properties",
    "score_gradients",
    "queries_and_keys",
)
