"""The section on attention: its formulas, shapes, and bytes, and the backward of the
output projection and of the product with the values."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass.models import llama
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.setting import (
    GIB,
    LLAMA,
    norm,
    of_a_layer,
    rotated,
    weights,
)
from backpass_ledger.claims.tools import jacobian, numbers, raises, same, torch, vjp

CLAIMS = """
F43  caveat        3  attention   attention/heads               §1.4, formulas
F44  left-out      7  positions   operations/rope               §1.4, formulas
F45  true          0  attention   attention/scaled_dot_product  §1.4, formulas
F46  caveat        1  attention   attention/grouped_query       §1.4, shapes
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
W_O, X = numbers(12, 7), numbers(2, 5, 7)
SHAPES = llama.parameter_shapes(LLAMA)  # [out, in]


def scores(q: Any, k: Any, *, mask: bool = True) -> Any:
    """Return the text's P + M, or P."""
    p = q @ k.mT / q.shape[-1] ** 0.5
    s = p.shape[-1]
    return p + torch.full((s, s), -torch.inf, dtype=p.dtype).triu(1) if mask else p


def tensors(*arrays: Any) -> list[Any]:
    """Return arrays as tensors of PyTorch."""
    return [torch.tensor(array) for array in arrays]


def saved_weights(of_softmax: str) -> list[int]:
    """Return the bytes an element of the arrays of weights that autograd saves where
    softmax runs in that format and its result multiplies FP16 values."""
    p, v = (array.half().requires_grad_() for array in tensors(numbers(5, 5), V[0, 0]))
    kept: dict[int, Any] = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.setdefault(x.data_ptr(), x), lambda x: x
    ):
        torch.softmax(p, -1, dtype=getattr(torch, of_softmax)).half() @ v
    found = [x.element_size() for x in kept.values() if x.shape == p.shape]
    return sorted(found, reverse=True)


def at_full_size() -> dict[str, Any]:
    """Return the arrays of an attention of Llama 3 70B at 8,192 tokens, split into
    heads, without their elements."""

    def empty(*shape: int) -> Any:
        return torch.empty(shape, device="meta", dtype=torch.float16)

    def projected(name: str, heads: int) -> Any:
        w = empty(*SHAPES[f"layers.0.self_attn.{name}_proj.weight"]).T
        return (empty(1, 8192, LLAMA.width) @ w).reshape(1, 8192, heads, -1).mT

    q, k, v = projected("q", 64), projected("k", 8), projected("v", 8)
    q, k, v = (x.permute(0, 3, 1, 2).reshape(1, -1, 8192, 128) for x in (q, k, v))
    a = torch.softmax(q @ k.repeat_interleave(8, 1).mT, -1)
    return {"Q": q, "K": k, "V": v, "A": a, "O": a @ v.repeat_interleave(8, 1)}


def F43(it: Evidence) -> None:
    r"""$Q = x W_Q$, $K = x W_K$, $V = x W_V$.

    Here x is the norm's output and not the layer's input, which the formulas of the
    layer call x. The weights' gradients further down have $x_\text{norm}$.
    """
    w = weights()
    x, w_q = numbers(2, 5, 7), w[1]
    gamma = w[0]
    dq = numbers(2, 5, 16, seed=1)
    x_norm = norm(*tensors(x, gamma)).numpy()

    def of_layer(w_q: Any) -> Any:
        return norm(*tensors(x, gamma)) @ w_q

    expected = vjp(of_layer, w_q, dq)
    it.as_printed(same(np.einsum("bsi,bso->io", x_norm, dq), expected))
    it.elsewhere(same(np.einsum("bsi,bso->io", x, dq), expected))


