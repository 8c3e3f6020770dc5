r"""Simplex normalisation: each row is divided by its sum. Rows of positive numbers
become weights that sum to 1.

.. math:: \sigma_r = \sum_j x_{rj}, \quad
          y_{ri} = \frac{x_{ri}}{\sigma_r}, \qquad
          \bar{x}_{ri} = \frac{1}{\sigma_r}
              \Big( \bar{y}_{ri} - \sum_j \bar{y}_{rj} y_{rj} \Big)

Derived on the page ``attention/multilinear``. Softmax is the simplex normalisation of
exponentials. With ``mean=True`` a row is divided by its mean. A row of zeros, which has
nothing to attend to, has output and gradient 0. So has a row whose mean underflows to 0
and, as in PyTorch, a row whose sum overflows, even with ``mean=True``. Any other row
whose sum is not positive raises ValueError. Half precision is computed in float32 and
rounded once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from backpass.contract.arrays import Array, as_type_of, widened
from backpass.contract.shapes import check_cotangent, check_inputs, check_saved
from backpass.contract.values import check_bool, check_sums

SHAPES = "x[*, n>0] -> y[*, n]"
POSITIVE = ("x",)


class Saved(NamedTuple):
    """The output and the divisor of each row: the backward never needs x."""

    y: Array  # [*, n]
    # [*, 1], the sum or the mean, ∞ if it is 0; in float32 for half precision
    divisor: Array
    n: int | None  # with mean=True: backward also divides by n


def forward(x: Array, *, mean: bool = False) -> tuple[Array, Saved]:
    """Return ``y[*, n]``: each row of ``x[*, n]`` over its sum, or over its mean with
    ``mean``.

    Raises TypeError if ``x`` is not a floating-point array or ``mean`` is not a bool;
    ValueError if it has no axis, its last axis is empty, or a row that is not all zeros
    has a sum that is not positive.
    """
    xp = check_inputs(SHAPES, x=x)
    check_bool(mean=mean)
    wide = widened(x)
    total = xp.sum(wide, axis=-1, keepdims=True)  # [*, 1]
    check_sums("x", total, xp.all(wide == 0, axis=-1, keepdims=True))

    # A number divided by ∞ is 0, and so is its gradient. A mean can round to 0 although
    # the sum is not 0.
    divisor = total / x.shape[-1] if mean else total
    divisor = xp.where(divisor == 0, math.inf, divisor)
    y = as_type_of(wide / divisor, x)
    return y, Saved(y, divisor, x.shape[-1] if mean else None)


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[*, n]`` from ``dy[*, n]``."""
    y, divisor, n = check_saved(saved, Saved)
    xp = check_cotangent(dy, y.shape, like=y)
    dy = widened(dy)

    # In the forward pass x_i raised its own share and, through the shared sum, lowered
    # every share of the row; so now its gradient is measured from the row's average.
    average = xp.sum(dy * y, axis=-1, keepdims=True)  # [*, 1]
    average = average if n is None else average / n
    return as_type_of((dy - average) / divisor, y)


def forward_flops(m, n, mean=False):
    """Return 2n − 1 FLOPs per row: sum and divide. With ``mean`` there is one more
    division."""
    return m * (2 * n - 1) + (m if mean else 0)


def backward_flops(m, n, mean=False):
    """Return 4n − 1 FLOPs per row: multiply, sum, subtract, divide. With ``mean`` there
    is one more division."""
    return m * (4 * n - 1) + (m if mean else 0)


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({}, {"mean": True})
PLACES = ("weights",)
AUTOCAST = "float32"
