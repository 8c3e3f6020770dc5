r"""Attention computed one tile of the scores at a time, as in FlashAttention: no array
as large as the weights exists.

.. math:: P = \frac{1}{\sqrt{d}} Q K^\top, \quad
          L_i = \log \Big( \sum_j e^{P_{ij}} \Big), \quad
          A_{ij} = e^{P_{ij} - L_i}, \quad
          Y = A V, \qquad
          \bar{V} = A^\top \bar{Y}, \quad
          \bar{P}_{ij} = A_{ij}
              \Big( \sum_k \bar{Y}_{ik} V_{jk} - \sum_k \bar{Y}_{ik} Y_{ik} \Big), \quad
          \bar{Q} = \frac{1}{\sqrt{d}} \bar{P} K, \quad
          \bar{K} = \frac{1}{\sqrt{d}} \bar{P}^\top Q

Derived on the page ``attention/flash``. Values and gradients are those of
``attention``. The queries, keys, values, the output, and one number per query, L, are
saved for the backward. With ``causal``, tiles in which every score is hidden are
skipped. A query that may see no key has output and gradient 0, and L is −∞. In half
precision everything between the inputs and the results is computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from backpass.arrays import (
    Array,
    as_number,
    as_type_of,
    bounded_below,
    namespace,
    size,
    transpose,
    widened,
    zeros,
)
from backpass.ops._heads import heads_by_group, heads_in_order, inverse_root
from backpass.ops._tiling import add_product, exp_in_place, plus, set_rows
from backpass.shapes import Outline, check_cotangent, check_inputs, check_saved
from backpass.values import check_causal, check_head_order, check_scale, check_tile
from backpass.wanted import Wanted, check_narrowed, check_wanted, kept, sum_wanted

SHAPES = "q[*, g*n_kv, s_q, d], k[*, n_kv>0, s_k>0, d], v[*, n_kv, s_k, d_v] -> y[*, g*n_kv, s_q, d_v]"

# In queries and keys. Products of larger tiles would run no faster.
LARGEST_TILE = 256
LEAST_TILE = 64
# The scores of a tile in all heads together, unless LEAST_TILE makes them more.
LARGEST_ARRAY = 2**19


class Tiling(NamedTuple):
    """The scores of a head, cut into square tiles. Query i sees the keys up to i +
    ``ahead``, or every key if ``ahead`` is None."""

    s_q: int
    s_k: int
    tile: int
    ahead: int | None

    def rows(self) -> Iterator[slice]:
        """Return the queries of each row of tiles, beginning with the first query that
        sees a key."""
        return _cut(
            0 if self.ahead is None else max(0, -self.ahead), self.s_q, self.tile
        )

    def columns(self, rows: slice) -> Iterator[slice]:
        """Return the keys of each tile of that row, up to the last key that one of its
        queries sees."""
        return _cut(
            0,
            self.s_k if self.ahead is None else min(self.s_k, rows.stop + self.ahead),
            self.tile,
        )

    def visible(self, rows: slice, columns: slice, like: Array) -> Array | None:
        """Return booleans ``[r, c]``: whether a query of the tile may see a key; None
        if every query may see every key."""
        if self.ahead is None or columns.stop <= rows.start + self.ahead + 1:
            return None
        xp = namespace(like)
        queries, keys = (
            xp.arange(part.start, part.stop, device=like.device)
            for part in (rows, columns)
        )
        return keys <= queries[:, None] + self.ahead

    def hide(self, p: Array, rows: slice, columns: slice) -> Array:
        """Return the tile's scores ``p[B, g·r, c]``, with −∞ where a query may not see
        a key."""
        visible = self.visible(rows, columns, like=p)
        if visible is None:
            return p
        xp, (B, queries, c), r = namespace(p), p.shape, visible.shape[0]
        by_head = xp.reshape(p, (B, queries // r, r, c))
        return xp.reshape(xp.where(visible, by_head, -math.inf), p.shape)

    def counts(self) -> tuple[int, int, int]:
        """Return the number of queries that see a key, the number of scores computed,
        and the number of tiles, summed over the queries."""
        if self.ahead is None:  # the lengths may be symbols
            return self.s_q, self.s_q * self.s_k, self.s_q * -(-self.s_k // self.tile)
        queries, scores, tiles = 0, 0, 0
        for rows in self.rows():
            r, keys = rows.stop - rows.start, min(self.s_k, rows.stop + self.ahead)
            queries += r
            scores += r * keys
            tiles += r * -(-keys // self.tile)
        return queries, scores, tiles


def _cut(first: int, stop: int, tile: int) -> Iterator[slice]:
    return (slice(start, min(start + tile, stop)) for start in range(first, stop, tile))


class Saved(NamedTuple):
    """The inputs, the output, and for each query the logarithm of its weights' divisor:
    no s_q × s_k array."""

    q: Array | Outline  # [*, n_h, s_q, d]
    k: Array | Outline  # [*, n_kv, s_k, d]
    v: Array | Outline  # [*, n_kv, s_k, d_v]
    y: Array | Outline  # [*, n_h, s_q, d_v]
    lse: Array  # [*, n_h, s_q], or its outline
    scale: float
    head_order: str
    tiling: Tiling
    wanted: tuple[str, ...]


def forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    causal_variant: str = "upper_left",
    scale: float | None = None,
    head_order: str = "consecutive",
    tile: int | None = None,
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return ``y[*, n_h, s_q, d_v]`` for queries ``q[*, n_h, s_q, d]``, keys
    ``k[*, n_kv, s_k, d]``, and values ``v[*, n_kv, s_k, d_v]``. Unlike ``attention`` it
    accepts no bias.

    The options are those of ``attention``, and ``tile``: scores exist for ``tile``
    queries and as many keys at a time, in all heads at once. The default is 256, or
    fewer, down to 64, with many heads.

    Raises TypeError if an input is not a floating-point array or if inputs differ in
    library, device, or dtype, if ``causal`` is not a bool, ``scale`` is not a real
    number, or ``tile`` is not an integer; ValueError if shapes do not fit, for an
    unknown ``causal_variant`` or ``head_order``, or if ``tile`` is below 1.
    """
    xp = check_inputs(SHAPES, q=q, k=k, v=v)
    check_causal(causal, causal_variant)
    check_scale(scale)
    check_head_order(head_order)
    check_tile(tile)
    wanted = check_wanted(SHAPES, wanted)
    *leading, n_h, s_q, d = q.shape
    n_kv, s_k, d_v = v.shape[-3:]
    tiling = tiling_of(s_q, s_k, size(leading) * n_h, causal, causal_variant, tile)
    scale = inverse_root(max(d, 1), xp) if scale is None else as_number(scale)

    queries, keys, values = _by_group(q, n_kv, head_order), _merged(k), _merged(v)
    *by_head, _ = queries.shape  # [B, g, s_q]
    y = zeros((*by_head, d_v), like=queries)
    lse = xp.full((*by_head, 1), -math.inf, dtype=queries.dtype, device=q.device)
    for rows in tiling.rows():
        part = queries[:, :, rows, :] * scale
        y_part, lse_part = _attended(_as_rows(part), keys, values, tiling, rows)
        y = set_rows(y, xp.reshape(y_part, (*part.shape[:-1], d_v)), rows.start)
        lse = set_rows(lse, xp.reshape(lse_part, (*part.shape[:-1], 1)), rows.start)

    y = as_type_of(_in_order(y, k, head_order), q)
    lse = _in_order(lse, k, head_order)[..., 0]
    scores = "q" in wanted or "k" in wanted
    return y, Saved(
        kept(q, wanted),
        kept(k, wanted),
        kept(v, scores),
        kept(y, scores),
        kept(lse, wanted),
        scale,
        head_order,
        tiling,
        wanted,
    )


