"""Itemise the calls of a network: one term for each matrix product of a call, and one
for everything else that the call computes in the forward or in the backward.

The FLOPs of a whole call are those of the operation's formula. The last term is the
formula minus the products, so the terms of a call sum to the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from backpass.models.layers.calls import Call, call, quotient
from backpass.ops import feed_forward, flash_attention, fork, linear, swiglu

FORWARD, BACKWARD, RECOMPUTATION = "forward", "backward", "recomputation"
WAYS = (FORWARD, BACKWARD, RECOMPUTATION)


class Product(NamedTuple):
    """``times`` matrix products ``[m, k] @ [k, n]``.

    ``run`` is the number of multiplications that run. ``visible`` is their number for
    the pairs of a query and a key that the mask leaves visible, and ``whole`` their
    number for all pairs.
    """

    times: Any
    m: Any
    k: Any
    n: Any
    run: Any
    visible: Any
    masked: bool = False

    @property
    def whole(self) -> Any:
        return self.times * self.m * self.k * self.n


class Term(NamedTuple):
    """What a call computes in one way: a product, or everything that is not a product.

    In ``flops``, a sum of n terms counts n − 1. The term has ``sums`` such sums, so it
    counts ``flops + sums`` if a sum of n terms counts n. ``again`` is True for what the
    forward has already computed.
    """

    call: str
    stem: str
    way: str
    what: str  # "dw = xᵀ dy", or "elements" for everything else
    needs: str  # the arrays that are read, such as "x, dy"
    flops: Any
    sums: Any
    product: Product | None = None
    again: bool = False


def terms_of(each: Call) -> list[Term]:
    """Return the terms of a call, forward and backward, that are not 0."""
    stem = each.stem
    if stem == "feed_forward":
        return [t for part in calls_of_feed_forward(each) for t in terms_of(part)]
    products = _PRODUCTS[stem](each) if stem in _PRODUCTS else ()
    sums = _SUMS[stem](each) if stem in _SUMS else (0, 0)
    found = [
        Term(each.name, stem, way, what, needs, flops, count, product, again)
        for way, what, needs, product, flops, count, again in products
    ]
    totals = {FORWARD: each.forward_flops(), BACKWARD: each.backward_flops()}
    for way, total in totals.items():
        rest = total - sum(term.flops for term in found if term.way == way)
        of_elements = sums[way == BACKWARD] if rest != 0 else 0
        needs = "its input" if way == FORWARD else "its saved arrays, dy"
        found.append(Term(each.name, stem, way, ELEMENTS, needs, rest, of_elements))
    return [term for term in found if term.flops != 0]


ELEMENTS = "elements"


def _of_linear(
    each: Call, letters: str = "mnp", y: str = "y", way: str = BACKWARD
) -> Iterator[tuple]:
    m, n, p = (each.lengths[letter] for letter in letters)

    def product(way, what, needs, m, k, n):
        outputs = m * n  # every sum has k terms and counts k − 1
        run = outputs * k
        found = Product(1, m, k, n, run, run)
        return way, what, needs, found, 2 * run - outputs, outputs, False

    yield product(FORWARD, f"{y} = x w", "x, w", m, n, p)
    if "x" in each.wanted:
        yield product(way, f"dx = d{y} wᵀ", f"d{y}, w", m, p, n)
    if "w" in each.wanted:
        yield product(way, f"dw = xᵀ d{y}", f"x, d{y}", n, m, p)


def _of_head_and_loss(each: Call) -> Iterator[tuple]:
    return _of_linear(each, "mhV", "z", FORWARD)


def _of_attention(each: Call) -> Iterator[tuple]:
    of, wanted = each.lengths, {*each.wanted}
    groups, g = of["m"] * of["n_kv"], of["g"]
    rows, d, d_v, s_k = g * of["s_q"], of["d"], of["d_v"], of["s_k"]
    queries, seen = groups * rows, groups * g * _visible(each)
    scores, keys, flash = queries * s_k, groups * s_k, each.stem == "flash_attention"
    if flash:
        tiling = flash_attention.tiling_of(
            of["s_q"], s_k, groups * g, of["causal"], "upper_left", None
        )
        _, scores, _ = (groups * g * count for count in tiling.counts())
        keys = 0

    def product(way, what, needs, m, k, n, width, sums, again=False):
        run = scores * width
        found = Product(groups, m, k, n, run, seen * width, of["causal"])
        return way, what, needs, found, 2 * run - sums, sums, again

    # In FlashAttention, a sum over the keys continues from tile to tile. A sum that
    # begins with zeros, as those over the queries do, counts one addition more than a
    # sum that begins with its first product.
    yield product(FORWARD, "p = q kᵀ", "q, k", rows, d, s_k, d, scores)
    yield product(FORWARD, "y = a v", "a, v", rows, s_k, d_v, d_v, queries * d_v)
    if wanted and flash:
        yield product(BACKWARD, "p = q kᵀ", "q, k", rows, d, s_k, d, scores, True)
    if wanted & {"q", "k"}:
        yield product(BACKWARD, "da = dy vᵀ", "dy, v", rows, d_v, s_k, d_v, scores)
    if "v" in wanted:
        yield product(BACKWARD, "dv = aᵀ dy", "a, dy", s_k, rows, d_v, d_v, keys * d_v)
    if "q" in wanted:
        yield product(BACKWARD, "dq = dp k", "dp, k", rows, s_k, d, d, queries * d)
    if "k" in wanted:
        yield product(BACKWARD, "dk = dpᵀ q", "dp, q", s_k, rows, d, d, keys * d)


def _visible(each: Call) -> Any:
    """Return the number of pairs of a query and a key that it sees."""
    s_q, s_k = each.lengths["s_q"], each.lengths["s_k"]
    if not each.lengths["causal"]:
        return s_q * s_k
    if s_q == s_k:
        return quotient(s_q * (s_q + 1), 2)
    short = min(s_q, s_k)
    return short * (short + 1) // 2 + max(s_q - s_k, 0) * s_k


def calls_of_feed_forward(each: Call) -> Iterator[Call]:
    """Return the calls of a feed-forward block."""
    of = each.lengths
    m, h, f, activation = of["m"], of["h"], of["f"], of["activation"]
    of_up, of_gate, of_both, of_down = feed_forward.wanted_in_parts(each.wanted)
    up = {"m": m, "n": h, "p": f}
    yield call("up projection", linear, of_up, **up, has_b=of["has_b_up"])
    if activation == "swiglu":
        of_x = ("x",) if "x" in each.wanted else ()
        yield call("gate projection", linear, of_gate, **up, has_b=of["has_b_gate"])
        yield call("gate", swiglu, of_both, m=m * f)
        yield call("up and gate: two gradients", fork, of_x, m=m * h, k=2)
    else:
        function, options = feed_forward.FUNCTIONS[activation]
        yield call("activation", function, ("x",) if of_up else (), m=m * f, **options)
    down = {"m": m, "n": f, "p": h, "has_b": of["has_b_down"]}
    yield call("down projection", linear, of_down, **down)


_PRODUCTS = {
    "linear": _of_linear,
    "attention": _of_attention,
    "flash_attention": _of_attention,
    "linear_cross_entropy": _of_head_and_loss,
}


# The number of sums over a row or a column that each call computes, forward and
# backward, besides those in its products.


def _of_bias(each: Call) -> tuple[Any, Any]:
    return 0, each.lengths["p"] if "b" in each.wanted else 0


def _of_norm(rows_in_forward: int) -> Callable[[Call], tuple[Any, Any]]:
    def sums(each: Call) -> tuple[Any, Any]:
        m, n = each.lengths["m"], each.lengths["n"]
        of_columns = n * sum(name in each.wanted for name in ("w", "b"))
        of_rows = rows_in_forward * m if "x" in each.wanted else 0
        return rows_in_forward * m, of_columns + of_rows

    return sums


def _of_scores(each: Call) -> tuple[Any, Any]:
    of = each.lengths
    queries = of["m"] * of["g"] * of["n_kv"] * of["s_q"]
    return queries, queries if {*each.wanted} & {"q", "k"} else 0


def _of_loss(each: Call) -> tuple[Any, Any]:
    return each.lengths["m"] + 1, 0


def _of_positions(each: Call) -> tuple[Any, Any]:
    return 0, each.lengths["s"] * each.lengths["h"] if "w" in each.wanted else 0


_SUMS = {
    "linear": _of_bias,
    "layer_norm": _of_norm(2),
    "rms_norm": _of_norm(1),
    "attention": _of_scores,
    "flash_attention": _of_scores,
    "cross_entropy": _of_loss,
    "linear_cross_entropy": _of_loss,
    "position_embedding": _of_positions,
}
