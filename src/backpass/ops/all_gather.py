r"""All-gather: every rank gets what every rank holds.

.. math:: y_{qpi} = x_{pi}, \qquad \bar{x}_{pi} = \sum_q \bar{y}_{qpi}

Derived on the page ``parallel/collectives``. The first axis is the rank that holds an
array, and the second the rank that it comes from. Half precision is summed in float32
and rounded once. The gradient is a reduce-scatter.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.contract.arrays import Array, as_type_of, widened
from backpass.contract.shapes import (
    Kind,
    check_cotangent,
    check_inputs,
    check_saved,
    kind,
)

SHAPES = "x[r, *] -> y[r, r, *]"


class Saved(NamedTuple):
    """No array: a copy's gradient does not depend on x."""

    shape: tuple[int, ...]
    kind: Kind


def forward(x: Array) -> tuple[Array, Saved]:
    """Return ``y[r, r, *]``, of which every rank's part is the whole of ``x[r, *]``. In
    a library with views it is a view of ``x`` and must not be written to.

    Raises TypeError if ``x`` is not a floating-point array; ValueError if it has no
    axis.
    """
    xp = check_inputs(SHAPES, x=x)
    shape = (x.shape[0], *x.shape)
    return xp.broadcast_to(x[None, ...], shape), Saved(shape, kind(x))


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[r, *]`` from ``dy[r, r, *]``."""
    xp = check_cotangent(dy, *check_saved(saved, Saved))

    # In the forward pass a rank's x was copied to all ranks; so now it gets the sum of
    # their gradients.
    return as_type_of(xp.sum(widened(dy), axis=0), dy)


def forward_flops(m, r):
    """Return 0: copying is free."""
    return 0


def backward_flops(m, r):
    """Return r − 1 FLOPs for each of the r·m gradients, sums of r terms."""
    return m * r * (r - 1)


# Facts for checks, pages and functional: see backpass.ops.
AUTOCAST = "widest"
