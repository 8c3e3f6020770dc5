"""The embeddings of tokens and of positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass import cost
from backpass.models import gpt2
from backpass.ops import embedding
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gpt2_post.overview import GPT2, ROWS
from backpass_ledger.claims.tools import derives, numbers, same, torch, vjp

CLAIMS = """
G164  true          0  embeddings  operations/embeddings  shapes
G165  caveat        2  positions   operations/embeddings  shapes
G166  inconsistent  0  notation    reference/letters      shapes
G167  true          0  embeddings  operations/embeddings  gradients of the sum
G168  true          0  embeddings  operations/embeddings  example, X
G169  true          0  embeddings  operations/embeddings  example, gradient of E
G170  caveat        4  embeddings  networks/gpt2          example, gradient of E
G171  true          0  embeddings  operations/embeddings  example, gradient of E
G172  true          0  embeddings  operations/embeddings  general X
G173  true          0  embeddings  operations/embeddings  general gradient
G174  caveat        2  positions   operations/embeddings  positions
G175  caveat        1  positions   operations/embeddings  positions
G176  true          0  positions   operations/embeddings  batch
G177  true          0  FLOPs       operations/embeddings  batch
G178  inconsistent  1  FLOPs       foundations/counting   batch
G179  true          0  embeddings  operations/embeddings  batch
G180  caveat        3  FLOPs       operations/embeddings  batch
G181  true          0  FLOPs       operations/embeddings  batch
"""


V, s, h, b = 7, 3, 4, 2
E, T = numbers(V, h), np.array([2, 5, 2]) - 1  # the text counts tokens from 1


def lookup(tokens: Any, dx: Any) -> Any:
    """Return the table's gradient by PyTorch."""
    return vjp(lambda e: torch.nn.functional.embedding(torch.tensor(tokens), e), E, dx)


def G164(it: Evidence) -> None:
    r"""$s$ tokens become $X \in \mathbb{R}^{s \times h}$ by a table
    $E \in \mathbb{R}^{V \times h}$, and $Y = X + P_{emb}$.

    The text counts tokens from 1; programs count them from 0.
    """
    x, _ = embedding.forward(T, E)
    it.as_printed(x.shape == (s, h) and (x + numbers(s, h)).shape == (s, h))


def G165(it: Evidence) -> None:
    r"""The table of positions is $P \in \mathbb{R}^{s \times h}$.

    It has as many rows as the longest sequence, 1,024 in GPT-2. A shorter sequence uses
    only the first $s$.
    """
    rows, h = gpt2.parameter_shapes(cost.configuration("gpt2"))["wpe.weight"]
    it.as_printed((GPT2["s"], GPT2["h"]) == (rows, h))
    it.elsewhere(rows == 100)
    it.right(rows == 1024)


def G166(it: Evidence) -> None:
    r"""$P$ is the table of positions.

    In the section on products, $P$ is the width of the output. There it is a number,
    here a matrix.
    """
    x, w = numbers(1, 7), numbers(7, 3)
    width = (x @ w).shape[-1]  # z is 1 × P
    table = gpt2.parameter_shapes(cost.configuration("gpt2"))["wpe.weight"]
    it.clashes(np.ndim(width) != len(table))


def G167(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial X} = \frac{\partial L}{\partial P_{emb}} =
    \frac{\partial L}{\partial Y}$.

    This is for one sequence; the batch follows later in the text.
    """
    printed = r"""
        \frac{\partial L}{\partial X} = \frac{\partial L}{\partial Y}, \quad
        \frac{\partial L}{\partial P_{emb}} = \frac{\partial L}{\partial Y}
    """
    given = r"given X, P_{emb} \in \mathbb{R}^{s \times h}; let Y = X + P_{emb}; loss L"
    it.as_printed(derives(printed, given))


def G168(it: Evidence) -> None:
    """For the tokens 2, 5, 2, X has the rows 2, 5, and 2 of E."""
    x, _ = embedding.forward(T, E)
    it.as_printed(same(x, np.stack([E[1], E[4], E[1]])))


def G169(it: Evidence) -> None:
    """Row 2 of E's gradient is the sum of rows 1 and 3 of X's, and row 5 is
    row 2 of X's."""
    dx = numbers(s, h, seed=1)
    de = lookup(T, dx)
    it.as_printed(same(de[1], dx[0] + dx[2]) and same(de[4], dx[1]))


def G170(it: Evidence) -> None:
    """Rows of the table of tokens that no token used receive no gradient.

    They receive none from the lookup alone. GPT-2's table is also the output head's
    matrix, which gives every row a gradient.
    """
    others = np.setdiff1d(np.arange(V), T)
    it.as_printed(not lookup(T, numbers(s, h))[others].any())
    tokens = torch.tensor(T)
    tied = vjp(lambda e: e[tokens] @ e.mT, E, numbers(s, V))
    it.elsewhere(not tied[others].any())
    it.right(bool((tied[others] != 0).all()))


