"""§4.2.1 and §4.2.2: heavy and light parts, width and context."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from backpass import cost
from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.encoder_block import printed
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import jacobian, numbers

CLAIMS = """
T195  true          0  FLOPs         cost/tally              §4.2.1, feed-forward layer
T196  caveat        2  FLOPs         cost/tally              §4.2.1, literature
T197  caveat        3  FLOPs         cost/tally              §4.2.1, why attention is sensitive to the length
T198  caveat        5  FLOPs         cost/tally              §4.2.1, bottleneck
T199  inconsistent  5  FLOPs         operations/layer_norm   §4.2.1, norms, number
T200  caveat        3  FLOPs         cost/tally              §4.2.1, norms and the quadratic terms
T201  caveat        4  time          cost/time               §4.2.1 and §5, norms, negligible
T202  false         7  time          cost/time               §4.2.1, why norms are not optimised
T203  uncheckable   0  training      cost/tally              §4.2.2, capacity of the width
T204  caveat        2  FLOPs         cost/tally              §4.2.2, width
T205  caveat        1  feed-forward  cost/tally              §4.2.2, wide networks
T206  caveat        1  attention     networks/whole_network  §4.2.2, what the context is
T207  caveat        5  FLOPs         cost/tally              §4.2.2, which grows faster
T208  caveat        4  FLOPs         cost/tally              §4.2.2, thousands of tokens
T209  uncheckable   0  attention     attention/linear_time   §4.2.2, research
T210  uncheckable   2  training      networks/training       §4.2.2, underfitting
T211  uncheckable   3  training      networks/training       §4.2.2, overfitting
T212  uncheckable   0  training      cost/tally              §4.2.2, balance
"""


def share(n: int, d: int) -> float:
    """Return the share of the term in n²d in the text's own total."""
    return float(8 * n**2 * d / printed("block", s=n, h=d))


def growth(n: int, d: int) -> tuple[float, float]:
    """Return the factor by which the text's total grows when n doubles, and when d
    does."""
    before = printed("block", s=n, h=d)
    return (
        float(printed("block", s=2 * n, h=d) / before),
        float(printed("block", s=n, h=2 * d) / before),
    )


def T195(it: Evidence) -> None:
    r"""The feed-forward layer has the largest part in $d^2$, $32nd^2$.

    It is two thirds of $48nd^2$, at $d_{ff} = 4d$.
    """

    def second_difference(run: Any, backward: Any) -> int:
        at = [its.counted(run(5, d), backward) for d in (2, 3, 4)]
        return (at[2] - 2 * at[1] + at[0]) // 2

    fed = second_difference(
        lambda n, d: its.feed_forward_run(n, d, 4 * d), its.feed_forward_backward
    )
    attended = second_difference(its.attention_run, its.attention_backward)
    it.as_printed(fed > attended)
    it.right((fed, attended) == (32 * 5 - 8, 16 * 5 - 4))


def T196(it: Evidence) -> None:
    r"""As embeddings grow, the feed-forward layers often cost the most.

    The text gives no source. By the text's own totals the layer costs more than
    attention for $n$ below about $2d$. Its share rises with $d$ towards two thirds and
    not beyond.
    """

    def feed_forward_wins(n: int, d: int) -> bool:
        return bool(32 * n * d**2 > printed("attention", s=n, h=d))

    def part(n: int, d: int) -> float:
        return float(32 * n * d**2 / printed("block", s=n, h=d))

    it.as_printed(part(1_024, 256) < part(1_024, 1_024) < part(1_024, 4_096))
    it.as_printed(feed_forward_wins(1_024, 4_096))
    it.elsewhere(feed_forward_wins(8_192, 2_048))
    it.right(feed_forward_wins(900, 512) and not feed_forward_wins(1_100, 512))
    it.right(part(1, 10**6) < 2 / 3)


def T197(it: Evidence) -> None:
    r"""Attention is more sensitive to the sequence length because of the terms $16nd^2
    + 8n^2d$.

    The reason is $8n^2d$, with $4n^2$, which is left out here. $16nd^2$ is linear in
    $n$, as the feed-forward layer's $32nd^2$ is.
    """
    n, d = 6, 3

    def doubled(run: Any, backward: Any) -> Fraction:
        return Fraction(
            its.counted(run(2 * n, d), backward, **its.BY_RULE),
            its.counted(run(n, d), backward, **its.BY_RULE),
        )

    attended = doubled(its.attention_run, its.attention_backward)
    fed = doubled(its.feed_forward_run, its.feed_forward_backward)
    it.as_printed(attended > 2 and attended > fed)
    x, w = its.numbers(n, d), its.numbers(d, d)
    xx = its.numbers(2 * n, d)
    it.elsewhere(its.steps(its.product, xx, w) > 2 * its.steps(its.product, x, w))


