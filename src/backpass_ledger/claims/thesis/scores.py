"""§3.1.1: the backward of scores and projections, and the summary."""

from __future__ import annotations

from functools import partial
from typing import Any

from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.encoder_block import ATTENTION, row, takes
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.thesis.attention import softmax_steps
from backpass_ledger.claims.tools import numbers, same, torch, vjp

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


def T122(it: Evidence) -> None:
    r"""$\bar{Q} = \frac{1}{\sqrt{d}} \bar{S} K \in \mathbb{R}^{n \times d}$."""
    it.derives(ATTENTION)


def T123(it: Evidence) -> None:
    r"""$\bar{K} = \left(\frac{1}{\sqrt{d}} Q^\top \bar{S} \right)^\top$."""
    it.derives(ATTENTION)


def T124(it: Evidence) -> None:
    r"""$\bar{K} = \frac{1}{\sqrt{d}} \bar{S}^\top Q \in \mathbb{R}^{n \times d}$."""
    it.derives(ATTENTION)


def scores(n: int, d: int, rule: Any = its.RULE, scaled: str = "QK") -> int:
    """Return the steps of the gradients of queries and keys, with the scaling of the
    arrays whose letters are in ``scaled``; S is that of the scores' gradient."""

    def ran(s_: Any, q: Any, k: Any) -> None:
        s_ = s_ * 0.5 if "S" in scaled else s_
        q_, k_ = rule.times(s_, k), rule.times(its.flip(s_), q)
        for letter, gradient in (("Q", q_), ("K", k_)):
            _ = gradient * 0.5 if letter in scaled else gradient

    return its.steps(ran, numbers(n, n), numbers(n, d), numbers(n, d, seed=1))


def T125(it: Evidence) -> None:
    r"""The gradients of queries and keys take $2n^2d + 2n^2d + 2nd = 4n^2d + 2nd$.

    The lines as they stand take that many. Scaling $\bar S$ once takes $n^2$, which is
    less than $2nd$ for $n < 2d$. If the forward saves $Q/\sqrt d$, only $\bar Q$ has to
    be scaled, which takes $nd$."""
    once, saved = partial(scores, scaled="S"), partial(scores, scaled="Q")
    it.as_printed(takes(scores, row("scores")))
    it.elsewhere(once(5, 3) >= scores(5, 3))
    it.right(takes(once, lambda n, d: 4 * n**2 * d + n**2))
    it.right(takes(saved, lambda n, d: 4 * n**2 * d + n * d))
    sizes = [(n, d) for n in range(1, 9) for d in range(1, 5)]
    it.right(all((once(*s) < scores(*s)) == (s[0] < 2 * s[1]) for s in sizes))


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
    r"""The gradient of attention's input is $\bar{X} = \underbrace{\bar{Q}
    W^{Q^\top}}_{\text{from } Q} + \underbrace{\bar{K}W^{K^\top}}_{\text{from } K} +
    \underbrace{\bar{V}W^{V^\top}}_{\text{from } V} \in \mathbb{R}^{n \times d}$.

    This is the gradient through attention only. A residual connection adds a fourth
    path: without a norm in between, $\bar{X} = \bar{Q}W^{Q^\top} + \bar{K}W^{K^\top} +
    \bar{V}W^{V^\top} + \bar{Z}$."""
    it.derives(ATTENTION)
    values, gradients = its.attention_run()
    weights = [torch.tensor(vars(values)[name]) for name in its.WEIGHTS]
    with_residual = vjp(
        lambda x: x + its.attention(x, *weights)["Z"], values.X, gradients.Z
    )
    it.elsewhere(same(gradients.X, with_residual, 1e-3))
    it.right(same(gradients.X + gradients.Z, with_residual))


def T131(it: Evidence) -> None:
    r"""The gradients of the three projections take $3 \cdot (2nd^2) + 3 \cdot (2nd^2) +
    2 \cdot (nd) = 12nd^2 + 2nd$.

    By the text's rule they do. The exact count is $12nd^2 - 3d^2 - nd$. With the
    matrices side by side, as one product, the rule itself gives $2nd$ less."""
    it.derives(r"given n, d \in \mathbb{R}")
    it.as_printed(takes(projections, row("qkv")))
    exact = takes(projections, lambda n, d: 12 * n * d**2 - 3 * d**2 - n * d, its.EXACT)
    it.right(exact)
    side_by_side = its.products("dnw nwd", w=3 * 5)
    it.right(side_by_side(4, 5) == 12 * 4 * 5**2 == projections(4, 5) - 2 * 4 * 5)


def projections(n: int, d: int, rule: Any = its.RULE) -> int:
    """Return the steps of the gradients of the projections and of their input."""
    return 3 * its.products("dnd ndd")(n, d, rule) + 2 * n * d


def T132(it: Evidence) -> None:
    r"""The backward of attention's output projection takes $4nd^2$."""
    it.as_printed(takes(its.products("dnd ndd"), lambda n, d: 4 * n * d**2))


def T133(it: Evidence) -> None:
    r"""The backward of $Y = AV$ takes $4n^2d$."""
    it.as_printed(takes(its.products("ndn nnd"), lambda n, d: 4 * n**2 * d))


def T134(it: Evidence) -> None:
    r"""The backward of the softmax takes $4n^2$."""
    it.as_printed(all(softmax_steps(n, n) == 4 * n**2 for n, _ in its.SIZES))


def T135(it: Evidence) -> None:
    r"""The backward of the scores takes $4n^2d + 2nd$."""
    it.as_printed(takes(scores, lambda n, d: 4 * n**2 * d + 2 * n * d))


def T136(it: Evidence) -> None:
    r"""The backward of the three projections takes $12nd^2 + 2nd$."""
    it.as_printed(takes(projections, lambda n, d: 12 * n * d**2 + 2 * n * d))


def T137(it: Evidence) -> None:
    r"""The backward of the attention block takes $16nd^2 + 8n^2d + 4n^2 + 4nd$ in all.

    By the text's rule the printed lines take that many. The exact count is $16nd^2 -
    4d^2 + 8n^2d - 3nd + 3n^2 - n$."""

    def exact(n: int, d: int) -> int:
        return 16 * n * d**2 - 4 * d**2 + 8 * n**2 * d - 3 * n * d + 3 * n**2 - n

    it.as_printed(takes(its.of_attention, row("attention")))
    it.right(takes(its.of_attention, exact, its.EXACT))
    parts = ("out", "values", "softmax", "scores", "qkv")
    rows = [sum(row(part)(n, d) for part in parts) for n, d in its.SIZES]
    it.right(rows == [row("attention")(n, d) for n, d in its.SIZES])
