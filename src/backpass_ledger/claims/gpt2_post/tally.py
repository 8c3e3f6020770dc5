"""The tally of a layer and of the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy

from backpass import cost
from backpass.cost.published import symbolic, value
from backpass.ops import embedding
from backpass_ledger.claims.evidence import Evidence, equations_of
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


def of_section(name: str) -> str:
    """Return the expression that a part's own section ends with."""
    norm = name.endswith("_ln")
    return TOTALS["layer_norm"].printed if norm else ROWS[name].expression


def costs(**expressions: str) -> str:
    """Return definitions of the names that the text prints, for a derivation."""
    printed = (
        rf"let \text{{{name}}} = {sympy.latex(symbolic(expression))}"
        for name, expression in expressions.items()
    )
    letters = r"given b, s, h, n_h, d, V, n_{layer} \in \mathbb{R}; factor n_{layer}"
    return "\n".join([letters, *printed])


def judged(it: Evidence, power: str, printed: int) -> None:
    """Add up the parts of a layer that grow like ``power``, and compare with the
    coefficient in the total."""
    whole = " + ".join(map(of_section, PARTS))
    for expression in (whole, TOTALS["layer"].printed):
        terms = sympy.Poly(symbolic(expression))
        it.as_printed(terms.coeff_monomial(symbolic(f"b*{power}")) == printed)


def of_a_layer(chosen: Callable[[Any], bool], **options: Any) -> int:
    """Return the FLOPs of the chosen rows of a layer's backward in GPT-2, for two
    sequences of 100 tokens, with n additions for a sum of n terms."""
    rows = cost.tally("gpt2", 2, 100, **options)
    rows = rows.only(lambda row: row.part == "layer" and chosen(row))
    return rows.flops("sum-n")["backward"] // 12


def G189(it: Evidence) -> None:
    r"""The gradients of both embeddings are excluded: one depends on how often tokens
    occur, the other is negligible.

    Terms of the same size, such as β's $bsh$, are kept."""
    few, many = (embedding.backward_flops(m=8192, h=768, distinct=u) for u in (1, 5000))
    it.as_printed(few > many > 0)
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
    $2bn_hs^2 + 2bsh$. At 1,024 tokens all of this is 0.1 % of $48bsh^2$."""
    bsh, scores = 2 * 100 * 768, 2 * 12 * 100 * 100
    biases = of_a_layer(lambda r: r.term.stem == "linear" and r.term.what == "elements")
    forks = of_a_layer(lambda row: row.term.stem == "fork")
    x_hat = 2 * 2 * bsh  # a difference and a product, in two norms
    it.left_out(biases + forks + x_hat)
    it.right((biases, forks) == (9 * bsh, 2 * bsh))
    it.right(biases + forks + x_hat == (113 - 98) * bsh)
    masks = of_a_layer(lambda _: True, masks=True) - of_a_layer(lambda _: True)
    it.left_out(masks)
    it.right(masks == 2 * scores + 2 * bsh)
    lacking = (113 - 98 + 2) * 768 + 2 * 12 * 1024
    it.right(round(100 * lacking / (48 * 768**2), 1) == 0.1)


def G191(it: Evidence) -> None:
    r"""In the order of line 1, $\text{Layer FLOPs} = 11bsh + 12bsh^2 + 4bn_hs^2d +
    4bn_hs^2 + bn_hs^2 + 4bn_hs^2d + 4bsh^2 + 11bsh + 16bsh^2 + 76bsh + 16bsh^2$."""
    for term, name in zip(TOTALS["layer"].terms, PARTS, strict=True):
        it.as_printed(symbolic(term) == symbolic(of_section(name)))
    it.derives(costs(**{"Layer FLOPs": " + ".join(map(of_section, PARTS))}))


def G192(it: Evidence) -> None:
    r"""The terms in $bsh^2$ of a layer sum to $48bsh^2$."""
    judged(it, "s*h**2", 48)


def G193(it: Evidence) -> None:
    r"""The terms in $bn_hs^2d$ of a layer sum to $8bn_hs^2d$."""
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
    both are formed as whole arrays; scattering rows takes at most $bsh$."""
    rows = cost.tally("gpt2", 1, 8).rows
    parts = {row.part for row in rows if row.term.way == "backward"}
    listed = {"layer", "last norm", "output head"}
    it.as_printed(listed < parts and {row.term.call for row in rows} > {"loss"})
    it.elsewhere(parts == listed)
    it.right(parts - listed == {"embedding"} and cost.configuration("gpt2").tied)
    lookup = embedding.backward_flops(m=1024, h=768, distinct=500)
    it.right(lookup + 500 * 768 == 1024 * 768)  # bsh, on rows that are not 0


