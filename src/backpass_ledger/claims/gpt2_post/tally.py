"""The tally of a layer and of the network."""

from __future__ import annotations

import sympy

from backpass import cost
from backpass.cost.published import symbolic, value
from backpass.ops import embedding
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.gpt2_post.overview import GPT2, ROWS, TOTALS
from backpass_ledger.claims.tools import derives

CLAIMS = """
G189  true      0  FLOPs  cost/tally            exclusions
G190  left-out  5  FLOPs  cost/tally            layer, line 1
G191  true      0  FLOPs  cost/tally            layer, line 2
G192  true      0  FLOPs  cost/tally            layer, line 3
G193  true      0  FLOPs  cost/tally            layer, line 3
G194  true      0  FLOPs  cost/tally            layer, line 3
G195  true      0  FLOPs  cost/tally            layer, line 3
G196  caveat    2  FLOPs  cost/tally            network, line 1
G197  left-out  6  loss   cost/tally            network, line 2
G198  caveat    3  FLOPs  cost/tally            network, line 2
G199  caveat    1  FLOPs  foundations/counting  network
G200  left-out  3  time   cost/time             the whole tally
"""


PARTS = (
    *("pre_attn_ln", "qkv_proj", "query@key", "softmax", "scaling", "attn@value"),
    *("attn_out", "pre_mlp_ln", "mlp_up", "gelu", "mlp_down"),
)
SIZES = r"given b, s, h, n_h, d, V, n_{layer} \in \mathbb{R}"


def of_section(name: str) -> str:
    """Return the expression that a part's own section ends with."""
    return (
        TOTALS["layer_norm"].printed if name.endswith("_ln") else ROWS[name].expression
    )


def cost_of(name: str, expression: str) -> str:
    """Return a part's cost as a definition of the name that the text prints."""
    return rf"let \text{{{name}}} = {sympy.latex(symbolic(expression))}"


def coefficient(name: str, power: str) -> int:
    """Return the number before b times ``power`` in a part's expression."""
    b = sympy.Symbol("b", positive=True, integer=True)
    term = symbolic(f"b*{power}")
    ratio = sympy.expand(symbolic(of_section(name)) / term)
    return int(ratio) if ratio.is_Integer and b not in ratio.free_symbols else 0


def judged(it: Evidence, power: str, printed: int) -> None:
    """Add up the parts of a layer that grow like ``power``, and compare with the
    coefficient in the total."""
    it.as_printed(sum(coefficient(name, power) for name in PARTS) == printed)
    total = sympy.Poly(symbolic(TOTALS["layer"].printed))
    it.as_printed(total.coeff_monomial(symbolic(f"b*{power}")) == printed)


def G189(it: Evidence) -> None:
    r"""The gradients of both embeddings are excluded: one depends on how often tokens
    occur, the other is negligible.

    Terms of the same size, such as β's $bsh$, are kept.
    """
    counts = {u: embedding.backward_flops(m=8192, h=768, distinct=u) for u in (1, 5000)}
    it.as_printed(counts[1] > counts[5000] > 0)
    at = {**GPT2, "b": 8}
    positions = ROWS["positions"].at(**at)
    it.as_printed(positions / value(TOTALS["network"].printed, **at) < 1e-5)
    it.right(ROWS["shift"].at(**at) * 7 == positions * 8)


