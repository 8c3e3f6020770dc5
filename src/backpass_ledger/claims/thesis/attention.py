"""§3.1.1: the backward from attention's output to the scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.encoder_block import at_all_sizes, printed, product, steps
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import derives, numbers, same

CLAIMS = """
T105  true    0  attention  attention/heads               §3.1.1, output projection, weight
T106  true    0  attention  attention/heads               §3.1.1, output projection, input
T107  true    0  FLOPs      attention/heads               §3.1.1, output projection, cost
T108  true    0  attention  attention/scaled_dot_product  §3.1.1, attention outputs, weights
T109  true    0  attention  attention/scaled_dot_product  §3.1.1, attention outputs, values
T110  true    0  FLOPs      attention/scaled_dot_product  §3.1.1, attention outputs, cost
T111  true    0  softmax    operations/softmax            §3.1.1, softmax, shapes
T112  true    0  softmax    operations/softmax            §3.1.1, softmax, derivative
T113  true    0  softmax    operations/softmax            §3.1.1, softmax, chain rule
T114  caveat  2  softmax    operations/softmax            §3.1.1, softmax, how the sum is simplified
T115  true    0  softmax    operations/softmax            §3.1.1, softmax, element, first form
T116  true    0  softmax    operations/softmax            §3.1.1, softmax, element, second form
T117  caveat  4  softmax    operations/softmax            §3.1.1, softmax, box, first form
T118  caveat  2  softmax    operations/softmax            §3.1.1, softmax, box, second form
T119  true    0  softmax    operations/softmax            §3.1.1, softmax, all rows
T120  caveat  2  softmax    operations/softmax            §3.1.1, softmax, cost of a row
T121  true    0  FLOPs      operations/softmax            §3.1.1, softmax, cost of all rows
"""


OUTPUT = r"""
    given Y \in \mathbb{R}^{n \times d}, W^O \in \mathbb{R}^{d \times d}
    let Z = YW^O
    bar gradient
"""
VALUES = r"""
    given A \in \mathbb{R}^{n \times n}, V \in \mathbb{R}^{n \times d}
    let Y = AV
    bar gradient
"""
SOFTMAX = r"""
    given S \in \mathbb{R}^{n \times n}
    let A_{ij} = \frac{e^{S_{ij}}}{\sum_k e^{S_{ik}}}
    bar gradient
"""
COLUMNS = r"""
    slice S_{i,:}, A_{i,:} \in \mathbb{R}^n
