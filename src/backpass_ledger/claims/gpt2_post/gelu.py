"""GELU: its derivative, its listing, and its FLOPs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from backpass.interpreters import counting
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gpt2_post.overview import ROWS, stored_by
from backpass_ledger.claims.tools import jacobian, numbers, same, torch, vjp

CLAIMS = """
G141  true          0  activations  operations/activations  element-wise operations
G142  true          0  activations  operations/activations  definition
G143  inconsistent  1  notation     reference/letters       definition
G144  true          0  activations  operations/activations  derivative, lines 1 and 2
G145  true          0  activations  operations/activations  derivative, line 3
G146  true          0  activations  operations/activations  derivative, line 4
G147  caveat        1  activations  operations/activations  FLOPs
G148  true          0  memory       operations/activations  FLOPs
G149  true          0  activations  operations/activations  listing
G150  true          0  FLOPs        operations/activations  listing, FLOPs of lines 1 to 3
G151  true          0  FLOPs        operations/activations  listing, FLOPs of lines 4 to 7
G152  true          0  FLOPs        operations/activations  listing, FLOPs of line 8
G153  true          0  FLOPs        operations/activations  listing, FLOPs of line 9
G154  true          0  FLOPs        operations/activations  listing, FLOPs of lines 10 and 11
G155  true          0  FLOPs        operations/activations  total
"""

A, B = np.sqrt(2 / np.pi), 0.044715
X, DY = numbers(5, 7), numbers(5, 7, seed=1)
GELU = r"""
    given x, a, b \in \mathbb{R}
    factor a, x
    let y = \frac{1}{2}x\left(1 + \tanh\left[a(x+bx^3)\right]\right)
    loss L
"""
PRINTED = [1, 1, 3, 1, 1, 1, 1, 2, 4, 2, 2]  # the FLOPs of each line of the listing


def gelu(x: Any) -> Any:
    """Return PyTorch's GELU in the form with tanh."""
    return torch.nn.functional.gelu(x, approximate="tanh")


def steps(
    x: Any, dy: Any, a: Any = A, b: Any = B, three: Any = 3.0, tanh: Any = np.tanh
) -> Iterator[Any]:
    """Compute GELU's gradient in the eleven steps of the text's listing, and yield the
    result of each."""
    yield (square := x * x)
    yield (cube := square * x)
    yield (u := a * (x + b * cube))
    yield (saturated := tanh(u))
    yield (half := 0.5 * x)
    yield (gate := 1 + saturated)
    yield (direct := 0.5 * gate)
    yield (slope := 1 - saturated * saturated)
    yield (du := a * (1 + three * b * square))
    yield (through := half * slope * du)
    yield dy * (direct + through)


def gradient(*arguments: Any) -> Any:
    """Return the result of the last step."""
    return [*steps(*arguments)][-1]


def definition(x: Any, b: float = B) -> Any:
    """Return GELU as the text defines it."""
    return x / 2 * (1 + np.tanh(A * (x + b * x**3)))


def counted(folded: bool = False) -> list[int]:
    """Return how many operations each step takes for one element; with ``folded``,
    those between constants do not count."""
    x, *given = (counting.array(np.array([v])) for v in (0.7, A, B, 3.0))
    a, b, three = (A, B, 3.0) if folded else given
    with counting.tally() as tally:
        ran = [tally.total for _ in steps(x, x, a, b, three, counting.xp.tanh)]
    return np.diff([0, *ran]).tolist()


def G141(it: Evidence) -> None:
    """In an element-wise operation each input element acts on its output element only,
    so the gradients are independent."""
    for function in (gelu, lambda x: x / 8.0, lambda x: x + x.new_tensor(X[1])):
        J = jacobian(function, X[0])
        it.as_printed(same(J, np.diag(np.diag(J))))


def G142(it: Evidence) -> None:
    r"""$\mathrm{GELU}(x)$ is approximated as $\frac12 x\left(1 + \tanh[a(x +
    bx^3)]\right)$ with $a = \sqrt{2/\pi}$ and $b = 0.044715$.

    This is GPT-2's form. PyTorch's default uses erf; they differ by up to 0.00047."""
    x = torch.linspace(-6, 6, 2001, dtype=torch.float64)
    it.as_printed(same(definition(x.numpy(), 0.044715), gelu(x)))
    exact = torch.nn.functional.gelu(x)
    it.right(round(float((gelu(x) - exact).abs().max()), 5) == 0.00047)


def G143(it: Evidence) -> None:
    """In GELU, b is 0.044715.

    In the cost of the same section, $76bsh$, b is the batch size. Both are clear."""
    batch = ROWS["gelu"].at(b=2, s=1, h=1) / ROWS["gelu"].at(b=1, s=1, h=1)
    it.right(same(definition(X, 0.044715), gelu(torch.tensor(X))) and batch == 2)
    it.clashes(not same(definition(X, batch), gelu(torch.tensor(X))))


