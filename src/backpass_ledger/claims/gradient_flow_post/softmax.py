"""The section on attention: softmax, and FlashAttention."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass.ops import attention, flash_attention
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.heads import K, Q, scores, tensors
from backpass_ledger.claims.gradient_flow_post.setting import (
    GIB,
    LLAMA,
    MIB,
    of_a_layer,
)
from backpass_ledger.claims.tools import jacobian, numbers, same, torch, vjp

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
F84  caveat        1  flash      attention/flash               §1.4, box
"""


G = numbers(2, 3, 5, 5, seed=9)


def backward(da: Any, a: Any) -> tuple[Any, Any]:
    """Return what the listing's two lines compute."""
    along = (a * da).sum(-1, keepdims=True)
    return along, (da - along) * a


def softmax(p: Any) -> Any:
    """PyTorch's softmax of each row."""
    return torch.softmax(p, -1)


def weights_of() -> tuple[Any, Any]:
    """Return the masked scores of Q and K, and the weights."""
    p = scores(*tensors(Q, K))
    return p.numpy(), softmax(p).numpy()


def F68(it: Evidence) -> None:
    """Softmax is the most mathematically involved step.

    An opinion. Its Jacobian has the form of RMSNorm's: a diagonal less a matrix of rank
    one.
    """


def F69(it: Evidence) -> None:
    r"""Softmax is applied to the rows of $P = Q K^\top / \sqrt{d_k}$.

    The formula for A has the mask inside, $P + M$. Without it every token sees later
    ones. The gradients below hold for both, because M is constant.
    """
    q, k = tensors(Q, K)
    masked, plain = (softmax(scores(q, k, mask=mask)).numpy() for mask in (True, False))
    it.clashes(not same(masked, plain))
    it.right((np.triu(masked, 1) == 0).all() and (plain > 0).all())
    expected = vjp(lambda q: softmax(scores(q, tensors(K)[0])), Q, G)
    dp = masked * (G - (G * masked).sum(-1, keepdims=True))
    it.right(same(dp @ K / 4**0.5, expected))


def F70(it: Evidence) -> None:
    r"""$A_{ij} = \frac{\exp(P_{ij})}{\sum_k \exp(P_{ik})}$.

    A program subtracts the row's maximum first: evaluated as written, the formula
    overflows in float64 at scores of 710.
    """
    e = np.exp(G)
    it.as_printed(same(softmax(tensors(G)[0]).numpy(), e / e.sum(-1, keepdims=True)))
    with np.errstate(over="ignore"):
        it.right(np.isfinite(np.exp(709.0)) and not np.isfinite(np.exp(710.0)))


def F71(it: Evidence) -> None:
    r"""$\frac{\partial a_i}{\partial p_j} = a_i (\delta_{ij} - a_j)$ for a row $a =
    \text{softmax}(p)$."""
    import sympy

    p = sympy.symbols("p:3")
    a = [sympy.exp(v) / sum(map(sympy.exp, p)) for v in p]
    for i in range(3):
        for j in range(3):
            rest = sympy.diff(a[i], p[j]) - a[i] * (int(i == j) - a[j])
            it.as_printed(sympy.simplify(rest) == 0)


def F72(it: Evidence) -> None:
    r"""In matrix form it is $\text{diag}(a) - a a^\top$."""
    for p in (numbers(7), 30 * numbers(7), np.array([0.0, -np.inf, 2.0])):
        a = softmax(tensors(p)[0]).numpy()
        it.as_printed(same(jacobian(softmax, p), np.diag(a) - np.outer(a, a)))


def F73(it: Evidence) -> None:
    """It is an S × S matrix for each row, head, and sequence of the batch."""
    J = jacobian(softmax, numbers(2, 3, 2, 4)).reshape(12, 4, 12, 4)
    blocks = np.abs(J).max((1, 3)) > 0
    it.as_printed((blocks == np.eye(2 * 3 * 2, dtype=bool)).all())


