"""PyTorch's attention: ``tile`` changes how attention is computed, not its result."""

from backpass.verify.references import attention


def operator(q, k, v, bias=None, mask=None, sink=None, *, tile=None, **options):
    return attention.operator(q, k, v, bias, mask, sink, **options)
