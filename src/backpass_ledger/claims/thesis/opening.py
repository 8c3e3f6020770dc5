"""The abstract and the introduction: what is counted, and what training costs."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np

from backpass import cost
from backpass.interpreters import counting
from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.thesis.attention import softmax_steps
from backpass_ledger.claims.tools import numbers, same, torch

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

forward_products = its.products("ndd ndd ndd ndd ndn nnd ndf nfd")  # of a block


def backward_products(n: int, d: int) -> int:
    """Return the FLOPs of the products in a block's backward: the printed lines run,
    and only what runs in a product of matrices counts."""
    inside = 0

    def times(a: Any, b: Any) -> Any:
        nonlocal inside
        with counting.tally() as found:
            y = its.product(a, b)
        inside += found.total
        return y

    rule = SimpleNamespace(times=times, sum=its.total)
    its.of_attention(n, d, rule)
    its.of_feed_forward(n, d, rule)
    return inside


def of_step(chosen: Callable[[Any], bool], batch: int = 8) -> Any:
    """Return the predicted time and the FLOPs of the chosen calls in a step of GPT-2
    on an H100, on sequences of 1,024 tokens, and those of the whole step."""
    spans = cost.duration("gpt2", batch, 1_024, "h100", dtype="bfloat16").spans
    flops = [s.repeats * (s.work.products + s.work.elements) for s in spans]
    found = np.array([[s.total for s in spans], flops])
    return found[:, [chosen(s) for s in spans]].sum(1), found.sum(1)


def gpt2_flops(tokens: int, chosen: Callable[[Any], bool]) -> int:
    """Return the FLOPs of the chosen rows in a step of GPT-2 on one sequence."""
    return sum(r.flops for r in cost.tally("gpt2", 1, tokens).rows if chosen(r))


def in_blocks(row: Any) -> bool:
    """Whether a row is of the backward of GPT-2's twelve blocks."""
    return bool(row.repeats == 12 and row.term.way == "backward")


def T1(it: Evidence) -> None:
    r"""The cost of training is studied by counting the arithmetic of backpropagation.

    Forward and update are not counted. The forward's products are $24nd^2 + 4n^2d$,
    half of the backward's $48nd^2 + 8n^2d$: a third of the FLOPs of both."""
    n, d = 5, 3
    forward, backward = forward_products(n, d), backward_products(n, d)
    it.left_out(forward)
    it.right(forward == 24 * n * d**2 + 4 * n**2 * d)
    it.right(backward == 48 * n * d**2 + 8 * n**2 * d)
    it.right(Fraction(forward, forward + backward) == Fraction(1, 3))


def T2(it: Evidence) -> None:
    r"""The original block is broken down into attention, feed-forward, and norms.

    The block also has two residual connections. In the backward, two gradients meet at
    the fork of each: $2nd$ additions."""
    n, d = 5, 3
    meeting = cost.count("fork", (n, d)).backward.total
    it.left_out(2 * meeting)
    it.right(meeting == n * d)


def T3(it: Evidence) -> None:
    r"""A component's time complexity follows from its number of operations.

    This holds for how the products' time grows: twice the batch takes about twice the
    time. It does not hold for the time itself. In the predicted step of GPT-2 on an
    H100, calls bound by memory take more than half of the time with 14 % of the
    FLOPs."""
    longer, shorter = (of_step(lambda s: s.bound == "products", b)[0] for b in (16, 8))
    it.as_printed(1.9 < longer[0] / shorter[0] < 2.1)
    waiting, whole = of_step(lambda s: s.bound == "memory")
    it.elsewhere(waiting[0] < whole[0] / 2)
    it.right(round(100 * waiting[1] / whole[1]) == 14)


def T4(it: Evidence) -> None:
    r"""The text also compares its single head with several heads.

    The discussion compares them in two paragraphs and counts nothing. By the text's
    rule, $h$ heads of width $d/h$ have the same products, their softmax takes $4hn^2$
    instead of $4n^2$, and they save $h$ matrices of $n^2$ weights."""
    n, d, h = 5, 8, 4
    it.left_out(h * softmax_steps(n, n) - softmax_steps(n, n))
    it.right(softmax_steps(n, n) == 4 * n**2)
    it.right(its.products("ndn")(n, d) == h * its.products("ndn")(n, d // h))
    one, several = (
        cost.saved_bytes("attention", *[(k, n, d // k)] * 3) for k in (1, h)
    )
    it.right(several - one == (h - 1) * n**2 * 8)  # float64


def T5(it: Evidence) -> None:
    """Transformers work well for language, vision, and the extraction of features.

    The text gives no measurement and no source; the rest is about sequences of text."""


def T6(it: Evidence) -> None:
    """The first transformer cost only about 670 dollars to train in 2017.

    This is an estimate of the cost of rented compute, from the cited report. The
    report's edition of 2024 gives 930 dollars for the same model."""


def T7(it: Evidence) -> None:
    """Training GPT-4 cost over 78 million dollars.

    78.4 million is the estimate of the report's edition of 2024; the text cites that of
    2025. It is rented compute, without staff and earlier runs."""


def T8(it: Evidence) -> None:
    """For eight years, training has become 2 to 3 times as expensive each year.

    No source is given. Cottier et al. (2024), arXiv:2405.21015, estimate 2.4 times a
    year since 2016 for the models that took the most compute."""


def T9(it: Evidence) -> None:
    """From 670 dollars in 2017 to 78 million for GPT-4, training became 2 to 3 times as
    expensive each year.

    The costs grew at least that fast: by a factor of 116,418 from 2017 to 2023, the
    year of GPT-4, which is 6.99 a year. The first transformer was not among the largest
    runs of its year, so the pair does not illustrate the rate."""
    growth = (78e6 / 670) ** (1 / (2_023 - 2_017))
    it.as_printed(growth >= 2)
    it.elsewhere(growth <= 3)
    it.right((round(78e6 / 670), round(growth, 2)) == (116_418, 6.99))


def T10(it: Evidence) -> None:
    """By 2027 one training run of the largest size could cost over a billion dollars.

    No source is given. Cottier et al. (2024) say so, if the trend continues."""


def T11(it: Evidence) -> None:
    """Training is very expensive, and its power consumption emits great amounts of CO2.

    The text gives neither a figure nor a source."""


def T12(it: Evidence) -> None:
    """The backward is counted for the block as Vaswani et al. introduced it.

    That block applies the norm after each residual sum. The overview of the components
    puts it before each sub-layer, which computes a different function. The text also
    has one head instead of eight, and no dropout."""
    x, w = torch.tensor(numbers(5, 4)), its.block_weights()
    it.clashes(not same(its.block(x, w, pre=True), its.block(x, w, pre=False), 1e-2))


def T13(it: Evidence) -> None:
    """Chapter 3 derives a closed form for the number of operations in training.

    It derives that of the backward of one block for one sequence. It leaves out the
    forward, the output head, and the loss. For GPT-2 at 1,024 tokens, the backward of
    head and loss takes 37 % as many FLOPs as that of the blocks."""
    ends = gpt2_flops(
        1_024,
        lambda r: r.term.way == "backward" and r.term.call in ("output head", "loss"),
    )
    it.left_out(ends)
    it.right(round(100 * ends / gpt2_flops(1_024, in_blocks)) == 37)


def T14(it: Evidence) -> None:
    """Chapter 5 summarises findings and suggestions.

    It names efficient attention and sparse approximations without comparing their
    costs. Whether that is a suggestion is a matter of words."""
