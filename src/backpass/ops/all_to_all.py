r"""All-to-all: every rank gets the part of every rank's array that is meant for it.

.. math:: y_{pqi} = x_{qpi}, \qquad \bar{x}_{qpi} = \bar{y}_{pqi}

Derived on the page ``parallel/collectives``. In x the first axis is the rank that sends
and the second the rank that receives; in y it is the other way round. The gradient is
an all-to-all.
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

SHAPES = "x[r, r, *] -> y[r, r, *]"


class Saved(NamedTuple):
    """No array: moving does not depend on x."""

    shape: tuple[int, ...]
    kind: Kind


def forward(x: Array) -> tuple[Array, Saved]:
    """Return ``y[r, r, *]``: ``x[r, r, *]`` with its first two axes exchanged. In a
    library with views it is a view of ``x`` and must not be written to.

    Raises TypeError if ``x`` is not a floating-point array; ValueError if its first two
    axes are not of one length.
    """
    check_inputs(SHAPES, x=x)
    return _exchanged(x), Saved(tuple(x.shape), kind(x))


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[r, r, *]`` from ``dy[r, r, *]``. In a library with views it is a view
    of ``dy`` and must not be written to."""
    check_cotangent(dy, *check_saved(saved, Saved))

    # In the forward pass q's part for p went to p; so now its gradient goes back to q.
    return _exchanged(dy)


def forward_flops(m, r):
    """Return 0: moving is free."""
    return 0


def backward_flops(m, r):
    """Return 0: moving is free."""
    return 0


def _exchanged(x: Array) -> Array:
    """Return ``x[r, r, *]`` with its first two axes exchanged."""
    return namespace(x).permute_dims(x, (1, 0, *range(2, x.ndim)))


# Facts for checks, pages and functional: see backpass.ops.
AUTOCAST = "widest"
