"""A row times a matrix, and its gradients."""

from __future__ import annotations

import numpy as np

from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import jacobian, numbers, same, torch

CLAIMS = """
G21  true  0  matmul      operations/linear       row times matrix
G22  true  0  matmul      operations/linear       row times matrix
G23  true  0  matmul      operations/linear       row times matrix
G24  true  0  chain rule  foundations/chain_rule  gradient of the row
G25  true  0  matmul      operations/linear       gradient of the row
G26  true  0  matmul      operations/linear       gradient of the row
G27  true  0  matmul      operations/linear       gradient of the row
G28  true  0  matmul      operations/linear       gradient of the row
G29  true  0  matmul      operations/linear       gradient of the matrix
G30  true  0  matmul      operations/linear       gradient of the matrix
G31  true  0  matmul      operations/linear       gradient of the matrix
G32  true  0  matmul      operations/linear       gradient of the matrix
G33  true  0  matmul      operations/linear       gradient of the matrix
"""

N, P = 7, 3
X, W = numbers(1, N), numbers(N, P)
ROW = r"""
    given x \in \mathbb{R}^{1 \times N}, w \in \mathbb{R}^{N \times P}
    let W = w
    let z = x W
    loss L
"""


def G21(it: Evidence) -> None:
    r"""A row of $N$ elements times an $N \times P$ matrix is $\begin{bmatrix} z_1 & z_2
    & \cdots & z_P \end{bmatrix} = \begin{bmatrix} x_1 & x_2 & \cdots & x_N
    \end{bmatrix} \begin{bmatrix} w_{11} & w_{12} & \cdots & w_{1P} \\ w_{21} & w_{22} &
    \cdots & w_{2P} \\ \vdots & \vdots & \ddots & \vdots \\ w_{N1} & w_{N2} & \cdots &
    w_{NP} \end{bmatrix}$."""
    it.derives(ROW)


def G22(it: Evidence) -> None:
    r"""$z_i = x_1w_{1i} + x_2w_{2i} + ... + x_Nw_{Ni} = \sum_{r=1}^N x_rw_{ri}$, the
    dot product of $x$ with column $i$."""
    it.derives(ROW)


def G23(it: Evidence) -> None:
    r"""$x_1$ enters each $z_k$ as $x_1 w_{1k}$."""
    moved = X + np.eye(1, N)  # x_1 + 1
    it.as_printed(same(moved @ W - X @ W, W[:1]))


def G24(it: Evidence) -> None:
    """All paths from $x_1$ through $z$ to $L$ have to be summed, because $x_1$ enters
    every element of $z$."""
    slope = jacobian(lambda x: torch.sin(x @ torch.tensor(W)).prod(), X)[0, 0]
    z = X[0] @ W
    paths = np.cos(z) * np.prod(np.sin(z)) / np.sin(z) * W[0]
    it.as_printed(same(paths.sum(), slope) and not any(same(p, slope) for p in paths))


def G25(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial x_1} = \frac{\partial L}{\partial z_1}\frac{\partial
    z_1}{\partial x_1} + \frac{\partial L}{\partial z_2}\frac{\partial z_2}{\partial
    x_1} + ... + \frac{\partial L}{\partial z_P}\frac{\partial z_P}{\partial x_1} =
    \frac{\partial L}{\partial z_1}w_{11} + \frac{\partial L}{\partial z_2}w_{12} + ...
    + \frac{\partial L}{\partial z_P}w_{1P}$."""
    it.derives(ROW)


def G26(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial x_i} = \begin{bmatrix} \frac{\partial L}{\partial
    z_1} & \frac{\partial L}{\partial z_2} & \cdots & \frac{\partial L}{\partial z_P}
    \end{bmatrix} \begin{bmatrix} w_{i1} \\ w_{i2} \\ \vdots \\ w_{iP}
    \end{bmatrix}$."""
    it.derives(ROW)


def G27(it: Evidence) -> None:
    r"""Stacked, $\begin{bmatrix} \frac{\partial L}{\partial x_1} & \frac{\partial
    L}{\partial x_2} & \cdots & \frac{\partial L}{\partial x_N} \end{bmatrix} =
    \begin{bmatrix} \frac{\partial L}{\partial z_1} & \frac{\partial L}{\partial z_2} &
    \cdots & \frac{\partial L}{\partial z_P} \end{bmatrix} \begin{bmatrix} w_{11} &
    w_{21} & \cdots & w_{N1} \\ w_{12} & w_{22} & \cdots & w_{N2} \\ \vdots & \vdots &
    \ddots & \vdots \\ w_{1P} & w_{2P} & \cdots & w_{NP} \end{bmatrix}$."""
    it.derives(ROW)


def G28(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial x} = \frac{\partial L}{\partial z}W^T$."""
    it.derives(ROW)


def G29(it: Evidence) -> None:
    r"""The first column of $W$ enters only $z_1$."""
    dz_dw = jacobian(lambda w: w.new_tensor(X) @ w, W)[0]  # [P, N, P]
    it.as_printed(same(dz_dw[0, :, 0], X[0]) and not dz_dw[1:, :, 0].any())


def G30(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial w_{j1}} = \frac{\partial L}{\partial
    z_1}\frac{\partial z_1}{\partial w_{j1}} = \frac{\partial L}{\partial z_1}x_j$."""
    it.derives(ROW)


def G31(it: Evidence) -> None:
    r"""For the first column of $W$, $\begin{bmatrix} \frac{\partial L}{\partial w_{11}}
    \\ \frac{\partial L}{\partial w_{21}} \\ \vdots \\ \frac{\partial L}{\partial
    w_{N1}} \end{bmatrix} = \begin{bmatrix} x_1 \\ x_2 \\ \vdots \\ x_N \end{bmatrix}
    \frac{\partial L}{\partial z_1}$, and likewise for column $i$: $\frac{\partial
    L}{\partial w_{ji}} = x_j \frac{\partial L}{\partial z_i}$."""
    it.derives(ROW)


def G32(it: Evidence) -> None:
    r"""Together, $\begin{bmatrix} \frac{\partial L}{\partial w_{11}} & \frac{\partial
    L}{\partial w_{12}} & \cdots & \frac{\partial L}{\partial w_{1P}} \\ \frac{\partial
    L}{\partial w_{21}} & \frac{\partial L}{\partial w_{22}} & \cdots & \frac{\partial
    L}{\partial w_{2P}} \\ \vdots & \vdots & \ddots & \vdots \\ \frac{\partial
    L}{\partial w_{N1}} & \frac{\partial L}{\partial w_{N2}} & \cdots & \frac{\partial
    L}{\partial w_{NP}} \end{bmatrix} = \begin{bmatrix} x_1 \\ x_2 \\ \vdots \\ x_N
    \end{bmatrix} \begin{bmatrix} \frac{\partial L}{\partial z_1} & \frac{\partial
    L}{\partial z_2} & \cdots & \frac{\partial L}{\partial z_P} \end{bmatrix}$."""
    it.derives(ROW)


def G33(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial W} = x^T\frac{\partial L}{\partial z}$."""
    it.derives(ROW)
