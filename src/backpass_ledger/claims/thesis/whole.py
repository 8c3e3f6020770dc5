"""What the backward needs, §3.2, and §4.1: the total, and what it is the total of."""

from __future__ import annotations

import sympy

from backpass_ledger import sources
from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.encoder_block import printed, row, takes
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.thesis.feed_forward import PRODUCTS
from backpass_ledger.claims.thesis.opening import forward_products
from backpass_ledger.claims.tools import numbers, same, vjp

CLAIMS = """
T184  left-out  3  memory    cost/memory                 Chapter 3, what has to be at hand
T185  false     6  FLOPs     cost/tally                  §3.2, heading
T186  left-out  5  residual  operations/residual_stream  §3.1.1, summary, and §3.2, parts of the block
T187  true      0  FLOPs     attention/heads             §3.2, attention row
T188  caveat    2  FLOPs     operations/feed_forward     §3.2, feed-forward row
T189  false     5  FLOPs     operations/layer_norm       §3.2, norms row
T190  true      0  FLOPs     cost/tally                  §3.2, sum of the rows
T191  left-out  4  FLOPs     cost/tally                  §3.2, total
T192  true      0  FLOPs     foundations/counting        §3.2 and §5, order
T193  false     2  FLOPs     foundations/counting        §4.1, what the total is
T194  caveat    4  FLOPs     cost/tally                  §4.1, what is quadratic
"""


def T184(it: Evidence) -> None:
    r"""The backward can read $A$, $Q$, $K$, $V$, $U$, $Y$, and $\sigma$ at no cost.

    The forward has to save them, and the text counts no memory. With the sign of $H$
    taken from $U$, the lines read $n^2 + 12nd + 2n$ elements besides the parameters, at
    $d_{ff} = 4d$: quadratic in $n$ as well."""
    n, d = 5, 4
    of_layer, of_norm = its.feed_forward_run(n, d, 4 * d)[0], its.norm_run(n, d)[0]
    read = [getattr(its.attention_run(n, d)[0], name) for name in "XQKVAY"]
    read += [of_layer.X, of_layer.U] + 2 * [of_norm.sigma, of_norm.Y]
    elements = sum(a.size for a in read)
    it.left_out(elements)
    it.right(elements == n**2 + 12 * n * d + 2 * n)


def T185(it: Evidence) -> None:
    r"""The total is the total cost of training.

    It is the backward of one block for one sequence. With the forward's products,
    training the block takes $72nd^2 + 12n^2d$ in its leading terms. The blocks' number,
    the batch, the embeddings, the output head, and the update are left out too."""
    n, d = 5, 3
    forward = forward_products(n, d)
    it.as_printed(row("block")(n, d) >= forward + its.of_block(n, d))
    leading = forward + 48 * n * d**2 + 8 * n**2 * d
    it.right(leading == 72 * n * d**2 + 12 * n**2 * d)


def T186(it: Evidence) -> None:
    r"""The block is an attention layer, a feed-forward layer, and two norms.

    By the text's own description it has residual connections too. Where a sub-layer's
    input forks, two gradients meet: $2nd$ additions, without which the gradient is
    wrong."""
    n, d = 5, 4
    x, dy = numbers(n, d), numbers(n, d, seed=8)
    forks = 2 * its.steps(lambda a, b: a + b, x, dy)
    it.left_out(forks)
    it.right(forks == 2 * n * d)
    of_block = vjp(lambda t: its.block(t, its.block_weights(), pre=True), x, dy)
    for residual in (True, False):
        found = its.chained_backward(x, dy, residual=residual)
        it.right(same(found, of_block, 1e-6) is residual)


def T187(it: Evidence) -> None:
    r"""The attention block takes $16nd^2 + 8n^2d + 4n^2 + 4nd$."""
    terms = lambda n, d: 16 * n * d**2 + 8 * n**2 * d + 4 * n**2 + 4 * n * d  # noqa: E731
    it.as_printed(takes(its.of_attention, terms))


def T188(it: Evidence) -> None:
    r"""The feed-forward layer takes $32nd^2$.

    This holds at $d_{ff} = 4d$, which neither this line nor the total says. In general
    the layer's products take $8ndd_{ff}$: $24nd^2$ at three times the width."""
    n, d = 5, 3
    at_four, at_three = (its.products(PRODUCTS, f=f * d)(n, d) for f in (4, 3))
    it.as_printed(at_four == 32 * n * d**2)
    it.elsewhere(at_three == 32 * n * d**2)
    it.right(at_three == 24 * n * d**2)


