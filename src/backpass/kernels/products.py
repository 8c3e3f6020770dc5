"""The products with the library's matrix multiplication that kernels share."""

from __future__ import annotations

import torch


def weight_gradient(x: torch.Tensor, dy: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return ``xᵀ dy``, the gradient of ``w[n, p]``, from ``x[m, n]`` and ``dy[m, p]``.

    If ``w`` is a transposed view, the gradient is one too: it is added to the weight,
    or to another such gradient, row by row.
    """
    if w.mT.is_contiguous() and not w.is_contiguous():
        return (dy.T @ x).T
    return x.T @ dy