def G144(it: Evidence) -> None:
    r"""GELU's gradient is $\frac{\partial L}{\partial x} = \frac{\partial L}{\partial
    y}\frac{\partial y}{\partial x} = \frac{\partial L}{\partial y}\left[
    \frac{1}{2}\left(1 + \tanh\left[a(x+bx^3)\right]\right) +
    \frac{1}{2}x\left(\frac{\partial}{\partial x}\tanh\left[a(x+bx^3)\right]\right)
    \right]$."""
    it.derives(GELU)


def G145(it: Evidence) -> None:
    r"""GELU's gradient is $\frac{\partial L}{\partial x} = \frac{\partial L}{\partial
    y}\left[ \frac{1}{2}\left(1 + \tanh\left[a(x+bx^3)\right]\right) +
    \frac{1}{2}ax(1+3bx^2)\left(\text{sech}^2\left[a(x+bx^3)\right]\right) \right]$."""
    it.derives(GELU)


def G146(it: Evidence) -> None:
    r"""GELU's gradient is $\frac{\partial L}{\partial x} = \frac{\partial L}{\partial
    y}\left[ \frac{1}{2}\left(1 + \tanh\left[a(x+bx^3)\right]\right) +
    \frac{1}{2}ax(1+3bx^2)\left(1-\tanh^2\left[a(x+bx^3)\right]\right) \right]$."""
    it.derives(GELU)


def G147(it: Evidence) -> None:
    """The count is based on PyTorch's `gelu_backward`.

    The listing is its branch with tanh. The default branch has another derivative."""
    x, dy = torch.tensor(X), torch.tensor(DY)
    backward = torch.ops.aten.gelu_backward
    it.as_printed(same(gradient(X, DY), backward(dy, x, approximate="tanh")))
    it.elsewhere(same(gradient(X, DY), backward(dy, x)))


def G148(it: Evidence) -> None:
    """GELU's backward needs the upstream gradient and the input, both $(b, s, 4h)$.

    The forward stores only the input."""
    x = numbers(2, 3, 20)
    (stored,) = stored_by(gelu, x)[1]
    it.as_printed(same(stored.detach(), x))


def G149(it: Evidence) -> None:
    r"""The listing of eleven lines computes GELU's gradient.

    The constants, tanh, and the gradient of the output have to be given. In float16 the
    first line overflows for $|x| \ge 256$ and the result is NaN; the slope is 1 for $x
    \ge 256$ and 0 for $x \le -256$."""
    it.as_printed(same(gradient(X, DY), vjp(gelu, X, DY)))
    below = np.nextafter(np.float16(256), np.float16(0))
    for x, slope in ((np.float16(256), 1.0), (np.float16(-256), 0.0)):
        with np.errstate(all="ignore"):
            half = [gradient(v, *map(np.float16, (1, A, B))) for v in (x, below)]
        it.right(np.isnan(half).tolist() == [True, False])
        it.right(same(vjp(gelu, np.array([x]), np.ones(1)), np.array([slope])))


def G150(it: Evidence) -> None:
    """In GELU's listing the square takes 1 FLOP, the cube 1, the inner polynomial 3."""
    it.as_printed(counted()[:3] == PRINTED[:3] == [1, 1, 3])


def G151(it: Evidence) -> None:
    """The tanh takes 1 FLOP, half of x 1, one plus the tanh 1, and half of that 1."""
    it.as_printed(counted()[3:7] == PRINTED[3:7] == [1, 1, 1, 1])


def G152(it: Evidence) -> None:
    """The derivative of the tanh takes 2 FLOPs."""
    it.as_printed(counted()[7] == PRINTED[7] == 2)


def G153(it: Evidence) -> None:
    """The derivative of the inner polynomial takes 4 FLOPs.

    This holds as written. One of the four is `3 * b`, a product of constants: computed
    once, it leaves 3 FLOPs in the line and 18 in the listing, $72bsh$ in all."""
    it.as_printed(counted()[8] == PRINTED[8] == 4)
    folded = counted(folded=True)
    it.right(folded[8] == 3 and sum(folded) == 18 and sum(folded) * 4 == 72)


def G154(it: Evidence) -> None:
    """The product behind the tanh takes 2 FLOPs and the gradient 2."""
    it.as_printed(counted()[9:] == PRINTED[9:] == [2, 2])


def G155(it: Evidence) -> None:
    r"""GELU's backward takes $76bsh$ FLOPs: 19 for each of $4h$ columns."""
    it.as_printed(sum(counted()) == 19 == sum(PRINTED))
    it.as_printed(ROWS["gelu"].at(b=2, s=5, h=3) == 19 * 2 * 5 * 4 * 3)
