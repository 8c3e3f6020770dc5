"""§3.1.2: the feed-forward layer."""

from __future__ import annotations

import re
from typing import Any

from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.encoder_block import printed, takes
from backpass_ledger.claims.evidence import Evidence, equations_of
from backpass_ledger.claims.tools import derives, numbers, same, torch, vjp

CLAIMS = """
T138  true      0  feed-forward  operations/feed_forward     §3.1.2, forward, H
T139  true      0  activations   operations/activations      §3.1.2, forward, U
T140  true      0  feed-forward  operations/feed_forward     §3.1.2, forward, Z
T141  false     8  feed-forward  operations/feed_forward     §3.1.2, output projection, weight
T142  true      0  feed-forward  operations/feed_forward     §3.1.2, output projection, input
T143  false     8  feed-forward  operations/linear           §3.1.2, output projection, bias
T144  caveat    2  FLOPs         operations/feed_forward     §3.1.2, output projection, cost
T145  left-out  4  FLOPs         operations/linear_cost      §3.1.2, biases, cost
T146  caveat    1  activations   operations/activations      §3.1.2, ReLU
T147  true      0  FLOPs         operations/activations      §3.1.2, ReLU, cost
T148  false     8  feed-forward  operations/feed_forward     §3.1.2, first projection, weight
T149  caveat    6  residual      operations/residual_stream  §3.1.2, first projection, input
T150  false     8  feed-forward  operations/linear           §3.1.2, first projection, bias
T151  caveat    2  FLOPs         operations/feed_forward     §3.1.2, first projection, cost
T152  caveat    2  FLOPs         operations/feed_forward     §3.1.2, summary, one row
T153  left-out  3  FLOPs         operations/feed_forward     §3.1.2, summary, all rows
T154  true      0  FLOPs         operations/feed_forward     §3.1.2, at four times the width
"""

IN = r"""
    given X \in \mathbb{R}^{n \times d}, W_1 \in \mathbb{R}^{d \times d_{\text{ff}}}
    given b_1 \in \mathbb{R}^{1 \times d_{\text{ff}}}
    let H = XW_1 + \mathbf{1}_n b_1
    slice X_i \in \mathbb{R}^{1 \times d}, H_i \in \mathbb{R}^{1 \times d_{\text{ff}}}
    read \underline{#1} as #1
    bar gradient
"""
RELU = r"""
    given H \in \mathbb{R}^{n \times d_{\text{ff}}}
    let U = \max(0, H)
    slice H_i, U_i \in \mathbb{R}^{1 \times d_{\text{ff}}}
    read \mathbf{1}_{#1} as [#1]
    bar gradient
"""
OUT = r"""
    given U \in \mathbb{R}^{n \times d_{\text{ff}}}, b_2 \in \mathbb{R}^{1 \times d}
    given W_2 \in \mathbb{R}^{d_{\text{ff}} \times d}
    let Z = UW_2 + \mathbf{1}_n b_2
    slice U_i \in \mathbb{R}^{1 \times d_{\text{ff}}}, Z_i \in \mathbb{R}^{1 \times d}
    read \underline{#1} as #1
    bar gradient
"""


def T138(it: Evidence) -> None:
    r"""$H_i = X_i W_1 + \underline{b}_1 \in \mathbb{R}^{1 \times d_{\text{ff}}}$, by
    row."""
    it.derives(IN)


def T139(it: Evidence) -> None:
    r"""$U_i = \max(0, H_i) \in \mathbb{R}^{1 \times d_{\text{ff}}}$, by element."""
    it.derives(RELU)


def T140(it: Evidence) -> None:
    r"""$Z_i = U_i W_2 + \underline{b}_2 \in \mathbb{R}^{1 \times d}$."""
    it.derives(OUT)


