r"""SiLU, also called swish: each element times its own sigmoid.

.. math:: \sigma_i = \frac{1}{1 + e^{-x_i}}, \quad
          y_i = x_i \sigma_i, \qquad
          \bar{x}_i = \bar{y}_i \sigma_i \big( 1 + x_i (1 - \sigma_i) \big)

Derived on the page ``operations/activations``. Half precision is computed in float32
and rounded once. At ±∞ value and gradient are their limits; PyTorch gives NaN for three
of these four.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.contract.arrays import (
    Array,
    as_type_of,
    near_zero,
    not_far_below,
    sigmoid,
    widened,
)
from backpass.contract.shapes import check_cotangent, check_inputs, check_saved

SHAPES = "x[*] -> y[*]"


class Saved(NamedTuple):
    """x alone. Saving the sigmoid would take a second array of the same size;
    recomputing it moves no memory."""

    x: Array  # [*]


def forward(x: Array) -> tuple[Array, Saved]:
    """Return ``y[*]``: each element of ``x[*]`` times its sigmoid.

    Raises TypeError if ``x`` is not a floating-point array.
    """
    check_inputs(SHAPES, x=x)
    wide = widened(x)
    y = not_far_below(wide)
    y *= sigmoid(wide)
    return as_type_of(y, x), Saved(x)


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[*]`` from ``dy[*]``."""
    (x,) = check_saved(saved, Saved)
    check_cotangent(dy, x.shape, like=x)
    x = widened(x)

    # In the forward pass x was scaled by its sigmoid and also moved that sigmoid, whose
    # derivative is σ (1 − σ).
    gate = sigmoid(x)
    slope = 1 - gate
    slope *= near_zero(x)
    slope += 1
    slope *= gate
    slope *= widened(dy)
    return as_type_of(slope, dy)


def forward_flops(m):
    """Return 6 FLOPs per element: 5 for the sigmoid (two exponentials, a subtraction, a
    sum, a division), and a product."""
    return 6 * m


def backward_flops(m):
    """Return 10 FLOPs per element: 5 for the sigmoid again, and 5 for the slope and its
    product with dy."""
    return 10 * m


# Facts for checks, pages and functional: see backpass.ops.
PLACES = ("activation",)
AUTOCAST = "widest"
