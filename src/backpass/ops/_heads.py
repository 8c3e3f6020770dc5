"""What the attention operations share: heads in groups, the causal mask, the window,
and the default scale."""

from __future__ import annotations

from fractions import Fraction
from types import ModuleType
from typing import Any

from backpass.contract.arrays import Array, namespace


def heads_by_group(x: Array, n_kv: int, head_order: str) -> Array:
    """Return ``x[*, n_h, s, d]`` as ``[*, n_kv, g, s, d]``: its heads in ``n_kv``
    groups, each of the heads that share a key head. With ``head_order="consecutive"`` a
    group is g neighbouring heads, with "interleaved" every n_kv-th head."""
    xp = namespace(x)
    *leading, heads, s, d = x.shape
    if head_order == "consecutive":
        return xp.reshape(x, (*leading, n_kv, heads // n_kv, s, d))
    return _first_heads_swapped(xp.reshape(x, (*leading, heads // n_kv, n_kv, s, d)))


def heads_in_order(x: Array, head_order: str) -> Array:
    """Return ``x[*, n_kv, g, s, d]`` as ``[*, n_h, s, d]``, with its heads in their
    original order. This is the inverse of ``heads_by_group``."""
    x = x if head_order == "consecutive" else _first_heads_swapped(x)
    *leading, outer, inner, s, d = x.shape
    return namespace(x).reshape(x, (*leading, outer * inner, s, d))


def _first_heads_swapped(x: Array) -> Array:
    """Return ``x[*, a, b, s, d]`` as ``[*, b, a, s, d]``."""
    last = len(x.shape)
    axes = (*range(last - 4), last - 3, last - 4, last - 2, last - 1)
    return namespace(x).permute_dims(x, axes)


def in_rows(x: Array, n_kv: int, head_order: str) -> Array:
    """Return ``x[*, n_h, s_q, d]`` as ``[*, n_kv, g·s_q, d]``: the heads that share a
    key head become one longer sequence."""
    x = heads_by_group(x, n_kv, head_order)
    *leading, g, s_q, d = x.shape
    return namespace(x).reshape(x, (*leading, g * s_q, d))


def in_heads(x: Array, shape: tuple[int, ...], head_order: str) -> Array:
    """Return ``x[*, n_kv, g·s_q, d]`` as ``[*, n_h, s_q, d]``, with n_h and s_q from
    ``shape``. This is the inverse of ``in_rows``."""
    *leading, n_kv, _, d = x.shape
    heads, s_q = shape[-3:-1]
    return heads_in_order(
        namespace(x).reshape(x, (*leading, n_kv, heads // n_kv, s_q, d)), head_order
    )


def causal_mask(s_q: int, s_k: int, variant: str, like: Array) -> Array:
    """Return booleans ``[s_q, s_k]``: whether a query may see a key. It sees the keys
    up to its own position. Positions are counted from the first query and the first key
    ("upper_left"), or back from the last query and the last key ("lower_right")."""
    xp = namespace(like)
    ahead = s_k - s_q if variant == "lower_right" else 0
    queries, keys = (xp.arange(s, device=like.device) for s in (s_q, s_k))
    return keys <= queries[:, None] + ahead


def window_mask(
    s_q: int, s_k: int, variant: str, window: int | None, like: Array
) -> Array:
    """Return the causal mask; with a window, a query sees only the last ``window`` of
    the keys that this mask shows."""
    visible = causal_mask(s_q, s_k, variant, like)
    if window is None:
        return visible
    xp = namespace(like)
    ahead = s_k - s_q if variant == "lower_right" else 0
    queries, keys = (xp.arange(s, device=like.device) for s in (s_q, s_k))
    hidden = keys <= queries[:, None] + (ahead - min(int(window), s_q + s_k))
    return visible & ~hidden


def inverse_root(n: int, xp: ModuleType) -> Any:
    """Return 1/√n as a number: a float, or an exact root if the numbers of ``xp`` are
    symbols."""
    return (xp.pi / (int(n) * xp.pi)) ** Fraction(1, 2)
