"""The section on attention: queries, keys, projections, and the table of sizes."""

from __future__ import annotations

import tracemalloc
from functools import cache
from typing import Any

import numpy as np

from backpass.ops import attention as whole
from backpass.ops import flash_attention

from ..evidence import Evidence
from ..tools import numbers, raises, same, torch, vjp
from .heads import A, G, K, Q, at_full_size, of_weight, scores
from .setting import GIB, LLAMA, MIB, attention, of_a_layer, tensors, weights

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
F97   true      0  notation   foundations/chain_rule        §1.4, table, title
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
X, ROWS = numbers(2, 5, 7), numbers(2, 5, 7).reshape(10, 7)


@cache
def gradients() -> dict[str, Any]:
    """Return the gradients of the table for Llama 3 70B, without their elements."""
    named = {f"dL/d{name}": array for name, array in at_full_size().items()}
    half = {"device": "meta", "dtype": torch.float16}
    return named | {
        f"dL/dW_{name.upper()}": torch.empty(of_weight(name), **half) for name in "qkvo"
    }


def listed(it: Evidence, name: str, size: int, *shape: int) -> None:
    """Judge a row of the table."""
    array = gradients()[name]
    it.as_printed(tuple(array.shape) == shape and array.nbytes == size * MIB)


def of_keys(k: Any) -> Any:
    """Return the gradient of keys, through the scores, by autograd."""
    return vjp(lambda k: scores(tensors(Q)[0], k, mask=False), k, DP)


def projected(name: str, heads: str) -> str:
    """Declare a projection of the normalised input."""
    return rf"""
        given x \in \mathbb{{R}}^{{n \times d}}, W_{name} \in \mathbb{{R}}^{{d \times c}}
        let {name} = x W_{name}
        read x_\text{{norm}} as x; read {name}_\text{{flat}} as {name}
        read ({heads} d_k) as c; loss L
    """


def projections() -> tuple[Any, ...]:
    """Return the weights of attention, and by autograd the gradients of its queries,
    keys, and values, merged to [B, S, columns], and of its input and its weights."""
    w, dy = weights()[1:5], numbers(2, 5, 7, seed=8)
    merged = [X @ of for of in w[:3]]
    picks = np.split(np.eye(16 + 8 + 8), [16, 16 + 8], axis=1)

    def after(*merged: Any) -> Any:
        return attention(torch.cat(merged, -1), *tensors(*picks, w[3]))

    return w, vjp(after, merged, dy), vjp(attention, [X, *w], dy)


def F85(it: Evidence) -> None:
    r"""With $P = Q K^\top / \sqrt{d_k}$, $\frac{\partial L}{\partial Q} =
    \frac{1}{\sqrt{d_k}} \frac{\partial L}{\partial P} K \in \mathbb{R}^{B \times n_h
    \times S \times d_k}$.

    This holds if there are as many key heads as query heads. With the text's 64 and 8,
    K has to be repeated first."""
    expected = vjp(lambda q: scores(q, tensors(K)[0], mask=False), Q, DP)
    it.as_printed(same(DP @ K / 4**0.5, expected))
    dp, k = tensors(numbers(1, 64, 3, 3), numbers(1, 8, 3, 128))
    it.elsewhere(not raises(RuntimeError, lambda: dp @ k))
    it.right(tuple((dp @ k.repeat_interleave(8, 1)).shape) == (1, 64, 3, 128))


