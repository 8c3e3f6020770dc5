"""§3.1.1: the backward of scores and projections, and the summary."""

from __future__ import annotations

from typing import Any

from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.encoder_block import at_all_sizes, printed, product, steps
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.thesis.forward import ATTENTION
from backpass_ledger.claims.thesis.mathematics import BOLD
from backpass_ledger.claims.tools import derives, numbers, same, vjp

CLAIMS = """
T122  true    0  attention   attention/scaled_dot_product  §3.1.1, scores, queries
T123  true    0  attention   attention/scaled_dot_product  §3.1.1, scores, keys, transposed
T124  true    0  attention   attention/scaled_dot_product  §3.1.1, scores, keys
T125  caveat  1  FLOPs       attention/scaled_dot_product  §3.1.1, scores, cost
T126  true    0  attention   attention/heads               §3.1.1, projections, W^Q
T127  true    0  attention   attention/heads               §3.1.1, projections, W^K
T128  true    0  attention   attention/heads               §3.1.1, projections, W^V
T129  true    0  chain rule  attention/heads               §3.1.1, projections, three paths
T130  caveat  7  residual    operations/residual_stream    §3.1.1, projections, input
T131  true    0  FLOPs       attention/heads               §3.1.1, projections, cost
T132  true    0  FLOPs       attention/heads               §3.1.1, summary, output projection
T133  true    0  FLOPs       attention/scaled_dot_product  §3.1.1, summary, attention outputs
T134  true    0  FLOPs       operations/softmax            §3.1.1, summary, softmax
T135  true    0  FLOPs       attention/scaled_dot_product  §3.1.1, summary, scores
T136  true    0  FLOPs       attention/heads               §3.1.1, summary, projections
T137  true    0  FLOPs       attention/heads               §3.1.1, summary, total
"""


SCORES = r"""
    given Q, K \in \mathbb{R}^{n \times d}
    let S = \frac{1}{\sqrt{d}} QK^\top
    bar gradient
"""


def T122(it: Evidence) -> None:
    r"""$\bar{Q} = \frac{1}{\sqrt{d}} \bar{S} K \in \mathbb{R}^{n \times d}$."""
    it.derives(SCORES)


def T123(it: Evidence) -> None:
    r"""$\bar{K} = \left(\frac{1}{\sqrt{d}} Q^\top \bar{S} \right)^\top$."""
    it.derives(SCORES)


def T124(it: Evidence) -> None:
    r"""$\bar{K} = \frac{1}{\sqrt{d}} \bar{S}^\top Q \in \mathbb{R}^{n \times d}$."""
    it.derives(SCORES)


def scores(s_: Any, q: Any, k: Any, times: Any) -> Any:
    """Return both gradients, each product scaled afterwards."""
    return times(s_, k) * 0.5, times(its.flip(s_), q) * 0.5


def T125(it: Evidence) -> None:
    r"""The gradients of queries and keys take $2n^2d + 2n^2d + 2nd = 4n^2d + 2nd$.

    The lines as they stand take that many. The second scaling is not needed. Scaling
    $\bar S$ once takes $n^2$, which is less than $2nd$ for $n < 2d$. If the forward
    saves $Q/\sqrt d$, only $\bar Q$ has to be scaled, which takes $nd$.
    """

    def ran(n: int, d: int, way: Any) -> int:
        return steps(way, numbers(n, n), numbers(n, d), numbers(n, d, seed=1))

    def as_they_stand(s_: Any, q: Any, k: Any) -> Any:
        return scores(s_, q, k, product)

    def once(s_: Any, q: Any, k: Any) -> Any:
        s_ = s_ * 0.5
        return product(s_, k), product(its.flip(s_), q)

    it.as_printed(
        at_all_sizes(
            lambda n, d: ran(n, d, as_they_stand) == printed("scores", s=n, h=d)
        )
    )

    def saved(s_: Any, q: Any, k: Any) -> Any:  # q is Q/√d
        return product(s_, k) * 0.5, product(its.flip(s_), q)

    it.elsewhere(ran(5, 3, once) >= ran(5, 3, as_they_stand))
    it.right(at_all_sizes(lambda n, d: ran(n, d, once) == 4 * n**2 * d + n**2))
    it.right(at_all_sizes(lambda n, d: ran(n, d, saved) == 4 * n**2 * d + n * d))


def T126(it: Evidence) -> None:
    r"""$\bar{W}^Q = X^\top \bar{Q} \in \mathbb{R}^{d \times d}$."""
    it.derives(ATTENTION)


def T127(it: Evidence) -> None:
    r"""$\bar{W}^K = X^\top \bar{K} \in \mathbb{R}^{d \times d}$."""
    it.derives(ATTENTION)


def T128(it: Evidence) -> None:
    r"""$\bar{W}^V = X^\top \bar{V} \in \mathbb{R}^{d \times d}$."""
    it.derives(ATTENTION)


def T129(it: Evidence) -> None:
    """The gradient of attention's input has a contribution from each of the three
    projections; leaving out any one of them gives a wrong gradient."""
    values, gradients = its.attention_run()
    paths = [getattr(gradients, p) @ getattr(values, f"W_{p}").T for p in "QKV"]
    it.as_printed(same(sum(paths), gradients.X))
    for path in paths:
        it.as_printed(not same(sum(paths) - path, gradients.X, 1e-3))


