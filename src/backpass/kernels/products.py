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


def add_weight_gradient(
    dw: torch.Tensor, x: torch.Tensor, dy: torch.Tensor, w: torch.Tensor
) -> None:
    """Add ``weight_gradient(x, dy, w)`` to ``dw[n, p]``, which lies in memory as ``w``
    does and may be wider than the factors.

    If all have one dtype, the library adds to ``dw`` as it multiplies: no array of its
    size is allocated, written, and read.
    """
    if dw.dtype != x.dtype:
        dw += weight_gradient(x, dy, w)
    elif dw.mT.is_contiguous():
        dw.T.addmm_(dy.T, x)
    else:
        dw.addmm_(x.T, dy)
