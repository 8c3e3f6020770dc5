"""The block of attention of the original transformer: projections to queries, keys, and
values; attention in each head; and a projection of the heads' outputs. Keys and values
are computed from the same rows as the queries, or from a memory.

Each step is derived on the page of its operation: ``operations/linear``,
``attention/heads``, and ``attention/flash``. The weights are those of
``torch.nn.MultiheadAttention``: ``[out, in]``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from backpass.contract.arrays import Array, Gradients, namespace
from backpass.contract.shapes import check_inputs
from backpass.contract.values import check_bool
from backpass.contract.wanted import Wanted, check_wanted, narrowed, part_of
from backpass.models.layers import (
    attending,
    attention_operation,
    check_widths,
    thirds,
    turned,
    without_second_output,
)
from backpass.models.layers.calls import call, formulas, quotient
from backpass.models.layers.kernel import gradients_of
from backpass.ops import attention, flash_attention, fork, linear
from backpass.ops.multi_head_attention import merge_heads, split_heads

SHAPES = (
    "x[*, s>0, h], w_qkv[p, h], b_qkv[p], w_o[h, h], b_o[h], memory[*, t>0, h]? "
    "-> y[*, s, h]"
)
PARAMETERS = ("w_qkv", "b_qkv", "w_o", "b_o")


class Saved(NamedTuple):
    """What each part saved. Projections of the same rows share them."""

    q: linear.Saved  # x[*, s, h]
    k: linear.Saved  # the memory's rows [*, t, h], or x
    v: linear.Saved  # the same
    attended: attention.Saved | flash_attention.Saved
    out: linear.Saved  # the heads' outputs [*, s, h]
    heads: int
    alone: bool  # whether there is no memory
    flash: bool
    wanted: tuple[str, ...]


def forward(
    x: Array,
    w_qkv: Array,
    b_qkv: Array,
    w_o: Array,
    b_o: Array,
    memory: Array | None = None,
    *,
    heads: int,
    causal: bool = False,
    flash: bool = True,
    kernels: Any = None,
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return ``y[*, s, h]`` for the rows ``x[*, s, h]``, which attend to the rows of
    ``memory[*, t, h]``, or to those of ``x`` if there is no memory.

    ``w_qkv[3h, h]`` holds the rows of the queries' weight, then the keys', then the
    values'. Each projection is cut into ``heads``. With ``causal``, row i attends to
    the rows up to i. ``flash`` chooses the operation that attends. ``kernels`` is
    ``backpass.kernels``, to run its kernel of flash attention, or None.

    Raises TypeError if an input is not a floating-point array or if its library,
    device, or dtype differs from that of ``x``, or if an option has the wrong type;
    ValueError if shapes do not fit or ``heads`` does not divide h.
    """
    check_inputs(SHAPES, x=x, w_qkv=w_qkv, b_qkv=b_qkv, w_o=w_o, b_o=b_o, memory=memory)
    check_bool(causal=causal, flash=flash)
    check_widths("w_qkv[3h, h]", w_qkv.shape[0], x.shape[-1], heads, w_qkv)
    wanted = check_wanted(SHAPES, wanted, memory=memory)
    alone = memory is None
    of_q, of_k, of_v, of_heads, of_out = _parts(wanted, alone)
    d = x.shape[-1] // heads

    rows = x if memory is None else memory
    w_q, w_k, w_v = thirds(turned(w_qkv))
    b_q, b_k, b_v = thirds(b_qkv)
    q, of_x = linear.forward(x, w_q, b_q, wanted=of_q)
    k, keys = linear.forward(rows, w_k, b_k, wanted=of_k)
    v, values = linear.forward(rows, w_v, b_v, wanted=of_v)
    q, k, v = (split_heads(part, heads, d) for part in (q, k, v))
    attend = attention_operation(flash, kernels)
    o, attended = attend.forward(q, k, v, causal=causal, wanted=of_heads)
    y, out = linear.forward(merge_heads(o), turned(w_o), b_o, wanted=of_out)
    attended = without_second_output(attended, out.x, d)
    return y, Saved(of_x, keys, values, attended, out, heads, alone, flash, wanted)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dx[*, s, h]``, the gradients of weights and biases, and
    ``dmemory[*, t, h]``, in forward's order, from ``dy[*, s, h]``. Without a memory its
    gradient is None."""
    saved = narrowed(saved, Saved, wanted)
    of_x, keys, values, attended, out, heads, alone, flash, wanted = saved
    of_q, of_k, of_v, of_heads, of_out = _parts(wanted, alone)
    xp, d = namespace(dy), dy.shape[-1] // heads

    do, dw_o, db_o = linear.backward(dy, out, wanted=of_out)
    do = None if do is None else split_heads(do, heads, d)
    attend = attention_operation(flash)
    dq, dk, dv, *_ = gradients_of(attend, do, attended, of_heads)
    dq, dk, dv = (None if part is None else merge_heads(part) for part in (dq, dk, dv))
    dx, dw_q, db_q = gradients_of(linear, dq, of_x, of_q)
    drows_k, dw_k, _ = gradients_of(linear, dk, keys, of_k)
    drows_v, dw_v, db_v = gradients_of(linear, dv, values, of_v)

    # In the forward pass keys and values were computed from the same rows; so now their
    # gradients are added.
    dmemory = drows_k + drows_v if "x" in of_k else None
    if alone:
        dx = dx + dmemory if "x" in wanted else None
        dmemory = None
    dw_qkv = db_qkv = None
    if "w_qkv" in wanted:
        dw_qkv = turned(xp.concat([dw_q, dw_k, dw_v], axis=-1))
    if "b_qkv" in wanted:
        # A bias on the keys adds the same number to all scores of a query, which does
        # not change softmax. The sum over dk would be rounding noise.
        db_qkv = xp.concat([db_q, xp.zeros_like(db_q), db_v])
    return dx, dw_qkv, db_qkv, turned(dw_o), db_o, dmemory


def _parts(wanted: tuple[str, ...], alone: bool) -> list[tuple[str, ...]]:
    """Return the wanted gradients of the projections to q, k, and v, of attention, and
    of the last projection. Keys and values are computed from ``x`` if it is ``alone``,
    otherwise from the memory."""
    rows = "x" if alone else "memory"
    return [
        part_of(wanted, x="x", w="w_qkv", b="b_qkv"),
        part_of(wanted, x=rows, w="w_qkv"),  # the keys' bias has gradient 0
        part_of(wanted, x=rows, w="w_qkv", b="b_qkv"),
        part_of(wanted, q="x w_qkv b_qkv", k=f"{rows} w_qkv", v=f"{rows} w_qkv b_qkv"),
        part_of(wanted, x="x w_qkv b_qkv memory", w="w_o", b="b_o"),
    ]


def calls(
    m, s, h, heads, t=None, has_memory=True, causal=False, flash=True, wanted=None
):
    """Return four projections, attention in each head, and the sums of the gradients of
    rows that were projected more than once. Keys and values are computed from ``t``
    rows of the memory, or from the ``s`` rows of x."""
    t = t if has_memory else s
    wanted = check_wanted(SHAPES, wanted, memory=has_memory)
    of_q, of_k, of_v, of_heads, of_out = _parts(wanted, not has_memory)
    lengths = {"m": m, "n_kv": heads, "s_q": s, "s_k": t, "d": quotient(h, heads)}
    of_rows = ("x",) if "x" in of_k else ()
    of_x = ("x",) if not has_memory and "x" in wanted else ()
    return (
        call("query projection", linear, of_q, m=m * s, n=h, p=h),
        call("key projection", linear, of_k, m=m * t, n=h, p=h),
        call("value projection", linear, of_v, m=m * t, n=h, p=h),
        attending(flash, causal, of_heads, **lengths),
        call("output projection", linear, of_out, m=m * s, n=h, p=h),
        call("keys and values: both gradients", fork, of_rows, m=m * t * h, k=2),
        call("queries and keys: both gradients", fork, of_x, m=m * s * h, k=2),
    )


forward_flops, backward_flops = formulas(calls)
