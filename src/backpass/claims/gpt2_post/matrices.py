"""Products of matrices, of activations with weights, and of activations."""

from __future__ import annotations

from operator import matmul
from typing import Any

import numpy as np

from backpass import cost
from backpass.claims.evidence import CAVEAT, LEFT_OUT, TRUE, Evidence
from backpass.claims.gpt2_post.overview import first_calls
from backpass.claims.record import claim
from backpass.claims.tools import jacobian, numbers, raises, same, vjp
from backpass.models import gpt2

M, N, P = 5, 7, 3
X, W, DZ = numbers(M, N), numbers(N, P), numbers(M, P, seed=1)
b, s, h, V = 2, 5, 4, 7  # a batch of sequences, and an output head


@claim("matrix times matrix", TRUE, topic="matmul", page="operations/linear")
def G33(it: Evidence) -> None:
    r"""In $Z = XW$, $X$ is $M \times N$, $W$ is $N \times P$, and $Z$ is
    $M \times P$."""
    it.as_printed((X @ W).shape == (M, P))


@claim("matrix times matrix", TRUE, topic="matmul", page="operations/linear")
def G34(it: Evidence) -> None:
    r"""It is $M$ products of a row of $X$ with $W$, which make the rows of $Z$."""
    it.as_printed(same(np.vstack([X[i : i + 1] @ W for i in range(M)]), X @ W))


@claim("matrix times matrix", TRUE, topic="matmul", page="operations/linear")
def G35(it: Evidence) -> None:
    r"""Row $i$ of $\partial L/\partial X$ is row $i$ of $\partial L/\partial Z$ times
    $W^\top$."""
    dx = vjp(matmul, (X, W), DZ)[0]
    for i in range(M):
        it.as_printed(same(DZ[i] @ W.T, dx[i]))


@claim("matrix times matrix", TRUE, topic="matmul", page="operations/linear")
def G36(it: Evidence) -> None:
    """The rows' gradients are independent, so they can be stacked."""
    dz_dx = jacobian(lambda x: x @ x.new_tensor(W), X)  # [M, P, M, N]
    others = [dz_dx[i, :, k] for i in range(M) for k in range(M) if i != k]
    it.as_printed(not np.any(others) and bool(dz_dx[0, :, 0].all()))


@claim("matrix times matrix", TRUE, topic="matmul", page="operations/linear")
def G37(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial X} = \frac{\partial L}{\partial Z} W^\top$."""
    it.as_printed(same(DZ @ W.T, vjp(matmul, (X, W), DZ)[0]))


@claim("matrix times matrix", TRUE, topic="matmul", page="operations/linear")
def G38(it: Evidence) -> None:
    r"""Row $i$ of $X$ contributes $\mathrm{row}_i(X)^\top\,
    \mathrm{row}_i(\partial L/\partial Z)$ to $\partial L/\partial W$."""
    for i in range(M):
        only_row = DZ * (np.arange(M) == i)[:, None]
        dw = vjp(matmul, (X, W), only_row)[1]
        it.as_printed(same(np.outer(X[i], DZ[i]), dw))


@claim("matrix times matrix", TRUE, topic="matmul", page="operations/linear")
def G39(it: Evidence) -> None:
    """Each weight takes part in $M$ such computations, one for each row of $Z$, so its
    gradient is the sum of the contributions."""
    dz_dw = jacobian(lambda w: w.new_tensor(X) @ w, W)  # [M, P, N, P]
    used = (dz_dw != 0).sum(axis=(0, 1))
    it.as_printed(bool((used == M).all()))
    total = sum(np.outer(X[i], DZ[i]) for i in range(M))
    it.as_printed(same(total, vjp(matmul, (X, W), DZ)[1]))


@claim("matrix times matrix", TRUE, topic="matmul", page="operations/linear")
def G40(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial W} = X^\top \frac{\partial L}{\partial Z}$."""
    it.as_printed(same(X.T @ DZ, vjp(matmul, (X, W), DZ)[1]))


