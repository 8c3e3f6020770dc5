"""§4.2.1 and §4.2.2: heavy and light parts, width and context."""

from __future__ import annotations

from typing import Any

import numpy as np

from backpass import cost
from backpass_ledger.claims import encoder_block as its
from backpass_ledger.claims.encoder_block import printed, row
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.thesis.feed_forward import PRODUCTS
from backpass_ledger.claims.thesis.opening import of_step
from backpass_ledger.claims.tools import jacobian, numbers

CLAIMS = """
T195  true          0  FLOPs         cost/tally              §4.2.1, feed-forward layer
T196  caveat        2  FLOPs         cost/tally              §4.2.1, literature
T197  false         3  FLOPs         cost/tally              §4.2.1, why attention is sensitive to the length
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
    return float(8 * n**2 * d / row("block")(n, d))


def growth(n: int, d: int, name: str = "block") -> tuple[float, float]:
    """Return the factor by which a row or the total of the text grows when n doubles,
    and when d does."""
    cost_of = row(name)
    return cost_of(2 * n, d) / cost_of(n, d), cost_of(n, 2 * d) / cost_of(n, d)


def T195(it: Evidence) -> None:
    r"""The feed-forward layer has the largest part in $d^2$, $32nd^2$.

    It is two thirds of $48nd^2$, at $d_{ff} = 4d$."""

    def in_squares(of: Any) -> int:
        return int(of(5, 4) - 2 * of(5, 3) + of(5, 2)) // 2

    fed, attended = in_squares(its.of_feed_forward), in_squares(its.of_attention)
    it.as_printed(fed == 32 * 5 and fed > attended > in_squares(its.of_norm))
    it.right(3 * fed == 2 * (fed + attended) == 2 * 48 * 5)


def T196(it: Evidence) -> None:
    r"""As embeddings grow, the feed-forward layers often cost the most.

    The text gives no source. By its own totals the layer costs more than attention for
    $n$ below about $2d$. Its share rises with $d$ towards two thirds."""
    fed, attention, block = map(row, ("feed_forward", "attention", "block"))
    parts = [fed(1_024, d) / block(1_024, d) for d in (256, 1_024, 4_096)]
    it.as_printed(parts == sorted(parts))
    it.as_printed(fed(1_024, 4_096) > attention(1_024, 4_096))
    it.elsewhere(fed(8_192, 2_048) > attention(8_192, 2_048))
    it.right([fed(n, 512) > attention(n, 512) for n in (1_000, 1_048)] == [True, False])
    it.right(0.666 < fed(1, 10**6) / block(1, 10**6) < 2 / 3)


def T197(it: Evidence) -> None:
    r"""Attention is more sensitive to the length because of $16nd^2 + 8n^2d$.

    The reason is $8n^2d$, with $4n^2$. $16nd^2$ is linear in $n$, as $32nd^2$ is."""
    n, d = 6, 3
    it.as_printed(its.of_attention(2 * n, d) > 2 * its.of_attention(n, d))
    it.as_printed(its.of_feed_forward(2 * n, d) == 2 * its.of_feed_forward(n, d))
    linear = its.products(8 * "ndd ")  # the term 16nd²
    it.right(linear(n, d) == 16 * n * d**2)
    it.as_printed(linear(2 * n, d) > 2 * linear(n, d))


def T198(it: Evidence) -> None:
    r"""For long contexts the $n^2d$ term dominates the cost.

    By the text's own total, long means $n > 6d$: 24,576 tokens at $d = 4{,}096$. At $n
    = d$ the term is a seventh of the total."""
    it.as_printed(share(10**6, 512) > 0.9)
    it.elsewhere(share(8_192, 4_096) > 0.5)
    sizes = [(n, d) for n in range(1, 60) for d in range(1, 9)]
    it.right(all((8 * n**2 * d > 48 * n * d**2) == (n > 6 * d) for n, d in sizes))
    it.right(6 * 4_096 == 24_576 and abs(share(4_096, 4_096) - 1 / 7) < 1e-3)


def T199(it: Evidence) -> None:
    r"""The normalisation layers require only $20nd$ operations.

    The total has $18nd$ for the same two layers, and the section's text leads to
    $20nd$. The correct count is $22nd - 4d$."""
    n, d = 5, 4
    discussed, totalled = row("norms_discussed")(n, d), 2 * row("norm")(n, d)
    it.clashes(discussed != totalled)
    it.right((discussed, totalled) == (20 * n * d, 18 * n * d))
    it.right(discussed == 2 * n * (printed("norm_w", h=d) + printed("norm_x", h=d)))
    it.right(2 * its.of_norm(n, d, its.EXACT) == 22 * n * d - 4 * d)


def T200(it: Evidence) -> None:
    r"""Beside the quadratic terms, the norms' $20nd$ are negligible.

    They are beside $48nd^2 + 8n^2d$. The third quadratic term, $4n^2$, is smaller than
    $20nd$ for $n < 5d$: at $n = d = 512$ the norms take five times as much."""
    norms, squares = row("norms_discussed"), row("softmax")
    for n in (1, 512, 4_096):
        it.as_printed(100 * norms(n, 512) < 48 * n * 512**2 + 8 * n**2 * 512)
    it.elsewhere(norms(512, 512) < squares(512, 512))
    it.right(norms(512, 512) == 5 * squares(512, 512))
    larger = [norms(n, 3) > squares(n, 3) for n in range(1, 40)]
    it.right(larger == [n < 5 * 3 for n in range(1, 40)])


def T201(it: Evidence) -> None:
    r"""The norms' operations are negligible beside the quadratic terms.

    In FLOPs they are: 0.04 % of a step of GPT-2. Their share of its predicted time on
    an H100 is 4.3 %, more than a hundred times as large."""
    norms, whole = of_step(lambda s: s.stem == "layer_norm")
    of_time, of_flops = norms / whole
    it.as_printed(bool(of_flops < 1e-3))
    it.elsewhere(bool(of_time < 1e-2))
    it.right((round(100 * of_flops, 2), round(100 * of_time, 1)) == (0.04, 4.3))
    it.right(bool(of_time > 100 * of_flops))


def T202(it: Evidence) -> None:
    r"""Normalisation costs little, which explains why it is not optimised.

    It is optimised: RMSNorm and fused norms save time. FLOPs do not explain that time:
    in a predicted step of GPT-2, every norm's time is that of reading and writing."""
    spans = cost.duration("gpt2", 8, 1_024, "h100", dtype="bfloat16").spans
    norms = [span for span in spans if span.stem == "layer_norm"]
    it.as_printed(all(span.bound in ("products", "elements") for span in norms))
    it.right(all(span.bound == "memory" for span in norms))
    layer = cost.count("layer_norm", (4, 6), (6,), (6,)).forward.total
    rms = cost.count("rms_norm", (4, 6), (6,)).forward.total
    it.right(rms < layer)


