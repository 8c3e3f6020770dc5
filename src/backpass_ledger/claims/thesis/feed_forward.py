"""§3.1.2: the feed-forward layer."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.encoder_block import printed, product, steps
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import derives, numbers, same, vjp

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
T147  caveat    1  FLOPs         operations/activations      §3.1.2, ReLU, cost
T148  false     8  feed-forward  operations/feed_forward     §3.1.2, first projection, weight
T149  caveat    6  residual      operations/residual_stream  §3.1.2, first projection, input
T150  false     8  feed-forward  operations/linear           §3.1.2, first projection, bias
T151  caveat    2  FLOPs         operations/feed_forward     §3.1.2, first projection, cost
T152  caveat    2  FLOPs         operations/feed_forward     §3.1.2, summary, one row
T153  left-out  3  FLOPs         operations/feed_forward     §3.1.2, summary, all rows
T154  true      0  FLOPs         operations/feed_forward     §3.1.2, at four times the width
"""


FEED_FORWARD = r"""
    given X \in \mathbb{R}^{n \times d}
    given W_1 \in \mathbb{R}^{d \times d_{\text{ff}}}
    given b_1 \in \mathbb{R}^{1 \times d_{\text{ff}}}
    given W_2 \in \mathbb{R}^{d_{\text{ff}} \times d}
    given b_2 \in \mathbb{R}^{1 \times d}
    let H = XW_1 + \mathbf{1}_n b_1
    let U_{ij} = \max(0, H_{ij})
    let Z = UW_2 + \mathbf{1}_n b_2
    slice X_i, Z_i \in \mathbb{R}^{1 \times d}
    slice H_i, U_i \in \mathbb{R}^{1 \times d_{\text{ff}}}
    bar gradient
"""
RELU = r"""
    given H \in \mathbb{R}^{n \times d_{\text{ff}}}
    let U_{ij} = \max(0, H_{ij})
    slice H_i, U_i \in \mathbb{R}^{1 \times d_{\text{ff}}}
    read \mathbf{1}_{#1} as [#1]
    bar gradient
"""
IN = r"""
    given X \in \mathbb{R}^{n \times d}
    given W_1 \in \mathbb{R}^{d \times d_{\text{ff}}}
    given b_1 \in \mathbb{R}^{1 \times d_{\text{ff}}}
    let H = XW_1 + \mathbf{1}_n b_1
    slice X_i \in \mathbb{R}^{1 \times d}, H_i \in \mathbb{R}^{1 \times d_{\text{ff}}}
    read \underline{#1} as #1
    bar gradient
"""
OUT = r"""
    given U \in \mathbb{R}^{n \times d_{\text{ff}}}
    given W_2 \in \mathbb{R}^{d_{\text{ff}} \times d}
    given b_2 \in \mathbb{R}^{1 \times d}
    let Z = UW_2 + \mathbf{1}_n b_2
    slice U_i \in \mathbb{R}^{1 \times d_{\text{ff}}}, Z_i \in \mathbb{R}^{1 \times d}
    read \underline{#1} as #1
    bar gradient
"""


def T138(it: Evidence) -> None:
    r"""$H_i = X_iW_1 + \underline b_1 \in \mathbb R^{1 \times d_{ff}}$, row by row."""
    line = r"""
        H_i &= X_i W_1 + \underline{b}_1 \in \mathbb{R}^{1 \times d_{\text{ff}}},
    """
    it.as_printed(derives(line, IN))


def T139(it: Evidence) -> None:
    r"""$U_i = \max(0, H_i)$, element by element."""
    line = r"U_i &= \max(0, H_i) \in \mathbb{R}^{1 \times d_{\text{ff}}},"
    it.as_printed(derives(line, RELU))


def T140(it: Evidence) -> None:
    r"""$Z_i = U_i W_2 + \underline{b}_2 \in \mathbb{R}^{1 \times d}$."""
    it.derives(OUT)


def judged(it: Evidence, line: str, layer: str) -> None:
    """Judge a printed gradient of a parameter, which has the index of one row: for the
    loss of several rows, with the first and with the second of them; summed over the
    rows; and as printed, for one row."""
    for row in "12":
        it.as_printed(derives(line.replace("_i", f"_{row}"), layer))
    it.right(derives(line.replace("&=", r"&= \sum_i"), layer))
    one_row = re.sub(r"slice.*", "", layer.replace("R}^{n", "R}^{1"))
    without_index = r"read X_i as X; read U_i as U; read \overline{#1}_i as \bar{#1}"
    it.right(derives(line, one_row.replace(r"\mathbf{1}_n", "") + without_index))


