"""Layer normalisation, in Triton.

Formulas: ``backpass.ops.layer_norm``. Derived on the page ``operations/layer_norm``.
``norm_rows`` says how rows are read and written.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from backpass.contract.shapes import Outline, check_cotangent, check_saved
from backpass.contract.values import check_eps
from backpass.contract.wanted import kept
from backpass.kernels import norm_rows
from backpass.kernels.launch import check_tensor, check_tensors
from backpass.kernels.norm_rows import ROW_BYTES  # noqa: F401 - for others

SHAPES = "x[*, n>0], w[n]?, b[n]? -> y[*, n]"
PARAMETERS = ("w", "b")
WIDE = ("w", "b")


class Saved(NamedTuple):
    """The input itself and two numbers per row. The operation saves x_hat instead; here
    the forward would have to write one more array, and the backward would read as much.
    """

    x: torch.Tensor  # [*, n], as it was given
    mean: torch.Tensor  # [*], in the dtype computed in
    rstd: torch.Tensor  # [*], 1/√(σ² + ε), in the dtype computed in
    w: torch.Tensor | None  # [n], a parameter
    b: Outline | None  # a parameter, of which backward needs the dtype


def forward(
    x: torch.Tensor,
    w: torch.Tensor | None = None,
    b: torch.Tensor | None = None,
    *,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, Saved]:
    """Return ``y[*, n]``, contiguous, from ``x[*, n]``, of any strides, ``w[n]`` and
    ``b[n]``.

    Raises TypeError if an argument is not a floating-point tensor on a device where
    kernels run, or if its dtype or device differs from that of ``x``, apart from a
    float32 weight or bias beside half precision; ValueError if shapes do not fit, if
    ``n`` is 0, or if ``eps`` is below 0.
    """
    check_tensors(SHAPES, WIDE, x=x, w=w, b=b)
    check_eps(eps)
    y, mean, rstd = norm_rows.forward(x, w, b, eps, centred=True)
    assert mean is not None  # as it is centred
    return y, Saved(x, mean, rstd, w, kept(b, False))


def backward(
    dy: torch.Tensor, saved: Saved
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Return ``dx[*, n]``, contiguous, ``dw[n]`` and ``db[n]`` (None without a weight
    or a bias), from ``dy[*, n]``, of any strides."""
    x, mean, rstd, w, b = check_saved(saved, Saved)
    check_tensor("dy", dy)
    check_cotangent(dy, x.shape, like=x)
    return norm_rows.backward(dy, x, mean, rstd, w, b)


launches = norm_rows.declare_launches(centred=True, has_b=True)
