"""The section on attention: its formulas, shapes, and bytes, and the backward of the
output projection and of the product with the values."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np

from ..evidence import Evidence
from ..tools import jacobian, numbers, raises, same, torch, vjp
from .setting import GIB, LLAMA, SHAPES, norm, rotated, saved_by, tensors, weights

CLAIMS = """
F43  caveat        3  attention   attention/heads               §1.4, formulas
F44  left-out      7  positions   operations/rope               §1.4, formulas
F45  true          0  attention   attention/scaled_dot_product  §1.4, formulas
F46  left-out      1  attention   attention/grouped_query       §1.4, shapes
F47  true          0  attention   attention/grouped_query       §1.4, sizes
F48  true          0  attention   attention/heads               §1.4, shapes, W_Q
F49  true          0  attention   attention/grouped_query       §1.4, shapes, W_K and W_V
F50  true          0  attention   attention/heads               §1.4, shapes, W_O
F51  true          0  attention   attention/heads               §1.4, shapes, Q
F52  true          0  attention   attention/grouped_query       §1.4, shapes, K and V
F53  true          0  attention   attention/grouped_query       §1.4, shapes, A
F54  inconsistent  5  attention   attention/heads               §1.4, shapes, O, and its formulas
F55  caveat        1  memory      cost/memory                   §1.4, units
F56  true          0  memory      attention/scaled_dot_product  §1.4, bytes of A
F57  true          0  memory      attention/scaled_dot_product  §1.4, bytes of A
F58  caveat        3  precision   numerics/precision            §1.4, bytes of A
F59  true          0  flash       attention/flash               §1.4, FlashAttention
F60  uncheckable   0  flash       attention/flash               §1.4, FlashAttention
F61  true          0  matmul      operations/linear             §1.4, through W_O
F62  caveat        2  matmul      operations/linear             §1.4, through W_O
F63  caveat        4  attention   attention/heads               §1.4, through W_O
F64  true          0  attention   attention/scaled_dot_product  §1.4, through A V
F65  true          0  attention   attention/scaled_dot_product  §1.4, through A V
F66  true          0  chain rule  foundations/chain_rule        §1.4, through A V
F67  true          0  attention   attention/scaled_dot_product  §1.4, through A V
"""

Q, K, V = (numbers(2, 3, 5, 4, seed=i) for i in range(3))  # [B, heads, S, d_k]
A, G = numbers(2, 3, 5, 5), numbers(2, 3, 5, 4, seed=5)
W_O, X = numbers(12, 7), numbers(2, 5, 7)
MERGED, DOUT = numbers(2, 5, 12), numbers(2, 5, 7, seed=1)
WHOLE = 64 * 8192**2  # elements of A


def product(a: Any, b: Any, dy: Any) -> Any:
    """Return the gradients of the factors of a product by autograd."""
    return vjp(lambda a, b: a @ b, [a, b], dy)


def scores(q: Any, k: Any, *, mask: bool = True) -> Any:
    """Return the text's P + M, or P."""
    p = q @ k.mT / q.shape[-1] ** 0.5
    s = p.shape[-1]
    return p + torch.full((s, s), -torch.inf, dtype=p.dtype).triu(1) if mask else p


@cache
def saved_weights(of_softmax: str) -> list[int]:
    """Return the bytes per element of the arrays of weights that autograd saves where
    softmax runs in that format and its result multiplies FP16 values."""

    def attend(p: Any, v: Any) -> Any:
        return torch.softmax(p, -1, dtype=getattr(torch, of_softmax)).half() @ v

    kept = saved_by(attend, np.float16(A[0, 0]), np.float16(V[0, 0]))
    return sorted((a.itemsize for a in kept if a.shape == (5, 5)), reverse=True)


def of_weight(name: str) -> tuple[int, ...]:
    """Return the shape [in, out] of a matrix of Llama 3 70B's attention."""
    return SHAPES[f"layers.0.self_attn.{name}_proj.weight"][::-1]


