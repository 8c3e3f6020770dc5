r"""A constant times x: attention's 1/√d.

.. math:: y_i = c\,x_i, \qquad \bar{x}_i = c\,\bar{y}_i

Derived on the page ``foundations/chain_rule``. Numbers of 16 bits are multiplied in
float32, in which the factor keeps its digits, and rounded once.
"""

from __future__ import annotations

from numbers import Real
from typing import NamedTuple

from backpass.arrays import Array, as_number, as_type_of, widened
from backpass.shapes import Kind, check_cotangent, check_inputs, check_saved, kind

SHAPES = "x[*] -> y[*]"


class Saved(NamedTuple):
    """No array: a linear map's derivative is the map itself."""

    factor: float
    shape: tuple[int, ...]
    kind: Kind


def forward(x: Array, *, factor: float) -> tuple[Array, Saved]:
    """``y[*]``, ``factor`` times ``x[*]``.

    Raises TypeError when ``x`` is no floating-point array or ``factor`` no real number.
    """
    check_inputs(SHAPES, x=x)
    if not isinstance(factor, Real) and not getattr(
        factor, "is_real", False
    ):  # a SymPy symbol may be real
        raise TypeError(
            f"factor: expected a real number, a constant; got {type(factor).__name__}"
        )
    factor = as_number(factor)
    return as_type_of(widened(x) * factor, x), Saved(factor, tuple(x.shape), kind(x))


def backward(dy: Array, saved: Saved) -> Array:
    """``dx[*]`` from ``dy[*]``."""
    factor, shape, like = check_saved(saved, Saved)
    check_cotangent(dy, shape, like)
    return as_type_of(widened(dy) * factor, dy)


def forward_flops(m):
    """One product an element."""
    return m


def backward_flops(m):
    """One product an element."""
    return m


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({"factor": -1.75},)
LETTERS = {"factor": "c"}
PLACES = ("scale by 1/√d",)
AUTOCAST = "widest"
