"""A row times a matrix, and its gradients."""

from __future__ import annotations

from operator import matmul

import numpy as np

from backpass.claims.evidence import TRUE, Evidence
from backpass.claims.record import claim
from backpass.claims.tools import jacobian, numbers, same, vjp

N, P = 7, 3
X, W, DZ = numbers(1, N), numbers(N, P), numbers(1, P, seed=1)


@claim("row times matrix", TRUE, topic="matmul", page="operations/linear")
def G21(it: Evidence) -> None:
    r"""In $z = xW$, $x$ is $1 \times N$, $W$ is $N \times P$ with rows
    $(w_{r1}, \dots, w_{rP})$, and $z$ is $1 \times P$."""
    it.as_printed(X.shape == (1, N) and (X @ W).shape == (1, P))
    it.as_printed(same(sum(X[0, r] * W[r] for r in range(N)), (X @ W)[0]))


@claim("row times matrix", TRUE, topic="matmul", page="operations/linear")
def G22(it: Evidence) -> None:
    r"""$z_i = \sum_{r=1}^N x_r w_{ri}$, the dot product of $x$ with column $i$."""
    z = [sum(X[0, r] * W[r, i] for r in range(N)) for i in range(P)]
    it.as_printed(same(z, (X @ W)[0]))


@claim("row times matrix", TRUE, topic="matmul", page="operations/linear")
def G23(it: Evidence) -> None:
    r"""$x_1$ enters each $z_k$ as $x_1 w_{1k}$."""
    moved = X + np.eye(1, N)  # x_1 + 1
    it.as_printed(same(moved @ W - X @ W, W[:1]))


@claim("gradient of the row", TRUE, topic="chain rule", page="foundations/chain_rule")
def G24(it: Evidence) -> None:
    """All paths from $x_1$ through $z$ to $L$ have to be summed, because $x_1$ enters
    every element of $z$.

    The rule at the beginning of the text has no sum.
    """
    import torch

    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x @ torch.tensor(W)).prod()

    slopes = np.cos(X @ W) * np.prod(np.sin(X @ W)) / np.sin(X @ W)
    paths = slopes[0] * W[0]
    it.as_printed(same(paths.sum(), jacobian(loss, X)[0, 0]))
    it.right(not any(same(path, jacobian(loss, X)[0, 0]) for path in paths))


@claim("gradient of the row", TRUE, topic="matmul", page="operations/linear")
def G25(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial x_1} = \sum_k \frac{\partial L}{\partial z_k}
    \frac{\partial z_k}{\partial x_1} = \sum_k \frac{\partial L}{\partial z_k} w_{1k}$.
    """
    sums = [sum(DZ[0, k] * W[0, k] for k in range(P))]
    it.as_printed(same(sums, vjp(matmul, (X, W), DZ)[0][0, :1]))


@claim("gradient of the row", TRUE, topic="matmul", page="operations/linear")
def G26(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial x_i}$ is the row $\partial L/\partial z$ times the
    column $(w_{i1}, \dots, w_{iP})$."""
    dots = [(DZ @ W[i, :, None]).item() for i in range(N)]
    it.as_printed(same(dots, vjp(matmul, (X, W), DZ)[0][0]))


@claim("gradient of the row", TRUE, topic="matmul", page="operations/linear")
def G27(it: Evidence) -> None:
    r"""Stacked, the gradients are $\partial L/\partial z$ times a matrix with the rows
    $(w_{11}, w_{21}, \dots, w_{N1})$ to $(w_{1P}, \dots, w_{NP})$."""
    stacked = np.array([[W[r, k] for r in range(N)] for k in range(P)])
    it.as_printed(stacked.shape == (P, N))
    it.as_printed(same(DZ @ stacked, vjp(matmul, (X, W), DZ)[0]))


@claim("gradient of the row", TRUE, topic="matmul", page="operations/linear")
def G28(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial x} = \frac{\partial L}{\partial z} W^\top$."""
    it.as_printed(same(DZ @ W.T, vjp(matmul, (X, W), DZ)[0]))


@claim("gradient of the matrix", TRUE, topic="matmul", page="operations/linear")
def G29(it: Evidence) -> None:
    r"""The first column of $W$ enters only $z_1$."""
    dz_dw = jacobian(lambda w: matmul(w.new_tensor(X), w), W)[0]  # [P, N, P]
    it.as_printed(same(dz_dw[0, :, 0], X[0]) and not dz_dw[1:, :, 0].any())


@claim("gradient of the matrix", TRUE, topic="matmul", page="operations/linear")
def G30(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial w_{j1}} = \frac{\partial L}{\partial z_1}
    \frac{\partial z_1}{\partial w_{j1}} = \frac{\partial L}{\partial z_1} x_j$."""
    dw = vjp(matmul, (X, W), DZ)[1]
    it.as_printed(same([DZ[0, 0] * X[0, j] for j in range(N)], dw[:, 0]))


@claim("gradient of the matrix", TRUE, topic="matmul", page="operations/linear")
def G31(it: Evidence) -> None:
    r"""The first column of $\partial L/\partial W$ is the column of inputs times the
    number $\partial L/\partial z_1$, and likewise for every column."""
    dw = vjp(matmul, (X, W), DZ)[1]
    for i in range(P):
        it.as_printed(same(X.T * DZ[0, i], dw[:, i : i + 1]))


@claim("gradient of the matrix", TRUE, topic="matmul", page="operations/linear")
def G32(it: Evidence) -> None:
    r"""The columns together are the outer product of $x$ and $\partial L/\partial z$,
    with $x_j\,\partial L/\partial z_k$ in row $j$ and column $k$."""
    dw = vjp(matmul, (X, W), DZ)[1]
    it.as_printed(same(np.outer(X[0], DZ[0]), dw))


@claim("gradient of the matrix", TRUE, topic="matmul", page="operations/linear")
def G33(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial W} = x^\top \frac{\partial L}{\partial z}$."""
    it.as_printed(same(X.T @ DZ, vjp(matmul, (X, W), DZ)[1]))
