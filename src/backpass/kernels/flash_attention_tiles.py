"""Where a tile of a head is, and which of its scores are seen: what the kernels of
``flash_attention`` share.

The missing rows of a tile that is not full are never read and never written. The last
row stands in for them, and what is computed from it is masked or never stored.
"""

from __future__ import annotations

import triton
import triton.language as tl

from backpass.kernels.softcap import tanh


@triton.jit
def keys_seen(
    first, s_k, ahead, window,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """Where the tiles of keys begin that a query of the tile from ``first`` sees; where
    those end of which every query sees all; and where the keys end that a query sees.
    With a window, no tile is taken for one that every query sees."""
    by_all = tl.minimum(tl.maximum(first + ahead + 1, 0), s_k) if CAUSAL else s_k
    by_one = tl.minimum(tl.maximum(first + ahead + QUERIES, 0), s_k) if CAUSAL else s_k
    if WINDOWED:
        begin = tl.maximum(first + ahead + 1 - window, 0) // KEYS * KEYS
        whole = begin
    else:
        begin = 0
        whole = by_all // KEYS * KEYS
    return begin, whole, by_one


@triton.jit
def queries_seeing(
    first, s_q, ahead, window,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """Where the tiles of queries begin that see at least one key of the tile from
    ``first``, where those begin that see all of its keys, and where the queries end
    that see one. With a window, no tile is taken for one that sees all."""
    one = tl.maximum(first - ahead, 0) if CAUSAL else 0
    each = tl.maximum(first - ahead + KEYS - 1, 0) if CAUSAL else 0
    if WINDOWED:
        end = tl.minimum(tl.maximum(first - ahead + KEYS - 1 + window, 0), s_q)
        whole = end
    else:
        end = s_q
        whole = tl.minimum(tl.cdiv(each, QUERIES) * QUERIES, s_q)
    return one // QUERIES * QUERIES, whole, end


@triton.jit
def seen(row, column, s_k, ahead, window, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr):
    """Which keys exist and may be seen by a query: [QUERIES, KEYS], or [1, KEYS] if all
    queries see the same. Transposed positions give the transposed booleans."""
    visible = column < s_k
    if CAUSAL:
        visible = visible & (column <= row + ahead)
    if WINDOWED:
        visible = visible & (column > row + ahead - window)
    return visible


@triton.jit
def head_of(scores_ptr, b, head, stride_b, stride_n):
    """Return the offset of a head's bias or mask; 0 without a bias or mask."""
    return scores_ptr + b * stride_b + head * stride_n if scores_ptr is not None else 0


@triton.jit
def cap_and_bias(
    scores, bias_head, row, column, s_q, s_k, stride_s, stride_t,
    OF_CAP: tl.constexpr, LOG2_CAP: tl.constexpr, LOG2_SCALE: tl.constexpr, LOG2_E: tl.constexpr,
    CAPPED: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    """Return a tile's scores, its products q·k times log₂ e, and the softcap's tanh.

    Without a softcap, the second is the products; without a bias as well, so is the
    first.
    """
    t = scores
    if CAPPED:
        t = tanh(scores * OF_CAP)
        scores = t * LOG2_CAP
    if BIASED:
        bias = load_scores(bias_head, row, column, s_q, s_k, stride_s, stride_t)
        if not CAPPED:
            scores = scores * LOG2_SCALE
        scores = scores + bias.to(scores.dtype) * LOG2_E
    return scores, t


@triton.jit
def hide(
    scores, mask_head, row, column, s_q, s_k, stride_s, stride_t, ahead, window,
    CUT: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Return the scores with −∞ for each key that a query may not see. In a tile that
    is not CUT, only the mask hides a key."""
    if CUT:
        visible = seen(row, column, s_k, ahead, window, CAUSAL, WINDOWED)
        scores = tl.where(visible, scores, -float("inf"))
    if MASKED:
        mask = load_scores(mask_head, row, column, s_q, s_k, stride_s, stride_t)
        scores = tl.where(mask != 0, scores, -float("inf"))
    return scores


@triton.jit
def load_scores(head, row, column, s_q, s_k, stride_s, stride_t):
    """Load a tile of a head's bias or mask, with 0 outside the queries and the keys.
    Transposed positions give the transposed tile."""
    at = row.to(tl.int64) * stride_s + column.to(tl.int64) * stride_t
    return tl.load(head + at, mask=(row < s_q) & (column < s_k), other=0)


@triton.jit
def load_rows(head, row, s, stride_s, stride_d, D: tl.constexpr, WIDTH: tl.constexpr):
    """Load some of the s rows of a head, with 0 beyond their D numbers. Rows past the
    last are replaced by the last."""
    column = tl.arange(0, WIDTH)[None, :].to(tl.int64)
    at = tl.minimum(row, s - 1).to(tl.int64)[:, None] * stride_s + column * stride_d
    return (
        tl.load(head + at)
        if D == WIDTH
        else tl.load(head + at, mask=column < D, other=0.0)
    )


@triton.jit
def store_rows(head, row, s, x, D: tl.constexpr, WIDTH: tl.constexpr):
    """Store the rows that exist in a contiguous head of s rows of D numbers."""
    column = tl.arange(0, WIDTH)[None, :]
    tl.store(
        head + row[:, None].to(tl.int64) * D + column,
        x,
        mask=(row[:, None] < s) & (column < D),
    )
