"""The thesis on the backward of an encoder's block, claim by claim."""

PARTS = (
    "opening",
    "mathematics",
    "sequences",
    "components",
    "training",
    "forward",
    "attention",
    "scores",
    "feed_forward",
    "norm",
    "whole",
    "discussion",
    "methods",
    "conclusions",
)
