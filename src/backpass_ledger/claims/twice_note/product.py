"""The answer, and the derivation for one matrix product."""

from __future__ import annotations

from collections.abc import Callable
from operator import matmul
from typing import Any

from backpass import cost
from backpass.cost import sources
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


def product_flops(
    function: Callable[..., Any], *shapes: tuple[int, ...], frozen: tuple[int, ...] = ()
) -> tuple[int, int]:
    """Return PyTorch's count of the products of a function's forward and backward on
    random arrays. No gradient is wanted for the arrays at the places ``frozen``."""
    from torch.utils.flop_counter import FlopCounterMode

    arrays = [
        torch.tensor(numbers(*shape, seed=i), requires_grad=i not in frozen)
        for i, shape in enumerate(shapes)
    ]
    with FlopCounterMode(display=False) as forward:
        y = function(*arrays)
    wanted = [a for a in arrays if a.requires_grad]
    with FlopCounterMode(display=False) as backward:
        torch.autograd.grad(y, wanted, torch.tensor(numbers(*y.shape, seed=9)))
    return forward.get_total_flops(), backward.get_total_flops()


def W1(it: Evidence) -> None:
    """The backward has twice the FLOPs of the forward.

    This holds for matrix products if every gradient is wanted and nothing is
    recomputed. With every operation of GPT-2 counted at 1,024 tokens the ratio is
    1.9969; in products it is 2.73 if all layers are recomputed.
    """
    step = cost.tally("gpt2", 1, 1024)
    it.as_printed(step.ratio("products") == 2)
    it.elsewhere(step.ratio("counted") == 2)
    it.right(round(step.ratio("counted"), 4) == 1.9969)
    again = cost.tally("gpt2", 1, 1024, recompute=1).ratio("products")
    it.elsewhere(again == 2)
    it.right(round(again, 2) == 2.73)


def W2(it: Evidence) -> None:
    """The ratio is about 2 because of the chain rule and the way the gradients of
    matrix operations are computed.

    Each factor of a product whose gradient is wanted adds one product of the same size.
    With one of the two factors frozen, the ratio is 1.
    """
    shapes = (5, 7), (7, 3)
    forward, backward = product_flops(matmul, *shapes)
    it.as_printed(backward == 2 * forward)
    for frozen in (0, 1):
        forward, backward = product_flops(matmul, *shapes, frozen=(frozen,))
        it.right(backward == forward)


def W3(it: Evidence) -> None:
    """`Y = X @ W` maps `[batch_size, d_in]` and `[d_in, d_out]` to `[batch_size,
    d_out]`."""
    it.as_printed((numbers(5, 7) @ numbers(7, 3)).shape == (5, 3))


def W4(it: Evidence) -> None:
    """X has `batch_size` rows, so a linear layer's forward costs `2 × batch_size × d_in
    × d_out`.

    In a transformer every token is a row, so the batch size has to be multiplied by the
    length of the sequences.
    """
    b, s, d_in, d_out = 2, 5, 7, 3
    printed = PRINTED["forward"].at(m=b, n=d_in, p=d_out)
    it.as_printed(product_flops(matmul, (b, d_in), (d_in, d_out))[0] == printed)
    tokens = product_flops(matmul, (b, s, d_in), (d_in, d_out))[0]
    it.elsewhere(tokens == printed)
    it.right(tokens == s * printed)


def W5(it: Evidence) -> None:
    r"""The product costs $2\,m\,n\,p$ FLOPs, with $m$ rows, input width $n$, and
    output width $p$.

    A sum of $n$ terms has $n - 1$ additions, so $m\,p\,(2n - 1)$ operations run.
    """
    m, n, p = 5, 7, 3
    printed = PRINTED["forward"].at(m=m, n=n, p=p)
    it.as_printed(printed == product_flops(matmul, (m, n), (n, p))[0])
    ran = cost.count("matmul", (m, n), (n, p)).forward.total
    it.right(ran == m * p * (2 * n - 1))


def W6(it: Evidence) -> None:
    r"""A linear layer is `Y = X @ W`.

    Most linear layers add a bias: $m\,p$ additions in the forward and $(m - 1)\,p$ in
    the backward, a ratio below 1.
    """
    m, n, p = 5, 7, 3
    layer = cost.count("linear", (m, n), (n, p), (p,))
    product = cost.count("matmul", (m, n), (n, p))
    it.left_out(layer.forward.total - product.forward.total)
    it.right(layer.forward.total - product.forward.total == m * p)
    it.right(layer.backward.total - product.backward.total == (m - 1) * p)