def T198(it: Evidence) -> None:
    r"""For long contexts the $n^2d$ term dominates the cost.

    By the text's own total, long means $n > 6d$; the text names no length. At $d =
    4{,}096$ that is 24,576 tokens. At $n = d$ the term is a seventh of the total.
    """
    it.as_printed(share(10**6, 512) > 0.9)
    it.elsewhere(share(8_192, 4_096) > 0.5)
    leading = [
        (8 * n**2 * d > 48 * n * d**2) == (n > 6 * d)
        for n in range(1, 60)
        for d in range(1, 9)
    ]
    it.right(all(leading) and 6 * 4_096 == 24_576)
    it.right(abs(share(4_096, 4_096) - 1 / 7) < 1e-3)


def T199(it: Evidence) -> None:
    r"""The normalisation layers require only $20nd$ operations.

    The total has $18nd$ for the same two layers. $20nd$ fits the $3d$ of the text. The
    correct count is $22nd - 4d$.
    """
    n, d = 5, 4
    discussed = printed("norms_discussed", s=n, h=d)
    totalled = 2 * printed("norm", s=n, h=d)
    it.clashes(discussed != totalled)
    it.right((discussed, totalled) == (20 * n * d, 18 * n * d))
    it.right(discussed == 2 * n * (printed("norm_w", h=d) + printed("norm_x", h=d)))
    it.right(
        2 * its.counted(its.norm_run(n, d), its.norm_backward) == 22 * n * d - 4 * d
    )


def T200(it: Evidence) -> None:
    r"""Beside the quadratic terms, the norms' $20nd$ are negligible.

    They are beside $48nd^2 + 8n^2d$. The total's third quadratic term, $4n^2$, is
    smaller than $20nd$ for $n < 5d$: at $n = d = 512$ the norms take five times as
    much.
    """

    def norms(n: int, d: int) -> Any:
        return printed("norms_discussed", s=n, h=d)

    for n in (1, 512, 4_096):
        it.as_printed(100 * norms(n, 512) < 48 * n * 512**2 + 8 * n**2 * 512)
    it.elsewhere(norms(512, 512) < printed("softmax", s=512))
    it.right(norms(512, 512) == 5 * printed("softmax", s=512))
    larger = [norms(n, 3) > printed("softmax", s=n) for n in range(1, 40)]
    it.right(larger == [n < 5 * 3 for n in range(1, 40)])


def norms_of_gpt2() -> tuple[float, float]:
    """Return the norms' share of a step's FLOPs, and of its predicted time on an H100,
    for GPT-2 on eight sequences of 1,024 tokens."""
    rows = cost.tally("gpt2", 8, 1_024).rows
    flops = sum(r.flops for r in rows if r.term.stem == "layer_norm")
    spans = cost.duration("gpt2", 8, 1_024, "h100", dtype="bfloat16").spans
    time = sum(span.total for span in spans if span.stem == "layer_norm")
    return flops / sum(r.flops for r in rows), time / sum(span.total for span in spans)


def T201(it: Evidence) -> None:
    r"""The norms' operations are negligible beside the quadratic terms.

    In FLOPs they are negligible: 0.04 % of a step of GPT-2. Their share of its
    predicted time on an H100 is 4.3 %, more than a hundred times as large.
    """
    of_flops, of_time = norms_of_gpt2()
    it.as_printed(of_flops < 1e-3)
    it.elsewhere(of_time < 1e-2)
    it.right((round(100 * of_flops, 2), round(100 * of_time, 1)) == (0.04, 4.3))
    it.right(of_time > 100 * of_flops)


def T202(it: Evidence) -> None:
    r"""Normalisation costs little, which explains why it is not optimised.

    It is optimised: RMSNorm and fused norms were made to save time. FLOPs do not
    explain the norms' time: in the predicted step of GPT-2, every norm's time is that
    of reading and writing.
    """
    spans = cost.duration("gpt2", 8, 1_024, "h100", dtype="bfloat16").spans
    norms = [span for span in spans if span.stem == "layer_norm"]
    it.as_printed(all(span.bound in ("products", "elements") for span in norms))
    it.right(all(span.bound == "memory" for span in norms))
    layer = cost.count("layer_norm", (4, 6), (6,), (6,)).forward.total
    rms = cost.count("rms_norm", (4, 6), (6,)).forward.total
    it.right(rms < layer)


def T203(it: Evidence) -> None:
    """A larger d lets the network represent more.

    A wider block has more parameters. The text gives neither a measure of capacity nor
    a source.
    """


