r"""A constant times x, such as attention's 1/√d.

.. math:: y_i = c\,x_i, \qquad \bar{x}_i = c\,\bar{y}_i

Derived on the page ``foundations/chain_rule``. Half precision is multiplied in float32,
without rounding the factor to half precision, and rounded once.
"""

from __future__ import annotations

from numbers import Real
from typing import NamedTuple

from backpass.contract.arrays import Array, as_number, as_type_of, widened
from backpass.contract.shapes import (
    Kind,
    check_cotangent,
    check_inputs,
    check_saved,
    kind,
)

SHAPES = "x[*] -> y[*]"


class Saved(NamedTuple):
    """No array: the derivative of a linear map is the map itself."""

    factor: float
    shape: tuple[int, ...]
    kind: Kind


def forward(x: Array, *, factor: float) -> tuple[Array, Saved]:
    """Return ``y[*]``, ``factor`` times ``x[*]``.

    Raises TypeError if ``x`` is not a floating-point array or ``factor`` is not a real
    number.
    """
    check_inputs(SHAPES, x=x)
    is_symbol = getattr(factor, "is_real", False)  # of SymPy, and real
    if not isinstance(factor, Real) and not is_symbol:
        raise TypeError(
            f"factor: expected a real number, a constant; got {type(factor).__name__}"
        )
    factor = as_number(factor)
    return as_type_of(widened(x) * factor, x), Saved(factor, tuple(x.shape), kind(x))


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[*]`` from ``dy[*]``."""
    factor, shape, like = check_saved(saved, Saved)
    check_cotangent(dy, shape, like)
    return as_type_of(widened(dy) * factor, dy)


def forward_flops(m):
    """Return one product per element."""
    return m


def backward_flops(m):
    """Return one product per element."""
    return m


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({"factor": -1.75},)
LETTERS = {"factor": "c"}
PLACES = ("scale by 1/√d",)
AUTOCAST = "widest"
