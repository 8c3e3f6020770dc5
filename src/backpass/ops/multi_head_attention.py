r"""The attention block of a transformer: project every row to queries, keys and values, attend in every head, project back.

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
          \bar{S}_{ij} = A_{ij} \Big( \bar{A}_{ij} - \sum_k \bar{A}_{ik} A_{ik} \Big), \quad
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

Derived on the page ``attention/heads``. The formulas are those of one head; with several, each has its own columns of
Q, K, V and O. M is the memory; without one it is X, which then has both gradients. A weight ``[h, n, d]`` is the usual
matrix ``[h, n·d]``, viewed. A bias on the keys adds the same number to all scores of a row, which softmax cannot see:
its gradient is 0 for every input, and is returned as 0, where a sum over the keys' gradients would be rounding noise.
"""

from __future__ import annotations

from typing import NamedTuple

from backpass.arrays import Array, namespace
from backpass.ops import attention, linear
from backpass.shapes import check_inputs, check_saved

SHAPES = (
    "x[*, s>0, h], w_q[h, g*n_kv, d], w_k[h, n_kv>0, d], w_v[h, n_kv, d_v], w_o[g*n_kv, d_v, h], "
    "b_q[g*n_kv, d]?, b_k[n_kv, d]?, b_v[n_kv, d_v]?, b_o[h]?, memory[*, t>0, h]? -> y[*, s, h]"
)
PARAMETERS = ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o")
ZERO_GRADIENTS = ("b_k",)


class Saved(NamedTuple):
    """Each row that was projected once, what attention saved, and the heads' outputs; the weights as they were given."""

    x: Array  # [*, s, h]
    memory: Array | None  # [*, t, h]
    w_q: Array  # [h, n_h, d], a parameter, as are the next four
    w_k: Array  # [h, n_kv, d]
    w_v: Array  # [h, n_kv, d_v]
    w_o: Array  # [n_h, d_v, h]
    b_k: Array | None  # [n_kv, d]
    attended: (
        attention.Saved
    )  # q[*, n_h, s, d], k[*, n_kv, t, d], v[*, n_kv, t, d_v] and the weights
    o: Array  # [*, s, n_h·d_v], the heads' outputs side by side
    has_b_q: bool
    has_b_v: bool
    has_b_o: bool


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
) -> tuple[Array, Saved]:
    """``y[*, s, h]`` of the rows ``x[*, s, h]``, each of which attends to the rows of ``memory[*, t, h]``, or without
    one to those of ``x``. The options are those of ``attention``.

    Raises TypeError for what is no floating-point array or of another library, device or dtype than ``x``,
    ValueError for shapes that do not fit and for unknown words.
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
    )
    o = merge_heads(o)
    heads, d_v, h = w_o.shape
    y, _ = linear.forward(o, xp.reshape(w_o, (heads * d_v, h)), b_o)
    biases = b_q is not None, b_v is not None, b_o is not None
    return y, Saved(x, memory, w_q, w_k, w_v, w_o, b_k, attended, o, *biases)


def backward(dy: Array, saved: Saved) -> tuple[Array | None, ...]:
    """``dx[*, s, h]``, the gradients of weights and biases, and ``dmemory[*, t, h]``, in forward's order, None for
    what was not given; from ``dy[*, s, h]``."""
    saved = check_saved(saved, Saved)
    xp, (heads, d_v, h) = namespace(saved.w_o), saved.w_o.shape
    w_o = xp.reshape(saved.w_o, (heads * d_v, h))
    do, dw_o, db_o = linear.backward(dy, linear.Saved(saved.o, w_o, saved.has_b_o))
    dq, dk, dv, _ = attention.backward(split_heads(do, heads, d_v), saved.attended)

    rows = saved.x if saved.memory is None else saved.memory
    dx, dw_q, db_q = _project_backward(dq, saved.x, saved.w_q, saved.has_b_q)
    dx_k, dw_k, _ = _project_backward(dk, rows, saved.w_k)
    dx_v, dw_v, db_v = _project_backward(dv, rows, saved.w_v, saved.has_b_v)
    dw_o = xp.reshape(dw_o, (heads, d_v, h))
    db_k = None if saved.b_k is None else xp.zeros_like(saved.b_k)

    # In the forward pass the keys and the values were made from the same rows; so now their gradients are added.
    dmemory = dx_k + dx_v
    if saved.memory is None:
        dx, dmemory = dx + dmemory, None
    return dx, dw_q, dw_k, dw_v, dw_o, db_q, db_k, db_v, db_o, dmemory


def split_heads(x: Array, heads: int, d: int) -> Array:
    """``x[*, s, n·d]`` as ``[*, n, s, d]``: each row's columns cut into heads, then the heads before the rows."""
    xp = namespace(x)
    cut = xp.reshape(x, (*x.shape[:-1], heads, d))
    return xp.permute_dims(cut, _heads_and_rows_exchanged(len(cut.shape)))


def merge_heads(x: Array) -> Array:
    """``x[*, n, s, d]`` as ``[*, s, n·d]``: the heads back behind the rows, then each row's side by side."""
    xp = namespace(x)
    *leading, heads, s, d = x.shape
    return xp.reshape(
        xp.permute_dims(x, _heads_and_rows_exchanged(len(x.shape))),
        (*leading, s, heads * d),
    )


def _heads_and_rows_exchanged(rank: int) -> list[int]:
    """The order of axes in which the third and the second from the end change places."""
    axes = [*range(rank)]
    axes[-3], axes[-2] = axes[-2], axes[-3]
    return axes


def _project(x: Array, w: Array, b: Array | None) -> Array:
    """The rows ``x[*, s, h]`` times ``w[h, n, d]``, by heads: ``[*, n, s, d]``."""
    xp = namespace(x)
    h, heads, d = w.shape
    rows, _ = linear.forward(
        x,
        xp.reshape(w, (h, heads * d)),
        None if b is None else xp.reshape(b, (heads * d,)),
    )
    return split_heads(rows, heads, d)


def _project_backward(
    dy: Array, x: Array, w: Array, has_b: bool = False
) -> tuple[Array, Array, Array | None]:
    """``dx[*, s, h]``, ``dw[h, n, d]`` and, where asked for, ``db[n, d]`` from ``dy[*, n, s, d]``."""
    xp = namespace(x)
    h, heads, d = w.shape
    dx, dw, db = linear.backward(
        merge_heads(dy), linear.Saved(x, xp.reshape(w, (h, heads * d)), has_b)
    )
    return (
        dx,
        xp.reshape(dw, (h, heads, d)),
        None if db is None else xp.reshape(db, (heads, d)),
    )


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
    """The four projections, and attention between them."""
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
):
    """The same parts' backwards, that of the keys without a bias; and the sums where gradients of the same rows meet."""
    t = t if has_memory else s
    q = linear.backward_flops(m * s, h, g * n_kv * d, has_b_q)
    k = linear.backward_flops(m * t, h, n_kv * d, has_b=False)
    v = linear.backward_flops(m * t, h, n_kv * d_v, has_b_v)
    o = linear.backward_flops(m * s, g * n_kv * d_v, h, has_b_o)
    sums = m * t * h if has_memory else 2 * m * s * h
    return (
        q
        + k
        + v
        + attention.backward_flops(m, g, n_kv, s, t, d, d_v, has_bias=False)
        + o
        + sums
    )


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
