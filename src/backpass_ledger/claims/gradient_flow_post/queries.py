"""The section on attention: queries, keys, projections, and the table of sizes."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np

from backpass.ops import attention as whole
from backpass.ops import flash_attention
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gradient_flow_post.heads import (
    SHAPES,
    K,
    Q,
    at_full_size,
    scores,
    tensors,
)
from backpass_ledger.claims.gradient_flow_post.setting import (
    GIB,
    LLAMA,
    MIB,
    attention,
    of_a_layer,
    weights,
)
from backpass_ledger.claims.tools import numbers, raises, same, torch, vjp

CLAIMS = """
F85   caveat    2  attention  attention/grouped_query       §1.4, through Q and K
F86   caveat    3  attention  attention/grouped_query       §1.4, through Q and K
F87   true      0  attention  attention/grouped_query       §1.4, groups
F88   true      0  attention  attention/grouped_query       §1.4, groups
F89   caveat    3  attention  attention/grouped_query       §1.4, groups, code
F90   left-out  5  attention  attention/grouped_query       §1.4, groups
F91   true      0  matmul     attention/heads               §1.4, weights
F92   true      0  matmul     attention/grouped_query       §1.4, weights
F93   true      0  matmul     attention/grouped_query       §1.4, weights
F94   caveat    4  attention  attention/heads               §1.4, weights
F95   true      0  matmul     operations/linear             §1.4, weights
F96   left-out  3  attention  attention/heads               §1.4, the end
F97   false     1  notation   foundations/chain_rule        §1.4, table, title
F98   caveat    1  memory     cost/memory                   §1.4, table, units
F99   true      0  memory     attention/scaled_dot_product  §1.4, table, dL/dA
F100  true      0  flash      attention/flash               §1.4, table, dL/dA, note
F101  true      0  memory     attention/grouped_query       §1.4, table, dL/dQ
F102  true      0  memory     attention/grouped_query       §1.4, table, dL/dK
F103  caveat    3  memory     attention/grouped_query       §1.4, table, dL/dV
F104  true      0  memory     cost/memory                   §1.4, table, dL/dW_Q
F105  true      0  memory     cost/memory                   §1.4, table, dL/dW_K
F106  true      0  memory     cost/memory                   §1.4, table, dL/dW_V
F107  true      0  memory     cost/memory                   §1.4, table, dL/dW_O
F108  caveat    2  precision  numerics/precision            §1.4, table, notes of the weights
F109  left-out  3  memory     attention/scaled_dot_product  §1.4, table
F110  true      0  flash      attention/flash               §1.4, table, note
"""


DP = numbers(2, 3, 5, 5, seed=6)
GROUPED = numbers(2, 1, 5, 4, seed=7)  # one head of keys for three of queries


def gradients() -> dict[str, Any]:
    """Return the gradients of the table for Llama 3 70B, without their elements."""
    arrays = at_full_size()
    named = {f"dL/d{name}": array for name, array in arrays.items()}
    for name in "qkvo":
        shape = SHAPES[f"layers.0.self_attn.{name}_proj.weight"][::-1]
        named[f"dL/dW_{name.upper()}"] = torch.empty(
            shape, device="meta", dtype=torch.float16
        )
    return named


def projections(x_norm: Any) -> tuple[Any, ...]:
    """Return the weights of attention, and by autograd the gradients of its queries,
    keys, and values, merged to [B, S, columns], and of everything that enters it."""
    w, dy = weights()[1:5], numbers(2, 5, 7, seed=8)
    merged = [x_norm @ of for of in w[:3]]
    picks = np.split(np.eye(16 + 8 + 8), [16, 16 + 8], axis=1)

    def after(*merged: Any) -> Any:
        return attention(torch.cat(merged, -1), *tensors(*picks, w[3]))

    flat = vjp(after, merged, dy)
    return w, flat, vjp(attention, [x_norm, *w], dy)


def F85(it: Evidence) -> None:
    r"""With $P = Q K^\top / \sqrt{d_k}$, $\frac{\partial L}{\partial Q} =
    \frac{1}{\sqrt{d_k}} \frac{\partial L}{\partial P} K \in \mathbb{R}^{B \times n_h
    \times S \times d_k}$.

    For as many heads of keys as of queries. For the 64 and 8 heads of this text the
    product has no meaning until K is repeated.
    """
    expected = vjp(lambda q: scores(q, tensors(K)[0], mask=False), Q, DP)
    it.as_printed(same(DP @ K / 4**0.5, expected))
    dp, k = tensors(numbers(1, 64, 3, 3), numbers(1, 8, 3, 128))
    it.elsewhere(not raises(RuntimeError, lambda: dp @ k))
    it.right(tuple((dp @ k.repeat_interleave(8, 1)).shape) == (1, 64, 3, 128))


def F86(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial K} = \frac{1}{\sqrt{d_k}} \frac{\partial L}{\partial
    P}^\top Q \in \mathbb{R}^{B \times n_{kv} \times S \times d_k}$.

    For as many heads of keys as of queries. The product has $n_h$ heads; only the sum
    over each group, which the next sentence adds, has $n_{kv}$.
    """
    expected = vjp(lambda k: scores(tensors(Q)[0], k, mask=False), K, DP)
    product = np.swapaxes(DP, 2, 3) @ Q / 4**0.5
    it.as_printed(same(product, expected))
    grouped = vjp(lambda k: scores(tensors(Q)[0], k, mask=False), GROUPED, DP)
    it.elsewhere(product.shape == grouped.shape)
    it.right(same(product.sum(1, keepdims=True), grouped))


