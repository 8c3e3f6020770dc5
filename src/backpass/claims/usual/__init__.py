"""The claims of one text."""

PARTS: tuple[str, ...] = ()
