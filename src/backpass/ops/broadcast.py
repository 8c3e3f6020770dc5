r"""Broadcast: every rank gets what one of them, the root, holds.

.. math:: y_{qi} = x_{1i}, \qquad \bar{x}_{pi} = \delta_{p1} \sum_q \bar{y}_{qi}

Derived on the page ``parallel/collectives``. The first axis is the rank; in the
formulas the root is the first. Half precision is summed in float32 and rounded once.
The gradient is a reduce.
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
from backpass.ops._ranks import check_root, placed

SHAPES = "x[r>0, *] -> y[r, *]"


class Saved(NamedTuple):
    """No array: a copy's gradient does not depend on x."""

    root: int
    shape: tuple[int, ...]
    kind: Kind


def forward(x: Array, *, root: int = 0) -> tuple[Array, Saved]:
    """Return ``y[r, *]``, of which every rank's part is the root's part of ``x[r, *]``.
    In a library with views it is a view of ``x`` and must not be written to.

    Raises TypeError if ``x`` is not a floating-point array; ValueError if there is no
    rank, or ``root`` is not one.
    """
    xp = check_inputs(SHAPES, x=x)
    root = check_root(root, x.shape[0])
    y = xp.broadcast_to(x[root : root + 1, ...], x.shape)
    return y, Saved(root, tuple(x.shape), kind(x))


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[r, *]`` from ``dy[r, *]``."""
    root, shape, like = check_saved(saved, Saved)
    xp = check_cotangent(dy, shape, like)

    # In the forward pass the root's x went to all ranks, and no other rank's to any; so
    # now the root gets the sum of all gradients, and the others 0.
    total = as_type_of(xp.sum(widened(dy), axis=0, keepdims=True), dy)
    return placed(total, root, shape[0])


def forward_flops(m, r):
    """Return 0: copying is free."""
    return 0


def backward_flops(m, r):
    """Return r − 1 FLOPs per element of a rank, for a sum of r terms."""
    return m * (r - 1)


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({}, {"root": 1, "r": 3})
FORMULA_OPTIONS = {"root": 0}
AUTOCAST = "widest"
