"""The FLOPs of the products: the rule and the table."""

from __future__ import annotations

from operator import matmul

import numpy as np

from backpass import cost
from backpass.models import gpt2
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gpt2_post.matrices import query_at_key
from backpass_ledger.claims.gpt2_post.overview import (
    BIASES,
    ROWS,
    SHAPES,
    flash_stores_less,
)
from backpass_ledger.claims.tools import numbers, same, vjp

CLAIMS = """
G54  true          0  FLOPs         foundations/counting          FLOPs, first paragraph
G55  true          0  FLOPs         foundations/counting          FLOPs, first paragraph
G56  true          0  FLOPs         operations/linear_cost        FLOPs, note
G57  caveat        2  memory        operations/linear_cost        table, required tensors
G58  true          0  FLOPs         operations/output_head        table, lm_head
G59  true          0  feed-forward  networks/gpt2                 table, mlp_down and mlp_up
G60  true          0  FLOPs         operations/feed_forward       table, mlp_down
G61  true          0  FLOPs         operations/feed_forward       table, mlp_up
G62  true          0  FLOPs         attention/heads               table, attn_out
G63  true          0  FLOPs         attention/scaled_dot_product  table, attn@value
G64  true          0  attention     attention/scaled_dot_product  table, query@key, 1
G65  inconsistent  1  attention     attention/scaled_dot_product  table, query@key, 2
G66  true          0  FLOPs         attention/scaled_dot_product  table, query@key
G67  true          0  FLOPs         attention/heads               table, qkv_proj
G68  true          0  notation      attention/heads               table, below it
G69  left-out      5  FLOPs         operations/linear_cost        table
G70  caveat        3  attention     attention/scaled_dot_product  table
"""

# Different odd lengths, so that no two shapes agree by accident.
b, s, n_h, d, V = 2, 5, 3, 4, 11
h = n_h * d
SIZES = {"b": b, "s": s, "n_h": n_h, "d": d, "V": V, "h": h}
Q, K, VALUE, DO = (numbers(b, n_h, s, d, seed=i) for i in range(4))
A, DS = (numbers(b, n_h, s, s, seed=i) for i in range(2))
QT, KT, VT, AT, DST = (array.swapaxes(2, 3) for array in (Q, K, VALUE, A, DS))


def ran(times: int, m: int, n: int, p: int) -> int:
    """Return the multiplications that run in ``times`` products, twice."""
    return 2 * times * cost.count("matmul", (m, n), (n, p)).forward.by_kind["multiply"]


def judged(it: Evidence, name: str, given: int, inner: int, to: int) -> None:
    """Compare a row of the table for a layer from ``inner`` columns to ``to`` with its
    two products, and their values with the gradients."""
    x, w, dy = numbers(b, s, inner), numbers(inner, to), numbers(b, s, to)
    products = dy @ w.T, x.reshape(-1, inner).T @ dy.reshape(-1, to)
    it.as_printed(all(map(same, products, vjp(matmul, (x, w), dy))))
    counted = ran(b, s, to, inner) + ran(1, inner, b * s, to)
    it.as_printed(ROWS[name].at(**SIZES) == counted == given)


def G54(it: Evidence) -> None:
    r"""In a product of $(m, n)$ and $(n, p)$ each element takes $n$ multiplications and
    $n - 1$ additions: $mnp$ and $mp(n - 1)$."""
    m, n, p = 5, 7, 3
    kinds = cost.count("matmul", (m, n), (n, p)).forward.by_kind
    it.as_printed(kinds == {"multiply": m * n * p, "add": m * p * (n - 1)})


def G55(it: Evidence) -> None:
    r"""A product of $(m, n)$ and $(n, p)$ costs about $2mnp$ FLOPs.

    It costs exactly $mp(2n - 1)$: 0.8 % fewer at $n = 64$, 0.07 % fewer at 768."""
    for n, percent, digits in ((64, 0.8, 1), (768, 0.07, 2)):
        exact = cost.count("matmul", (5, n), (n, 3)).forward.total
        it.right(exact == 5 * 3 * (2 * n - 1))
        off = 100 * (1 - exact / (2 * 5 * n * 3))
        it.as_printed(off < 1)
        it.right(round(off, digits) == percent)


