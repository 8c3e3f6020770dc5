"""LayerNorm: what its backward needs, and its FLOPs."""

from __future__ import annotations

from operator import mul
from typing import Any

import numpy as np

from backpass import cost
from backpass.cost.published import value
from backpass.interpreters import counting
from backpass_ledger.claims.encoder_block import steps
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
G140  left-out      3  FLOPs     operations/layer_norm  total
"""

R, H = 5, 7  # rows, and their width
X, W, DY = numbers(R, H), numbers(H, seed=1), numbers(R, H, seed=2)
LISTED = X, X.mean(-1, keepdims=True), X.var(-1, keepdims=True)
ROOT = np.sqrt(LISTED[2] + 0.1)
X_HAT = (X - LISTED[1]) / ROOT
V = DY * W
FIRST, SECOND = V.sum(-1, keepdims=True), (V * X_HAT).sum(-1, keepdims=True)
AT = {"b": 1, "s": R, "h": H}
TOTAL = value(TOTALS["layer_norm"].printed, **AT)


def gradients(b: Any) -> Any:
    """Return the gradients of x, γ, and β by PyTorch."""
    norm = torch.nn.functional.layer_norm
    return vjp(lambda x, w, b: norm(x, (H,), w, b, 0.1), (X, W, b), DY)


def result(n: int) -> Any:
    """Return the gradient of x by the printed formula with n."""
    return (V - FIRST / n - X_HAT * SECOND / n) / ROOT


def summed(array: Any, axis: int = 1) -> Any:
    """Return the sum of a counting array over an axis, which stays with length 1."""
    return counting.xp.sum(array, axis=axis, keepdims=True)


def rebuilt(x: Any, mean: Any, variance: Any) -> Any:
    """Return x̂ from the tensors that the text lists."""
    return (x - mean) * (1 / counting.xp.sqrt(variance + 0.1))


def G130(it: Evidence) -> None:
    r"""LayerNorm's backward requires the upstream gradient and the input, $(b, s, h)$,
    and the means and variances of the rows, $(b, s)$, and γ, $(h,)$.

    They suffice. PyTorch stores $1/\sqrt{\sigma^2 + \epsilon}$ in place of the
    variance; instead of the input and the mean, x̂ is enough."""
    it.as_printed(same(result(H), gradients(np.zeros(H))[0]))  # from these alone
    third = torch.native_layer_norm(torch.tensor(X), (H,), None, None, 0.1)[2]
    it.right(same(third, 1 / ROOT))


def G131(it: Evidence) -> None:
    """LayerNorm's backward requires β.

    No gradient contains it: with any β all three gradients are the same numbers.
    PyTorch's autograd stores β nevertheless."""
    one, other = gradients(np.zeros(H)), gradients(77 * numbers(H, seed=3))
    equal = all(map(np.array_equal, one, other))
    it.as_printed(not equal)
    it.right(equal)
    w, b = (torch.tensor(W, requires_grad=True) for _ in range(2))
    y = torch.nn.functional.layer_norm(torch.tensor(X), (H,), w, b)
    it.right(torch.equal(y.grad_fn._saved_bias, b))


def G132(it: Evidence) -> None:
    r"""$v_j = \frac{\partial L}{\partial y_j}\gamma_j$ takes $h$ FLOPs per row and
    $S_1 = \sum_j v_j$ takes $h$.

    The sum has exactly $h - 1$ additions."""
    it.as_printed(steps(mul, DY, W) == R * H == steps(summed, V) + R)


def G133(it: Evidence) -> None:
    r"""$S_2 = \sum_j v_j \hat{x}_j$ takes $2h$ FLOPs per row.

    It takes $2h - 1$, if x̂ is stored."""
    it.as_printed(steps(lambda v, x: summed(v * x), V, X_HAT) + R == R * 2 * H)


def G134(it: Evidence) -> None:
    """$S_2$, the result, and γ's gradient use x̂.

    x̂ is not among the tensors that the text stores. Computing it from the input, the
    mean, and the variance takes $2h$ FLOPs per row, and 3 for the inverse root: $13bsh$
    for a LayerNorm instead of $11bsh$."""
    it.left_out(steps(rebuilt, *LISTED))
    it.right(steps(rebuilt, *LISTED) == R * (2 * H + 3) and TOTAL == 11 * R * H)
    it.right(same(rebuilt(*map(counting.array, LISTED)).to_numpy(), X_HAT))


def G135(it: Evidence) -> None:
    r"""$\frac{1}{\sqrt{\sigma^2 + \epsilon}}\left(v_i - \frac{S_1}{n} - \hat{x}_i
    \frac{S_2}{n}\right)$ takes $4h$ FLOPs per row.

    This holds if the root and the two divisions by $n$ of a row are not counted."""
    given = V, FIRST / H, X_HAT, SECOND / H, 1 / ROOT
    it.as_printed(steps(lambda v, a, x, b, r: r * (v - a - x * b), *given) == R * 4 * H)
    it.right(steps(lambda a, b: (a / 7.0, b / 7.0), FIRST, SECOND) == 2 * R)


def G136(it: Evidence) -> None:
    """LayerNorm's result is written with sums divided by n.

    The width is meant: N in the derivation, h in the counts. Elsewhere in the text n is
    the number of composed functions and the inner length of a product; with the first,
    or with the number of rows in γ's sum, the result is wrong."""
    expected, functions = gradients(np.zeros(H))[0], 12
    it.clashes(not same(result(functions), expected) and not same(result(R), expected))
    it.right(same(result(H), expected))


def G137(it: Evidence) -> None:
    """The gradient of LayerNorm's input takes $8bsh$ FLOPs.

    The parts add up to $8bsh$ if x̂ and the root are given."""

    def parts(dy: Any, w: Any, x_hat: Any, root: Any) -> Any:
        v = dy * w
        return root * (v - summed(v) - x_hat * summed(v * x_hat))

    ran = steps(parts, DY, W, X_HAT, 1 / ROOT)
    it.as_printed(ROWS["input"].at(**AT) == ran + 2 * R == 8 * R * H)


def G138(it: Evidence) -> None:
    r"""γ's gradient takes $bsh$ FLOPs for products and $bsh$ for the sum over the rows.

    The sum has $(bs - 1)h$ additions."""
    products, sums = steps(mul, DY, X_HAT), steps(lambda dy: summed(dy, 0), DY * X_HAT)
    it.as_printed(ROWS["scale"].at(**AT) == products + sums + H == 2 * R * H)
    it.right((products, sums) == (R * H, (R - 1) * H))


def G139(it: Evidence) -> None:
    r"""β's gradient takes $bsh$ FLOPs.

    It has $(bs - 1)h$ additions."""
    ran = steps(lambda dy: summed(dy, 0), DY)
    it.as_printed(ROWS["shift"].at(**AT) == ran + H == R * H)


def G140(it: Evidence) -> None:
    """LayerNorm's backward costs $11bsh$ FLOPs.

    The rows add up to $11bsh$. This is the cost if the forward stores x̂, with the two
    sums over rows rounded up. From the tensors that the text lists, x̂ has to be
    computed, and the backward costs $13bsh$."""
    it.right(TOTAL == sum(ROWS[name].at(**AT) for name in ("input", "scale", "shift")))
    saved = cost.count("layer_norm", (R, H), (H,), (H,)).backward.total
    it.right(saved == TOTAL - 2 * H == 11 * R * H - 2 * H)
    whole = saved + steps(rebuilt, *LISTED)
    it.left_out(whole - TOTAL)
    it.right(whole == 13 * R * H + 3 * R - 2 * H)
