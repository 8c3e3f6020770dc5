r"""A transformer's attention block: project every row to queries, keys, and values,
attend in every head, and project back.

.. math:: Q = X W_{Q} + \mathbf{1}_s b_{Q}^\top, \quad
          K = M W_{K} + \mathbf{1}_t b_{K}^\top, \quad
          V = M W_{V} + \mathbf{1}_t b_{V}^\top, \quad
          S = \frac{1}{\sqrt{d}} Q K^\top, \quad
          A_{ij} = \frac{e^{S_{ij}}}{\sum_k e^{S_{ik}}}, \quad
          O = A V, \quad
          Y = O W_{O} + \mathbf{1}_s b_{O}^\top, \qquad
          \bar{O} = \bar{Y} W_{O}^\top, \quad
          \bar{V} = A^\top \bar{O}, \quad
          \bar{A} = \bar{O} V^\top, \quad
          \bar{S}_{ij} = A_{ij}
              \Big( \bar{A}_{ij} - \sum_k \bar{A}_{ik} A_{ik} \Big), \quad
          \bar{Q} = \frac{1}{\sqrt{d}} \bar{S} K, \quad
          \bar{K} = \frac{1}{\sqrt{d}} \bar{S}^\top Q, \quad
          \bar{X} = \bar{Q} W_{Q}^\top, \quad
          \bar{M} = \bar{K} W_{K}^\top + \bar{V} W_{V}^\top, \quad
          \bar{W}_{Q} = X^\top \bar{Q}, \quad
          \bar{W}_{K} = M^\top \bar{K}, \quad
          \bar{W}_{V} = M^\top \bar{V}, \quad
          \bar{W}_{O} = O^\top \bar{Y}, \quad
          \bar{b}_{Q} = \bar{Q}^\top \mathbf{1}_s, \quad
          \bar{b}_{K} = \bar{K}^\top \mathbf{1}_t, \quad
          \bar{b}_{V} = \bar{V}^\top \mathbf{1}_t, \quad
          \bar{b}_{O} = \bar{Y}^\top \mathbf{1}_s

Derived on the page ``attention/heads``. The formulas are those of one head; with
several, each head has its own columns of Q, K, V, and O. M is the memory. Without a
memory M is X, and X's gradient is the sum of both. A weight ``[h, n, d]`` is the usual
matrix ``[h, n·d]``, reshaped. A bias on the keys adds the same number to all scores of
a row, which does not change softmax. Its gradient is therefore 0 for all inputs and is
returned as exactly 0; a sum over the keys' gradients would give rounding noise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from backpass.contract.arrays import Array, Gradients, namespace, zeros
from backpass.contract.shapes import Outline, check_inputs
from backpass.contract.wanted import (
    Wanted,
    check_wanted,
    gradients_of,
    kept,
    narrowed,
    part_of,
)
from backpass.ops import attention, linear

SHAPES = (
    "x[*, s>0, h], w_q[h, g*n_kv, d], w_k[h, n_kv>0, d], w_v[h, n_kv, d_v], w_o[g*n_kv, d_v, h], "
    "b_q[g*n_kv, d]?, b_k[n_kv, d]?, b_v[n_kv, d_v]?, b_o[h]?, memory[*, t>0, h]? -> y[*, s, h]"
)
PARAMETERS = ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o")
ZERO_GRADIENTS = ("b_k",)


class Saved(NamedTuple):
    """The rows that were projected, once each; what attention saved; the heads'
    outputs; and the weights as they were given."""

    x: Array | Outline  # [*, s, h]
    memory: Array | Outline | None  # [*, t, h]
    w_q: Array | Outline  # [h, n_h, d], a parameter, as are the next three
    w_k: Array | Outline  # [h, n_kv, d]
    w_v: Array | Outline  # [h, n_kv, d_v]
    w_o: Array | Outline  # [n_h, d_v, h]
    # q[*, n_h, s, d], k[*, n_kv, t, d], v[*, n_kv, t, d_v], and the weights
    attended: attention.Saved
    o: Array | Outline  # [*, s, n_h·d_v], the heads' outputs side by side
    wanted: tuple[str, ...]


def forward(
    x: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    w_o: Array,
    b_q: Array | None = None,
    b_k: Array | None = None,
    b_v: Array | None = None,
    b_o: Array | None = None,
    memory: Array | None = None,
    *,
    causal: bool = False,
    causal_variant: str = "upper_left",
    scale: float | None = None,
    head_order: str = "consecutive",
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return ``y[*, s, h]`` for the rows ``x[*, s, h]``. Each row attends to the rows
    of ``memory[*, t, h]``, or to those of ``x`` if there is no memory. The options are
    those of ``attention``.

    Raises TypeError if an input is not a floating-point array or if its library,
    device, or dtype differs from that of ``x``, or if ``causal`` is not a bool or
    ``scale`` not a real number; ValueError if shapes do not fit, or for an unknown
    ``causal_variant`` or ``head_order``.
    """
    xp = check_inputs(
        SHAPES,
        x=x,
        w_q=w_q,
        w_k=w_k,
        w_v=w_v,
        w_o=w_o,
        b_q=b_q,
        b_k=b_k,
        b_v=b_v,
        b_o=b_o,
        memory=memory,
    )
    wanted = check_wanted(
        SHAPES, wanted, b_q=b_q, b_k=b_k, b_v=b_v, b_o=b_o, memory=memory
    )
    of_q, of_k, of_v, of_attention, of_o = _parts(wanted, memory is None)
    rows = x if memory is None else memory
    q, k, v = _project(x, w_q, b_q), _project(rows, w_k, b_k), _project(rows, w_v, b_v)
    o, attended = attention.forward(
        q,
        k,
        v,
        causal=causal,
        causal_variant=causal_variant,
        scale=scale,
        head_order=head_order,
        wanted=of_attention,
    )
    o = merge_heads(o)
    heads, d_v, h = w_o.shape
    y, _ = linear.forward(o, xp.reshape(w_o, (heads * d_v, h)), b_o)
    of_rows = "w_k" in wanted or "w_v" in wanted
    return y, Saved(
        kept(x, "w_q" in wanted or (memory is None and of_rows)),
        kept(memory, of_rows),
        kept(w_q, "x" in of_q),
        kept(w_k, "x" in of_k),
        kept(w_v, "x" in of_v),
        kept(w_o, "x" in of_o),
        attended,
        kept(o, "w" in of_o),
        wanted,
    )


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dx[*, s, h]``, the gradients of weights and biases, and
    ``dmemory[*, t, h]``, in forward's order, from ``dy[*, s, h]``. The gradient of an
    input that was not given is None."""
    x, memory, w_q, w_k, w_v, w_o, attended, o, wanted = narrowed(saved, Saved, wanted)
    of_q, of_k, of_v, of_attention, of_o = _parts(wanted, memory is None)
    heads, d_v, h = w_o.shape
    to_y = linear.Saved(o, _reshaped(w_o, (heads * d_v, h)), of_o)
    do, dw_o, db_o = linear.backward(dy, to_y)
    dw_o = _reshaped(dw_o, w_o.shape)
    do = None if do is None else split_heads(do, heads, d_v)
    dq, dk, dv, *_ = gradients_of(attention, do, attended, of_attention)

    rows = x if memory is None else memory
    dx, dw_q, db_q = _project_backward(dq, x, w_q, of_q)
    dx_k, dw_k, _ = _project_backward(dk, rows, w_k, of_k)
    dx_v, dw_v, db_v = _project_backward(dv, rows, w_v, of_v)
    db_k = zeros(w_k.shape[1:], like=dy) if "b_k" in wanted else None

    # In the forward pass keys and values were computed from the same rows; so now their
    # gradients are added.
    drows = dx_k + dx_v if "x" in of_k else None
    if memory is not None:
        return dx, dw_q, dw_k, dw_v, dw_o, db_q, db_k, db_v, db_o, drows
    dx = dx + drows if "x" in wanted else None
    return dx, dw_q, dw_k, dw_v, dw_o, db_q, db_k, db_v, db_o, None


def _parts(wanted: tuple[str, ...], alone: bool) -> list[tuple[str, ...]]:
    """Return the wanted gradients of the projections to q, k, and v, of attention, and
    of the last projection. Keys and values are computed from ``x`` if it is ``alone``,
    otherwise from the memory."""
    rows = "x" if alone else "memory"
    return [
        part_of(wanted, x="x", w="w_q", b="b_q"),
        part_of(wanted, x=rows, w="w_k"),  # b_k's gradient is 0
        part_of(wanted, x=rows, w="w_v", b="b_v"),
        part_of(wanted, q="x w_q b_q", k=f"{rows} w_k", v=f"{rows} w_v b_v"),
        part_of(wanted, x="x w_q b_q memory w_k w_v b_v", w="w_o", b="b_o"),
    ]


def split_heads(x: Array, heads: int, d: int) -> Array:
    """Return ``x[*, s, n·d]`` as ``[*, n, s, d]``: each row's columns are cut into
    heads, and the axis of heads is moved before that of rows."""
    xp = namespace(x)
    cut = xp.reshape(x, (*x.shape[:-1], heads, d))
    return xp.permute_dims(cut, _heads_and_rows_exchanged(len(cut.shape)))


def merge_heads(x: Array) -> Array:
    """Return ``x[*, n, s, d]`` as ``[*, s, n·d]``: the axis of heads is moved behind
    that of rows, and each row's heads are joined."""
    xp = namespace(x)
    *leading, heads, s, d = x.shape
    return xp.reshape(
        xp.permute_dims(x, _heads_and_rows_exchanged(len(x.shape))),
        (*leading, s, heads * d),
    )


