r"""ReLU: what is positive passes, what is not becomes 0.

.. math:: y_i = \max(0, x_i), \qquad \bar{x}_i = [x_i > 0]\,\bar{y}_i

Derived on the page ``operations/activations``. At 0, where there is no derivative, the
gradient is 0; NaN passes in both directions. Both as PyTorch has it.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.arrays import Array
from backpass.shapes import check_cotangent, check_inputs, check_saved

SHAPES = "x[*] -> y[*]"


class Saved(NamedTuple):
    """The output, positive where x was. A mask would be smaller, but it would be one
    array more: what reads y, a linear layer, keeps it anyway."""

    y: Array  # [*]


def forward(x: Array) -> tuple[Array, Saved]:
    """``y[*]``, the larger of 0 and ``x[*]``.

    Raises TypeError when ``x`` is no floating-point array.
    """
    xp = check_inputs(SHAPES, x=x)
    y = xp.where(x <= 0, 0, x)  # NaN is not at most 0
    return y, Saved(y)


def backward(dy: Array, saved: Saved) -> Array:
    """``dx[*]`` from ``dy[*]``."""
    (y,) = check_saved(saved, Saved)
    xp = check_cotangent(dy, y.shape, like=y)
    return xp.where(y <= 0, 0, dy)


def forward_flops(m):
    """None: comparing and choosing is no arithmetic."""
    return 0


def backward_flops(m):
    """None: the gradient is chosen, not computed."""
    return 0


# Facts for checks, pages and functional: see backpass.ops.
PLACES = ("activation",)
AUTOCAST = "widest"
