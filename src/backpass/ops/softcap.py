r"""Softcap: each element is brought smoothly to between −c and c; small elements hardly
change.

.. math:: t_i = \tanh \Big( \frac{x_i}{c} \Big), \quad
          y_i = c\,t_i, \qquad
          \bar{x}_i = \bar{y}_i \big( 1 - t_i^2 \big)

Derived on the page ``operations/activations``. c is the number ``cap``. Gemma 2 caps
attention's scores at 50 and the logits at 30. Half precision is computed in float32 and
rounded once.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.contract.arrays import Array, as_type_of, namespace, widened
from backpass.contract.shapes import check_cotangent, check_inputs, check_saved
from backpass.contract.values import checked_cap

SHAPES = "x[*] -> y[*]"


class Saved(NamedTuple):
    """x rather than y: in half precision y may round to c, where the slope would be
    0."""

    x: Array  # [*]
    cap: float


def forward(x: Array, *, cap: float) -> tuple[Array, Saved]:
    """Return ``y[*]``: each element of ``x[*]`` capped to between −``cap`` and ``cap``.

    Raises TypeError if ``x`` is not a floating-point array or ``cap`` is not a real
    number; ValueError if ``cap`` is not positive and finite.
    """
    xp = check_inputs(SHAPES, x=x)
    cap = checked_cap(cap)
    return as_type_of(cap * xp.tanh(widened(x) / cap), x), Saved(x, cap)


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[*]`` from ``dy[*]``."""
    x, cap = check_saved(saved, Saved)
    check_cotangent(dy, x.shape, like=x)

    # In the forward pass y followed x at the slope of tanh, because the caps cancel; so
    # now dy is multiplied by that slope.
    t = namespace(x).tanh(widened(x) / cap)
    return as_type_of(widened(dy) * (1 - t * t), dy)


def forward_flops(m):
    """Return 3 FLOPs per element: a division, the tanh, and a product."""
    return 3 * m


def backward_flops(m):
    """Return 5 FLOPs per element: the division and the tanh again, 2 for the slope, and
    a product with dy."""
    return 5 * m


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({"cap": 1.5}, {"cap": 0.25})
LETTERS = {"cap": r"c \in \mathbb{R}_{>0}"}
PLACES = ("scores", "logits")
AUTOCAST = "widest"