def F86(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial K} = \frac{1}{\sqrt{d_k}} \frac{\partial L}{\partial
    P}^\top Q \in \mathbb{R}^{B \times n_{kv} \times S \times d_k}$.

    This holds if there are as many key heads as query heads. The product has $n_h$
    heads; only the sum over each group, which the next sentence adds, has $n_{kv}$."""
    product = np.swapaxes(DP, 2, 3) @ Q / 4**0.5
    it.as_printed(same(product, of_keys(K)))
    it.elsewhere(product.shape == of_keys(GROUPED).shape)
    it.right(same(product.sum(1, keepdims=True), of_keys(GROUPED)))


def F87(it: Evidence) -> None:
    """With grouped heads, the gradient of K sums over the query heads that share it."""
    by_head = [np.swapaxes(DP[:, h], 1, 2) @ Q[:, h] / 4**0.5 for h in range(3)]
    it.as_printed(same(of_keys(GROUPED)[:, 0], sum(by_head)))


def F88(it: Evidence) -> None:
    """With 64 query heads and 8 heads of keys, each serves 8 query heads."""
    it.as_printed((LLAMA.heads, LLAMA.key_heads) == (64, 8))
    q, k, v = tensors(*(numbers(1, heads, 5, 4) for heads in (64, 8, 8)))
    k.requires_grad_()
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    reached = []
    for head in range(64):
        (dk,) = torch.autograd.grad(y[0, head, 4, 1], k, retain_graph=True)
        reached.append([kv for kv in range(8) if dk[0, kv].any()])
    it.as_printed(sorted(reached) == [[kv] for kv in range(8) for _ in range(8)])


def F89(it: Evidence) -> None:
    """The gradients of all 64 heads, reshaped to [B, 8, 8, S, $d_k$] and summed over
    axis 2, are the gradient of K, of the shape [B, 8, S, $d_k$].

    This holds if the query heads of a group stand side by side, as in Llama. If query
    head h reads key head h mod $n_{kv}$, the code adds the wrong heads."""
    k, g = numbers(2, 3, 5, 4), numbers(2, 6, 5, 4, seed=1)
    found = g.reshape(2, 3, 2, 5, 4).sum(2)
    it.as_printed(same(found, vjp(lambda k: torch.repeat_interleave(k, 2, 1), k, g)))
    interleaved = vjp(lambda k: k.repeat(1, 2, 1, 1), k, g)
    it.elsewhere(same(found, interleaved))
    it.right(same(g.reshape(2, 2, 3, 5, 4).sum(1), interleaved))


def F90(it: Evidence) -> None:
    r"""The gradient of K needs a sum over the heads of its group; for V none is named,
    in the formula $A^\top \frac{\partial L}{\partial O}$, in the code, or in the table.

    V is shared as K is, and its gradient is the same sum."""
    found = vjp(lambda v: tensors(A)[0] @ v, GROUPED, G)
    product = np.swapaxes(A, 2, 3) @ G
    it.left_out(product.shape[1] - found.shape[1])
    it.right(same(product.sum(1, keepdims=True), found))


def F91(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial W_Q} = x_\text{norm}^\top \frac{\partial L}{\partial
    Q_\text{flat}} \in \mathbb{R}^{d \times (n_h d_k)}$.

    This holds for queries without rotations, as in the text. In Llama, the gradient of
    the queries is rotated back first."""
    it.derives(projected("Q", "n_h"))


def F92(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial W_K} = x_\text{norm}^\top \frac{\partial L}{\partial
    K_\text{flat}} \in \mathbb{R}^{d \times (n_{kv} d_k)}$.

    This holds for keys without rotations, as in the text."""
    it.derives(projected("K", "n_{kv}"))


def F93(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial W_V} = x_\text{norm}^\top \frac{\partial L}{\partial
    V_\text{flat}} \in \mathbb{R}^{d \times (n_{kv} d_k)}$."""
    it.derives(projected("V", "n_{kv}"))


def F94(it: Evidence) -> None:
    r"""$Q_\text{flat}$ is the flattened Q.

    Its rows are positions, with the heads side by side. The shape that the text lists,
    $[B, n_h, S, d_k]$, needs an exchange of the second and third axes first; a reshape
    alone fits and gives a wrong gradient."""
    _, (dq, _, _), (_, dw_q, *_) = projections()
    it.as_printed(same(ROWS.T @ dq.reshape(10, 16), dw_q))
    by_head = dq.reshape(2, 5, 4, 4).transpose(0, 2, 1, 3)  # [B, n_h, S, d_k]
    it.elsewhere(same(ROWS.T @ by_head.reshape(10, 16), dw_q))


def F95(it: Evidence) -> None:
    r"""$x_\text{norm}$ is flattened to $(B S) \times d$, and each weight's gradient is
    a matrix product $(BS, d)^\top \times (BS, \text{columns})$."""
    _, flat, (_, *dw) = projections()
    for dy, expected in zip(flat, dw[:3], strict=True):
        it.as_printed(same(ROWS.T @ dy.reshape(10, -1), expected))


def F96(it: Evidence) -> None:
    r"""The derivation of attention ends with the gradients of the weights.

    The gradient of the block's input is missing: $\bar{Q} W_Q^\top + \bar{K} W_K^\top +
    \bar{V} W_V^\top$. It is in the listing of the last part."""
    w, flat, (dx, *_) = projections()
    it.left_out(np.abs(dx).max())
    it.right(same(sum(g @ of.T for g, of in zip(flat, w[:3], strict=True)), dx))


def F97(it: Evidence) -> None:
    """The shapes of the table are those of gradients of attention.

    The table's title says Jacobians too, and it has none: that of O with respect to Q
    has 67,108,864 rows and as many columns."""
    sizes = {64 * 8192**2, 64 * 8192 * 128, 8 * 8192 * 128, 8192**2, 8192 * 1024}
    it.as_printed(sizes == {array.numel() for array in gradients().values()})
    it.right(all(at_full_size()[name].numel() == 67_108_864 for name in "OQ"))


def F98(it: Evidence) -> None:
    """The table's sizes are 8 GB, 128 MB, and 16 MB.

    All are GiB and MiB. In powers of ten they are 8.6 GB, 134 MB, and 17 MB."""
    sizes = sorted({array.nbytes for array in gradients().values()})
    it.as_printed(sizes == [16 * MIB, 128 * MIB, 8 * GIB])
    it.elsewhere(sizes == [16 * 10**6, 128 * 10**6, 8 * 10**9])
    it.right([round(size / 1e6) for size in sizes[:2]] == [17, 134])
    it.right(round(sizes[2] / 1e9, 1) == 8.6)