def G171(it: Evidence) -> None:
    """E's gradient as a displayed matrix: rows 1, 3, and 4 are 0, row 2 is the sum, row
    5 is row 2 of X's gradient, and further rows of zeros follow."""
    dx = numbers(s, h, seed=1)
    nothing = np.zeros(h)
    shown = [nothing, dx[0] + dx[2], nothing, nothing, dx[1], nothing, nothing]
    it.as_printed(same(np.stack(shown), lookup(T, dx)))


def G172(it: Evidence) -> None:
    """In general row $k$ of X is row $t_k$ of E."""
    t = np.array([6, 0, 3, 3, 1])
    x, _ = embedding.forward(t, E)
    it.as_printed(same(x, np.eye(V)[t] @ E))


def G173(it: Evidence) -> None:
    r"""Row $i$ of E's gradient is $\sum_{t_j = i} \mathrm{row}_j(\partial L/\partial
    X)$."""
    t, dx = np.array([6, 0, 3, 3, 1]), numbers(5, h)
    rows = [sum((dx[j] for j in range(5) if t[j] == i), np.zeros(h)) for i in range(V)]
    it.as_printed(same(np.stack(rows), lookup(t, dx)))


def G174(it: Evidence) -> None:
    """A sequence uses every row of the table of positions exactly once.

    Each of the first $s$ rows is; the others are not used.
    """

    def used(length: int) -> Any:
        at = torch.arange(length)
        return vjp(
            lambda p: torch.nn.functional.embedding(at, p), E, np.ones((length, h))
        )

    it.as_printed(same(used(V), np.ones((V, h))))
    it.elsewhere(same(used(5), np.ones((V, h))))
    it.right(same(used(5)[:5], np.ones((5, h))) and not used(5)[5:].any())


def G175(it: Evidence) -> None:
    r"""The gradient $\frac{\partial L}{\partial P_{emb}}$ is $\frac{\partial
    L}{\partial P}$.

    This holds if the sequence is as long as the table. Otherwise it fills the first
    rows.
    """
    for length in (V, 5):
        dp_emb = numbers(length, h)
        found = vjp(lambda p: p[:length], E, dp_emb)  # noqa: B023
        if length == V:
            it.as_printed(same(found, dp_emb))
        else:
            it.elsewhere(same(found, dp_emb))
            it.right(same(found[:length], dp_emb) and not found[length:].any())


def G176(it: Evidence) -> None:
    r"""For a batch, X is $(b, s, h)$ and $P_{emb}$ stays $(s, h)$; it is broadcast, so
    its gradient is the sum over the batch."""
    x, p, dy = numbers(b, s, h), numbers(s, h), numbers(b, s, h, seed=1)
    dx, dp = vjp(lambda x, p: x + p, (x, p), dy)
    it.as_printed(same(dx, dy) and same(dp, dy.sum(0)))


def G177(it: Evidence) -> None:
    r"""The sum over the batch takes $(b - 1)sh$ additions."""
    from backpass.interpreters import counting

    dy = counting.array(numbers(3, s, h))
    with counting.tally() as ran:
        counting.xp.sum(dy, axis=0)
    it.as_printed(ROWS["positions"].at(b=3, s=s, h=h) == ran.total)


def G178(it: Evidence) -> None:
    r"""A sum of $b$ terms takes $b - 1$ additions.

    Everywhere else in the text a sum of $n$ terms takes $n$, such as β's over the rows.
    """
    rows = {"positions": ROWS["positions"].at(b=5, s=1, h=1)}
    rows["shift"] = ROWS["shift"].at(b=5, s=1, h=1)  # the same sum of five numbers
    it.clashes(rows["positions"] != rows["shift"])


def G179(it: Evidence) -> None:
    """The table of tokens collects the gradients of all occurrences in the batch."""
    t, dx = np.array([[6, 0, 3], [3, 3, 1]]), numbers(b, s, h)
    rows = np.stack([dx[t == i].sum(0) for i in range(V)])
    it.as_printed(same(rows, lookup(t, dx)))


def G180(it: Evidence) -> None:
    """The backward of the table of tokens is indexing, with $O(h)$ additions.

    One repetition of a token takes $h$ additions, which is $O(h)$. In all they are
    $(bs - u)h$ for $u$ different tokens, which grows with the batch: $O(bsh)$.
    """

    def additions(tokens: int) -> int:
        t = np.arange(tokens) % 5
        return embedding.backward_flops(m=tokens, h=h, distinct=len(np.unique(t)))

    def by_hand(tokens: int) -> int:
        seen: set[int] = set()
        total = 0
        for token in (i % 5 for i in range(tokens)):
            total += h if token in seen else 0
            seen.add(token)
        return total

    it.as_printed(additions(6) == by_hand(6) == h)  # one repetition
    it.right(additions(500) == by_hand(500))
    it.elsewhere(by_hand(500) <= 2 * by_hand(50))  # no growth with the tokens
    it.right(by_hand(500) == (500 - 5) * h)


def G181(it: Evidence) -> None:
    """The additions in the table of tokens are negligible beside the rest.

    They are at most $bsh$, 1/(4V) of the output head's products.
    """
    most = GPT2["b"] * GPT2["s"] * GPT2["h"]
    head = ROWS["lm_head"].at(**GPT2)
    it.as_printed(most < 1e-5 * head)
    it.right(most * 4 * GPT2["V"] == head)
