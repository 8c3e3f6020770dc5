r"""Rotary position embedding: each pair of elements of a query or key is rotated by an
angle that grows with the position.

.. math:: y_{rpai} = C_{pi} x_{rpai} + S_{pi}
              \left( \delta_{a2} x_{rp1i} - \delta_{a1} x_{rp2i} \right), \qquad
          \bar{x}_{rpai} = C_{pi} \bar{y}_{rpai} - S_{pi}
              \left( \delta_{a2} \bar{y}_{rp1i} - \delta_{a1} \bar{y}_{rp2i} \right)

Derived on the page ``operations/rope``. In the formulas the last axis is split in two:
``x_rpai`` is element a, 1 or 2, of pair i at position p, and ``C`` and ``S`` are cos
and sin; they may differ from one r to the next. Pair i consists of the elements i and
i + k, from the two halves of the axis, as in GPT-NeoX and Hugging Face's Llama. With
``interleaved=True`` it consists of the neighbours 2i − 1 and 2i, as in GPT-J and in the
first publication. A model has to run with the pairs that it was trained with. Half
precision is computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import NamedTuple

import numpy as np

from backpass.contract.arrays import (
    Array,
    as_type_of,
    is_remote,
    is_traced,
    namespace,
    widened,
)
from backpass.contract.shapes import (
    Kind,
    check_cotangent,
    check_inputs,
    check_saved,
    kind,
)
from backpass.contract.values import (
    assert_all,
    check_bool,
    check_natural,
    check_tables,
)

SHAPES = "x[*, s, 2k], cos[*, s, k]:shared, sin[*, s, k]:shared -> y[*, s, 2k]"
CONSTANTS = ("cos", "sin")
WIDE = ("cos", "sin")


class Saved(NamedTuple):
    """The tables, which all layers share, and no activation: the backward is a rotation
    too, and does not depend on x."""

    cos: Array  # [*, s, k], as it was given
    sin: Array  # [*, s, k], as it was given
    shape: tuple[int, ...]
    kind: Kind  # of x, whose dtype may be shorter than that of the tables
    interleaved: bool


def forward(
    x: Array, cos: Array, sin: Array, *, interleaved: bool = False
) -> tuple[Array, Saved]:
    """Return ``y[*, s, 2k]``: each pair of ``x[*, s, 2k]`` rotated by the angle of its
    position and pair, whose cosine and sine are given in ``cos`` and ``sin``.

    Both broadcast to ``[*, s, k]``. ``backpass.ops.rope.tables(s, 2 * k, like=x)``
    computes them as ``[s, k]``, shared by all sequences: the cosines and sines of
    position · base^(−i/k) for the pairs i = 0, …, k − 1. If sequences have positions of
    their own, as with padding on the left, ``cos[positions]`` is ``[b, s, k]``, and
    ``cos[positions][:, None]`` serves all heads of ``[b, n_h, s, 2k]``.
    ``backpass.ops.rope.narrow`` halves tables of width 2k.

    Tables in float32 may accompany half precision, and y then has x's dtype. Raises
    TypeError if an input is not a floating-point array, if inputs otherwise differ in
    library, device, or dtype, or if ``interleaved`` is not a bool; ValueError if shapes
    do not fit, for example if the last axis is odd.
    """
    check_tables(x, cos=cos, sin=sin)
    check_inputs(SHAPES, WIDE, x=x, cos=cos, sin=sin)
    check_bool(interleaved=interleaved)
    y = as_type_of(_turned(widened(x), cos, sin, interleaved), x)
    return y, Saved(cos, sin, tuple(x.shape), kind(x), interleaved)


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dx[*, s, 2k]`` from ``dy[*, s, 2k]``."""
    cos, sin, shape, of_x, interleaved = check_saved(saved, Saved)
    check_cotangent(dy, shape, like=of_x)

    # In the forward pass each pair was rotated one way; so now its gradient is rotated
    # the other way, by the rotation's transpose, which is the rotation by minus the
    # angle.
    return as_type_of(_turned(widened(dy), cos, -sin, interleaved), dy)


