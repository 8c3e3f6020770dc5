"""Where a tile of a head is, and which of its scores are seen: what the kernels of
``flash_attention`` share.

The missing rows of a tile that is not full are never read and never written. The last
row stands in for them, and what is computed from it is masked or never stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from backpass.kernels import philox
from backpass.kernels.softcap import tanh

LOG2_E = tl.constexpr(math.log2(math.e))


class Strides(NamedTuple):
    """The strides of a kernel's inputs ``[b, n, s, d]``, and of a bias or a mask ``[b,
    n, s_q, s_k]``: 0 where it is broadcast. None for an input that is not given."""

    q: tuple[int, ...] | None
    k: tuple[int, ...] | None
    v: tuple[int, ...] | None
    bias: tuple[int, ...] | None
    mask: tuple[int, ...] | None
    dy: tuple[int, ...] | None = None


def strided(
    scores: tuple[int, ...], inputs: Mapping[str, torch.Tensor | None]
) -> dict[str, Any]:
    """Return the inputs as a kernel's arguments: their pointers, and their strides. A
    bias or a mask is broadcast to the shape of the scores. An input is copied if one
    stride cannot walk its leading axes."""
    found: dict[str, torch.Tensor | None] = {}
    for name, x in inputs.items():
        if x is not None:
            x = x.resolve_neg()
            x = x.broadcast_to(scores) if name in ("bias", "mask") else x
            x = x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])
        found[name] = x
    strides = {name: None if x is None else x.stride() for name, x in found.items()}
    pointers = {f"{name}_ptr": x for name, x in found.items()}
    return {**pointers, "strides": Strides(**strides)}


def numbers_of(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Return the mask as bytes in the same memory; for float64, return an int64 copy,
    because Triton cannot compile a float64 product that depends on bytes."""
    if mask is None:
        return None
    return mask.long() if dtype == torch.float64 else mask.view(torch.uint8)


