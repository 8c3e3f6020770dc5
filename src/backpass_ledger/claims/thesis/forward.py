"""§3.1, and §3.1.1 as far as the gradients of a product."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass import cost
from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import derives, numbers, same, torch, vjp

CLAIMS = """
T86   left-out      8  residual    operations/residual_stream    §3.1, the block
T87   caveat        1  FLOPs       networks/llama                §3.1, newer networks
T88   left-out      6  FLOPs       cost/tally                    §3.1, plan
T89   true          0  attention   attention/heads               §3.1.1, parameters
T90   caveat        1  attention   attention/heads               §3.1.1, one head
T91   caveat        4  FLOPs       foundations/counting          §3.1.1, what n is
T92   true          0  attention   attention/heads               §3.1.1, forward, projections
T93   true          0  attention   attention/scaled_dot_product  §3.1.1, forward, scores
T94   true          0  softmax     operations/softmax            §3.1.1, forward, weights
T95   true          0  attention   attention/heads               §3.1.1, forward, output
T96   inconsistent  2  notation    reference/letters             §3.1.1, product, letters
T97   true          0  matmul      operations/linear             §3.1.1, product, element
T98   true          0  matmul      operations/linear             §3.1.1, product, derivative of an element
T99   true          0  matmul      operations/linear             §3.1.1, product, first sum
T100  true          0  matmul      operations/linear             §3.1.1, product, second sum
T101  true          0  matmul      operations/linear             §3.1.1, product, input
T102  true          0  matmul      operations/linear             §3.1.1, product, weight
T103  true          0  chain rule  attention/scaled_dot_product  §3.1.1, order
T104  caveat        3  matmul      foundations/counting          §3.1.1, cost of a product
"""


ATTENTION = r"""
    given X \in \mathbb{R}^{n \times d}, W^Q, W^K, W^V, W^O \in \mathbb{R}^{d \times d}
    let Q = XW^Q
    let K = XW^K
    let V = XW^V
    let S = \frac{1}{\sqrt{d}} QK^T
    slice S_{i,:} \in \mathbb{R}^n
    let A_{ij} = \text{softmax}(S_{i,:})_j
    let Y = AV
    let Z = YW^O
    bar gradient
"""
PRODUCT = r"""
    given X \in \mathbb{R}^{m \times n}, W \in \mathbb{R}^{n \times p}
    let Z = XW
    bar gradient
