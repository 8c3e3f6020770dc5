"""Layer normalisation, in Triton, by itself or after the sum of a residual connection.

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
OF_SUM = "x[*, n>0], f[*, n], w[n]?, b[n]? -> y[*, n]"
PARAMETERS = ("w", "b")
WIDE = ("w", "b")


class Saved(NamedTuple):
    """The input itself and two numbers per row. The operation saves x_hat instead; here
    the forward would have to write one more array, and the backward would read as much.
    """

    x: torch.Tensor  # [*, n], as it was given, or the sum
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
    y, _, saved = _normalised(x, w, b, eps)
    return y, saved


def forward_of_sum(
    x: torch.Tensor,
    f: torch.Tensor,
    w: torch.Tensor | None = None,
    b: torch.Tensor | None = None,
    *,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor, Saved]:
    """Return ``y[*, n]`` of the sum of ``x[*, n]`` and ``f[*, n]``, the sum
    ``s[*, n]``, and what the backward needs: ``residual`` and this operation in one
    kernel. Raises what ``forward`` raises."""
    check_tensors(OF_SUM, WIDE, x=x, f=f, w=w, b=b)
    return _normalised(x, w, b, eps, f)


def _normalised(
    x: torch.Tensor,
    w: torch.Tensor | None,
    b: torch.Tensor | None,
    eps: float,
    f: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, Saved]:
    check_eps(eps)
    y, s, mean, rstd = norm_rows.forward(x, w, b, eps, centred=True, f=f)
    assert mean is not None  # as it is centred
    return y, s, Saved(s, mean, rstd, w, kept(b, False))


def backward(
    dy: torch.Tensor, saved: Saved
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Return ``dx[*, n]``, contiguous, ``dw[n]`` and ``db[n]`` (None without a weight
    or a bias), from ``dy[*, n]``, of any strides."""
    x, mean, rstd, w, b = check_saved(saved, Saved)
    check_tensor("dy", dy)
    check_cotangent(dy, x.shape, like=x)
    return norm_rows.backward(dy, x, mean, rstd, w, b)


def backward_of_sum(
    dy: torch.Tensor, ds: torch.Tensor, saved: Saved
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Return ``dx[*, n]``, contiguous, which is also f's gradient, ``dw[n]`` and
    ``db[n]``, from ``dy[*, n]`` and the gradient ``ds[*, n]`` that the sum has from its
    other uses."""
    x, mean, rstd, w, b = check_saved(saved, Saved)
    check_tensors(norm_rows.GRADIENTS, dy=dy, ds=ds)
    check_cotangent(dy, x.shape, like=x)
    return norm_rows.backward(dy, x, mean, rstd, w, b, ds)


launches = norm_rows.declare_launches(centred=True, has_b=True)
