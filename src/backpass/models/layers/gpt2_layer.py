"""A layer of GPT-2: attention, then a feed-forward block with tanh-GELU. A layer norm
stands before each, and each is added to the residual stream, in training with dropout.

Each step is derived on the page of its operation: ``operations/layer_norm``,
``operations/feed_forward``, and those that ``gpt2_attention`` names;
``operations/residual_stream`` has the residual connection. The weights are GPT-2's:
``[in, out]``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from backpass.contract.arrays import Array, Gradients
from backpass.contract.shapes import check_inputs
from backpass.contract.values import check_bool, check_natural, check_probability
from backpass.contract.wanted import Wanted, check_wanted, narrowed, part_of
from backpass.models.layers import (
    adding,
    check_no_dropout,
    feeding,
    gpt2_attention,
    seed_of,
)
from backpass.models.layers.calls import call, formulas
from backpass.models.layers.kernel import gradients_of, implementation, scheme_for
from backpass.ops import dropout, feed_forward, layer_norm, residual

SHAPES = (
    "x[*, s>0, h], norm_1_w[h], norm_1_b[h], w_qkv[h, p], b_qkv[p], w_o[q, h], b_o[h], "
    "norm_2_w[h], norm_2_b[h], w_up[h, f], b_up[f], w_down[f, h], b_down[h] "
    "-> y[*, s, h]"
)
NAMES = {
    "norm_1_w": "ln_1.weight",
    "norm_1_b": "ln_1.bias",
    "w_qkv": "attn.c_attn.weight",
    "b_qkv": "attn.c_attn.bias",
    "w_o": "attn.c_proj.weight",
    "b_o": "attn.c_proj.bias",
    "norm_2_w": "ln_2.weight",
    "norm_2_b": "ln_2.bias",
    "w_up": "mlp.c_fc.weight",
    "b_up": "mlp.c_fc.bias",
    "w_down": "mlp.c_proj.weight",
    "b_down": "mlp.c_proj.bias",
}
PARAMETERS = tuple(NAMES)


class Saved(NamedTuple):
    """What each part saved. The residual connections save no array."""

    norm_1: Any  # of layer_norm, or of its kernel
    attended: Any  # of gpt2_attention, or of a scheme
    dropped_1: dropout.Saved
    norm_2: Any
    fed: Any  # of feed_forward, or of its kernel
    dropped_2: dropout.Saved
    wanted: tuple[str, ...]


def forward(
    x: Array,
    norm_1_w: Array,
    norm_1_b: Array,
    w_qkv: Array,
    b_qkv: Array,
    w_o: Array,
    b_o: Array,
    norm_2_w: Array,
    norm_2_b: Array,
    w_up: Array,
    b_up: Array,
    w_down: Array,
    b_down: Array,
    *,
    heads: int,
    eps: float = 1e-5,
    flash: bool = True,
    attention_dropout: float = 0.0,
    residual_dropout: float = 0.0,
    seed: int = 0,
    kernels: Any = None,
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return ``y[*, s, h]`` for the rows ``x[*, s, h]`` of the residual stream. ``eps``
    is that of both norms. ``heads`` and ``flash`` are options of ``gpt2_attention``;
    ``kernels`` is ``backpass.kernels`` or None.
    ``attention_dropout`` is the probability with which a weight of attention is
    dropped, ``residual_dropout`` that for an element of a block's output. Each of the
    three masks is drawn from ``seed`` and its place in the layer.

    Raises TypeError if an input is not a floating-point array or if its library,
    device, or dtype differs from that of ``x``, or if an option has the wrong type;
    ValueError if shapes do not fit, ``eps`` or ``seed`` is below 0, ``heads`` does not
    divide q, or a rate of dropout is outside 0 to 1 or not available with ``flash``.
    """
    attending = {"w_qkv": w_qkv, "b_qkv": b_qkv, "w_o": w_o, "b_o": b_o}
    feeding = {"w_up": w_up, "b_up": b_up, "w_down": w_down, "b_down": b_down}
    norms = {"norm_1_w": norm_1_w, "norm_1_b": norm_1_b}
    norms |= {"norm_2_w": norm_2_w, "norm_2_b": norm_2_b}
    check_inputs(SHAPES, x=x, **norms, **attending, **feeding)
    check_probability(
        attention_dropout=attention_dropout, residual_dropout=residual_dropout
    )
    check_natural(seed=seed)
    check_bool(flash=flash)
    check_no_dropout(flash, attention_dropout=attention_dropout)
    drops = attention_dropout or residual_dropout
    of_weights, of_attended, of_fed = (
        seed_of(seed, place) if drops else 0 for place in range(3)
    )
    wanted = check_wanted(SHAPES, wanted)
    of_norm_1, of_attention, of_norm_2, of_feed_forward = _parts(wanted)

    norm = implementation(layer_norm, kernels)
    feed = implementation(feed_forward, kernels)
    drop = scheme_for(dropout, kernels)

    a, norm_1 = norm.forward(x, norm_1_w, norm_1_b, eps=eps, wanted=of_norm_1)
    attention = implementation(gpt2_attention, kernels)
    a, attended = attention.forward(
        a,
        **attending,
        heads=heads,
        flash=flash,
        dropout_p=attention_dropout,
        seed=of_weights,
        kernels=kernels,
        wanted=of_attention,
    )
    a, dropped_1 = drop.forward(a, p=residual_dropout, seed=of_attended)
    x, _ = residual.forward(x, a)
    a, norm_2 = norm.forward(x, norm_2_w, norm_2_b, eps=eps, wanted=of_norm_2)
    a, fed = feed.forward(a, **feeding, activation="gelu_tanh", wanted=of_feed_forward)
    a, dropped_2 = drop.forward(a, p=residual_dropout, seed=of_fed)
    y, _ = residual.forward(x, a)
    if not of_attention:
        dropped_1 = dropped_1._replace(mask=None)
    if not of_feed_forward:
        dropped_2 = dropped_2._replace(mask=None)
    return y, Saved(norm_1, attended, dropped_1, norm_2, fed, dropped_2, wanted)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dx[*, s, h]`` and the parameters' gradients, in forward's order, from
    ``dy[*, s, h]``."""
    saved = narrowed(saved, Saved, wanted)
    norm_1, attended, dropped_1, norm_2, fed, dropped_2, wanted = saved
    of_norm_1, of_attention, of_norm_2, of_feed_forward = _parts(wanted)

    # In the forward pass the stream was read by a block and then added to its output;
    # so now the gradient that comes back through the block is added to the stream's.
    da = dropout.backward(dy, dropped_2)
    da, dw_up, dw_down, db_up, db_down, _, _ = gradients_of(
        feed_forward, da, fed, of_feed_forward
    )
    da, dnorm_2_w, dnorm_2_b = gradients_of(layer_norm, da, norm_2, of_norm_2)
    dx = dy + da if "x" in of_norm_2 else None
    da = None if dx is None else dropout.backward(dx, dropped_1)
    da, dw_qkv, db_qkv, dw_o, db_o = gradients_of(
        gpt2_attention, da, attended, of_attention
    )
    da, dnorm_1_w, dnorm_1_b = gradients_of(layer_norm, da, norm_1, of_norm_1)
    dx = dx + da if "x" in wanted else None
    of_attention_block = dnorm_1_w, dnorm_1_b, dw_qkv, db_qkv, dw_o, db_o
    of_feed_forward_block = dnorm_2_w, dnorm_2_b, dw_up, db_up, dw_down, db_down
    return dx, *of_attention_block, *of_feed_forward_block


def _parts(wanted: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the wanted gradients of the first norm, attention, the second norm, and
    the feed-forward block."""
    normed = "x norm_1_w norm_1_b"
    stream = f"{normed} w_qkv b_qkv w_o b_o"
    normed_2 = f"{stream} norm_2_w norm_2_b"
    attention = {name: name for name in gpt2_attention.PARAMETERS}
    fed = {name: name for name in ("w_up", "b_up", "w_down", "b_down")}
    return [
        part_of(wanted, x="x", w="norm_1_w", b="norm_1_b"),
        part_of(wanted, x=normed, **attention),
        part_of(wanted, x=stream, w="norm_2_w", b="norm_2_b"),
        part_of(wanted, x=normed_2, **fed),
    ]


def calls(
    m,
    s,
    h,
    q,
    f,
    heads,
    flash=True,
    attention_dropout=0.0,
    residual_dropout=0.0,
    wanted=None,
):
    """Return two norms, attention, the feed-forward block, and, twice, dropout and the
    sum. Where the stream was read, its two gradients are added."""
    wanted = check_wanted(SHAPES, wanted)
    of_norm_1, of_attention, of_norm_2, of_feed_forward = _parts(wanted)
    of_middle, rows = ("x",) if "x" in of_norm_2 else (), m * s
    dropped = {"m": rows * h, "p": residual_dropout}
    return (
        call("first norm", layer_norm, of_norm_1, m=rows, n=h),
        *gpt2_attention.calls(
            m, s, h, q, heads, flash, attention_dropout, of_attention
        ),
        call("attention: dropout", dropout, of_middle, **dropped),
        *adding("first", rows * h, of_norm_1),
        call("second norm", layer_norm, of_norm_2, m=rows, n=h),
        feeding("gelu_tanh", True, of_feed_forward, m=rows, h=h, f=f),
        call("feed-forward: dropout", dropout, of_feed_forward, **dropped),
        *adding("second", rows * h, of_norm_2),
    )


forward_flops, backward_flops = formulas(calls)
