"""A layer of the original transformer's decoder: causal attention, attention to the
memory that the encoder computed, then a feed-forward block with ReLU. Each is added to
the residual stream. A layer norm follows each sum, as in the original, or stands before
each block.

Each step is derived on the page of its operation: ``operations/layer_norm``,
``operations/feed_forward``, and those that ``transformer_attention`` names;
``operations/residual_stream`` has the residual connection. The weights are those of
``torch.nn.TransformerDecoderLayer``: ``[out, in]``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from backpass.contract.arrays import Array, Gradients
from backpass.contract.shapes import check_inputs
from backpass.contract.values import check_bool
from backpass.contract.wanted import Wanted, check_wanted, narrowed
from backpass.models.layers import feeding, ordered, transformer_attention, turned
from backpass.models.layers.calls import formulas
from backpass.models.layers.kernel import gradients_of, implementation
from backpass.models.layers.ordered import FED, wanted_in_blocks
from backpass.ops import feed_forward, layer_norm, residual

SHAPES = (
    "x[*, s>0, h], memory[*, t>0, h], w_qkv[p, h], b_qkv[p], w_o[h, h], b_o[h], "
    "cross_w_qkv[p, h], cross_b_qkv[p], cross_w_o[h, h], cross_b_o[h], "
    "w_up[f, h], b_up[f], w_down[h, f], b_down[h], norm_1_w[h], norm_1_b[h], "
    "norm_2_w[h], norm_2_b[h], norm_3_w[h], norm_3_b[h] -> y[*, s, h]"
)
NAMES = {
    "w_qkv": "self_attn.in_proj_weight",
    "b_qkv": "self_attn.in_proj_bias",
    "w_o": "self_attn.out_proj.weight",
    "b_o": "self_attn.out_proj.bias",
    "cross_w_qkv": "multihead_attn.in_proj_weight",
    "cross_b_qkv": "multihead_attn.in_proj_bias",
    "cross_w_o": "multihead_attn.out_proj.weight",
    "cross_b_o": "multihead_attn.out_proj.bias",
    "w_up": "linear1.weight",
    "b_up": "linear1.bias",
    "w_down": "linear2.weight",
    "b_down": "linear2.bias",
    "norm_1_w": "norm1.weight",
    "norm_1_b": "norm1.bias",
    "norm_2_w": "norm2.weight",
    "norm_2_b": "norm2.bias",
    "norm_3_w": "norm3.weight",
    "norm_3_b": "norm3.bias",
}
PARAMETERS = tuple(NAMES)


class Saved(NamedTuple):
    """What each part saved. The residual connections save no array."""

    attended: transformer_attention.Saved
    norm_1: Any  # of layer_norm, or of its kernel
    crossed: transformer_attention.Saved
    norm_2: Any
    fed: Any  # of feed_forward, or of its kernel
    norm_3: Any
    norm_first: bool
    wanted: tuple[str, ...]


def forward(
    x: Array,
    memory: Array,
    w_qkv: Array,
    b_qkv: Array,
    w_o: Array,
    b_o: Array,
    cross_w_qkv: Array,
    cross_b_qkv: Array,
    cross_w_o: Array,
    cross_b_o: Array,
    w_up: Array,
    b_up: Array,
    w_down: Array,
    b_down: Array,
    norm_1_w: Array,
    norm_1_b: Array,
    norm_2_w: Array,
    norm_2_b: Array,
    norm_3_w: Array,
    norm_3_b: Array,
    *,
    heads: int,
    norm_first: bool = False,
    eps: float = 1e-5,
    flash: bool = True,
    kernels: Any = None,
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return ``y[*, s, h]`` for the rows ``x[*, s, h]`` of the residual stream and the
    ``memory[*, t, h]``. With ``norm_first`` a norm stands before each block, otherwise
    after each sum. ``eps`` is that of the norms; the other options are those of
    ``transformer_attention``.

    Raises TypeError if an input is not a floating-point array or if its library,
    device, or dtype differs from that of ``x``, or if an option has the wrong type;
    ValueError if shapes do not fit, ``eps`` is below 0, or ``heads`` does not divide h.
    """
    attending = {"w_qkv": w_qkv, "b_qkv": b_qkv, "w_o": w_o, "b_o": b_o}
    crossing = {"cross_w_qkv": cross_w_qkv, "cross_b_qkv": cross_b_qkv}
    crossing |= {"cross_w_o": cross_w_o, "cross_b_o": cross_b_o}
    feeding = {"w_up": w_up, "b_up": b_up, "w_down": w_down, "b_down": b_down}
    norms = {"norm_1_w": norm_1_w, "norm_1_b": norm_1_b}
    norms |= {"norm_2_w": norm_2_w, "norm_2_b": norm_2_b}
    norms |= {"norm_3_w": norm_3_w, "norm_3_b": norm_3_b}
    check_inputs(
        SHAPES, x=x, memory=memory, **attending, **crossing, **feeding, **norms
    )
    check_bool(norm_first=norm_first)
    wanted = check_wanted(SHAPES, wanted)
    of_attention, of_norm_1, of_cross, of_norm_2, of_feed_forward, of_norm_3 = _parts(
        wanted, norm_first
    )
    crossing = {name.removeprefix("cross_"): w for name, w in crossing.items()}
    feeding |= {"w_up": turned(w_up), "w_down": turned(w_down)}

    norm = implementation(layer_norm, kernels)
    feed = implementation(feed_forward, kernels)
    options: dict[str, Any] = {"heads": heads, "flash": flash, "kernels": kernels}

    a = x
    if norm_first:
        a, norm_1 = norm.forward(a, norm_1_w, norm_1_b, eps=eps, wanted=of_norm_1)
    a, attended = transformer_attention.forward(
        a, **attending, **options, causal=True, wanted=of_attention
    )
    x, _ = residual.forward(x, a)
    if not norm_first:
        x, norm_1 = norm.forward(x, norm_1_w, norm_1_b, eps=eps, wanted=of_norm_1)
    a = x
    if norm_first:
        a, norm_2 = norm.forward(a, norm_2_w, norm_2_b, eps=eps, wanted=of_norm_2)
    a, crossed = transformer_attention.forward(
        a, **crossing, memory=memory, **options, wanted=of_cross
    )
    x, _ = residual.forward(x, a)
    if not norm_first:
        x, norm_2 = norm.forward(x, norm_2_w, norm_2_b, eps=eps, wanted=of_norm_2)
    a = x
    if norm_first:
        a, norm_3 = norm.forward(a, norm_3_w, norm_3_b, eps=eps, wanted=of_norm_3)
    a, fed = feed.forward(a, **feeding, activation="relu", wanted=of_feed_forward)
    y, _ = residual.forward(x, a)
    if not norm_first:
        y, norm_3 = norm.forward(y, norm_3_w, norm_3_b, eps=eps, wanted=of_norm_3)
    return y, Saved(attended, norm_1, crossed, norm_2, fed, norm_3, norm_first, wanted)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dx[*, s, h]``, ``dmemory[*, t, h]``, and the parameters' gradients, in
    forward's order, from ``dy[*, s, h]``."""
    saved = narrowed(saved, Saved, wanted)
    attended, norm_1, crossed, norm_2, fed, norm_3, norm_first, wanted = saved
    of_attention, of_norm_1, of_cross, of_norm_2, of_feed_forward, of_norm_3 = _parts(
        wanted, norm_first
    )

    # In the forward pass the stream was read by a block and then added to its output;
    # so now the gradient that comes back through the block is added to the stream's.
    dx = dy
    if not norm_first:
        dx, dnorm_3_w, dnorm_3_b = gradients_of(layer_norm, dx, norm_3, of_norm_3)
    da, dw_up, dw_down, db_up, db_down, _, _ = gradients_of(
        feed_forward, dx, fed, of_feed_forward
    )
    if norm_first:
        da, dnorm_3_w, dnorm_3_b = gradients_of(layer_norm, da, norm_3, of_norm_3)
    dx = dx + da if da is not None else None
    if not norm_first:
        dx, dnorm_2_w, dnorm_2_b = gradients_of(layer_norm, dx, norm_2, of_norm_2)
    da, *of_cross_block, dmemory = gradients_of(
        transformer_attention, dx, crossed, of_cross
    )
    if norm_first:
        da, dnorm_2_w, dnorm_2_b = gradients_of(layer_norm, da, norm_2, of_norm_2)
    dx = dx + da if da is not None else None
    if not norm_first:
        dx, dnorm_1_w, dnorm_1_b = gradients_of(layer_norm, dx, norm_1, of_norm_1)
    da, *of_attention_block, _ = gradients_of(
        transformer_attention, dx, attended, of_attention
    )
    if norm_first:
        da, dnorm_1_w, dnorm_1_b = gradients_of(layer_norm, da, norm_1, of_norm_1)
    dx = dx + da if da is not None else None
    of_blocks = *of_attention_block, *of_cross_block
    of_feed_forward_block = turned(dw_up), db_up, turned(dw_down), db_down
    of_norms = dnorm_1_w, dnorm_1_b, dnorm_2_w, dnorm_2_b, dnorm_3_w, dnorm_3_b
    return dx, dmemory, *of_blocks, *of_feed_forward_block, *of_norms