@claim("weights times activations", TRUE, topic="matmul", page="operations/linear")
def G41(it: Evidence) -> None:
    """A three-dimensional activation meets a matrix in the projections to queries,
    keys, and values, after attention, in both of the feed-forward block, and in the
    output head."""
    rows = cost.tally("gpt2", 1, 8).rows
    with_weights = {row.term.call for row in rows if row.term.stem == "linear"}
    others = set(first_calls("layer")) - with_weights
    it.as_printed(len(with_weights) == 5 and "attention" in others)
    it.as_printed({"up projection", "down projection", "output head"} < with_weights)


@claim("weights times activations", TRUE, topic="matmul", page="operations/linear")
def G42(it: Evidence) -> None:
    """Each is a series of matrix products, one for each slice of the activation."""
    x, w = numbers(b, s, h), numbers(h, V)
    it.as_printed(same(np.stack([x[i] @ w for i in range(b)]), x @ w))


@claim("weights times activations", TRUE, topic="matmul", page="operations/output_head")
def G43(it: Evidence) -> None:
    r"""The head multiplies $X \in \mathbb{R}^{b \times s \times h}$ by
    $W \in \mathbb{R}^{h \times V}$, in $b$ products, into
    $Z \in \mathbb{R}^{b \times s \times V}$."""
    x, w = numbers(b, s, h), numbers(h, V)
    it.as_printed((x @ w).shape == (b, s, V))


@claim("weights times activations", TRUE, topic="matmul", page="operations/linear")
def G44(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial X_i} = \frac{\partial L}{\partial Z_i} W^\top$ for
    each slice; stacked they have the shape $(b, s, h)$."""
    x, w, dz = numbers(b, s, h), numbers(h, V), numbers(b, s, V)
    dx = np.stack([dz[i] @ w.T for i in range(b)])
    it.as_printed(dx.shape == (b, s, h) and same(dx, vjp(matmul, (x, w), dz)[0]))


@claim("weights times activations", TRUE, topic="matmul", page="operations/linear")
def G45(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial W} = \sum_{i=1}^b X_i^\top
    \frac{\partial L}{\partial Z_i}$."""
    x, w, dz = numbers(b, s, h), numbers(h, V), numbers(b, s, V)
    total = sum(x[i].T @ dz[i] for i in range(b))
    it.as_printed(same(total, vjp(matmul, (x, w), dz)[1]))


@claim(
    "weights times activations",
    CAVEAT,
    topic="matmul",
    page="operations/linear",
    harm=3,
)
def G46(it: Evidence) -> None:
    """The gradients of the head's product hold for all products of activations with
    weights; only the sizes differ.

    This holds for the products. In GPT-2 all but the head add a bias, whose gradient is
    the sum of the rows of the output's gradient.
    """
    import torch

    x, w, bias, dz = numbers(b, s, h), numbers(h, V), numbers(V), numbers(b, s, V)
    it.as_printed(same(dz @ w.T, vjp(matmul, (x, w), dz)[0]))
    shapes = gpt2.parameter_shapes(cost.configuration("gpt2"))
    has_bias = [n for n in shapes if n.startswith("h.0.") and n.endswith(".bias")]
    it.elsewhere(all(".ln_" in name for name in has_bias))
    found = vjp(lambda x, w, c: torch.matmul(x, w) + c, (x, w, bias), dz)[2]
    it.right(same(dz.sum((0, 1)), found))


@claim(
    "weights times activations",
    LEFT_OUT,
    topic="embeddings",
    page="networks/gpt2",
    harm=4,
)
def G47(it: Evidence) -> None:
    """The head's matrix has a gradient of its own.

    In GPT-2 it is the table of tokens: its gradient is the head's plus the lookup's,
    $Vh$ more additions, 38,597,376 in the smallest model.
    """
    import torch

    table, t = torch.tensor(numbers(V, h), requires_grad=True), torch.tensor([3, 0, 3])
    hidden, dz = torch.tensor(numbers(h, h)), torch.tensor(numbers(3, V))
    x = table[t] @ hidden
    (both,) = torch.autograd.grad(x @ table.T, table, dz)
    head = dz.T @ x
    lookup = torch.zeros(V, h).double().index_add(0, t, dz @ table @ hidden.T)
    it.left_out(float((both - head).abs().max().detach()))
    it.right(same((head + lookup).detach(), both))
    config = cost.configuration("gpt2")
    it.right(config.tied and config.vocabulary * config.width == 38_597_376)


