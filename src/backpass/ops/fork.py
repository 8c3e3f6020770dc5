r"""One value used k times. Its gradient is the sum of the gradients that come back from
the k uses.

.. math:: y_{ji} = x_i, \qquad \bar{x}_i = \sum_j \bar{y}_{ji}

Derived on the page ``foundations/chain_rule``. Every residual connection forks first,
and accounts of "free" residuals leave out the cost of this sum.
"""

from __future__ import annotations

from numbers import Integral
from typing import NamedTuple

from backpass.contract.arrays import Array
from backpass.contract.shapes import (
    Kind,
    check_cotangent,
    check_inputs,
    check_saved,
    kind,
)

SHAPES = "x[*] -> y[k, *]"


class Saved(NamedTuple):
    """No array: the sum of the copies' gradients does not depend on x."""

    shape: tuple[int, ...]
    kind: Kind


def forward(x: Array, *, copies: int = 2) -> tuple[Array, Saved]:
    """Return ``y[k, *]``: k = ``copies`` copies of ``x[*]``. In a library with views it
    is a view of ``x`` and must not be written to.

    Raises TypeError if ``x`` is not a floating-point array; ValueError if ``copies`` is
    not an integer of at least 1.
    """
    xp = check_inputs(SHAPES, x=x)
    if not isinstance(copies, Integral) or copies < 1:
        raise ValueError(f"copies: expected an integer of at least 1; got {copies!r}")
    shape = (int(copies), *x.shape)
    return xp.broadcast_to(xp.reshape(x, (1, *x.shape)), shape), Saved(shape, kind(x))


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[*]`` from ``dy[k, *]``."""
    xp = check_cotangent(dy, *check_saved(saved, Saved))
    return xp.sum(dy, axis=0)


def forward_flops(m, k):
    """Return 0: copying is free."""
    return 0


def backward_flops(m, k):
    """Return k − 1 FLOPs per element, for a sum of k terms."""
    return m * (k - 1)


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({"copies": 3},)
LETTERS = {"copies": "k"}
PLACES = ("add to stream",)
AUTOCAST = "widest"
