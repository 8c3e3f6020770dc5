r"""Linear attention: weights proportional to the products of queries and keys, in time
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
There is one sequence: as many queries as keys, and as many heads of each. A causal mask
therefore has no ``lower_right`` variant.

The formulas hold without ``causal`` and are computed from the right: K⊤V is [d, d_v],
whatever the length of the sequence. Values and gradients are those of
``multilinear_attention`` with one factor and ``normalization="simplex"``, which
allocates the [s, s] scores; this operation does not. If the scores of a query sum to
exactly 0, its output and gradient are 0, even if scores that are not 0 cancel, which
``multilinear_attention`` rejects. A negative sum raises ValueError. Half precision is
computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from numbers import Integral
from typing import NamedTuple

from backpass.contract.arrays import (
    Array,
    Gradients,
    as_type_of,
    namespace,
    transpose,
    widened,
)
from backpass.contract.shapes import Outline, check_cotangent, check_inputs
from backpass.contract.values import check_bool, check_sums
from backpass.contract.wanted import Wanted, check_wanted, narrowed, needed, sum_wanted
from backpass.ops._heads import causal_mask

SHAPES = "q[*, s>0, d>0], k[*, s, d], v[*, s, d_v] -> y[*, s, d_v]"
POSITIVE = ("q", "k")


class Saved(NamedTuple):
    """The inputs, the output, and one number per query. States are recomputed:
    otherwise one would have to be saved for every chunk."""

    q: Array | Outline  # [*, s, d]
    k: Array | Outline  # [*, s, d]
    v: Array | Outline  # [*, s, d_v]
    y: Array | Outline  # [*, s, d_v]
    # [*, s, 1], a query's sum of scores, ∞ if it is 0; float32 for half precision
    divisor: Array | Outline
    chunk: int | None  # None if every query sees every key
    wanted: tuple[str, ...]


NEEDS = {"q": "k v", "k": "q v", "v": "q k", "y": "q k", "divisor": "q k v"}


def forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    chunk: int = 64,
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return ``y[*, s, d_v]`` for queries ``q[*, s, d]``, keys ``k[*, s, d]``, and
    values ``v[*, s, d_v]``.

    With ``causal``, query i sees the keys up to i, and scores exist for ``chunk``
    queries and as many keys at a time. Raises TypeError if an input is not a
    floating-point array or if inputs differ in library, device, or dtype, or if
    ``chunk`` is not an integer or ``causal`` not a bool; ValueError if shapes do not
    fit, ``chunk`` is below 1, or the scores of a query have a negative sum.
    """
    xp = check_inputs(SHAPES, q=q, k=k, v=v)
    _check_chunk(chunk)
    check_bool(causal=causal)
    wanted = check_wanted(SHAPES, wanted)
    tokens = chunk if causal else None

    sums = _sums(widened(q), widened(k), _with_ones(widened(v)), tokens)
    weighted, total = sums[..., :-1], sums[..., -1:]
    check_sums("q · k", total, total == 0)

    # A number divided by ∞ is 0, and so is its gradient.
    divisor = xp.where(total == 0, math.inf, total)  # [*, s, 1]
    y = as_type_of(weighted / divisor, v)
    return y, needed(Saved(q, k, v, y, divisor, tokens, wanted), NEEDS)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dq[*, s, d]``, ``dk[*, s, d]``, and ``dv[*, s, d_v]`` from
    ``dy[*, s, d_v]``."""
    q, k, v, y, divisor, chunk, wanted = narrowed(saved, Saved, wanted)
    xp = check_cotangent(dy, y.shape, like=y)
    if not wanted:
        return None, None, None
    dy = widened(dy)
    u = dy / divisor  # [*, s, d_v]
    if "q" in wanted or "k" in wanted:
        c = -xp.sum(dy * y, axis=-1, keepdims=True) / divisor  # [*, s, 1]
        u_and_c = xp.concat([u, c], axis=-1)  # [*, s, d_v + 1]
        v = _with_ones(widened(v))

    # In the forward pass a query gathered values from the keys up to its own position;
    # so now it gathers its gradient from the same keys, and a key gathers from the
    # queries that see it. These are the same sums over different arrays, in reverse for
    # the keys.
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
    """Return ``[*, s, n]`` from ``a[*, s, r]``, ``b[*, s, r]``, and ``c[*, s, n]``: row
    i is Σ_j (a_i · b_j) c_j over all j. With a chunk the sum is over j ≤ i, in
    ``reverse`` over j ≥ i."""
    if chunk is None:
        return a @ (transpose(b) @ c)
    chunks = _chunks(a, chunk)
    # At first the state of no rows: zeros.
    parts, state = [], transpose(b[..., :0, :]) @ c[..., :0, :]
    for rows in reversed(chunks) if reverse else chunks:
        a_part, b_part, c_part = a[..., rows, :], b[..., rows, :], c[..., rows, :]
        scores = _of_one_side(a_part @ transpose(b_part), reverse)  # [*, chunk, chunk]
        parts.append(scores @ c_part + a_part @ state)
        state = state + transpose(b_part) @ c_part  # [*, r, n], of all chunks so far
    return namespace(a).concat(parts[::-1] if reverse else parts, axis=-2)


def _chunks(a: Array, chunk: int) -> list[slice]:
    """Return the rows of ``a[*, s, r]``, ``chunk`` at a time."""
    return [
        slice(start, min(start + chunk, a.shape[-2]))
        for start in range(0, a.shape[-2], chunk)
    ]


def _of_one_side(scores: Array, reverse: bool) -> Array:
    """Return ``scores[*, c, c]`` with 0 for later keys, or in ``reverse`` for earlier
    ones."""
    *_, length = scores.shape
    seen = causal_mask(length, length, "upper_left", like=scores)
    return namespace(scores).where(transpose(seen) if reverse else seen, scores, 0)


def _with_ones(v: Array) -> Array:
    """Return ``v[*, s, d_v]`` with a column of ones appended, whose weighted sum is the
    sum of the weights."""
    xp = namespace(v)
    return xp.concat([v, xp.ones_like(v[..., :1])], axis=-1)


def _check_chunk(chunk: object) -> None:
    if not isinstance(chunk, Integral):
        raise TypeError(f"chunk: expected an integer; got {type(chunk).__name__}")
    if chunk < 1:
        raise ValueError(f"chunk: expected at least 1 query at a time; got {chunk}")


def forward_flops(m, s, d, d_v, causal=False, chunk=64):
    """Return the FLOPs of the sums, including the column for the divisor, and one
    division per output."""
    return m * (_sums_flops(s, d, d_v + 1, causal, chunk) + s * d_v)


def backward_flops(m, s, d, d_v, causal=False, chunk=64, wanted=None):
    """Return the FLOPs of three sums like the forward's, for dq, dk, and dv, and 3 d_v
    per query before them: d_v for u, and the rest for c."""
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
    """Return the FLOPs of two products through a state [r, n]; or, chunk by chunk, 4r −
    1 through the state for each of the s·n results, and those of the scores of all
    pairs within a chunk."""
    if not causal:
        return r * n * (2 * s - 1) + s * n * (2 * r - 1)
    whole, rest = s // chunk, s - s // chunk * chunk
    pairs = whole * chunk * chunk + rest * rest
    return pairs * (2 * r - 1 + 2 * n) + s * n * (4 * r - 1)


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = ({"causal": True, "chunk": 2}, {"causal": False}, {"chunk": 1})
MULTIPLES = {"d": 2}  # with width 1 a query's gradient is 0: its length does not matter
PLACES = ("scores", "weights", "weighted values")
AUTOCAST = "matmul"
