r"""ReLU: positive elements pass, the others become 0.

.. math:: y_i = \max(0, x_i), \qquad \bar{x}_i = [x_i > 0]\,\bar{y}_i

Derived on the page ``operations/activations``. At 0, where there is no derivative, the
gradient is 0. NaN passes in both directions. Both are as in PyTorch.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.contract.arrays import Array
from backpass.contract.shapes import check_cotangent, check_inputs, check_saved

SHAPES = "x[*] -> y[*]"


class Saved(NamedTuple):
    """The output, which is positive where x is. A mask would be smaller, but it would
    be one more array: the operation that reads y, such as a linear layer, saves y
    anyway."""

    y: Array  # [*]


def forward(x: Array) -> tuple[Array, Saved]:
    """Return ``y[*]``, the larger of 0 and ``x[*]``.

    Raises TypeError if ``x`` is not a floating-point array.
    """
    xp = check_inputs(SHAPES, x=x)
    y = xp.where(x <= 0, 0, x)  # false for NaN, which passes
    return y, Saved(y)


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[*]`` from ``dy[*]``."""
    (y,) = check_saved(saved, Saved)
    xp = check_cotangent(dy, y.shape, like=y)
    return xp.where(y <= 0, 0, dy)


def forward_flops(m):
    """Return 0: comparing and choosing are not arithmetic."""
    return 0


def backward_flops(m):
    """Return 0: the gradient is chosen, not computed."""
    return 0


# Facts for checks, pages and functional: see backpass.ops.
PLACES = ("activation",)
AUTOCAST = "widest"