def T141(it: Evidence) -> None:
    r"""$\overline W_2 = U_i^\top\bar Z_i \in \mathbb R^{d_{ff} \times d}$.

    The section works on one row, and for one row the line is right. The overbar was
    defined as the derivative of the whole loss, which has all rows: $\overline W_2 =
    \sum_i U_i^\top\bar Z_i = U^\top\bar Z$. The sum is written nowhere, and the shape
    does not show that it is missing.
    """
    line = r"""
        \overline{W}_2 &= U_i^\top \overline{Z}_i \in \mathbb{R}^{d_{\text{ff}} \times d},
    """
    judged(it, line, OUT)
    it.right(derives(r"\overline{W}_2 = U^\top \overline{Z}", OUT))


def T142(it: Evidence) -> None:
    r"""$\bar U_i = \bar Z_iW_2^\top \in \mathbb R^{1 \times d_{ff}}$."""
    line = r"""
        \overline{U}_i &= \overline{Z}_i W_2^\top \in \mathbb{R}^{1 \times d_{\text{ff}}},
    """
    it.as_printed(derives(line, FEED_FORWARD))


def T143(it: Evidence) -> None:
    r"""$\overline{\underline b_2} = \bar Z_i \in \mathbb R^{1 \times d}$.

    The section works on one row, and for one row the line is right. For the whole loss,
    as the overbar is defined, it is the sum $\sum_i \bar Z_i$.
    """
    line = r"\overline{\underline{b}_2} &= \overline{Z}_i \in \mathbb{R}^{1 \times d}."
    judged(it, line, OUT)


def T144(it: Evidence) -> None:
    r"""For one row, the gradients of $W_2$ and $U_i$ need $2d_{ff}d + 2d_{ff}d =
    4d_{ff}d$ operations.

    This follows the text's rule. For the one row that is printed, the outer product has
    no sum: it takes $d_{ff}d$ multiplications. $2d_{ff}d$ is a row's share of a product
    that sums over rows, which these lines do not.
    """
    d, f = 3, 7
    u, z_, w = numbers(1, f), numbers(1, d), numbers(f, d)
    by_rule = steps(product, u.T, z_) + steps(product, z_, w.T)
    it.as_printed(by_rule == printed("ffl_out", h=d, f=f))
    it.elsewhere(steps(its.matmul, u.T, z_) == 2 * f * d)
    it.right(steps(its.matmul, u.T, z_) == f * d)
    rows = numbers(9, f), numbers(9, d)
    it.right(steps(product, rows[0].T, rows[1]) == 9 * 2 * f * d)


def T145(it: Evidence) -> None:
    r"""The gradients of $\underline b_1$ and $\underline b_2$ take no operation.

    For $n$ rows they are sums. By the text's rule they take $n(d + d_{ff})$, which is
    $5nd$ at $d_{ff} = 4d$: more than the $4nd$ term of the attention block's count.
    """
    n, d = 5, 3
    sums = steps(its.total, numbers(n, d)) + steps(its.total, numbers(n, 4 * d))
    it.left_out(sums)
    it.right(sums == 5 * n * d > 4 * n * d)
    exact = steps(its.sum_of_rows, numbers(n, d)) + steps(
        its.sum_of_rows, numbers(n, 4 * d)
    )
    it.right(exact == 5 * (n - 1) * d)


def T146(it: Evidence) -> None:
    r"""$\bar H_{ij} = \mathbf 1_{(H_i)_j > 0}\,\bar U_{ij}$ for $j = 1, \dots, d_{ff}$.

    ReLU has no derivative at 0. The line chooses 0 there, as PyTorch does; a difference
    across 0 gives 1/2.
    """
    line = r"""
        \overline{H}_{ij} = \mathbf{1}_{(H_i)_j > 0} \overline{U}_{ij}, \quad
        j = 1, \dots, d_{\text{ff}}.
    """
    it.as_printed(derives(line, RELU))
    relu = lambda t: t.relu()  # noqa: E731
    it.as_printed(same(vjp(relu, np.zeros(1), np.ones(1)), np.zeros(1)))
    at_zero = (max(0, 1e-3) - max(0, -1e-3)) / 2e-3
    it.elsewhere(same(at_zero, 0.0))


def T147(it: Evidence) -> None:
    r"""ReLU's backward takes comparisons and no arithmetic.

    A selection takes none. The line as printed multiplies by a mask: $nd_{ff}$
    multiplications, $4nd$ at $d_{ff} = 4d$. In time it is not free either: three arrays
    of $nd_{ff}$ elements are read or written.
    """
    from backpass.interpreters.counting import xp

    n, f = 5, 12
    h, u_ = numbers(n, f), numbers(n, f, seed=1)
    it.as_printed(steps(lambda h, u: xp.where(h > 0, u, xp.zeros_like(u)), h, u_) == 0)
    mask = (h > 0).astype(float)
    it.elsewhere(steps(lambda mask, u: mask * u, mask, u_) == 0)
    it.right(steps(lambda mask, u: mask * u, mask, u_) == n * f)


