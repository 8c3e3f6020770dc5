r"""Simplex normalisation: each row divided by its sum. Rows of positive numbers become
weights that sum to 1.

.. math:: \sigma_r = \sum_j x_{rj}, \quad
          y_{ri} = \frac{x_{ri}}{\sigma_r}, \qquad
          \bar{x}_{ri} = \frac{1}{\sigma_r}
              \Big( \bar{y}_{ri} - \sum_j \bar{y}_{rj} y_{rj} \Big)

Derived on the page ``attention/multilinear``. Softmax is this of the exponentials. With
``mean=True`` a row is divided by its mean. A row of zeros, which has nothing to attend
to, has output and gradient 0; so has one whose mean is too small for the dtype, and, as
in PyTorch, one whose sum, of which the mean is made, is past the dtype's largest
number. Any other row whose sum is not positive is refused. Rows of 16 bits are computed
in float32 and rounded once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from backpass.arrays import Array, as_type_of, widened
from backpass.shapes import check_cotangent, check_inputs, check_saved
from backpass.values import check_sums

SHAPES = "x[*, n>0] -> y[*, n]"
POSITIVE = ("x",)


class Saved(NamedTuple):
    """The output and what divided its row: the backward never needs x."""

    y: Array  # [*, n]
    divisor: Array  # [*, 1], the sum or the mean, ∞ where it is 0; in float32 for rows of 16 bits
    n: int | None  # with mean=True, where backward divides by it too


def forward(x: Array, *, mean: bool = False) -> tuple[Array, Saved]:
    """``y[*, n]``, each row of ``x[*, n]`` over its sum; over its mean with ``mean``.

    Raises TypeError when ``x`` is no floating-point array, ValueError when it has no
    axis, the last is empty, or the sum of a row that is not all zeros is not positive.
    """
    xp = check_inputs(SHAPES, x=x)
    wide = widened(x)
    total = xp.sum(wide, axis=-1, keepdims=True)  # [*, 1]
    check_sums("x", total, xp.all(wide == 0, axis=-1, keepdims=True))

    # Whatever is divided by ∞ is 0, and so is its gradient. A mean can be 0 where its
    # sum is not.
    divisor = total / x.shape[-1] if mean else total
    divisor = xp.where(divisor == 0, math.inf, divisor)
    y = as_type_of(wide / divisor, x)
    return y, Saved(y, divisor, x.shape[-1] if mean else None)


def backward(dy: Array, saved: Saved) -> Array:
    """``dx[*, n]`` from ``dy[*, n]``."""
    y, divisor, n = check_saved(saved, Saved)
    xp = check_cotangent(dy, y.shape, like=y)
    dy = widened(dy)

    # In the forward pass x_i raised its own share and, through the shared sum, lowered
    # every share of the row; so now its gradient is measured from the row's average.
    average = xp.sum(dy * y, axis=-1, keepdims=True)  # [*, 1]
    average = average if n is None else average / n
    return as_type_of((dy - average) / divisor, y)


def forward_flops(m, n, mean=False):
    """Sum and divide: 2n − 1 a row, and a division for the mean."""
    return m * (2 * n - 1) + (m if mean else 0)


def backward_flops(m, n, mean=False):
    """Multiply, sum, subtract, divide: 4n − 1 a row, and a division for the mean."""
    return m * (4 * n - 1) + (m if mean else 0)


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({}, {"mean": True})
PLACES = ("weights",)
AUTOCAST = "float32"
