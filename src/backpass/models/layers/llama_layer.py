"""A layer of Llama, Qwen2, or Qwen3: attention, then a feed-forward block with SwiGLU.
An RMS norm stands before each, and each is added to the residual stream.

Each step is derived on the page of its operation: ``operations/rms_norm``,
``operations/feed_forward``, and those that ``llama_attention`` names;
``operations/residual_stream`` has the residual connection. The weights are those of
``torch.nn.Linear``: ``[out, in]``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from backpass.contract.arrays import Array, Gradients
from backpass.contract.shapes import check_inputs
from backpass.contract.wanted import Wanted, check_wanted, narrowed
from backpass.models.layers import blocks, feeding, llama_attention
from backpass.models.layers.blocks import Block, Through, named
from backpass.models.layers.calls import formulas
from backpass.ops import feed_forward, rms_norm

SHAPES = (
    "x[*, s>0, h], cos[s, k>0], sin[s, k], norm_1_w[h], w_q[q, h], w_k[p>0, h], "
    "w_v[p, h], w_o[h, q], norm_2_w[h], w_gate[f, h], w_up[f, h], w_down[h, f], "
    "b_q[q]?, b_k[p]?, b_v[p]?, norm_q_w[2k]?, norm_k_w[2k]? -> y[*, s, h]"
)
CONSTANTS = ("cos", "sin")
NAMES = {
    "norm_1_w": "input_layernorm.weight",
    "w_q": "self_attn.q_proj.weight",
    "w_k": "self_attn.k_proj.weight",
    "w_v": "self_attn.v_proj.weight",
    "w_o": "self_attn.o_proj.weight",
    "norm_2_w": "post_attention_layernorm.weight",
    "w_gate": "mlp.gate_proj.weight",
    "w_up": "mlp.up_proj.weight",
    "w_down": "mlp.down_proj.weight",
    "b_q": "self_attn.q_proj.bias",
    "b_k": "self_attn.k_proj.bias",
    "b_v": "self_attn.v_proj.bias",
    "norm_q_w": "self_attn.q_norm.weight",
    "norm_k_w": "self_attn.k_norm.weight",
}
PARAMETERS = tuple(NAMES)
FED = ("w_up", "w_down", "w_gate")
BLOCKS = (
    Block(
        norm=rms_norm,
        norm_names=named(w="norm_1_w"),
        part=llama_attention,
        names=named(*llama_attention.PARAMETERS),
    ),
    Block(
        norm=rms_norm,
        norm_names=named(w="norm_2_w"),
        part=feed_forward,
        names=named(*FED),
        turned=FED,
        options={"activation": "swiglu"},
    ),
)


class Saved(NamedTuple):
    """What each part saved. The residual connections save no array."""

    norm_1: Any  # of rms_norm, or of its kernel
    attended: Any  # of llama_attention, or of a scheme
    norm_2: Any
    fed: Any  # of feed_forward, or of its kernel
    wanted: tuple[str, ...]


def forward(
    x: Array,
    cos: Array,
    sin: Array,
    norm_1_w: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    w_o: Array,
    norm_2_w: Array,
    w_gate: Array,
    w_up: Array,
    w_down: Array,
    b_q: Array | None = None,
    b_k: Array | None = None,
    b_v: Array | None = None,
    norm_q_w: Array | None = None,
    norm_k_w: Array | None = None,
    *,
    eps: float = 1e-6,
    flash: bool = True,
    kernels: Any = None,
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return ``y[*, s, h]`` for the rows ``x[*, s, h]`` of the residual stream.

    ``eps`` is that of all norms; tables, heads, and the other options are those of
    ``llama_attention``, and so are the errors.
    """
    optional = {"b_q": b_q, "b_k": b_k, "b_v": b_v}
    optional |= {"norm_q_w": norm_q_w, "norm_k_w": norm_k_w}
    w = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o, **optional}
    w |= {"w_gate": w_gate, "w_up": w_up, "w_down": w_down}
    w |= {"norm_1_w": norm_1_w, "norm_2_w": norm_2_w}
    check_inputs(SHAPES, x=x, cos=cos, sin=sin, **w)
    wanted = check_wanted(SHAPES, wanted, cos=None, sin=None, **optional)

    shared = {"eps": eps, "kernels": kernels}
    attending = {"cos": cos, "sin": sin, "flash": flash, **shared}
    options = attending, {}
    y, (first, second) = blocks.forward(BLOCKS, x, w, options, wanted, **shared)
    return y, Saved(first.norm, first.part, second.norm, second.part, wanted)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dx[*, s, h]`` and the parameters' gradients, in forward's order, from
    ``dy[*, s, h]``. The gradient of a parameter that was not given is None."""
    norm_1, attended, norm_2, fed, wanted = narrowed(saved, Saved, wanted)
    through = Through(norm_1, attended), Through(norm_2, fed)
    dx, d = blocks.backward(BLOCKS, dy, through, wanted)
    return dx, *(d.get(name) for name in PARAMETERS)


def calls(
    m,
    s,
    h,
    k,
    q,
    p,
    f,
    has_b_q=True,
    has_b_k=True,
    has_b_v=True,
    has_norm_q_w=True,
    has_norm_k_w=True,
    flash=True,
    wanted=None,
):
    """Return two norms, attention, the feed-forward block, and two sums. Where the
    stream was read, its two gradients are added."""
    given = {"b_q": has_b_q, "b_k": has_b_k, "b_v": has_b_v}
    given |= {"norm_q_w": has_norm_q_w, "norm_k_w": has_norm_k_w}
    wanted = check_wanted(SHAPES, wanted, cos=None, sin=None, **given)
    of_parts = blocks.wanted_in_blocks(BLOCKS, wanted)
    (_, of_attention), (_, of_fed) = of_parts
    attending = m, s, h, k, q, p, *given.values(), flash, of_attention
    fed = feeding("swiglu", False, of_fed, m=m * s, h=h, f=f)
    parts = llama_attention.calls(*attending), (fed,)
    return blocks.calls(BLOCKS, of_parts, parts, m * s, h)


forward_flops, backward_flops = formulas(calls)
