"""Softmax: its derivative, its cost, and its stable form."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass import cost
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gpt2_post.overview import ROWS, stored_by
from backpass_ledger.claims.tools import derives, numbers, same, torch, vjp

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
SOFTMAX = r"""
    given x \in \mathbb{R}^N
    let S = \sum_j e^{x_j}
    let z_i = \frac{e^{x_i}}{S}
    loss L
"""


def gradient(x: Any, dz: Any) -> Any:
    """Return the gradient of PyTorch's softmax over the last axis."""
    return vjp(lambda x: torch.softmax(x, -1), x, dz)


def G71(it: Evidence) -> None:
    r"""Softmax is $z_i = e^{x_i} / \sum_{j=1}^N e^{x_j}$."""
    printed = r"""
        z_i = \text{softmax}(x)_i = \frac{e^{x_i}}{\sum_{j=1}^N e^{x_j}}
    """
    it.as_printed(derives(printed, SOFTMAX))
    it.as_printed(same(Z, torch.softmax(torch.tensor(X), -1)))


def G72(it: Evidence) -> None:
    """$x_1$ acts on $z_1$ through numerator and denominator, and on all other outputs
    through the denominator."""
    moved = E.copy()
    moved[0] = np.exp(X[0] + 1e-3)
    both, numerator, denominator = (
        moved / moved.sum() - Z,
        moved / S - Z,
        E / moved.sum() - Z,
    )
    it.as_printed(numerator[0] != 0 and not numerator[1:].any())
    it.as_printed(bool((denominator != 0).all()) and same(both[1:], denominator[1:]))


