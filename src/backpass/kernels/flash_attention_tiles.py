"""Where a tile of a head lies, and which of its scores are seen: what the kernels of ``flash_attention`` share.

Of a tile that is not full the rows that are missing are never read and never written; in their place stands the last
row there is, and what becomes of it is masked, or goes nowhere.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def keys_seen(first, s_k, ahead, QUERIES: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr):
    """How many keys, in whole tiles, does each of the queries from the first on see, and how many one of them."""
    by_all = tl.minimum(tl.maximum(first + ahead + 1, 0), s_k) if CAUSAL else s_k
    by_one = tl.minimum(tl.maximum(first + ahead + QUERIES, 0), s_k) if CAUSAL else s_k
    return by_all // KEYS * KEYS, by_one


@triton.jit
def queries_seeing(first, s_q, ahead, QUERIES: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr):
    """Tiles of queries begin at the two: from the one on, one of the keys from the first on is seen; from the other on,
    each of them."""
    one = tl.maximum(first - ahead, 0) if CAUSAL else 0
    each = tl.maximum(first - ahead + KEYS - 1, 0) if CAUSAL else 0
    return one // QUERIES * QUERIES, tl.minimum(tl.cdiv(each, QUERIES) * QUERIES, s_q)


@triton.jit
def seen(row, column, s_k, ahead, CAUSAL: tl.constexpr):
    """Which keys there are, and which of them a query may see: [QUERIES, KEYS], or [1, KEYS] where all see the same."""
    there = column[None, :] < s_k
    return there & (column[None, :] <= row[:, None] + ahead) if CAUSAL else there


@triton.jit
def load_rows(head, row, s, stride_s, stride_d, D: tl.constexpr, WIDTH: tl.constexpr):
    """Some of the s rows of a head, 0 beyond their D numbers. In place of rows past the last stands the last."""
    column = tl.arange(0, WIDTH)[None, :].to(tl.int64)
    at = tl.minimum(row, s - 1).to(tl.int64)[:, None] * stride_s + column * stride_d
    return tl.load(head + at) if D == WIDTH else tl.load(head + at, mask=column < D, other=0.0)


@triton.jit
def store_rows(head, row, s, x, D: tl.constexpr, WIDTH: tl.constexpr):
    """Write those of the rows that a contiguous head of s rows has, in their D numbers."""
    column = tl.arange(0, WIDTH)[None, :]
    tl.store(head + row[:, None].to(tl.int64) * D + column, x, mask=(row[:, None] < s) & (column < D))