def _parts(wanted: tuple[str, ...], norm_first: bool) -> list[tuple[str, ...]]:
    """Return the wanted gradients of causal attention, the first norm, attention to the
    memory, the second norm, the feed-forward block, and the third norm."""
    attention = {name: name for name in transformer_attention.PARAMETERS}
    cross = {name: f"cross_{name}" for name in attention} | {"memory": "memory"}
    return wanted_in_blocks((attention, cross, FED), wanted, norm_first)


def calls(m, s, t, h, f, heads, norm_first=False, flash=True, wanted=None):
    """Return two blocks of attention, the feed-forward block, three norms, and three
    sums. Where the stream was read, its two gradients are added."""
    of_parts = _parts(check_wanted(SHAPES, wanted), norm_first)
    of_attention, _, of_cross, _, of_fed, _ = of_parts
    rows, alone = m * s, {"has_memory": False, "causal": True, "flash": flash}
    attended = transformer_attention.calls(m, s, h, heads, **alone, wanted=of_attention)
    crossed = transformer_attention.calls(
        m, s, h, heads, t, flash=flash, wanted=of_cross
    )
    fed = feeding("relu", True, of_fed, m=rows, h=h, f=f)
    blocks = attended, (each.within("memory") for each in crossed), (fed,)
    return ordered.calls(blocks, of_parts, norm_first, rows, h)


forward_flops, backward_flops = formulas(calls)