def F74(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial p_i} = a_i \left( \frac{\partial L}{\partial a_i} -
    \sum_j a_j \frac{\partial L}{\partial a_j} \right)$."""
    for p in (numbers(7), 30 * numbers(7)):
        g = numbers(7, seed=1)
        a = softmax(tensors(p)[0]).numpy()
        printed = [a[i] * (g[i] - sum(a[j] * g[j] for j in range(7))) for i in range(7)]
        it.as_printed(same(printed, vjp(softmax, p, g)))


def F75(it: Evidence) -> None:
    """The sum of weights times their gradients has the shape [B, $n_h$, S, 1]."""
    _, a = weights_of()
    along, _ = backward(G, a)
    it.as_printed(same(along[..., 0], np.einsum("bhij,bhij->bhi", G, a)))


def F76(it: Evidence) -> None:
    """The gradient less that sum, times the weights, is the gradient of the scores, of
    shape [B, $n_h$, S, S].

    It is 0 at masked entries, and right for rows of which one weight is 1.
    """
    p, a = weights_of()
    _, found = backward(G, a)
    it.as_printed(same(found, vjp(softmax, p, G)))
    it.right((np.triu(found, 1) == 0).all())
    sharp = 1e4 * p
    a = softmax(tensors(sharp)[0]).numpy()
    it.as_printed(same(backward(G, a)[1], vjp(softmax, sharp, G)))


def F77(it: Evidence) -> None:
    """This requires saving A from the forward.

    It requires A in the backward. One number for each row, the logarithm of its sum of
    exponentials, is enough to compute A again, as the text's next box says.
    """
    p, a = weights_of()
    expected = vjp(softmax, p, G)
    it.as_printed(same(backward(G, a)[1], expected))
    lse = torch.logsumexp(tensors(p)[0], -1, keepdim=True).numpy()
    again = np.exp(p - lse)
    it.elsewhere(not same(backward(G, again)[1], expected))


def F78(it: Evidence) -> None:
    """No activation of the network is larger than A.

    At 8,192 tokens it is: 8 GiB, against 1.96 GiB of logits. Below 2,004 tokens the
    logits are larger. With FlashAttention, A is not stored.
    """

    def of_a(s: int) -> int:
        return LLAMA.heads * s * s

    def of_logits(s: int) -> int:
        return s * LLAMA.vocabulary

    others = of_a_layer(flash=False)
    it.as_printed(of_a(8_192) * 2 == max(others.values()) > of_logits(8_192) * 2)
    it.elsewhere(of_a(2_003) > of_logits(2_003))
    it.right(of_a(2_004) == of_logits(2_004))
    it.right(
        of_a(8_192) * 2 == 8 * GIB and round(of_logits(8_192) * 2 / GIB, 2) == 1.96
    )


def F79(it: Evidence) -> None:
    """FlashAttention computes A again from Q and K in the backward, block by block.

    From Q, K, and the logarithm of each row's sum, which it saves. A block of Q and one
    of K are not enough, because the sum goes over all keys. The box does not name this
    number; the listing of the last part takes it.
    """
    p, a = weights_of()
    block = np.exp(p[..., 2:, :2])  # queries 2 to 4, keys 0 and 1
    lse = np.log(np.exp(p).sum(-1, keepdims=True))
    it.as_printed(same(np.exp(p[..., 2:, :2] - lse[..., 2:, :]), a[..., 2:, :2]))
    it.elsewhere(same(block / block.sum(-1, keepdims=True), a[..., 2:, :2]))


def F80(it: Evidence) -> None:
    """The backward goes through tiles of Q, K, and V and accumulates gradients."""
    q, k, v = (numbers(2, 3, 9, 4, seed=i) for i in range(3))
    dy = numbers(2, 3, 9, 4, seed=3)

    def attend(q: Any, k: Any, v: Any) -> Any:
        return softmax(scores(q, k)) @ v

    _, saved = flash_attention.forward(q, k, v, causal=True, tile=2)
    found = flash_attention.backward(dy, saved)[:3]
    expected = vjp(attend, [q, k, v], dy)
    it.as_printed(all(same(a, b) for a, b in zip(found, expected, strict=True)))


def F81(it: Evidence) -> None:
    r"""The backward computes the local softmax of each tile again.

    A softmax over a tile is not the tile of the softmax. Each tile is $\exp(P -
    \text{lse})$, normalised over the whole row, and no maximum or sum of the tile is
    used.
    """
    p, a = weights_of()
    tile = p[..., 3:, 1:3]
    it.as_printed(same(softmax(tensors(tile)[0]).numpy(), a[..., 3:, 1:3]))
    lse = np.log(np.exp(p).sum(-1, keepdims=True))[..., 3:, :]
    it.right(same(np.exp(tile - lse), a[..., 3:, 1:3]))


def F82(it: Evidence) -> None:
    r"""The price is one more matrix product, $Q K^\top$.

    The backward has five products in place of four.
    """
    import sympy

    s, d = sympy.symbols("s d")
    at = {"m": 1, "g": 1, "n_kv": 1, "s_q": s, "s_k": s, "d": d, "d_v": d}
    for op, products in ((flash_attention, 5), (attention, 4)):
        flops = sympy.Poly(op.backward_flops(**at), s, d)
        it.as_printed(flops.coeff_monomial(s**2 * d) == 2 * products)


def F83(it: Evidence) -> None:
    r"""It eliminates the $O(B\,n_h S^2)$ memory of A."""

    def of_attention(s: int, *, flash: bool) -> int:
        return sum(
            size
            for name, size in of_a_layer(flash, s).items()
            if name.startswith("attended.attended")
        )

    def second_difference(flash: bool) -> int:
        low, middle, high = (of_attention(s, flash=flash) for s in (512, 1024, 1536))
        return high - 2 * middle + low

    it.as_printed(second_difference(flash=True) == 0 < second_difference(flash=False))


def F84(it: Evidence) -> None:
    """For S = 8192 this saves 8 GB in a layer.

    A takes 8 GiB. The logarithms of the rows' sums, 2 MiB in FP32, have to be
    subtracted.
    """
    plain, flash = of_a_layer(flash=False), of_a_layer()
    it.as_printed(plain["attended.attended.a"] == 8 * GIB == 64 * 8192**2 * 2)
    less = sum(plain.values()) - sum(flash.values())
    it.elsewhere(less == 8 * GIB)
    it.right(less == 8 * GIB - 2 * MIB and flash["attended.attended.lse"] == 2 * MIB)
