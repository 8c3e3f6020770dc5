"""The answer, and the derivation for one matrix product."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import matmul
from typing import Any

from backpass import cost
from backpass_ledger import sources
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import numbers, same, torch, vjp

CLAIMS = """
W1   caveat    2  FLOPs   cost/ratio              title and question
W2   true      0  FLOPs   cost/ratio              answer
W3   true      0  matmul  operations/linear       forward, shapes
W4   caveat    3  FLOPs   operations/linear_cost  forward, first axis
W5   true      0  FLOPs   foundations/counting    forward, FLOPs
W6   left-out  1  FLOPs   operations/linear_cost  forward
W7   caveat    2  matmul  cost/ratio              backward
W8   true      0  matmul  operations/linear       backward, 1
W9   true      0  matmul  operations/linear       backward, 2
W10  true      0  matmul  operations/linear       computing dL/dX, shapes
W11  true      0  FLOPs   operations/linear_cost  computing dL/dX, FLOPs
W12  true      0  matmul  operations/linear       computing dL/dW, shapes
W13  true      0  FLOPs   operations/linear_cost  computing dL/dW, FLOPs
W14  true      0  FLOPs   operations/linear_cost  total backward, lines 2 and 3
W15  caveat    1  FLOPs   cost/ratio              total backward, last line
"""

PRINTED = {row.name: row for row in sources.ROWS if row.source == sources.TWICE_NOTE}
m, n, p = 5, 7, 3  # rows, and the widths of input and output
LAYER = (m, n), (n, p)
X, W, DY = numbers(m, n), numbers(n, p), numbers(m, p)


@cache
def product_flops(
    function: Callable[..., Any], *shapes: tuple[int, ...], frozen: tuple[int, ...] = ()
) -> tuple[int, int]:
    """Return PyTorch's count of the products of a function's forward and backward, on
    arrays without data. No gradient is wanted for the arrays at ``frozen``."""
    from torch.utils.flop_counter import FlopCounterMode

    arrays = [
        torch.empty(*shape, device="meta", requires_grad=i not in frozen)
        for i, shape in enumerate(shapes)
    ]
    with FlopCounterMode(display=False) as forward:
        y = function(*arrays)
    with FlopCounterMode(display=False) as backward:
        torch.autograd.grad(y, [a for a in arrays if a.requires_grad], y.detach())
    return forward.get_total_flops(), backward.get_total_flops()


def printed(row: str) -> int:
    """Return what a row of the text prints for the module's sizes."""
    return PRINTED[row].at(m=m, n=n, p=p)


def W1(it: Evidence) -> None:
    """The backward has twice the FLOPs of the forward.

    This holds for matrix products if every gradient is wanted and nothing is
    recomputed. With every operation of GPT-2 counted at 1,024 tokens the ratio is
    1.9969; in products it is 2.73 if all layers are recomputed."""
    step = cost.tally("gpt2", 1, 1024)
    again = cost.tally("gpt2", 1, 1024, recompute=1).ratio("products")
    it.as_printed(step.ratio("products") == 2)
    for ratio, rounded, digits in ((step.ratio(), 1.9969, 4), (again, 2.73, 2)):
        it.elsewhere(ratio == 2)
        it.right(round(ratio, digits) == rounded)


def W2(it: Evidence) -> None:
    """The ratio is about 2 because of the chain rule and the way the gradients of
    matrix operations are computed.

    Each factor of a product whose gradient is wanted adds one product of the same size.
    With one of the two factors frozen, the ratio is 1."""
    forward, backward = product_flops(matmul, *LAYER)
    it.as_printed(backward == 2 * forward)
    for frozen in (0, 1):
        it.right(product_flops(matmul, *LAYER, frozen=(frozen,)) == (forward, forward))


def W3(it: Evidence) -> None:
    """`Y = X @ W` maps `[batch_size, d_in]` and `[d_in, d_out]` to `[batch_size,
    d_out]`."""
    it.as_printed((X @ W).shape == (m, p))


def W4(it: Evidence) -> None:
    """X has `batch_size` rows, so a linear layer's forward costs `2 × batch_size × d_in
    × d_out`.

    In a transformer every token is a row: the factor is batch size times length."""
    s = 4
    it.as_printed(product_flops(matmul, *LAYER)[0] == printed("forward"))
    tokens = product_flops(matmul, (m, s, n), (n, p))[0]
    it.elsewhere(tokens == printed("forward"))
    it.right(tokens == s * printed("forward"))


