r"""RMS normalisation: each row is divided by its root mean square, then scaled element
by element.

.. math:: s_r = \sqrt{\frac1n \sum_j x_{rj}^2 + \epsilon}, \quad
          \hat{x}_{ri} = \frac{x_{ri}}{s_r}, \quad
          y_{ri} = w_i \hat{x}_{ri}, \qquad
          \bar{x}_{ri} = \frac{1}{s_r} \left( \bar{y}_{ri} w_i
              - \hat{x}_{ri} \frac1n \sum_j \bar{y}_{rj} w_j \hat{x}_{rj} \right), \quad
          \bar{w}_i = \sum_r \bar{y}_{ri} \hat{x}_{ri}

Derived on the page ``operations/rms_norm``. Half precision is computed in float32 and
rounded once. A row of zeros is normalised to zeros, unless ε is 0: then, as in PyTorch,
it becomes NaN.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.contract.arrays import (
    Array,
    Gradients,
    as_matrix,
    as_type_of,
    is_half,
    name_of,
    widened,
)
from backpass.contract.shapes import Outline, check_cotangent, check_inputs
from backpass.contract.values import check_eps
from backpass.contract.wanted import Wanted, check_wanted, narrowed, needed, sum_wanted

SHAPES = "x[*, n>0], w[n]? -> y[*, n]"
PARAMETERS = ("w",)
WIDE = ("w",)


class Saved(NamedTuple):
    """The normalised rows rather than x: as many numbers, and dw needs nothing
    recomputed."""

    x_hat: Array | Outline  # [*, n]; without w it is y itself
    # [*, 1], the inverse of the root, in float32 for half precision
    rstd: Array | Outline
    w: Array | Outline | None  # [n], a parameter
    wanted: tuple[str, ...]


NEEDS = {"x_hat": "x w", "rstd": "x", "w": "x"}


def forward(
    x: Array,
    w: Array | None = None,
    *,
    eps: float | None = None,
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return ``y[*, n]``: each row of ``x[*, n]`` over its root mean square, times
    ``w[n]`` if it is given.

    ``eps`` defaults to machine epsilon of x's dtype (float32's for half precision), as
    in PyTorch. A weight in float32 may accompany half precision: y then has x's
    dtype, and dw is float32. Raises TypeError if an input is not a floating-point array
    or if its library, device, or dtype otherwise differs from that of ``x``, or if
    ``eps`` is not a real number; ValueError if shapes do not fit, n is 0, or ``eps`` is
    below 0.
    """
    xp = check_inputs(SHAPES, WIDE, x=x, w=w)
    if eps is None:
        eps = _default_eps(x)
    check_eps(eps)
    wanted = check_wanted(SHAPES, wanted, w=w)

    wide = widened(x)
    mean_square = xp.sum(wide * wide, axis=-1, keepdims=True) / x.shape[-1]  # [*, 1]
    rstd = 1 / xp.sqrt(mean_square + eps)  # [*, 1]
    x_hat = wide * rstd  # [*, n]
    y = x_hat if w is None else x_hat * w
    saved = Saved(as_type_of(x_hat, x), rstd, w, wanted)
    return as_type_of(y, x), needed(saved, NEEDS)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dx[*, n]`` and ``dw[n]`` (None without a weight) from ``dy[*, n]``."""
    x_hat, rstd, w, wanted = narrowed(saved, Saved, wanted)
    xp = check_cotangent(dy, x_hat.shape, like=x_hat)
    n = x_hat.shape[-1]
    dy = widened(dy)

    # In the forward pass the row lost its length; so now its gradient loses its part
    # along x_hat, whose length is √n. dy is multiplied by the weight first, because
    # x_hat's gradient is what loses that part.
    dx = dw = None
    if "x" in wanted:
        dx_hat = dy if w is None else dy * w
        along_x_hat = xp.sum(dx_hat * x_hat, axis=-1, keepdims=True) / n  # [*, 1]
        dx = as_type_of(rstd * (dx_hat - x_hat * along_x_hat), x_hat)

    # Every row used the same w, so its gradient is a sum over rows.
    if "w" in wanted:
        dw = as_type_of(xp.sum(as_matrix(dy * x_hat), axis=0), w)
    return dx, dw


def forward_flops(m, n, has_w=True):
    """Return 3n + 3 FLOPs per row: 2n for the mean square, 3 more for rstd, n to
    normalise. A weight adds n."""
    return m * (3 * n + 3) + (m * n if has_w else 0)


def backward_flops(m, n, has_w=True, wanted=None):
    """Return 5n FLOPs per row for dx, and n more with a weight; for dw a product per
    element and a sum over rows."""
    dx = 5 * m * n + (m * n if has_w else 0)
    dw = m * n + n * (m - 1) if has_w else 0
    return sum_wanted(wanted, {"x": dx, "w": dw})


def _default_eps(x: Array) -> float:
    short = is_half(x.dtype) or name_of(x.dtype) == "float32"
    return 2.0**-23 if short else 2.0**-52


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({}, {"eps": 0.25})
FLOAT32_DEFAULTS = {"eps": 2.0**-23}
LETTERS = {"eps": r"\epsilon"}
PLACES = ("normalise",)
AUTOCAST = "float32"
