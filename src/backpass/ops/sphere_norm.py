r"""Sphere normalisation: each row divided by its length, so that it lies on the unit
sphere.

.. math:: \rho_r = \sqrt{\sum_j x_{rj}^2}, \quad
          y_{ri} = \frac{x_{ri}}{\rho_r}, \qquad
          \bar{x}_{ri} = \frac{1}{\rho_r}
              \Big( \bar{y}_{ri} - y_{ri} \sum_j \bar{y}_{rj} y_{rj} \Big)

Derived on the page ``attention/multilinear``. With ``mean=True`` a row is divided by
its root mean square, √n times smaller: RMS normalisation without its ε. A row of zeros,
which has nothing to attend to, has output and gradient 0; so has one whose squares are
all, or whose mean square is, too small for the dtype, and, as in PyTorch, one the sum
of whose squares is past the dtype's largest number. Rows of 16 bits are computed in
float32 and rounded once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from backpass.arrays import Array, as_type_of, widened
from backpass.shapes import check_cotangent, check_inputs, check_saved

SHAPES = "x[*, n>0] -> y[*, n]"


class Saved(NamedTuple):
    """The output and what divided its row: the backward never needs x."""

    y: Array  # [*, n]
    divisor: Array  # [*, 1], the length or the root mean square, ∞ where it is 0; float32 for rows of 16 bits
    n: int | None  # with mean=True, where backward divides by it too


def forward(x: Array, *, mean: bool = False) -> tuple[Array, Saved]:
    """``y[*, n]``, each row of ``x[*, n]`` over its length; over its root mean square
    with ``mean``.

    Raises TypeError when ``x`` is no floating-point array, ValueError when it has no
    axis or the last is empty.
    """
    xp = check_inputs(SHAPES, x=x)
    wide = widened(x)
    total = xp.sum(wide * wide, axis=-1, keepdims=True)  # [*, 1]

    # Whatever is divided by ∞ is 0, and so is its gradient. A mean can be 0 where its
    # sum is not.
    divisor = xp.sqrt(total / x.shape[-1] if mean else total)
    divisor = xp.where(divisor == 0, math.inf, divisor)
    y = as_type_of(wide / divisor, x)
    return y, Saved(y, divisor, x.shape[-1] if mean else None)


def backward(dy: Array, saved: Saved) -> Array:
    """``dx[*, n]`` from ``dy[*, n]``."""
    y, divisor, n = check_saved(saved, Saved)
    xp = check_cotangent(dy, y.shape, like=y)
    dy = widened(dy)

    # In the forward pass the row lost its length; so now its gradient loses its part
    # along y, whose length is 1, or √n after the root mean square: whence that
    # division.
    along_y = xp.sum(dy * y, axis=-1, keepdims=True)  # [*, 1]
    along_y = along_y if n is None else along_y / n
    return as_type_of((dy - y * along_y) / divisor, y)


def forward_flops(m, n, mean=False):
    """Square, sum, root, divide: 3n a row, and a division for the mean."""
    return m * 3 * n + (m if mean else 0)


def backward_flops(m, n, mean=False):
    """Multiply, sum, multiply, subtract, divide: 5n − 1 a row, and a division for the
    mean."""
    return m * (5 * n - 1) + (m if mean else 0)


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({}, {"mean": True})
PLACES = ("weights",)
AUTOCAST = "float32"