def W5(it: Evidence) -> None:
    r"""The product costs $2\,m\,n\,p$ FLOPs, with $m$ rows and the widths $n$ and $p$.

    A sum of $n$ terms has $n - 1$ additions, so $m\,p\,(2n - 1)$ operations run."""
    it.as_printed(printed("forward") == product_flops(matmul, *LAYER)[0])
    it.right(cost.count("matmul", *LAYER).forward.total == m * p * (2 * n - 1))


def W6(it: Evidence) -> None:
    r"""A linear layer is `Y = X @ W`.

    Most linear layers add a bias: $m\,p$ additions in the forward and $(m - 1)\,p$ in
    the backward, a ratio below 1."""
    layer, product = cost.count("linear", *LAYER, (p,)), cost.count("matmul", *LAYER)
    it.left_out(layer.forward.total - product.forward.total)
    it.right(layer.forward.total - product.forward.total == m * p)
    it.right(layer.backward.total - product.backward.total == (m - 1) * p)


def W7(it: Evidence) -> None:
    """The backward receives `dL/dY` and needs two gradients, that of X and that of W.

    The first trained layer does not need its input's gradient, and a frozen layer does
    not need its weight's. With a bias there is a third gradient."""
    layer, x = torch.nn.Linear(n, p), torch.randn(m, n, requires_grad=True)
    layer(x).sum().backward()
    it.as_printed(x.grad is not None and layer.weight.grad is not None)
    it.right(layer.bias.grad is not None)
    data = torch.randn(m, n)
    layer(data).sum().backward()
    it.elsewhere(data.grad is not None)


def W8(it: Evidence) -> None:
    r"""The gradient of X is $\frac{\partial L}{\partial Y} W^\top$."""
    it.as_printed(same(DY @ W.T, vjp(matmul, (X, W), DY)[0]))


def W9(it: Evidence) -> None:
    r"""The gradient of W is $X^\top \frac{\partial L}{\partial Y}$.

    With more than two axes X is reshaped to rows; `X.T` would reverse all axes."""
    it.as_printed(same(X.T @ DY, vjp(matmul, (X, W), DY)[1]))
    x, dy = numbers(2, m, n), numbers(2, m, p)
    it.right(same(x.reshape(-1, n).T @ dy.reshape(-1, p), vjp(matmul, (x, W), dy)[1]))
    it.right(x.T.shape == (n, m, 2))


def W10(it: Evidence) -> None:
    """`[batch_size, d_out]` times `[d_out, d_in]` is `[batch_size, d_in]`, as X is."""
    it.as_printed(W.T.shape == (p, n) and (DY @ W.T).shape == X.shape)


def W11(it: Evidence) -> None:
    r"""The gradient of X costs $2\,m\,p\,n$.

    The exact count is $m\,n\,(2p - 1)$."""
    it.as_printed(printed("dx") == product_flops(matmul, *LAYER, frozen=(1,))[1])
    ran = cost.count("matmul", *LAYER, wanted=("a",)).backward.total
    it.right(ran == m * n * (2 * p - 1))


def W12(it: Evidence) -> None:
    """`[d_in, batch_size]` times `[batch_size, d_out]` is `[d_in, d_out]`, as W is."""
    it.as_printed(X.T.shape == (n, m) and (X.T @ DY).shape == W.shape)


def W13(it: Evidence) -> None:
    r"""The gradient of W costs $2\,n\,m\,p$.

    The exact count is $n\,p\,(2m - 1)$, which is half as much for one row."""
    it.as_printed(printed("dw") == product_flops(matmul, *LAYER, frozen=(0,))[1])
    for rows in (m, 1):
        ran = cost.count("matmul", (rows, n), (n, p), wanted=("b",)).backward.total
        it.right(ran == n * p * (2 * rows - 1))


def W14(it: Evidence) -> None:
    r"""The two gradients together cost $4\,m\,n\,p$."""
    both = printed("dx") + printed("dw")
    it.as_printed(both == product_flops(matmul, *LAYER)[1] == 4 * m * n * p)


def W15(it: Evidence) -> None:
    r"""The backward of a product costs 2 × the FLOPs of its forward.

    It does if a product counts $2mnp$. Counting the $n - 1$ additions of each sum, the
    ratio is 1.9998 for 1024 rows from 1600 to 1600 columns, 1.94 for 8 rows, and 1.5
    for one row, whose weight gradient has no additions."""
    forward, backward = product_flops(matmul, *LAYER)
    it.as_printed(backward == 2 * forward)
    for rows, rounded, digits in ((1024, 1.9998, 4), (8, 1.94, 2), (1, 1.5, 2)):
        ran = cost.formula("matmul", (rows, 1600), (1600, 1600))
        ratio = ran.backward / ran.forward
        it.elsewhere(ratio == 2)
        it.right(round(ratio, digits) == rounded)
