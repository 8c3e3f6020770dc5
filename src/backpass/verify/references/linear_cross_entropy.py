"""PyTorch's ``linear``, then its ``cross_entropy``."""

from backpass.verify.references import cross_entropy, linear


def operator(x, w, t, b=None, weight=None, *, chunk=None, **options):
    return cross_entropy.operator(linear.operator(x, w, b), t, weight, **options)