def _heads_and_rows_exchanged(rank: int) -> list[int]:
    """Return the order of axes that exchanges the third from the end and the second
    from the end."""
    axes = [*range(rank)]
    axes[-3], axes[-2] = axes[-2], axes[-3]
    return axes


def _project(x: Array, w: Array, b: Array | None) -> Array:
    """Return the rows ``x[*, s, h]`` times ``w[h, n, d]``, by heads:
    ``[*, n, s, d]``."""
    xp = namespace(x)
    h, heads, d = w.shape
    rows, _ = linear.forward(
        x,
        xp.reshape(w, (h, heads * d)),
        None if b is None else xp.reshape(b, (heads * d,)),
    )
    return split_heads(rows, heads, d)


def _project_backward(
    dy: Array | None, x: Array, w: Array, wanted: tuple[str, ...]
) -> tuple[Any, ...]:
    """Return ``dx[*, s, h]``, ``dw[h, n, d]``, and ``db[n, d]``, if they are wanted,
    from ``dy[*, n, s, d]``."""
    h, heads, d = w.shape
    dy = None if dy is None else merge_heads(dy)
    saved = linear.Saved(x, _reshaped(w, (h, heads * d)), wanted)
    dx, dw, db = gradients_of(linear, dy, saved, wanted)
    return dx, _reshaped(dw, w.shape), _reshaped(db, (heads, d))


