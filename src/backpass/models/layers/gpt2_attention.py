"""GPT-2's block of attention: one projection to queries, keys, and values; causal
attention in each head; and a projection of the heads' outputs.

Each step is derived on the page of its operation: ``operations/linear``,
``attention/heads``, and ``attention/flash``. The weights are GPT-2's: ``[in, out]``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from backpass.contract.arrays import Array, Gradients, namespace
from backpass.contract.shapes import check_inputs
from backpass.contract.values import check_bool, check_natural, check_probability
from backpass.contract.wanted import Wanted, check_wanted, narrowed, part_of
from backpass.models.layers import (
    attending,
    attention_operation,
    check_widths,
    thirds,
    without_second_output,
)
from backpass.models.layers.calls import call, formulas, quotient
from backpass.models.layers.kernel import gradients_of
from backpass.ops import linear
from backpass.ops.multi_head_attention import merge_heads, split_heads

SHAPES = "x[*, s>0, h], w_qkv[h, p], b_qkv[p], w_o[q, h], b_o[h] -> y[*, s, h]"
PARAMETERS = ("w_qkv", "b_qkv", "w_o", "b_o")


class Saved(NamedTuple):
    """What each part saved."""

    qkv: linear.Saved  # x[*, s, h]
    attended: Any  # of attention or flash_attention, or of the kernel
    out: linear.Saved  # the heads' outputs [*, s, q]
    heads: int
    flash: bool
    wanted: tuple[str, ...]


def forward(
    x: Array,
    w_qkv: Array,
    b_qkv: Array,
    w_o: Array,
    b_o: Array,
    *,
    heads: int,
    flash: bool = True,
    dropout_p: float = 0.0,
    seed: int = 0,
    kernels: Any = None,
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return ``y[*, s, h]`` for the rows ``x[*, s, h]``. ``w_qkv[h, 3q]`` holds the
    columns of the queries, then those of the keys, then those of the values; each third
    is cut into ``heads``. In a GPT-2, q is h; with some of its heads it is less.
    ``flash`` chooses the operation that attends. ``dropout_p`` and ``seed`` drop
    weights of attention. ``kernels`` is ``backpass.kernels``, to run its kernel of
    flash attention, or None.

    Raises TypeError if an input is not a floating-point array or if its library,
    device, or dtype differs from that of ``x``, or if an option has the wrong type;
    ValueError if shapes do not fit, ``heads`` does not divide q, ``dropout_p`` is
    outside 0 to 1, or ``seed`` is below 0.
    """
    check_inputs(SHAPES, x=x, w_qkv=w_qkv, b_qkv=b_qkv, w_o=w_o, b_o=b_o)
    check_bool(flash=flash)
    check_probability(dropout_p=dropout_p)
    check_natural(seed=seed)
    check_widths("w_qkv[h, 3q]", w_qkv.shape[-1], w_o.shape[0], heads, w_qkv)
    wanted = check_wanted(SHAPES, wanted)
    of_qkv, of_heads, of_out = _parts(wanted)
    d = w_o.shape[0] // heads

    rows, qkv = linear.forward(x, w_qkv, b_qkv, wanted=of_qkv)  # [*, s, 3q]
    q, k, v = (split_heads(part, heads, d) for part in thirds(rows))
    attend = attention_operation(flash, kernels)
    options = {"causal": True, "dropout_p": dropout_p, "seed": seed}
    o, attended = attend.forward(q, k, v, **options, wanted=of_heads)
    y, out = linear.forward(merge_heads(o), w_o, b_o, wanted=of_out)
    attended = without_second_output(attended, out.x, d)
    return y, Saved(qkv, attended, out, heads, flash, wanted)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dx[*, s, h]`` and the gradients of weights and biases, in forward's
    order, from ``dy[*, s, h]``."""
    qkv, attended, out, heads, flash, wanted = narrowed(saved, Saved, wanted)
    of_qkv, of_heads, of_out = _parts(wanted)

    do, dw_o, db_o = linear.backward(dy, out, wanted=of_out)
    if not of_heads:
        return None, None, None, dw_o, db_o
    xp, d = namespace(dy), out.x.shape[-1] // heads
    attend = attention_operation(flash)
    do = split_heads(do, heads, d)
    dq, dk, dv, *_ = gradients_of(attend, do, attended, of_heads)
    drows = xp.concat([merge_heads(part) for part in (dq, dk, dv)], axis=-1)
    dx, dw_qkv, db_qkv = linear.backward(drows, qkv, wanted=of_qkv)
    if db_qkv is not None:
        # A bias on the keys adds the same number to all scores of a query, which does
        # not change softmax. The sum over dk would be rounding noise.
        db_q, db_k, db_v = thirds(db_qkv)
        db_qkv = xp.concat([db_q, xp.zeros_like(db_k), db_v])
    return dx, dw_qkv, db_qkv, dw_o, db_o


def _parts(wanted: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the wanted gradients of the first projection, attention, and the last
    projection."""
    before = "x w_qkv b_qkv"
    return [
        part_of(wanted, x="x", w="w_qkv", b="b_qkv"),
        part_of(wanted, q=before, k=before, v=before),
        part_of(wanted, x=before, w="w_o", b="b_o"),
    ]


def calls(m, s, h, q, heads, flash=True, dropout_p=0.0, wanted=None):
    """Return both projections, and attention in each head."""
    of_qkv, of_heads, of_out = _parts(check_wanted(SHAPES, wanted))
    lengths = {"m": m, "n_kv": heads, "s_q": s, "s_k": s, "d": quotient(q, heads)}
    return (
        call("query, key, value projection", linear, of_qkv, m=m * s, n=h, p=3 * q),
        attending(flash, True, of_heads, **lengths, dropout_p=dropout_p),
        call("output projection", linear, of_out, m=m * s, n=q, p=h),
    )


forward_flops, backward_flops = formulas(calls)
