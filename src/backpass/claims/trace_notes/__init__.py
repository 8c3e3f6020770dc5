"""The claims of one text."""

PARTS: tuple[str, ...] = (
    "program",
    "forward_code",
    "backward_code",
)
