"""Softmax: its derivative, its cost, and its stable form."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass import cost
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gpt2_post.overview import ROWS, flash_stores_less, stored_by
from backpass_ledger.claims.tools import numbers, same, torch, vjp

CLAIMS = """
G71  true          0  softmax     operations/softmax  definition
G72  true          0  softmax     operations/softmax  pathways
G73  true          0  chain rule  operations/softmax  chain rule
G74  true          0  softmax     operations/softmax  self term
G75  true          0  softmax     operations/softmax  cross terms
G76  true          0  softmax     operations/softmax  together, lines 1 and 2
G77  true          0  softmax     operations/softmax  together, line 3
G78  true          0  softmax     operations/softmax  together, result
G79  true          0  softmax     operations/softmax  matrices
G80  true          0  softmax     operations/softmax  tensors
G81  caveat        2  memory      operations/softmax  FLOPs, storage
G82  inconsistent  4  attention   operations/softmax  FLOPs, storage
G83  true          0  FLOPs       operations/softmax  FLOPs, rows
G84  true          0  FLOPs       operations/softmax  FLOPs, step 1
G85  true          0  FLOPs       operations/softmax  FLOPs, steps 2 and 3
G86  true          0  FLOPs       operations/softmax  FLOPs, total
G87  caveat        3  precision   operations/softmax  note on stability
G88  true          0  softmax     operations/softmax  note on stability
G89  true          0  softmax     operations/softmax  note on stability
"""

X, DZ = numbers(6), numbers(6, seed=1)
E, S = np.exp(X), np.exp(X).sum()
Z = E / S
X3, DZ3 = numbers(2, 3, 6), numbers(2, 3, 6, seed=1)
SOFTMAX = r"""
    given x \in \mathbb{R}^N
    let S = \sum_j e^{x_j}
    let z_i = \frac{e^{x_i}}{S}
    loss L
"""


def softmax(x: Any) -> Any:
    """Return the softmax of each row."""
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def gradient(x: Any, dz: Any) -> Any:
    """Return the gradient of PyTorch's softmax over the last axis."""
    return vjp(lambda x: torch.softmax(x, -1), x, dz)


def G71(it: Evidence) -> None:
    r"""Softmax is $z_i = \text{softmax}(x)_i = \frac{e^{x_i}}{\sum_{j=1}^N
    e^{x_j}}$."""
    it.derives(SOFTMAX)
    it.as_printed(same(Z, torch.softmax(torch.tensor(X), -1)))


def G72(it: Evidence) -> None:
    """$x_1$ acts on $z_1$ through numerator and denominator, and on all other outputs
    through the denominator."""
    moved = np.where(np.arange(6) == 0, np.exp(X + 1e-3), E)
    numerator, denominator = moved / S - Z, E / moved.sum() - Z
    it.as_printed(numerator[0] != 0 and not numerator[1:].any())
    it.as_printed(bool((denominator != 0).all()))
    it.as_printed(same((moved / moved.sum() - Z)[1:], denominator[1:]))


def G73(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial x_i} = \frac{\partial L}{\partial z_i}\frac{\partial
    z_i}{\partial x_i} + \sum_{j \neq i} \frac{\partial L}{\partial z_j}\frac{\partial
    z_j}{\partial x_i}$."""
    it.derives(SOFTMAX)


def G74(it: Evidence) -> None:
    r"""$\frac{\partial z_i}{\partial x_i} = \frac{\partial}{\partial x_i}
    \left(\frac{e^{x_i}}{S}\right) = \frac{e^{x_i} \cdot S - e^{x_i} \cdot e^{x_i}}{S^2}
    = \frac{e^{x_i}}{S} - \frac{(e^{x_i})^2}{S^2} = z_i - z_i^2$, all three lines."""
    it.derives(SOFTMAX)


def G75(it: Evidence) -> None:
    r"""For $j \ne i$, $\frac{\partial z_j}{\partial x_i} = \frac{\partial}{\partial
    x_i} \left(\frac{e^{x_j}}{S}\right) = \frac{0 \cdot S - e^{x_j} \cdot e^{x_i}}{S^2}
    = -\frac{e^{x_j}}{S} \cdot \frac{e^{x_i}}{S} = -z_j z_i$, all lines."""
    it.derives(SOFTMAX + r"when j \neq i")


def G76(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial x_i} = \frac{\partial L}{\partial z_i}[z_i(1-z_i)] +
    \sum_{j \neq i} \frac{\partial L}{\partial z_j}(-z_jz_i) = \frac{\partial
    L}{\partial z_i}z_i - \frac{\partial L}{\partial z_i}(z_i^2) - \sum_{j \neq i}
    \frac{\partial L}{\partial z_j}(z_jz_i)$."""
    it.derives(SOFTMAX)


def G77(it: Evidence) -> None:
    r"""For softmax, $\frac{\partial L}{\partial x_i} = \frac{\partial L}{\partial
    z_i}z_i - z_i\left(\frac{\partial L}{\partial z_i}z_i + \sum_{j \neq i}
    \frac{\partial L}{\partial z_j}z_j\right)$."""
    it.derives(SOFTMAX)


def G78(it: Evidence) -> None:
    r"""Softmax's gradient is $\frac{\partial L}{\partial x_i} = z_i\left(\frac{\partial
    L}{\partial z_i} - \sum_j \frac{\partial L}{\partial z_j}z_j\right)$."""
    it.derives(SOFTMAX)


