r"""Reduce-scatter: every rank gets its part of the sum of what the ranks hold.

.. math:: y_{pi} = \sum_q x_{qpi}, \qquad \bar{x}_{qpi} = \bar{y}_{pi}

Derived on the page ``parallel/collectives``. The first axis is the rank that holds an
array, and the second the rank that its part goes to. Half precision is summed in
float32 and rounded once. The gradient is an all-gather.
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

SHAPES = "x[r, r, *] -> y[r, *]"


class Saved(NamedTuple):
    """No array: the sum does not depend on x."""

    shape: tuple[int, ...]
    kind: Kind


def forward(x: Array) -> tuple[Array, Saved]:
    """Return ``y[r, *]``, of which rank p's part is the sum over the ranks of the parts
    of ``x[r, r, *]`` that go to p.

    Raises TypeError if ``x`` is not a floating-point array; ValueError if its first two
    axes are not of one length.
    """
    xp = check_inputs(SHAPES, x=x)
    return as_type_of(xp.sum(widened(x), axis=0), x), Saved(tuple(x.shape), kind(x))


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[r, r, *]`` from ``dy[r, *]``. In a library with views it is a view of
    ``dy`` and must not be written to."""
    shape, like = check_saved(saved, Saved)
    xp = check_cotangent(dy, shape[1:], like)

    # In the forward pass the parts of all ranks were added; so now all get the
    # gradient of the sum.
    return xp.broadcast_to(dy[None, ...], shape)


def forward_flops(m, r):
    """Return r − 1 FLOPs for each of the r·m sums of r terms."""
    return m * r * (r - 1)


def backward_flops(m, r):
    """Return 0: copying is free."""
    return 0


# Facts for checks, pages and functional: see backpass.ops.
AUTOCAST = "widest"
