"""§3.1.1: the backward from attention's output to the scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass import cost
from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.encoder_block import ATTENTION, printed, row, steps, takes
from backpass_ledger.claims.evidence import Evidence, equations_of
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
T114  true    0  softmax    operations/softmax            §3.1.1, softmax, how the sum is simplified
T115  true    0  softmax    operations/softmax            §3.1.1, softmax, element, first form
T116  true    0  softmax    operations/softmax            §3.1.1, softmax, element, second form
T117  caveat  4  softmax    operations/softmax            §3.1.1, softmax, box, first form
T118  caveat  2  softmax    operations/softmax            §3.1.1, softmax, box, second form
T119  true    0  softmax    operations/softmax            §3.1.1, softmax, all rows
T120  caveat  2  softmax    operations/softmax            §3.1.1, softmax, cost of a row
T121  true    0  FLOPs      operations/softmax            §3.1.1, softmax, cost of all rows
"""

COLUMNS = r"slice S_{i,:}, A_{i,:} \in \mathbb{R}^n"
ROWS = COLUMNS.replace("^n", r"^{1 \times n}")


def T105(it: Evidence) -> None:
    r"""$\overline{W^O} = Y^\top \overline{Z} \in \mathbb{R}^{d \times d}$."""
    it.derives(ATTENTION)


def T106(it: Evidence) -> None:
    r"""$\overline{Y} = \overline{Z} W^{O\top} \in \mathbb{R}^{n \times d}$."""
    it.derives(ATTENTION)


def T107(it: Evidence) -> None:
    r"""The two gradients of $Z = YW^O$ take $2nd^2 + 2nd^2 = 4nd^2$.

    By the text's rule they do. The exact count is $4nd^2 - nd - d^2$."""
    both = its.products("dnd ndd")
    it.as_printed(takes(both, row("out")))
    it.right(takes(both, lambda n, d: 4 * n * d**2 - n * d - d**2, its.EXACT))


def T108(it: Evidence) -> None:
    r"""$\overline{A} = \overline{Y} V^\top \in \mathbb{R}^{n \times n}$."""
    it.derives(ATTENTION)


def T109(it: Evidence) -> None:
    r"""$\overline{V} = A^\top \overline{Y} \in \mathbb{R}^{n \times d}$."""
    it.derives(ATTENTION)


def T110(it: Evidence) -> None:
    r"""The two gradients of $Y = AV$ take $2n^2d + 2n^2d = 4n^2d$.

    By the text's rule they do. The exact count is $4n^2d - n^2 - nd$."""
    both = its.products("ndn nnd")
    it.as_printed(takes(both, row("values")))
    it.right(takes(both, lambda n, d: 4 * n**2 * d - n**2 - n * d, its.EXACT))


def T111(it: Evidence) -> None:
    r"""For one row, $S_{i,:}$, $A_{i,:}$, and $\bar A_{i,:}$ are in $\mathbb R^n$, and
    $A_{i,k}$ is the $k$-th element of the softmax of $S_{i,:}$."""
    values, gradients = its.attention_run(5, 3)
    s, a, a_ = values.S[2], values.A[2], gradients.A[2]
    it.as_printed(s.shape == a.shape == a_.shape == (5,))
    it.as_printed(same([np.exp(s[k]) / np.exp(s).sum() for k in range(5)], a))


def T112(it: Evidence) -> None:
    r"""$\frac{\partial A_{i,k}}{\partial S_{i,j}} = A_{i,k}(\delta_{kj} - A_{i,j})$."""
    it.derives(ATTENTION)


def T113(it: Evidence) -> None:
    r"""$\overline{S}_{i,j} = \sum_{k=1}^n \overline{A}_{i,k} \frac{\partial
    A_{i,k}}{\partial S_{i,j}} = \sum_{k=1}^n \overline{A}_{i,k} A_{i,k} (\delta_{kj} -
    A_{i,j})$."""
    it.derives(ATTENTION)


def T114(it: Evidence) -> None:
    r"""Separating the term of $k = j$ simplifies the sum.

    It gives $\sum_{k=1}^n \overline{A}_{i,k} A_{i,k} (\delta_{kj} - A_{i,j}) =
    \overline{A}_{i,j} A_{i,j} (1 - A_{i,j}) - A_{i,j} \sum_{k \neq j}
    \overline{A}_{i,k} A_{i,k}$. The text's next line has put a part of the separated
    term back: $\overline{A}_{i,j} A_{i,j} A_{i,j} + A_{i,j} \sum_{k \neq j}
    \overline{A}_{i,k} A_{i,k} = A_{i,j} \sum_{k=1}^n \overline{A}_{i,k} A_{i,k}$. So
    its sum has all indices."""
    it.as_printed(derives(equations_of(it.truth)[0], ATTENTION))
    it.derives_right(ATTENTION)


