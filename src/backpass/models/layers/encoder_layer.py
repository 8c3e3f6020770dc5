"""A layer of the original transformer's encoder: attention, then a feed-forward block
with ReLU. Each is added to the residual stream. A layer norm follows each sum, as in
the original, or stands before each block.

Each step is derived on the page of its operation: ``operations/layer_norm``,
``operations/feed_forward``, and those that ``transformer_attention`` names;
``operations/residual_stream`` has the residual connection. The weights are those of
``torch.nn.TransformerEncoderLayer``: ``[out, in]``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from backpass.contract.arrays import Array, Gradients
from backpass.contract.shapes import check_inputs
from backpass.contract.values import check_bool
from backpass.contract.wanted import Wanted, check_wanted, narrowed
from backpass.models.layers import blocks, feeding, transformer_attention
from backpass.models.layers.blocks import Through
from backpass.models.layers.calls import formulas
from backpass.models.layers.transformer_blocks import (
    attention_block,
    feed_forward_block,
)

SHAPES = (
    "x[*, s>0, h], w_qkv[p, h], b_qkv[p], w_o[h, h], b_o[h], "
    "w_up[f, h], b_up[f], w_down[h, f], b_down[h], "
    "norm_1_w[h], norm_1_b[h], norm_2_w[h], norm_2_b[h] -> y[*, s, h]"
)
NAMES = {
    "w_qkv": "self_attn.in_proj_weight",
    "b_qkv": "self_attn.in_proj_bias",
    "w_o": "self_attn.out_proj.weight",
    "b_o": "self_attn.out_proj.bias",
    "w_up": "linear1.weight",
    "b_up": "linear1.bias",
    "w_down": "linear2.weight",
    "b_down": "linear2.bias",
    "norm_1_w": "norm1.weight",
    "norm_1_b": "norm1.bias",
    "norm_2_w": "norm2.weight",
    "norm_2_b": "norm2.bias",
}
PARAMETERS = tuple(NAMES)
BLOCKS = attention_block(1), feed_forward_block(2)


class Saved(NamedTuple):
    """What each part saved. The residual connections save no array."""

    attended: transformer_attention.Saved
    norm_1: Any  # of layer_norm, or of its kernel
    fed: Any  # of feed_forward, or of its kernel
    norm_2: Any
    norm_first: bool
    wanted: tuple[str, ...]


def forward(
    x: Array,
    w_qkv: Array,
    b_qkv: Array,
    w_o: Array,
    b_o: Array,
    w_up: Array,
    b_up: Array,
    w_down: Array,
    b_down: Array,
    norm_1_w: Array,
    norm_1_b: Array,
    norm_2_w: Array,
    norm_2_b: Array,
    *,
    heads: int,
    norm_first: bool = False,
    eps: float = 1e-5,
    flash: bool = True,
    kernels: Any = None,
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return ``y[*, s, h]`` for the rows ``x[*, s, h]`` of the residual stream. With
    ``norm_first`` a norm stands before each block, otherwise after each sum. ``eps`` is
    that of both norms; the other options are those of ``transformer_attention``.

    Raises TypeError if an input is not a floating-point array or if its library,
    device, or dtype differs from that of ``x``, or if an option has the wrong type;
    ValueError if shapes do not fit, ``eps`` is below 0, or ``heads`` does not divide h.
    """
    w = {"w_qkv": w_qkv, "b_qkv": b_qkv, "w_o": w_o, "b_o": b_o}
    w |= {"w_up": w_up, "b_up": b_up, "w_down": w_down, "b_down": b_down}
    w |= {"norm_1_w": norm_1_w, "norm_1_b": norm_1_b}
    w |= {"norm_2_w": norm_2_w, "norm_2_b": norm_2_b}
    check_inputs(SHAPES, x=x, **w)
    check_bool(norm_first=norm_first)
    wanted = check_wanted(SHAPES, wanted)

    options = {"heads": heads, "flash": flash, "kernels": kernels}, {}
    norms: dict[str, Any] = {"eps": eps, "norm_first": norm_first, "kernels": kernels}
    y, (first, second) = blocks.forward(BLOCKS, x, w, options, wanted, **norms)
    attended, fed = (first.part, first.norm), (second.part, second.norm)
    return y, Saved(*attended, *fed, norm_first, wanted)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dx[*, s, h]`` and the parameters' gradients, in forward's order, from
    ``dy[*, s, h]``."""
    attended, norm_1, fed, norm_2, norm_first, wanted = narrowed(saved, Saved, wanted)
    through = Through(norm_1, attended), Through(norm_2, fed)
    dx, d = blocks.backward(BLOCKS, dy, through, wanted, norm_first)
    return dx, *(d.get(name) for name in PARAMETERS)


def calls(m, s, h, f, heads, norm_first=False, flash=True, wanted=None):
    """Return attention, the feed-forward block, two norms, and two sums. Where the
    stream was read, its two gradients are added."""
    wanted = check_wanted(SHAPES, wanted)
    of_parts = blocks.wanted_in_blocks(BLOCKS, wanted, norm_first)
    (_, of_attention), (_, of_fed) = of_parts
    rows, alone = m * s, {"has_memory": False, "flash": flash}
    attended = transformer_attention.calls(m, s, h, heads, **alone, wanted=of_attention)
    fed = feeding("relu", True, of_fed, m=rows, h=h, f=f)
    return blocks.calls(BLOCKS, of_parts, (attended, (fed,)), rows, h, norm_first)


forward_flops, backward_flops = formulas(calls)
