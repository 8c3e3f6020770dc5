r"""Scaled dot-product attention: for each query the average of the values, weighted by
the softmax of its products with the keys.

.. math:: S = \frac{1}{\sqrt{d}} Q K^\top + M, \quad
          D_i = e^z + \sum_k e^{S_{ik}}, \quad
          A_{ij} = \frac{e^{S_{ij}}}{D_i}, \quad
          Y = A V, \qquad
          \bar{V} = A^\top \bar{Y}, \quad
          \bar{A} = \bar{Y} V^\top, \quad
          \bar{M}_{ij} = A_{ij}
              \Big( \bar{A}_{ij} - \sum_k \bar{A}_{ik} A_{ik} \Big), \quad
          \bar{z} = - \sum_i \frac{e^z}{D_i} \sum_k \bar{A}_{ik} A_{ik}, \quad
          \bar{Q} = \frac{1}{\sqrt{d}} \bar{M} K, \quad
          \bar{K} = \frac{1}{\sqrt{d}} \bar{M}^\top Q

Derived on the page ``attention/scaled_dot_product`` for one head, and on the page
``attention/grouped_query`` for several heads that share keys and values. M is the bias,
which is added to the scores; a bias of −∞ hides a key from a query, and so does False
in the mask. z is the sink, a learned score that a head adds to each query's softmax
without a key or a value; without one, e^z is 0. The softcap c replaces a score s by c
tanh(s/c) before the bias is added.

A query that may see no key has output and gradient 0, where some of PyTorch's
implementations give NaN. With dropout, the values are averaged with the weights that
``ops.dropout`` keeps. In half precision everything between the inputs and the results
is computed in float32; saved arrays are rounded to half precision.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from backpass.contract.arrays import (
    Array,
    Gradients,
    as_number,
    as_type_of,
    sum_to_shape,
    transpose,
    widened,
)
from backpass.contract.shapes import Outline, check_cotangent, check_inputs
from backpass.contract.values import check_attention, check_probability
from backpass.contract.wanted import Wanted, check_wanted, narrowed, needed, sum_wanted
from backpass.ops import dropout, matmul, softmax
from backpass.ops import scale as scaling  # `scale` is forward's option
from backpass.ops import softcap as capping  # and so is `softcap`
from backpass.ops._heads import in_heads, in_rows, inverse_root, window_mask

SHAPES = (
    "q[*, g*n_kv, s_q, d], k[*, n_kv>0, s_k>0, d], v[*, n_kv, s_k, d_v], bias[*, g*n_kv, s_q, s_k]:broadcast?, "
    "mask[*, g*n_kv, s_q, s_k]:bool:broadcast?, sink[g*n_kv]? -> y[*, g*n_kv, s_q, d_v]"
)
PARAMETERS = ("sink",)


class Saved(NamedTuple):
    """The scaled queries, the keys, the values, and the weights; with a softcap, also
    the scores before it. For long sequences the weights and the scores are the
    largest. The mask is not saved: a key that it hides has weight 0."""

    q: Array | Outline  # [*, n_h, s_q, d], scaled
    k: Array | Outline  # [*, n_kv, s_k, d]
    v: Array | Outline  # [*, n_kv, s_k, d_v]
    a: Array | Outline  # [*, n_kv, g·s_q, s_k], before dropout
    a_sink: Array | Outline | None  # [*, n_kv, g·s_q, 1], the sink's weights
    capped: capping.Saved | None  # the scores [*, n_kv, g·s_q, s_k] before the softcap
    dropped: dropout.Saved  # of the weights; no mask is saved
    scale: float
    head_order: str
    bias: tuple[int, ...]  # its shape
    wanted: tuple[str, ...]


NEEDS = {
    "q": "k",
    "k": "q",
    "v": "q k bias sink",
    "a": "q k v bias sink",
    "a_sink": "sink",
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
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return ``y[*, n_h, s_q, d_v]`` for queries ``q[*, n_h, s_q, d]``, keys
    ``k[*, n_kv, s_k, d]``, and values ``v[*, n_kv, s_k, d_v]``. ``bias``, of any shape
    that broadcasts to ``[*, n_h, s_q, s_k]``, is added to the scores. ``mask``, of any
    such shape, is True where a query may see a key. ``sink[n_h]`` is one more score for
    each query of a head, which takes its part of the softmax and has no value.

    With ``causal``, query i sees the keys up to i ("upper_left"), or up to i + s_k −
    s_q ("lower_right", where the last query sees every key); with ``window``, only the
    last ``window`` of these. ``scale`` multiplies the products of queries and keys, by
    default 1/√d; ``softcap`` then brings them to between −``softcap`` and ``softcap``.
    With n_h = g · n_kv, query head i reads key head i // g ("consecutive") or i mod
    n_kv ("interleaved"). ``dropout_p`` and ``seed`` drop weights as ``ops.dropout``
    drops elements of ``[*, n_kv, g·s_q, s_k]``, where the queries of the heads that
    share a key head follow each other.

    Raises TypeError if ``mask`` is not an array of booleans, if another input is not a
    floating-point array, if inputs differ in library, device, or dtype, or if an option
    has the wrong type; ValueError if shapes do not fit, for an unknown
    ``causal_variant`` or ``head_order``, if ``window`` is below 1 or given without
    ``causal``, if ``softcap`` is not positive and finite, if ``dropout_p`` is outside 0
    to 1, or if ``seed`` is below 0 or too large.
    """
    xp = check_inputs(SHAPES, q=q, k=k, v=v, bias=bias, mask=mask, sink=sink)
    cap = check_attention(causal, causal_variant, window, scale, softcap, head_order)
    check_probability(dropout_p=dropout_p)
    wanted = check_wanted(SHAPES, wanted, bias=bias, sink=sink)
    n_kv, s_q, s_k = k.shape[-3], q.shape[-2], k.shape[-2]
    scale = inverse_root(max(q.shape[-1], 1), xp) if scale is None else as_number(scale)

    queries = widened(q) * scale
    s = in_rows(queries, n_kv, head_order) @ transpose(widened(k))
    capped = None
    if cap is not None:
        s, capped = capping.forward(s, cap=cap)
        capped = capped._replace(x=as_type_of(capped.x, q))
    s = in_heads(s, q.shape, head_order)
    s = s if bias is None else s + widened(bias)
    if causal:
        visible = window_mask(s_q, s_k, causal_variant, window, like=s)
        s = xp.where(visible, s, -math.inf)
    s = s if mask is None else xp.where(mask, s, -math.inf)
    if sink is not None:
        sinks = widened(sink)[:, None, None]
        s = xp.concat([s, xp.broadcast_to(sinks, (*s.shape[:-1], 1))], axis=-1)
    a, _ = softmax.forward(in_rows(s, n_kv, head_order))
    a, a_sink = a[..., :s_k], None if sink is None else as_type_of(a[..., s_k:], q)
    weights, dropped = dropout.forward(a, p=dropout_p, seed=seed)
    y = in_heads(weights @ widened(v), q.shape, head_order)
    shape = () if bias is None else tuple(bias.shape)
    capped = capped if "q" in wanted or "k" in wanted else None
    queries, a = as_type_of(queries, q), as_type_of(a, q)
    parts = queries, k, v, a, a_sink, capped, dropped, scale, head_order, shape, wanted
    return as_type_of(y, q), needed(Saved(*parts), NEEDS)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dq[*, n_h, s_q, d]``, ``dk[*, n_kv, s_k, d]``,
    ``dv[*, n_kv, s_k, d_v]``, ``dbias`` of the bias's shape, and ``dsink[n_h]`` (None
    without a bias or a sink) from ``dy[*, n_h, s_q, d_v]``."""
    saved = narrowed(saved, Saved, wanted)
    q, k, v, a, a_sink, capped, dropped, scale, head_order, bias, wanted = saved
    xp = check_cotangent(dy, (*q.shape[:-1], v.shape[-1]), like=v)
    shape, n_kv = q.shape, k.shape[-3]
    dy = in_rows(widened(dy), n_kv, head_order)

    # In the forward pass y was a @ v, with some weights of a dropped; so now each
    # factor's gradient is dy times the other factor, and da is dropped where a was.
    # Dropout's backward drops both a and da.
    dq = dk = dv = dbias = dsink = None
    if "v" in wanted:
        dv = transpose(dropout.backward(widened(a), dropped)) @ dy
    if {*wanted} - {"v"}:
        a, da = widened(a), dropout.backward(dy @ transpose(widened(v)), dropped)
        average = xp.sum(da * a, axis=-1, keepdims=True)
    # In the forward pass the sink's weight went to no value, whose gradient would be 0;
    # so now its score's gradient is the weight times 0 less the average.
    if "sink" in wanted:
        of_rows = in_heads(-widened(a_sink) * average, shape, head_order)
        dsink = xp.reshape(sum_to_shape(of_rows, (shape[-3], 1, 1)), (shape[-3],))
    if "q" in wanted or "k" in wanted or "bias" in wanted:
        ds = a * (da - average)

    # In the forward pass the scores were scale · q kᵀ, capped, plus a bias, one element
    # of which may have been added to many scores. The saved q already contains the
    # scale.
    if "bias" in wanted:
        dbias = sum_to_shape(in_heads(ds, shape, head_order), bias)
    if capped is not None and ("q" in wanted or "k" in wanted):
        ds = capping.backward(ds, capped._replace(x=widened(capped.x)))
    if "q" in wanted:
        dq = in_heads(ds @ widened(k), shape, head_order) * scale
    if "k" in wanted:
        dk = transpose(ds) @ in_rows(widened(q), n_kv, head_order)
    dq, dk, dv, dbias, dsink = (
        None if x is None else as_type_of(x, saved.v)
        for x in (dq, dk, dv, dbias, dsink)
    )
    return dq, dk, dv, dbias, dsink


def forward_flops(
    m,
    g,
    n_kv,
    s_q,
    s_k,
    d,
    d_v,
    has_bias=True,
    has_sink=False,
    softcap=0.0,
    dropout_p=0.0,
):
    """Return the FLOPs of scaling the queries, two products per head, the softcap, the
    bias, a softmax of s_k scores per query, or of one more with a sink, and dropout."""
    heads, rows = m * n_kv, m * g * n_kv * s_q
    products = matmul.forward_flops(heads, g * s_q, d, s_k) + matmul.forward_flops(
        heads, g * s_q, s_k, d_v
    )
    return (
        scaling.forward_flops(rows * d)
        + products
        + (capping.forward_flops(rows * s_k) if softcap else 0)
        + (rows * s_k if has_bias else 0)
        + softmax.forward_flops(rows, s_k + 1 if has_sink else s_k)
        + dropout.forward_flops(rows * s_k, dropout_p)
    )


def backward_flops(
    m,
    g,
    n_kv,
    s_q,
    s_k,
    d,
    d_v,
    size_bias=0,
    has_bias=True,
    has_sink=False,
    softcap=0.0,
    dropout_p=0.0,
    wanted=None,
):
    """Return the FLOPs of the four products, softmax's backward, the softcap's, the
    scaling of the queries' gradient, the sums that undo the broadcasting of the bias
    and of the sinks, and dropout of the weights and of their gradients."""
    wanted = check_wanted(SHAPES, wanted, bias=has_bias, sink=has_sink)
    heads, rows = m * n_kv, m * g * n_kv * s_q
    da, dv = (
        matmul.backward_flops(heads, heads, heads, g * s_q, s_k, d_v, wanted=(factor,))
        for factor in "ab"
    )
    dq, dk = (
        matmul.backward_flops(heads, heads, heads, g * s_q, d, s_k, wanted=(factor,))
        for factor in "ab"
    )
    dropped = dropout.backward_flops(rows * s_k, dropout_p)
    average = rows * (2 * s_k - 1)
    costs = {
        "v": dropped + dv,
        "q k bias sink": da + dropped + average,
        "q k bias": softmax.backward_flops(rows, s_k) - average,
        "q k": capping.backward_flops(rows * s_k) if softcap else 0,
        "q": dq + scaling.backward_flops(rows * d),
        "k": dk,
        "bias": rows * s_k - size_bias,
        "sink": 2 * rows - g * n_kv,
    }
    return sum_wanted(wanted, costs)


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = (
    {},
    {"causal": True, "head_order": "interleaved", "scale": 0.75, "softcap": 1.5},
    {"causal": True, "causal_variant": "lower_right"},
    {"causal": True, "window": 2, "s_k": 8, "g": 1},
    {"causal": True, "causal_variant": "lower_right", "s_k": 8, "n_kv": 1},
    {"causal": True, "causal_variant": "lower_right", "window": 3, "softcap": 0.5},
    {"dropout_p": 0.25, "seed": 10, "head_order": "interleaved"},
)
LETTERS = {"bias": "M", "sink": "z"}
PLACES = ("scores", "scale by 1/√d", "weights", "weighted values")
AUTOCAST = "matmul"
