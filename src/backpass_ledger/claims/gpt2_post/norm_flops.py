"""LayerNorm: what its backward needs, and its FLOPs."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass import cost
from backpass.cost.published import value
from backpass.interpreters import counting
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gpt2_post.overview import ROWS, TOTALS
from backpass_ledger.claims.tools import numbers, same, torch, vjp

CLAIMS = """
G130  true          0  memory    operations/layer_norm  storage
G131  false         3  memory    operations/layer_norm  storage
G132  true          0  FLOPs     operations/layer_norm  input, step 1
G133  true          0  FLOPs     operations/layer_norm  input, step 1
G134  left-out      5  FLOPs     operations/layer_norm  input
G135  true          0  FLOPs     operations/layer_norm  input, step 2
G136  inconsistent  1  notation  reference/letters      input, step 2
G137  true          0  FLOPs     operations/layer_norm  input, step 3
G138  true          0  FLOPs     operations/layer_norm  scale
G139  true          0  FLOPs     operations/layer_norm  bias
G140  caveat        3  FLOPs     operations/layer_norm  total
"""


R, H = 5, 7  # rows, and their width
X, W, DY = numbers(R, H), numbers(H, seed=1), numbers(R, H, seed=2)
ROOT = np.sqrt(X.var(-1, keepdims=True) + 0.1)
X_HAT = (X - X.mean(-1, keepdims=True)) / ROOT


def counted(*arrays: Any) -> Any:
    """Return the arrays as arrays that count."""
    return [counting.array(array) for array in arrays]


def summed(array: Any, axis: int) -> Any:
    """Return the sum over an axis, which stays with length 1."""
    return counting.xp.sum(array, axis=axis, keepdims=True)


def G130(it: Evidence) -> None:
    r"""LayerNorm's backward requires the upstream gradient and the input, $(b, s, h)$,
    and the means and variances of the rows, $(b, s)$, and γ, $(h,)$.

    They suffice. PyTorch stores $1/\sqrt{\sigma^2 + \epsilon}$ in place of the
    variance; instead of the input and the mean,
    x̂ is enough.
    """
    x_hat = (X - X.mean(-1, keepdims=True)) / np.sqrt(X.var(-1, keepdims=True) + 0.1)
    v = DY * W
    dx = (
        v - v.mean(-1, keepdims=True) - x_hat * (v * x_hat).mean(-1, keepdims=True)
    ) / np.sqrt(X.var(-1, keepdims=True) + 0.1)
    norm = torch.nn.functional.layer_norm
    it.as_printed(
        same(dx, vjp(lambda x: norm(x, (H,), torch.tensor(W), None, 0.1), X, DY))
    )
    third = torch.native_layer_norm(torch.tensor(X), (H,), None, None, 0.1)[2]
    it.right(same(third, 1 / ROOT))


def G131(it: Evidence) -> None:
    """LayerNorm's backward requires β.

    No gradient contains it: with any β all three gradients are the same numbers.
    PyTorch's autograd stores β nevertheless.
    """

    def gradients(b: Any) -> Any:
        return vjp(
            lambda x, w, b: torch.nn.functional.layer_norm(x, (H,), w, b, 0.1),
            (X, W, b),
            DY,
        )

    one, other = gradients(np.zeros(H)), gradients(77 * numbers(H, seed=3))
    equal = [np.array_equal(a, b) for a, b in zip(one, other, strict=True)]
    it.as_printed(not all(equal))
    it.right(all(equal))
    w, b = (torch.tensor(W, requires_grad=True) for _ in range(2))
    y = torch.nn.functional.layer_norm(torch.tensor(X), (H,), w, b)
    it.right(torch.equal(y.grad_fn._saved_bias, b))  # type: ignore[union-attr]


def G132(it: Evidence) -> None:
    r"""$v_j = \frac{\partial L}{\partial y_j}\gamma_j$ takes $h$ FLOPs a row and $S_1 =
    \sum_j v_j$ takes $h$.

    The sum has exactly $h - 1$ additions.
    """
    w, dy = counted(W, DY)
    with counting.tally() as products:
        v = dy * w
    with counting.tally() as sums:
        summed(v, 1)
    it.as_printed(products.total == R * H == sums.total + R)


def G133(it: Evidence) -> None:
    r"""$S_2 = \sum_j v_j \hat{x}_j$ takes $2h$ FLOPs a row.

    It takes $2h - 1$, if x̂ is stored.
    """
    dy, x_hat = counted(DY, X_HAT)
    with counting.tally() as ran:
        summed(dy * x_hat, 1)
    it.as_printed(ran.total + R == R * 2 * H)


def G134(it: Evidence) -> None:
    """$S_2$, the result, and γ's gradient use x̂.

    x̂ is not among the tensors that the text stores. Computing it from the input, the
    mean, and the variance takes $2h$ FLOPs a row, and 3 for the inverse root: $13bsh$
    for a LayerNorm instead of $11bsh$.
    """
    x, mean, variance = counted(X, X.mean(-1, keepdims=True), X.var(-1, keepdims=True))
    with counting.tally() as rebuilt:
        x_hat = (x - mean) * (1 / counting.xp.sqrt(variance + 0.1))
    it.left_out(rebuilt.total)
    it.right(rebuilt.total == R * (2 * H + 3) and same(x_hat.to_numpy(), X_HAT))
    it.right(value(TOTALS["layer_norm"].printed, b=1, s=R, h=H) == 11 * R * H)


def G135(it: Evidence) -> None:
    r"""$\frac{1}{\sqrt{\sigma^2 + \epsilon}}\left(v_i - \frac{S_1}{n} - \hat{x}_i
    \frac{S_2}{n}\right)$ takes $4h$ FLOPs a row.

    This holds if the root and the two divisions by $n$ are computed once for each row
    and not counted.
    """
    dy, x_hat, first, second, root = counted(DY, X_HAT, ROOT, ROOT, ROOT)
    with counting.tally() as ran:
        _ = root * (dy - first - x_hat * second)
    it.as_printed(ran.total == R * 4 * H)
    with counting.tally() as by_row:
        _ = first / 7.0, second / 7.0
    it.right(by_row.total == 2 * R)


def G136(it: Evidence) -> None:
    """LayerNorm's result is written with sums divided by n.

    The width is meant: N in the derivation, h in the counts. Elsewhere in the text n is
    the number of composed functions and the inner length of a product; with the first,
    or with the number of rows in γ's sum, the result is wrong.
    """
    v = DY * W

    def dx(n: int) -> Any:
        first, second = v.sum(-1, keepdims=True), (v * X_HAT).sum(-1, keepdims=True)
        return (v - first / n - X_HAT * second / n) / ROOT

    norm = torch.nn.functional.layer_norm
    expected = vjp(lambda x: norm(x, (H,), torch.tensor(W), None, 0.1), X, DY)
    functions = 12
    for n in (functions, R):
        it.clashes(not same(dx(n), expected))
    it.right(same(dx(H), expected))


def G137(it: Evidence) -> None:
    """The gradient of LayerNorm's input takes $8bsh$ FLOPs.

    The parts sum to it, if x̂ and the root are given.
    """
    w, dy, x_hat, root = counted(W, DY, X_HAT, ROOT)
    with counting.tally() as ran:
        v = dy * w
        first, second = summed(v, 1), summed(v * x_hat, 1)
        _ = root * (v - first - x_hat * second)
    it.as_printed(ROWS["input"].at(b=1, s=R, h=H) == ran.total + 2 * R)


def G138(it: Evidence) -> None:
    r"""γ's gradient takes $bsh$ FLOPs for the products and $bsh$ for the sum over the
    rows.

    The sum has $(bs - 1)h$ additions.
    """
    dy, x_hat = counted(DY, X_HAT)
    with counting.tally() as ran:
        summed(dy * x_hat, 0)
    it.as_printed(ROWS["scale"].at(b=1, s=R, h=H) == ran.total + H)
    it.right(ran.by_kind == {"multiply": R * H, "add": (R - 1) * H})


def G139(it: Evidence) -> None:
    r"""β's gradient takes $bsh$ FLOPs.

    It has $(bs - 1)h$ additions.
    """
    (dy,) = counted(DY)
    with counting.tally() as ran:
        summed(dy, 0)
    it.as_printed(ROWS["shift"].at(b=1, s=R, h=H) == ran.total + H)


def G140(it: Evidence) -> None:
    """LayerNorm's backward costs $11bsh$ FLOPs.

    The rows sum to it. It is the cost if the forward stores x̂, with the two sums over
    rows rounded up. From the tensors that the text lists, the backward costs $13bsh$.
    """
    printed = value(TOTALS["layer_norm"].printed, b=1, s=R, h=H)
    it.as_printed(
        printed
        == sum(ROWS[name].at(b=1, s=R, h=H) for name in ("input", "scale", "shift"))
    )
    saved = cost.count("layer_norm", (R, H), (H,), (H,)).backward.total
    it.as_printed(printed == saved + 2 * H)
    rebuilt = saved + R * (2 * H + 3)
    it.elsewhere(abs(printed - rebuilt) <= 2 * (R + H))