def G73(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial x_i} = \frac{\partial L}{\partial z_i}\frac{\partial
    z_i}{\partial x_i} + \sum_{j \neq i} \frac{\partial L}{\partial z_j}\frac{\partial
    z_j}{\partial x_i}$.

    The sentence before it writes the loss as $\mathcal{L}$, the formulas as $L$.
    """
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
    x, dz = numbers(4, 6), numbers(4, 6, seed=1)
    rows = np.stack([gradient(x[i], dz[i]) for i in range(4)])
    it.as_printed(same(rows, gradient(x, dz)))


def G80(it: Evidence) -> None:
    """Softmax treats a $(K, M, N)$ tensor as a $(KM, N)$ matrix.

    This holds over the last axis, since the text applies softmax to each row vector.
    """
    x, dz = numbers(2, 3, 6), numbers(2, 3, 6, seed=1)
    rows = gradient(x.reshape(6, 6), dz.reshape(6, 6)).reshape(2, 3, 6)
    it.as_printed(same(rows, vjp(lambda x: torch.softmax(x, -1), x, dz)))
    it.right(not same(rows, vjp(lambda x: torch.softmax(x, 1), x, dz)))


def G81(it: Evidence) -> None:
    """The backward requires storing the upstream gradient and the output, both of the
    shape $(b, n_h, s, s)$.

    The forward stores only the output; the upstream gradient is computed in the
    backward. Flash attention stores neither.
    """
    x = numbers(2, 3, 5, 5)
    y, stored = stored_by(lambda x: torch.softmax(x, -1), x)
    it.as_printed(any(t.shape == (2, 3, 5, 5) and torch.equal(t, y) for t in stored))
    it.elsewhere(len(stored) == 2)
    plain, flash = (
        cost.activations(cost.configuration("gpt2"), 1, 64, flash=flash).bytes or 0
        for flash in (False, True)
    )
    it.elsewhere(flash >= plain)


def G82(it: Evidence) -> None:
    """The output of attention's softmax is called the attention scores.

    Softmax's output is the attention weights. The section on the scale uses *scores*
    for the values before softmax. With those in place of $z$ the gradient is wrong.
    """
    with_scores = X * (DZ - DZ @ X)
    it.clashes(not same(with_scores, gradient(X, DZ)))
    it.right(same(Z * (DZ - DZ @ Z), gradient(X, DZ)))


def G83(it: Evidence) -> None:
    r"""Attention's softmax has $b \times n_h \times s$ vectors of $s$ elements.

    The text calls them feature vectors, but their elements belong to keys.
    """
    order = [3, 0, 4, 1, 2]
    q, k = torch.tensor(numbers(2, 3, 5, 4)), torch.tensor(numbers(2, 3, 5, 4, seed=1))
    weights = torch.softmax(q @ k.mT, -1)
    moved = torch.softmax(q @ k[:, :, order].mT, -1)
    it.right(same(moved, weights[..., order]))  # with the keys
    it.as_printed(same(weights.sum(-1), np.ones((2, 3, 5))) and weights.shape[-1] == 5)


def G84(it: Evidence) -> None:
    r"""In softmax's backward the weighted sum $\sum_j \frac{\partial L}{\partial z_j}
    z_j$ takes $2s$ FLOPs.

    It takes $2s - 1$, because the sum has one addition fewer than products.
    """
    ran = cost.count("matmul", (1, 7), (7, 1)).forward
    it.as_printed(2 * ran.by_kind["multiply"] == 2 * 7)
    it.right(ran.total == 2 * 7 - 1)


def G85(it: Evidence) -> None:
    """In softmax's backward, subtracting the weighted sum takes $s$ FLOPs, and
    multiplying the differences by the outputs $s$.

    The other $s$ multiplications that run belong to the weighted sum.
    """
    kinds = cost.count("softmax", (1, 7)).backward.by_kind
    in_the_sum = cost.count("matmul", (1, 7), (7, 1)).forward.by_kind["multiply"]
    it.right(in_the_sum == 7)
    it.as_printed(kinds["subtract"] == 7 == kinds["multiply"] - in_the_sum)


def G86(it: Evidence) -> None:
    r"""Softmax's backward takes $4bn_hs^2$ FLOPs in total.

    Counted exactly, it takes $4s - 1$ a row. This includes masked elements.
    """
    b, n_h, s = 2, 3, 5
    ran = cost.count("softmax", (b, n_h, s, s)).backward.total
    printed = ROWS["softmax"].at(b=b, n_h=n_h, s=s)
    it.as_printed(printed == ran + b * n_h * s)
    it.right(ran == b * n_h * s * (4 * s - 1))


def G87(it: Evidence) -> None:
    r"""Subtracting the maximum prevents overflow and underflow.

    It prevents overflow and a denominator of 0. Individual exponentials still
    underflow: the softmax of (0, −800) is (1, 0) in float64, and the logarithm of that
    is $-\infty$.
    """
    with np.errstate(all="ignore"):
        for x in (np.array([800.0, 799.0]), np.array([-800.0, -799.0])):
            stable = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
            plain = np.exp(x) / np.exp(x).sum()
            it.as_printed(bool(np.isfinite(stable).all() and np.isnan(plain).any()))
        e = np.exp(np.array([0.0, -800.0]))
        it.elsewhere(bool((e / e.sum() > 0).all()))
        it.right(bool(np.log(e / e.sum())[1] == -np.inf))


def G88(it: Evidence) -> None:
    r"""Softmax is $z_i = e^{x_i - \max x} / \sum_j e^{x_j - \max x}$."""
    printed = r"""
        z_i = \text{softmax}(x)_i
        = \frac{e^{x_i - \max(x)}}{\sum_j e^{x_j - \max(x)}}
    """
    it.as_printed(derives(printed, SOFTMAX))


def G89(it: Evidence) -> None:
    """Softmax's gradient may ignore how the subtracted maximum depends on $x$, because
    the subtraction does not affect softmax's mathematical form.

    The form changes; the value does not, and so neither does the gradient. This also
    holds if several elements are equal to the maximum.
    """

    def through_the_maximum(x: torch.Tensor) -> torch.Tensor:
        e = torch.exp(x - torch.amax(x))
        return e / e.sum()

    for x in (X, np.array([1.5, 0.3, 1.5, -2.0, 1.5, 0.0])):
        e = np.exp(x) / np.exp(x).sum()
        it.as_printed(same(e * (DZ - DZ @ e), vjp(through_the_maximum, x, DZ)))
    it.right(same(through_the_maximum(torch.tensor(X)), Z))  # the value
    exp_alone = vjp(lambda x: torch.exp(x - torch.amax(x)), X, DZ)
    ignored = np.exp(X - X.max()) * DZ
    it.right(not same(exp_alone, ignored))  # where it does change the function
