r"""Attention computed one tile of the scores at a time, as in FlashAttention: no array
as large as the weights exists.

.. math:: P = \frac{1}{\sqrt{d}} Q K^\top + M, \quad
          L_i = \log \Big( e^z + \sum_j e^{P_{ij}} \Big), \quad
          A_{ij} = e^{P_{ij} - L_i}, \quad
          Y = A V, \qquad
          \bar{V} = A^\top \bar{Y}, \quad
          \Delta_i = \sum_k \bar{Y}_{ik} Y_{ik}, \quad
          \bar{M}_{ij} = A_{ij}
              \Big( \sum_k \bar{Y}_{ik} V_{jk} - \Delta_i \Big), \quad
          \bar{z} = - \sum_i e^{z - L_i} \Delta_i, \quad
          \bar{Q} = \frac{1}{\sqrt{d}} \bar{M} K, \quad
          \bar{K} = \frac{1}{\sqrt{d}} \bar{M}^\top Q

Derived on the page ``attention/flash``. Inputs, options, values, and gradients are
those of ``attention``; with dropout, each tile's mask is drawn with the tile, in the
forward and again in the backward. The inputs, the output, and one number per query, L,
are saved for the backward. The only arrays of s_q · s_k numbers are a bias or a mask of
that size, and the gradient of such a bias. With ``causal``, tiles that lie entirely
above the diagonal or outside the window are skipped. For a query that may see no key,
the output and the gradient are 0, and L is the sink, or −∞ without one. In half
precision, everything between the inputs and the results is computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from backpass.contract import philox
from backpass.contract.arrays import (
    Array,
    Gradients,
    as_number,
    as_type_of,
    bounded_below,
    namespace,
    size,
    sum_to_shape,
    transpose,
    widened,
    zeros,
)
from backpass.contract.shapes import Outline, check_cotangent, check_inputs
from backpass.contract.values import (
    check_attention,
    check_probability,
    check_seed,
    check_tile,
)
from backpass.contract.wanted import Wanted, check_wanted, narrowed, needed, sum_wanted
from backpass.ops import softcap as capping  # `softcap` is forward's option
from backpass.ops._heads import heads_by_group, heads_in_order, inverse_root
from backpass.ops._tiling import add_product, add_tile, exp_in_place, plus, set_rows

SHAPES = (
    "q[*, g*n_kv, s_q, d], k[*, n_kv>0, s_k>0, d], v[*, n_kv, s_k, d_v], bias[*, g*n_kv, s_q, s_k]:broadcast?, "
    "mask[*, g*n_kv, s_q, s_k]:bool:broadcast?, sink[g*n_kv]? -> y[*, g*n_kv, s_q, d_v]"
)
PARAMETERS = ("sink",)

# In queries and keys. Products of larger tiles would run no faster.
LARGEST_TILE = 256
LEAST_TILE = 64
# The most scores of a tile in all heads together, unless tiles of LEAST_TILE have more.
LARGEST_ARRAY = 2**19


class Tiling(NamedTuple):
    """The scores of a head, cut into square tiles. Query i sees the keys up to i +
    ``ahead``, or every key if ``ahead`` is None; with a ``window`` that is not ∞, only
    the last ``window`` of them."""

    s_q: int
    s_k: int
    tile: int
    ahead: int | None
    window: Any = math.inf

    def queries(self) -> slice:
        """Return the queries that see a key."""
        if self.ahead is None:
            return slice(0, self.s_q)
        stop = min(self.s_q, self.s_k + self.window - 1 - self.ahead)
        return slice(max(0, -self.ahead), stop)

    def rows(self) -> Iterator[slice]:
        """Return the queries of each row of tiles."""
        seeing = self.queries()
        return _cut(seeing.start, seeing.stop, self.tile)

    def keys(self, rows: slice) -> tuple[int, int]:
        """Return the first key that any of the queries sees, and the key after the last
        one."""
        if self.ahead is None:
            return 0, self.s_k
        first = max(0, rows.start + self.ahead - self.window + 1)
        return first, min(self.s_k, rows.stop + self.ahead)

    def columns(self, rows: slice) -> Iterator[slice]:
        """Return the keys of each tile in a row of tiles."""
        first, stop = self.keys(rows)
        return _cut(first, stop, self.tile)

    def visible(self, rows: slice, columns: slice, like: Array) -> Array | None:
        """Return booleans ``[r, c]``: whether a query of the tile may see a key; None
        if every query may see every key."""
        if self.ahead is None:
            return None
        before = columns.stop <= rows.start + self.ahead + 1
        within = columns.start > rows.stop - 1 + self.ahead - self.window
        if before and within:
            return None
        xp = namespace(like)
        queries, keys = (
            xp.arange(part.start, part.stop, device=like.device)
            for part in (rows, columns)
        )
        ahead = keys - queries[:, None]
        visible = ahead <= self.ahead
        return visible if within else visible & (ahead > self.ahead - self.window)

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
            first, stop = self.keys(rows)
            r, keys = rows.stop - rows.start, stop - first
            queries += r
            scores += r * keys
            tiles += r * -(-keys // self.tile)
        return queries, scores, tiles


def _cut(first: int, stop: int, tile: int) -> Iterator[slice]:
    return (slice(start, min(start + tile, stop)) for start in range(first, stop, tile))


class Saved(NamedTuple):
    """The inputs, the output, and for each query the logarithm of its weights' divisor:
    no s_q × s_k array except a bias or a mask of that size."""

    q: Array | Outline  # [*, n_h, s_q, d]
    k: Array | Outline  # [*, n_kv, s_k, d]
    v: Array | Outline  # [*, n_kv, s_k, d_v]
    y: Array  # [*, n_h, s_q, d_v], or its outline
    lse: Array  # [*, n_h, s_q], or its outline
    bias: Array  # as given, or its outline; so are the next two
    mask: Array
    sink: Array  # [n_h]
    scale: float
    softcap: float | None
    head_order: str
    tiling: Tiling
    wanted: tuple[str, ...]
    dropout_p: float = 0.0
    seed: Any = None  # an integer, or an array [] that holds one; None without dropout


NEEDS = {
    **dict.fromkeys(("q", "k", "bias", "mask"), "q k v bias"),
    "v": "q k bias",
    "y": "q k bias sink",
    "lse": "q k v bias sink",
    "sink": "sink",
}


def forward(
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    sink: Array | None = None,
    *,
    causal: bool = False,
    causal_variant: str = "upper_left",
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    head_order: str = "consecutive",
    dropout_p: float = 0.0,
    seed: int = 0,
    tile: int | None = None,
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return ``y[*, n_h, s_q, d_v]`` for queries ``q[*, n_h, s_q, d]``, keys
    ``k[*, n_kv, s_k, d]``, and values ``v[*, n_kv, s_k, d_v]``.

    The other inputs and the options are those of ``attention``, with one more option,
    ``tile``: scores exist for ``tile`` queries and as many keys at a time, in all heads
    at once. The default is 256; with many heads it is smaller, down to 64.

    Raises what ``attention`` raises; TypeError if ``tile`` is not an integer, and
    ValueError if it is below 1.
    """
    xp = check_inputs(SHAPES, q=q, k=k, v=v, bias=bias, mask=mask, sink=sink)
    cap = check_attention(causal, causal_variant, window, scale, softcap, head_order)
    check_tile(tile)
    check_probability(dropout_p=dropout_p)
    check_seed(seed=seed)
    wanted = check_wanted(SHAPES, wanted, bias=bias, sink=sink)
    *leading, n_h, s_q, d = q.shape
    n_kv, s_k, d_v = v.shape[-3:]
    heads = size(leading) * n_h
    tiling = tiling_of(s_q, s_k, heads, causal, causal_variant, tile, window)
    scale = inverse_root(max(d, 1), xp) if scale is None else as_number(scale)
    drops = float(dropout_p), as_number(seed) if dropout_p else None
    parts = bias, mask, sink, scale, cap, head_order, tiling, wanted, *drops
    given: Saved = Saved(q, k, v, None, None, *parts)

    queries, keys, values = _by_group(q, n_kv, head_order), _merged(k), _merged(v)
    *by_head, _ = queries.shape  # [B, g, s_q]
    sinks = None
    if sink is not None:
        sinks = xp.broadcast_to(sink[:, None, None], (*q.shape[:-1], 1))
        sinks = _by_group(sinks, n_kv, head_order)
    y = zeros((*by_head, d_v), like=queries)
    lse = xp.full((*by_head, 1), -math.inf, dtype=queries.dtype, device=q.device)
    for rows in tiling.rows():
        part = queries[:, :, rows, :] * scale
        top = None if sinks is None else _as_rows(sinks[:, :, rows, :])
        y_part, lse_part = _attended(_as_rows(part), keys, values, top, given, rows)
        y = set_rows(y, xp.reshape(y_part, (*part.shape[:-1], d_v)), rows.start)
        lse = set_rows(lse, xp.reshape(lse_part, (*part.shape[:-1], 1)), rows.start)
    if sinks is not None:  # for queries in no tile
        lse = xp.where(lse == -math.inf, sinks, lse)

    y = as_type_of(_in_order(y, k, head_order), q)
    lse = _in_order(lse, k, head_order)[..., 0]
    return y, needed(given._replace(y=y, lse=lse), NEEDS)