def _attended(
    q: Array, k: Array, v: Array, tiling: Tiling, rows: slice
) -> tuple[Array, Array]:
    """Return ``y[B, g·r, d_v]`` for some rows of scaled queries, and their log-sum-exps
    ``[B, g·r, 1]``.

    After each tile ``top`` is the largest score so far. ``total`` is the sum of
    e^(score − top) over the keys so far, and ``y`` the sum of its products with the
    values.
    """
    xp = namespace(q)
    k_t = transpose(k)
    top, total, y = None, None, None
    for columns in tiling.columns(rows):
        p = tiling.hide(q @ k_t[:, :, columns], rows, columns)
        new_top = xp.max(p, axis=-1, keepdims=True)
        if top is not None:
            # The sums so far are relative to the old maximum: make them relative to the
            # new one.
            new_top = xp.max(xp.stack([top, new_top]), axis=0)
            rescale = xp.exp(top - bounded_below(new_top))
            total, y = total * rescale, y * rescale
        top = new_top
        p = exp_in_place(p - bounded_below(top))
        total = plus(total, xp.sum(p, axis=-1, keepdims=True))
        y = add_product(y, p, v[:, columns, :])
    # A total is 0 if every score was −∞. So is the maximum, and y is 0.
    total = xp.where(total == 0, 1.0, total)
    return y / total, top + xp.log(total)