@cache
def at_full_size() -> dict[str, Any]:
    """Return the arrays of an attention of Llama 3 70B at 8,192 tokens, split into
    heads, without their elements."""

    x = torch.empty(1, 8192, LLAMA.width, device="meta", dtype=torch.float16)
    q, k, v = (
        (x @ x.new_empty(of_weight(name))).unflatten(2, (heads, -1)).transpose(1, 2)
        for name, heads in (("q", 64), ("k", 8), ("v", 8))
    )
    a = torch.softmax(q @ k.repeat_interleave(8, 1).mT, -1)
    return {"Q": q, "K": k, "V": v, "A": a, "O": a @ v.repeat_interleave(8, 1)}


def shaped(it: Evidence, names: str, *shape: int) -> None:
    """Judge the shape of arrays at full size."""
    for name in names:
        it.as_printed(tuple(at_full_size()[name].shape) == shape)


def F43(it: Evidence) -> None:
    r"""$Q = x W_Q$, $K = x W_K$, $V = x W_V$.

    Here x is the norm's output, $x_\text{norm}$ further down, and not the layer's
    input, which the formulas of the layer call x."""
    gamma, w_q, dq = *weights()[:2], numbers(2, 5, 16, seed=1)
    expected = vjp(lambda w: norm(*tensors(X, gamma)) @ w, w_q, dq)
    x_norm = norm(*tensors(X, gamma)).numpy()
    it.as_printed(same(np.einsum("bsi,bso->io", x_norm, dq), expected))
    it.elsewhere(same(np.einsum("bsi,bso->io", X, dq), expected))


def F44(it: Evidence) -> None:
    """The formulas are those of the attention of Llama 3 70B, whose backward they give.

    Llama rotates queries and keys by their positions, and its backward rotates their
    gradients back. Without that the gradients of $W_Q$, $W_K$, and the input are wrong,
    and every shape fits."""
    w = numbers(7, 12)

    def split(w: Any) -> Any:
        return (tensors(X)[0] @ w).reshape(2, 5, 3, 4).transpose(1, 2)

    def attend(q: Any, k: Any) -> Any:
        return torch.softmax(scores(q, k), -1) @ tensors(V)[0]

    def dw(dq: Any) -> Any:
        return np.einsum("bsi,bhsd->ihd", X, dq).reshape(7, 12)

    of_q = (lambda q: attend(q, tensors(K)[0]), lambda k: attend(tensors(Q)[0], k))
    for rest in of_q:  # as the queries and as the keys
        expected = vjp(lambda w, rest=rest: rest(rotated(split(w))), w, G)
        unturned = split(*tensors(w)).numpy()
        after = vjp(rest, rotated(*tensors(unturned)).numpy(), G)
        it.left_out(np.abs(dw(after) - expected).max())
        it.right(same(dw(vjp(rotated, unturned, after)), expected))


def F45(it: Evidence) -> None:
    r"""$A = \text{softmax}(Q K^\top / \sqrt{d_k} + M)$ with the causal mask M, and $O =
    A V$, for as many keys' heads as queries' heads."""
    q, k, v = tensors(Q, K, V)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    it.as_printed(same((torch.softmax(scores(q, k), -1) @ v).numpy(), expected.numpy()))