def F44(it: Evidence) -> None:
    """The formulas are those of the attention of Llama 3 70B, whose backward they give.

    Llama rotates queries and keys by their positions before the scores. The backward
    has to rotate their gradients back before the projections. Without that the
    gradients of $W_Q$, $W_K$, and the input are wrong, and every shape fits.
    """
    w, g = numbers(7, 12), numbers(2, 3, 5, 4, seed=4)

    def split(w: Any) -> Any:
        return (tensors(X)[0] @ w).reshape(2, 5, 3, 4).transpose(1, 2)

    def attend(q: Any, k: Any) -> Any:
        return torch.softmax(scores(q, k), -1) @ tensors(V)[0]

    of_q = (lambda q: attend(q, tensors(K)[0]), lambda k: attend(tensors(Q)[0], k))
    for rest in of_q:  # as the queries and as the keys
        expected = vjp(lambda w, rest=rest: rest(rotated(split(w))), w, g)
        unturned = split(*tensors(w)).numpy()
        after = vjp(rest, rotated(*tensors(unturned)).numpy(), g)
        printed = np.einsum("bsi,bhsd->ihd", X, after).reshape(7, 12)
        it.left_out(np.abs(printed - expected).max())
        back = vjp(rotated, unturned, after)
        it.right(same(np.einsum("bsi,bhsd->ihd", X, back).reshape(7, 12), expected))


def F45(it: Evidence) -> None:
    r"""$A = \text{softmax}(Q K^\top / \sqrt{d_k} + M)$ with the causal mask M, and $O =
    A V$, for as many keys' heads as queries' heads."""
    q, k, v = tensors(Q, K, V)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    a = torch.softmax(scores(q, k), -1)
    it.as_printed(same((a @ v).numpy(), expected.numpy()))


def F46(it: Evidence) -> None:
    r"""$Q K^\top$ and $A V$ for Q of the shape [B, 64, S, 128] and K and V of [B, 8, S,
    128].

    The keys and values of 8 heads have to be repeated, 8 times each, which no formula
    shows. With one head of keys the product runs as printed.
    """
    q, k = tensors(numbers(1, 64, 3, 128), numbers(1, 8, 3, 128))
    it.as_printed(tuple((q @ k[:, :1].mT).shape) == (1, 64, 3, 3))
    it.elsewhere(not raises(RuntimeError, lambda: q @ k.mT))
    it.right(tuple((q @ k.repeat_interleave(8, 1).mT).shape) == (1, 64, 3, 3))


def F47(it: Evidence) -> None:
    """Llama 3 70B has 64 query heads and 8 heads of keys and values."""
    it.as_printed((LLAMA.heads, LLAMA.key_heads) == (64, 8))


def F48(it: Evidence) -> None:
    r"""$W_Q$ has the shape $[d, n_h d_k] = [8192, 8192]$, as $64 \cdot 128 = 8192$."""
    it.as_printed(SHAPES["layers.0.self_attn.q_proj.weight"] == (64 * 128, 8192))
    it.as_printed(64 * 128 == 8192)


def F49(it: Evidence) -> None:
    r"""$W_K$ and $W_V$ have the shape $[d, n_{kv} d_k] = [8192, 1024]$, as $8 \cdot 128
    = 1024$."""
    for name in "kv":
        shape = SHAPES[f"layers.0.self_attn.{name}_proj.weight"]
        it.as_printed(shape == (8 * 128, 8192) == (1024, 8192))


def F50(it: Evidence) -> None:
    """$W_O$ has the shape [$n_h d_k$, d] = [8192, 8192]."""
    it.as_printed(SHAPES["layers.0.self_attn.o_proj.weight"] == (8192, 64 * 128))


def F51(it: Evidence) -> None:
    """Q has the shape [B, 64, S, 128]."""
    it.as_printed(tuple(at_full_size()["Q"].shape) == (1, 64, 8192, 128))


def F52(it: Evidence) -> None:
    """K and V have the shape [B, 8, S, 128]."""
    arrays = at_full_size()
    it.as_printed(tuple(arrays["K"].shape) == (1, 8, 8192, 128))
    it.as_printed(tuple(arrays["V"].shape) == (1, 8, 8192, 128))


def F53(it: Evidence) -> None:
    """A has the shape [B, 64, S, S]: one map for each query head."""
    it.as_printed(tuple(at_full_size()["A"].shape) == (1, 64, 8192, 8192))


