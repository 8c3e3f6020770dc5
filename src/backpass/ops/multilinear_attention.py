r"""Multilinear attention: scores that are products of p dot products, turned into
weights by softmax, simplex, or sphere.

.. math:: P = Q K^\top, \quad
          \sigma_i = \sum_k P_{ik}, \quad
          A_{ij} = \frac{P_{ij}}{\sigma_i}, \quad
          Y = A V, \qquad
          \bar{V} = A^\top \bar{Y}, \quad
          \bar{A} = \bar{Y} V^\top, \quad
          \bar{P}_{ij} = \frac{1}{\sigma_i}
              \Big( \bar{A}_{ij} - \sum_k \bar{Y}_{ik} Y_{ik} \Big), \quad
          \bar{Q} = \bar{P} K, \quad
          \bar{K} = \bar{P}^\top Q

Derived on the page ``attention/multilinear``. The formulas are those of one factor and
``normalization="simplex"``. With p factors, the columns of q and k are cut into p equal
parts, and factor m is the product of the m-th parts. P is the elementwise product of
the factors. The gradient of a factor is that of P times all other factors; nothing is
divided by a factor, so a factor may be 0.

A query that may see no key, or whose scores are all 0 under simplex or sphere, has
output and gradient 0. So has a query whose sum of scores (simplex) or of squared scores
(sphere) overflows. In half precision everything between the inputs and the results is
computed in float32. The weights are saved in half precision; the factors, which may
exceed float16, are saved in float32.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import reduce
from itertools import accumulate
from numbers import Integral
from typing import Any, NamedTuple

from backpass.contract.arrays import (
    Array,
    Gradients,
    as_type_of,
    namespace,
    transpose,
    widened,
)
from backpass.contract.shapes import Outline, check_cotangent, check_inputs
from backpass.contract.values import check_causal, check_one_of
from backpass.contract.wanted import Wanted, check_wanted, narrowed, needed, sum_wanted
from backpass.ops import matmul, simplex_norm, softmax, sphere_norm
from backpass.ops._heads import causal_mask

SHAPES = "q[*, s_q, d>0], k[*, s_k>0, d], v[*, s_k, d_v] -> y[*, s_q, d_v]"
POSITIVE = ("q", "k")  # for the simplex

# Each normalisation with the score that hides a key.
NORMALIZATIONS = {
    "softmax": (softmax, -math.inf),
    "simplex": (simplex_norm, 0.0),
    "sphere": (sphere_norm, 0.0),
}


class Saved(NamedTuple):
    """The queries, keys, values, and weights, and the factors if there are several."""

    q: Array | Outline  # [*, s_q, d]
    k: Array | Outline  # [*, s_k, d]
    v: Array | Outline  # [*, s_k, d_v]
    # p of [*, s_q, s_k], in float32 for half precision; none if p is 1
    factors: tuple[Array, ...]
    a: Array | Outline  # [*, s_q, s_k], the weights
    # What else the normalisation saved: for simplex and sphere, divisor[*, s_q, 1]
    weights: Any
    normalization: str
    causal_variant: str | None
    wanted: tuple[str, ...]


NEEDS = {"q": "k", "k": "q", "v": "q k", "a": "q k v"}


def forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    p: int = 1,
    normalization: str = "softmax",
    causal: bool = False,
    causal_variant: str = "upper_left",
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return ``y[*, s_q, d_v]`` for queries ``q[*, s_q, d]``, keys ``k[*, s_k, d]``,
    and values ``v[*, s_k, d_v]``.

    The scores are not scaled. With ``causal``, query i sees the keys up to i
    ("upper_left"), or up to i + s_k − s_q ("lower_right"). Raises TypeError if an input
    is not a floating-point array or if inputs differ in library, device, or dtype, if
    ``p`` is not an integer, or if ``causal`` is not a bool; ValueError if shapes do not
    fit, ``p`` does not divide d, for an unknown ``normalization`` or
    ``causal_variant``, and with "simplex" if the scores of a query have a sum that is
    not positive, unless all are 0.
    """
    check_inputs(SHAPES, q=q, k=k, v=v)
    _check_factors(p, q.shape[-1])
    check_one_of("normalization", normalization, ("softmax", "simplex", "sphere"))
    check_causal(causal, causal_variant)
    wanted = check_wanted(SHAPES, wanted)
    normaliser, hidden = NORMALIZATIONS[normalization]

    queries, keys = widened(q), widened(k)
    factors = tuple(
        _part(queries, m, p) @ transpose(_part(keys, m, p)) for m in range(p)
    )
    variant = causal_variant if causal else None
    try:
        a, weights = normaliser.forward(
            _with_hidden(reduce(operator.mul, factors), hidden, variant)
        )
    except ValueError as error:
        raise ValueError(f"q · k{str(error).removeprefix('x')}") from None
    y, _ = matmul.forward(a, widened(v))
    scores = "q" in wanted or "k" in wanted
    weights = weights._replace(y=None) if scores else None
    factors = factors if p > 1 and scores else ()
    a = as_type_of(a, q)
    saved = Saved(q, k, v, factors, a, weights, normalization, variant, wanted)
    return as_type_of(y, q), needed(saved, NEEDS)