def G197(it: Evidence) -> None:
    r"""$\text{Total FLOPs} = n_{layer} \times \text{Layer FLOPs} + \text{final_ln} +
    \text{lm_head} + \text{cross_entropy}$, and so $\text{Total FLOPs} =
    n_{layer}(48bsh^2 + 8bn_hs^2d + 5bn_hs^2 + 98bsh) + 11bsh + 4bshV$.

    The cross-entropy, $4bsV$ by its own section, is not added: 205,852,672 for GPT-2
    and a sequence of 1,024 tokens, 0.035 % of the printed 584,985,083,904, and 24 times
    the last norm that is kept."""
    line, printed = equations_of(it.says)
    names = {"Layer FLOPs": TOTALS["layer"].printed, "lm_head": of_section("lm_head")}
    names |= {"final_ln": of_section("_ln"), "cross_entropy": of_section("log_softmax")}
    definitions = f"{costs(**names)}\nlet {line}"
    it.right(not derives(printed, definitions))
    it.right(derives(f"{printed} + 4bsV", definitions))
    total, loss = TOTALS["network"], ROWS["log_softmax"].at(**GPT2) + ROWS["nll"].at()
    it.left_out(loss)
    terms = symbolic(" + ".join(total.terms))
    it.right(sympy.expand(terms - symbolic(total.printed)) == symbolic("4*b*s*V"))
    whole = value(total.printed, **GPT2)
    it.right(GPT2["s"] == 1024 and loss == 205_852_672 and whole == 584_985_083_904)
    it.right(round(100 * loss / whole, 3) == 0.035)
    it.right(round(loss / value(of_section("_ln"), **GPT2)) == 24)


def G198(it: Evidence) -> None:
    """The text's final formula is the total of the FLOPs of the network's backward.

    At 1,024 tokens it is 0.08 % above what runs in a GPT-2 that computes all scores.
    For one token it is a third too high: it counts products as $2mnp$, but a weight's
    gradient then has no additions. It is too high where masked scores are skipped."""

    def off(s: int) -> float:
        printed = value(TOTALS["network"].printed, **{**GPT2, "s": s})
        return printed / cost.tally("gpt2", 1, s).flops()["backward"] - 1

    it.as_printed(abs(off(1024)) < 0.001)
    it.right(round(100 * off(1024), 2) == 0.08)
    it.elsewhere(abs(off(1)) < 0.1)
    it.right(round(off(1), 2) == round(1 / 3, 2))
    step = cost.tally("gpt2", 1, 1024)
    it.right(step.total("products-triangle") < 0.95 * step.total("products"))


def G199(it: Evidence) -> None:
    """Products enter the totals as $2mnp$ FLOPs.

    This is rounded up from $mp(2n - 1)$. The totals keep terms that are smaller than
    the rounding: in GPT-2 at 1,024 tokens, the last norm's $11bsh$ is smaller than the
    rounding of the head's products."""
    head = cost.tally("gpt2", 1, 1024).only(lambda row: row.term.call == "output head")
    printed, ran = ROWS["lm_head"].at(**GPT2), head.flops()["backward"]
    it.as_printed(100 * (printed - ran) < printed)
    it.elsewhere(printed - ran < value(of_section("_ln"), **GPT2))


def G200(it: Evidence) -> None:
    """The text sorts operations by their FLOPs for each byte, and then counts FLOPs.

    Bytes, and so the time, are left out. Norms, GELU, residual connections, embeddings,
    and the loss take 0.2 % of the FLOPs of GPT-2's backward at 1,024 tokens, and 31 %
    of the bytes that it has to read and write."""

    def kind(call: str) -> str:
        product = call in ("attention", "output head") or "projection" in call
        return "product" if product else "other"

    flops = cost.tally("gpt2", 1, 1024).by(lambda row: kind(row.term.call))
    traffic = cost.traffic(cost.configuration("gpt2"), 1, 1024)
    moved = traffic.by(lambda row: kind(row.access.call))
    it.left_out(moved["other"]["backward"])
    for found, percent, digits in ((flops, 0.2, 1), (moved, 31, 0)):
        other, product = (found[part]["backward"] for part in ("other", "product"))
        it.right(round(100 * other / (other + product), digits) == percent)