def G79(it: Evidence) -> None:
    """For a matrix the formula holds row by row, because rows do not interact."""
    rows = [Z * (DZ - DZ @ Z) for Z, DZ in zip(softmax(X3[0]), DZ3[0], strict=True)]
    it.as_printed(same(np.stack(rows), gradient(X3[0], DZ3[0])))


def G80(it: Evidence) -> None:
    """Softmax treats a $(K, M, N)$ tensor as a $(KM, N)$ matrix.

    This holds over the last axis, since the text applies softmax to each row vector."""
    rows = gradient(X3.reshape(6, 6), DZ3.reshape(6, 6)).reshape(2, 3, 6)
    it.as_printed(same(rows, gradient(X3, DZ3)))
    it.right(not same(rows, vjp(lambda x: torch.softmax(x, 1), X3, DZ3)))


def G81(it: Evidence) -> None:
    """The backward requires storing the upstream gradient and output, $(b, n_h, s, s)$.

    The forward stores only the output; the upstream gradient is computed in the
    backward. Flash attention stores neither."""
    y, stored = stored_by(lambda x: torch.softmax(x, -1), numbers(2, 3, 5, 5))
    it.as_printed(any(torch.equal(t, y) for t in stored) and y.shape == (2, 3, 5, 5))
    it.elsewhere(len(stored) == 2)
    it.elsewhere(not flash_stores_less())


def G82(it: Evidence) -> None:
    """The output of attention's softmax is called the attention scores.

    Softmax's output is the attention weights. The section on the scale uses *scores*
    for the values before softmax. With those in place of $z$ the gradient is wrong."""
    it.clashes(not same(X * (DZ - DZ @ X), gradient(X, DZ)))  # with the scores
    it.right(same(Z * (DZ - DZ @ Z), gradient(X, DZ)))


def G83(it: Evidence) -> None:
    r"""Attention's softmax has $b \times n_h \times s$ vectors of $s$ elements."""
    q, k = (torch.tensor(numbers(2, 3, 5, 4, seed=i)) for i in range(2))
    weights = torch.softmax(q @ k.mT, -1)
    it.as_printed(same(weights.sum(-1), np.ones((2, 3, 5))) and weights.shape[-1] == 5)


def G84(it: Evidence) -> None:
    r"""In softmax's backward the weighted sum $\sum_j \frac{\partial L}{\partial z_j}
    z_j$ takes $2s$ FLOPs.

    It takes $2s - 1$, because the sum has one addition fewer than products."""
    ran = cost.count("matmul", (1, 7), (7, 1)).forward
    it.as_printed(2 * ran.by_kind["multiply"] == 2 * 7 == ran.total + 1)


def G85(it: Evidence) -> None:
    """In softmax's backward, subtracting the weighted sum takes $s$ FLOPs, and
    multiplying the differences by the outputs $s$."""
    kinds = cost.count("softmax", (1, 7)).backward.by_kind
    in_the_sum = cost.count("matmul", (1, 7), (7, 1)).forward.by_kind["multiply"]
    it.as_printed(kinds["subtract"] == 7 == kinds["multiply"] - in_the_sum)


def G86(it: Evidence) -> None:
    r"""Softmax's backward takes $4bn_hs^2$ FLOPs in total.

    Counted exactly, it takes $4s - 1$ a row. This includes masked elements."""
    b, n_h, s = 2, 3, 5
    ran = cost.count("softmax", (b, n_h, s, s)).backward.total
    it.as_printed(ROWS["softmax"].at(b=b, n_h=n_h, s=s) == ran + b * n_h * s)
    it.right(ran == b * n_h * s * (4 * s - 1))


def G87(it: Evidence) -> None:
    r"""Subtracting the maximum prevents overflow and underflow.

    It prevents overflow and a denominator of 0. Exponentials still underflow: the
    softmax of (0, −800) is (1, 0) in float64, with the logarithm $-\infty$."""
    with np.errstate(all="ignore"):
        for x in (np.array([800.0, 799.0]), np.array([-800.0, -799.0])):
            it.as_printed(bool(np.isfinite(softmax(x - x.max())).all()))
            it.as_printed(bool(np.isnan(softmax(x)).any()))
        small = softmax(np.array([0.0, -800.0]))
        it.elsewhere(bool((small > 0).all()))
        it.right(bool(np.log(small)[1] == -np.inf))


def G88(it: Evidence) -> None:
    r"""Softmax is $z_i = \text{softmax}(x)_i = \frac{e^{x_i - \max(x)}}{\sum_j e^{x_j -
    \max(x)}}$."""
    it.derives(SOFTMAX)


def G89(it: Evidence) -> None:
    """Softmax's gradient may ignore how the subtracted maximum depends on $x$, because
    the subtraction does not affect softmax's mathematical form.

    The form changes; the value does not, and so neither does the gradient. This also
    holds if several elements are equal to the maximum."""

    def numerator(x: Any) -> Any:
        return torch.exp(x - torch.amax(x))

    def through_the_maximum(x: Any) -> Any:
        return numerator(x) / numerator(x).sum()

    for x in (X, np.array([1.5, 0.3, 1.5, -2.0, 1.5, 0.0])):
        z = softmax(x)
        it.as_printed(same(z * (DZ - DZ @ z), vjp(through_the_maximum, x, DZ)))
    it.right(same(through_the_maximum(torch.tensor(X)), Z))  # the value
    # where the subtraction does change the function
    it.right(not same(vjp(numerator, X, DZ), np.exp(X - X.max()) * DZ))
