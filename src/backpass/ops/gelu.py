r"""GELU: each element times the probability that a standard normal number is smaller.

.. math:: y_i = x_i \cdot
            \frac12 \Big( 1 + \operatorname{erf} \Big( \frac{x_i}{\sqrt{2}} \Big) \Big),
          \qquad \bar{x}_i = \bar{y}_i \Big(
            \frac12 \Big( 1 + \operatorname{erf} \Big( \frac{x_i}{\sqrt{2}} \Big) \Big)
            + x_i \frac{e^{-x_i^2 / 2}}{\sqrt{2 \pi}} \Big)

Derived on the page ``operations/activations``. There too is ``approximate="tanh"``,
which replaces erf(x/√2) by tanh(√(2/π) (x + 0.044715 x³)). Half precision is computed
in float32 and rounded once. At ±∞ value and gradient are their limits; PyTorch gives
NaN for three of these four.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from backpass.contract.arrays import (
    Array,
    as_type_of,
    erf,
    namespace,
    near_zero,
    not_far_below,
    widened,
)
from backpass.contract.shapes import check_cotangent, check_inputs, check_saved

SHAPES = "x[*] -> y[*]"
# The exponent of a root. A root of a symbolic π stays exact, unlike one with 0.5.
HALF = Fraction(1, 2)
CUBIC = Fraction(44715, 1_000_000)


class Saved(NamedTuple):
    """x alone. Saving the probability too would double the bytes and spare 4 FLOPs of
    11, or 7 of 15 with tanh, in a backward that is bound by memory. y cannot replace x:
    every negative y except the least belongs to two x."""

    x: Array  # [*]
    approximate: str


def forward(x: Array, *, approximate: str = "none") -> tuple[Array, Saved]:
    """Return ``y[*]``: each element of ``x[*]`` times its probability, which
    ``approximate="tanh"`` approximates.

    Raises TypeError if ``x`` is not a floating-point array; ValueError if
    ``approximate`` is neither "none" nor "tanh".
    """
    check_inputs(SHAPES, x=x)
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate: expected 'none' or 'tanh'; got {approximate!r}")
    wide = widened(x)
    odd = _tanh(near_zero(wide))[0] if approximate == "tanh" else _erf(wide)
    y = 1 + odd
    y /= 2  # the probability
    y *= not_far_below(wide)
    return as_type_of(y, x), Saved(x, approximate)


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[*]`` from ``dy[*]``."""
    x, approximate = check_saved(saved, Saved)
    xp = check_cotangent(dy, x.shape, like=x)
    x = near_zero(widened(x))

    # In the forward pass x was scaled by its probability and also moved that
    # probability, by its density.
    if approximate == "tanh":
        odd, density = _tanh(x)
        half_root = (2 / xp.pi) ** HALF / 2
        density *= 3 * half_root * CUBIC
        density += half_root
        density *= 1 - odd * odd
    else:
        odd, density = _erf(x), xp.exp(-x * x / 2)
        density *= 1 / (2 * xp.pi) ** HALF
    density *= x
    dx = 1 + odd
    dx /= 2  # the probability
    dx += density
    dx *= widened(dy)
    return as_type_of(dx, dy)


def _erf(x: Array) -> Array:
    """Return erf(x/√2)."""
    # π/(2π) is ½. If π is a symbol, its root stays exact.
    xp = namespace(x)
    return erf(x * (xp.pi / (2 * xp.pi)) ** HALF)


def _tanh(x: Array) -> tuple[Array, Array]:
    """Return tanh(√(2/π) (x + 0.044715 x³)), and x²."""
    xp = namespace(x)
    root = (2 / xp.pi) ** HALF
    square = x * x
    inner = root * CUBIC * square
    inner += root
    inner *= x
    return xp.tanh(inner), square


def forward_flops(m, approximate="none"):
    """Return 5 FLOPs per element: erf of a multiple of x, 1 added, halved, times x.
    With tanh return 8: its polynomial is 4."""
    return m * (8 if approximate == "tanh" else 5)


def backward_flops(m, approximate="none"):
    """Return 11 FLOPs per element: 4 for the probability, 4 for the density, and 3 that
    use both. With tanh return 15."""
    return m * (15 if approximate == "tanh" else 11)


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({}, {"approximate": "tanh"})
PLACES = ("activation",)
AUTOCAST = "widest"
