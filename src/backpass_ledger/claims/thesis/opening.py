"""The abstract and the introduction: what is counted, and what training costs."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from backpass import cost
from backpass.interpreters import counting
from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import same, torch

CLAIMS = """
T1   left-out      6  FLOPs      cost/ratio                  Abstract, first sentence
T2   left-out      4  residual   operations/residual_stream  Abstract, second sentence
T3   caveat        2  time       cost/time                   Abstract, time complexity
T4   left-out      4  attention  attention/heads             Abstract, third sentence
T5   uncheckable   0  training   networks/whole_network      §1.1, what transformers are good for
T6   uncheckable   2  training   cost/time                   §1.1, cost of the first transformer
T7   uncheckable   2  training   cost/time                   §1.1, cost of GPT-4
T8   uncheckable   1  training   cost/time                   §1.1, growth of costs
T9   caveat        2  training   cost/time                   §1.1, two costs and the growth
T10  uncheckable   1  training   cost/time                   §1.1, forecast
T11  uncheckable   0  training   cost/time                   §1.1, environment
T12  inconsistent  4  norms      networks/encoder_decoder    §1.2, objective
T13  left-out      4  FLOPs      cost/tally                  §1.3, chapter 3
T14  uncheckable   0  FLOPs      cost/tally                  §1.3, chapter 5
"""


def forward_products(n: int, d: int, f: int) -> int:
    """Return the FLOPs of the products in a block's forward, by running each."""
    shapes = [(n, d, d)] * 4 + [(n, d, n), (n, n, d), (n, d, f), (n, f, d)]
    return sum(its.steps(its.product, *pair(*shape)) for shape in shapes)


def pair(m: int, n: int, p: int) -> tuple[Any, Any]:
    """Return two random matrices that can be multiplied."""
    return its.numbers(m, n), its.numbers(n, p, seed=1)


def backward_products(n: int, d: int, f: int) -> int:
    """Return the FLOPs of the products in a block's backward: the printed lines run,
    and only what runs in a product of matrices counts."""
    inside = 0

    def times(a: Any, b: Any) -> Any:
        nonlocal inside
        with counting.tally() as found:
            y = its.product(a, b)
        inside += found.total
        return y

    its.counted(its.attention_run(n, d), its.attention_backward, times=times)
    its.counted(its.feed_forward_run(n, d, f), its.feed_forward_backward, times=times)
    return inside - 2 * n**2  # the softmax's dot products


def T1(it: Evidence) -> None:
    r"""The cost to train transformers is studied by counting the arithmetic of
    backpropagation.

    Neither the forward nor the update is counted. The forward's products are $24nd^2 +
    4n^2d$, half of the backward's $48nd^2 + 8n^2d$, so a third of the FLOPs of forward
    and backward is missing.
    """
    n, d = 5, 3
    forward, backward = forward_products(n, d, 4 * d), backward_products(n, d, 4 * d)
    it.left_out(forward)
    it.right(forward == 24 * n * d**2 + 4 * n**2 * d)
    it.right(backward == 48 * n * d**2 + 8 * n**2 * d)
    it.right(Fraction(forward, forward + backward) == Fraction(1, 3))


def T2(it: Evidence) -> None:
    r"""The original block with one head is broken down into attention, feed-forward
    layers, and normalisation.

    The block also has two residual connections. In the backward, two gradients meet at
    the fork of each: $2nd$ additions.
    """
    n, d = 5, 3
    meeting = cost.count("fork", (n, d)).backward.total
    it.left_out(2 * meeting)
    it.right(meeting == n * d)


def T3(it: Evidence) -> None:
    r"""The time complexity of each component follows from its number of arithmetic
    operations.

    This holds for how the time of the products grows: twice the batch takes about twice
    the time. It does not hold for the time itself. In the predicted step of GPT-2 on an
    H100, calls bound by memory take more than half of the time with 14 % of the FLOPs.
    The discussion says itself that bandwidth matters.
    """

    def spans(batch: int) -> Any:
        return cost.duration("gpt2", batch, 1_024, "h100", dtype="bfloat16").spans

    def flops(span: Any) -> int:
        return int(span.repeats * (span.work.products + span.work.elements))

    products = [
        sum(span.total for span in spans(batch) if span.bound == "products")
        for batch in (8, 16)
    ]
    it.as_printed(1.9 < products[1] / products[0] < 2.1)
    waiting = [span for span in spans(8) if span.bound == "memory"]
    of_time = sum(span.total for span in waiting) / sum(s.total for s in spans(8))
    it.elsewhere(of_time < 1 / 2)
    of_flops = sum(map(flops, waiting)) / sum(map(flops, spans(8)))
    it.right(round(100 * of_flops) == 14)