def F54(it: Evidence) -> None:
    r"""O has the shape $[B, n_h, S, d_k]$, and out = O $W_O$ with $W_O$ of $[n_h d_k,
    d]$.

    The gradient of O further down has the shape $[B, S, n_h d_k]$. These are two
    arrays: an exchange of axes and a reshape lie between them, and the text has
    neither. A reshape alone fits too, and is wrong.
    """
    q, k, v = tensors(Q, K, V)
    o = scores(q, k).softmax(-1) @ v
    it.clashes(tuple(o.shape) == (2, 3, 5, 4) != (2, 5, 12))
    it.right(raises(RuntimeError, lambda: o @ tensors(W_O)[0]))
    merged = o.transpose(1, 2).reshape(2, 5, 12)
    by_head = sum(o[:, h] @ tensors(W_O[4 * h : 4 * h + 4])[0] for h in range(3))
    it.right(same((merged @ tensors(W_O)[0]).numpy(), by_head.numpy()))
    it.right(not same((o.reshape(2, 5, 12) @ tensors(W_O)[0]).numpy(), by_head.numpy()))


def F55(it: Evidence) -> None:
    """A takes 8 GB in a layer and 640 GB in 80.

    These are GiB. In powers of ten they are 8.6 GB and 687 GB.
    """
    a = of_a_layer(flash=False)["attended.attended.a"]
    it.as_printed(a == 8 * GIB and 80 * a == 640 * GIB)
    it.elsewhere(80 * a == 640 * 10**9)
    it.right(round(a / 1e9, 1) == 8.6 and round(80 * a / 1e9) == 687)


def F56(it: Evidence) -> None:
    r"""At S = 8192, A takes $B \times 64 \times 8192 \times 8192 \times 2 = B \times 8$
    GiB in FP16.

    The causal mask makes nearly half of these numbers 0, and they are stored all the
    same.
    """
    a = at_full_size()["A"]
    it.as_printed(a.nbytes == 64 * 8192 * 8192 * 2 == 8 * GIB)
    it.right(np.tri(8192, dtype=bool).mean() < 0.501)


def F57(it: Evidence) -> None:
    """Across 80 layers A takes 640 GiB."""
    it.as_printed(LLAMA.layers * at_full_size()["A"].nbytes == 640 * GIB)


def F58(it: Evidence) -> None:
    """A is stored in FP16, two bytes an element.

    This holds if softmax runs in FP16. The text's own list of precisions has softmax in
    FP32. Autograd then saves its FP32 result, and beside it the 16-bit copy that
    multiplies the values: 16 + 8 GiB a layer.
    """
    elements = 64 * 8192**2
    bytes_each = {name: saved_weights(name) for name in ("float16", "float32")}
    it.as_printed(elements * sum(bytes_each["float16"]) == 8 * GIB)
    it.elsewhere(elements * sum(bytes_each["float32"]) == 8 * GIB)
    it.right([elements * b for b in bytes_each["float32"]] == [16 * GIB, 8 * GIB])


def F59(it: Evidence) -> None:
    """FlashAttention never stores A.

    It forms one tile of A at a time. The check lists what autograd saves of PyTorch's
    fused kernel: the largest array doubles with S, where A would grow fourfold.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def largest(s: int) -> int:
        kept: dict[int, Any] = {}
        q, k, v = (torch.randn(1, 2, s, 4, requires_grad=True) for _ in range(3))
        with (
            torch.autograd.graph.saved_tensors_hooks(
                lambda t: kept.setdefault(t.data_ptr(), t), lambda t: t
            ),
            sdpa_kernel(SDPBackend.FLASH_ATTENTION),
        ):
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return max(t.numel() for t in kept.values())

    it.as_printed(largest(600) == 2 * largest(300) > 0)


def F60(it: Evidence) -> None:
    """The memory of A is why FlashAttention exists.

    A motive cannot be computed. The paper {cite:p}`dao2022flashattention` names traffic
    between memories, and so time, before the memory saved.
    """


def F61(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial O} = \frac{\partial L}{\partial \text{out}} W_O^\top
    \in \mathbb{R}^{B \times S \times (n_h d_k)}$, for the heads merged."""
    o, g = numbers(2, 5, 12), numbers(2, 5, 7, seed=1)
    expected = vjp(lambda o: o @ tensors(W_O)[0], o, g)
    it.as_printed(same(g @ W_O.T, expected) and (g @ W_O.T).shape == (2, 5, 12))


