r"""Linear attention: weights proportional to the products of query and keys, in time
and memory linear in the length.

.. math:: P = Q K^\top, \quad
          \sigma_i = \sum_k P_{ik}, \quad
          Y_{ij} = \frac{1}{\sigma_i} \sum_k P_{ik} V_{kj}, \qquad
          U_{ij} = \frac{\bar{Y}_{ij}}{\sigma_i}, \quad
          c_i = -\frac{1}{\sigma_i} \sum_k \bar{Y}_{ik} Y_{ik}, \quad
          \bar{Q} = U V^\top K + c \mathbf{1}_s^\top K, \quad
          \bar{K} = V U^\top Q + \mathbf{1}_s c^\top Q, \quad
          \bar{V} = K Q^\top U

Derived on the page ``attention/linear_time``, where U is N's gradient and c is σ's.
There is one sequence, so as many queries as keys and as many heads of each, and a
causal mask has no ``lower_right``.

The formulas are those without ``causal``, read from the right: K⊤V is [d, d_v], however
long the sequence. Values and gradients are those of ``multilinear_attention`` with one
factor and ``normalization="simplex"``, which holds the [s, s] scores that are never
seen here. So a sum of scores that is exactly 0 counts as nothing to attend to, output
and gradient 0, also where scores that are not 0 cancel; a negative one is refused.
Numbers of 16 bits are computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from numbers import Integral
from typing import NamedTuple

from backpass.arrays import Array, as_type_of, namespace, transpose, widened
from backpass.ops._heads import causal_mask
from backpass.shapes import Outline, check_cotangent, check_inputs, check_saved
from backpass.values import check_sums
from backpass.wanted import Wanted, check_narrowed, check_wanted, kept, sum_wanted

SHAPES = "q[*, s>0, d>0], k[*, s, d], v[*, s, d_v] -> y[*, s, d_v]"
POSITIVE = ("q", "k")


class Saved(NamedTuple):
    """The inputs, the output, and a number a query. States are computed anew: for every
    chunk one would have to be kept."""

    q: Array | Outline  # [*, s, d]
    k: Array | Outline  # [*, s, d]
    v: Array | Outline  # [*, s, d_v]
    y: Array | Outline  # [*, s, d_v]
    divisor: (
        Array | Outline
    )  # [*, s, 1], a query's sum of scores, ∞ where it is 0; float32 for 16 bits
    chunk: int | None  # None where every query sees every key
    wanted: tuple[str, ...]


def forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    chunk: int = 64,
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """``y[*, s, d_v]`` of queries ``q[*, s, d]``, keys ``k[*, s, d]`` and values ``v[*,
    s, d_v]``.

    With ``causal``, query i sees the keys up to i; scores exist for ``chunk`` queries
    and as many keys at a time. Raises TypeError for what is no floating-point array or
    of differing library, device or dtype, and for a ``chunk`` that is no integer;
    ValueError for shapes that do not fit, a ``chunk`` below 1, and for a query whose
    scores have a negative sum.
    """
    xp = check_inputs(SHAPES, q=q, k=k, v=v)
    _check_chunk(chunk)
    wanted = check_wanted(SHAPES, wanted)
    tokens = chunk if causal else None

    sums = _sums(widened(q), widened(k), _with_ones(widened(v)), tokens)
    weighted, total = sums[..., :-1], sums[..., -1:]
    check_sums("q · k", total, total == 0)

    # Whatever is divided by ∞ is 0, and so is its gradient.
    divisor = xp.where(total == 0, math.inf, total)  # [*, s, 1]
    y = as_type_of(weighted / divisor, v)
    scores = "q" in wanted or "k" in wanted
    return y, Saved(
        kept(q, "k" in wanted or "v" in wanted),
        kept(k, "q" in wanted or "v" in wanted),
        kept(v, scores),
        kept(y, scores),
        kept(divisor, wanted),
        tokens,
        wanted,
    )


def backward(
    dy: Array, saved: Saved, *, wanted: Wanted = None
) -> tuple[Array | None, ...]:
    """``dq[*, s, d]``, ``dk[*, s, d]`` and ``dv[*, s, d_v]`` from ``dy[*, s, d_v]``."""
    q, k, v, y, divisor, chunk, _ = check_saved(saved, Saved)
    xp = check_cotangent(dy, y.shape, like=y)
    wanted = check_narrowed(wanted, saved)
    if not wanted:
        return None, None, None
    dy = widened(dy)
    u = dy / divisor  # [*, s, d_v]
    if "q" in wanted or "k" in wanted:
        c = -xp.sum(dy * y, axis=-1, keepdims=True) / divisor  # [*, s, 1]
        u_and_c = xp.concat([u, c], axis=-1)  # [*, s, d_v + 1]
        v = _with_ones(widened(v))

    # In the forward pass a query gathered from the keys up to its own; so now it
    # gathers its gradient from them, and a key from the queries that come after it: the
    # same sums, of other arrays and for keys in reverse.
    dq = dk = dv = None
    if "q" in wanted:
        dq = as_type_of(_sums(u_and_c, v, widened(k), chunk), saved.q)
    if "k" in wanted:
        dk = _sums(v, u_and_c, widened(q), chunk, reverse=True)
        dk = as_type_of(dk, saved.k)
    if "v" in wanted:
        dv = _sums(widened(k), widened(q), u, chunk, reverse=True)
        dv = as_type_of(dv, saved.v)
    return dq, dk, dv


def _sums(
    a: Array, b: Array, c: Array, chunk: int | None, *, reverse: bool = False
) -> Array:
    """``[*, s, n]`` of ``a[*, s, r]``, ``b[*, s, r]`` and ``c[*, s, n]``: Σ_j (a_i ·
    b_j) c_j in row i, over all j; with a chunk over j ≤ i, in ``reverse`` over j ≥
    i."""
    if chunk is None:
        return a @ (transpose(b) @ c)
    chunks = _chunks(a, chunk)
    parts, state = (
        [],
        transpose(b[..., :0, :]) @ c[..., :0, :],
    )  # the state of no rows: zeros
    for rows in reversed(chunks) if reverse else chunks:
        a_part, b_part, c_part = a[..., rows, :], b[..., rows, :], c[..., rows, :]
        scores = _of_one_side(a_part @ transpose(b_part), reverse)  # [*, chunk, chunk]
        parts.append(scores @ c_part + a_part @ state)
        state = state + transpose(b_part) @ c_part  # [*, r, n], of all chunks so far
    return namespace(a).concat(parts[::-1] if reverse else parts, axis=-2)


def _chunks(a: Array, chunk: int) -> list[slice]:
    """The rows of ``a[*, s, r]``, ``chunk`` at a time."""
    return [
        slice(start, min(start + chunk, a.shape[-2]))
        for start in range(0, a.shape[-2], chunk)
    ]


def _of_one_side(scores: Array, reverse: bool) -> Array:
    """``scores[*, c, c]`` with 0 for the keys that come later; in ``reverse``,
    earlier."""
    *_, length = scores.shape
    seen = causal_mask(length, length, "upper_left", like=scores)
    return namespace(scores).where(transpose(seen) if reverse else seen, scores, 0)


def _with_ones(v: Array) -> Array:
    """``v[*, s, d_v]`` and a column of ones, whose weighted sum is the sum of the
    weights."""
    xp = namespace(v)
    return xp.concat([v, xp.ones_like(v[..., :1])], axis=-1)


def _check_chunk(chunk: object) -> None:
    if not isinstance(chunk, Integral):
        raise TypeError(f"chunk: expected an integer; got {type(chunk).__name__}")
    if chunk < 1:
        raise ValueError(f"chunk: expected at least 1 query at a time; got {chunk}")


def forward_flops(m, s, d, d_v, causal=False, chunk=64):
    """The sums, with the column that becomes the divisor, and a division for each
    output."""
    return m * (_sums_flops(s, d, d_v + 1, causal, chunk) + s * d_v)


def backward_flops(m, s, d, d_v, causal=False, chunk=64, wanted=None):
    """Three sums like forward's, for dq, dk and dv; before them 3 d_v a query: u, and
    y's share of the divisor."""
    dq_or_dk = _sums_flops(s, d_v + 1, d, causal, chunk)
    costs = {
        "q k v": s * d_v,
        "q k": 2 * s * d_v,
        "q": dq_or_dk,
        "k": dq_or_dk,
        "v": _sums_flops(s, d, d_v, causal, chunk),
    }
    return m * sum_wanted(wanted, costs)


def _sums_flops(s, r, n, causal, chunk):
    """Two products through a state [r, n]; or, chunk by chunk, the state's 4r − 1 for
    each of the s·n results, and the scores, whose number is that of pairs within a
    chunk."""
    if not causal:
        return r * n * (2 * s - 1) + s * n * (2 * r - 1)
    whole, rest = s // chunk, s - s // chunk * chunk
    pairs = whole * chunk * chunk + rest * rest
    return pairs * (2 * r - 1 + 2 * n) + s * n * (4 * r - 1)


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({"causal": True, "chunk": 2}, {"causal": False}, {"chunk": 1})
MULTIPLES = {"d": 2}  # of width 1 a query has no gradient: its length does not matter
PLACES = ("scores", "weights", "weighted values")
AUTOCAST = "matmul"
