r"""Dropout: each element is set to 0 with probability p. The others are divided by 1 −
p, so that the mean does not change.

.. math:: y_i = \frac{M_i x_i}{1 - p}, \qquad \bar{x}_i = \frac{M_i \bar{y}_i}{1 - p}

Derived on the page ``operations/residual_stream``. ``M_i`` is 1 if element i is kept
and 0 if it is dropped. It is drawn from NumPy's generator, whatever the array library,
so that a seed gives the same mask everywhere; PyTorch's own generators give different
masks. A dropped element is 0 even if x is infinite, where PyTorch gives NaN. Half
precision is divided in float32 and rounded once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from backpass.contract.arrays import Array, as_type_of, has_values, namespace, widened
from backpass.contract.shapes import (
    Kind,
    check_cotangent,
    check_inputs,
    check_saved,
    kind,
)
from backpass.contract.values import check_bool, check_natural, check_probability

SHAPES = "x[*] -> y[*]"


class Saved(NamedTuple):
    """The mask, one byte per element; None if nothing can be dropped."""

    mask: Array | None  # [*], booleans
    p: float
    shape: tuple[int, ...]
    kind: Kind


def forward(
    x: Array, *, p: float = 0.5, seed: int = 0, training: bool = True
) -> tuple[Array, Saved]:
    """Return ``y[*]``: ``x[*]`` with each element dropped with probability ``p`` and
    the others scaled up, or ``x`` itself if p = 0 or with ``training=False``.

    The same ``seed`` drops the same elements, so every layer and every step needs its
    own. Raises TypeError if ``x`` is not a floating-point array, ``p`` is not a real
    number, ``seed`` is not an integer, or ``training`` is not a bool; ValueError if
    ``p`` is outside 0 to 1 or ``seed`` is below 0.
    """
    xp = check_inputs(SHAPES, x=x)
    check_probability(p=p)
    check_natural(seed=seed)
    check_bool(training=training)
    shape, p = tuple(x.shape), float(p)
    if not training or p == 0:
        return x, Saved(None, p, shape, kind(x))
    if has_values(x):
        mask = xp.asarray(drawn(shape, p, seed), device=x.device)
    else:
        mask = xp.zeros(shape, dtype=xp.bool, device=x.device)
    return _dropped(x, mask, p), Saved(mask, p, shape, kind(x))


def drawn(shape: tuple[int, ...], p: float, seed: int) -> np.ndarray:
    """Return the mask ``[*]`` of this shape."""
    return np.random.default_rng(seed).random(shape) >= p


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[*]`` from ``dy[*]``."""
    mask, p, shape, like = check_saved(saved, Saved)
    check_cotangent(dy, shape, like)

    # In the forward pass an element was dropped or scaled; so now its gradient is
    # dropped or scaled, by the same mask.
    return dy if mask is None else _dropped(dy, mask, p)


def forward_flops(m, p=0.5, training=True):
    """Return one division per element; drawing and choosing are not counted."""
    return 0 if p == 0 or not training else m


def backward_flops(m, p=0.5, training=True):
    """Return one division per element."""
    return 0 if p == 0 or not training else m


def _dropped(values: Array, mask: Array, p: float) -> Array:
    """Return ``values`` over 1 − p where ``mask`` is true, and 0 elsewhere. With p = 1
    the mask is false everywhere, and 1 replaces the divisor 0."""
    scaled = as_type_of(widened(values) / ((1 - p) or 1.0), values)
    return namespace(values).where(mask, scaled, 0.0)


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({"p": 0.25, "seed": 10}, {"training": False})
LETTERS = {"mask": r"M \in \mathbb{R}^m", "p": "p"}
FORMULA_OPTIONS = {"p": 0.25}
PLACES = ("add to stream",)
AUTOCAST = "widest"