def _attended(
    q: Array, k: Array, v: Array, top: Array | None, given: Saved, rows: slice
) -> tuple[Array, Array]:
    """Return ``y[B, g·r, d_v]`` for some rows of scaled queries, and their log-sum-exps
    ``[B, g·r, 1]``. ``top[B, g·r, 1]`` are the sinks, if any.

    After each tile ``top`` is the largest score so far. ``total`` is the sum of
    e^(score − top) over the keys so far, and ``y`` the sum of its products with the
    values. A sink is a key that was seen before the first tile, and has no value.
    """
    xp = namespace(q)
    k_t = transpose(k)
    total, y = None if top is None else xp.ones_like(top), None
    for columns in given.tiling.columns(rows):
        p, _ = _scores(q, k_t, given, rows, columns)
        new_top = xp.max(p, axis=-1, keepdims=True)
        if top is not None:
            # The sums so far are relative to the old maximum: make them relative to the
            # new one.
            new_top = xp.max(xp.stack([top, new_top]), axis=0)
            rescale = xp.exp(top - bounded_below(new_top))
            total, y = total * rescale, None if y is None else y * rescale
        top = new_top
        p = exp_in_place(p - bounded_below(top))
        total = plus(total, xp.sum(p, axis=-1, keepdims=True))
        kept = _dropped(p, _mask_of(p, given, rows, columns))
        y = add_product(y, kept, v[:, columns, :])
    # A total is 0 if every score was −∞. So is the maximum, and y is 0.
    total = xp.where(total == 0, 1.0, total)
    # Dropout divides each weight that it keeps by 1 − p. The sum is divided instead.
    y = y / total if given.seed is None else y / (total * philox.share(given.dropout_p))
    return y, top + xp.log(total)


