"""The embeddings of tokens and of positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass.interpreters import counting
from backpass.ops import embedding, position_embedding
from backpass_ledger.claims.encoder_block import steps
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gpt2_post.overview import GPT2, ROWS, SHAPES
from backpass_ledger.claims.tools import numbers, same, torch, vjp

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
G180  false         3  FLOPs       operations/embeddings  batch
G181  true          0  FLOPs       operations/embeddings  batch
"""

V, s, h, b = 7, 3, 4, 2
E, T = numbers(V, h), np.array([2, 5, 2]) - 1  # the text counts tokens from 1
DX = numbers(s, h, seed=1)
TOKENS, DX5 = np.array([6, 0, 3, 3, 1]), numbers(5, h)


def lookup(tokens: Any, dx: Any) -> Any:
    """Return the table's gradient by PyTorch."""
    return vjp(lambda e: torch.nn.functional.embedding(torch.tensor(tokens), e), E, dx)


def G164(it: Evidence) -> None:
    r"""$s$ tokens become $X \in \mathbb{R}^{s \times h}$ by a table $E \in
    \mathbb{R}^{V \times h}$, and $Y = X + P_{emb}$."""
    x, _ = embedding.forward(T, E)
    it.as_printed(x.shape == (s, h) and (x + numbers(s, h)).shape == (s, h))


def G165(it: Evidence) -> None:
    r"""The table of positions is $P \in \mathbb{R}^{s \times h}$.

    It has a row for each position, 1,024 in GPT-2. A sequence uses the first $s$."""
    it.as_printed(SHAPES["wpe.weight"] == (GPT2["s"], GPT2["h"]))
    x, p = numbers(1, 5, h), numbers(V, h)
    y, _ = position_embedding.forward(x, p)
    it.elsewhere(p.shape == x.shape[1:])
    it.right(same(y, x + p[:5]))
    it.right(SHAPES["wpe.weight"][0] == 1024)


def G166(it: Evidence) -> None:
    r"""$P$ is the table of positions.

    In the section on products, $P$ is a number, the width of the output."""
    width = (numbers(1, 7) @ numbers(7, 3)).shape[-1]  # z is 1 × P
    it.clashes(np.ndim(width) != len(SHAPES["wpe.weight"]))


def G167(it: Evidence) -> None:
    r"""$\frac{\partial L}{\partial X} = \frac{\partial L}{\partial Y}$ and
    $\frac{\partial L}{\partial P_{emb}} = \frac{\partial L}{\partial Y}$."""
    shapes = r"given X, P_{emb} \in \mathbb{R}^{s \times h}"
    it.derives(f"{shapes}; let Y = X + P_{{emb}}; loss L")


def G168(it: Evidence) -> None:
    """For the tokens 2, 5, 2, X has the rows 2, 5, and 2 of E."""
    it.as_printed(same(embedding.forward(T, E)[0], np.stack([E[1], E[4], E[1]])))


def G169(it: Evidence) -> None:
    """In E's gradient row 2 is the sum of rows 1 and 3 of X's, and row 5 is row 2."""
    it.as_printed(same(lookup(T, DX)[[1, 4]], np.stack([DX[0] + DX[2], DX[1]])))


def G170(it: Evidence) -> None:
    """Rows of the table of tokens that no token used receive no gradient.

    They receive none from the lookup alone. GPT-2's table is also the output head's
    matrix, which gives every row a gradient."""
    others = np.setdiff1d(np.arange(V), T)
    it.as_printed(not lookup(T, DX)[others].any())
    tied = vjp(lambda e: e[T] @ e.mT, E, numbers(s, V))[others]
    it.elsewhere(not tied.any())
    it.right(bool((tied != 0).all()))


def G171(it: Evidence) -> None:
    """E's gradient as a displayed matrix: rows 1, 3, and 4 are 0, row 2 is the sum, row
    5 is row 2 of X's gradient, and further rows of zeros follow."""
    nothing = np.zeros(h)
    shown = [nothing, DX[0] + DX[2], nothing, nothing, DX[1], nothing, nothing]
    it.as_printed(same(np.stack(shown), lookup(T, DX)))


