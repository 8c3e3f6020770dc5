r"""GELU: each element times the probability that a standard normal number is smaller.

.. math:: y_i = x_i \cdot
            \frac12 \Big( 1 + \operatorname{erf} \Big( \frac{x_i}{\sqrt{2}} \Big) \Big),
          \qquad \bar{x}_i = \bar{y}_i \Big(
            \frac12 \Big( 1 + \operatorname{erf} \Big( \frac{x_i}{\sqrt{2}} \Big) \Big)
            + x_i \frac{e^{-x_i^2 / 2}}{\sqrt{2 \pi}} \Big)

Derived on the page ``operations/activations``, as is what ``approximate="tanh"``
computes in the place of erf(x/√2): tanh(√(2/π) (x + 0.044715 x³)). Numbers of 16 bits
are computed in float32 and rounded once. At ±∞ value and gradient are their limits,
where PyTorch has NaN for three of the four.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from backpass.arrays import (
    Array,
    as_type_of,
    bounded,
    bounded_below,
    erf,
    namespace,
    widened,
)
from backpass.shapes import check_cotangent, check_inputs, check_saved

SHAPES = "x[*] -> y[*]"
HALF = Fraction(
    1, 2
)  # the exponent of a root; of a symbolic π too, which a rounded 0.5 would spoil
CUBIC = Fraction(44715, 1_000_000)


class Saved(NamedTuple):
    """x alone. Keeping the probability too would double the bytes and spare 4 FLOPs of
    11, or 7 of 15 with tanh, in a backward that waits for memory. y cannot stand in for
    x: most negative y have two x."""

    x: Array  # [*]
    approximate: str


def forward(x: Array, *, approximate: str = "none") -> tuple[Array, Saved]:
    """``y[*]``, each element of ``x[*]`` times its probability, or with
    ``approximate="tanh"`` nearly that.

    Raises TypeError when ``x`` is no floating-point array, ValueError for another
    ``approximate``.
    """
    check_inputs(SHAPES, x=x)
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate: expected 'none' or 'tanh'; got {approximate!r}")
    wide = widened(x)
    odd = _tanh(wide)[0] if approximate == "tanh" else _erf(wide)
    return as_type_of(bounded_below(wide) * ((1 + odd) / 2), x), Saved(x, approximate)


def backward(dy: Array, saved: Saved) -> Array:
    """``dx[*]`` from ``dy[*]``."""
    x, approximate = check_saved(saved, Saved)
    xp = check_cotangent(dy, x.shape, like=x)
    x = widened(x)

    # In the forward pass x was scaled by its probability and moved the probability too,
    # by its density.
    if approximate == "tanh":
        odd, square = _tanh(x)
        half_root = (2 / xp.pi) ** HALF / 2
        along = (
            bounded(x) * (1 - odd * odd) * (half_root + 3 * half_root * CUBIC * square)
        )
    else:
        odd = _erf(x)
        along = bounded(x) * (xp.exp(-x * x / 2) * (1 / (2 * xp.pi) ** HALF))
    return as_type_of(widened(dy) * ((1 + odd) / 2 + along), dy)


def _erf(x: Array) -> Array:
    """erf(x/√2)."""
    xp = namespace(
        x
    )  # its π may be a symbol, and a root of numbers made of it then is exact
    return erf(x * (xp.pi / (2 * xp.pi)) ** HALF)


def _tanh(x: Array) -> tuple[Array, Array]:
    """tanh(√(2/π) (x + 0.044715 x³)), and x²."""
    xp = namespace(x)
    root = (2 / xp.pi) ** HALF
    square = bounded(x * x)  # where it overflows, tanh is ±1 without the cubic term
    return xp.tanh(x * (root + root * CUBIC * square)), square


def forward_flops(m, approximate="none"):
    """5 an element: erf of a multiple of x, halved with 1, times x. With tanh 8: the
    polynomial is 4."""
    return m * (8 if approximate == "tanh" else 5)


def backward_flops(m, approximate="none"):
    """11 an element: 4 for the probability, 4 for the density, 3 that use both. With
    tanh 15."""
    return m * (15 if approximate == "tanh" else 11)


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({}, {"approximate": "tanh"})
PLACES = ("activation",)
AUTOCAST = "widest"