def backward(
    dy: Array, saved: Saved, *, wanted: Wanted = None
) -> tuple[Array | None, ...]:
    """Return ``dq[*, n_h, s_q, d]``, ``dk[*, n_kv, s_k, d]``, and
    ``dv[*, n_kv, s_k, d_v]`` from ``dy[*, n_h, s_q, d_v]``."""
    q, k, v, y, lse, scale, head_order, tiling, _ = check_saved(saved, Saved)
    xp = check_cotangent(dy, y.shape, like=y)
    wanted = check_narrowed(wanted, saved)
    if not wanted:
        return None, None, None
    of_scores = "q" in wanted or "k" in wanted

    n_kv, keys = k.shape[-3], _merged(k)  # [B, s_k, d]
    keys_t = transpose(keys)
    by_query = [
        _by_group(x, n_kv, head_order) for x in (q, dy, lse[..., None])
    ]  # [B, g, s_q, …]
    dq: Array = xp.zeros_like(by_query[0]) if "q" in wanted else None
    dk: Array = xp.zeros_like(keys) if "k" in wanted else None
    values_shape = (*keys.shape[:-1], v.shape[-1])
    dv: Array = zeros(values_shape, like=keys) if "v" in wanted else None
    if of_scores:
        values_t, outputs = transpose(_merged(v)), _by_group(y, n_kv, head_order)
    for rows in tiling.rows():
        q_part, dy_part, lse_part = (_as_rows(x[:, :, rows, :]) for x in by_query)
        q_part = q_part * scale
        dq_part: Array = None
        if of_scores:
            # Softmax's backward subtracts a row's average of the weights' gradients. It
            # is computed here without the weights.
            y_part = _as_rows(outputs[:, :, rows, :])
            delta = xp.sum(dy_part * y_part, axis=-1, keepdims=True)
        for columns in tiling.columns(rows):
            p = tiling.hide(q_part @ keys_t[:, :, columns], rows, columns)
            a = _softmax_again(p, bounded_below(lse_part))
            if "v" in wanted:
                part = add_product(dv[:, columns, :], transpose(a), dy_part)
                dv = set_rows(dv, part, columns.start)
            if of_scores:
                dp = _through_softmax(a, dy_part @ values_t[:, :, columns], delta)
            if "q" in wanted:
                dq_part = add_product(dq_part, dp, keys[:, columns, :])
            if "k" in wanted:
                part = add_product(dk[:, columns, :], transpose(dp), q_part)
                dk = set_rows(dk, part, columns.start)
        if "q" in wanted:
            dq_part *= scale
            dq = set_rows(dq, xp.reshape(dq_part, dq[:, :, rows, :].shape), rows.start)

    dq = None if dq is None else as_type_of(_in_order(dq, k, head_order), q)
    dk = None if dk is None else as_type_of(xp.reshape(dk, k.shape), k)
    dv = None if dv is None else as_type_of(xp.reshape(dv, v.shape), v)
    return dq, dk, dv


