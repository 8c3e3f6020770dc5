r"""A linear layer: every row of x is multiplied by one weight matrix, and a bias is
added if there is one.

.. math:: Y = X W + \mathbf{1}_m b^\top, \qquad
          \bar{X} = \bar{Y} W^\top, \quad \bar{W} = X^\top \bar{Y}, \quad
          \bar{b} = \bar{Y}^\top \mathbf{1}_m

Derived on the page ``operations/linear``. Weights are ``[in, out]``. The gradient of a
weight that is a transposed view is such a view too. In half precision the bias's
gradient is summed in float32.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.contract.arrays import (
    Array,
    Gradients,
    as_matrix,
    as_type_of,
    transpose,
    widened,
)
from backpass.contract.shapes import Outline, check_cotangent, check_inputs
from backpass.contract.wanted import Wanted, check_wanted, narrowed, needed, sum_wanted
from backpass.ops._tiling import is_turned, product, product_plus

SHAPES = "x[*, n], w[n, p], b[p]? -> y[*, p]"
PARAMETERS = ("w", "b")


class Saved(NamedTuple):
    """Both factors. Each is saved only if the other factor's gradient is wanted."""

    x: Array | Outline  # [*, n]
    w: Array | Outline  # [n, p], a parameter
    wanted: tuple[str, ...]
    turned: bool = False  # whether w is a transposed view


NEEDS = {"x": "w", "w": "x"}


def forward(
    x: Array, w: Array, b: Array | None = None, *, wanted: Wanted = None
) -> tuple[Array, Saved]:
    """Return ``y[*, p]``: each row of ``x[*, n]`` times ``w[n, p]``, plus ``b[p]``.

    Raises TypeError if an input is not a floating-point array or if its library,
    device, or dtype differs from that of ``x``; ValueError if shapes do not fit.
    """
    check_inputs(SHAPES, x=x, w=w, b=b)
    wanted = check_wanted(SHAPES, wanted, b=b)
    y = x @ w if b is None else product_plus(x, w, b)
    return y, needed(Saved(x, w, wanted, is_turned(w)), NEEDS)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dx[*, n]``, ``dw[n, p]``, and ``db[p]`` (None without a bias) from
    ``dy[*, p]``."""
    x, w, wanted, turned = narrowed(saved, Saved, wanted)
    xp = check_cotangent(dy, (*x.shape[:-1], w.shape[1]), like=x)

    dx = dy @ transpose(w) if "x" in wanted else None
    # In the forward pass every row used the same w and b; so now their gradients are
    # sums over rows.
    drows = as_matrix(dy)  # [m, p]
    dw = product(transpose(as_matrix(x)), drows, turned) if "w" in wanted else None
    db = as_type_of(xp.sum(widened(drows), axis=0), dy) if "b" in wanted else None
    return dx, dw, db


def forward_flops(m, n, p, has_b=True):
    """Return n products and n − 1 sums for each element of y, and one more sum with a
    bias."""
    return m * p * (2 * n - 1) + (m * p if has_b else 0)


def backward_flops(m, n, p, has_b=True, wanted=None):
    """Return the FLOPs of m·n dot products of p terms for dx, n·p of m terms for dw,
    and p sums of m terms for db."""
    dx, dw = m * n * (2 * p - 1), n * p * (2 * m - 1)
    db = p * (m - 1) if has_b else 0
    return sum_wanted(wanted, {"x": dx, "w": dw, "b": db})


# Facts for checks, pages and functional: see backpass.ops.
PLACES = (
    "project to q, k, v",
    "output projection",
    "up projection",
    "down projection",
    "logits",
)
AUTOCAST = "matmul"
