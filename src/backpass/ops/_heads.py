"""What the ways to compute attention share: heads in groups, the causal mask, and the
default scale."""

from __future__ import annotations

from fractions import Fraction
from types import ModuleType
from typing import Any

from backpass.arrays import Array, namespace


def heads_by_group(x: Array, n_kv: int, head_order: str) -> Array:
    """``x[*, n_h, s, d]`` with its heads as ``n_kv`` groups of those that share a key
    head: ``[*, n_kv, g, s, d]``. With ``head_order="consecutive"`` a group is g
    neighbours, with "interleaved" every n_kv-th head."""
    xp = namespace(x)
    *leading, heads, s, d = x.shape
    if head_order == "consecutive":
        return xp.reshape(x, (*leading, n_kv, heads // n_kv, s, d))
    return _first_heads_swapped(xp.reshape(x, (*leading, heads // n_kv, n_kv, s, d)))


def heads_in_order(x: Array, head_order: str) -> Array:
    """``x[*, n_kv, g, s, d]`` with its heads in their order again, ``[*, n_h, s, d]``:
    what ``heads_by_group`` undoes."""
    x = x if head_order == "consecutive" else _first_heads_swapped(x)
    *leading, outer, inner, s, d = x.shape
    return namespace(x).reshape(x, (*leading, outer * inner, s, d))


def _first_heads_swapped(x: Array) -> Array:
    """``x[*, a, b, s, d]`` as ``[*, b, a, s, d]``."""
    last = len(x.shape)
    axes = (*range(last - 4), last - 3, last - 4, last - 2, last - 1)
    return namespace(x).permute_dims(x, axes)


def causal_mask(s_q: int, s_k: int, variant: str, like: Array) -> Array:
    """Booleans ``[s_q, s_k]``: whether a query may see a key, those up to its own
    position. Positions are counted from the first query and the first key
    ("upper_left"), or back from the last of both ("lower_right")."""
    xp = namespace(like)
    ahead = s_k - s_q if variant == "lower_right" else 0
    queries, keys = (xp.arange(s, device=like.device) for s in (s_q, s_k))
    return keys <= queries[:, None] + ahead


def inverse_root(n: int, xp: ModuleType) -> Any:
    """1/√n as a number: a float, and exact where the numbers of ``xp`` are symbols."""
    return (xp.pi / (int(n) * xp.pi)) ** Fraction(1, 2)
