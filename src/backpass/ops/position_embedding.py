r"""Position embedding: a table's row for each position of a sequence is added to the
vector at that position.

.. math:: y_{rij} = x_{rij} + w_{ij}, \qquad
          \bar{x}_{rij} = \bar{y}_{rij}, \quad \bar{w}_{ij} = \sum_r \bar{y}_{rij}

Derived on the page ``operations/embeddings``. In the formulas ``w_ij`` is the row of
position i, row ``offset`` + i of the table; rows of other positions have gradient 0.
Half-precision gradients are summed in float32 and rounded once. ``sinusoidal`` computes
the fixed table, which needs no gradient.
"""

from __future__ import annotations

from numbers import Real
from typing import NamedTuple

import numpy as np

from backpass.contract.arrays import (
    Array,
    Gradients,
    as_type_of,
    is_remote,
    namespace,
    scatter_add,
    size,
    widened,
)
from backpass.contract.shapes import Kind, check_cotangent, check_inputs, kind
from backpass.contract.values import check_natural
from backpass.contract.wanted import Wanted, check_wanted, narrowed, sum_wanted

SHAPES = "x[*, s, h], w[s+r, h] -> y[*, s, h]"
PARAMETERS = ("w",)


class Saved(NamedTuple):
    """No array: the derivative of a sum needs neither term."""

    shape: tuple[int, ...]
    rows: int  # of w
    offset: int
    kind: Kind
    wanted: tuple[str, ...]


def forward(
    x: Array, w: Array, *, offset: int = 0, wanted: Wanted = None
) -> tuple[Array, Saved]:
    """Return ``y[*, s, h]``, the sum of ``x[*, s, h]`` and the ``s`` rows of ``w`` from
    ``offset`` on.

    Raises TypeError if an input is not a floating-point array or if inputs differ in
    library, device, or dtype, or if ``offset`` is not an integer; ValueError if shapes
    do not fit, ``offset`` is below 0, or a position is not in the table.
    """
    check_inputs(SHAPES, x=x, w=w)
    check_natural(offset=offset)
    wanted = check_wanted(SHAPES, wanted)
    s, rows = x.shape[-2], w.shape[0]
    if offset + s > rows:
        raise ValueError(
            f"offset: expected at most {rows - s}, for {s} positions in {rows} rows; got {offset}"
        )
    return x + w[offset : offset + s, :], Saved(
        tuple(x.shape), rows, int(offset), kind(x), wanted
    )


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dx[*, s, h]``, which is ``dy[*, s, h]`` itself, and ``dw[s+r, h]``."""
    shape, rows, offset, like, wanted = narrowed(saved, Saved, wanted)
    xp = check_cotangent(dy, shape, like)
    *leading, s, h = shape

    # In the forward pass every sequence used the same rows; so now their gradients are
    # sums over sequences.
    dx, dw = dy if "x" in wanted else None, None
    if "w" in wanted:
        sequences = xp.reshape(dy, (size(leading), s, h))
        used = xp.sum(widened(sequences), axis=0)  # [s, h]
        positions = xp.arange(offset, offset + s, device=dy.device)
        dw = as_type_of(scatter_add(used, positions, rows), dy)
    return dx, dw


def forward_flops(m, s, h):
    """Return one sum per element."""
    return m * s * h


def backward_flops(m, s, h, wanted=None):
    """Return a sum of m terms per element of the rows that were read."""
    return sum_wanted(wanted, {"x": 0, "w": (m - 1) * s * h})


def sinusoidal(
    s: int, h: int, *, base: float = 10000.0, offset: int = 0, like: Array
) -> Array:
    """Return ``[s, h]``: the fixed table of "Attention is all you need" at the
    positions ``offset``, …, ``offset + s − 1``.

    Columns 2i and 2i + 1, counted from 0, are the sine and the cosine of position ·
    base^(−2i/h). With an odd ``h`` the last column is a sine. The table is computed in
    float64 and rounded once, to the library, dtype, and device of ``like``. Raises
    TypeError if a length or the offset is not an integer; ValueError if one is below 0,
    or if ``base`` is not a number above 0.
    """
    check_natural(s=s, h=h, offset=offset)
    if not isinstance(base, Real) or not base > 0:
        raise ValueError(f"base: expected a number above 0; got {base!r}")
    xp = namespace(like)
    # On a GPU, the table is computed there: a copy from the host would be waited for.
    own, where = (xp, {"device": like.device}) if is_remote(like) else (np, {})
    wide = {"dtype": own.float64, **where}
    frequencies = float(base) ** (-own.arange(0, h, 2, **wide) / max(h, 1))
    angles = own.arange(offset, offset + s, **wide)[:, None] * frequencies
    pairs = own.stack([own.sin(angles), own.cos(angles)], axis=-1)
    table = own.reshape(pairs, (s, 2 * len(frequencies)))[:, :h]
    return xp.astype(xp.asarray(table, device=like.device), like.dtype)


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({}, {"offset": 2}, {"offset": 3})
PLACES = ("tokens to vectors",)
AUTOCAST = "widest"
