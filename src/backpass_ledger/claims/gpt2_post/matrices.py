"""Products of matrices, of activations with weights, and of activations."""

from __future__ import annotations

from operator import matmul
from typing import Any

import numpy as np

from backpass import cost
from backpass.models import gpt2
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import (
    derives,
    jacobian,
    numbers,
    raises,
    same,
    torch,
    vjp,
)

CLAIMS = """
G34  true          0  matmul      operations/linear             matrix times matrix
G35  true          0  matmul      operations/linear             matrix times matrix
G36  true          0  matmul      operations/linear             matrix times matrix
G37  true          0  matmul      operations/linear             matrix times matrix
G38  inconsistent  0  notation    foundations/notation          stacking the rows
G39  true          0  matmul      operations/linear             matrix times matrix
G40  true          0  matmul      operations/linear             matrix times matrix
G41  true          0  matmul      operations/linear             matrix times matrix
G42  true          0  matmul      operations/linear             matrix times matrix
G43  true          0  matmul      operations/linear             weights times activations
G44  true          0  matmul      operations/linear             weights times activations
G45  true          0  matmul      operations/output_head        weights times activations
G46  true          0  matmul      operations/linear             weights times activations
G47  true          0  matmul      operations/linear             weights times activations
G48  caveat        3  matmul      operations/linear             weights times activations
G49  left-out      4  embeddings  networks/gpt2                 weights times activations
G50  caveat        2  attention   attention/scaled_dot_product  activations times activations
G51  true          0  attention   attention/heads               activations times activations
G52  caveat        2  attention   attention/grouped_query       activations times activations
G53  left-out      3  attention   attention/scaled_dot_product  activations times activations
"""


M, N, P = 5, 7, 3
X, W, DZ = numbers(M, N), numbers(N, P), numbers(M, P, seed=1)
b, s, h, V = 2, 5, 4, 7  # a batch of sequences, and an output head
PRODUCT = r"""
    given x \in \mathbb{R}^{M \times N}, w \in \mathbb{R}^{N \times P}
    let X = x
    let W = w
    let z = X W
    let Z = z
    loss L
"""
BATCH = r"""
    given X \in \mathbb{R}^{b \times s \times h}, W \in \mathbb{R}^{h \times V}
    let Z_{ijk} = \sum_l X_{ijl} W_{lk}
    slice X_i \in \mathbb{R}^{s \times h}, Z_i \in \mathbb{R}^{s \times V}
    loss L
"""


def G34(it: Evidence) -> None:
    r"""In $Z = XW$, $X$ is $M \times N$, $W$ is $N \times P$, and $Z$ is
    $M \times P$."""
    printed = r"""
        \begin{bmatrix}
        z_{11} & z_{12} & \cdots & z_{1P} \\ z_{21} & z_{22} & \cdots & z_{2P} \\
        \vdots & \vdots & \ddots & \vdots \\ z_{M1} & z_{M2} & \cdots & z_{MP}
        \end{bmatrix} = \begin{bmatrix}
        x_{11} & x_{12} & \cdots & x_{1N} \\ x_{21} & x_{22} & \cdots & x_{2N} \\
        \vdots & \vdots & \ddots & \vdots \\ x_{M1} & x_{M2} & \cdots & x_{MN}
        \end{bmatrix} \begin{bmatrix}
        w_{11} & w_{12} & \cdots & w_{1P} \\ w_{21} & w_{22} & \cdots & w_{2P} \\
        \vdots & \vdots & \ddots & \vdots \\ w_{N1} & w_{N2} & \cdots & w_{NP}
        \end{bmatrix}
    """
    it.as_printed(derives(printed, PRODUCT))


def G35(it: Evidence) -> None:
    r"""It is $M$ products of a row of $X$ with $W$, which give the rows of $Z$."""
    it.as_printed(same(np.vstack([X[i : i + 1] @ W for i in range(M)]), X @ W))


def G36(it: Evidence) -> None:
    r"""Row $i$ of $\partial L/\partial X$ is row $i$ of $\partial L/\partial Z$ times
    $W^\top$."""
    printed = r"""
        \begin{bmatrix}
        \frac{\partial L}{\partial x_{i1}} & \frac{\partial L}{\partial x_{i2}}
        & \cdots & \frac{\partial L}{\partial x_{iN}}
        \end{bmatrix} = \begin{bmatrix}
        \frac{\partial L}{\partial z_{i1}} & \frac{\partial L}{\partial z_{i2}}
        & \cdots & \frac{\partial L}{\partial z_{iP}}
        \end{bmatrix} W^T
    """
    it.as_printed(derives(printed, PRODUCT))