def G172(it: Evidence) -> None:
    """In general row $k$ of X is row $t_k$ of E."""
    it.as_printed(same(embedding.forward(TOKENS, E)[0], np.eye(V)[TOKENS] @ E))


def G173(it: Evidence) -> None:
    r"""Row $i$ of E's gradient is $\sum_{t_j = i} \mathrm{row}_j(\partial L/\partial
    X)$."""
    rows = [DX5[TOKENS == i].sum(0) for i in range(V)]
    it.as_printed(same(np.stack(rows), lookup(TOKENS, DX5)))


def G174(it: Evidence) -> None:
    """A sequence uses every row of the table of positions exactly once.

    Each of the first $s$ rows is; the others are not used."""
    it.as_printed(same(lookup(np.arange(V), np.ones((V, h))), np.ones((V, h))))
    used = lookup(np.arange(5), np.ones((5, h)))
    it.elsewhere(same(used, np.ones((V, h))))
    it.right(same(used[:5], np.ones((5, h))) and not used[5:].any())


def G175(it: Evidence) -> None:
    r"""The gradient $\frac{\partial L}{\partial P_{emb}}$ is $\frac{\partial
    L}{\partial P}$.

    This holds if the sequence is as long as the table; else it fills the first rows."""
    it.as_printed(same(vjp(lambda p: p[:V], E, numbers(V, h)), numbers(V, h)))
    found = vjp(lambda p: p[:5], E, DX5)
    it.elsewhere(same(found, DX5))
    it.right(same(found[:5], DX5) and not found[5:].any())


def G176(it: Evidence) -> None:
    r"""For a batch, X is $(b, s, h)$ and $P_{emb}$ stays $(s, h)$; it is broadcast, so
    its gradient is the sum over the batch."""
    x, p, dy = numbers(b, s, h), numbers(s, h), numbers(b, s, h, seed=1)
    it.as_printed(all(map(same, (dy, dy.sum(0)), vjp(lambda x, p: x + p, (x, p), dy))))


def G177(it: Evidence) -> None:
    r"""The sum over the batch takes $(b - 1)sh$ additions."""
    ran = steps(lambda dy: counting.xp.sum(dy, axis=0), numbers(3, s, h))
    it.as_printed(ROWS["positions"].at(b=3, s=s, h=h) == ran == (3 - 1) * s * h)


def G178(it: Evidence) -> None:
    r"""A sum of $b$ terms takes $b - 1$ additions.

    Elsewhere in the text a sum of $n$ terms takes $n$, such as β's over the rows."""
    one, other = (ROWS[name].at(b=5, s=1, h=1) for name in ("positions", "shift"))
    it.clashes(one != other)  # the same sum of five numbers


def G179(it: Evidence) -> None:
    """The table of tokens collects the gradients of all occurrences in the batch."""
    t, dx = np.array([[6, 0, 3], [3, 3, 1]]), numbers(b, s, h)
    it.as_printed(same(np.stack([dx[t == i].sum(0) for i in range(V)]), lookup(t, dx)))


def G180(it: Evidence) -> None:
    """Over the batch, the token table's backward is indexing with $O(h)$ additions.

    One repetition of a token takes $h$ additions. In all they are $(bs - u)h$ for $u$
    different tokens, which grows with the batch: $O(bsh)$."""

    def additions(tokens: int) -> int:
        used = np.bincount(np.arange(tokens) % 5)
        return h * int((used - 1).clip(0).sum())

    it.as_printed(additions(500) <= 2 * additions(50))  # no growth with the tokens
    for m in (6, 50, 500):
        formula = embedding.backward_flops(m=m, h=h, distinct=5)
        it.right(additions(m) == formula == (m - 5) * h)


def G181(it: Evidence) -> None:
    """The additions in the table of tokens are negligible beside the rest.

    They are at most $bsh$, 1/(4V) of the output head's products."""
    most, head = GPT2["b"] * GPT2["s"] * GPT2["h"], ROWS["lm_head"].at(**GPT2)
    it.as_printed(most < 1e-5 * head)
    it.right(most * 4 * GPT2["V"] == head)
