"""The claims of the 2× note: one linear layer, and remarks on the other operations."""

PARTS = ("product", "example", "transformers", "special", "deviations", "summary")