def F87(it: Evidence) -> None:
    """With grouped heads, the gradient of K is a sum over the query heads that share
    it."""
    found = vjp(lambda k: scores(tensors(Q)[0], k, mask=False), GROUPED, DP)
    by_head = [np.swapaxes(DP[:, h], 1, 2) @ Q[:, h] / 4**0.5 for h in range(3)]
    it.as_printed(same(found[:, 0], sum(by_head)))


def F88(it: Evidence) -> None:
    """With 64 query heads and 8 heads of keys, each serves 8 query heads."""
    it.as_printed((LLAMA.heads, LLAMA.key_heads) == (64, 8))
    q, k, v = tensors(*(numbers(1, n, 5, 4, seed=n) for n in (64, 8, 9)))
    k, v = (a[:, :8].requires_grad_() for a in (k, v))
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    reached = []
    for head in range(64):
        (dk,) = torch.autograd.grad(y[0, head, 4, 1], k, retain_graph=True)
        reached.append([kv for kv in range(8) if dk[0, kv].any()])
    it.as_printed(all(len(heads) == 1 for heads in reached))
    it.as_printed(all(reached.count([kv]) == 8 for kv in range(8)))


def F89(it: Evidence) -> None:
    """The gradients of all 64 heads, reshaped to [B, 8, 8, S, $d_k$] and summed over
    axis 2, are the gradient of K, of the shape [B, 8, S, $d_k$].

    This holds where the heads of a group stand side by side, as in Llama. Where query
    head h reads head h mod $n_{kv}$, it adds the wrong heads.
    """
    k, g = numbers(2, 3, 5, 4), numbers(2, 6, 5, 4, seed=1)
    found = g.reshape(2, 3, 2, 5, 4).sum(2)
    it.as_printed(same(found, vjp(lambda k: torch.repeat_interleave(k, 2, 1), k, g)))
    interleaved = vjp(lambda k: k.repeat(1, 2, 1, 1), k, g)
    it.elsewhere(same(found, interleaved))
    it.right(same(g.reshape(2, 2, 3, 5, 4).sum(1), interleaved))


def F90(it: Evidence) -> None:
    r"""The gradient of K needs a sum over the heads of its group; for V none is named,
    in the formula $A^\top \frac{\partial L}{\partial O}$, in the code, or in the table.

    V is shared as K is, and its gradient is the same sum.
    """
    a, g = numbers(2, 3, 5, 5), numbers(2, 3, 5, 4, seed=1)
    v = numbers(2, 1, 5, 4, seed=2)
    found = vjp(lambda v: tensors(a)[0] @ v, v, g)
    product = np.swapaxes(a, 2, 3) @ g
    it.left_out(product.shape[1] - found.shape[1])
    it.right(same(product.sum(1, keepdims=True), found))


def F91(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial W_Q} = x_\text{norm}^\top \frac{\partial L}{\partial
    Q_\text{flat}} \in \mathbb{R}^{d \times (n_h d_k)}$.

    For queries without rotations, as in the text. Llama's are rotated back first.
    """
    x = numbers(2, 5, 7)
    _, flat, expected = projections(x)
    it.as_printed(same(x.reshape(10, 7).T @ flat[0].reshape(10, 16), expected[1]))
    it.as_printed(expected[1].shape == (7, 4 * 4))


def F92(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial W_K} = x_\text{norm}^\top \frac{\partial L}{\partial
    K_\text{flat}} \in \mathbb{R}^{d \times (n_{kv} d_k)}$.

    For keys without rotations, as in the text.
    """
    x = numbers(2, 5, 7)
    _, flat, expected = projections(x)
    it.as_printed(same(x.reshape(10, 7).T @ flat[1].reshape(10, 8), expected[2]))
    it.as_printed(expected[2].shape == (7, 2 * 4))


