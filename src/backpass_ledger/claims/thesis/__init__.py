"""The thesis on the backward of an encoder's block, claim by claim."""

PARTS = {
    "opening": "What is counted, and what training costs",
    "mathematics": "Softmax, chain rule, and loss",
    "sequences": "Sequences and blocks",
    "components": "The parts of a block",
    "training": "A training step",
    "forward": "The forward, and the gradients of a product",
    "attention": "The backward of the weights and values",
    "scores": "The backward of the scores and projections",
    "feed_forward": "The feed-forward layer",
    "norm": "The normalisation layer",
    "whole": "The total",
    "discussion": "Which part is heavy",
    "methods": "What can be made cheaper, and one head or several",
    "conclusions": "Conclusions and references",
}
