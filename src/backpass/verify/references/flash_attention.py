"""PyTorch's attention: tiles change how attention is computed, not its result."""

from backpass.verify.references.attention import operator

__all__ = ["operator"]
