r"""Rotary position embedding: each pair of a query's or key's elements turned by an
angle that grows with the position.

.. math:: y_{rpai} = C_{pi} x_{rpai} + S_{pi}
              \left( \delta_{a2} x_{rp1i} - \delta_{a1} x_{rp2i} \right), \qquad
          \bar{x}_{rpai} = C_{pi} \bar{y}_{rpai} - S_{pi}
              \left( \delta_{a2} \bar{y}_{rp1i} - \delta_{a1} \bar{y}_{rp2i} \right)

Derived on the page ``operations/rope``. In the formulas the last axis is split in two:
``x_rpai`` is element a, 1 or 2, of pair i at position p, and ``C`` and ``S`` are cos
and sin. Pair i is made of the elements i and i + k, the two halves of the axis, as in
GPT-NeoX and Hugging Face's Llama; with ``interleaved=True`` of the neighbours 2i − 1
and 2i, as in GPT-J and in the first publication. A model runs with the pairs that it
was trained with. Numbers of 16 bits are computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import NamedTuple

import numpy as np

from backpass.arrays import Array, as_type_of, namespace, widened
from backpass.shapes import check_cotangent, check_inputs, check_saved
from backpass.values import check_natural

SHAPES = "x[*, s, 2k], cos[s, k], sin[s, k] -> y[*, s, 2k]"
CONSTANTS = ("cos", "sin")


class Saved(NamedTuple):
    """The tables, which all layers share, and no activation: a rotation's derivative is
    the rotation itself."""

    cos: Array  # [s, k]
    sin: Array  # [s, k]
    shape: tuple[int, ...]
    interleaved: bool


def forward(
    x: Array, cos: Array, sin: Array, *, interleaved: bool = False
) -> tuple[Array, Saved]:
    """``y[*, s, 2k]``: each pair of ``x[*, s, 2k]`` turned by the angle of its position
    and its place, of which ``cos[s, k]`` and ``sin[s, k]`` are given. ``tables`` makes
    them.

    Raises TypeError for what is no floating-point array or of differing library, device
    or dtype, ValueError for shapes that do not fit, an odd last axis among them.
    """
    check_inputs(SHAPES, x=x, cos=cos, sin=sin)
    y = as_type_of(_turned(widened(x), cos, sin, interleaved), x)
    return y, Saved(cos, sin, tuple(x.shape), interleaved)


def backward(dy: Array, saved: Saved) -> Array:
    """``dx[*, s, 2k]`` from ``dy[*, s, 2k]``."""
    cos, sin, shape, interleaved = check_saved(saved, Saved)
    check_cotangent(dy, shape, like=cos)

    # In the forward pass each pair was turned one way; so now its gradient is turned
    # the other way, by the rotation's transpose, which is the rotation by minus the
    # angle.
    return as_type_of(_turned(widened(dy), cos, -sin, interleaved), dy)


def forward_flops(m, s, k):
    """Four products, a difference and a sum a pair: three operations an element."""
    return 6 * m * s * k


def backward_flops(m, s, k):
    """The forward again; the sign is free."""
    return 6 * m * s * k


def tables(
    s: int, d: int, *, base: float = 10000.0, offset: int = 0, like: Array
) -> tuple[Array, Array]:
    """``cos[s, k]`` and ``sin[s, k]`` for heads of width ``d`` = 2k at the positions
    ``offset``, …, ``offset + s − 1``.

    Pair i, from 0 to k − 1, turns by position · base^(−2i/d). The angles are computed
    in float64, since large positions have no room in 16 bits, and the tables rounded
    once, to the library, dtype and device of ``like``. Raises TypeError for a length or
    an offset that is no integer, ValueError for one below 0, an odd ``d``, or a
    ``base`` that is not above 0 and finite.
    """
    check_natural(s=s, d=d, offset=offset)
    if d % 2:
        raise ValueError(
            f"d: expected an even width, of which pairs can be made; got {d}"
        )
    if not isinstance(base, Real) or not 0 < base < math.inf:
        raise ValueError(f"base: expected a finite number above 0; got {base!r}")
    frequencies = np.exp(-math.log(base) * np.arange(0, d, 2) / max(d, 1))  # [k]
    angles = np.arange(offset, offset + s)[:, None] * frequencies  # [s, k]
    xp = namespace(like)
    cos, sin = (
        xp.asarray(table, device=like.device)
        for table in (np.cos(angles), np.sin(angles))
    )
    return xp.astype(cos, like.dtype), xp.astype(sin, like.dtype)


def _turned(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Each pair (a, b) of ``x[*, s, 2k]`` as (a·cos − b·sin, b·cos + a·sin)."""
    xp, k = namespace(x), cos.shape[-1]
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
    else:
        a, b = x[..., :k], x[..., k:]
    pair = [a * cos - b * sin, b * cos + a * sin]
    return (
        xp.reshape(xp.stack(pair, axis=-1), x.shape)
        if interleaved
        else xp.concat(pair, axis=-1)
    )


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({}, {"interleaved": True})
LETTERS = {"cos": "C", "sin": "S"}
PLACES = ("rotate q, k",)
AUTOCAST = "widest"