def forward_flops(m, s, k):
    """Return 6 FLOPs per pair: four products, a difference, and a sum."""
    return 6 * m * s * k


def backward_flops(m, s, k):
    """Return the FLOPs of the forward; the change of sign is free."""
    return 6 * m * s * k


def tables(
    s: int, d: int, *, base: float = 10000.0, offset: int = 0, like: Array
) -> tuple[Array, Array]:
    """Return ``cos[s, k]`` and ``sin[s, k]`` for heads of width ``d`` = 2k at the
    positions ``offset``, …, ``offset + s − 1``.

    Pair i, from 0 to k − 1, is rotated by position · base^(−2i/d). The angles are
    computed in float64, because half precision does not represent large positions
    exactly. The tables are rounded once, to the library, dtype, and device of ``like``.
    Raises TypeError if a length or the offset is not an integer, or if ``like`` is not
    a floating-point array; ValueError if a length or the offset is below 0, ``d`` is
    odd, or ``base`` is not a finite number above 0.
    """
    check_natural(s=s, d=d, offset=offset)
    xp = namespace(like)
    if xp.isdtype(like.dtype, ("integral", "bool")):
        raise TypeError(
            f"like: expected a floating-point array; got dtype {like.dtype}"
        )
    if d % 2:
        raise ValueError(f"d: expected an even width, to be split into pairs; got {d}")
    if not isinstance(base, Real) or not 0 < base < math.inf:
        raise ValueError(f"base: expected a finite number above 0; got {base!r}")
    # On a GPU, the table is computed there: a copy from the host would be waited for.
    own, where = (xp, {"device": like.device}) if is_remote(like) else (np, {})
    wide = {"dtype": own.float64, **where}
    pairs = own.arange(0, d, 2, **wide)
    frequencies = own.exp(-math.log(base) * pairs / max(d, 1))  # [k]
    angles = own.arange(offset, offset + s, **wide)[:, None] * frequencies  # [s, k]
    cos, sin = (
        xp.asarray(table, device=like.device)
        for table in (own.cos(angles), own.sin(angles))
    )
    return xp.astype(cos, like.dtype), xp.astype(sin, like.dtype)


def narrow(table: Array, *, interleaved: bool = False) -> Array:
    """Return ``[*, k]`` from a table of cosines or sines ``[*, 2k]`` that has each
    number twice: the half that ``forward`` accepts, a view where the library has views.

    Hugging Face's Llama repeats the first half of a row as its second half. With
    ``interleaved=True`` each number is beside its copy. All numbers are compared with
    their copies, except while torch.compile traces. Raises ValueError if one differs or
    if the width is odd; TypeError if ``table`` is not a floating-point array. On a CUDA
    device, ``values.assert_all`` reports one that differs.
    """
    xp = check_inputs("table[*, 2k] -> half[*, k]", table=table)
    check_bool(interleaved=interleaved)
    first, second = _pairs(table, interleaved)
    copies = "neighbours" if interleaved else "halves"
    expected = f"table: expected each row to consist of equal {copies}"
    if is_traced(xp):
        return first
    if is_remote(table):
        assert_all(first == second, expected)
    elif not xp.all(first == second):
        raise ValueError(f"{expected}; got a row whose {copies} differ")
    return first


def _turned(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Return each pair (a, b) of ``x[*, s, 2k]`` as (a·cos − b·sin, b·cos + a·sin)."""
    xp = namespace(x)
    a, b = _pairs(x, interleaved)
    pair = [a * cos - b * sin, b * cos + a * sin]
    return (
        xp.reshape(xp.stack(pair, axis=-1), x.shape)
        if interleaved
        else xp.concat(pair, axis=-1)
    )


def _pairs(x: Array, interleaved: bool) -> tuple[Array, Array]:
    """Return the first and the second elements of the pairs of ``x[*, 2k]``."""
    k = x.shape[-1] // 2
    return (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :k], x[..., k:])


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({}, {"interleaved": True})
LETTERS = {"cos": "C", "sin": "S"}
PLACES = ("rotate q, k",)
AUTOCAST = "widest"