def _reshaped(x: Array | Outline | None, shape: tuple[int, ...]) -> Any:
    """Return the array in another shape, or its outline if it was not saved; None for
    None."""
    if x is None or isinstance(x, Outline):
        return x and x._replace(shape=shape)
    return namespace(x).reshape(x, shape)


def forward_flops(
    m,
    s,
    h,
    g,
    n_kv,
    d,
    d_v,
    t=None,
    has_b_q=True,
    has_b_k=True,
    has_b_v=True,
    has_b_o=True,
    has_memory=True,
):
    """Return the FLOPs of the four projections and of attention between them."""
    t = t if has_memory else s
    q = linear.forward_flops(m * s, h, g * n_kv * d, has_b_q)
    k = linear.forward_flops(m * t, h, n_kv * d, has_b_k)
    v = linear.forward_flops(m * t, h, n_kv * d_v, has_b_v)
    o = linear.forward_flops(m * s, g * n_kv * d_v, h, has_b_o)
    return (
        q
        + k
        + v
        + attention.forward_flops(m, g, n_kv, s, t, d, d_v, has_bias=False)
        + o
    )


def backward_flops(
    m,
    s,
    h,
    g,
    n_kv,
    d,
    d_v,
    t=None,
    has_b_q=True,
    has_b_v=True,
    has_b_o=True,
    has_memory=True,
    wanted=None,
):
    """Return the FLOPs of the same parts' backwards, that of the keys without a bias,
    and of the sums where gradients of the same rows meet."""
    t = t if has_memory else s
    given = {"b_q": has_b_q, "b_v": has_b_v, "b_o": has_b_o, "memory": has_memory}
    wanted = check_wanted(SHAPES, wanted, **given)
    of_q, of_k, of_v, of_attention, of_o = _parts(wanted, not has_memory)
    q = linear.backward_flops(m * s, h, g * n_kv * d, has_b_q, of_q)
    k = linear.backward_flops(m * t, h, n_kv * d, has_b=False, wanted=of_k)
    v = linear.backward_flops(m * t, h, n_kv * d_v, has_b_v, of_v)
    o = linear.backward_flops(m * s, g * n_kv * d_v, h, has_b_o, of_o)
    attended = attention.backward_flops(
        m, g, n_kv, s, t, d, d_v, has_bias=False, wanted=of_attention
    )
    sums = 0
    if ("memory" if has_memory else "x") in wanted:
        sums = m * t * h if has_memory else 2 * m * s * h
    return q + k + v + attended + o + sums


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = (
    {},
    {
        "causal": True,
        "causal_variant": "lower_right",
        "head_order": "interleaved",
        "scale": 0.75,
    },
    {"causal": True, "g": 1},
    {"n_kv": 1},
)
FAN_IN = ("w_q", "w_k")
LETTERS = {"memory": "M"}
FORMULA_SIZES = [
    {"s": 2, "h": 3, "d": 2, "d_{v}": 2, "t": 3},
    {"s": 2, "h": 2, "d": 2, "d_{v}": 3, "t": 2},
]
PLACES = ("project to q, k, v", "output projection")
AUTOCAST = "matmul"