def T148(it: Evidence) -> None:
    r"""$\overline W_1 = X_i^\top\bar H_i \in \mathbb R^{d \times d_{ff}}$.

    The section works on one row, and for one row the line is right. For the whole loss,
    as the overbar is defined, it is the sum over the rows: $\overline W_1 = \sum_i
    X_i^\top\bar H_i = X^\top\bar H$.
    """
    line = r"""
        \overline{W}_1 &= X_i^\top \overline{H}_i \in \mathbb{R}^{d \times d_{\text{ff}}},
    """
    judged(it, line, IN)
    it.right(derives(r"\overline{W}_1 = X^\top \overline{H}", IN))


def T149(it: Evidence) -> None:
    r"""$\bar X_i = \bar H_iW_1^\top \in \mathbb R^{1 \times d}$.

    This is the gradient through the layer only. With the residual connection, the
    gradient along that connection has to be added.
    """
    line = r"\overline{X}_i &= \overline{H}_i W_1^\top \in \mathbb{R}^{1 \times d},"
    it.as_printed(derives(line, IN))
    with_residual = FEED_FORWARD + "let B = X + Z"
    it.elsewhere(derives(line, with_residual))
    mended = r"\overline{X}_i = \overline{H}_i W_1^\top + \overline{Z}_i"
    it.right(derives(mended, with_residual))


def T150(it: Evidence) -> None:
    r"""$\overline{\underline b_1} = \bar H_i \in \mathbb R^{1 \times d_{ff}}$.

    The section works on one row, and for one row the line is right. For the whole loss,
    as the overbar is defined, it is the sum $\sum_i \bar H_i$.
    """
    line = r"""
        \underline{\overline{b}}_1 &= \overline{H}_i
        \in \mathbb{R}^{1 \times d_{\text{ff}}}.
    """
    judged(it, line, IN)


def T151(it: Evidence) -> None:
    r"""For one row, the gradients of $W_1$ and $X_i$ need $2dd_{ff} + 2dd_{ff} =
    4dd_{ff}$ operations.

    The text's rule counts $2dd_{ff}$ for an outer product, which takes $dd_{ff}$
    multiplications.
    """
    d, f = 3, 7
    x, h_, w = numbers(1, d), numbers(1, f), numbers(d, f)
    by_rule = steps(product, x.T, h_) + steps(product, h_, w.T)
    it.as_printed(by_rule == printed("ffl_in", h=d, f=f))
    it.elsewhere(steps(its.matmul, x.T, h_) == 2 * d * f)
    it.right(steps(its.matmul, x.T, h_) == d * f)


def without_biases(n: int, d: int, f: int) -> int:
    """Return the steps of the layer's backward by the text's rule, for n rows together
    and without the biases' sums."""

    def products(x: Any, u: Any, w_1: Any, w_2: Any, z_: Any) -> None:
        u_ = product(z_, its.flip(w_2))
        product(its.flip(u), z_)
        product(its.flip(x), u_)
        product(u_, its.flip(w_1))

    return steps(
        products,
        numbers(n, d),
        numbers(n, f),
        numbers(d, f),
        numbers(f, d),
        numbers(n, d),
    )


def T152(it: Evidence) -> None:
    r"""$4dd_{ff}$ for the output projection, 0 for the activation, and $4dd_{ff}$ for
    the first projection are $8dd_{ff}$ a row.

    This follows the text's rule. The printed lines, run for one row, take $6dd_{ff} - d
    - d_{ff}$, because an outer product has no sum.
    """
    d, f = 3, 7
    it.as_printed(without_biases(1, d, f) == 8 * d * f)
    run = its.feed_forward_run(1, d, f)
    exact = its.counted(run, its.feed_forward_backward)
    it.elsewhere(exact == 8 * d * f)
    it.right(exact == 6 * d * f - d - f)


def T153(it: Evidence) -> None:
    r"""For the whole input the backward of the feed-forward layer takes $8ndd_{ff}$.

    The biases' sums over the rows are left out: $n(d + d_{ff})$ by the text's rule. The
    rule counts too much for the products, so the total is close: exactly, with the
    biases, it is $8ndd_{ff} - 2dd_{ff} - d - d_{ff}$.
    """
    n, d, f = 5, 3, 7
    run = its.feed_forward_run(n, d, f)
    whole = its.counted(run, its.feed_forward_backward, **its.ALL_BY_RULE)
    missing = whole - printed("feed_forward", s=n, h=d, f=f)
    it.left_out(missing)
    it.right(missing == n * (d + f))
    exact = its.counted(run, its.feed_forward_backward)
    it.right(exact == 8 * n * d * f - 2 * d * f - d - f)


def T154(it: Evidence) -> None:
    r"""At $d_{ff} = 4d$ the backward of the feed-forward layer takes $32nd^2$.

    This follows the text's rule, without the $5nd$ of the biases.
    """
    for n, d in its.SIZES:
        it.as_printed(without_biases(n, d, 4 * d) == 32 * n * d**2)
        run = its.feed_forward_run(n, d, 4 * d)
        whole = its.counted(run, its.feed_forward_backward, **its.ALL_BY_RULE)
        it.right(whole == 32 * n * d**2 + 5 * n * d)