def G190(it: Evidence) -> None:
    """A layer is its two norms, the four projections, query@key, softmax, scaling,
    attn@value, and GELU.

    Without dropout, three terms are missing: $9bsh$ for the biases, $2bsh$ for the sums
    of two gradients at the residual connections, and $4bsh$ for x̂ in both norms. The
    layer has $113bsh$ instead of $98bsh$. GPT-2 is trained with dropout, which adds
    $2bn_hs^2 + 2bsh$. At 1,024 tokens all of this is 0.1 % of $48bsh^2$.
    """
    b, s = 2, 100
    layer = cost.tally("gpt2", b, s).only(lambda row: row.part == "layer")
    biases = layer.only(
        lambda row: row.term.stem == "linear" and row.term.what == "elements"
    )
    forks = layer.only(lambda row: row.term.stem == "fork")
    found = [part.flops("sum-n")["backward"] // 12 for part in (biases, forks)]
    x_hat = 2 * 2 * b * s * 768  # a difference and a product, in two norms
    it.left_out(sum(found) + x_hat)
    it.right(found == [9 * b * s * 768, 2 * b * s * 768])
    it.right(sum(found) + x_hat == (113 - 98) * b * s * 768)
    plain, dropped = (
        cost.tally("gpt2", b, s, masks=masks)
        .only(lambda row: row.part == "layer")
        .flops("sum-n")["backward"]
        for masks in (False, True)
    )
    masks = 2 * b * 12 * s * s + 2 * b * s * 768
    it.left_out(dropped - plain)
    it.right(dropped - plain == 12 * masks)
    lacking = (113 - 98 + 2) * 768 + 2 * 12 * 1024
    it.right(round(100 * lacking / (48 * 768**2), 1) == 0.1)


def G191(it: Evidence) -> None:
    """The eleven terms of a layer are those of the sections, in the order of line 1."""
    terms = TOTALS["layer"].terms
    it.as_printed(len(terms) == len(PARTS) == 11)
    for term, name in zip(terms, PARTS, strict=True):
        it.as_printed(symbolic(term) == symbolic(of_section(name)))
    printed = r"""
        \text{Layer FLOPs}
        &= \text{pre_attn_ln} + \text{qkv_proj} + \text{query@key}
        + \text{softmax} + \text{scaling} \\
        &\quad\; + \; \text{attn@value} + \text{attn_out} + \text{pre_mlp_ln}
        + \text{mlp_up} + \text{gelu} + \text{mlp_down} \\
        &= 11bsh + 12bsh^2 + 4bn_hs^2d + 4bn_hs^2 + bn_hs^2 \\
        &\quad\; + \; 4bn_hs^2d + 4bsh^2 + 11bsh + 16bsh^2 + 76bsh + 16bsh^2
    """
    costs = [cost_of(name, of_section(name)) for name in PARTS]
    it.as_printed(derives(printed, "\n".join([SIZES, *costs])))


def G192(it: Evidence) -> None:
    r"""The terms in $bsh^2$ of a layer sum to $48bsh^2$."""
    judged(it, "s*h**2", 48)


def G193(it: Evidence) -> None:
    r"""The terms in $bn_hs^2d$ of a layer sum to $8bn_hs^2d$.

    As $n_h d = h$, they are $8bs^2h$.
    """
    judged(it, "n_h*s**2*d", 8)


def G194(it: Evidence) -> None:
    r"""The terms in $bn_hs^2$ of a layer sum to $5bn_hs^2$."""
    judged(it, "n_h*s**2", 5)


def G195(it: Evidence) -> None:
    r"""The terms in $bsh$ of a layer sum to $98bsh$."""
    judged(it, "s*h", 98)


def G196(it: Evidence) -> None:
    """The backward of the network is that of its layers, of the last norm, of the head,
    and of the cross-entropy.

    The embeddings' backward is also part of it; the text excludes it in words. The head
    shares the table of tokens, so the table's two gradients are added: $Vh$ FLOPs if
    both are formed as whole arrays; scattering the rows into the head's gradient takes
    at most $bsh$.
    """
    rows = cost.tally("gpt2", 1, 8).rows
    parts = {row.part for row in rows if row.term.way == "backward"}
    listed = {"layer", "last norm", "output head"}
    it.as_printed(listed < parts and {r.term.call for r in rows} > {"loss"})
    it.elsewhere(parts == listed)
    it.right(parts - listed == {"embedding"} and cost.configuration("gpt2").tied)
    lookup = embedding.backward_flops(m=1024, h=768, distinct=500)
    it.right(lookup + 500 * 768 == 1024 * 768)  # bsh, on rows that are not 0


def G197(it: Evidence) -> None:
    r"""$n_{layer}(48bsh^2 + 8bn_hs^2d + 5bn_hs^2 + 98bsh) + 11bsh + 4bshV$ is the sum
    of layers, last norm, head, and cross-entropy.

    The cross-entropy, $4bsV$ by its own section, is not added: 205,852,672 for GPT-2
    and a sequence of 1,024 tokens, 0.035 % of the printed 584,985,083,904, and 24 times
    the last norm that is kept.
    """
    total = TOTALS["network"]
    summed = sum(symbolic(term) for term in total.terms)
    it.left_out(sympy.expand(summed - symbolic(total.printed)))
    it.right(sympy.expand(summed - symbolic(total.printed)) == symbolic("4*b*s*V"))
    lines = r"""
        \text{Total FLOPs}
        &= n_{layer} \times \text{Layer FLOPs}
        + \text{final_ln} + \text{lm_head} + \text{cross_entropy} \\
        &= n_{layer}(48bsh^2 + 8bn_hs^2d + 5bn_hs^2 + 98bsh) + 11bsh + 4bshV
    """
    costs = [
        cost_of("Layer FLOPs", TOTALS["layer"].printed),
        cost_of("final_ln", TOTALS["layer_norm"].printed),
        cost_of("lm_head", ROWS["lm_head"].expression),
        cost_of("cross_entropy", ROWS["log_softmax"].expression),
    ]
    definitions = "\n".join([SIZES, "factor n_{layer}", *costs])
    it.right(not derives(lines, definitions))
    it.right(derives(f"{lines} + 4bsV", definitions))
    loss = ROWS["log_softmax"].at(**GPT2) + ROWS["nll"].at()
    printed = value(total.printed, **GPT2)
    it.right(GPT2["s"] == 1024 and loss == 205_852_672 and printed == 584_985_083_904)
    it.right(round(100 * loss / printed, 3) == 0.035)
    it.right(round(loss / value(TOTALS["layer_norm"].printed, **GPT2)) == 24)


def G198(it: Evidence) -> None:
    """The text's final formula is the total of the FLOPs of the network's backward.

    At 1,024 tokens it is within 0.1 % of what runs in a GPT-2 that computes all scores.
    For one token it is a third too high: it counts products as $2mnp$, but a weight's
    gradient then has no additions. It is also too high where masked scores are skipped.
    """
    printed = {
        s: value(TOTALS["network"].printed, **{**GPT2, "s": s}) for s in (1, 1024)
    }
    off = {
        s: printed[s] / cost.tally("gpt2", 1, s).flops()["backward"] - 1
        for s in printed
    }
    it.as_printed(100 * abs(off[1024]) < 0.1)
    it.elsewhere(abs(off[1]) < 0.1)
    it.right(round(off[1], 2) == round(1 / 3, 2))
    step = cost.tally("gpt2", 1, 1024)
    it.right(step.total("products-triangle") < 0.95 * step.total("products"))


def G199(it: Evidence) -> None:
    """Products enter the totals as $2mnp$ FLOPs.

    This is rounded up from $mp(2n - 1)$. The totals keep terms that are smaller than
    the rounding: in GPT-2 at 1,024 tokens, the last norm's $11bsh$ is smaller than the
    rounding of the head's products.
    """
    head = cost.tally("gpt2", 1, 1024).only(lambda row: row.term.call == "output head")
    printed, ran = ROWS["lm_head"].at(**GPT2), head.flops()["backward"]
    it.as_printed(100 * (printed - ran) < printed)
    it.elsewhere(printed - ran < value(TOTALS["layer_norm"].printed, **GPT2))


def G200(it: Evidence) -> None:
    """The text sorts operations by how many FLOPs they have for each byte, and then
    counts FLOPs.

    Bytes, and so the time, are left out. Norms, GELU, residual connections, embeddings,
    and the loss take 0.2 % of the FLOPs of GPT-2's backward at 1,024 tokens, and 31 %
    of the bytes that it has to read and write.
    """
    products = {"attention", "output head"}
    names = {row.term.call for row in cost.tally("gpt2", 1, 1024).rows}
    products |= {name for name in names if name.endswith("projection")}
    step = cost.tally("gpt2", 1, 1024)
    others = step.only(lambda row: row.term.call not in products).flops()["backward"]
    it.right(round(100 * others / step.flops()["backward"], 1) == 0.2)
    traffic = cost.traffic(cost.configuration("gpt2"), 1, 1024)
    moved = [row for row in traffic.rows if row.access.way == "backward"]
    amounts = [
        sum(row.repeats * row.access.numbers * row.access.width for row in rows)
        for rows in (moved, [row for row in moved if row.access.call not in products])
    ]
    it.left_out(amounts[1])
    it.right(round(100 * amounts[1] / amounts[0]) == 31)
