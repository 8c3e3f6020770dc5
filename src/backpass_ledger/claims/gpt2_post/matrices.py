"""Products of matrices, of activations with weights, and of activations."""

from __future__ import annotations

from operator import matmul
from typing import Any
from unittest.mock import patch

import numpy as np

from backpass import cost
from backpass.models import gpt2
from backpass.ops import linear
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import jacobian, numbers, raises, same, vjp

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
G48  true          0  matmul      operations/linear             weights times activations
G49  left-out      4  embeddings  networks/gpt2                 weights times activations
G50  true          0  attention   attention/scaled_dot_product  activations times activations
G51  true          0  attention   attention/heads               activations times activations
G52  caveat        2  attention   attention/grouped_query       activations times activations
G53  left-out      3  attention   attention/scaled_dot_product  activations times activations
"""

M, N, P = 5, 7, 3
X, W, DZ = numbers(M, N), numbers(N, P), numbers(M, P, seed=1)
b, s, h, V, n_h, d = 2, 5, 4, 7, 3, 4
INPUT, WEIGHT = numbers(b, s, h), numbers(h, V)  # of the output head
Q, K, VALUE, DO = (numbers(b, n_h, s, d, seed=i) for i in range(4))
A, DS = (numbers(b, n_h, s, s, seed=i) for i in range(2))
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


def query_at_key(q: Any, k: Any) -> Any:
    """Return the scores."""
    return q @ k.mT


def G34(it: Evidence) -> None:
    r"""$Z = XW$ is $\begin{bmatrix} z_{11} & z_{12} & \cdots & z_{1P} \\ z_{21} &
    z_{22} & \cdots & z_{2P} \\ \vdots & \vdots & \ddots & \vdots \\ z_{M1} & z_{M2} &
    \cdots & z_{MP} \end{bmatrix} = \begin{bmatrix} x_{11} & x_{12} & \cdots & x_{1N} \\
    x_{21} & x_{22} & \cdots & x_{2N} \\ \vdots & \vdots & \ddots & \vdots \\ x_{M1} &
    x_{M2} & \cdots & x_{MN} \end{bmatrix} \begin{bmatrix} w_{11} & w_{12} & \cdots &
    w_{1P} \\ w_{21} & w_{22} & \cdots & w_{2P} \\ \vdots & \vdots & \ddots & \vdots \\
    w_{N1} & w_{N2} & \cdots & w_{NP} \end{bmatrix}$."""
    it.derives(PRODUCT)


def G35(it: Evidence) -> None:
    r"""It is $M$ products of a row of $X$ with $W$, which give the rows of $Z$."""
    it.as_printed(same(np.vstack([X[i : i + 1] @ W for i in range(M)]), X @ W))


def G36(it: Evidence) -> None:
    r"""$\begin{bmatrix} \frac{\partial L}{\partial x_{i1}} & \frac{\partial L}{\partial
    x_{i2}} & \cdots & \frac{\partial L}{\partial x_{iN}} \end{bmatrix} =
    \begin{bmatrix} \frac{\partial L}{\partial z_{i1}} & \frac{\partial L}{\partial
    z_{i2}} & \cdots & \frac{\partial L}{\partial z_{iP}} \end{bmatrix} W^T$."""
    it.derives(PRODUCT)


def G37(it: Evidence) -> None:
    """The rows' gradients are independent, so they can be stacked."""
    dz_dx = jacobian(lambda x: x @ x.new_tensor(W), X)  # [M, P, M, N]
    others = [dz_dx[i, :, k] for i in range(M) for k in range(M) if i != k]
    it.as_printed(not np.any(others) and bool(dz_dx[0, :, 0].all()))


