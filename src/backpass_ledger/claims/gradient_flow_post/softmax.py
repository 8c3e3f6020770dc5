"""The section on attention: softmax, and FlashAttention."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from backpass.ops import attention, flash_attention

from ..evidence import Evidence
from ..tools import jacobian, numbers, same, torch, vjp
from .heads import K, Q, scores
from .setting import GIB, LLAMA, MIB, of_a_layer, tensors

CLAIMS = """
F68  uncheckable   0  softmax    operations/softmax            §1.4, softmax
F69  inconsistent  2  attention  attention/scaled_dot_product  §1.4, softmax
F70  true          0  softmax    operations/softmax            §1.4, softmax
F71  true          0  softmax    operations/softmax            §1.4, softmax's Jacobian
F72  true          0  softmax    operations/softmax            §1.4, softmax's Jacobian
F73  true          0  softmax    operations/softmax            §1.4, softmax's Jacobian
F74  true          0  softmax    operations/softmax            §1.4, softmax's gradient
F75  true          0  softmax    operations/softmax            §1.4, softmax's listing, line 1
F76  true          0  softmax    operations/softmax            §1.4, softmax's listing, line 2
F77  caveat        1  memory     attention/flash               §1.4, softmax, what is saved
F78  caveat        2  memory     attention/scaled_dot_product  §1.4, softmax, what is saved
F79  caveat        2  flash      attention/flash               §1.4, box
F80  true          0  flash      attention/flash               §1.4, box
F81  false         4  flash      attention/flash               §1.4, box
F82  true          0  flash      attention/flash               §1.4, box
F83  true          0  flash      attention/flash               §1.4, box
F84  true          0  flash      attention/flash               §1.4, box
"""

G = numbers(2, 3, 5, 5, seed=9)
ROW = r"""
    given p \in \mathbb{R}^S
    let a_i = \frac{e^{p_i}}{\sum_k e^{p_k}}
    loss L; layout numerator; factor a
"""


def backward(da: Any, a: Any) -> tuple[Any, Any]:
    """Return what the listing's two lines compute."""
    along = (a * da).sum(-1, keepdims=True)
    return along, (da - along) * a


def softmax(p: Any) -> Any:
    """PyTorch's softmax of each row."""
    return torch.softmax(p, -1)


@cache
def forward() -> tuple[Any, Any, Any]:
    """Return the masked scores of Q and K, the logarithms of the rows' sums of
    exponentials, and the weights."""
    p = scores(*tensors(Q, K))
    lse = torch.logsumexp(p, -1, keepdim=True)
    return p.numpy(), lse.numpy(), softmax(p).numpy()


def F68(it: Evidence) -> None:
    """Softmax is the most mathematically involved step.

    This is an opinion. Softmax's Jacobian has the form of RMSNorm's."""


def F69(it: Evidence) -> None:
    r"""Softmax is applied to the rows of $P = Q K^\top / \sqrt{d_k}$.

    The formula for A has the mask inside, $P + M$; without it tokens see later ones.
    The gradients below hold for both."""
    q, k = tensors(Q, K)
    masked, plain = (softmax(scores(q, k, mask=mask)).numpy() for mask in (True, False))
    it.clashes(not same(masked, plain))
    it.right((np.triu(masked, 1) == 0).all() and (plain > 0).all())
    expected = vjp(lambda q: softmax(scores(q, k)), Q, G)
    it.right(same(backward(G, masked)[1] @ K / 4**0.5, expected))


def F70(it: Evidence) -> None:
    r"""$A_{ij} = \frac{\exp(P_{ij})}{\sum_k \exp(P_{ik})}$.

    Evaluated as written, without the row's maximum subtracted, it overflows in float64
    at scores of 710."""
    e = np.exp(G)
    it.as_printed(same(softmax(tensors(G)[0]).numpy(), e / e.sum(-1, keepdims=True)))
    with np.errstate(over="ignore"):
        it.right(np.isfinite(np.exp(709.0)) and not np.isfinite(np.exp(710.0)))


def F71(it: Evidence) -> None:
    r"""$\frac{\partial a_i}{\partial p_j} = a_i (\delta_{ij} - a_j)$ for a row $a =
    \text{softmax}(p)$."""
    it.derives(ROW)


def F72(it: Evidence) -> None:
    r"""In matrix form, $\frac{\partial a}{\partial p} = \text{diag}(a) - a a^\top$."""
    it.derives(ROW)
    for p in (30 * numbers(7), np.array([0.0, -np.inf, 2.0])):
        a = softmax(tensors(p)[0]).numpy()
        it.as_printed(same(jacobian(softmax, p), np.diag(a) - np.outer(a, a)))


def F73(it: Evidence) -> None:
    """It is an S × S matrix for each row, head, and sequence of the batch."""
    J = jacobian(softmax, numbers(2, 3, 2, 4)).reshape(12, 4, 12, 4)
    it.as_printed(((np.abs(J).max((1, 3)) > 0) == np.eye(12, dtype=bool)).all())


