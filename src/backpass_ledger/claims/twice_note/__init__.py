"""The claims of the 2× note: one linear layer, and remarks on the other operations."""

PARTS = {
    "product": "The answer, for one product",
    "example": "The example with numbers",
    "transformers": "A transformer's layers",
    "special": "Activations, softmax, and LayerNorm",
    "deviations": "Why the ratio is not exactly 2",
    "summary": "The summary and the step",
}