def F99(it: Evidence) -> None:
    """dL/dA has the shape [1, 64, 8192, 8192] and takes 8 GiB."""
    listed(it, "dL/dA", 8 * 1024, 1, 64, 8192, 8192)


def F100(it: Evidence) -> None:
    """FlashAttention eliminates dL/dA.

    The check notes the most memory that a backward allocates. For twice the length,
    FlashAttention's doubles, and that of attention with the whole A grows fourfold."""

    def most(op: Any, s: int, **options: int) -> int:
        q, k, v, dy = (numbers(1, 1, s, 8, seed=i) for i in range(4))
        _, kept = op.forward(q, k, v, **options)
        tracemalloc.start()
        op.backward(dy, kept)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    tiled, plain = most(flash_attention, 1024, tile=64), most(whole, 1024)
    it.as_printed(tiled < 2.5 * most(flash_attention, 512, tile=64))
    it.as_printed(tiled < 1024 * 1024 * 8 < plain)
    it.right(plain > 3.5 * most(whole, 512))


def F101(it: Evidence) -> None:
    """dL/dQ has the shape [1, 64, 8192, 128], takes 128 MiB, and is needed for the
    gradient of $W_Q$."""
    listed(it, "dL/dQ", 128, 1, 64, 8192, 128)


def F102(it: Evidence) -> None:
    """dL/dK has the shape [1, 8, 8192, 128] and takes 16 MiB, summed over groups."""
    listed(it, "dL/dK", 16, 1, 8, 8192, 128)


def F103(it: Evidence) -> None:
    r"""dL/dV has the shape [1, 8, 8192, 128], takes 16 MiB, and comes from $A^\top
    \frac{\partial L}{\partial O}$.

    The product has 64 heads and takes 128 MiB; its sum over the groups has 8."""
    listed(it, "dL/dV", 16, 1, 8, 8192, 128)
    product = gradients()["dL/dA"].mT @ gradients()["dL/dO"]
    it.elsewhere(product.shape == gradients()["dL/dV"].shape)
    it.right(product.shape[1] == 64 and product.nbytes == 128 * MIB)


def F104(it: Evidence) -> None:
    """dL/dW_Q has the shape [8192, 8192] and takes 128 MiB in FP16."""
    listed(it, "dL/dW_Q", 128, 8192, 8192)


def F105(it: Evidence) -> None:
    """dL/dW_K has the shape [8192, 1024] and takes 16 MiB in FP16."""
    listed(it, "dL/dW_K", 16, 8192, 1024)


def F106(it: Evidence) -> None:
    """dL/dW_V has the shape [8192, 1024] and takes 16 MiB in FP16."""
    listed(it, "dL/dW_V", 16, 8192, 1024)


def F107(it: Evidence) -> None:
    """dL/dW_O has the shape [8192, 8192] and takes 128 MiB in FP16."""
    listed(it, "dL/dW_O", 128, 8192, 8192)


def F108(it: Evidence) -> None:
    """The weights' gradients are accumulated across the batch, in FP16 sizes.

    A running sum in FP16 loses the small terms. In FP32, which the text's own list of
    precisions asks of accumulation, each takes twice the bytes."""
    g, pairs = numbers(2, 5, 11, seed=1), [(b, i) for b in range(2) for i in range(5)]
    found = vjp(lambda w: tensors(X)[0] @ w, numbers(7, 11), g)
    it.as_printed(same(sum(np.outer(X[at], g[at]) for at in pairs), found))
    terms = np.array([1.0] + 3000 * [1e-4])
    half, full = (float(terms.cumsum(dtype=d)[-1]) for d in (np.float16, np.float32))
    it.elsewhere(half > 1)
    it.right(abs(full - 1.3) < 1e-3)


def F109(it: Evidence) -> None:
    """The table lists the gradients of attention's backward.

    Without FlashAttention, the gradient of the scores takes a further 8 GiB. Those of O
    and of the normalised input, and those of K and V before their sums, take 128 MiB
    each."""
    arrays = at_full_size()
    scores, o, x_norm = arrays["A"].nbytes, arrays["O"].nbytes, 8192 * LLAMA.width * 2
    expanded = [arrays[name].repeat_interleave(8, 1).nbytes for name in "KV"]
    it.left_out(scores + o + x_norm + sum(expanded))
    it.right(scores == 8 * GIB and {o, x_norm, *expanded} == {128 * MIB})


def F110(it: Evidence) -> None:
    """FlashAttention eliminates the storage of the 8 GiB of A."""
    it.as_printed(of_a_layer(flash=False)["attended.attended.a"] == 8 * GIB)
    it.as_printed(max(of_a_layer().values()) < GIB)