def W7(it: Evidence) -> None:
    """The backward receives `dL/dY` and needs two gradients, that of X and that of W.

    The first trained layer does not need its input's gradient, and a frozen layer does
    not need its weight's. With a bias there is a third gradient.
    """
    layer = torch.nn.Linear(7, 3, bias=False)
    x = torch.randn(5, 7, requires_grad=True)
    layer(x).backward(torch.randn(5, 3))
    it.as_printed(x.grad is not None and layer.weight.grad is not None)
    first = torch.nn.Linear(7, 3)
    data = torch.randn(5, 7)
    first(data).backward(torch.randn(5, 3))
    it.elsewhere(data.grad is not None)
    it.right(first.bias.grad is not None)


def W8(it: Evidence) -> None:
    r"""The gradient of X is $\frac{\partial L}{\partial Y} W^\top$."""
    x, w, dy = numbers(5, 7), numbers(7, 3), numbers(5, 3)
    it.as_printed(same(dy @ w.T, vjp(matmul, (x, w), dy)[0]))


def W9(it: Evidence) -> None:
    r"""The gradient of W is $X^\top \frac{\partial L}{\partial Y}$.

    With more than two axes X is first reshaped to rows; `X.T` would reverse all axes.
    """
    x, w, dy = numbers(5, 7), numbers(7, 3), numbers(5, 3)
    it.as_printed(same(x.T @ dy, vjp(matmul, (x, w), dy)[1]))
    x, dy = numbers(2, 5, 7), numbers(2, 5, 3)
    dw = vjp(matmul, (x, w), dy)[1]
    it.right(same(x.reshape(-1, 7).T @ dy.reshape(-1, 3), dw))
    it.right(x.T.shape == (7, 5, 2))


def W10(it: Evidence) -> None:
    """`[batch_size, d_out]` times `[d_out, d_in]` is `[batch_size, d_in]`, the shape of
    X."""
    x, w, dy = numbers(5, 7), numbers(7, 3), numbers(5, 3)
    it.as_printed(w.T.shape == (3, 7) and (dy @ w.T).shape == x.shape)


def W11(it: Evidence) -> None:
    r"""The gradient of X costs $2\,m\,p\,n$.

    The exact count is $m\,n\,(2p - 1)$.
    """
    m, n, p = 5, 7, 3
    dx = product_flops(matmul, (m, n), (n, p), frozen=(1,))[1]
    it.as_printed(PRINTED["dx"].at(m=m, n=n, p=p) == dx)
    ran = cost.count("matmul", (m, n), (n, p), wanted=("a",)).backward.total
    it.right(ran == m * n * (2 * p - 1))


def W12(it: Evidence) -> None:
    """`[d_in, batch_size]` times `[batch_size, d_out]` is `[d_in, d_out]`, the shape of
    W."""
    x, w, dy = numbers(5, 7), numbers(7, 3), numbers(5, 3)
    it.as_printed(x.T.shape == (7, 5) and (x.T @ dy).shape == w.shape)


def W13(it: Evidence) -> None:
    r"""The gradient of W costs $2\,n\,m\,p$.

    The exact count is $n\,p\,(2m - 1)$, which is half as much for one row.
    """
    m, n, p = 5, 7, 3
    dw = product_flops(matmul, (m, n), (n, p), frozen=(0,))[1]
    it.as_printed(PRINTED["dw"].at(m=m, n=n, p=p) == dw)
    for m in (5, 1):
        ran = cost.count("matmul", (m, n), (n, p), wanted=("b",)).backward.total
        it.right(ran == n * p * (2 * m - 1))


def W14(it: Evidence) -> None:
    r"""The two gradients together cost $4\,m\,n\,p$."""
    m, n, p = 5, 7, 3
    both = PRINTED["dx"].at(m=m, n=n, p=p) + PRINTED["dw"].at(m=m, n=n, p=p)
    ran = product_flops(matmul, (m, n), (n, p))[1]
    it.as_printed(both == ran == 4 * m * n * p)


def W15(it: Evidence) -> None:
    r"""The backward of a product costs exactly twice its forward.

    It does if a product counts $2mnp$. Counting the $n - 1$ additions of each sum, the
    ratio is 1.9998 for 1024 rows from 1600 to 1600 columns, 1.94 for 8 rows, and 1.5
    for one row, whose weight gradient has no additions.
    """
    forward, backward = product_flops(matmul, (5, 7), (7, 3))
    it.as_printed(backward == 2 * forward)

    def ratio(m: int, n: int, p: int) -> float:
        additions_too = m * n * (2 * p - 1) + n * p * (2 * m - 1)
        return additions_too / (m * p * (2 * n - 1))

    it.right(cost.count("matmul", (5, 7), (7, 3)).ratio == ratio(5, 7, 3))
    expected = {1024: 1.9998, 8: 1.94, 1: 1.5}
    for rows, rounded in expected.items():
        it.elsewhere(ratio(rows, 1600, 1600) == 2)
        it.right(round(ratio(rows, 1600, 1600), 4 if rows > 8 else 2) == rounded)
