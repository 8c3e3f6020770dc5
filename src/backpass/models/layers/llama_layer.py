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
from backpass.contract.wanted import Wanted, check_wanted, narrowed, part_of
from backpass.models.layers import adding, feeding, llama_attention, turned
from backpass.models.layers.calls import call, formulas
from backpass.models.layers.kernel import gradients_of, implementation
from backpass.ops import feed_forward, residual, rms_norm

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
    attending = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o, **optional}
    norms = {"norm_1_w": norm_1_w, "norm_2_w": norm_2_w}
    feeding = {"w_gate": w_gate, "w_up": w_up, "w_down": w_down}
    check_inputs(SHAPES, x=x, cos=cos, sin=sin, **norms, **attending, **feeding)
    wanted = check_wanted(SHAPES, wanted, cos=None, sin=None, **optional)
    of_norm_1, of_attention, of_norm_2, of_feed_forward = _parts(wanted)

    norm = implementation(rms_norm, kernels)
    feed = implementation(feed_forward, kernels)
    options: dict[str, Any] = {"eps": eps, "flash": flash, "kernels": kernels}

    a, norm_1 = norm.forward(x, norm_1_w, eps=eps, wanted=of_norm_1)
    attention = implementation(llama_attention, kernels)
    a, attended = attention.forward(
        a, cos=cos, sin=sin, **attending, **options, wanted=of_attention
    )
    x, _ = residual.forward(x, a)
    a, norm_2 = norm.forward(x, norm_2_w, eps=eps, wanted=of_norm_2)
    a, fed = feed.forward(
        a,
        turned(w_up),
        turned(w_down),
        w_gate=turned(w_gate),
        activation="swiglu",
        wanted=of_feed_forward,
    )
    y, _ = residual.forward(x, a)
    return y, Saved(norm_1, attended, norm_2, fed, wanted)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dx[*, s, h]`` and the parameters' gradients, in forward's order, from
    ``dy[*, s, h]``. The gradient of a parameter that was not given is None."""
    norm_1, attended, norm_2, fed, wanted = narrowed(saved, Saved, wanted)
    of_norm_1, of_attention, of_norm_2, of_feed_forward = _parts(wanted)

    # In the forward pass the stream was read by a block and then added to its output;
    # so now the gradient that comes back through the block is added to the stream's.
    da, dw_up, dw_down, _, _, dw_gate, _ = gradients_of(
        feed_forward, dy, fed, of_feed_forward
    )
    da, dnorm_2_w = gradients_of(rms_norm, da, norm_2, of_norm_2)
    dx = dy + da if "x" in of_norm_2 else None
    da, dw_q, dw_k, dw_v, dw_o, *optional = gradients_of(
        llama_attention, dx, attended, of_attention
    )
    da, dnorm_1_w = gradients_of(rms_norm, da, norm_1, of_norm_1)
    dx = dx + da if "x" in wanted else None
    of_attention_block = dnorm_1_w, dw_q, dw_k, dw_v, dw_o
    of_feed_forward_block = dnorm_2_w, turned(dw_gate), turned(dw_up), turned(dw_down)
    return dx, *of_attention_block, *of_feed_forward_block, *optional


def _parts(wanted: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the wanted gradients of the first norm, attention, the second norm, and
    the feed-forward block."""
    normed = "x norm_1_w"
    stream = " ".join((normed, *llama_attention.PARAMETERS))
    normed_2 = f"{stream} norm_2_w"
    attention = {name: name for name in llama_attention.PARAMETERS}
    fed = {name: name for name in ("w_gate", "w_up", "w_down")}
    return [
        part_of(wanted, x="x", w="norm_1_w"),
        part_of(wanted, x=normed, **attention),
        part_of(wanted, x=stream, w="norm_2_w"),
        part_of(wanted, x=normed_2, **fed),
    ]


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
    of_norm_1, of_attention, of_norm_2, of_fed = _parts(wanted)
    rows, attending = m * s, (m, s, h, k, q, p, *given.values(), flash, of_attention)
    return (
        call("first norm", rms_norm, of_norm_1, m=rows, n=h),
        *llama_attention.calls(*attending),
        *adding("first", rows * h, of_norm_1),
        call("second norm", rms_norm, of_norm_2, m=rows, n=h),
        feeding("swiglu", False, of_fed, m=rows, h=h, f=f),
        *adding("second", rows * h, of_norm_2),
    )


forward_flops, backward_flops = formulas(calls)
