"""The abstract and the introduction: what is counted, and what training costs."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from backpass import cost
from backpass.claims import encoder_block as its
from backpass.claims.evidence import INCONSISTENT, LEFT_OUT, UNCHECKABLE, Evidence
from backpass.claims.record import claim
from backpass.claims.tools import same


def forward_products(n: int, d: int, f: int) -> int:
    """Return the FLOPs of the products in a block's forward, by running each."""
    shapes = [(n, d, d)] * 4 + [(n, d, n), (n, n, d), (n, d, f), (n, f, d)]
    return sum(its.steps(its.product, *pair(*shape)) for shape in shapes)


def pair(m: int, n: int, p: int) -> tuple[Any, Any]:
    """Return two random matrices that can be multiplied."""
    return its.numbers(m, n), its.numbers(n, p, seed=1)


@claim("Abstract, first sentence", LEFT_OUT, topic="FLOPs", page="cost/ratio", harm=6)
def T1(it: Evidence) -> None:
    r"""The training cost of transformer networks is studied by counting the arithmetic
    of backpropagation.

    The count has neither the forward nor the update. The forward's products are
    $24nd^2 + 4n^2d$, half of the backward's $48nd^2 + 8n^2d$, so a third of the FLOPs
    of forward and backward is outside it.
    """
    n, d = 5, 3
    forward, backward = forward_products(n, d, 4 * d), 48 * n * d**2 + 8 * n**2 * d
    it.left_out(forward)
    it.right(forward == 24 * n * d**2 + 4 * n**2 * d)
    it.right(Fraction(forward, forward + backward) == Fraction(1, 3))


@claim(
    "Abstract, second sentence",
    LEFT_OUT,
    topic="residual",
    page="operations/residual_stream",
    harm=4,
)
def T2(it: Evidence) -> None:
    r"""The original block with one head is broken down into attention, feed-forward
    layers, and normalisation.

    The block also has two residual sums. In the backward, two gradients meet where each
    of them forks: $2nd$ additions.
    """
    n, d = 5, 3
    meeting = cost.count("fork", (n, d)).backward.total
    it.left_out(2 * meeting)
    it.right(meeting == n * d)


@claim(
    "Abstract, third sentence",
    LEFT_OUT,
    topic="attention",
    page="attention/heads",
    harm=4,
)
def T3(it: Evidence) -> None:
    r"""The text includes a comparison with the multi-head version.

    The discussion has two paragraphs in words and no count. By the text's rule, $h$
    heads of width $d/h$ have the same products and $4hn^2$ in place of $4n^2$ for the
    softmax.
    """
    n, heads = 5, 4
    one = n * its.steps(softmax_row, its.numbers(1, n), its.numbers(1, n, seed=1))
    it.left_out(heads * one - one)
    it.right(one == 4 * n**2)
    scores = [its.steps(its.product, *pair(n, 8 // h, n)) for h in (1, heads)]
    it.right(scores[0] == heads * scores[1])


def softmax_row(a: Any, a_: Any) -> Any:
    """Return the gradient of one row of softmax, the dot product started at 0."""
    return a * (a_ - its.product(a, its.flip(a_)))


@claim(
    "§1.1, cost of the first transformer",
    UNCHECKABLE,
    topic="training",
    page="cost/time",
    harm=2,
)
def T4(it: Evidence) -> None:
    """The first transformer cost only about 670 dollars to train in 2017.

    This is an estimate of rented compute from the report that is cited. The report's
    edition of 2024 has 930 dollars for the same model, so the figure depends on the
    edition.
    """


@claim("§1.1, cost of GPT-4", UNCHECKABLE, topic="training", page="cost/time", harm=2)
def T5(it: Evidence) -> None:
    """Training GPT-4 cost over 78 million dollars.

    78.4 million is the estimate of rented compute in the report's edition of 2024, and
    the text cites that of 2025. Staff and earlier runs are not in it.
    """


@claim("§1.1, growth of costs", UNCHECKABLE, topic="training", page="cost/time", harm=1)
def T6(it: Evidence) -> None:
    """Training costs have grown 2 to 3 times a year for the past eight years.

    No source is given. Cottier et al. (2024), arXiv:2405.21015, estimate 2.4 times a
    year since 2016 for the models that took the most compute.
    """


@claim(
    "§1.1, two costs beside the growth",
    INCONSISTENT,
    topic="training",
    page="cost/time",
    harm=3,
)
def T7(it: Evidence) -> None:
    """Training cost 670 dollars in 2017 and 78 million for GPT-4, and the cost grew 2
    to 3 times a year.

    Between 2017 and 2023, the year of GPT-4, the two figures differ by a factor of 6.99
    a year. The first transformer was not among the largest runs, so the pair does not
    illustrate the rate.
    """
    growth = (78e6 / 670) ** (1 / (2023 - 2017))
    it.clashes(growth > 3)
    it.right(round(growth, 2) == 6.99)


@claim("§1.1, forecast", UNCHECKABLE, topic="training", page="cost/time", harm=1)
def T8(it: Evidence) -> None:
    """By 2027 the largest models could cost over a billion dollars just to train.

    No source is given. Cottier et al. (2024) say so on the condition that the trend
    continues.
    """


@claim("§1.1, environment", UNCHECKABLE, topic="training", page="cost/time")
def T9(it: Evidence) -> None:
    """Training is very expensive, and its massive power consumption puts massive
    amounts of CO2 into the environment.

    There is neither a figure nor a source.
    """


@claim(
    "§1.2, objective",
    INCONSISTENT,
    topic="norms",
    page="networks/encoder_decoder",
    harm=4,
)
def T10(it: Evidence) -> None:
    """The backward is counted for the block as Vaswani et al. introduced it.

    That block applies the norm after each residual sum. The overview of the components
    puts it before each sub-layer, which is another function; the text also has one head
    in place of eight and no dropout.
    """
    import torch

    x = torch.tensor(its.numbers(5, 4))
    before, after = (
        its.block(x, its.block_weights(), pre=pre) for pre in (True, False)
    )
    it.clashes(not same(before, after, 1e-2))


@claim("§1.3, chapter 3", LEFT_OUT, topic="FLOPs", page="cost/tally", harm=4)
def T11(it: Evidence) -> None:
    """Chapter 3 derives a closed form of the arithmetic that is needed in training.

    It derives the backward of one block for one sequence. The forward, the output head,
    and the loss are left out. For GPT-2 at 1,024 tokens, the backward of output head
    and loss takes 37 % as much as that of the twelve blocks.
    """
    rows = cost.tally("gpt2", 1, 1_024).rows
    backward = [row for row in rows if row.term.way == "backward"]
    ends = sum(r.flops for r in backward if r.term.call in ("output head", "loss"))
    blocks = sum(row.flops for row in backward if row.repeats == 12)
    it.left_out(ends)
    it.right(round(100 * ends / blocks) == 37)
