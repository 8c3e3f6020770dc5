r"""One value used k times; its gradient is the sum of what comes back along the k ways.

.. math:: y_{ji} = x_i, \qquad \bar{x}_i = \sum_j \bar{y}_{ji}

Derived on the page ``foundations/chain_rule``. Every residual connection forks first,
and the sum is the cost that accounts of "free" residuals leave out.
"""

from __future__ import annotations

from numbers import Integral
from typing import NamedTuple

from backpass.arrays import Array
from backpass.shapes import Kind, check_cotangent, check_inputs, check_saved, kind

SHAPES = "x[*] -> y[k, *]"


class Saved(NamedTuple):
    """No array."""

    shape: tuple[int, ...]
    kind: Kind


def forward(x: Array, *, copies: int = 2) -> tuple[Array, Saved]:
    """``y[k, *]``, ``x[*]`` along k = ``copies`` ways: where the library has views, a
    view of ``x``, not to be written to.

    Raises TypeError when ``x`` is no floating-point array, ValueError when ``copies``
    is no integer of at least 1.
    """
    xp = check_inputs(SHAPES, x=x)
    if not isinstance(copies, Integral) or copies < 1:
        raise ValueError(f"copies: expected an integer of at least 1; got {copies!r}")
    shape = (int(copies), *x.shape)
    return xp.broadcast_to(xp.reshape(x, (1, *x.shape)), shape), Saved(shape, kind(x))


def backward(dy: Array, saved: Saved) -> Array:
    """``dx[*]`` from ``dy[k, *]``."""
    xp = check_cotangent(dy, *check_saved(saved, Saved))
    return xp.sum(dy, axis=0)


def forward_flops(m, k):
    """Copying is free."""
    return 0


def backward_flops(m, k):
    """A sum of k terms for each element."""
    return m * (k - 1)


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({"copies": 3},)
LETTERS = {"copies": "k"}
PLACES = ("add to stream",)
AUTOCAST = "widest"