def backward(dy: Array, saved: Saved, *, wanted: Wanted = None) -> Gradients:
    """Return ``dq[*, s_q, d]``, ``dk[*, s_k, d]``, and ``dv[*, s_k, d_v]`` from
    ``dy[*, s_q, d_v]``."""
    saved = narrowed(saved, Saved, wanted)
    q, k, v, factors, a, weights, normalization, variant, wanted = saved
    xp = check_cotangent(dy, (*q.shape[:-1], v.shape[-1]), like=q)
    dy = widened(dy)

    dq = dk = dv = None
    if "v" in wanted:
        dv = as_type_of(transpose(widened(a)) @ dy, saved.q)
    if "q" in wanted or "k" in wanted:
        a, da = widened(a), dy @ transpose(widened(v))
        dscores = NORMALIZATIONS[normalization][0].backward(da, weights._replace(y=a))

        # A hidden score was a constant, so its gradient is 0. Softmax's backward
        # returns 0 for it; those of simplex and sphere do not.
        dscores = _with_hidden(dscores, 0, variant)
        dfactors = _gradients_of_factors(dscores, factors)
        p = len(dfactors)
    if "q" in wanted:
        k = widened(k)
        dq = xp.concat([dfactors[m] @ _part(k, m, p) for m in range(p)], axis=-1)
        dq = as_type_of(dq, saved.q)
    if "k" in wanted:
        q = widened(q)
        dk = [transpose(dfactors[m]) @ _part(q, m, p) for m in range(p)]
        dk = as_type_of(xp.concat(dk, axis=-1), saved.q)
    return dq, dk, dv


def _with_hidden(scores: Array, value: float, variant: str | None) -> Array:
    """Return ``scores[*, s_q, s_k]`` with ``value`` for the keys that a query may not
    see. Without a variant, it sees all keys."""
    if variant is None:
        return scores
    s_q, s_k = scores.shape[-2:]
    return namespace(scores).where(
        causal_mask(s_q, s_k, variant, like=scores), scores, value
    )


def _gradients_of_factors(dproduct: Array, factors: Sequence[Array]) -> list[Array]:
    """Return each factor's gradient: the product's gradient times the factors before it
    and those after it. A single factor is not given; its gradient is the product's."""
    before = [*accumulate(factors[:-1], operator.mul)]
    gradients, rest = [], dproduct  # rest: times the factors after the current one
    for factor in reversed(factors[1:]):
        gradients.append(rest * before.pop())
        rest = rest * factor
    return [rest, *reversed(gradients)]


def _part(x: Array, m: int, p: int) -> Array:
    """Return ``[*, s, d/p]``: of ``p`` equal parts of the columns of ``x[*, s, d]``,
    the one for factor m."""
    width = x.shape[-1] // p
    return x[..., m * width : (m + 1) * width]


def _check_factors(p: object, d: int) -> None:
    if not isinstance(p, Integral):
        raise TypeError(f"p: expected an integer; got {type(p).__name__}")
    if p < 1 or d % p:
        raise ValueError(
            f"p: expected a number of factors that divides d = {d}; got {p}"
        )


def forward_flops(m, s_q, s_k, d, d_v, p=1, normalization="softmax"):
    """Return the FLOPs of the factors, which together cost one product of width d less
    p − 1 sums per score, of the p − 1 products that multiply them, of the
    normalisation, and of the weighted values."""
    scores = m * s_q * s_k * (2 * d - p) + m * s_q * s_k * (p - 1)
    weights = NORMALIZATIONS[normalization][0].forward_flops(m * s_q, s_k)
    return scores + weights + matmul.forward_flops(m, s_q, s_k, d_v)


def backward_flops(m, s_q, s_k, d, d_v, p=1, normalization="softmax", wanted=None):
    """Return the FLOPs of the four products, the normalisation, and for p > 1 factors
    3p − 4 products per element: p − 2 for those before each factor, p − 1 for those
    after it, and p − 1 to join them."""
    da, dv = (
        matmul.backward_flops(m, m, m, s_q, s_k, d_v, wanted=(factor,))
        for factor in "ab"
    )
    dq, dk = (
        matmul.backward_flops(m, m, m, s_q, d, s_k, wanted=(factor,)) for factor in "ab"
    )
    weights = NORMALIZATIONS[normalization][0].backward_flops(m * s_q, s_k)
    factors = m * s_q * s_k * (3 * p - 4) if p != 1 else 0
    costs = {"v": dv, "q k": da + weights + factors, "q": dq, "k": dk}
    return sum_wanted(wanted, costs)


# Facts for checks, pages and functional: see backpass.ops.
EXAMPLES = (
    {"p": 3, "normalization": "simplex"},
    {"p": 1, "causal": True, "s_k": 8},
    {"p": 2, "causal": True, "causal_variant": "lower_right", "s_k": 8},
    {"p": 2, "normalization": "sphere"},
    {"normalization": "sphere", "causal": True},
    {
        "p": 1,
        "normalization": "softmax",
        "causal": True,
        "causal_variant": "lower_right",
    },
    {"normalization": "softmax"},
)
ZERO_PRODUCTS = {"normalization": "softmax"}
MULTIPLES = {"d": 6}  # a multiple of every p in EXAMPLES
FORMULA_OPTIONS = {"normalization": "simplex"}
PLACES = ("scores", "weights", "weighted values")
AUTOCAST = "matmul"