def T204(it: Evidence) -> None:
    r"""A larger $d$ is paid for quadratically, through $nd^2$.

    The cost is close to quadratic for $n$ far below $6d$. For much longer sequences the
    total grows in proportion to $d$.
    """
    it.as_printed(growth(512, 4_096)[1] > 3.9)
    it.elsewhere(growth(10**6, 64)[1] > 3)
    it.right(growth(10**6, 64)[1] < 2.1)


def T205(it: Evidence) -> None:
    r"""The quadratic growth makes the feed-forward layer particularly heavy where $d$
    is large.

    It becomes heavier in relation to attention as a whole. Attention's own projections
    grow in the same way: the layer costs twice as much as they do at any width.
    """

    def beside(d: int, *, scores: bool) -> float:
        n = 1_024
        attention = printed("attention", s=n, h=d) if scores else 16 * n * d**2
        return float(32 * n * d**2 / attention)

    it.as_printed(beside(4_096, scores=True) > 1.5 * beside(512, scores=True))
    it.elsewhere(beside(4_096, scores=False) > beside(512, scores=False))
    ran = [
        its.steps(its.product, its.numbers(2, a), its.numbers(a, b))
        for d in (3, 5)
        for a, b in ((d, d), (d, 4 * d))
    ]
    it.right(all(2 * 4 * ran[i] == 2 * ran[i + 1] for i in (0, 2)))


def T206(it: Evidence) -> None:
    """The usable context is how many tokens one forward pass can process.

    This holds for a pass over one sequence. A pass over a batch processes the tokens of
    all its sequences, and each token attends only to its own sequence.
    """

    def reached(sequences: int) -> int:
        x = numbers(sequences, 4, 3)
        found = np.abs(jacobian(lambda t: (t @ t.mT).softmax(2) @ t, x)).sum((2, 5))
        return int((found[0, 0] > 0).sum())

    it.as_printed(reached(1) == 1 * 4)
    it.elsewhere(reached(2) == 2 * 4)
    it.right(reached(2) == 4)


def T207(it: Evidence) -> None:
    r"""Increasing $n$ expands the usable context, but the quadratic $n^2d$ cost of
    attention grows much faster.

    The term grows faster than the context: twice the length makes it four times as
    large. The block's cost does not. At $n = 1{,}024$ and $d = 768$, twice the length
    costs 2.36 times as much, and twice the width 3.64 times; only beyond $6d$ does the
    length cost more.
    """

    def term(n: int) -> int:  # one of four products in n²d
        return its.steps(its.product, numbers(n, 3), numbers(3, n))

    it.as_printed(term(8) == 4 * term(4) > 2 * term(4))
    by_length, by_width = growth(1_024, 768)
    it.elsewhere(by_length >= 4)
    it.elsewhere(by_length > by_width)
    it.right((round(by_length, 2), round(by_width, 2)) == (2.36, 3.64))
    for n, longer_costs_more in ((5 * 768, False), (7 * 768, True)):
        by_length, by_width = growth(n, 768)
        it.right((by_length > by_width) is longer_costs_more)


def T208(it: Evidence) -> None:
    r"""The $n^2d$ cost is the limiting factor for very long sequences, which are
    thousands of tokens.

    It depends on the width. At the original's $d = 512$ the term is 57 % of the text's
    total for 4,096 tokens and 73 % for 8,192. At $d = 4{,}096$ it is 14 % and 25 %.
    """
    it.as_printed(share(4_096, 512) > 0.5)
    it.as_printed(share(8_192, 512) > 0.5)
    it.elsewhere(share(4_096, 4_096) > 0.5)
    it.elsewhere(share(8_192, 4_096) > 0.5)
    percent = [round(100 * share(n, d)) for d in (512, 4_096) for n in (4_096, 8_192)]
    it.right(percent == [57, 73, 14, 25])


def T209(it: Evidence) -> None:
    """Because of the trade-off, cheaper forms of attention are studied.

    There is such research; the text cites none of it here.
    """


def T210(it: Evidence) -> None:
    """A large context without a sufficiently large embedding dimension can lead to
    underfitting.

    The text gives neither a source nor an experiment. Length adds no parameters to the
    block.
    """


def T211(it: Evidence) -> None:
    """A network with very wide embeddings and a short context may overfit.

    The text gives neither a source nor an experiment. Overfitting depends on parameters
    and data; a short context says nothing about the amount of data.
    """


def T212(it: Evidence) -> None:
    """Few tasks in the design of Transformers are harder than balancing n, d, and the
    cost.

    This is an opinion.
    """
