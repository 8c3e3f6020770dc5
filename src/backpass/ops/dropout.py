r"""Dropout: each element set to 0 with probability p, the others divided by 1 − p, so
that the mean stays as it is.

.. math:: y_i = \frac{M_i x_i}{1 - p}, \qquad \bar{x}_i = \frac{M_i \bar{y}_i}{1 - p}

Derived on the page ``operations/residual_stream``. ``M_i`` is 1 where an element is
kept and 0 elsewhere. It is drawn from NumPy's generator, whatever the array library, so
that one seed gives one mask everywhere; PyTorch's own generators give others. A dropped
element is 0 also where x is infinite, which PyTorch makes NaN. Numbers of 16 bits are
divided in float32 and rounded once.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import NamedTuple

import numpy as np

from backpass.arrays import Array, as_type_of, namespace, widened
from backpass.shapes import Kind, check_cotangent, check_inputs, check_saved, kind

SHAPES = "x[*] -> y[*]"


class Saved(NamedTuple):
    """The mask, a byte an element; None where nothing can be dropped."""

    mask: Array | None  # [*], booleans
    p: float
    shape: tuple[int, ...]
    kind: Kind


def forward(
    x: Array, *, p: float = 0.5, seed: int = 0, training: bool = True
) -> tuple[Array, Saved]:
    """``y[*]``, of ``x[*]`` with a share ``p`` of the elements dropped and the others
    scaled up; ``x`` itself with ``training=False`` or p = 0.

    The same ``seed`` drops the same elements: every layer and every step needs its own.
    Raises TypeError when ``x`` is no floating-point array, ``p`` no real number or
    ``seed`` no integer, ValueError for a ``p`` outside 0 to 1 or a ``seed`` below 0.
    """
    xp = check_inputs(SHAPES, x=x)
    _check_options(p, seed)
    shape, p = tuple(x.shape), float(p)
    if not training or p == 0:
        return x, Saved(None, p, shape, kind(x))
    kept = np.random.default_rng(seed).random(shape) >= p
    mask = xp.asarray(kept, device=x.device)
    return _dropped(x, mask, p), Saved(mask, p, shape, kind(x))


def backward(dy: Array, saved: Saved) -> Array:
    """``dx[*]`` from ``dy[*]``."""
    mask, p, shape, like = check_saved(saved, Saved)
    check_cotangent(dy, shape, like)

    # In the forward pass an element was dropped or scaled; so now its gradient is, by
    # the very same mask.
    return dy if mask is None else _dropped(dy, mask, p)


def forward_flops(m, p=0.5, training=True):
    """One division an element; choosing and drawing are not counted."""
    return 0 if p == 0 or not training else m


def backward_flops(m, p=0.5, training=True):
    """One division an element."""
    return 0 if p == 0 or not training else m


def _dropped(values: Array, mask: Array, p: float) -> Array:
    """``values`` over 1 − p where ``mask`` is true, 0 elsewhere: everywhere at p = 1,
    whatever is divided by."""
    scaled = as_type_of(widened(values) / ((1 - p) or 1.0), values)
    return namespace(values).where(mask, scaled, 0.0)


def _check_options(p: object, seed: object) -> None:
    if not isinstance(p, Real):
        raise TypeError(
            f"p: expected a probability, a real number; got {type(p).__name__}"
        )
    if not 0 <= float(p) <= 1:
        raise ValueError(f"p: expected a probability from 0 to 1; got {p}")
    if not isinstance(seed, Integral):
        raise TypeError(f"seed: expected an integer; got {type(seed).__name__}")
    if seed < 0:
        raise ValueError(f"seed: expected an integer of at least 0; got {seed}")


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({"p": 0.25, "seed": 10}, {"training": False})
LETTERS = {"mask": r"M \in \mathbb{R}^m", "p": "p"}
FORMULA_OPTIONS = {"p": 0.25}
PLACES = ("add to stream",)
AUTOCAST = "widest"