def _softmax_again(p: Array, lse: Array) -> Array:
    """Return the weights of a tile's scores, in the scores' storage."""
    p -= lse
    return exp_in_place(p)


def _through_softmax(a: Array, da: Array, delta: Array) -> Array:
    """Return the gradient of a tile's scores from ``da``, that of the weights, in its
    storage."""
    da -= delta
    da *= a
    return da


def _by_group(x: Array, n_kv: int, head_order: str) -> Array:
    """Return ``x[*, n_h, s, n]`` as ``[B, g, s, n]``, where B counts all key heads: the
    g heads that share a key head are together."""
    x = heads_by_group(widened(x), n_kv, head_order)
    return namespace(x).reshape(x, (size(x.shape[:-3]), *x.shape[-3:]))


def _in_order(x: Array, k: Array, head_order: str) -> Array:
    """Return ``x[B, g, s, n]`` as ``[*, n_h, s, n]``, with the leading axes of
    ``k[*, n_kv, s_k, d]``."""
    x = namespace(x).reshape(x, (*k.shape[:-2], *x.shape[1:]))
    return heads_in_order(x, head_order)


def _merged(x: Array) -> Array:
    """Return ``x[*, n_kv, s, n]`` as ``[B, s, n]``."""
    x = widened(x)
    return namespace(x).reshape(x, (size(x.shape[:-2]), *x.shape[-2:]))


def _as_rows(x: Array) -> Array:
    """Return ``x[B, g, r, n]`` as ``[B, g·r, n]``: queries that share a key head are
    rows of one matrix."""
    B, g, r, n = x.shape
    return namespace(x).reshape(x, (B, g * r, n))


def tiling_of(
    s_q: int, s_k: int, heads: int, causal: bool, causal_variant: str, tile: int | None
) -> Tiling:
    """Return the tiles of ``forward`` with these options; ``heads`` is the number of
    all query heads together."""
    if tile is None:
        tile = LARGEST_TILE
        while tile > LEAST_TILE and heads * tile * tile > LARGEST_ARRAY:
            tile //= 2
    ahead = None if not causal else s_k - s_q if causal_variant == "lower_right" else 0
    return Tiling(s_q, s_k, tile, ahead)


def forward_flops(
    m, g, n_kv, s_q, s_k, d, d_v, causal=False, causal_variant="upper_left", tile=None
):
    """Return the FLOPs of each query: its scaling; for each key a score, an
    exponential, and a share of the sum and of y; for each tile but the first, the
    rescaling of the sums. The lengths may be symbols only without ``causal``."""
    heads = m * g * n_kv
    queries, scores, tiles = tiling_of(
        s_q, s_k, heads, causal, causal_variant, tile
    ).counts()
    return heads * (
        queries * (d + 1) + 2 * scores * (d + d_v + 1) + (tiles - queries) * (d_v + 3)
    )


def backward_flops(
    m,
    g,
    n_kv,
    s_q,
    s_k,
    d,
    d_v,
    causal=False,
    causal_variant="upper_left",
    tile=None,
    wanted=None,
):
    """Return the FLOPs of each query: Δ, two scalings, and for each key five products,
    of which one recomputes the score. The lengths may be symbols only without
    ``causal``."""
    heads = m * g * n_kv
    queries, scores, _ = tiling_of(
        s_q, s_k, heads, causal, causal_variant, tile
    ).counts()
    costs = {
        "q k v": queries * d + scores * (2 * d + 1),
        "q k": queries * (2 * d_v - 1) + scores * (2 * d_v + 1),
        "q": 2 * scores * d,
        "k": 2 * scores * d,
        "v": 2 * scores * d_v,
    }
    return heads * sum_wanted(wanted, costs)


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = (
    {"tile": 2},
    {"causal": True, "head_order": "interleaved", "scale": 0.75},
    {"causal": True, "causal_variant": "lower_right", "tile": None},
    {"causal": True, "s_k": 8, "g": 1},
    {"causal": True, "causal_variant": "lower_right", "s_k": 8, "n_kv": 1},
)
PLACES = ("scores", "scale by 1/√d", "weights", "weighted values")
AUTOCAST = "matmul"