"""


def T86(it: Evidence) -> None:
    """The block has residual connections at various points.

    The whole chapter has neither their gradient nor their count. Chained layer after
    layer, the printed lines then give a wrong gradient for everything before a
    sub-layer: the gradient along the residual connection has to be added.
    """
    x, dy = numbers(5, 4), numbers(5, 4, seed=8)
    right = vjp(lambda t: its.block(t, its.block_weights(), pre=True), x, dy)
    it.left_out(
        float(np.abs(right - its.chained_backward(x, dy, residual=False)).max())
    )
    it.right(same(its.chained_backward(x, dy, residual=True), right))


def T87(it: Evidence) -> None:
    """Many newer networks are built on this block.

    The structure is the same; parts and counts differ. Llama's feed-forward layer has
    three matrices, because of its gate, and its norms have no shift.
    """
    from backpass.models import gpt2, llama

    old = " ".join(gpt2.parameter_shapes(cost.presets()["gpt2"]))
    new = " ".join(llama.parameter_shapes(cost.presets()["llama-2-7b"]))
    it.as_printed(all(old.count(f"h.0.{part}.") == 4 for part in ("attn", "mlp")))
    it.elsewhere(new.count("layers.0.mlp.") == 2 and "bias" in new)
    it.right(new.count("layers.0.mlp.") == 3 and "gate" in new)


def T88(it: Evidence) -> None:
    r"""The components are analysed one by one, and their sum is the overall cost of
    training.

    The sum is the backward of one block. In a step of GPT-2 at 1,024 tokens, the
    backward of all twelve blocks takes 49 % of the FLOPs.
    """
    rows = cost.tally("gpt2", 1, 1_024).rows
    counted = sum(r.flops for r in rows if r.repeats == 12 and r.term.way == "backward")
    whole = sum(row.flops for row in rows)
    it.left_out(whole - counted)
    it.right(round(100 * counted / whole) == 49)


def T89(it: Evidence) -> None:
    r"""The parameters of attention are $W^Q, W^K, W^V, W^O \in \mathbb R^{d \times d}$,
    for $X \in \mathbb R^{n \times d}$."""
    ours = torch.nn.MultiheadAttention(6, 1, bias=False)
    it.as_printed(sum(p.numel() for p in ours.parameters()) == 4 * 6**2)
    values, _ = its.attention_run(5, 3)
    it.as_printed(values.X.shape == values.Z.shape == (5, 3))


def T90(it: Evidence) -> None:
    """The attention shown is that of the original transformer, with one head.

    The original has eight heads, which compute a different function from the same
    weights. Its ablation includes one head.
    """
    x = torch.tensor(numbers(1, 5, 8))
    weights = [numbers(8, 8, seed=i) for i in range(4)]

    def library(heads: int) -> Any:
        layer = torch.nn.MultiheadAttention(
            8, heads, bias=False, batch_first=True, dtype=torch.float64
        )
        with torch.no_grad():
            layer.in_proj_weight.copy_(
                torch.tensor(np.concatenate([w.T for w in weights[:3]]))
            )
            layer.out_proj.weight.copy_(torch.tensor(weights[3].T))
            return layer(x, x, x)[0][0]

    found = its.attention(x[0], *map(torch.tensor, weights))["Z"]
    it.as_printed(same(found, library(1)))
    it.elsewhere(same(found, library(8), 1e-3))


def T91(it: Evidence) -> None:
    r"""$n$ is the sequence length, the number of tokens in a pass.

    The two numbers are equal for a pass over one sequence. A pass over $b$ sequences
    costs $b$ times the text's total; with $bn$ for $n$, the terms in $n^2$ come out $b$
    times too large.
    """
    n, d = 5, 3

    def by_tokens(b: int) -> Any:
        return its.printed("block", s=b * n, h=d)

    def by_length(b: int) -> Any:
        return b * its.printed("block", s=n, h=d)

    it.as_printed(by_tokens(1) == by_length(1))
    it.elsewhere(by_tokens(4) == by_length(4))
    excess = 4 * 3 * (8 * n**2 * d + 4 * n**2)
    it.right(by_tokens(4) - by_length(4) == excess)


def T92(it: Evidence) -> None:
    r"""$Q$, $K$, and $V$ are in $\mathbb R^{n \times d}$."""
    printed = r"""
        Q &= XW^Q \in \mathbb{R}^{n \times d}, \\
        K &= XW^K \in \mathbb{R}^{n \times d}, \\
        V &= XW^V \in \mathbb{R}^{n \times d},
    """
    it.as_printed(derives(printed, ATTENTION))


def T93(it: Evidence) -> None:
    r"""$S = \frac{1}{\sqrt d}QK^\top \in \mathbb R^{n \times n}$."""
    values, _ = its.attention_run(5, 3)
    each = [[values.Q[i] @ values.K[j] / 3**0.5 for j in range(5)] for i in range(5)]
    it.as_printed(same(values.S, each))


def T94(it: Evidence) -> None:
    r"""$A_{i,:} = \mathrm{softmax}(S_{i,:})$, row by row, $A \in \mathbb R^{n \times
    n}$."""
    printed = r"""
        A_{i,:} = \text{softmax}(S_{i,:}) \quad (\text{softmax applied rowwise}),
        \quad A \in \mathbb{R}^{n \times n},
    """
    given = r"""
        given S \in \mathbb{R}^{n \times n}
        let A_{ij} = \frac{e^{S_{ij}}}{\sum_k e^{S_{ik}}}
        slice S_{i,:}, A_{i,:} \in \mathbb{R}^n
    """
    it.as_printed(derives(printed, given))


def T95(it: Evidence) -> None:
    r"""$Y = AV$ and $Z = YW^O$, both in $\mathbb R^{n \times d}$."""
    values, _ = its.attention_run(5, 3)
    it.as_printed(same(np.einsum("ij,jk->ik", values.A, values.V), values.Y))
    it.as_printed(same(np.einsum("ij,jk->ik", values.Y, values.W_O), values.Z))


def T96(it: Evidence) -> None:
    r"""$Z = XW$ with $X \in \mathbb R^{m \times n}$, $W \in \mathbb R^{n \times p}$,
    and $Z \in \mathbb R^{m \times p}$.

    The shapes fit. But $n$ has just been fixed as the number of tokens, and here it is
    the inner length: in $Q = XW^Q$ the lemma's $n$ is $d$, and the tokens are its $m$.
    With the number of tokens for $n$, $2mnp$ is wrong for $Q$.
    """
    values, _ = its.attention_run(5, 3)
    ran = its.steps(its.product, values.X, values.W_Q)
    it.clashes(ran != its.printed("product", m=5, n=5, p=3))
    it.right(ran == its.printed("product", m=5, n=3, p=3))


def T97(it: Evidence) -> None:
    r"""$Z_{ij} = \sum_{k=1}^n X_{ik}W_{kj}$."""
    it.derives(PRODUCT)


def T98(it: Evidence) -> None:
    r"""$\frac{\partial Z_{ij}}{\partial X_{ab}} = \delta_{ia}W_{bj}$."""
    it.derives(PRODUCT)


def T99(it: Evidence) -> None:
    r"""$\bar{X}_{ab} = \sum_{i,j} \bar{Z}_{ij} \delta_{ia} W_{bj}$."""
    it.derives(PRODUCT)


def T100(it: Evidence) -> None:
    r"""$\sum_{i,j} \bar{Z}_{ij} \delta_{ia} W_{bj} = \sum_{j=1}^p \bar{Z}_{aj} W_{bj} =
    (\bar{Z}W^T)_{ab}$."""
    it.derives(PRODUCT)


def T101(it: Evidence) -> None:
    r"""$\bar{X} = \bar{Z}W^T$."""
    it.derives(PRODUCT)


def T102(it: Evidence) -> None:
    r"""“Similarly”, $\bar W = X^T\bar Z$.

    It is not derived; $\partial Z_{ij}/\partial W_{ab} = X_{ia}\,\delta_{jb}$ gives it.
    """
    it.as_printed(derives(r"\boxed{\bar{W} = X^T \bar{Z}}", PRODUCT))
    of_weight = r"\frac{\partial Z_{ij}}{\partial W_{ab}} = X_{ia} \delta_{jb}"
    it.right(derives(of_weight, PRODUCT))


def T103(it: Evidence) -> None:
    """The gradients are computed in reverse order, with the chain rule and the two
    formulas of a product, each from those before it."""
    values, gradients = its.attention_run()
    found = its.attention_backward(gradients.Z, values)  # line after line
    it.as_printed(all(same(found[name], getattr(gradients, name)) for name in found))


def T104(it: Evidence) -> None:
    r"""A product of matrices of sizes $m \times n$ and $n \times p$ takes $2mnp$
    operations.

    This holds if each sum starts at 0. A sum of $n$ terms needs $n - 1$ additions,
    which makes $mp(2n - 1)$. For the outer product of one row, where $n = 1$, the rule
    counts twice what runs.
    """
    for m, n, p in ((4, 3, 5), (2, 7, 1), (6, 1, 3)):
        a, b = numbers(m, n), numbers(n, p, seed=1)
        by_rule, exact = its.steps(its.product, a, b), its.steps(its.matmul, a, b)
        it.as_printed(by_rule == its.printed("product", m=m, n=n, p=p))
        it.elsewhere(exact == 2 * m * n * p)
        it.right(exact == m * p * (2 * n - 1))