def judged(it: Evidence, layer: str) -> None:
    """Judge a printed gradient of a parameter, which has the index of one row: for the
    loss of several rows, with the first and with the second of them; as the record
    mends it; and as printed, for one row."""
    (line,) = equations_of(it.says)
    for i in "12":
        it.as_printed(derives(line.replace("_i", f"_{i}"), layer))
    it.derives_right(layer)
    one_row = layer.replace("R}^{n", "R}^{1").replace(r"\mathbf{1}_n", "")
    without_index = r"read X_i as X; read U_i as U; read \overline{#1}_i as \bar{#1}"
    it.right(derives(line, re.sub("slice.*", "", one_row) + without_index))


def T141(it: Evidence) -> None:
    r"""$\overline{W}_2 = U_i^\top \overline{Z}_i \in \mathbb{R}^{d_{\text{ff}} \times
    d}$.

    For one row, on which the section works, the line is right. The overbar was defined
    as the derivative of the whole loss, which has all rows: $\overline{W}_2 = \sum_i
    U_i^\top \overline{Z}_i = U^\top \overline{Z}$. Both have the same shape."""
    judged(it, OUT)


def T142(it: Evidence) -> None:
    r"""$\overline{U}_i = \overline{Z}_i W_2^\top \in \mathbb{R}^{1 \times
    d_{\text{ff}}}$."""
    it.derives(OUT)


def T143(it: Evidence) -> None:
    r"""$\overline{\underline{b}_2} = \overline{Z}_i \in \mathbb{R}^{1 \times d}$.

    For one row, on which the section works, the line is right. For the whole loss, as
    the overbar is defined, $\overline{\underline{b}_2} = \sum_i \overline{Z}_i$."""
    judged(it, OUT)


def T144(it: Evidence) -> None:
    r"""For one row, the gradients of $W_2$ and $U_i$ need $4d_{ff}d$ operations.

    This follows the text's rule. For one row the outer product has no sum: it takes
    $d_{ff}d$ multiplications. $2d_{ff}d$ is a row's share of a product that sums over
    rows, which these lines do not."""
    of_one_row(it, "ffl_out", "f1d", "1df")
    it.right(its.products("fnd", f=7)(9, 3) == 9 * 2 * 7 * 3)


def of_one_row(it: Evidence, name: str, outer: str, product: str) -> None:
    """Compare a printed cost with the steps of an outer and a row's product."""
    both = its.products(f"{outer} {product}", f=7)
    it.as_printed(both(1, 3) == printed(name, h=3, f=7))
    exact = its.products(outer, f=7)(1, 3, its.EXACT)
    it.elsewhere(exact == 2 * 3 * 7)
    it.right(exact == 3 * 7)


def T145(it: Evidence) -> None:
    r"""The gradients of $\underline b_1$ and $\underline b_2$ take no operation.

    For $n$ rows they are sums. By the text's rule they take $n(d + d_{ff})$, which is
    $5nd$ at $d_{ff} = 4d$: more than the $4nd$ term of attention's count."""
    n, d = 5, 3

    def sums(rule: Any) -> int:
        widths = [numbers(n, d), numbers(n, 4 * d)]
        return sum(its.steps(lambda x: rule.sum(x, 0), x) for x in widths)

    it.left_out(sums(its.EXACT))
    it.right(sums(its.EXACT) == 5 * (n - 1) * d)
    it.right(sums(its.RULE) == 5 * n * d > 4 * n * d)


def T146(it: Evidence) -> None:
    r"""For every $j$, $\overline{H}_{ij} = \mathbf{1}_{(H_i)_j > 0} \overline{U}_{ij}$.

    ReLU has no derivative at 0. The line chooses 0, as PyTorch does; a difference gives
    1/2."""
    it.derives(RELU)
    it.as_printed(vjp(torch.relu, 0.0, 1.0) == 0)
    difference = (max(0, 1e-3) - max(0, -1e-3)) / 2e-3
    it.elsewhere(difference == 0)
    it.right(difference == 1 / 2)


def T147(it: Evidence) -> None:
    r"""ReLU's backward needs comparisons and no arithmetic.

    A selection has none. Code that multiplies by a mask, as the line is printed, takes
    $nd_{ff}$ multiplications, and it moves three arrays of $nd_{ff}$ elements."""
    h, u_ = numbers(5, 12), numbers(5, 12, seed=1)
    select = lambda h, u: its.xp.where(h > 0, u, its.xp.zeros_like(u))  # noqa: E731
    it.as_printed(its.steps(select, h, u_) == 0)
    it.right(its.steps(lambda mask, u: mask * u, h > 0, u_) == 5 * 12)


