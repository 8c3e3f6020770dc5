"""§5 and the references."""

from __future__ import annotations

from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.encoder_block import row
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.thesis.discussion import growth, share
from backpass_ledger.claims.thesis.opening import gpt2_flops

CLAIMS = """
T233  inconsistent  4  FLOPs      cost/tally              §5, what was derived
T234  caveat        3  FLOPs      cost/tally              §5, what is expensive in what
T235  left-out      3  FLOPs      cost/tally              §5, where and why
T236  caveat        5  FLOPs      cost/tally              §5, most restrictive factor
T237  caveat        3  FLOPs      cost/tally              §2.3.3, §4.2, and §5, limiting factors
T238  uncheckable   0  attention  attention/linear_time   §5, future
T239  false         4  FLOPs      cost/tally              §5, precision
T240  uncheckable   0  notation   reference/bibliography  References [1], [2], [4], [5], [7], and [9]
T241  uncheckable   2  notation   reference/bibliography  Reference [3]
T242  uncheckable   1  optimiser  reference/bibliography  Reference [6]
T243  uncheckable   0  training   reference/bibliography  Reference [8]
"""


def T233(it: Evidence) -> None:
    """A closed form was derived for the backward through a Transformer network.

    It was derived for one block, as the recap of the results says. GPT-2's twelve
    blocks take 73 % of the products of its backward at 1,024 tokens."""

    def products(repeats: tuple[int, ...]) -> int:
        ours = lambda r: r.term.way == "backward" and r.repeats in repeats  # noqa: E731
        return gpt2_flops(1_024, lambda r: ours(r) and r.term.product is not None)

    blocks, network = products((12,)), products((1, 12))
    it.clashes(blocks / 12 != network)
    it.right(round(100 * blocks / network) == 73)


def T234(it: Evidence) -> None:
    r"""The feed-forward layer scales as $nd^2$, and attention as $n^2d$.

    Attention also has a third of the term in $nd^2$, through its projections: in a
    short sequence, twice the width makes attention almost four times as expensive."""
    it.as_printed(growth(10**6, 64, "attention")[0] > 3.9)
    it.as_printed(growth(64, 4_096, "feed_forward") == (2, 4))
    it.elsewhere(growth(64, 4_096, "attention")[1] < 2.1)
    it.right(growth(64, 4_096, "attention")[1] > 3.9)


def T235(it: Evidence) -> None:
    r"""The analysis shows where efforts are most effective.

    It never says at which $n$ the two costs are equal. By its own total, attention
    costs as much as the feed-forward layer at about $n = 2d$, and $8n^2d$ as much as
    all the rest at about $n = 6d$."""
    d, lengths = 512, range(64, 8 * 512, 64)
    equal = next(n for n in lengths if row("attention")(n, d) > 32 * n * d**2)
    half = next(n for n in lengths if share(n, d) > 1 / 2)
    it.left_out(equal)
    it.left_out(half)
    it.right(abs(equal - 2 * d) <= 64 and abs(half - 6 * d) <= 64)


def T236(it: Evidence) -> None:
    r"""Attention's quadratic dependence on the length remains what restricts most.

    For very long sequences it is: 73 % of the text's total for 8,192 tokens at $d =
    512$. For every $n$ below $6d$ it is less than half: 18 % for 1,024 tokens at $d =
    768$."""
    it.as_printed(share(8_192, 512) > 1 / 2)
    by_length, by_width = growth(8_192, 512)
    it.as_printed(by_length > by_width)
    for n, d in ((1_024, 768), (4_096, 4_096), (8_192, 8_192)):
        it.elsewhere(share(n, d) > 1 / 2)
    it.right([round(100 * share(*s)) for s in ((8_192, 512), (1_024, 768))] == [73, 18])
    it.right(all(share(n, d) < 1 / 2 for d in (3, 8) for n in range(1, 6 * d)))


def T237(it: Evidence) -> None:
    r"""What limits training is memory, the $n^2d$ term, the feed-forward layers, and
    the quadratic dependence on the length, each in a different section.

    Each of the operations can be the largest, but at different lengths, and the text
    names the condition only for the length. By its own total the feed-forward layer is
    larger than the $n^2d$ term for $n < 4d$. The text counts no memory."""

    def fed_is_larger(n: int, d: int) -> bool:
        return bool(row("feed_forward")(n, d) > 8 * n**2 * d)

    found = {n: fed_is_larger(n, 768) for n in (1_024, 8_192)}
    it.as_printed({*found.values()} == {True, False})  # each is the largest somewhere
    it.elsewhere(len({*found.values()}) == 1)  # one is at all lengths
    it.right(all(fed_is_larger(n, 5) == (n < 4 * 5) for n in range(1, 60)))


def T238(it: Evidence) -> None:
    """Future Transformers will likely improve on attention's quadratic cost with sparse
    approximations, better formulations, and hardware.

    This is a forecast."""


def T239(it: Evidence) -> None:
    r"""The costs are determined precisely.

    The leading terms are precise. The coefficient of $nd$ is 22 as printed, 24 with the
    norms' cost of the discussion, and 33 with all that the text's own rule would count,
    the norm's means as in the text. In the steps that run it is 21, beside $-12d^2$."""
    block, norms = row("block"), row("norms_discussed")
    it.as_printed(its.takes(its.of_block, block, its.EXACT))
    it.as_printed(its.takes(its.of_block, block))
    for n, d in its.SIZES:
        squares = 48 * n * d**2 + 8 * n**2 * d + 4 * n**2
        discussed = block(n, d) - 2 * row("norm")(n, d) + norms(n, d)
        counted = (block(n, d), discussed, its.of_block(n, d))
        it.right(counted == tuple(squares + c * n * d for c in (22, 24, 33)))
        ran = its.of_block(n, d, its.EXACT)
        it.right(ran == squares - n**2 + 21 * n * d - 12 * d**2 - 9 * d - n)


def T240(it: Evidence) -> None:
    """The references give the authors, titles, and arXiv numbers of six works.

    They agree with the listings. Citations of [1], [5], and [7] are judged above."""


def T241(it: Evidence) -> None:
    """SwitchHead is by Csordás, Irie, and Schmidhuber.

    The listing has a fourth author, Piotr Piękos, whom the text leaves out."""


def T242(it: Evidence) -> None:
    """Adam appeared at ICLR 2017.

    It appeared at ICLR 2015; the preprint's last version is from 2017."""


def T243(it: Evidence) -> None:
    """The AI Index of 2025 is arXiv:2504.07139, and it has the two costs of training.

    The report exists. Its figures could not be looked up. The 2024 edition gives a
    different figure for the first Transformer."""
