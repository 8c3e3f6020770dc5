r"""All-reduce: every rank gets the sum of what the ranks hold.

.. math:: y_{qi} = \sum_p x_{pi}, \qquad \bar{x}_{pi} = \sum_q \bar{y}_{qi}

Derived on the page ``parallel/collectives``. The first axis is the rank. Half precision
is summed in float32 and rounded once.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.contract.arrays import Array, as_type_of, namespace, widened
from backpass.contract.shapes import (
    Kind,
    check_cotangent,
    check_inputs,
    check_saved,
    kind,
)

SHAPES = "x[r, *] -> y[r, *]"


class Saved(NamedTuple):
    """No array: the sum does not depend on x."""

    shape: tuple[int, ...]
    kind: Kind


def forward(x: Array) -> tuple[Array, Saved]:
    """Return ``y[r, *]``, of which every rank's part is the sum over the ranks of
    ``x[r, *]``. In a library with views it is a view and must not be written to.

    Raises TypeError if ``x`` is not a floating-point array; ValueError if it has no
    axis.
    """
    check_inputs(SHAPES, x=x)
    return _summed(x), Saved(tuple(x.shape), kind(x))


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[r, *]`` from ``dy[r, *]``. In a library with views it is a view and
    must not be written to."""
    check_cotangent(dy, *check_saved(saved, Saved))

    # In the forward pass every rank's x was added to every rank's y; so now every
    # rank's gradient is added to every rank's dx.
    return _summed(dy)


def forward_flops(m, r):
    """Return r − 1 FLOPs per element of a rank, for a sum of r terms."""
    return m * (r - 1)


def backward_flops(m, r):
    """Return the FLOPs of the forward."""
    return m * (r - 1)


def _summed(x: Array) -> Array:
    """Return ``x[r, *]`` with each rank's part replaced by the sum of all."""
    xp = namespace(x)
    total = as_type_of(xp.sum(widened(x), axis=0), x)
    return xp.broadcast_to(total, x.shape)


# Facts for checks, pages and functional: see backpass.ops.
AUTOCAST = "widest"
