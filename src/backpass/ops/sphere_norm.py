r"""Sphere normalisation: each row is divided by its length, so that it lies on the unit
sphere.

.. math:: \rho_r = \sqrt{\sum_j x_{rj}^2}, \quad
          y_{ri} = \frac{x_{ri}}{\rho_r}, \qquad
          \bar{x}_{ri} = \frac{1}{\rho_r}
              \Big( \bar{y}_{ri} - y_{ri} \sum_j \bar{y}_{rj} y_{rj} \Big)

Derived on the page ``attention/multilinear``. With ``mean=True`` a row is divided by
its root mean square, which is √n times smaller: this is RMS normalisation without ε. A
row of zeros, which has nothing to attend to, has output and gradient 0. So has a row
whose squares or whose mean square underflow to 0 and, as in PyTorch, a row whose sum of
squares overflows. Half precision is computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from backpass.contract.arrays import Array, as_type_of, widened
from backpass.contract.shapes import check_cotangent, check_inputs, check_saved
from backpass.contract.values import check_bool

SHAPES = "x[*, n>0] -> y[*, n]"


class Saved(NamedTuple):
    """The output and the divisor of each row: the backward never needs x."""

    y: Array  # [*, n]
    # [*, 1], the row's length or root mean square, ∞ if it is 0, in float32 for half
    # precision
    divisor: Array
    n: int | None  # with mean=True: backward also divides by n


def forward(x: Array, *, mean: bool = False) -> tuple[Array, Saved]:
    """Return ``y[*, n]``: each row of ``x[*, n]`` over its length, or over its root
    mean square with ``mean``.

    Raises TypeError if ``x`` is not a floating-point array or ``mean`` is not a bool;
    ValueError if it has no axis or its last axis is empty.
    """
    xp = check_inputs(SHAPES, x=x)
    check_bool(mean=mean)
    wide = widened(x)
    total = xp.sum(wide * wide, axis=-1, keepdims=True)  # [*, 1]

    # A number divided by ∞ is 0, and so is its gradient. A mean can round to 0 although
    # the sum is not 0.
    divisor = xp.sqrt(total / x.shape[-1] if mean else total)
    divisor = xp.where(divisor == 0, math.inf, divisor)
    y = as_type_of(wide / divisor, x)
    return y, Saved(y, divisor, x.shape[-1] if mean else None)


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[*, n]`` from ``dy[*, n]``."""
    y, divisor, n = check_saved(saved, Saved)
    xp = check_cotangent(dy, y.shape, like=y)
    dy = widened(dy)

    # In the forward pass the row lost its length; so now its gradient loses its part
    # along y. The length of y is 1, or with the root mean square √n, hence the division
    # by n.
    along_y = xp.sum(dy * y, axis=-1, keepdims=True)  # [*, 1]
    along_y = along_y if n is None else along_y / n
    return as_type_of((dy - y * along_y) / divisor, y)


def forward_flops(m, n, mean=False):
    """Return 3n FLOPs per row: square, sum, take the root, divide. With ``mean`` there
    is one more division."""
    return m * 3 * n + (m if mean else 0)


def backward_flops(m, n, mean=False):
    """Return 5n − 1 FLOPs per row: multiply, sum, multiply, subtract, divide. With
    ``mean`` there is one more division."""
    return m * (5 * n - 1) + (m if mean else 0)


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({}, {"mean": True})
PLACES = ("weights",)
AUTOCAST = "float32"