def G56(it: Evidence) -> None:
    r"""The weight's gradient is one product of reshaped arrays, not a sum of $b$
    products.

    Both ways give the same value with exactly the same number of operations."""
    x, dy = numbers(b, s, h), numbers(b, s, V)
    one = x.reshape(-1, h).T @ dy.reshape(-1, V)
    it.as_printed(same(one, sum(x[i].T @ dy[i] for i in range(b))))
    apart = b * cost.count("matmul", (h, s), (s, V)).forward.total + (b - 1) * h * V
    it.right(cost.count("matmul", (h, b * s), (b * s, V)).forward.total == apart)


def G57(it: Evidence) -> None:
    """Each product's backward takes both factors and the gradient of the output.

    Its two gradients together do. Each gradient alone needs only the other factor, so a
    frozen weight's input need not be stored. The attention weights need not be stored
    either: flash attention recomputes them."""
    x, w, dy = numbers(s, h), numbers(h, V), numbers(s, V)
    (dx, dw), of_other_x, of_other_w = (
        vjp(matmul, factors, dy) for factors in ((x, w), (2 * x, w), (x, 2 * w))
    )
    it.as_printed(not same(of_other_w[0], dx) and not same(of_other_x[1], dw))
    it.elsewhere(not same(of_other_x[0], dx))
    it.elsewhere(not same(of_other_w[1], dw))
    it.elsewhere(not flash_stores_less())


def G58(it: Evidence) -> None:
    r"""In the backward, $b$ products of $(s, V)$ and $(V, h)$, and one of $(h, bs)$ and
    $(bs, V)$ cost $4bshV$ FLOPs."""
    judged(it, "lm_head", 4 * b * s * h * V, inner=h, to=V)


def G59(it: Evidence) -> None:
    """The feed-forward block is $4h$ wide."""
    for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"):
        config = cost.configuration(name)
        shapes = gpt2.parameter_shapes(config)
        wide = shapes["h.0.mlp.c_fc.weight"], shapes["h.0.mlp.c_proj.weight"]
        it.as_printed(wide == ((config.width, 4 * config.width), wide[0][::-1]))


def G60(it: Evidence) -> None:
    r"""In the backward, $b$ products of $(s, h)$ and $(h, 4h)$, and one of $(4h, bs)$
    and $(bs, h)$ cost $16bsh^2$ FLOPs."""
    judged(it, "mlp_down", 16 * b * s * h * h, inner=4 * h, to=h)


def G61(it: Evidence) -> None:
    r"""In the backward, $b$ products of $(s, 4h)$ and $(4h, h)$, and one of $(h, bs)$
    and $(bs, 4h)$ cost $16bsh^2$ FLOPs."""
    judged(it, "mlp_up", 16 * b * s * h * h, inner=h, to=4 * h)


def G62(it: Evidence) -> None:
    r"""In the backward, $b$ products of $(s, h)$ and $(h, h)$, and one of $(h, bs)$ and
    $(bs, h)$ cost $4bsh^2$ FLOPs."""
    judged(it, "attn_out", 4 * b * s * h * h, inner=h, to=h)


def G63(it: Evidence) -> None:
    r"""$b\,n_h$ products of $(s, d)$ and $(d, s)$, and the same number of $(s, s)$ and
    $(s, d)$, cost $4bn_hs^2d$ FLOPs: $\bar{O}V^\top$ and $A^\top\bar{O}$."""
    it.as_printed(all(map(same, (DO @ VT, AT @ DO), vjp(matmul, (A, VALUE), DO))))
    products = ran(b * n_h, s, d, s) + ran(b * n_h, s, s, d)
    it.as_printed(ROWS["attn@value"].at(**SIZES) == products == 4 * b * n_h * s**2 * d)


