"""The thesis on the backward of an encoder's block, claim by claim."""

PARTS = (
    "opening",
    "mathematics",
    "sequences",
    "components",
)