def T203(it: Evidence) -> None:
    """A larger d lets the network represent more.

    A wider block has more parameters. The text gives no measure and no source."""


def T204(it: Evidence) -> None:
    r"""A larger $d$ is paid for quadratically, through $nd^2$.

    The cost is close to quadratic for $n$ far below $6d$. For much longer sequences it
    grows in proportion to $d$."""
    it.as_printed(growth(512, 4_096)[1] > 3.9)
    it.elsewhere(growth(10**6, 64)[1] > 3)
    it.right(growth(10**6, 64)[1] < 2.1)


def T205(it: Evidence) -> None:
    r"""Quadratic growth makes the feed-forward layer particularly heavy at large $d$.

    It becomes heavier beside attention as a whole. Attention's own projections grow in
    the same way: the layer costs twice as much as they do at any width."""
    beside = [
        row("feed_forward")(1_024, d) / row("attention")(1_024, d) for d in (512, 4_096)
    ]
    it.as_printed(beside[1] > 1.5 * beside[0])
    of_weights = [
        its.products(PRODUCTS)(2, d) / its.products(4 * "dnd ndd ")(2, d)
        for d in (3, 5)
    ]
    it.elsewhere(of_weights[1] > of_weights[0])
    it.right(of_weights == [2, 2])


def T206(it: Evidence) -> None:
    """The usable context is how many tokens one forward pass can process.

    This holds for a pass over one sequence. A pass over a batch processes all its
    sequences, and each token attends only to its own sequence."""

    def reached(sequences: int) -> int:
        x = numbers(sequences, 4, 3)
        found = np.abs(jacobian(lambda t: (t @ t.mT).softmax(2) @ t, x)).sum((2, 5))
        return int((found[0, 0] > 0).sum())

    it.as_printed(reached(1) == 1 * 4)
    it.elsewhere(reached(2) == 2 * 4)
    it.right(reached(2) == 4)


def T207(it: Evidence) -> None:
    r"""More $n$ gives more context, but attention's quadratic $n^2d$ grows much faster.

    The term does: twice the length makes it four times as large. The block's cost does
    not. At $n = 1{,}024$ and $d = 768$, twice the length costs 2.36 times as much, and
    twice the width 3.64 times; the length costs more only beyond $6d$."""
    term = its.products("ndn nnd ndn nnd")  # the term 8n²d
    it.as_printed(term(8, 3) == 4 * term(4, 3) == 8 * 8**2 * 3)
    by_length, by_width = growth(1_024, 768)
    it.elsewhere(by_length >= 4)
    it.elsewhere(by_length > by_width)
    it.right((round(by_length, 2), round(by_width, 2)) == (2.36, 3.64))
    for n in (5 * 768, 7 * 768):
        by_length, by_width = growth(n, 768)
        it.right((by_length > by_width) is (n > 6 * 768))


def T208(it: Evidence) -> None:
    r"""For very long sequences, of thousands of tokens, the $n^2d$ cost is the limit.

    It depends on the width. At the original's $d = 512$ the term is 57 % of the text's
    total for 4,096 tokens and 73 % for 8,192. At $d = 4{,}096$ it is 14 % and 25 %."""
    shares = [[share(n, d) for n in (4_096, 8_192)] for d in (512, 4_096)]
    it.as_printed(min(shares[0]) > 0.5)
    it.elsewhere(max(shares[1]) > 0.5)
    it.right(
        [[round(100 * s) for s in each] for each in shares] == [[57, 73], [14, 25]]
    )


def T209(it: Evidence) -> None:
    """Because of the trade-off, cheaper forms of attention are studied.

    There is such research; the text cites none of it here."""


def T210(it: Evidence) -> None:
    """A large context without sufficiently wide embeddings can lead to underfitting.

    The text gives no source and no experiment. Length adds no parameters to the
    block."""


def T211(it: Evidence) -> None:
    """A network with very wide embeddings and a short context may overfit.

    The text gives no source and no experiment. Overfitting depends on parameters and
    data; a short context says nothing about the amount of data."""


def T212(it: Evidence) -> None:
    """Few tasks in designing Transformers are harder than balancing n, d, and the cost.

    This is an opinion."""