def F93(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial W_V} = x_\text{norm}^\top \frac{\partial L}{\partial
    V_\text{flat}} \in \mathbb{R}^{d \times (n_{kv} d_k)}$."""
    x = numbers(2, 5, 7)
    _, flat, expected = projections(x)
    it.as_printed(same(x.reshape(10, 7).T @ flat[2].reshape(10, 8), expected[3]))
    it.as_printed(expected[3].shape == (7, 2 * 4))


def F94(it: Evidence) -> None:
    r"""$Q_\text{flat}$ is the flattened Q.

    Its rows are positions, and each holds the heads side by side. Flattening the shape
    that the text lists, $[B, n_h, S, d_k]$, needs an exchange of the second and third
    axes first; a reshape alone fits and gives a wrong gradient.
    """
    x = numbers(2, 5, 7)
    _, flat, expected = projections(x)
    by_head = flat[0].reshape(2, 5, 4, 4).transpose(0, 2, 1, 3)  # [B, n_h, S, d_k]
    moved = by_head.transpose(0, 2, 1, 3).reshape(10, 16)
    it.as_printed(same(x.reshape(10, 7).T @ moved, expected[1]))
    it.elsewhere(same(x.reshape(10, 7).T @ by_head.reshape(10, 16), expected[1]))


def F95(it: Evidence) -> None:
    r"""$x_\text{norm}$ is flattened to $(B S) \times d$, and each weight's gradient is
    a matrix product $(BS, d)^\top \times (BS, \text{columns})$."""
    x, g = numbers(2, 5, 7), numbers(2, 5, 11, seed=1)
    expected = vjp(lambda w: tensors(x)[0] @ w, numbers(7, 11), g)
    it.as_printed(same(x.reshape(10, 7).T @ g.reshape(10, 11), expected))


def F96(it: Evidence) -> None:
    r"""The derivation of attention ends with the gradients of the weights.

    The gradient of the block's input is missing, without which nothing reaches the
    layer below: $\bar{Q} W_Q^\top + \bar{K} W_K^\top + \bar{V} W_V^\top$. It is in
    the listing of the last part.
    """
    w, flat, expected = projections(numbers(2, 5, 7))
    it.left_out(np.abs(expected[0]).max())
    terms = [g @ of.T for g, of in zip(flat, w[:3], strict=True)]
    it.right(same(sum(terms), expected[0]))


def F97(it: Evidence) -> None:
    """The table has the shapes of Jacobians and gradients.

    It has gradients only: every shape is that of the array itself. The Jacobian
    of O with respect to Q would have 67,108,864 rows and as many columns.
    """
    listed = (64 * 8192**2, 64 * 8192 * 128, 8 * 8192 * 128, 8192**2, 8192 * 1024)
    arrays = {array.numel() for array in gradients().values()}
    it.right(set(listed) == arrays)
    it.right(at_full_size()["O"].numel() == 67_108_864)
    it.as_printed(67_108_864**2 in listed)


def F98(it: Evidence) -> None:
    """The table's sizes are 8 GB, 128 MB, and 16 MB.

    All are GiB and MiB. In powers of ten they are 8.6 GB, 134 MB, and 17 MB.
    """
    sizes = sorted({array.nbytes for array in gradients().values()})
    it.as_printed(sizes == [16 * MIB, 128 * MIB, 8 * GIB])
    it.elsewhere(sizes == [16 * 10**6, 128 * 10**6, 8 * 10**9])
    it.right(round(sizes[2] / 1e9, 1) == 8.6 and round(sizes[1] / 1e6) == 134)


def F99(it: Evidence) -> None:
    """dL/dA has the shape [1, 64, 8192, 8192] and takes 8 GiB."""
    a = gradients()["dL/dA"]
    it.as_printed(tuple(a.shape) == (1, 64, 8192, 8192) and a.nbytes == 8 * GIB)


def F100(it: Evidence) -> None:
    """FlashAttention eliminates dL/dA.

    The check notes the most memory that a backward allocates. For twice the length,
    FlashAttention's doubles, and that of attention with the whole array of weights
    grows fourfold.
    """

    def most(op: Any, s: int, **options: int) -> int:
        q, k, v, dy = (numbers(1, 1, s, 8, seed=i) for i in range(4))
        _, kept = op.forward(q, k, v, **options)
        tracemalloc.start()
        op.backward(dy, kept)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    growth = most(flash_attention, 1024, tile=64) / most(flash_attention, 512, tile=64)
    it.as_printed(growth < 2.5)
    it.as_printed(most(flash_attention, 1024, tile=64) < 1024 * 1024 * 8)
    it.right(most(whole, 1024) > 3.5 * most(whole, 512))
    it.right(most(whole, 1024) > 1024 * 1024 * 8)


def F101(it: Evidence) -> None:
    """dL/dQ has the shape [1, 64, 8192, 128], takes 128 MiB, and is needed for the
    gradient of $W_Q$.

    The gradient of the input needs it too.
    """
    q = gradients()["dL/dQ"]
    it.as_printed(tuple(q.shape) == (1, 64, 8192, 128) and q.nbytes == 128 * MIB)


def F102(it: Evidence) -> None:
    """dL/dK has the shape [1, 8, 8192, 128] and takes 16 MiB, summed over groups."""
    k = gradients()["dL/dK"]
    it.as_printed(tuple(k.shape) == (1, 8, 8192, 128) and k.nbytes == 16 * MIB)


def F103(it: Evidence) -> None:
    r"""dL/dV has the shape [1, 8, 8192, 128], takes 16 MiB, and comes from $A^\top
    \frac{\partial L}{\partial O}$.

    That product has 64 heads and takes 128 MiB. Only its sum over the groups, which the
    row's note leaves out, has 8.
    """
    v, a, o = (gradients()[f"dL/d{name}"] for name in "VAO")
    it.as_printed(tuple(v.shape) == (1, 8, 8192, 128) and v.nbytes == 16 * MIB)
    product = a.mT @ o
    it.elsewhere(product.shape == v.shape)
    it.right(product.shape[1] == 64 and product.nbytes == 128 * MIB)


def F104(it: Evidence) -> None:
    """dL/dW_Q has the shape [8192, 8192] and takes 128 MiB in FP16."""
    w = gradients()["dL/dW_Q"]
    it.as_printed(tuple(w.shape) == (8192, 8192) and w.nbytes == 128 * MIB)


def F105(it: Evidence) -> None:
    """dL/dW_K has the shape [8192, 1024] and takes 16 MiB in FP16."""
    w = gradients()["dL/dW_K"]
    it.as_printed(tuple(w.shape) == (8192, 1024) and w.nbytes == 16 * MIB)


def F106(it: Evidence) -> None:
    """dL/dW_V has the shape [8192, 1024] and takes 16 MiB in FP16."""
    w = gradients()["dL/dW_V"]
    it.as_printed(tuple(w.shape) == (8192, 1024) and w.nbytes == 16 * MIB)


def F107(it: Evidence) -> None:
    """dL/dW_O has the shape [8192, 8192] and takes 128 MiB in FP16."""
    w = gradients()["dL/dW_O"]
    it.as_printed(tuple(w.shape) == (8192, 8192) and w.nbytes == 128 * MIB)


def F108(it: Evidence) -> None:
    """The weights' gradients are accumulated across the batch, in FP16 sizes.

    They are sums over sequences and positions. A running sum in FP16 loses the small
    terms; in FP32, which the text's own list of precisions asks of accumulation, each
    takes twice the bytes.
    """
    x, g = numbers(3, 5, 7), numbers(3, 5, 11, seed=1)
    found = vjp(lambda w: tensors(x)[0] @ w, numbers(7, 11), g)
    it.as_printed(
        same(sum(x[b, i][:, None] * g[b, i] for b in range(3) for i in range(5)), found)
    )
    total: dict[Any, Any] = {
        dtype: np.array(1, dtype) for dtype in (np.float16, np.float32)
    }
    for dtype in total:
        for _ in range(3000):
            total[dtype] = total[dtype] + dtype(1e-4)
    it.elsewhere(bool(total[np.float16] > 1))
    it.right(bool(abs(total[np.float32] - 1.3) < 1e-3))


def F109(it: Evidence) -> None:
    """The table lists the gradients of attention's backward.

    Without FlashAttention, the gradient of the scores takes a further 8 GiB. The
    gradients of O and of the normalised input take 128 MiB each, and so do those of K
    and V before their sums over the groups.
    """
    arrays = at_full_size()
    scores, o = arrays["A"].nbytes, arrays["O"].nbytes
    expanded = [arrays[name].repeat_interleave(8, 1).nbytes for name in "KV"]
    x_norm = 8192 * LLAMA.width * 2
    it.left_out(scores + o + x_norm + sum(expanded))
    it.right(scores == 8 * GIB)
    it.right({o, x_norm, *expanded} == {128 * MIB})


def F110(it: Evidence) -> None:
    """FlashAttention eliminates the storage of the 8 GiB of A."""
    it.as_printed(of_a_layer(flash=False)["attended.attended.a"] == 8 * GIB)
    it.as_printed(max(of_a_layer().values()) < GIB)