@triton.jit
def queries_of(tiles, n_kv, g, CONSECUTIVE: tl.constexpr, QUERIES: tl.constexpr):
    """Return the first query of a program, its head among those of all sequences, its
    sequence, its head, and the head of its keys."""
    # The last queries see most keys: their programs take longest and start first.
    first = (tiles - 1 - tl.program_id(0) % tiles) * QUERIES
    b_head = (tl.program_id(0) // tiles).to(tl.int64)
    b, head = b_head // (g * n_kv), b_head % (g * n_kv)
    key_head = head // g if CONSECUTIVE else head % n_kv
    return first, b_head, b, head, key_head


@triton.jit
def keys_seen(
    first, s_k, ahead, window, QUERIES: tl.constexpr, KEYS: tl.constexpr
):  # fmt: skip
    """Where the tiles of keys begin that a query of the tile from ``first`` sees; where
    those end of which every query sees all; and where the keys end that a query sees.
    With a window, no tile is taken for one that every query sees."""
    by_all, by_one = s_k, s_k
    if ahead is not None:
        by_all = tl.minimum(tl.maximum(first + ahead + 1, 0), s_k)
        by_one = tl.minimum(tl.maximum(first + ahead + QUERIES, 0), s_k)
    if window is not None:
        begin = tl.maximum(first + ahead + 1 - window, 0) // KEYS * KEYS
        whole = begin
    else:
        begin = 0
        whole = by_all // KEYS * KEYS
    return begin, whole, by_one


@triton.jit
def queries_seeing(
    first, s_q, ahead, window, QUERIES: tl.constexpr, KEYS: tl.constexpr
):  # fmt: skip
    """Where the tiles of queries begin that see at least one key of the tile from
    ``first``, where those begin that see all of its keys, and where the queries end
    that see one. With a window, no tile is taken for one that sees all."""
    one = tl.maximum(first - ahead, 0) if ahead is not None else 0
    each = tl.maximum(first - ahead + KEYS - 1, 0) if ahead is not None else 0
    if window is not None:
        end = tl.minimum(tl.maximum(first - ahead + KEYS - 1 + window, 0), s_q)
        whole = end
    else:
        end = s_q
        whole = tl.minimum(tl.cdiv(each, QUERIES) * QUERIES, s_q)
    return one // QUERIES * QUERIES, whole, end


@triton.jit
def seen(row, column, s_k, ahead, window):
    """Which keys exist and may be seen by a query: [QUERIES, KEYS], or [1, KEYS] if all
    queries see the same. Transposed positions give the transposed booleans."""
    visible = column < s_k
    if ahead is not None:
        visible = visible & (column <= row + ahead)
    if window is not None:
        visible = visible & (column > row + ahead - window)
    return visible


@triton.jit
def head_of(x_ptr, b, head, strides):
    """Return the pointer to a head; 0 without a bias or mask."""
    return x_ptr + b * strides[0] + head * strides[1] if x_ptr is not None else 0


@triton.jit
def unit_of(strides, SCALE: tl.constexpr, CAP: tl.constexpr):
    """Return the factor that brings scores to base 2: 1 if a softcap or a bias has done
    so."""
    return SCALE * LOG2_E if CAP is None and strides.bias is None else 1.0


@triton.jit
def scores_of(
    x, y, row, column, lse, bias_head, mask_head, strides, s_q, s_k, ahead, window,
    CUT: tl.constexpr, SCALE: tl.constexpr, CAP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Return a tile's scores, x yᵀ with softcap and bias, and −∞ for keys that a query
    may not see; and the softcap's tanh. Given the log-sum-exp, scores are to base 2,
    less it: the logarithms of weights."""
    scores = tl.dot(x, tl.trans(y), input_precision="ieee", out_dtype=WIDE)
    scores, t = cap_and_bias(
        scores, bias_head, row, column, s_q, s_k, strides.bias, SCALE, CAP
    )
    if lse is not None:
        UNIT: tl.constexpr = unit_of(strides, SCALE, CAP)
        scores = scores * UNIT - lse
    scores = hide(
        scores, mask_head, row, column, s_q, s_k, strides.mask, ahead, window, CUT
    )
    return scores, t


@triton.jit
def cap_and_bias(
    scores, bias_head, row, column, s_q, s_k, strides,
    SCALE: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """Return a tile's scores, its products q·k times log₂ e, and the softcap's tanh.

    Without a softcap, the second is the products; without a bias as well, so is the
    first.
    """
    t = scores
    if CAP is not None:
        t = tanh(scores * (SCALE / CAP))
        scores = t * (CAP * LOG2_E)
    if strides is not None:
        bias = load_scores(bias_head, row, column, s_q, s_k, strides)
        if CAP is None:
            scores = scores * (SCALE * LOG2_E)
        scores = scores + bias.to(scores.dtype) * LOG2_E
    return scores, t


@triton.jit
def hide(
    scores, mask_head, row, column, s_q, s_k, strides, ahead, window, CUT: tl.constexpr
):  # fmt: skip
    """Return the scores with −∞ for each key that a query may not see. In a tile that
    is not CUT, only the mask hides a key."""
    if CUT:
        visible = seen(row, column, s_k, ahead, window)
        scores = tl.where(visible, scores, -float("inf"))
    if strides is not None:
        mask = load_scores(mask_head, row, column, s_q, s_k, strides)
        scores = tl.where(mask != 0, scores, -float("inf"))
    return scores


@triton.jit
def seed_of(seed_ptr):
    """Return the seed of dropout; 0 without dropout."""
    return tl.load(seed_ptr).to(tl.uint64) if seed_ptr is not None else 0


@triton.jit
def mask_rows(b, head, key_head, n_kv, g, s_q, CONSECUTIVE: tl.constexpr):
    """Return the row of a head's first query in the mask of dropout, ``[b, n_kv, g·s_q,
    s_k]``: that of the weights as ``ops.attention`` lays them out."""
    member = head % g if CONSECUTIVE else head // n_kv
    return ((b * n_kv + key_head) * g + member).to(tl.int64) * s_q


@triton.jit
def kept_of(
    rows, start, seed, s_k, LEAST: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Return which weights of these rows are kept, for the keys from ``start`` on, a
    multiple of 8: ``[QUERIES, KEYS]``."""
    group = start // 8 + tl.arange(0, KEYS // 8)
    counter = rows[:, None] * tl.cdiv(s_k, 8) + group[None, :]
    return philox.kept(counter.to(tl.uint64), seed, LEAST, QUERIES, KEYS)


@triton.jit
def load_scores(head, row, column, s_q, s_k, strides):
    """Load a tile of a head's bias or mask, with 0 outside the queries and the keys.
    Transposed positions give the transposed tile."""
    at = row.to(tl.int64) * strides[2] + column.to(tl.int64) * strides[3]
    return tl.load(head + at, mask=(row < s_q) & (column < s_k), other=0)


@triton.jit
def load_rows(
    head, row, s, strides, D: tl.constexpr, WIDTH: tl.constexpr, FACTOR: tl.constexpr
):  # fmt: skip
    """Load some of the s rows of a head as factors of a product, with 0 beyond their D
    numbers. Rows past the last are replaced by the last."""
    column = tl.arange(0, WIDTH)[None, :].to(tl.int64)
    at = tl.minimum(row, s - 1).to(tl.int64)[:, None] * strides[2] + column * strides[3]
    if D == WIDTH:
        rows = tl.load(head + at)
    else:
        rows = tl.load(head + at, mask=column < D, other=0.0)
    return rows.to(FACTOR)


@triton.jit
def store_rows(head, row, s, x, D: tl.constexpr, WIDTH: tl.constexpr):
    """Store the rows that exist in a contiguous head of s rows of D numbers."""
    column = tl.arange(0, WIDTH)[None, :]
    tl.store(
        head + row[:, None].to(tl.int64) * D + column,
        x,
        mask=(row[:, None] < s) & (column < D),
    )
