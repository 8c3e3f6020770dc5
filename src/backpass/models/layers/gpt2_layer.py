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
from backpass.contract.wanted import Wanted, check_wanted, narrowed
from backpass.models.layers import (
    blocks,
    feeding,
    gpt2_attention,
    seed_of,
)
from backpass.models.layers.blocks import Block, Through, named
from backpass.models.layers.calls import call, formulas
from backpass.ops import dropout, feed_forward, layer_norm

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
BLOCKS = (
    Block(
        norm=layer_norm,
        norm_names=named(w="norm_1_w", b="norm_1_b"),
        part=gpt2_attention,
        names=named(*gpt2_attention.PARAMETERS),
    ),
    Block(
        norm=layer_norm,
        norm_names=named(w="norm_2_w", b="norm_2_b"),
        part=feed_forward,
        names=named("w_up", "b_up", "w_down", "b_down"),
        options={"activation": "gelu_tanh"},
    ),
)


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
    divide q, or a rate of dropout is outside 0 to 1.
    """
    w = {"norm_1_w": norm_1_w, "norm_1_b": norm_1_b}
    w |= {"w_qkv": w_qkv, "b_qkv": b_qkv, "w_o": w_o, "b_o": b_o}
    w |= {"norm_2_w": norm_2_w, "norm_2_b": norm_2_b}
    w |= {"w_up": w_up, "b_up": b_up, "w_down": w_down, "b_down": b_down}
    check_inputs(SHAPES, x=x, **w)
    check_probability(
        attention_dropout=attention_dropout, residual_dropout=residual_dropout
    )
    check_natural(seed=seed)
    check_bool(flash=flash)
    drawn = attention_dropout or residual_dropout
    of_weights, *of_rows = (seed_of(seed, i) if drawn else 0 for i in range(3))
    wanted = check_wanted(SHAPES, wanted)

    attending = {"heads": heads, "flash": flash, "kernels": kernels}
    attending |= {"dropout_p": attention_dropout, "seed": of_weights}
    options = attending, {}
    drops = [{"p": residual_dropout, "seed": own} for own in of_rows]
    y, (first, second) = blocks.forward(
        BLOCKS, x, w, options, wanted, eps=eps, kernels=kernels, drops=drops
    )
    return y, Saved(*first, *second, wanted)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dx[*, s, h]`` and the parameters' gradients, in forward's order, from
    ``dy[*, s, h]``."""
    *its, wanted = narrowed(saved, Saved, wanted)
    through = Through(*its[:3]), Through(*its[3:])
    dx, d = blocks.backward(BLOCKS, dy, through, wanted)
    return dx, *(d.get(name) for name in PARAMETERS)


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
    of_parts = blocks.wanted_in_blocks(BLOCKS, check_wanted(SHAPES, wanted))
    (_, of_attention), (of_norm_2, of_feed_forward) = of_parts
    of_middle, rows = ("x",) if "x" in of_norm_2 else (), m * s
    dropped = {"m": rows * h, "p": residual_dropout}
    attending = m, s, h, q, heads, flash, attention_dropout, of_attention
    attended = (
        *gpt2_attention.calls(*attending),
        call("attention: dropout", dropout, of_middle, **dropped),
    )
    fed = (
        feeding("gelu_tanh", True, of_feed_forward, m=rows, h=h, f=f),
        call("feed-forward: dropout", dropout, of_feed_forward, **dropped),
    )
    return blocks.calls(BLOCKS, of_parts, (attended, fed), rows, h)


forward_flops, backward_flops = formulas(calls)
