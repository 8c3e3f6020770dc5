r"""Token embedding: each token replaced by its row of a table; on the way back each row
gets the sum of what its tokens got.

.. math:: y_{rj} = \sum_v t_{rv} w_{vj}, \qquad
          \bar{w}_{vj} = \sum_r t_{rv} \bar{y}_{rj}

Derived on the page ``operations/embeddings``. In the formulas a token is a row:
``t_rv`` is 1 where v is token r and 0 elsewhere. The gradient is as large as the table,
and 0 in rows that no token read. Gradients of 16 bits are summed in float32 and rounded
once.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.arrays import (
    Array,
    as_matrix,
    as_type_of,
    namespace,
    scatter_add,
    widened,
)
from backpass.shapes import Kind, check_cotangent, check_inputs, check_saved, kind
from backpass.values import check_tokens

SHAPES = "t[*]:int, w[V>0, h] -> y[*, h]"
PARAMETERS = ("w",)


class Saved(NamedTuple):
    """The tokens, and nothing of the table but its shape: its gradient is the same
    whatever is in it."""

    t: Array  # [*]
    table: tuple[int, int]
    kind: Kind


def forward(t: Array, w: Array) -> tuple[Array, Saved]:
    """``y[*, h]``, for each token of ``t[*]`` its row of ``w[V, h]``.

    Raises TypeError for arrays that are not integer and floating-point or do not belong
    together, ValueError for shapes that do not fit, IndexError for a token outside the
    vocabulary.
    """
    xp = check_inputs(SHAPES, t=t, w=w)
    vocabulary, h = w.shape
    t = check_tokens(t, vocabulary)
    rows = xp.take(w, xp.reshape(t, (-1,)), axis=0)  # [m, h]
    return xp.reshape(rows, (*t.shape, h)), Saved(t, (vocabulary, h), kind(w))


def backward(dy: Array, saved: Saved) -> Array:
    """``dw[V, h]`` from ``dy[*, h]``; tokens have no gradient."""
    t, (vocabulary, h), like = check_saved(saved, Saved)
    xp = check_cotangent(dy, (*t.shape, h), like)

    # In the forward pass a row was copied to each of its tokens; so now it gets the sum
    # of what they got.
    drows = widened(as_matrix(dy))  # [m, h]
    dw = scatter_add(drows, xp.reshape(t, (-1,)), vocabulary)
    return as_type_of(dw, dy)


def forward_flops():
    """Copying is free."""
    return 0


def backward_flops(m, h, distinct):
    """The first gradient that reaches a row is moved there; each further one is h
    sums."""
    return (m - distinct) * h


def data_lengths(t: Array, w: Array) -> dict[str, int]:
    """What ``backward_flops`` takes that no shape tells: how many of the tokens are
    ``distinct``."""
    return {"distinct": namespace(t).unique_values(t).shape[0]}


# Facts for checks, pages and functional: see backpass.ops.
PLACES = ("tokens to vectors",)
AUTOCAST = "widest"
