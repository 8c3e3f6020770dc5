"""The block of attention of Llama, Qwen2, and Qwen3: projections to queries, keys, and
values; rotary positions; causal attention in which several query heads may share a key
head; and a projection of the heads' outputs.

Qwen2 adds biases to the first three projections. Qwen3 normalises each query and each
key, head by head, before the rotation. Each step is derived on the page of its
operation: ``operations/linear``, ``operations/rms_norm``, ``operations/rope``,
``attention/grouped_query``, and ``attention/flash``. The weights are those of
``torch.nn.Linear``: ``[out, in]``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from backpass.contract.arrays import Array, Gradients
from backpass.contract.shapes import check_inputs
from backpass.contract.values import check_bool
from backpass.contract.wanted import Wanted, check_wanted, narrowed, part_of
from backpass.models.layers import (
    attending,
    attention_operation,
    turned,
    without_second_output,
)
from backpass.models.layers.calls import call, formulas, quotient
from backpass.models.layers.kernel import (
    forward_rotated,
    gradient_of,
    gradients_of,
    implementation,
)
from backpass.ops import fork, linear, rms_norm, rope
from backpass.ops.multi_head_attention import merge_heads, split_heads

SHAPES = (
    "x[*, s>0, h], cos[s, k>0], sin[s, k], w_q[q, h], w_k[p>0, h], w_v[p, h], "
    "w_o[h, q], b_q[q]?, b_k[p]?, b_v[p]?, norm_q_w[2k]?, norm_k_w[2k]? -> y[*, s, h]"
)
CONSTANTS = ("cos", "sin")
_OPTIONAL = ("b_q", "b_k", "b_v", "norm_q_w", "norm_k_w")
PARAMETERS = ("w_q", "w_k", "w_v", "w_o", *_OPTIONAL)


class Heads(NamedTuple):
    """What the projection, the norm, and the rotation of the queries, the keys, or the
    values saved."""

    projected: linear.Saved  # x[*, s, h], which all three share
    normed: Any  # of rms_norm, or of its kernel; None without QK-norm
    # Of rope, or of its kernel: the tables. None if the norm's kernel rotates, and for
    # the values.
    rotated: Any
    wanted: tuple[str, ...]


class Saved(NamedTuple):
    """What each part saved."""

    q: Heads
    k: Heads
    v: Heads
    attended: Any  # of attention or flash_attention, or of the kernel
    out: linear.Saved  # the heads' outputs [*, s, q]
    d: int
    flash: bool
    wanted: tuple[str, ...]


def forward(
    x: Array,
    cos: Array,
    sin: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    w_o: Array,
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
    """Return ``y[*, s, h]`` for the rows ``x[*, s, h]``.

    The width d = 2k of a head is that of the tables ``cos[s, k]`` and ``sin[s, k]``,
    which ``rope.tables`` computes. ``w_q[q, h]`` has q/d query heads; ``w_k[p, h]`` and
    ``w_v[p, h]`` have p/d key heads. ``norm_q_w[d]`` and ``norm_k_w[d]`` normalise
    queries and keys, with ``eps``. ``flash`` chooses the operation that attends.
    ``kernels`` is ``backpass.kernels``, to run its kernels, or None.

    Raises TypeError if an input is not a floating-point array or if its library,
    device, or dtype differs from that of ``x``, or if an option has the wrong type;
    ValueError if shapes do not fit, q or p is not a multiple of d, the number of query
    heads is not a multiple of the number of key heads, or ``eps`` is below 0.
    """
    optional = dict(zip(_OPTIONAL, (b_q, b_k, b_v, norm_q_w, norm_k_w), strict=True))
    weights = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o, **optional}
    check_inputs(SHAPES, x=x, cos=cos, sin=sin, **weights)
    check_bool(flash=flash)
    d = 2 * cos.shape[-1]
    _check_heads(w_q.shape[0], w_k.shape[0], d)
    wanted = check_wanted(SHAPES, wanted, cos=None, sin=None, **optional)
    of_q, of_k, of_v, of_heads, of_out = _parts(wanted)

    angles, options = (cos, sin), {"d": d, "eps": eps, "kernels": kernels}
    q, saved_q = _heads(x, w_q, b_q, norm_q_w, angles, **options, wanted=of_q)
    k, saved_k = _heads(x, w_k, b_k, norm_k_w, angles, **options, wanted=of_k)
    v, saved_v = _heads(x, w_v, b_v, None, None, **options, wanted=of_v)
    attend = attention_operation(flash, kernels)
    o, attended = attend.forward(q, k, v, causal=True, wanted=of_heads)
    y, out = linear.forward(merge_heads(o), turned(w_o), wanted=of_out)
    attended = without_second_output(attended, out.x, d)
    return y, Saved(saved_q, saved_k, saved_v, attended, out, d, flash, wanted)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dx[*, s, h]`` and the gradients of weights and biases, in forward's
    order, from ``dy[*, s, h]``. The gradient of an input that was not given is None."""
    saved = narrowed(saved, Saved, wanted)
    saved_q, saved_k, saved_v, attended, out, d, flash, wanted = saved
    of_q, of_k, of_v, of_heads, of_out = _parts(wanted)

    do, dw_o, _ = linear.backward(dy, out, wanted=of_out)
    do = None if do is None else split_heads(do, do.shape[-1] // d, d)
    attend = attention_operation(flash)
    dq, dk, dv, *_ = gradients_of(attend, do, attended, of_heads)
    dx_v, dw_v, db_v, _ = _heads_backward(dv, saved_v, of_v)
    dx_k, dw_k, db_k, dnorm_k_w = _heads_backward(dk, saved_k, of_k)
    dx_q, dw_q, db_q, dnorm_q_w = _heads_backward(dq, saved_q, of_q)

    # In the forward pass x was projected three times; so now three gradients are added.
    dx = dx_q + dx_k + dx_v if "x" in wanted else None
    dw_o = turned(dw_o)
    return dx, dw_q, dw_k, dw_v, dw_o, db_q, db_k, db_v, dnorm_q_w, dnorm_k_w


def _heads(
    x: Array,
    w: Array,
    b: Array | None,
    norm_w: Array | None,
    angles: tuple[Array, Array] | None,
    *,
    d: int,
    eps: float,
    kernels: Any,
    wanted: tuple[str, ...],
) -> tuple[Array, Heads]:
    """Return the heads ``[*, n, s, d]`` of the rows ``x[*, s, h]``: projected by
    ``w[n·d, h]``, normalised if there is ``norm_w[d]``, and rotated if there are
    ``angles``. Only rotated heads are normalised."""
    of_rows, of_norm = _parts_of_heads(wanted)
    rows, projected = linear.forward(x, turned(w), b, wanted=of_rows)
    y, normed, rotated = split_heads(rows, w.shape[0] // d, d), None, None
    norm, turn = (implementation(each, kernels) for each in (rms_norm, rope))
    if angles is not None and norm_w is not None:
        options = {"eps": eps, "wanted": of_norm}
        y, normed, rotated = forward_rotated(norm, turn, y, norm_w, *angles, **options)
    elif angles is not None:
        y, rotated = turn.forward(y, *angles)
    return y, Heads(projected, normed, rotated, wanted)


def _heads_backward(
    dy: Array | None, saved: Heads, wanted: tuple[str, ...]
) -> tuple[Any, ...]:
    """Return ``dx[*, s, h]``, ``dw[n·d, h]``, ``db[n·d]``, and ``dnorm_w[d]``, if they
    are wanted, from ``dy[*, n, s, d]``."""
    if not wanted:
        return None, None, None, None
    of_rows, of_norm = _parts_of_heads(wanted)
    dnorm_w = None
    if saved.rotated is not None:
        dy = gradient_of(rope, dy, saved.rotated)
    if saved.normed is not None:
        dy, dnorm_w = gradients_of(rms_norm, dy, saved.normed, of_norm)
    drows = None if dy is None else merge_heads(dy)
    dx, dw, db = gradients_of(linear, drows, saved.projected, of_rows)
    return dx, turned(dw), db, dnorm_w


def _parts(wanted: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the wanted gradients of the queries, the keys, the values, attention, and
    the last projection."""
    q, k, v = "x w_q b_q norm_q_w", "x w_k b_k norm_k_w", "x w_v b_v"
    return [
        part_of(wanted, x="x", w="w_q", b="b_q", norm_w="norm_q_w"),
        part_of(wanted, x="x", w="w_k", b="b_k", norm_w="norm_k_w"),
        part_of(wanted, x="x", w="w_v", b="b_v"),
        part_of(wanted, q=q, k=k, v=v),
        part_of(wanted, x=f"{q} {k} {v}", w="w_o"),
    ]


def _parts_of_heads(wanted: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the wanted gradients of the projection and of the norm."""
    return [
        part_of(wanted, x="x", w="w", b="b"),
        part_of(wanted, x="x w b", w="norm_w"),
    ]


def _check_heads(q: int, p: int, d: int) -> None:
    for name, width in (("w_q", q), ("w_k", p)):
        if width % d:
            raise ValueError(
                f"{name}: expected a number of rows that is a multiple of the heads' "
                f"width {d}, twice the width of cos; got {width}"
            )
    if q % p:
        raise ValueError(
            f"w_q: expected a number of heads that is a multiple of the {p // d} of "
            f"w_k; got {q // d}"
        )


def calls(
    m,
    s,
    h,
    k,
    q,
    p,
    has_b_q=True,
    has_b_k=True,
    has_b_v=True,
    has_norm_q_w=True,
    has_norm_k_w=True,
    flash=True,
    wanted=None,
):
    """Return four projections, the norms and the rotations of queries and keys,
    attention in each head, and the sums of x's three gradients."""
    given = {"b_q": has_b_q, "b_k": has_b_k, "b_v": has_b_v}
    given |= {"norm_q_w": has_norm_q_w, "norm_k_w": has_norm_k_w}
    wanted = check_wanted(SHAPES, wanted, cos=None, sin=None, **given)
    of_q, of_k, of_v, of_heads, of_out = _parts(wanted)
    of_x, rows = (("x",) if "x" in wanted else ()), m * s
    lengths = {"m": m, "g": quotient(q, p), "n_kv": quotient(p, 2 * k)}
    lengths |= {"s_q": s, "s_k": s, "d": 2 * k}
    return (
        *_calls_of_heads("query", m, s, h, k, q, has_b_q, has_norm_q_w, of_q),
        *_calls_of_heads("key", m, s, h, k, p, has_b_k, has_norm_k_w, of_k),
        call("value projection", linear, of_v, m=rows, n=h, p=p, has_b=has_b_v),
        attending(flash, True, of_heads, **lengths),
        call("output projection", linear, of_out, m=rows, n=q, p=h, has_b=False),
        call("projections: three gradients", fork, of_x, m=rows * h, k=3),
    )


def _calls_of_heads(name, m, s, h, k, width, has_b, has_norm, wanted):
    of_rows, of_norm = _parts_of_heads(wanted)
    heads, d = m * quotient(width, 2 * k), 2 * k
    rows = {"m": m * s, "n": h, "p": width, "has_b": has_b}
    normed = call(f"{name} norm", rms_norm, of_norm, m=heads * s, n=d)
    return (
        call(f"{name} projection", linear, of_rows, **rows),
        *((normed,) if has_norm else ()),
        call(f"{name} rotation", rope, wanted, m=heads, s=s, k=k),
    )


forward_flops, backward_flops = formulas(calls)