def G64(it: Evidence) -> None:
    r"""The query's gradient, $\bar{S}K$, is $b\,n_h$ products of $(s, s)$ and $(s,
    d)$."""
    it.as_printed(DS.shape[2:] == (s, s) and K.shape == (b, n_h, s, d))
    it.as_printed(same(DS @ K, vjp(query_at_key, (Q, K), DS)[0]))


def G65(it: Evidence) -> None:
    r"""The second gradient of query@key is $b\,n_h$ products of $(d, s)$ and $(s, s)$;
    the key is listed with the shape $(b, n_h, s, d)$.

    A gradient has its tensor's shape, as the text says. $Q^\top\bar{S}$ is $(d, s)$,
    the gradient of the second operand, $K^\top$; the table does not name which it
    means. The key's gradient is $\bar{S}^\top Q$, with the same FLOPs."""
    printed, dk = QT @ DS, vjp(query_at_key, (Q, K), DS)[1]
    it.clashes(printed.shape != K.shape)
    it.right(same(printed, vjp(matmul, (Q, KT), DS)[1]) and same(DST @ Q, dk))
    it.right(ran(1, d, s, s) == ran(1, s, s, d))


def G66(it: Evidence) -> None:
    r"""Both products of query@key's backward cost $4bn_hs^2d$."""
    products = ran(b * n_h, s, s, d) + ran(b * n_h, d, s, s)
    it.as_printed(ROWS["query@key"].at(**SIZES) == products == 4 * b * n_h * s**2 * d)


def G67(it: Evidence) -> None:
    """In the backward, $b$ products of $(s, 3h)$ and $(3h, h)$, and one of $(h, bs)$
    and $(bs, 3h)$ cost $12bsh^2$ FLOPs."""
    judged(it, "qkv_proj", 12 * b * s * h * h, inner=h, to=3 * h)


def G68(it: Evidence) -> None:
    """A head is $h/n_h$ wide.

    This holds for GPT-2. In Qwen3, for example, a head's width is set separately."""
    config, qwen = cost.configuration("gpt2"), cost.configuration("qwen3-0.6b")
    it.as_printed(config.width == 64 * config.heads)
    it.right(qwen.width != qwen.heads * qwen.head_width)


def G69(it: Evidence) -> None:
    """The table has the whole backward of the layers that multiply by a weight.

    It lacks the gradients of their biases, sums over the rows: about $9bsh$ a layer,
    84,851,712 FLOPs in the smallest GPT-2 at 1,024 tokens. A LayerNorm takes
    $11bsh$."""
    step = cost.tally("gpt2", 1, 1024)
    sums = step.only(
        lambda row: row.term.stem == "linear" and row.term.what == "elements"
    )
    biases = sums.flops()["backward"]
    it.left_out(biases)
    wide = sum(SHAPES[name][0] for name in BIASES)
    it.right(biases == 84_851_712 == 12 * wide * (1024 - 1) and wide == 9 * 768)


def G70(it: Evidence) -> None:
    """The backward of attention's two products costs $8bn_hs^2d$ FLOPs.

    This holds if all $s^2$ pairs of a query and a key are computed. GPT-2's mask leaves
    $s(s + 1)/2$ of them, and kernels that skip the others need about half."""
    whole = ROWS["attn@value"].at(**SIZES) + ROWS["query@key"].at(**SIZES)
    visible = np.tri(s).sum()
    it.as_printed(whole == 8 * b * n_h * d * s * s)
    it.elsewhere(whole == 8 * b * n_h * d * visible)
    it.right(2 * visible == s * (s + 1))
    step = cost.tally("gpt2", 2, 100).only(lambda row: row.term.call == "attention")
    needed = step.flops("products-triangle")["backward"]
    it.right(100 * 2 * needed == 101 * step.flops("products-whole")["backward"])