@claim(
    "activations times activations",
    CAVEAT,
    topic="attention",
    page="attention/scaled_dot_product",
    harm=2,
)
def G48(it: Evidence) -> None:
    """Products of activations occur in attention: query @ key and attn @ value.

    The first needs the key transposed. As written the shapes fit only if the sequence
    is as long as a head is wide, and the result is another one.
    """
    q, k, v = (numbers(b, 3, s, 4, seed=i) for i in range(3))
    scores = np.einsum("bhid,bhjd->bhij", q, k)
    it.as_printed((scores @ v).shape == v.shape)
    it.elsewhere(not raises(ValueError, lambda: q @ k))
    it.right(same(q @ k.swapaxes(-1, -2), scores))
    square_q, square_k = numbers(4, 4), numbers(4, 4, seed=1)
    it.right(not same(square_q @ square_k, square_q @ square_k.T))


@claim("activations times activations", TRUE, topic="attention", page="attention/heads")
def G49(it: Evidence) -> None:
    r"""attn @ value is $b \times n_h$ independent products of an $s \times s$ and an
    $s \times d$ matrix."""
    a, v = numbers(b, 3, s, s), numbers(b, 3, s, 4)
    one_by_one = [[a[i, j] @ v[i, j] for j in range(3)] for i in range(b)]
    it.as_printed(same(np.array(one_by_one), a @ v))


@claim(
    "activations times activations",
    CAVEAT,
    topic="attention",
    page="attention/grouped_query",
    harm=2,
)
def G50(it: Evidence) -> None:
    """Each product has its own slices, so the gradients are stacked and nothing is
    summed over heads or batch.

    This holds where every query head has its own keys and values, as in GPT-2. With
    shared heads the gradients of keys and values are sums over the query heads that
    share them.
    """
    a, v, dy = numbers(b, 3, s, s), numbers(b, 3, s, 4), numbers(b, 3, s, 4, seed=1)
    stacked = np.einsum("bhij,bhid->bhjd", a, dy)
    it.as_printed(same(stacked, vjp(matmul, (a, v), dy)[1]))
    shared = vjp(matmul, (a, v[:, :1]), dy)[1]
    it.elsewhere(stacked.shape == shared.shape)
    it.right(same(stacked.sum(1, keepdims=True), shared))


@claim(
    "activations times activations",
    LEFT_OUT,
    topic="attention",
    page="attention/scaled_dot_product",
    harm=3,
)
def G51(it: Evidence) -> None:
    r"""The section derives the gradients of attention's two products.

    It gives no formula. With scores $S = QK^\top$ and output $O = AV$:
    $\bar{A} = \bar{O}V^\top$, $\bar{V} = A^\top\bar{O}$, $\bar{Q} = \bar{S}K$,
    $\bar{K} = \bar{S}^\top Q$.
    """
    a, v, do = numbers(s, s), numbers(s, 4), numbers(s, 4, seed=1)
    q, k, ds = numbers(s, 4, seed=2), numbers(s, 4, seed=3), numbers(s, s, seed=4)

    def scores(q: Any, k: Any) -> Any:
        return q @ k.mT

    expected = [*vjp(matmul, (a, v), do), *vjp(scores, (q, k), ds)]
    formulas = [do @ v.T, a.T @ do, ds @ k, ds.T @ q]
    it.left_out(len(formulas))
    for formula, gradient in zip(formulas, expected, strict=True):
        it.right(same(formula, gradient))
