r"""Dropout: each element is set to 0 with probability p. The others are divided by 1 −
p, so that the mean does not change.

.. math:: y_i = \frac{M_i x_i}{1 - p}, \qquad \bar{x}_i = \frac{M_i \bar{y}_i}{1 - p}

Derived on the page ``operations/residual_stream``. ``M_i`` is 1 if element i is kept
and 0 if it is dropped. It depends on the seed, on p, and on the place of the element,
as ``contract.philox`` describes: a seed gives the same mask in each array library, in
each dtype, on each device, and in the kernel. PyTorch's own masks differ. Nothing of
the mask is saved; the backward draws it again. A dropped element is 0 even if x is
infinite, where PyTorch gives NaN. Half precision is divided in float32 and rounded
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from backpass.contract import philox
from backpass.contract.arrays import (
    Array,
    as_number,
    as_type_of,
    namespace,
    size,
    widened,
)
from backpass.contract.shapes import (
    Kind,
    check_cotangent,
    check_inputs,
    check_saved,
    kind,
)
from backpass.contract.values import check_bool, check_probability, check_seed

SHAPES = "x[*] -> y[*]"


class Saved(NamedTuple):
    """The seed and the shape, from which the backward draws the mask again: no bytes,
    or the 8 of a seed that is an array."""

    seed: int | Array | None  # None if nothing can be dropped
    p: float
    shape: tuple[int, ...]
    kind: Kind
    part: philox.Part | None = None  # x, of a larger array; None for x as the whole

    @property
    def mask(self) -> np.ndarray | None:
        """The mask ``[*]``, drawn again; None if nothing can be dropped."""
        if self.seed is None:
            return None
        rows = None if self.part is None else self.part.rows
        return drawn(self.shape, self.p, self.seed, rows)


def forward(
    x: Array, *, p: float = 0.5, seed: int = 0, training: bool = True
) -> tuple[Array, Saved]:
    """Return ``y[*]``: ``x[*]`` with each element dropped with probability ``p`` and
    the others scaled up, or ``x`` itself if p = 0 or with ``training=False``.

    The same ``seed`` drops the same elements, so every layer and every step needs its
    own. It is an integer of up to 64 bits, or an int64 array of shape ``[]``, which is
    read where x is. Raises TypeError if ``x`` is not a floating-point array, ``p`` is
    not a real number, ``seed`` is neither of these, or ``training`` is not a bool;
    ValueError if ``p`` is outside 0 to 1, or ``seed`` is below 0 or too large.
    """
    check_inputs(SHAPES, x=x)
    check_probability(p=p)
    check_seed(seed=seed)
    check_bool(training=training)
    drops = training and p != 0
    own = as_number(seed) if drops else None
    saved = Saved(own, float(p), tuple(x.shape), kind(x))
    return _dropped(x, saved), saved


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[*]`` from ``dy[*]``."""
    saved = check_saved(saved, Saved)
    check_cotangent(dy, saved.shape, saved.kind)

    # In the forward pass an element was dropped or scaled; so now its gradient is
    # dropped or scaled, by the same mask.
    return _dropped(dy, saved)


def forward_flops(m, p=0.5, training=True):
    """Return one division per element; drawing and choosing are not counted."""
    return 0 if p == 0 or not training else m


def backward_flops(m, p=0.5, training=True):
    """Return one division per element."""
    return 0 if p == 0 or not training else m


def drawn(
    shape: tuple[int, ...],
    p: float,
    seed: int | Array,
    rows: Sequence[range] | None = None,
) -> np.ndarray:
    """Return the mask ``[*]`` of this shape. With ``rows``, the mask is that of these
    rows of a larger array, whose last axis is as long; see ``contract.philox``."""
    rows = philox.all_rows(size(shape[:-1])) if rows is None else rows
    return np.reshape(philox.drawn(size(shape[-1:]), p, seed, rows), shape)


def _dropped(values: Array, saved: Saved) -> Array:
    """Return ``values`` over 1 − p where the mask is true, and 0 elsewhere. With p = 1
    the mask is false everywhere, and 1 replaces the divisor 0."""
    if saved.seed is None:
        return values
    seed, p, shape, _, part = saved
    mask = philox.mask_for(values, shape, p, seed, part)
    scaled = as_type_of(widened(values) / ((1 - p) or 1.0), values)
    return namespace(values).where(mask, scaled, 0.0)


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({"p": 0.25, "seed": 10}, {"training": False})
LETTERS = {"mask": r"M \in \mathbb{R}^m", "p": "p"}
FORMULA_OPTIONS = {"p": 0.25}
PLACES = ("add to stream",)
AUTOCAST = "widest"
