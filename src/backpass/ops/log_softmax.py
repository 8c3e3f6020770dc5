r"""Log-softmax over the last axis: from scores, the logarithms of softmax's weights.

.. math:: y_i = x_i - \log \Big( \sum_j e^{x_j} \Big), \qquad
          \bar{x}_i = \bar{y}_i - e^{y_i} \Big( \sum_j \bar{y}_j \Big)

Derived on the page ``operations/cross_entropy``. An entry of −∞ stays −∞. So does a
whole row of them, where PyTorch gives NaN. Half precision is computed in float32 and
rounded once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from backpass.contract.arrays import Array, as_type_of, widened
from backpass.contract.shapes import check_cotangent, check_inputs, check_saved

SHAPES = "x[*, n>0] -> y[*, n]"


class Saved(NamedTuple):
    """The log-probabilities alone: their exponentials are the weights."""

    y: Array  # [*, n]


def forward(x: Array) -> tuple[Array, Saved]:
    """Return log-probabilities ``y[*, n]`` of the scores ``x[*, n]``.

    Raises TypeError if ``x`` is not a floating-point array; ValueError if it has no
    axis or its last axis is empty.
    """
    xp = check_inputs(SHAPES, x=x)

    # With the largest score subtracted no exponential overflows, and the sum is at
    # least 1. In a row of −∞, 0 is subtracted instead, and the sum of 0 is replaced by
    # 1.
    wide = widened(x)
    top = xp.max(wide, axis=-1, keepdims=True)  # [*, 1]
    below = wide - xp.where(top == -math.inf, 0.0, top)  # [*, n]
    total = xp.sum(xp.exp(below), axis=-1, keepdims=True)  # [*, 1]
    below -= xp.log(xp.where(total == 0, 1.0, total))
    y = as_type_of(below, x)
    return y, Saved(y)


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[*, n]`` from ``dy[*, n]``."""
    (y,) = check_saved(saved, Saved)
    xp = check_cotangent(dy, y.shape, like=y)

    y, dy = widened(y), widened(dy)

    # In the forward pass x_i raised its own log-probability one for one and, through
    # the shared sum, lowered every log-probability of the row by its weight; so now its
    # gradient is its own dy less its weight times the sum of all.
    dx = dy - xp.exp(y) * xp.sum(dy, axis=-1, keepdims=True)
    return as_type_of(dx, saved.y)


def forward_flops(m, n):
    """Return 4n FLOPs per row: subtract, exponentiate, sum, take one logarithm,
    subtract."""
    return m * 4 * n


def backward_flops(m, n):
    """Return 4n − 1 FLOPs per row: sum, exponentiate, multiply, subtract."""
    return m * (4 * n - 1)


# Facts for checks, pages and functional: see backpass.ops.
PLACES = ("loss",)
AUTOCAST = "float32"