def G38(it: Evidence) -> None:
    r"""The rows are those with `i \in {1, …, M}`.

    Bare braces only group in LaTeX, so the page shows $i \in 1, …, M$. The section on
    embeddings prints its set with `\lbrace` and `\rbrace`, which are shown."""
    from matplotlib.mathtext import MathTextParser

    rows, tokens = (
        "".join(chr(glyph[2]) for glyph in MathTextParser("path").parse(shown).glyphs)
        for shown in (
            r"$i \in {1, \ldots, M}$",
            r"$t_i \in \lbrace1, \ldots, V\rbrace$",
        )
    )
    it.clashes(("{" in rows) != ("{" in tokens))
    it.right(rows == "i∈1,…,M" and tokens == "ti∈{1,…,V}")


def G39(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial X} = \frac{\partial L}{\partial Z}W^T$."""
    it.derives(PRODUCT)


def G40(it: Evidence) -> None:
    r"""Row $i$ of $X$ contributes $\mathrm{row}_i(X)^\top\, \mathrm{row}_i(\partial
    L/\partial Z)$ to $\partial L/\partial W$."""
    for i in range(M):
        dw = vjp(matmul, (X, W), DZ * (np.arange(M) == i)[:, None])[1]  # row i alone
        it.as_printed(same(np.outer(X[i], DZ[i]), dw))


def G41(it: Evidence) -> None:
    """Each weight is used once by each of the $M$ rows of $Z$, so its gradient is the
    sum of their contributions."""
    dz_dw = jacobian(lambda w: w.new_tensor(X) @ w, W)  # [M, P, N, P]
    it.as_printed(bool(((dz_dw != 0).sum(axis=(0, 1)) == M).all()))
    total = sum(np.outer(X[i], DZ[i]) for i in range(M))
    it.as_printed(same(total, vjp(matmul, (X, W), DZ)[1]))


def G42(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial W} = X^T\frac{\partial L}{\partial Z}$."""
    it.derives(PRODUCT)


def G43(it: Evidence) -> None:
    """A three-dimensional activation is multiplied by a matrix in the projections to
    queries, keys, and values, in the projection after attention, in both projections of
    the feed-forward block, and in the output head."""
    config = gpt2.Config(V, positions=s, width=12, layers=1, heads=3, feed_forward=48)
    arrays = {n: numbers(*k) for n, k in gpt2.parameter_shapes(config).items()}
    tokens = np.arange(b * s).reshape(b, s) % V
    with patch.object(linear, "forward", wraps=linear.forward) as called:
        gpt2.forward(arrays, tokens, tokens, config=config, flash=False, chunked=False)
    shapes = [(call.args[0].shape, call.args[1].shape) for call in called.mock_calls]
    widths = [(12, 36), (12, 12), (12, 48), (48, 12), (12, V)]  # 36 for all three
    it.as_printed(shapes == [((b, s, inner), (inner, to)) for inner, to in widths])


def G44(it: Evidence) -> None:
    """Each of these operations is a series of matrix products, one for each
    two-dimensional slice of the activation."""
    it.as_printed(same(np.stack([x @ WEIGHT for x in INPUT]), INPUT @ WEIGHT))


def G45(it: Evidence) -> None:
    r"""The head multiplies $X \in \mathbb{R}^{b \times s \times h}$ by $W \in
    \mathbb{R}^{h \times V}$, in $b$ products; $Z$ is $(b, s, V)$."""
    z = np.einsum("bsh,hV->bsV", INPUT, WEIGHT)
    it.as_printed(z.shape == (b, s, V) and same([x @ WEIGHT for x in INPUT], z))


def G46(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial X_i} = \frac{\partial L}{\partial Z_i}W^T$ for each
    slice; stacked they have the shape $(b, s, h)$."""
    it.derives(BATCH)
    it.as_printed(
        np.stack([dz @ WEIGHT.T for dz in numbers(b, s, V)]).shape == (b, s, h)
    )


def G47(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial W} = \sum_{i=1}^b X_i^T\frac{\partial L}{\partial
    Z_i}$."""
    it.derives(BATCH)