def G37(it: Evidence) -> None:
    """The rows' gradients are independent, so they can be stacked."""
    dz_dx = jacobian(lambda x: x @ x.new_tensor(W), X)  # [M, P, M, N]
    others = [dz_dx[i, :, k] for i in range(M) for k in range(M) if i != k]
    it.as_printed(not np.any(others) and bool(dz_dx[0, :, 0].all()))


def G38(it: Evidence) -> None:
    r"""The rows are those with `i \in {1, …, M}`.

    Bare braces only group in LaTeX, so the page shows $i \in 1, …, M$. The section on
    embeddings prints its set with `\lbrace` and `\rbrace`, which are shown.
    """
    from matplotlib.mathtext import MathTextParser

    def shown(formula: str) -> str:
        glyphs = MathTextParser("path").parse(f"${formula}$").glyphs
        return "".join(chr(glyph[2]) for glyph in glyphs)

    rows = shown(r"i \in {1, \ldots, M}")
    tokens = shown(r"t_i \in \lbrace1, \ldots, V\rbrace")
    it.clashes(("{" in rows) != ("{" in tokens))
    it.right(rows == "i∈1,…,M" and tokens == "ti∈{1,…,V}")


def G39(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial X} = \frac{\partial L}{\partial Z}W^T$."""
    it.derives(PRODUCT)


def G40(it: Evidence) -> None:
    r"""Row $i$ of $X$ contributes $\mathrm{row}_i(X)^\top\,
    \mathrm{row}_i(\partial L/\partial Z)$ to $\partial L/\partial W$."""
    for i in range(M):
        only_row = DZ * (np.arange(M) == i)[:, None]
        dw = vjp(matmul, (X, W), only_row)[1]
        it.as_printed(same(np.outer(X[i], DZ[i]), dw))


def G41(it: Evidence) -> None:
    """Each weight is used once by each of the $M$ rows of $Z$, so its gradient is the
    sum of their contributions."""
    dz_dw = jacobian(lambda w: w.new_tensor(X) @ w, W)  # [M, P, N, P]
    used = (dz_dw != 0).sum(axis=(0, 1))
    it.as_printed(bool((used == M).all()))
    total = sum(np.outer(X[i], DZ[i]) for i in range(M))
    it.as_printed(same(total, vjp(matmul, (X, W), DZ)[1]))


def G42(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial W} = X^T\frac{\partial L}{\partial Z}$."""
    it.derives(PRODUCT)


def G43(it: Evidence) -> None:
    """A three-dimensional activation is multiplied by a matrix in the projections to
    queries, keys, and values, in the projection after attention, in both projections of
    the feed-forward block, and in the output head.
    """
    from unittest.mock import patch

    from backpass.ops import linear

    config = gpt2.Config(V, positions=s, width=12, layers=1, heads=3, feed_forward=48)
    parameters = {n: numbers(*k) for n, k in gpt2.parameter_shapes(config).items()}
    tokens = np.arange(b * s).reshape(b, s) % V
    with patch.object(linear, "forward", wraps=linear.forward) as called:
        gpt2.forward(
            parameters, tokens, tokens, config=config, flash=False, chunked=False
        )
    shapes = [(call.args[0].shape, call.args[1].shape) for call in called.mock_calls]
    widths = [(12, 36), (12, 12), (12, 48), (48, 12), (12, V)]  # 36 for all three
    it.as_printed(shapes == [((b, s, inner), (inner, to)) for inner, to in widths])


def G44(it: Evidence) -> None:
    """Each of these operations is a series of matrix products, one for each
    two-dimensional slice of the activation."""
    x, w = numbers(b, s, h), numbers(h, V)
    it.as_printed(same(np.stack([x[i] @ w for i in range(b)]), x @ w))


def G45(it: Evidence) -> None:
    r"""The head multiplies $X \in \mathbb{R}^{b \times s \times h}$ by
    $W \in \mathbb{R}^{h \times V}$, in $b$ products, into
    $Z \in \mathbb{R}^{b \times s \times V}$."""
    x, w = numbers(b, s, h), numbers(h, V)
    slices = [x[i] @ w for i in range(b)]
    z = np.einsum("bsh,hV->bsV", x, w)
    it.as_printed(z.shape == (b, s, V) and same(np.stack(slices), z))


def G46(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial X_i} = \frac{\partial L}{\partial Z_i} W^\top$ for
    each slice; stacked they have the shape $(b, s, h)$."""
    printed = r"\frac{\partial L}{\partial X_i} = \frac{\partial L}{\partial Z_i}W^T"
    it.as_printed(derives(printed, BATCH))
    w, dz = numbers(h, V), numbers(b, s, V)
    it.as_printed(np.stack([dz[i] @ w.T for i in range(b)]).shape == (b, s, h))


def G47(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial W} = \sum_{i=1}^b X_i^T\frac{\partial L}{\partial
    Z_i}$."""
    it.derives(BATCH)