def F74(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial p_i} = a_i \left( \frac{\partial L}{\partial a_i} -
    \sum_j a_j \frac{\partial L}{\partial a_j} \right)$."""
    it.derives(ROW)


def F75(it: Evidence) -> None:
    """The sum of weights times their gradients has the shape [B, $n_h$, S, 1]."""
    along, _ = backward(G, forward()[2])
    it.as_printed(same(along, np.einsum("bhij,bhij->bhi", G, forward()[2])[..., None]))


def F76(it: Evidence) -> None:
    """The gradient less that sum, times the weights, is the gradient of the scores, of
    shape [B, $n_h$, S, S].

    It is 0 at masked entries, and right for rows of which one weight is 1."""
    p, _, a = forward()
    it.right((np.triu(backward(G, a)[1], 1) == 0).all())
    for q in (p, 1e4 * p):
        found = backward(G, softmax(tensors(q)[0]).numpy())[1]
        it.as_printed(same(found, vjp(softmax, q, G)))


def F77(it: Evidence) -> None:
    """This requires saving A from the forward.

    The logarithm of each row's sum of exponentials is enough to compute A again."""
    p, lse, a = forward()
    expected = vjp(softmax, p, G)
    it.as_printed(same(backward(G, a)[1], expected))
    it.elsewhere(not same(backward(G, np.exp(p - lse))[1], expected))


def F78(it: Evidence) -> None:
    """No activation of the network is larger than A.

    At 8,192 tokens none is: A takes 8 GiB, the logits 1.96 GiB. Below 2,004 tokens the
    logits are larger. With FlashAttention, A is not stored."""

    a = {s: 2 * LLAMA.heads * s * s for s in (2_003, 2_004, 8_192)}
    logits = {s: 2 * s * LLAMA.vocabulary for s in a}
    it.as_printed(a[8_192] == max(of_a_layer(flash=False).values()) > logits[8_192])
    it.elsewhere(a[2_003] > logits[2_003])
    it.right(a[2_004] == logits[2_004] and a[8_192] == 8 * GIB)
    it.right(round(logits[8_192] / GIB, 2) == 1.96)


def F79(it: Evidence) -> None:
    """FlashAttention computes A again from Q and K in the backward, block by block.

    It computes A from Q, K, and the logarithm of each row's sum over all keys, which it
    saves. The box does not name this number; the listing of the last part takes it."""
    p, lse, a = forward()
    block = np.exp(p[..., 2:, :2])  # queries 2 to 4, keys 0 and 1
    it.as_printed(same(block / np.exp(lse[..., 2:, :]), a[..., 2:, :2]))
    it.elsewhere(same(block / block.sum(-1, keepdims=True), a[..., 2:, :2]))


def F80(it: Evidence) -> None:
    """The backward goes through tiles of Q, K, and V and accumulates gradients."""
    q, k, v, dy = (numbers(2, 3, 9, 4, seed=i) for i in range(4))
    _, saved = flash_attention.forward(q, k, v, causal=True, tile=2)
    found = flash_attention.backward(dy, saved)[:3]
    expected = vjp(lambda q, k, v: softmax(scores(q, k)) @ v, [q, k, v], dy)
    it.as_printed(all(same(a, b) for a, b in zip(found, expected, strict=True)))


def F81(it: Evidence) -> None:
    r"""The backward computes the local softmax of each tile again.

    A softmax over a tile is not the tile of the softmax, which is $\exp(P -
    \text{lse})$, normalised over the whole row."""
    p, lse, a = (of[..., 3:, :] for of in forward())
    tile, expected = p[..., 1:3], a[..., 1:3]
    it.as_printed(same(softmax(tensors(tile)[0]).numpy(), expected))
    it.right(same(np.exp(tile - lse), expected))


def F82(it: Evidence) -> None:
    r"""The price is one more matrix product, $Q K^\top$.

    The backward has five products in place of four."""
    n = 10**6  # so large that only the products count
    sizes = {"m": 1, "g": 1, "n_kv": 1, "s_q": n, "s_k": n, "d": n, "d_v": n}
    for op, products in ((flash_attention, 5), (attention, 4)):
        it.as_printed(round(op.backward_flops(**sizes) / n**3, 3) == 2 * products)


def F83(it: Evidence) -> None:
    r"""It eliminates the $O(B\,n_h S^2)$ memory of A."""

    plain, flash = (
        [sum(of_a_layer(of, tokens).values()) for tokens in (512, 1024, 1536)]
        for of in (False, True)
    )
    it.as_printed(np.diff(flash, 2)[0] == 0 < np.diff(plain, 2)[0])


def F84(it: Evidence) -> None:
    """For S = 8192 this saves 8 GB in a layer.

    A takes 8 GiB. The logarithms of the rows' sums, 2 MiB in FP32, are stored
    instead."""
    plain, flash = of_a_layer(flash=False), of_a_layer()
    less = sum(plain.values()) - sum(flash.values())
    it.as_printed(plain["attended.attended.a"] == 8 * GIB == 64 * 8192**2 * 2)
    it.as_printed(round(less / GIB, 2) == 8)
    it.right(8 * GIB - less == flash["attended.attended.lse"] == 2 * MIB)
