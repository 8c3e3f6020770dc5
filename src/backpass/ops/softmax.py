r"""Softmax over the last axis: from scores, weights that are positive and sum to 1.

.. math:: y_i = \frac{e^{x_i}}{\sum_j e^{x_j}}, \qquad
          \bar{x}_i = y_i \Big( \bar{y}_i - \sum_j \bar{y}_j y_j \Big)

Derived on the page ``operations/softmax``. An entry of −∞ has weight and gradient 0. So
has a whole row of them, where PyTorch gives NaN. Half precision is computed in float32
and rounded once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from backpass.contract.arrays import Array, as_type_of, widened
from backpass.contract.shapes import check_cotangent, check_inputs, check_saved

SHAPES = "x[*, n>0] -> y[*, n]"


class Saved(NamedTuple):
    """The weights alone: the backward never needs the scores."""

    y: Array  # [*, n]


def forward(x: Array) -> tuple[Array, Saved]:
    """Return the weights ``y[*, n]`` of the scores ``x[*, n]``.

    Raises TypeError if ``x`` is not a floating-point array; ValueError if it has no
    axis or its last axis is empty.
    """
    xp = check_inputs(SHAPES, x=x)

    # Subtracting the largest score does not change the weights and keeps exp from
    # overflowing. In a row of −∞, 0 is subtracted instead, and the sum of 0 is replaced
    # by 1.
    wide = widened(x)
    top = xp.max(wide, axis=-1, keepdims=True)  # [*, 1]
    exps = xp.exp(wide - xp.where(top == -math.inf, 0.0, top))  # [*, n]
    total = xp.sum(exps, axis=-1, keepdims=True)  # [*, 1]
    y = as_type_of(exps / xp.where(total == 0, 1.0, total), x)
    return y, Saved(y)


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[*, n]`` from ``dy[*, n]``."""
    (y,) = check_saved(saved, Saved)
    xp = check_cotangent(dy, y.shape, like=y)

    y = widened(y)

    # In the forward pass x_i raised its own weight and, through the shared denominator,
    # lowered every weight of the row; so now its gradient is measured from the row's
    # average.
    dx = y * (dy - xp.sum(dy * y, axis=-1, keepdims=True))
    return as_type_of(dx, saved.y)


def forward_flops(m, n):
    """Return 4n − 1 FLOPs per row: subtract, exponentiate, sum, divide."""
    return m * (4 * n - 1)


def backward_flops(m, n):
    """Return 4n − 1 FLOPs per row: multiply, sum, subtract, multiply."""
    return m * (4 * n - 1)


# Facts for checks, pages and functional: see backpass.ops.
PLACES = ("weights",)
AUTOCAST = "float32"