def G48(it: Evidence) -> None:
    """The gradients of the head's product hold for all products of activations with
    weights; only the sizes differ.

    This holds for the products. In GPT-2 all of them but the head are followed by a
    bias, whose gradient is the sum of the rows of the output's gradient.
    """
    x, w, bias, dz = numbers(b, s, h), numbers(h, V), numbers(V), numbers(b, s, V)
    it.as_printed(same(dz @ w.T, vjp(matmul, (x, w), dz)[0]))
    shapes = gpt2.parameter_shapes(cost.configuration("gpt2"))
    has_bias = [n for n in shapes if n.startswith("h.0.") and n.endswith(".bias")]
    it.elsewhere(all(".ln_" in name for name in has_bias))
    found = vjp(lambda x, w, c: torch.matmul(x, w) + c, (x, w, bias), dz)[2]
    it.right(same(dz.sum((0, 1)), found))


def G49(it: Evidence) -> None:
    """The head's matrix has a gradient of its own.

    In GPT-2 the matrix is also the table of tokens, and its gradient is the sum of the
    head's and the lookup's. If both are formed as whole arrays, the sum takes $Vh$
    additions, 38,597,376 in the smallest model; scattering the rows into the head's
    gradient takes at most $bsh$.
    """
    table, t = torch.tensor(numbers(V, h), requires_grad=True), torch.tensor([3, 0, 3])
    hidden, dz = torch.tensor(numbers(h, h)), torch.tensor(numbers(3, V))
    x = table[t] @ hidden
    (both,) = torch.autograd.grad(x @ table.T, table, dz)
    head = dz.T @ x
    lookup = torch.zeros(V, h).double().index_add(0, t, dz @ table @ hidden.T)
    it.left_out(float((both - head).abs().max().detach()))
    it.right(same((head + lookup).detach(), both))
    scattered, additions = head.clone(), 0
    for token, row in zip(t, dz @ table @ hidden.T, strict=True):
        scattered[token] += row
        additions += len(row)
    it.right(same(scattered.detach(), both) and additions == len(t) * h)
    config = cost.configuration("gpt2")
    it.right(config.tied and config.vocabulary * config.width == 38_597_376)


def G50(it: Evidence) -> None:
    """Products of activations occur in attention: query @ key and attn @ value.

    The first needs the key transposed. As written, the shapes agree only if $s = d$,
    and then the product is wrong.
    """
    q, k, v = (numbers(b, 3, s, 4, seed=i) for i in range(3))
    scores = np.einsum("bhid,bhjd->bhij", q, k)
    it.as_printed((scores @ v).shape == v.shape)
    it.elsewhere(not raises(ValueError, lambda: q @ k))
    it.right(same(q @ k.swapaxes(-1, -2), scores))
    square_q, square_k = numbers(4, 4), numbers(4, 4, seed=1)
    it.right(not same(square_q @ square_k, square_q @ square_k.T))


def G51(it: Evidence) -> None:
    r"""attn @ value is $b \times n_h$ independent products of an $s \times s$ and an
    $s \times d$ matrix."""
    a, v = numbers(b, 3, s, s), numbers(b, 3, s, 4)
    one_by_one = [[a[i, j] @ v[i, j] for j in range(3)] for i in range(b)]
    it.as_printed(same(np.array(one_by_one), a @ v))


def G52(it: Evidence) -> None:
    """Each product has its own slices, so the gradients are stacked and nothing is
    summed over heads or batch.

    This holds where every query head has its own keys and values, as in GPT-2. If heads
    share them, the gradients of keys and values are sums over the query heads that use
    them.
    """
    a, v, dy = numbers(b, 3, s, s), numbers(b, 3, s, 4), numbers(b, 3, s, 4, seed=1)
    stacked = np.einsum("bhij,bhid->bhjd", a, dy)
    it.as_printed(same(stacked, vjp(matmul, (a, v), dy)[1]))
    shared = vjp(matmul, (a, v[:, :1]), dy)[1]
    it.elsewhere(stacked.shape == shared.shape)
    it.right(same(stacked.sum(1, keepdims=True), shared))


def G53(it: Evidence) -> None:
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
    it.left_out(sum(gradient.size for gradient in expected))
    for formula, gradient in zip(formulas, expected, strict=True):
        it.right(same(formula, gradient))
