"""§3.1, and §3.1.1 as far as the gradients of a product."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass import cost
from backpass.models import gpt2, llama
from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.encoder_block import ATTENTION, printed, row
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.thesis.opening import gpt2_flops, in_blocks
from backpass_ledger.claims.tools import numbers, same, torch, vjp

CLAIMS = """
T86   left-out      8  residual    operations/residual_stream    §3.1, the block
T87   true          0  FLOPs       networks/llama                §3.1, newer networks
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

PRODUCT = r"""
    given X \in \mathbb{R}^{m \times n}, W \in \mathbb{R}^{n \times p}
    let Z = XW
    bar gradient
"""


def T86(it: Evidence) -> None:
    """The block has residual connections at various points.

    The chapter has neither their gradient, which has to be added, nor its count.
    Chained layer after layer, the printed lines then give a wrong gradient for
    everything before a sub-layer."""
    x, dy = numbers(5, 4), numbers(5, 4, seed=8)
    right = vjp(lambda t: its.block(t, its.block_weights(), pre=True), x, dy)
    without = its.chained_backward(x, dy, residual=False)
    it.left_out(float(np.abs(right - without).max()))
    it.right(same(its.chained_backward(x, dy, residual=True), right))


def T87(it: Evidence) -> None:
    """Many newer networks are built on this block.

    The structure is the same; parts and counts differ. Llama's feed-forward layer has
    three matrices, because of its gate, and its norms have no shift."""
    old = list(gpt2.parameter_shapes(cost.presets()["gpt2"]))
    new = list(llama.parameter_shapes(cost.presets()["llama-2-7b"]))
    for names, parts in ((old, ("attn", "mlp")), (new, ("self_attn", "mlp"))):
        it.as_printed(all(any(f".0.{part}." in n for n in names) for part in parts))
    it.right(sum("layers.0.mlp." in name for name in new) == 3)
    it.right(not any("bias" in name for name in new))


def T88(it: Evidence) -> None:
    r"""The sum of the components, analysed one by one, is the overall training cost.

    The sum is the backward of one block. In a step of GPT-2 at 1,024 tokens, the
    backward of all twelve blocks takes 49 % of the FLOPs."""
    blocks, whole = gpt2_flops(1_024, in_blocks), gpt2_flops(1_024, lambda row: True)
    it.left_out(whole - blocks)
    it.right(round(100 * blocks / whole) == 49)


def T89(it: Evidence) -> None:
    r"""The parameters of attention are $W^Q, W^K, W^V, W^O \in \mathbb R^{d \times d}$,
    for $X \in \mathbb R^{n \times d}$."""
    ours = torch.nn.MultiheadAttention(6, 1, bias=False)
    it.as_printed(sum(p.numel() for p in ours.parameters()) == 4 * 6**2)
    values, _ = its.attention_run(5, 3)
    it.as_printed(values.X.shape == values.Z.shape == (5, 3))


def T90(it: Evidence) -> None:
    """The attention shown is that of the original transformer, with one head.

    The original has eight heads: a different function of the same weights."""
    x, weights = torch.tensor(numbers(5, 8)), torch.tensor(numbers(4, 8, 8))

    def library(heads: int) -> Any:
        layer = torch.nn.MultiheadAttention(8, heads, bias=False, dtype=torch.float64)
        layer.in_proj_weight.data = torch.cat([w.T for w in weights[:3]])
        layer.out_proj.weight.data = weights[3].T
        return layer(x, x, x)[0].detach()

    found = its.attention(x, *weights)["Z"]
    it.as_printed(same(found, library(1)))
    it.elsewhere(same(found, library(8), 1e-3))


def T91(it: Evidence) -> None:
    r"""$n$ is the sequence length, the number of tokens in a pass.

    So it is for one sequence. A pass over $b$ sequences costs $b$ times the text's
    total; with $bn$ for $n$, the terms in $n^2$ are $b$ times too large."""
    n, d, block = 5, 3, row("block")
    excess = [block(b * n, d) - b * block(n, d) for b in (1, 4)]
    it.as_printed(excess[0] == 0)
    it.elsewhere(excess[1] == 0)
    it.right(excess[1] == (4 - 1) * 4 * (8 * n**2 * d + 4 * n**2))


def T92(it: Evidence) -> None:
    r"""$Q = XW^Q \in \mathbb{R}^{n \times d}$, $K = XW^K \in \mathbb{R}^{n \times d}$,
    and $V = XW^V \in \mathbb{R}^{n \times d}$."""
    values, _ = its.attention_run(5, 3)
    for name in "QKV":
        rows = [x @ getattr(values, f"W_{name}") for x in values.X]
        it.as_printed(same(getattr(values, name), rows))


def T93(it: Evidence) -> None:
    r"""$S = \frac{1}{\sqrt d}QK^\top \in \mathbb R^{n \times n}$."""
    values, _ = its.attention_run(5, 3)
    each = [[q @ k / 3**0.5 for k in values.K] for q in values.Q]
    it.as_printed(same(values.S, each))


def T94(it: Evidence) -> None:
    r"""$A_{i,:} = \text{softmax}(S_{i,:})$, by row, $A \in \mathbb{R}^{n\times n}$."""
    it.derives(ATTENTION + r"slice S_{i,:}, A_{i,:} \in \mathbb{R}^n")


def T95(it: Evidence) -> None:
    r"""$Y = AV$ and $Z = YW^O$, both in $\mathbb R^{n \times d}$."""
    values, _ = its.attention_run(5, 3)
    it.as_printed(same(np.einsum("ij,jk->ik", values.A, values.V), values.Y))
    it.as_printed(same(np.einsum("ij,jk->ik", values.Y, values.W_O), values.Z))


def T96(it: Evidence) -> None:
    r"""$Z = XW$ with $X \in \mathbb R^{m \times n}$, $W \in \mathbb R^{n \times p}$,
    and $Z \in \mathbb R^{m \times p}$.

    The shapes fit. But $n$ has just been fixed as the number of tokens, and here it is
    the inner length: with the number of tokens for $n$, $2mnp$ is wrong for $Q =
    XW^Q$."""
    ran = its.products("ndd")(5, 3)
    it.clashes(ran != printed("product", m=5, n=5, p=3))
    it.right(ran == printed("product", m=5, n=3, p=3))


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
    r"""“Similarly”, $\bar{W} = X^T \bar{Z}$.

    It follows from $\frac{\partial Z_{ij}}{\partial W_{ab}} = X_{ia} \delta_{jb}$."""
    it.derives(PRODUCT)
    it.derives_right(PRODUCT)


def T103(it: Evidence) -> None:
    """The gradients are computed in reverse order, each from those before it."""
    values, gradients = its.attention_run()
    found = its.lines(its.attention_backward, values, gradients.Z)[0]
    it.as_printed(all(same(found[name], getattr(gradients, name)) for name in found))


def T104(it: Evidence) -> None:
    r"""A product of sizes $m \times n$ and $n \times p$ takes $2mnp$ operations.

    This holds if each sum starts at 0. A sum of $n$ terms needs $n - 1$ additions,
    which makes $mp(2n - 1)$: half of the rule's count for an outer product."""
    for m, n, p in ((4, 3, 5), (2, 7, 1), (6, 1, 3)):
        ran = its.products("mnp", m=m, p=p)
        it.as_printed(ran(n, 1) == printed("product", m=m, n=n, p=p))
        it.elsewhere(ran(n, 1, its.EXACT) == 2 * m * n * p)
        it.right(ran(n, 1, its.EXACT) == m * p * (2 * n - 1))
