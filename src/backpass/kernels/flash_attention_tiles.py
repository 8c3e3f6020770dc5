"""Where a tile of a head is, and which of its scores are seen: what the kernels of
``flash_attention`` share.

The missing rows of a tile that is not full are never read and never written. The last
row stands in for them, and what is computed from it is masked or never stored.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def keys_seen(
    first, s_k, ahead, QUERIES: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr
):  # fmt: skip
    """How many keys, in whole tiles, every query of the tile from ``first`` sees, and
    how many keys at least one of them sees."""
    by_all = tl.minimum(tl.maximum(first + ahead + 1, 0), s_k) if CAUSAL else s_k
    by_one = tl.minimum(tl.maximum(first + ahead + QUERIES, 0), s_k) if CAUSAL else s_k
    return by_all // KEYS * KEYS, by_one


@triton.jit
def queries_seeing(
    first, s_q, ahead, QUERIES: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr
):  # fmt: skip
    """Where the tiles of queries begin that see at least one key of the tile from
    ``first``, and where those begin that see all of its keys."""
    one = tl.maximum(first - ahead, 0) if CAUSAL else 0
    each = tl.maximum(first - ahead + KEYS - 1, 0) if CAUSAL else 0
    return one // QUERIES * QUERIES, tl.minimum(tl.cdiv(each, QUERIES) * QUERIES, s_q)


@triton.jit
def seen(row, column, s_k, ahead, CAUSAL: tl.constexpr):
    """Which keys exist and may be seen by a query: [QUERIES, KEYS], or [1, KEYS] if all
    queries see the same."""
    there = column[None, :] < s_k
    return there & (column[None, :] <= row[:, None] + ahead) if CAUSAL else there


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