def T148(it: Evidence) -> None:
    r"""$\overline{W}_1 = X_i^\top \overline{H}_i \in \mathbb{R}^{d \times
    d_{\text{ff}}}$.

    For one row, on which the section works, the line is right. For the whole loss,
    $\overline{W}_1 = \sum_i X_i^\top \overline{H}_i = X^\top \overline{H}$."""
    judged(it, IN)


def T149(it: Evidence) -> None:
    r"""$\overline{X}_i = \overline{H}_i W_1^\top \in \mathbb{R}^{1 \times d}$.

    This is the gradient through the layer only. A residual connection adds its own:
    $\overline{X}_i = \overline{H}_i W_1^\top + \overline{Z}_i$."""
    it.derives(IN)
    values, gradients = its.feed_forward_run()
    weights = [torch.tensor(vars(values)[name]) for name in its.FED]
    with_residual = vjp(
        lambda x: x + its.feed_forward(x, *weights)["Z"], values.X, gradients.Z
    )
    through_layer = gradients.H @ values.W_1.T
    it.elsewhere(same(through_layer, with_residual, 1e-3))
    it.right(same(through_layer + gradients.Z, with_residual))


def T150(it: Evidence) -> None:
    r"""$\underline{\overline{b}}_1 = \overline{H}_i \in \mathbb{R}^{1 \times
    d_{\text{ff}}}$.

    For one row, on which the section works, the line is right. For the whole loss, as
    the overbar is defined, $\underline{\overline{b}}_1 = \sum_i \overline{H}_i$."""
    judged(it, IN)


def T151(it: Evidence) -> None:
    r"""For one row, the gradients of $W_1$ and $X_i$ need $4dd_{ff}$ operations.

    This follows the text's rule; the outer product itself takes $dd_{ff}$."""
    of_one_row(it, "ffl_in", "d1f", "1fd")


PRODUCTS = "ndf fnd dnf nfd"  # the layer's backward without the biases' sums


def T152(it: Evidence) -> None:
    r"""For a row, $4dd_{ff}$ and $4dd_{ff}$ for the projections, and 0, are $8dd_{ff}$.

    This follows the text's rule. For one row, the printed lines take $6dd_{ff} - d -
    d_{ff}$, because an outer product has no sum."""
    d, f = 3, 7
    it.as_printed(its.products(PRODUCTS, f=f)(1, d) == 8 * d * f)
    exact = its.of_feed_forward(1, d, its.EXACT, f)
    it.elsewhere(exact == 8 * d * f)
    it.right(exact == 6 * d * f - d - f)


def T153(it: Evidence) -> None:
    r"""For the whole input the feed-forward layer's backward takes $8ndd_{ff}$.

    The biases' sums over the rows are left out: $n(d + d_{ff})$ by the text's rule. The
    rule counts too much for the products: with the biases, the exact count is
    $8ndd_{ff} - 2dd_{ff} - d - d_{ff}$."""
    n, d, f = 5, 3, 7
    whole = its.of_feed_forward(n, d, its.RULE, f)
    it.left_out(whole - printed("feed_forward", s=n, h=d, f=f))
    it.right(whole == 8 * n * d * f + n * (d + f))
    exact = its.of_feed_forward(n, d, its.EXACT, f)
    it.right(exact == 8 * n * d * f - 2 * d * f - d - f)


def T154(it: Evidence) -> None:
    r"""At $d_{ff} = 4d$ the backward of the feed-forward layer takes $32nd^2$.

    This follows the text's rule, without the $5nd$ of the biases."""
    it.as_printed(takes(its.products(PRODUCTS), lambda n, d: 32 * n * d**2))
    it.right(takes(its.of_feed_forward, lambda n, d: 32 * n * d**2 + 5 * n * d))