"""


def T105(it: Evidence) -> None:
    r"""$\overline{W^O} = Y^\top \overline{Z} \in \mathbb{R}^{d \times d}$."""
    it.derives(OUTPUT)


def T106(it: Evidence) -> None:
    r"""$\overline{Y} = \overline{Z} W^{O\top} \in \mathbb{R}^{n \times d}$."""
    it.derives(OUTPUT)


def T107(it: Evidence) -> None:
    r"""The two gradients of $Z = YW^O$ take $2nd^2 + 2nd^2 = 4nd^2$.

    By the text's rule they do. The exact count is $4nd^2 - nd - d^2$.
    """

    def ran(n: int, d: int, times: Any) -> int:
        y, z_, w = numbers(n, d), numbers(n, d, seed=1), numbers(d, d)
        return steps(times, y.T, z_) + steps(times, z_, w.T)

    it.as_printed(
        at_all_sizes(lambda n, d: ran(n, d, product) == printed("out", s=n, h=d))
    )
    it.right(
        at_all_sizes(lambda n, d: ran(n, d, its.matmul) == 4 * n * d**2 - n * d - d**2)
    )


def T108(it: Evidence) -> None:
    r"""$\overline{A} = \overline{Y} V^\top \in \mathbb{R}^{n \times n}$."""
    it.derives(VALUES)


def T109(it: Evidence) -> None:
    r"""$\overline{V} = A^\top \overline{Y} \in \mathbb{R}^{n \times d}$."""
    it.derives(VALUES)


def T110(it: Evidence) -> None:
    r"""The two gradients of $Y = AV$ take $2n^2d + 2n^2d = 4n^2d$.

    By the text's rule they do. The exact count is $4n^2d - n^2 - nd$.
    """

    def ran(n: int, d: int, times: Any) -> int:
        a, y_, v = numbers(n, n), numbers(n, d, seed=1), numbers(n, d, seed=2)
        return steps(times, y_, v.T) + steps(times, a.T, y_)

    it.as_printed(
        at_all_sizes(lambda n, d: ran(n, d, product) == printed("values", s=n, h=d))
    )
    it.right(
        at_all_sizes(lambda n, d: ran(n, d, its.matmul) == 4 * n**2 * d - n**2 - n * d)
    )


def T111(it: Evidence) -> None:
    r"""For one row, $S_{i,:}$, $A_{i,:}$, and $\bar A_{i,:}$ are in $\mathbb R^n$, and
    $A_{i,k}$ is the $k$-th element of the softmax of $S_{i,:}$."""
    values, gradients = its.attention_run(5, 3)
    rows = (values.S[2], values.A[2], gradients.A[2])
    it.as_printed(all(row.shape == (5,) for row in rows))
    it.as_printed(same(np.exp(rows[0][3]) / np.exp(rows[0]).sum(), rows[1][3]))


def T112(it: Evidence) -> None:
    r"""$\frac{\partial A_{i,k}}{\partial S_{i,j}} = A_{i,k}(\delta_{kj} - A_{i,j})$."""
    it.derives(SOFTMAX)


def T113(it: Evidence) -> None:
    r"""$\overline{S}_{i,j} = \sum_{k=1}^n \overline{A}_{i,k} \frac{\partial
    A_{i,k}}{\partial S_{i,j}} = \sum_{k=1}^n \overline{A}_{i,k} A_{i,k} (\delta_{kj} -
    A_{i,j})$."""
    it.derives(SOFTMAX)


def T114(it: Evidence) -> None:
    r"""The sum is simplified by separating the term $k = j$.

    The next line separates the term with $\delta$. Its sum has all $k$, including $k =
    j$; without that term it is wrong.
    """
    line = r"""
        \overline{S}_{i,j} = \overline{A}_{i,j} A_{i,j}
        - A_{i,j} \sum_{k=1}^n \overline{A}_{i,k} A_{i,k}
    """
    it.as_printed(derives(line, SOFTMAX))
    separated = line.replace(r"\sum_{k=1}^n", r"\sum_{k \neq j}")
    it.elsewhere(derives(separated, SOFTMAX))


def T115(it: Evidence) -> None:
    r"""$\overline{S}_{i,j} = \overline{A}_{i,j} A_{i,j} - A_{i,j} \sum_{k=1}^n
    \overline{A}_{i,k} A_{i,k}$."""
    it.derives(SOFTMAX)


def T116(it: Evidence) -> None:
    r"""$\overline{S}_{i,j} = A_{i,j} \left(\overline{A}_{i,j} - \sum_{k=1}^n
    \overline{A}_{i,k} A_{i,k} \right)$."""
    it.derives(SOFTMAX)


def T117(it: Evidence) -> None:
    r"""$\bar S_{i,:} = A_{i,:} \odot \bar A_{i,:} - A_{i,:}(A_{i,:}^\top\bar A_{i,:})$.

    The line is right if the rows are read as columns, as the text says at the start of
    the step. With rows of shape $1 \times n$, the shape that the feed-forward layer
    gives a row, the bracket is an $n \times n$ matrix, and the line returns a row of
    wrong numbers without an error.
    """
    line = r"""
        \bar{S}_{i,:} = A_{i,:} \odot \bar{A}_{i,:}
        - A_{i,:} (A_{i,:}^\top \bar{A}_{i,:})
    """
    it.as_printed(derives(line, SOFTMAX + COLUMNS))
    rows = COLUMNS.replace("^n", r"^{1 \times n}")
    it.elsewhere(derives(line, SOFTMAX + rows))
    values, gradients = its.attention_run()
    a, a_ = values.A[1:2], gradients.A[1:2]
    it.right((a * a_ - a @ (a.T @ a_)).shape == (1, 5))


def T118(it: Evidence) -> None:
    r"""$\bar S_{i,:} = A_{i,:} \odot \big(\bar A_{i,:} - (A_{i,:}^\top\bar A_{i,:})
    \mathbf 1\big)$ with the vector $\mathbf 1$ of $n$ ones.

    The line is right if the rows are read as columns, so that the bracket is a number.
    For rows of shape $1 \times n$ the bracket is an $n \times n$ matrix, and NumPy
    returns an $n \times n$ array without an error.
    """
    line = r"""
        \bar{S}_{i,:} = A_{i,:} \odot (\bar{A}_{i,:}
        - (A_{i,:}^\top \bar{A}_{i,:}) \mathbf{1})
    """
    of_ones = (
        r"given \bar{A} \in \mathbb{R}^{n \times n}; let \mathbf{1} = \mathbf{1}_n"
    )
    it.as_printed(derives(line, SOFTMAX + COLUMNS + of_ones))
    values, gradients = its.attention_run()
    a, a_, ones = values.A[1:2], gradients.A[1:2], np.ones((5, 1))
    found = a * (a_ - (a.T @ a_) @ ones)
    it.elsewhere(same(found, gradients.S[1:2]))
    it.right(found.shape == (5, 5))


def T119(it: Evidence) -> None:
    r"""The formula of a row, applied to each row, gives $\bar S \in \mathbb R^{n \times
    n}$."""
    values, gradients = its.attention_run()
    a, a_ = values.A, gradients.A
    rows = [a[i] * (a_[i] - (a[i] @ a_[i]) * np.ones(5)) for i in range(5)]
    it.as_printed(same(rows, gradients.S))


def one_form(a: Any, a_: Any) -> Any:
    """Return the box's second form for a row."""
    return a * (a_ - product(a, its.flip(a_)))


def T120(it: Evidence) -> None:
    r"""A row of softmax's backward takes $n + 2n + n = 4n$: a product of elements, a
    dot product, and a difference.

    This fits the second form, with the dot product counted $2n$; exactly, it takes $4n
    - 1$. The first form as it stands also multiplies $A_{i,:}$ by the dot product, and
    takes $5n - 1$ unless the dot product reuses the elementwise products.
    """
    for n in (3, 6, 11):
        a, a_ = numbers(1, n), numbers(1, n, seed=1)
        it.as_printed(steps(one_form, a, a_) == n + 2 * n + n)
        first = steps(lambda a, a_: a * a_ - a * (a @ its.flip(a_)), a, a_)
        it.elsewhere(first == 4 * n)
        second = steps(lambda a, a_: a * (a_ - a @ its.flip(a_)), a, a_)
        it.right((first, second) == (5 * n - 1, 4 * n - 1))


def T121(it: Evidence) -> None:
    r"""All rows of softmax's backward take $4n^2$.

    This holds by the text's rule, for one head. The exact count is $4n^2 - n$, and $h$
    heads take $h$ times as many.
    """
    from backpass import cost

    for n in (3, 6):
        rows = n * steps(one_form, numbers(1, n), numbers(1, n, seed=1))
        it.as_printed(rows == printed("softmax", s=n))
        it.right(cost.count("softmax", (n, n)).backward.total == 4 * n**2 - n)
