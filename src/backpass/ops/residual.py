r"""The sum of a residual connection: the input x plus the output f of a block.

.. math:: y_i = x_i + f_i, \qquad \bar{x}_i = \bar{y}_i, \quad \bar{f}_i = \bar{y}_i

Derived on the page ``foundations/chain_rule``. The x that is added here was forked
before the block, and the two gradients meet in ``fork``.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.contract.arrays import Array, Gradients
from backpass.contract.shapes import Kind, check_cotangent, check_inputs, kind
from backpass.contract.wanted import Wanted, check_wanted, narrowed, sum_wanted

SHAPES = "x[*], f[*] -> y[*]"


class Saved(NamedTuple):
    """No array: the derivative of a sum needs neither term."""

    shape: tuple[int, ...]
    kind: Kind
    wanted: tuple[str, ...]


def forward(x: Array, f: Array, *, wanted: Wanted = None) -> tuple[Array, Saved]:
    """Return ``y[*]``, the sum of ``x[*]`` and ``f[*]``.

    Raises TypeError if an input is not a floating-point array or if inputs differ in
    library, device, or dtype; ValueError if shapes differ (nothing is broadcast).
    """
    check_inputs(SHAPES, x=x, f=f)
    wanted = check_wanted(SHAPES, wanted)
    return x + f, Saved(tuple(x.shape), kind(x), wanted)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dx[*]`` and ``df[*]`` from ``dy[*]``: the same array twice."""
    shape, like, wanted = narrowed(saved, Saved, wanted)
    check_cotangent(dy, shape, like)
    return dy if "x" in wanted else None, dy if "f" in wanted else None


def forward_flops(m):
    """Return one sum per element."""
    return m


def backward_flops(m, wanted=None):
    """Return 0: copying is free."""
    return sum_wanted(wanted, {"x f": 0})


# Facts for checks, pages and functional: see backpass.ops.
PLACES = ("add to stream",)
AUTOCAST = "widest"
