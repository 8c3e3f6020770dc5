r"""Token embedding: each token is replaced by its row of a table. In the backward each
row gets the sum of its tokens' gradients.

.. math:: y_{rj} = \sum_v t_{rv} w_{vj}, \qquad
          \bar{w}_{vj} = \sum_r t_{rv} \bar{y}_{rj}

Derived on the page ``operations/embeddings``. In the formulas a token is a row:
``t_rv`` is 1 if v is token r and 0 otherwise. The gradient is as large as the table,
and 0 in rows that no token read. Half-precision gradients are summed in float32 and
rounded once.

With ``padding_idx``, the gradient of that row is 0, as in PyTorch. This is a
convention and not the derivative of the forward, which reads the row like any other:
the row is a constant.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.contract.arrays import (
    Array,
    add_rows,
    as_matrix,
    as_type_of,
    namespace,
    scatter_add,
    widened,
)
from backpass.contract.shapes import (
    Kind,
    check_cotangent,
    check_inputs,
    check_saved,
    kind,
)
from backpass.contract.values import check_padding_idx, check_tokens

SHAPES = "t[*]:int, w[V>0, h] -> y[*, h]"
PARAMETERS = ("w",)


class Saved(NamedTuple):
    """The tokens, and of the table only its shape: its gradient does not depend on its
    values."""

    t: Array  # [*]
    table: tuple[int, int]
    kind: Kind
    padding_idx: int | None = None


def forward(
    t: Array, w: Array, *, padding_idx: int | None = None
) -> tuple[Array, Saved]:
    """Return ``y[*, h]``: for each token of ``t[*]``, its row of ``w[V, h]``.

    The row ``padding_idx`` gets no gradient; a negative one counts from the end. Raises
    TypeError unless ``t`` holds integers and ``w`` floating-point numbers, both of one
    library and device, and ``padding_idx`` is an integer or None; ValueError if shapes
    do not fit or the table has no row ``padding_idx``; IndexError for a token outside
    the vocabulary.
    """
    xp = check_inputs(SHAPES, t=t, w=w)
    vocabulary, h = w.shape
    padding_idx = check_padding_idx(padding_idx, vocabulary)
    t = check_tokens(t, vocabulary)
    rows = xp.take(w, xp.reshape(t, (-1,)), axis=0)  # [m, h]
    saved = Saved(t, (vocabulary, h), kind(w), padding_idx)
    return xp.reshape(rows, (*t.shape, h)), saved


def backward(dy: Array, saved: Saved) -> Array:
    """Return ``dw[V, h]`` from ``dy[*, h]``; tokens have no gradient."""
    t, (vocabulary, h), like, padding_idx = check_saved(saved, Saved)
    xp = check_cotangent(dy, (*t.shape, h), like)

    # In the forward pass a row was copied to each of its tokens; so now it gets the sum
    # of their gradients.
    drows = _trained(widened(as_matrix(dy)), t, padding_idx)  # [m, h]
    dw = scatter_add(drows, xp.reshape(t, (-1,)), vocabulary)
    return as_type_of(dw, dy)


def _trained(drows: Array, t: Array, padding_idx: int | None) -> Array:
    """Return ``drows[m, h]``, 0 where a token is padding, whose row is a constant."""
    if padding_idx is None:
        return drows
    xp = namespace(drows)
    return xp.where(xp.reshape(t, (-1, 1)) == padding_idx, 0.0, drows)


def backward_onto(dw: Array, dy: Array, saved: Saved) -> Array:
    """Return the sum of ``dw[V, h]`` and what ``backward`` returns.

    This is for a table with a second gradient, such as one that is also the weight of
    the output head. No other array of the table's size is computed: unless it is half
    precision, NumPy and PyTorch write over ``dw``, which must be the caller's own.
    """
    t, table, like, padding_idx = check_saved(saved, Saved)
    xp = check_cotangent(dy, (*t.shape, table[1]), like)
    if tuple(dw.shape) != table or kind(dw) != like:
        raise ValueError(
            f"dw: expected the table's shape {list(table)} and kind, "
            f"{' '.join(map(str, like))}; got shape {list(dw.shape)} and "
            f"{' '.join(map(str, kind(dw)))}"
        )
    drows = _trained(widened(as_matrix(dy)), t, padding_idx)
    sums = add_rows(widened(dw), xp.reshape(t, (-1,)), drows)
    return as_type_of(sums, dy)


def forward_flops():
    """Return 0: copying is free."""
    return 0


def backward_flops(m, h, distinct):
    """Return h sums per token, except for the first token of each row that is read: its
    gradient is moved there, and later ones are added."""
    return (m - distinct) * h


def data_lengths(t: Array, w: Array) -> dict[str, int]:
    """Return the argument of ``backward_flops`` that no shape gives: how many of the
    tokens are ``distinct``."""
    return {"distinct": namespace(t).unique_values(t).shape[0]}


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({}, {"padding_idx": 1}, {"padding_idx": -1})
CONVENTIONS = {"padding_idx": {"w": "the row padding_idx is not trained"}}
PLACES = ("tokens to vectors",)
AUTOCAST = "widest"
