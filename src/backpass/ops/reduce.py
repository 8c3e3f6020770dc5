r"""Reduce: one rank, the root, gets the sum of what the ranks hold.

.. math:: y_{pi} = \delta_{p1} \sum_q x_{qi}, \qquad \bar{x}_{qi} = \bar{y}_{1i}

Derived on the page ``parallel/collectives``. The first axis is the rank; in the
formulas the root is the first, and the others get 0. Half precision is summed in
float32 and rounded once. The gradient is a broadcast.
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
    """No array: the sum does not depend on x."""

    root: int
    shape: tuple[int, ...]
    kind: Kind


def forward(x: Array, *, root: int = 0) -> tuple[Array, Saved]:
    """Return ``y[r, *]``, of which the root's part is the sum over the ranks of
    ``x[r, *]``, and the others are 0.

    Raises TypeError if ``x`` is not a floating-point array; ValueError if there is no
    rank, or ``root`` is not one.
    """
    xp = check_inputs(SHAPES, x=x)
    root = check_root(root, x.shape[0])
    total = as_type_of(xp.sum(widened(x), axis=0, keepdims=True), x)
    y = placed(total, root, x.shape[0])
    return y, Saved(root, tuple(x.shape), kind(x))


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[r, *]`` from ``dy[r, *]``. In a library with views it is a view of
    ``dy`` and must not be written to."""
    root, shape, like = check_saved(saved, Saved)
    xp = check_cotangent(dy, shape, like)

    # In the forward pass every rank's x was added to the root's y; so now every rank
    # gets the root's gradient.
    return xp.broadcast_to(dy[root : root + 1, ...], shape)


def forward_flops(m, r):
    """Return r − 1 FLOPs per element of a rank, for a sum of r terms."""
    return m * (r - 1)


def backward_flops(m, r):
    """Return 0: copying is free."""
    return 0


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({}, {"root": 1, "r": 3})
FORMULA_OPTIONS = {"root": 0}
AUTOCAST = "widest"
