"""RMS normalisation, in Triton: by itself, after the sum of a residual connection, or
before RoPE.

Formulas: ``backpass.ops.rms_norm``. Derived on the page ``operations/rms_norm``.
``norm_rows`` says how rows are read and written, and ``rotated_norm`` how they are
rotated.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from backpass.contract.shapes import check_cotangent, check_saved, kind
from backpass.contract.values import check_bool, check_eps, check_tables
from backpass.kernels import norm_rows, rotated_norm
from backpass.kernels.launch import accumulator, check_tensor, check_tensors
from backpass.kernels.norm_rows import ROW_BYTES  # noqa: F401 - for others
from backpass.kernels.rope import SHAPES as ROPE
from backpass.kernels.rope import WIDE as TABLES
from backpass.kernels.rope import Saved as Rotation

SHAPES = "x[*, n>0], w[n]? -> y[*, n]"
OF_SUM = "x[*, n>0], f[*, n], w[n]? -> y[*, n]"
PARAMETERS = ("w",)
WIDE = ("w",)


class Saved(NamedTuple):
    """The input itself and one number per row. The operation saves x_hat instead; here
    the forward would have to write one more array, and the backward would read as much.
    """

    x: torch.Tensor  # [*, n], as it was given, or the sum
    rstd: torch.Tensor  # [*], the inverse of the root, in the dtype computed in
    w: torch.Tensor | None  # [n], a parameter
    rotation: Rotation | None = None  # of y, after the norm


def forward(
    x: torch.Tensor, w: torch.Tensor | None = None, *, eps: float | None = None
) -> tuple[torch.Tensor, Saved]:
    """Return ``y[*, n]``, contiguous, from ``x[*, n]``, of any strides, and ``w[n]``;
    ``eps`` as for the operation.

    Raises TypeError if an argument is not a floating-point tensor on a device where
    kernels run, or if its dtype or device differs from that of ``x``, apart from a
    float32 weight beside half precision; ValueError if shapes do not fit, if ``n`` is
    0, or if ``eps`` is below 0.
    """
    check_tensors(SHAPES, WIDE, x=x, w=w)
    y, _, saved = _normalised(x, w, eps)
    return y, saved


def forward_of_sum(
    x: torch.Tensor,
    f: torch.Tensor,
    w: torch.Tensor | None = None,
    *,
    eps: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, Saved]:
    """Return ``y[*, n]`` of the sum of ``x[*, n]`` and ``f[*, n]``, the sum
    ``s[*, n]``, and what the backward needs: ``residual`` and this operation in one
    kernel. Raises what ``forward`` raises."""
    check_tensors(OF_SUM, WIDE, x=x, f=f, w=w)
    return _normalised(x, w, eps, f)


def forward_rotated(
    x: torch.Tensor,
    w: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    eps: float | None = None,
    interleaved: bool = False,
) -> tuple[torch.Tensor, Saved]:
    """Return ``y[*, s, 2k]``, whose axes are in memory in the order of x's, and what
    the backward needs: this operation and then ``rope``, with its tables and pairs, in
    one kernel. In half precision y is rounded once, after the rotation. Raises what
    ``forward`` of either raises."""
    check_tensor("w", w)
    check_tensors(SHAPES, WIDE, x=x, w=w)
    check_tables(x, cos=cos, sin=sin)
    check_tensors(ROPE, TABLES, x=x, cos=cos, sin=sin)
    check_bool(interleaved=interleaved)
    rotation = Rotation(cos, sin, tuple(x.shape), kind(x), interleaved)
    y, rstd = rotated_norm.forward(x, w, rotation, _checked(eps, x))
    return y, Saved(x, rstd, w, rotation)


def _normalised(
    x: torch.Tensor,
    w: torch.Tensor | None,
    eps: float | None,
    f: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, Saved]:
    y, s, _, rstd = norm_rows.forward(x, w, None, _checked(eps, x), centred=False, f=f)
    return y, s, Saved(s, rstd, w)


def _checked(eps: float | None, x: torch.Tensor) -> float:
    if eps is None:
        eps = torch.finfo(accumulator(x.dtype)).eps
    check_eps(eps)
    return eps


def backward(
    dy: torch.Tensor, saved: Saved
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return ``dx[*, n]`` and ``dw[n]`` (None without a weight), from ``dy[*, n]``, of
    any strides. dx is contiguous, unless y was rotated: its axes are then in memory in
    the order of x's."""
    x, rstd, w, rotation = check_saved(saved, Saved)
    check_tensor("dy", dy)
    check_cotangent(dy, x.shape, like=x)
    if rotation is not None and w is not None:
        return rotated_norm.backward(dy, x, rstd, w, rotation)
    dx, dw, _ = norm_rows.backward(dy, x, None, rstd, w, None)
    return dx, dw


def backward_of_sum(
    dy: torch.Tensor, ds: torch.Tensor, saved: Saved
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return ``dx[*, n]``, contiguous, which is also f's gradient, and ``dw[n]``, from
    ``dy[*, n]`` and the gradient ``ds[*, n]`` that the sum has from its other uses.
    Raises ValueError for what ``forward_rotated`` saved."""
    x, rstd, w, rotation = check_saved(saved, Saved)
    if rotation is not None:
        raise ValueError(
            "saved: expected what forward_of_sum returned, got what forward_rotated did"
        )
    check_tensors(norm_rows.GRADIENTS, dy=dy, ds=ds)
    check_cotangent(dy, x.shape, like=x)
    dx, dw, _ = norm_rows.backward(dy, x, None, rstd, w, None, ds)
    return dx, dw


launches = norm_rows.declare_launches(rotated_norm.launches, centred=False, has_b=False)
