"""§5 and the references."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from backpass import cost
from backpass.claims import encoder_block as its
from backpass.claims.encoder_block import printed
from backpass.claims.evidence import (
    CAVEAT,
    FALSE,
    INCONSISTENT,
    LEFT_OUT,
    UNCHECKABLE,
    Evidence,
)
from backpass.claims.record import claim
from backpass.claims.thesis.discussion import growth, share


@claim("§5, what was derived", INCONSISTENT, topic="FLOPs", page="cost/tally", harm=4)
def T224(it: Evidence) -> None:
    """A closed form was derived for the backward through a Transformer network.

    It was derived for one block, as the recapitulation says. GPT-2's twelve blocks take
    73 % of the products of its backward at 1,024 tokens; the output head takes the
    rest.
    """
    rows = cost.tally("gpt2", 1, 1_024).rows
    products = [
        r for r in rows if r.term.way == "backward" and r.term.product is not None
    ]
    one_block = sum(r.term.flops for r in products if r.repeats == 12)
    network = sum(r.flops for r in products)
    it.clashes(one_block != network)
    it.right(round(100 * 12 * one_block / network) == 73)


@claim(
    "§5, what is expensive in what", CAVEAT, topic="FLOPs", page="cost/tally", harm=3
)
def T225(it: Evidence) -> None:
    r"""The feed-forward layer scales as $nd^2$, and attention as $n^2d$.

    Attention also has a third of all $nd^2$, which its projections take: doubling the
    width of a short sequence's block makes attention almost four times as expensive.
    """

    def attention(n: int, d: int) -> float:
        return float(printed("attention", s=n, h=d))

    it.as_printed(attention(2 * 10**6, 64) > 3.9 * attention(10**6, 64))
    it.elsewhere(attention(64, 8_192) < 2.1 * attention(64, 4_096))
    it.right(attention(64, 8_192) > 3.9 * attention(64, 4_096))


@claim("§5, where and why", LEFT_OUT, topic="FLOPs", page="cost/tally", harm=3)
def T226(it: Evidence) -> None:
    r"""The analysis shows where efforts are most effective.

    It never compares $n$ with $d$. From its own total: attention costs as much as the
    feed-forward layer at about $n = 2d$, and the term in $n^2d$ as much as all the rest
    at about $n = 6d$.
    """
    d = 512
    lengths = range(1, 8 * d)

    def first(holds: Callable[[int], bool]) -> int:
        return lengths[bisect_left(lengths, True, key=holds)]

    equal = first(lambda n: printed("attention", s=n, h=d) >= 32 * n * d**2)
    half = first(lambda n: share(n, d) >= 1 / 2)
    it.left_out(equal)
    it.left_out(half)
    it.right(abs(equal - 2 * d) < 5 and abs(half - 6 * d) < 10)


@claim("§5, most restrictive factor", FALSE, topic="FLOPs", page="cost/tally", harm=6)
def T227(it: Evidence) -> None:
    r"""Attention's quadratic dependence on the length remains the most restrictive
    factor.

    By the text's own total $8n^2d$ is the smaller part for every $n$ below $6d$, and
    the text calls the feed-forward layer the heaviest. For GPT-2's width of 768 and
    1,024 tokens it is 18 %.
    """
    for n, d in ((1_024, 768), (4_096, 4_096), (8_192, 8_192)):
        it.as_printed(share(n, d) > 1 / 2 and growth(n, d)[0] > growth(n, d)[1])
    it.right(round(100 * share(1_024, 768)) == 18)


@claim("§5, future", UNCHECKABLE, topic="attention", page="attention/linear_time")
def T228(it: Evidence) -> None:
    """Future Transformers will likely improve on attention's quadratic cost with sparse
    approximations, better formulations, and hardware.

    This is a forecast.
    """


@claim("§5, precision", FALSE, topic="FLOPs", page="cost/tally", harm=4)
def T229(it: Evidence) -> None:
    r"""The costs are determined precisely.

    The leading terms are precise. The coefficient of $nd$ is 22 as printed, 24 with the
    norms' cost of the discussion or of the section's text, 33 with all that the text's
    own rule would count, and 21 in the steps that run, which also have $-12d^2$.
    """
    n, d = 6, 5
    squares = 48 * n * d**2 + 8 * n**2 * d + 4 * n**2
    ran = its.block_steps(n, d, 4 * d, by_rule=False)
    by_rule = its.block_steps(n, d, 4 * d, by_rule=True)
    block = printed("block", s=n, h=d)
    it.as_printed(ran == block)
    it.as_printed(by_rule == block)
    it.right(block - squares == 22 * n * d and by_rule - squares == 33 * n * d)
    discussed = (
        block - 2 * printed("norm", s=n, h=d) + printed("norms_discussed", s=n, h=d)
    )
    it.right(discussed - squares == 24 * n * d)
    it.right(ran == squares - n**2 + 21 * n * d - 12 * d**2 - 9 * d - n)


@claim(
    "References [1], [2], [4], [5], [7], and [9]",
    UNCHECKABLE,
    topic="notation",
    page="reference/bibliography",
)
def T230(it: Evidence) -> None:
    """Authors, titles, and arXiv numbers of six works.

    They agree with the listings. What the text takes from the first, the fifth, and the
    seventh is judged where it cites them.
    """


@claim(
    "Reference [3]",
    UNCHECKABLE,
    topic="notation",
    page="reference/bibliography",
    harm=2,
)
def T231(it: Evidence) -> None:
    """SwitchHead is by Csordás, Irie, and Schmidhuber.

    The listing has four authors: the second, Piotr Piękos, is left out. No computation
    shows it.
    """


@claim(
    "Reference [6]",
    UNCHECKABLE,
    topic="optimiser",
    page="reference/bibliography",
    harm=1,
)
def T232(it: Evidence) -> None:
    """Adam appeared at ICLR 2017.

    It appeared at ICLR 2015; the preprint's last version is of 2017. No computation
    shows it.
    """


@claim("Reference [8]", UNCHECKABLE, topic="training", page="reference/bibliography")
def T233(it: Evidence) -> None:
    """The AI Index of 2025 is arXiv:2504.07139, and it has the two costs of training.

    The report exists. Which figures it prints could not be looked up; that of
    the first Transformer in its edition of 2024 is another one.
    """