def F62(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial W_O} = O^\top \frac{\partial L}{\partial \text{out}}
    \in \mathbb{R}^{(n_h d_k) \times d}$.

    This needs both factors flattened to B·S rows. For the arrays as introduced, with an
    axis for the batch, the product has that axis too and has to be summed over it.
    """
    o, g = numbers(2, 5, 12), numbers(2, 5, 7, seed=1)
    expected = vjp(lambda w: tensors(o)[0] @ w, W_O, g)
    it.as_printed(same(o.reshape(10, 12).T @ g.reshape(10, 7), expected))
    batched = np.swapaxes(o, 1, 2) @ g
    it.elsewhere(same(batched, expected))
    it.right(batched.shape == (2, 12, 7) and same(batched.sum(0), expected))


def F63(it: Evidence) -> None:
    r"""A reshape of $\partial L/\partial O$ gives the gradient of each head, $B \times
    S \times d_k$.

    The last axis has to be split, $[B, S, n_h, d_k]$, and the heads are its third axis.
    A reshape straight to the shape that the text lists for O, $[B, n_h, S, d_k]$, mixes
    heads and positions.
    """
    merged = numbers(2, 5, 12)

    def merge(o: Any) -> Any:
        return o.transpose(1, 2).reshape(2, 5, 12)

    by_head = vjp(merge, numbers(2, 3, 5, 4), merged)
    split = merged.reshape(2, 5, 3, 4)
    it.as_printed(all(same(split[:, :, h], by_head[:, h]) for h in range(3)))
    it.elsewhere(same(merged.reshape(2, 3, 5, 4), by_head))


def F64(it: Evidence) -> None:
    r"""For one head, $\frac{\partial L}{\partial A} = \frac{\partial L}{\partial O}
    V^\top \in \mathbb{R}^{B \times S \times S}$."""
    a, v, g = numbers(2, 5, 5), V[:, 0], numbers(2, 5, 4, seed=5)
    expected = vjp(lambda a: a @ tensors(v)[0], a, g)
    it.as_printed(same(g @ np.swapaxes(v, 1, 2), expected))


def F65(it: Evidence) -> None:
    r"""For one head, $\frac{\partial L}{\partial V} = A^\top \frac{\partial L}{\partial
    O} \in \mathbb{R}^{B \times S \times d_k}$."""
    a, v, g = numbers(2, 5, 5), V[:, 0], numbers(2, 5, 4, seed=5)
    expected = vjp(lambda v: tensors(a)[0] @ v, v, g)
    it.as_printed(same(np.swapaxes(a, 1, 2) @ g, expected))


def F66(it: Evidence) -> None:
    r"""The Jacobian $\partial O/\partial A$ of a head is $(B S d_k) \times (B S S)$ and
    is never formed.

    Most of it is 0: an element of O depends on one row of A.
    """
    v, a, g = V[:, 0], numbers(2, 5, 5), numbers(2, 5, 4, seed=5)
    J = jacobian(lambda a: a @ tensors(v)[0], a).reshape(2 * 5 * 4, 2 * 5 * 5)
    it.as_printed(same(g.ravel() @ J, (g @ np.swapaxes(v, 1, 2)).ravel()))
    it.right(np.count_nonzero(J) == 2 * 5 * 4 * 5)


def F67(it: Evidence) -> None:
    r"""As a batched product over all heads, `grad_A = grad_O` $\cdot\, V^\top$."""
    a, g = numbers(2, 3, 5, 5), numbers(2, 3, 5, 4, seed=5)
    expected = vjp(lambda a: a @ tensors(V)[0], a, g)
    it.as_printed(same(g @ np.swapaxes(V, 2, 3), expected))
