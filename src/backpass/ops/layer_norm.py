r"""Layer normalisation: each row is brought to mean 0 and variance 1, then scaled and
shifted element by element.

.. math:: \mu_r = \frac1n \sum_j x_{rj}, \quad
          s_r = \sqrt{\frac1n \sum_j (x_{rj} - \mu_r)^2 + \epsilon}, \quad
          \hat{x}_{ri} = \frac{x_{ri} - \mu_r}{s_r}, \quad
          y_{ri} = w_i \hat{x}_{ri} + b_i, \qquad
          \bar{x}_{ri} = \frac{1}{s_r}
              \left( \bar{y}_{ri} w_i - \frac1n \sum_j \bar{y}_{rj} w_j
              - \hat{x}_{ri} \frac1n \sum_j \bar{y}_{rj} w_j \hat{x}_{rj} \right), \quad
          \bar{w}_i = \sum_r \bar{y}_{ri} \hat{x}_{ri}, \quad
          \bar{b}_i = \sum_r \bar{y}_{ri}

Derived on the page ``operations/layer_norm``. The variance divides by n, as PyTorch's
does. Half precision is computed in float32 and rounded once. A constant row is
normalised to zeros, unless ε is 0: then, as in PyTorch, it becomes NaN.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.contract.arrays import Array, Gradients, as_matrix, as_type_of, widened
from backpass.contract.shapes import Outline, check_cotangent, check_inputs
from backpass.contract.values import check_eps
from backpass.contract.wanted import Wanted, check_wanted, narrowed, needed, sum_wanted

SHAPES = "x[*, n>0], w[n]?, b[n]? -> y[*, n]"
PARAMETERS = ("w", "b")
WIDE = ("w", "b")


class Saved(NamedTuple):
    """The normalised rows rather than x, mean, and rstd: one number per row fewer, and
    nothing to recompute."""

    x_hat: Array | Outline  # [*, n]; without w and b it is y itself
    rstd: Array | Outline  # [*, 1], 1/√(σ² + ε), in float32 for half precision
    w: Array | Outline | None  # [n], a parameter
    b: Outline | None  # [n], a parameter, of which backward needs the dtype
    wanted: tuple[str, ...]


NEEDS = {"x_hat": "x w", "rstd": "x", "w": "x", "b": ""}


def forward(
    x: Array,
    w: Array | None = None,
    b: Array | None = None,
    *,
    eps: float = 1e-5,
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return ``y[*, n]``: each row of ``x[*, n]`` normalised, then multiplied by
    ``w[n]`` and shifted by ``b[n]`` if they are given.

    A weight and a bias in float32 may accompany half precision: y then has x's dtype,
    and dw and db are float32. Raises TypeError if an input is not a floating-point
    array or if its library, device, or dtype otherwise differs from that of ``x``, or
    if ``eps`` is not a real number; ValueError if shapes do not fit, n is 0, or ``eps``
    is below 0.
    """
    xp = check_inputs(SHAPES, WIDE, x=x, w=w, b=b)
    check_eps(eps)
    wanted = check_wanted(SHAPES, wanted, w=w, b=b)
    n = x.shape[-1]
    wide = widened(x)

    # The variance is the mean square of the centred row. The mean of x² less the square
    # of the mean is the same number, but rounding turns it into noise where the mean is
    # large.
    centred = wide - xp.sum(wide, axis=-1, keepdims=True) / n  # [*, n]
    variance = xp.sum(centred * centred, axis=-1, keepdims=True) / n  # [*, 1]
    rstd = 1 / xp.sqrt(variance + eps)  # [*, 1]
    x_hat = centred * rstd  # [*, n]

    y = x_hat if w is None else x_hat * w
    y = y if b is None else y + b
    saved = Saved(as_type_of(x_hat, x), rstd, w, b, wanted)
    return as_type_of(y, x), needed(saved, NEEDS)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dx[*, n]``, ``dw[n]``, and ``db[n]`` from ``dy[*, n]``. The gradient of
    an input that was not given is None."""
    x_hat, rstd, w, b, wanted = narrowed(saved, Saved, wanted)
    xp = check_cotangent(dy, x_hat.shape, like=x_hat)
    n = x_hat.shape[-1]
    dy = widened(dy)

    # In the forward pass the row lost its mean and its length; so now its gradient
    # loses its part along the ones and its part along x_hat. Both have length √n, hence
    # the division by n.
    dx = dw = db = None
    if "x" in wanted:
        dx_hat = dy if w is None else dy * w
        along_ones = xp.sum(dx_hat, axis=-1, keepdims=True) / n  # [*, 1]
        along_x_hat = xp.sum(dx_hat * x_hat, axis=-1, keepdims=True) / n  # [*, 1]
        dx = as_type_of(rstd * (dx_hat - along_ones - x_hat * along_x_hat), x_hat)

    # Every row used the same w and b, so their gradients are sums over rows.
    if "w" in wanted:
        dw = as_type_of(xp.sum(as_matrix(dy * x_hat), axis=0), w)
    if "b" in wanted:
        db = as_type_of(xp.sum(as_matrix(dy), axis=0), b)
    return dx, dw, db


def forward_flops(m, n, has_w=True, has_b=True):
    """Return 5n + 3 FLOPs per row: n for the mean, n to centre, 2n for the variance, 3
    more for rstd, n to normalise. A weight and a bias add n each."""
    return m * (5 * n + 3) + (m * n if has_w else 0) + (m * n if has_b else 0)


def backward_flops(m, n, has_w=True, has_b=True, wanted=None):
    """Return 7n FLOPs per row for dx, and n more with a weight; for dw a product per
    element and a sum over rows; for db a sum over rows."""
    dx = 7 * m * n + (m * n if has_w else 0)
    dw = m * n + n * (m - 1) if has_w else 0
    db = n * (m - 1) if has_b else 0
    return sum_wanted(wanted, {"x": dx, "w": dw, "b": db})


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({}, {"eps": 0.25})
LETTERS = {"eps": r"\epsilon"}
PLACES = ("normalise",)
AUTOCAST = "float32"