def T4(it: Evidence) -> None:
    r"""The text also compares its single head with several heads.

    The discussion compares them in two paragraphs and counts nothing. By the text's
    rule, $h$ heads of width $d/h$ have the same products, and their softmax takes
    $4hn^2$ instead of $4n^2$.
    """
    n, heads = 5, 4
    one = n * its.steps(softmax_row, its.numbers(1, n), its.numbers(1, n, seed=1))
    it.left_out(heads * one - one)
    it.right(one == 4 * n**2)
    scores = [its.steps(its.product, *pair(n, 8 // h, n)) for h in (1, heads)]
    it.right(scores[0] == heads * scores[1])


def T5(it: Evidence) -> None:
    """Transformers work well for language, vision, and the extraction of features.

    The text gives neither a measurement nor a source, and the rest of it is about
    sequences of text.
    """


def softmax_row(a: Any, a_: Any) -> Any:
    """Return the gradient of one row of softmax, the dot product started at 0."""
    return a * (a_ - its.product(a, its.flip(a_)))


def T6(it: Evidence) -> None:
    """The first transformer cost only about 670 dollars to train in 2017.

    This is an estimate of the cost of rented compute, from the cited report. The
    report's edition of 2024 gives 930 dollars for the same model, so the figure depends
    on the edition.
    """


def T7(it: Evidence) -> None:
    """Training GPT-4 cost over 78 million dollars.

    78.4 million is the estimate of the cost of rented compute in the report's edition
    of 2024; the text cites that of 2025. It does not include staff and earlier runs.
    """


def T8(it: Evidence) -> None:
    """For eight years, training has become 2 to 3 times as expensive each year.

    No source is given. Cottier et al. (2024), arXiv:2405.21015, estimate 2.4 times a
    year since 2016 for the models that took the most compute.
    """


def T9(it: Evidence) -> None:
    """The cost of training grew from 670 dollars in 2017 to 78 million for GPT-4, at 2
    to 3 times a year.

    The two costs grew at least that fast. Between 2017 and 2023, the year of GPT-4,
    they differ by a factor of 6.99 a year. The first transformer was not among the
    largest runs of its year, so the pair does not illustrate the rate.
    """
    growth = (78e6 / 670) ** (1 / (2_023 - 2_017))
    it.as_printed(growth >= 2)
    it.elsewhere(growth <= 3)
    it.right(round(growth, 2) == 6.99)


def T10(it: Evidence) -> None:
    """By 2027 one training run of the largest size could cost over a billion dollars.

    No source is given. Cottier et al. (2024) say so on the condition that the trend
    continues.
    """


def T11(it: Evidence) -> None:
    """Training is very expensive, and its great power consumption emits great amounts
    of CO2.

    The text gives neither a figure nor a source.
    """


def T12(it: Evidence) -> None:
    """The backward is counted for the block as Vaswani et al. introduced it.

    That block applies the norm after each residual sum. The overview of the components
    puts the norm before each sub-layer, which computes a different function. The text
    also has one head instead of eight, and no dropout.
    """
    x = torch.tensor(its.numbers(5, 4))
    before, after = (
        its.block(x, its.block_weights(), pre=pre) for pre in (True, False)
    )
    it.clashes(not same(before, after, 1e-2))


def T13(it: Evidence) -> None:
    """Chapter 3 derives a closed form for the number of operations in training.

    It derives a closed form of the backward of one block for one sequence. It leaves
    out the forward, the output head, and the loss. For GPT-2 at 1,024 tokens, the
    backward of output head and loss takes 37 % as many FLOPs as that of the twelve
    blocks.
    """
    rows = cost.tally("gpt2", 1, 1_024).rows
    backward = [row for row in rows if row.term.way == "backward"]
    ends = sum(r.flops for r in backward if r.term.call in ("output head", "loss"))
    blocks = sum(row.flops for row in backward if row.repeats == 12)
    it.left_out(ends)
    it.right(round(100 * ends / blocks) == 37)


def T14(it: Evidence) -> None:
    """Chapter 5 summarises findings and suggestions.

    It names efficient variants of attention and sparse approximations, without a
    comparison of their costs. Whether that is a suggestion is a matter of words.
    """
