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
from backpass.models.layers import feeding, ordered, transformer_attention, turned
from backpass.models.layers.calls import formulas
from backpass.models.layers.kernel import gradients_of, implementation
from backpass.models.layers.ordered import FED, wanted_in_blocks
from backpass.ops import feed_forward, layer_norm, residual

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
    attending = {"w_qkv": w_qkv, "b_qkv": b_qkv, "w_o": w_o, "b_o": b_o}
    feeding = {"w_up": w_up, "b_up": b_up, "w_down": w_down, "b_down": b_down}
    norms = {"norm_1_w": norm_1_w, "norm_1_b": norm_1_b}
    norms |= {"norm_2_w": norm_2_w, "norm_2_b": norm_2_b}
    check_inputs(SHAPES, x=x, **attending, **feeding, **norms)
    check_bool(norm_first=norm_first)
    wanted = check_wanted(SHAPES, wanted)
    of_attention, of_norm_1, of_feed_forward, of_norm_2 = _parts(wanted, norm_first)
    feeding |= {"w_up": turned(w_up), "w_down": turned(w_down)}

    norm = implementation(layer_norm, kernels)
    feed = implementation(feed_forward, kernels)
    options: dict[str, Any] = {"heads": heads, "flash": flash, "kernels": kernels}

    a = x
    if norm_first:
        a, norm_1 = norm.forward(a, norm_1_w, norm_1_b, eps=eps, wanted=of_norm_1)
    a, attended = transformer_attention.forward(
        a, **attending, **options, wanted=of_attention
    )
    x, _ = residual.forward(x, a)
    if not norm_first:
        x, norm_1 = norm.forward(x, norm_1_w, norm_1_b, eps=eps, wanted=of_norm_1)
    a = x
    if norm_first:
        a, norm_2 = norm.forward(a, norm_2_w, norm_2_b, eps=eps, wanted=of_norm_2)
    a, fed = feed.forward(a, **feeding, activation="relu", wanted=of_feed_forward)
    y, _ = residual.forward(x, a)
    if not norm_first:
        y, norm_2 = norm.forward(y, norm_2_w, norm_2_b, eps=eps, wanted=of_norm_2)
    return y, Saved(attended, norm_1, fed, norm_2, norm_first, wanted)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dx[*, s, h]`` and the parameters' gradients, in forward's order, from
    ``dy[*, s, h]``."""
    attended, norm_1, fed, norm_2, norm_first, wanted = narrowed(saved, Saved, wanted)
    of_attention, of_norm_1, of_feed_forward, of_norm_2 = _parts(wanted, norm_first)

    # In the forward pass the stream was read by a block and then added to its output;
    # so now the gradient that comes back through the block is added to the stream's.
    dx = dy
    if not norm_first:
        dx, dnorm_2_w, dnorm_2_b = gradients_of(layer_norm, dx, norm_2, of_norm_2)
    da, dw_up, dw_down, db_up, db_down, _, _ = gradients_of(
        feed_forward, dx, fed, of_feed_forward
    )
    if norm_first:
        da, dnorm_2_w, dnorm_2_b = gradients_of(layer_norm, da, norm_2, of_norm_2)
    dx = dx + da if da is not None else None
    if not norm_first:
        dx, dnorm_1_w, dnorm_1_b = gradients_of(layer_norm, dx, norm_1, of_norm_1)
    da, dw_qkv, db_qkv, dw_o, db_o, _ = gradients_of(
        transformer_attention, dx, attended, of_attention
    )
    if norm_first:
        da, dnorm_1_w, dnorm_1_b = gradients_of(layer_norm, da, norm_1, of_norm_1)
    dx = dx + da if da is not None else None
    of_attention_block = dw_qkv, db_qkv, dw_o, db_o
    of_feed_forward_block = turned(dw_up), db_up, turned(dw_down), db_down
    of_norms = dnorm_1_w, dnorm_1_b, dnorm_2_w, dnorm_2_b
    return dx, *of_attention_block, *of_feed_forward_block, *of_norms


def _parts(wanted: tuple[str, ...], norm_first: bool) -> list[tuple[str, ...]]:
    """Return the wanted gradients of attention, the first norm, the feed-forward block,
    and the second norm."""
    attention = {name: name for name in transformer_attention.PARAMETERS}
    return wanted_in_blocks((attention, FED), wanted, norm_first)


def calls(m, s, h, f, heads, norm_first=False, flash=True, wanted=None):
    """Return attention, the feed-forward block, two norms, and two sums. Where the
    stream was read, its two gradients are added."""
    of_parts = _parts(check_wanted(SHAPES, wanted), norm_first)
    of_attention, _, of_fed, _ = of_parts
    rows, alone = m * s, {"has_memory": False, "flash": flash}
    attended = transformer_attention.calls(m, s, h, heads, **alone, wanted=of_attention)
    fed = feeding("relu", True, of_fed, m=rows, h=h, f=f)
    return ordered.calls((attended, (fed,)), of_parts, norm_first, rows, h)


forward_flops, backward_flops = formulas(calls)