def _mask_of(a: Array, given: Saved, rows: slice, columns: slice) -> Array | None:
    """Return the mask of dropout of a tile of weights ``a[B, g·r, c]``: part of that of
    ``attention``'s weights ``[B, g·s_q, s_k]``. None without dropout."""
    if given.seed is None:
        return None
    tiling, count = given.tiling, a.shape[0] * a.shape[1] // (rows.stop - rows.start)
    heads = range(0, count * tiling.s_q, tiling.s_q)  # the first row of each
    of_rows = [range(first + rows.start, first + rows.stop) for first in heads]
    part = philox.Part(tiling.s_k, of_rows, range(columns.start, columns.stop))
    return philox.mask_for(a, a.shape, given.dropout_p, given.seed, part)


def _dropped(a: Array, mask: Array | None) -> Array:
    return a if mask is None else namespace(a).where(mask, a, 0.0)


def _scores(
    q: Array, k_t: Array, given: Saved, rows: slice, columns: slice
) -> tuple[Array, Any]:
    """Return a tile's scores ``[B, g·r, c]``, with −∞ where a key is hidden, from
    scaled queries ``q[B, g·r, d]`` and ``k_t[B, d, s_k]``; and what the softcap saved,
    if there is one."""
    p, capped = q @ k_t[:, :, columns], None
    if given.softcap is not None:
        p, capped = capping.forward(p, cap=given.softcap)
    if not (given.bias is None and given.mask is None):
        # The bias and the mask are not copied for each head: the scores get an axis of
        # heads, which is merged again below.
        xp, merged, r = namespace(p), p.shape, rows.stop - rows.start
        p = xp.reshape(p, (*given.k.shape[:-2], merged[1] // r, r, merged[2]))
        if given.bias is not None:
            p = p + widened(_tile_of(given.bias, given, rows, columns))
        if given.mask is not None:
            p = xp.where(_tile_of(given.mask, given, rows, columns), p, -math.inf)
        p = xp.reshape(p, merged)
    return given.tiling.hide(p, rows, columns), capped


def _tile_of(x: Array, given: Saved, rows: slice, columns: slice) -> Array:
    """Return a tile of ``x``, which broadcasts to ``[*, n_h, s_q, s_k]``, so that it
    broadcasts to ``[*, n_kv, g, r, c]``."""
    x = x[_places(x.shape, rows, columns)]
    if len(x.shape) < 3:
        return x
    if x.shape[-3] == 1:
        return x[..., None, :, :]
    return heads_by_group(x, given.k.shape[-3], given.head_order)


def _places(shape: tuple[int, ...], rows: slice, columns: slice) -> tuple:
    """Return the index of a tile of an array of that shape, which broadcasts to
    ``[*, n_h, s_q, s_k]``: an axis of length 1 is not cut."""
    places = [slice(None)] * len(shape)
    # From the last axis on: there may be fewer than two.
    for axis, part in zip(range(len(shape))[::-1], (columns, rows), strict=False):
        places[axis] = slice(0, 1) if shape[axis] == 1 else part
    return tuple(places)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dq[*, n_h, s_q, d]``, ``dk[*, n_kv, s_k, d]``,
    ``dv[*, n_kv, s_k, d_v]``, ``dbias`` of the bias's shape, and ``dsink[n_h]`` (None
    without a bias or a sink) from ``dy[*, n_h, s_q, d_v]``."""
    saved = narrowed(saved, Saved, wanted)
    _, _, _, y, lse, _, _, sink, *_, tiling, wanted, _, _ = saved
    xp = check_cotangent(dy, y.shape, like=y)
    dq = dk = dv = dbias = dsink = None
    delta: Array = None
    seen = tiling.queries()

    # Softmax's backward subtracts a row's average of the weights' gradients. Here this
    # average is computed without the weights.
    if {*wanted} - {"v"}:
        dy_seen, y_seen = (widened(x[..., seen, :]) for x in (dy, y))
        average = xp.sum(dy_seen * y_seen, axis=-1, keepdims=True)
        delta = set_rows(xp.zeros_like(lse[..., None]), average, seen.start)
    # In the forward pass, a sink's weight multiplied no value, so the weight's gradient
    # is 0. The gradient of its score is therefore the weight times 0 less the average.
    if "sink" in wanted:
        a = xp.exp(widened(sink)[:, None, None] - bounded_below(lse)[..., None])
        dsink = sum_to_shape(-a * delta, (*sink.shape, 1, 1))
        dsink = xp.reshape(dsink, sink.shape)
    if {*wanted} - {"sink"}:
        dq, dk, dv, dbias = _through_tiles(dy, delta, saved, wanted)
    dq, dk, dv, dbias, dsink = (
        None if x is None else as_type_of(x, dy) for x in (dq, dk, dv, dbias, dsink)
    )
    return dq, dk, dv, dbias, dsink


def _through_tiles(
    dy: Array, delta: Array, saved: Saved, wanted: tuple[str, ...]
) -> tuple[Array | None, ...]:
    """Return dq, dk, dv, and dbias, of which the wanted ones are computed, from
    ``dy[*, n_h, s_q, d_v]`` and ``delta[*, n_h, s_q, 1]``."""
    q, k, v, _, lse, bias, _, _, scale, _, head_order, tiling, *_ = saved
    xp = namespace(dy)
    n_kv, keys = k.shape[-3], _merged(k)  # [B, s_k, d]
    keys_t = transpose(keys)
    by_query = [
        _by_group(x, n_kv, head_order) for x in (q, dy, lse[..., None])
    ]  # [B, g, s_q, …]
    dq: Array = xp.zeros_like(by_query[0]) if "q" in wanted else None
    dk: Array = xp.zeros_like(keys) if "k" in wanted else None
    values_shape = (*keys.shape[:-1], v.shape[-1])
    dv: Array = zeros(values_shape, like=keys) if "v" in wanted else None
    of_products = "q" in wanted or "k" in wanted
    of_scores = of_products or "bias" in wanted
    dbias: Array = xp.zeros_like(widened(bias)) if "bias" in wanted else None
    if of_scores:
        values_t, deltas = transpose(_merged(v)), _by_group(delta, n_kv, head_order)
    for rows in tiling.rows():
        q_part, dy_part, lse_part = (_as_rows(x[:, :, rows, :]) for x in by_query)
        q_part = q_part * scale
        # In the forward pass, the weights that were kept were divided by 1 − p; so now
        # dy is.
        if saved.seed is not None:
            dy_part = dy_part / philox.share(saved.dropout_p)
        dq_part: Array = None
        for columns in tiling.columns(rows):
            p, capped = _scores(q_part, keys_t, saved, rows, columns)
            a = _softmax_again(p, bounded_below(lse_part))
            mask = _mask_of(a, saved, rows, columns)
            if "v" in wanted:
                kept = transpose(_dropped(a, mask))
                part = add_product(dv[:, columns, :], kept, dy_part)
                dv = set_rows(dv, part, columns.start)
            if of_scores:
                delta_part = _as_rows(deltas[:, :, rows, :])
                da = _dropped(dy_part @ values_t[:, :, columns], mask)
                dp = _through_softmax(a, da, delta_part)
            if "bias" in wanted:
                at = _places(bias.shape, rows, columns)
                part = sum_to_shape(_in_heads(dp, saved, rows), dbias[at].shape)
                dbias = add_tile(dbias, part, at)
            if capped is not None and of_products:
                dp = capping.backward(dp, capped)
            if "q" in wanted:
                dq_part = add_product(dq_part, dp, keys[:, columns, :])
            if "k" in wanted:
                part = add_product(dk[:, columns, :], transpose(dp), q_part)
                dk = set_rows(dk, part, columns.start)
        if "q" in wanted:
            dq_part *= scale
            dq = set_rows(dq, xp.reshape(dq_part, dq[:, :, rows, :].shape), rows.start)

    dq = None if dq is None else _in_order(dq, k, head_order)
    dk = None if dk is None else xp.reshape(dk, k.shape)
    dv = None if dv is None else xp.reshape(dv, v.shape)
    return dq, dk, dv, dbias


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


def _in_heads(p: Array, saved: Saved, rows: slice) -> Array:
    """Return a tile ``p[B, g·r, c]`` of these rows as ``[*, n_h, r, c]``."""
    (B, queries, c), r = p.shape, rows.stop - rows.start
    by_head = namespace(p).reshape(p, (B, queries // r, r, c))
    return _in_order(by_head, saved.k, saved.head_order)


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
    s_q: int,
    s_k: int,
    heads: int,
    causal: bool,
    causal_variant: str,
    tile: int | None,
    window: int | None = None,
) -> Tiling:
    """Return the tiles of ``forward`` with these options. ``heads`` is the number of
    query heads in the whole batch."""
    if tile is None:
        tile = LARGEST_TILE
        while tile > LEAST_TILE and heads * tile * tile > LARGEST_ARRAY:
            tile //= 2
    if not causal:
        return Tiling(s_q, s_k, tile, None)
    ahead = s_k - s_q if causal_variant == "lower_right" else 0
    return Tiling(s_q, s_k, tile, ahead, math.inf if window is None else int(window))


def forward_flops(
    m,
    g,
    n_kv,
    s_q,
    s_k,
    d,
    d_v,
    has_bias=False,
    has_sink=False,
    causal=False,
    causal_variant="upper_left",
    window=None,
    softcap=0.0,
    dropout_p=0.0,
    tile=None,
):
    """Return the FLOPs of each query: its scaling; for each key a score, its softcap
    and bias, an exponential, and a share of the sum and of y; for each tile but the
    first (with a sink, for every tile), the rescaling of the sums; with dropout, one
    multiplication. The lengths may be symbols only without ``causal``."""
    heads = m * g * n_kv
    queries, scores, tiles = tiling_of(
        s_q, s_k, heads, causal, causal_variant, tile, window
    ).counts()
    added = capping.forward_flops(scores) if softcap else 0
    added += scores if has_bias else 0
    return heads * (
        queries * ((d + 5 if has_sink else d + 1) + (1 if dropout_p else 0))
        + 2 * scores * (d + d_v + 1)
        + added
        + (tiles - queries) * (d_v + 3)
    )


def backward_flops(
    m,
    g,
    n_kv,
    s_q,
    s_k,
    d,
    d_v,
    has_bias=False,
    has_sink=False,
    causal=False,
    causal_variant="upper_left",
    window=None,
    softcap=0.0,
    dropout_p=0.0,
    tile=None,
    wanted=None,
):
    """Return the FLOPs of each query: Δ, two scalings, the sink's gradient, with
    dropout the division of dy, and for each key five products, of which one recomputes
    the score, with the softcap and the bias of the score and their backward. The
    lengths may be symbols only without ``causal``."""
    wanted = check_wanted(SHAPES, wanted, bias=has_bias, sink=has_sink)
    heads = m * g * n_kv
    queries, scores, _ = tiling_of(
        s_q, s_k, heads, causal, causal_variant, tile, window
    ).counts()
    added = capping.forward_flops(scores) if softcap else 0
    added += scores if has_bias else 0
    costs = {
        "q k v bias": queries * (d + (d_v if dropout_p else 0))
        + scores * (2 * d + 1)
        + added,
        "q k bias sink": queries * (2 * d_v - 1),
        "q k bias": scores * (2 * d_v + 1),
        "q k": capping.backward_flops(scores) if softcap else 0,
        "q": 2 * scores * d,
        "k": 2 * scores * d,
        "v": 2 * scores * d_v,
        "bias": scores,
        "sink": 4 * s_q,
    }
    first = g * n_kv if "sink" in wanted else 0  # a sum of n is n − 1 additions
    return heads * sum_wanted(wanted, costs) - first


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = (
    {"tile": 2},
    {"causal": True, "head_order": "interleaved", "scale": 0.75, "softcap": 1.5},
    {"causal": True, "causal_variant": "lower_right", "tile": None},
    {"causal": True, "window": 2, "s_k": 8, "g": 1},
    {"causal": True, "causal_variant": "lower_right", "s_k": 8, "n_kv": 1},
    {"causal": True, "causal_variant": "lower_right", "window": 3, "softcap": 0.5},
    {"dropout_p": 0.25, "seed": 10, "tile": 2, "n_kv": 1},
)
LETTERS = {"bias": "M", "sink": "z"}
PLACES = ("scores", "scale by 1/√d", "weights", "weighted values")
AUTOCAST = "matmul"