def T189(it: Evidence) -> None:
    r"""The normalisation layers take $2 \cdot 9nd = 18nd$.

    The doubling is right, but $9nd$ is not: the two norms take $22nd - 4d$."""
    for n, d in its.SIZES:
        ran = 2 * its.of_norm(n, d, its.EXACT)
        it.as_printed(ran == 2 * row("norm")(n, d))
        it.right(ran == 22 * n * d - 4 * d)
        it.right(2 * row("norm")(n, d) == 18 * n * d)


def T190(it: Evidence) -> None:
    r"""The costs of the parts add up to $48nd^2 + 8n^2d + 4n^2 + 22nd$."""
    for n, d in its.SIZES:
        rows = [row(part)(n, d) for part in ("attention", "feed_forward", "norm")]
        total = 48 * n * d**2 + 8 * n**2 * d + 4 * n**2 + 22 * n * d
        it.as_printed(rows[0] + rows[1] + 2 * rows[2] == total == row("block")(n, d))


def T191(it: Evidence) -> None:
    r"""The backward of the entire block takes $48nd^2 + 8n^2d + 4n^2 + 22nd$ in total.

    By the text's own rule, with the norm's means counted as the text counts them,
    $11nd$ are missing: $5nd$ for the biases, $2nd$ for the residual connections, and
    $4nd$ for the norms' parameters. The coefficient of $nd$ is 33 instead of 22."""
    completed = next(c for c in sources.COMPLETED if c.source == sources.THESIS)
    it.right(takes(its.of_block, lambda n, d: completed.at(s=n, h=d)))
    for n, d in its.SIZES:
        missing = its.of_block(n, d) - row("block")(n, d)
        it.left_out(missing)
        it.right(missing == (5 + 2 + 4) * n * d == (33 - 22) * n * d)


def T192(it: Evidence) -> None:
    r"""$48nd^2 + 8n^2d + 4n^2 + 22nd \in O(nd^2 + n^2d)$.

    For every $n$ and $d$ it is at least 8 and at most 48 times $nd^2 + n^2d$."""
    n, d = sympy.symbols("n d")
    block, leading = printed("block", s=n, h=d), n * d**2 + n**2 * d
    for difference in (block - 8 * leading, 48 * leading - block):
        # from n, d = 1 on, no coefficient of the difference is negative
        from_one = sympy.Poly(difference.subs({n: n + 1, d: d + 1}, simultaneous=True))
        it.as_printed(all(c >= 0 for c in from_one.coeffs()))


def exact(n: int, d: int) -> int:
    """Return the steps that a block's backward takes, with nothing left out."""
    squares = 48 * n * d**2 - 12 * d**2 + 8 * n**2 * d + 3 * n**2
    return squares + 21 * n * d - 9 * d - n


def T193(it: Evidence) -> None:
    """The closed form is the number of operations that a block's backward requires.

    With nothing left out, the backward runs in $48nd^2 - 12d^2 + 8n^2d + 3n^2 + 21nd -
    9d - n$ steps. The rule $2mnp$ makes the total too high, and the omitted parts make
    it too low. In sum it is 0.05 % too high at $n = d = 512$, and 33 % too high for one
    token of that width."""
    it.as_printed(takes(its.of_block, row("block"), its.EXACT))
    it.as_printed(takes(its.of_block, row("block")))
    it.right(takes(its.of_block, exact, its.EXACT))
    excess = [100 * (row("block")(n, 512) / exact(n, 512) - 1) for n in (512, 1)]
    it.right((round(excess[0], 2), round(excess[1])) == (0.05, 33))


def T194(it: Evidence) -> None:
    r"""The cost is quadratic in $d$ for the feed-forward layer, in $n$ for attention.

    Attention is quadratic in $d$ as well: its $16nd^2$ is a third of the block's term
    in $nd^2$, and its larger part for $n < 2d$. At $n = 512$ and $d = 1{,}024$, twice
    the length costs 2.4 times as much, and twice the width 3.6 times."""

    def grows(n: int, d: int, n_by: int = 1, d_by: int = 1) -> float:
        return float(row("attention")(n_by * n, d_by * d) / row("attention")(n, d))

    it.as_printed(row("feed_forward")(5, 2 * 3) == 4 * row("feed_forward")(5, 3))
    it.as_printed(grows(10**6, 3, n_by=2) > 3.9)
    it.elsewhere(grows(512, 1_024, n_by=2) > 3.9)
    factors = grows(512, 1_024, n_by=2), grows(512, 1_024, d_by=2)
    it.right([round(factor, 1) for factor in factors] == [2.4, 3.6])
    sizes = [(n, d) for n in range(1, 30) for d in range(1, 9)]
    it.right(all((16 * n * d**2 > 8 * n**2 * d) == (n < 2 * d) for n, d in sizes))