def T115(it: Evidence) -> None:
    r"""$\overline{S}_{i,j} = \overline{A}_{i,j} A_{i,j} - A_{i,j} \sum_{k=1}^n
    \overline{A}_{i,k} A_{i,k}$."""
    it.derives(ATTENTION)


def T116(it: Evidence) -> None:
    r"""$\overline{S}_{i,j} = A_{i,j} \left(\overline{A}_{i,j} - \sum_{k=1}^n
    \overline{A}_{i,k} A_{i,k} \right)$."""
    it.derives(ATTENTION)


def T117(it: Evidence) -> None:
    r"""$\bar{S}_{i,:} = A_{i,:} \odot \bar{A}_{i,:} - A_{i,:} (A_{i,:}^\top
    \bar{A}_{i,:})$.

    The line is right if the rows are read as columns, as the text says before. With
    rows of shape $1 \times n$, as in the feed-forward layer, the bracket is an $n
    \times n$ matrix, and the line returns a row of wrong numbers without an error."""
    it.derives(ATTENTION + COLUMNS)
    (line,) = equations_of(it.says)
    it.elsewhere(derives(line, ATTENTION + ROWS))
    values, gradients = its.attention_run()
    a, a_ = values.A[1:2], gradients.A[1:2]
    it.right((a * a_ - a @ (a.T @ a_)).shape == (1, 5))


def T118(it: Evidence) -> None:
    r"""$\bar{S}_{i,:} = A_{i,:} \odot (\bar{A}_{i,:} - (A_{i,:}^\top \bar{A}_{i,:})
    \mathbf{1})$ with the vector $\mathbf{1}$ of $n$ ones.

    The line is right if the rows are read as columns. For rows of shape $1 \times n$
    the bracket is a matrix, and NumPy returns an $n \times n$ array without an
    error."""
    it.derives(ATTENTION + COLUMNS + r"; read \mathbf{1} as \mathbf{1}_n")
    values, gradients = its.attention_run()
    a, a_ = values.A[1:2], gradients.A[1:2]
    found = a * (a_ - (a.T @ a_) @ np.ones((5, 1)))
    it.elsewhere(same(found, gradients.S[1:2]))
    it.right(found.shape == (5, 5))


def T119(it: Evidence) -> None:
    r"""A row's formula, applied to each row, gives $\bar S \in \mathbb R^{n\times
    n}$."""
    values, gradients = its.attention_run()
    pairs = zip(values.A, gradients.A, strict=True)
    it.as_printed(
        same([a * (a_ - (a @ a_) * np.ones(5)) for a, a_ in pairs], gradients.S)
    )


def T120(it: Evidence) -> None:
    r"""A row of softmax's backward takes $n + 2n + n = 4n$.

    This fits the second form, with the dot product counted $2n$; exactly, it takes $4n
    - 1$. The first form also multiplies $A_{i,:}$ by the dot product, and takes $5n -
    1$ unless the dot product reuses the elementwise products."""
    for n in (3, 6, 11):
        a, a_ = numbers(1, n), numbers(1, n, seed=1)
        it.as_printed(softmax_steps(1, n) == 4 * n)
        first = steps(lambda a, a_: a * a_ - a * (a @ its.flip(a_)), a, a_)
        it.elsewhere(first == 4 * n)
        it.right((first, softmax_steps(1, n, its.EXACT)) == (5 * n - 1, 4 * n - 1))


def softmax_steps(m: int, n: int, rule: Any = its.RULE) -> int:
    """Return the steps of the backward of softmax over m rows of n, second form."""
    return steps(lambda a, a_: its.of_softmax(a, a_, rule), *numbers(2, m, n))


def T121(it: Evidence) -> None:
    r"""All rows of softmax's backward take $4n^2$.

    By the text's rule it holds for one head. Exactly, $h$ heads take $h(4n^2 - n)$."""
    for n in (3, 6):
        it.as_printed(softmax_steps(n, n) == printed("softmax", s=n))
        for h in (1, 4):
            ours = cost.count("softmax", (h, n, n)).backward.total
            it.right(ours == h * softmax_steps(n, n, its.EXACT) == h * (4 * n**2 - n))