def T130(it: Evidence) -> None:
    r"""The gradient of attention's input is $\bar X = \bar QW^{Q\top} + \bar KW^{K\top}
    + \bar VW^{V\top} \in \mathbb R^{n \times d}$.

    This is the gradient through attention only. The input of a block with a residual
    connection has a fourth path; without a norm in between, $\bar Z$ itself has to be
    added.
    """
    line = r"""
        \bar{X} = \underbrace{\bar{Q}W^{Q^\top}}_{\text{from } Q}
        + \underbrace{\bar{K}W^{K^\top}}_{\text{from } K}
        + \underbrace{\bar{V}W^{V^\top}}_{\text{from } V}
        \in \mathbb{R}^{n \times d}.
    """
    it.as_printed(derives(line, ATTENTION))
    values, gradients = its.attention_run()
    weights = [getattr(values, name) for name in its.WEIGHTS]

    def with_residual(x: Any) -> Any:
        return x + its.attention(x, *(x.new_tensor(w) for w in weights))["Z"]

    printed_line = its.attention_backward(gradients.Z, values)["X"]
    of_block = vjp(with_residual, values.X, gradients.Z)
    it.elsewhere(same(printed_line, of_block, 1e-3))
    it.right(same(printed_line + gradients.Z, of_block))


def T131(it: Evidence) -> None:
    r"""The gradients of the three projections take $3 \cdot 2nd^2 + 3 \cdot 2nd^2 + 2nd
    = 12nd^2 + 2nd$.

    By the text's rule they do. The exact count is $12nd^2 - 3d^2 - nd$. Written as one
    product with the three matrices side by side, the rule itself gives $2nd$ less.
    """

    def ran(n: int, d: int, times: Any) -> int:
        x, w = numbers(n, d), numbers(d, d)
        path = steps(times, x.T, x) + steps(times, x, w)
        return 3 * path + 2 * steps(lambda a, b: a + b, x, x)

    def one_product(n: int, d: int) -> int:
        x, wide, w = numbers(n, d), numbers(n, 3 * d), numbers(3 * d, d)
        return steps(product, x.T, wide) + steps(product, wide, w)

    line = r"""
        3 \cdot (2\mathbf{nd}^2) + 3 \cdot (2\mathbf{nd}^2) + 2 \cdot (\mathbf{nd})
        = 12\mathbf{nd}^2 + 2\mathbf{nd}.
    """
    it.as_printed(derives(line, rf"{BOLD}; given n, d \in \mathbb{{R}}"))
    it.as_printed(
        at_all_sizes(lambda n, d: ran(n, d, product) == printed("qkv", s=n, h=d))
    )
    it.right(
        at_all_sizes(
            lambda n, d: ran(n, d, its.matmul) == 12 * n * d**2 - 3 * d**2 - n * d
        )
    )
    it.right(at_all_sizes(lambda n, d: one_product(n, d) == 12 * n * d**2))


def T132(it: Evidence) -> None:
    r"""The backward of attention's output projection takes $4nd^2$."""
    for n, d in its.SIZES:
        y, w = numbers(n, d), numbers(d, d)
        it.as_printed(steps(product, y.T, y) + steps(product, y, w) == 4 * n * d**2)


def T133(it: Evidence) -> None:
    r"""The backward of $Y = AV$ takes $4n^2d$."""
    for n, d in its.SIZES:
        a, y = numbers(n, n), numbers(n, d)
        it.as_printed(steps(product, y, y.T) + steps(product, a, y) == 4 * n**2 * d)


def T134(it: Evidence) -> None:
    r"""The backward of the softmax takes $4n^2$."""

    def all_rows(a: Any, a_: Any) -> Any:
        return a * (a_ - its.times_each_row(a, a_, product))

    for n, _ in its.SIZES:
        it.as_printed(steps(all_rows, numbers(n, n), numbers(n, n)) == 4 * n**2)


def T135(it: Evidence) -> None:
    r"""The backward of the scores takes $4n^2d + 2nd$."""
    for n, d in its.SIZES:
        q = numbers(n, d)
        ran = steps(lambda s, q, k: scores(s, q, k, product), numbers(n, n), q, q)
        it.as_printed(ran == 4 * n**2 * d + 2 * n * d)


def T136(it: Evidence) -> None:
    r"""The backward of the three projections takes $12nd^2 + 2nd$."""
    for n, d in its.SIZES:
        x, w = numbers(n, d), numbers(d, d)
        paths = 3 * (steps(product, x.T, x) + steps(product, x, w))
        sums = steps(lambda a, b, c: a + b + c, x, x, x)
        it.as_printed(paths + sums == 12 * n * d**2 + 2 * n * d)


def T137(it: Evidence) -> None:
    r"""The backward of the attention block takes $16nd^2 + 8n^2d + 4n^2 + 4nd$ in all.

    The rows add up, and the printed lines run with that many steps, by the text's rule.
    The exact count is $16nd^2 - 4d^2 + 8n^2d - 3nd + 3n^2 - n$.
    """

    def ran(n: int, d: int, **rule: Any) -> int:
        return its.counted(its.attention_run(n, d), its.attention_backward, **rule)

    for n, d in its.SIZES:
        it.as_printed(ran(n, d, **its.BY_RULE) == printed("attention", s=n, h=d))
        exact = 16 * n * d**2 - 4 * d**2 + 8 * n**2 * d - 3 * n * d + 3 * n**2 - n
        it.right(ran(n, d) == exact)