def F46(it: Evidence) -> None:
    r"""$Q K^\top$ and $A V$ are products of the listed shapes: Q of [B, 64, S, 128], K
    and V of [B, 8, S, 128].

    They are if the keys and values are repeated, 8 times each, which no formula shows.
    Without that both products raise an error."""
    q, k, a = tensors(*(numbers(1, h, 3, d) for h, d in ((64, 128), (8, 128), (64, 3))))
    for left, right in ((q, k.mT), (a, k)):
        it.left_out(left.shape[1] // right.shape[1] - 1)
        it.right(raises(RuntimeError, partial(torch.matmul, left, right)))
        it.right((left @ right.repeat_interleave(8, 1)).shape[:2] == (1, 64))


def F47(it: Evidence) -> None:
    """Llama 3 70B has 64 query heads and 8 heads of keys and values."""
    it.as_printed((LLAMA.heads, LLAMA.key_heads) == (64, 8))


def F48(it: Evidence) -> None:
    r"""$W_Q$ has the shape $[d, n_h d_k] = [8192, 8192]$, as $64 \cdot 128 = 8192$."""
    it.as_printed(of_weight("q") == (8192, 64 * 128) == (8192, 8192))


def F49(it: Evidence) -> None:
    r"""$W_K$ and $W_V$ have the shape $[d, n_{kv} d_k] = [8192, 1024]$, as $8 \cdot 128
    = 1024$."""
    it.as_printed(of_weight("k") == of_weight("v") == (8192, 8 * 128) == (8192, 1024))


def F50(it: Evidence) -> None:
    """$W_O$ has the shape [$n_h d_k$, d] = [8192, 8192]."""
    it.as_printed(of_weight("o") == (64 * 128, 8192) == (8192, 8192))


def F51(it: Evidence) -> None:
    """Q has the shape [B, 64, S, 128]."""
    shaped(it, "Q", 1, 64, 8192, 128)


def F52(it: Evidence) -> None:
    """K and V have the shape [B, 8, S, 128]."""
    shaped(it, "KV", 1, 8, 8192, 128)


def F53(it: Evidence) -> None:
    """A has the shape [B, 64, S, S]: one map for each query head."""
    shaped(it, "A", 1, 64, 8192, 8192)


def F54(it: Evidence) -> None:
    r"""O has the shape $[B, n_h, S, d_k]$, and out = O $W_O$ with $W_O$ of $[n_h d_k,
    d]$.

    The gradient of O further down has the shape $[B, S, n_h d_k]$. An exchange of axes
    and a reshape lie between the two. A reshape alone fits too, and is wrong."""
    o, w_o = tensors(V, W_O)
    by_head = sum(o[:, h] @ w_o[4 * h : 4 * h + 4] for h in range(3)).numpy()
    it.clashes(raises(RuntimeError, lambda: o @ w_o))
    it.right(same((o.transpose(1, 2).reshape(2, 5, 12) @ w_o).numpy(), by_head))
    it.right(not same((o.reshape(2, 5, 12) @ w_o).numpy(), by_head))


def F55(it: Evidence) -> None:
    """A takes 8 GB in a layer and 640 GB in 80.

    These are GiB. In powers of ten they are 8.6 GB and 687 GB."""
    a = at_full_size()["A"].nbytes
    it.as_printed(a == 8 * GIB and 80 * a == 640 * GIB)
    it.elsewhere(80 * a == 640 * 10**9)
    it.right(round(a / 1e9, 1) == 8.6 and round(80 * a / 1e9) == 687)


def F56(it: Evidence) -> None:
    r"""At S = 8192, A takes $B \times 64 \times 8192 \times 8192 \times 2 = B \times 8$
    GiB in FP16.

    The causal mask makes nearly half of them 0; they are stored all the same."""
    it.as_printed(at_full_size()["A"].nbytes == 64 * 8192 * 8192 * 2 == 8 * GIB)
    it.right(np.tri(8192, dtype=bool).mean() < 0.501)


def F57(it: Evidence) -> None:
    """Across 80 layers A takes 640 GiB."""
    it.as_printed(LLAMA.layers * at_full_size()["A"].nbytes == 640 * GIB)


def F58(it: Evidence) -> None:
    """A is stored in FP16, two bytes per element.

    This holds if softmax runs in FP16. In the text's own list of precisions it runs in
    FP32; autograd then saves the FP32 result and a 16-bit copy for the product with V:
    16 + 8 GiB per layer."""
    half, full = saved_weights("float16"), saved_weights("float32")
    it.as_printed(WHOLE * sum(half) == 8 * GIB)
    it.elsewhere(WHOLE * sum(full) == 8 * GIB)
    it.right([WHOLE * b for b in full] == [16 * GIB, 8 * GIB])


def F59(it: Evidence) -> None:
    """FlashAttention never stores A.

    The largest array that autograd saves of PyTorch's fused kernel doubles with S,
    where A would grow fourfold."""
    attend = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        given = [np.float32(numbers(1, 2, s, 4)) for s in (300, 600)]
        kept = [saved_by(attend, q, q, q) for q in given]
    short, long = (max(array.size for array in arrays) for arrays in kept)
    it.as_printed(long == 2 * short > 0)


def F60(it: Evidence) -> None:
    """The memory of A is why FlashAttention exists.

    This is a statement about a motive. The paper {cite:p}`dao2022flashattention` names
    traffic between memories, and so time, first."""


def F61(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial O} = \frac{\partial L}{\partial \text{out}} W_O^\top
    \in \mathbb{R}^{B \times S \times (n_h d_k)}$, for the heads merged."""
    it.as_printed(same(DOUT @ W_O.T, product(MERGED, W_O, DOUT)[0]))


def F62(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial W_O} = O^\top \frac{\partial L}{\partial \text{out}}
    \in \mathbb{R}^{(n_h d_k) \times d}$.

    This holds if both factors are flattened to B·S rows. If they have a batch axis, so
    does the product, which then has to be summed over it."""
    _, expected = product(MERGED, W_O, DOUT)
    batched = np.swapaxes(MERGED, 1, 2) @ DOUT
    it.as_printed(same(MERGED.reshape(10, 12).T @ DOUT.reshape(10, 7), expected))
    it.elsewhere(same(batched, expected))
    it.right(same(batched.sum(0), expected))


def F63(it: Evidence) -> None:
    r"""A reshape of $\partial L/\partial O$ gives the gradient of each head, $B \times
    S \times d_k$.

    A reshape to $[B, S, n_h, d_k]$ does. A reshape straight to the shape listed for O,
    $[B, n_h, S, d_k]$, mixes heads and positions."""
    by_head = vjp(lambda o: o.transpose(1, 2).reshape(2, 5, 12), V, MERGED)
    split = MERGED.reshape(2, 5, 3, 4)
    it.as_printed(all(same(split[:, :, h], by_head[:, h]) for h in range(3)))
    it.elsewhere(same(MERGED.reshape(2, 3, 5, 4), by_head))


def F64(it: Evidence) -> None:
    r"""For one head, $\frac{\partial L}{\partial A} = \frac{\partial L}{\partial O}
    V^\top \in \mathbb{R}^{B \times S \times S}$."""
    da, _ = product(A[:, 0], V[:, 0], G[:, 0])
    it.as_printed(same(G[:, 0] @ np.swapaxes(V[:, 0], 1, 2), da))


def F65(it: Evidence) -> None:
    r"""For one head, $\frac{\partial L}{\partial V} = A^\top \frac{\partial L}{\partial
    O} \in \mathbb{R}^{B \times S \times d_k}$."""
    _, dv = product(A[:, 0], V[:, 0], G[:, 0])
    it.as_printed(same(np.swapaxes(A[:, 0], 1, 2) @ G[:, 0], dv))


def F66(it: Evidence) -> None:
    r"""The Jacobian $\partial O/\partial A$ of a head is $(B S d_k) \times (B S S)$ and
    is never formed.

    Most of it is 0: an element of O depends on one row of A."""
    a, v, do = A[:, 0], V[:, 0], G[:, 0]
    J = jacobian(lambda a: a @ tensors(v)[0], a).reshape(2 * 5 * 4, 2 * 5 * 5)
    it.as_printed(same(do.ravel() @ J, (do @ np.swapaxes(v, 1, 2)).ravel()))
    it.right(np.count_nonzero(J) == 2 * 5 * 4 * 5)


def F67(it: Evidence) -> None:
    r"""As a batched product over all heads, `grad_A = grad_O` $\cdot\, V^\top$."""
    it.as_printed(same(G @ np.swapaxes(V, 2, 3), product(A, V, G)[0]))
