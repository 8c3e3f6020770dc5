r"""Shift: every rank sends to the rank some places further along a ring, and receives
from the one as many places before it.

.. math:: y_{pi} = \delta_{p1} x_{3i} + \delta_{p2} x_{1i} + \delta_{p3} x_{2i}, \qquad
          \bar{x}_{pi} = \delta_{p1} \bar{y}_{2i} + \delta_{p2} \bar{y}_{3i}
              + \delta_{p3} \bar{y}_{1i}

Derived on the page ``parallel/collectives``. The first axis is the rank. The formulas
are those of three ranks and one place. The gradient is the shift back.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.contract.arrays import Array, namespace
from backpass.contract.shapes import (
    Kind,
    check_cotangent,
    check_inputs,
    check_saved,
    kind,
)
from backpass.ops._ranks import check_places

SHAPES = "x[r>0, *] -> y[r, *]"


class Saved(NamedTuple):
    """No array: moving does not depend on x."""

    places: int
    shape: tuple[int, ...]
    kind: Kind


def forward(x: Array, *, places: int = 1) -> tuple[Array, Saved]:
    """Return ``y[r, *]``, of which rank p's part is the part of ``x[r, *]`` of the rank
    ``places`` before p on the ring; a negative number goes the other way.

    Raises TypeError if ``x`` is not a floating-point array or ``places`` is not an
    integer; ValueError if there is no rank.
    """
    check_inputs(SHAPES, x=x)
    places = check_places(places)
    return _along(x, places), Saved(places, tuple(x.shape), kind(x))


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[r, *]`` from ``dy[r, *]``."""
    places, shape, like = check_saved(saved, Saved)
    check_cotangent(dy, shape, like)

    # In the forward pass x went along the ring; so now its gradient comes back.
    return _along(dy, -places)


def forward_flops(m, r):
    """Return 0: moving is free."""
    return 0


def backward_flops(m, r):
    """Return 0: moving is free."""
    return 0


def _along(x: Array, places: int) -> Array:
    """Return ``x[r, *]`` with rank p's part at rank p + ``places``, on the ring."""
    first = -places % x.shape[0]  # the rank whose part rank 0 receives
    return namespace(x).concat([x[first:, ...], x[:first, ...]])


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({"places": 1}, {"places": -7, "r": 5})
FORMULA_SIZES = [{"r": 3, "m": 2}]
AUTOCAST = "widest"