def G48(it: Evidence) -> None:
    """The gradients of the head's product hold for all products of activations with
    weights; only the sizes differ."""
    for inner, to in ((h, V), (h, 3 * h), (h, h), (h, 4 * h), (4 * h, h)):
        x, w, dz = numbers(b, s, inner), numbers(inner, to), numbers(b, s, to)
        dw = sum(x[i].T @ dz[i] for i in range(b))
        it.as_printed(all(map(same, (dz @ w.T, dw), vjp(matmul, (x, w), dz))))


def G49(it: Evidence) -> None:
    """The head's matrix has a gradient of its own.

    In GPT-2 the matrix is also the table of tokens, and its gradient is the sum of the
    head's and the lookup's. If both are formed as whole arrays, the sum takes $Vh$
    additions, 38,597,376 in the smallest model; scattering the rows into the head's
    gradient takes at most $bsh$."""
    table, hidden, t = numbers(V, h), numbers(h, h), np.array([3, 0, 3])
    dz = numbers(3, V)
    both = vjp(lambda e: e[t] @ e.new_tensor(hidden) @ e.T, table, dz)
    gradient, rows = dz.T @ table[t] @ hidden, dz @ table @ hidden.T
    it.left_out(np.abs(both - gradient).max())  # the head's alone
    np.add.at(gradient, t, rows)  # one addition for each element of the rows
    it.right(same(gradient, both) and rows.size == len(t) * h)
    config = cost.configuration("gpt2")
    it.right(config.tied and config.vocabulary * config.width == 38_597_376)


def G50(it: Evidence) -> None:
    """Products of activations occur in attention: query @ key and attn @ value.

    The first needs the key transposed. As written, the shapes agree only if $s = d$,
    and then the product is wrong."""
    scores = np.einsum("bhid,bhjd->bhij", Q, K)
    it.as_printed((scores @ VALUE).shape == VALUE.shape)
    it.right(same(Q @ K.swapaxes(-1, -2), scores) and raises(ValueError, lambda: Q @ K))
    it.right(not same(Q[0, 0, :d] @ K[0, 0, :d], Q[0, 0, :d] @ K[0, 0, :d].T))


def G51(it: Evidence) -> None:
    r"""attn @ value is $b \times n_h$ independent products of $(s, s)$ and $(s, d)$."""
    one_by_one = [[A[i, j] @ VALUE[i, j] for j in range(n_h)] for i in range(b)]
    it.as_printed(same(np.array(one_by_one), A @ VALUE))


def G52(it: Evidence) -> None:
    """Each product has its own slices, so the gradients are stacked and nothing is
    summed over heads or batch.

    This holds where every query head has its own keys and values, as in GPT-2. If heads
    share them, the gradients of keys and values are sums over these query heads."""
    stacked = np.einsum("bhij,bhid->bhjd", A, DO)
    it.as_printed(same(stacked, vjp(matmul, (A, VALUE), DO)[1]))
    shared = vjp(matmul, (A, VALUE[:, :1]), DO)[1]
    it.elsewhere(stacked.shape == shared.shape)
    it.right(same(stacked.sum(1, keepdims=True), shared))


def G53(it: Evidence) -> None:
    r"""The section derives the gradients of attention's two products.

    It gives no formula. With scores $S = QK^\top$ and output $O = AV$: $\bar{A} =
    \bar{O}V^\top$, $\bar{V} = A^\top\bar{O}$, $\bar{Q} = \bar{S}K$, $\bar{K} =
    \bar{S}^\top Q$."""
    expected = [*vjp(matmul, (A, VALUE), DO), *vjp(query_at_key, (Q, K), DS)]
    formulas = [DO @ VALUE.swapaxes(2, 3), A.swapaxes(2, 3) @ DO]
    formulas += [DS @ K, DS.swapaxes(2, 3) @ Q]
    it.left_out(sum(gradient.size for gradient in expected))
    it.right(all(map(same, formulas, expected)))
