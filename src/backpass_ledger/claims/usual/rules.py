"""Rules of thumb for the FLOPs of a whole network."""

from __future__ import annotations

from functools import partial
from typing import Any

from backpass import cost
from backpass.cost.published import named
from backpass_ledger.claims.evidence import Evidence
from backpass_ledger.claims.tools import same

CLAIMS = """
U1  caveat  3  FLOPs          cost/ratio              many texts, after the “approximately twice” of Kaplan et al. (2020), §2.1
U2  caveat  5  FLOPs          cost/ratio              Kaplan et al. (2020), §2.1
U3  caveat  3  FLOPs          cost/tally              PaLM, appendix B; nanoGPT, `estimate_mfu`
U4  false   2  FLOPs          cost/tally              the 6N rule, read literally
U5  false   4  embeddings     operations/embeddings   Hoffmann et al. (2022), appendix F
U6  caveat  2  recomputation  numerics/recomputation  Korthikanti et al. (2022), §5; every text on checkpointing
"""
SHOWN_BY = """
cost/test_tally.py::test_the_rows_are_what_is_counted  U1 U2
cost/test_published.py::test_the_right_number_is_what_ran_and_the_usual_one_is_not  U3 U4 U5
"""


def gpt2(tokens: int, **options: Any) -> Any:
    """Return the tally of a step of GPT-2 on one sequence."""
    return cost.tally("gpt2", 1, tokens, **options)


def U1(it: Evidence) -> None:
    r"""A backward costs twice its forward.

    A matrix product has two backward products of its size if both gradients are wanted.
    The ratio is 1 where only one is wanted. With every operation counted, it is 1.9969
    for GPT-2 at 1,024 tokens; with attention that recomputes its scores, more than
    2."""
    step = gpt2(1024)
    ran, products = step.flops("counted"), step.flops("products")
    it.as_printed(products["backward"] == 2 * products["forward"])
    it.elsewhere(ran["backward"] == 2 * ran["forward"])
    it.right(round(ran["backward"] / ran["forward"], 4) == 1.9969)
    flash = gpt2(1024, flash=True).flops("products")
    it.elsewhere(flash["backward"] <= 2 * flash["forward"])
    frozen = gpt2(1024, wanted=["wte.weight"]).flops("products")
    it.elsewhere(frozen["backward"] == 2 * frozen["forward"])


def U2(it: Evidence) -> None:
    r"""A training step costs $6N$ FLOPs per token, $N$ being the parameters without the
    tables of tokens and positions.

    Attention's two products and the output head are not part of that $N$. For GPT-2 at
    1,024 tokens, $6N$ is 59.6 % of the FLOPs of matrix products, with every pair of
    query and key counted. It tends to all of them as the width grows. The paper says
    that it leaves out the term that depends on the context."""
    config = cost.configuration("gpt2")
    h, tables = config.width, (config.vocabulary + config.positions) * config.width
    step = gpt2(1024)
    matrices = 12 * 12 * h * h
    others = step.parameters - tables - matrices  # norms and biases
    it.as_printed(0 < others < matrices / 500)
    share = 6 * matrices * 1024 / step.total("products")
    it.right(round(100 * share, 1) == 59.6)
    it.elsewhere(abs(share - 1) < 0.1)
    beside = 2 * 1024 + 50257 / 12  # attention and the head, beside 12h² a layer
    it.right(same(12 * h / (12 * h + beside), share, 1e-3))
    it.as_printed(12 * 10**6 / (12 * 10**6 + beside) > 0.99)


def U3(it: Evidence) -> None:
    r"""$6N + 12\,L\,n_h\,d\,s$ FLOPs per token count a step of a decoder.

    The formula counts attention's two products over all $s$ keys, although a causal
    mask leaves $(s + 1)/2$ on average, and it counts 6 FLOPs for each norm parameter,
    although norms are not matrix products."""
    step, formula = gpt2(1024), partial(named("palm").at, L=12, n_h=12, d=64, s=1024)
    matrices = 12 * 12 * 768**2 + 50257 * 768
    it.as_printed(1024 * formula(N=matrices) == step.total("products-whole"))
    it.elsewhere(1024 * formula(N=matrices) == step.total("products-triangle"))
    it.elsewhere(1024 * formula(N=step.parameters) == step.total("products-whole"))


def U4(it: Evidence) -> None:
    r"""Every parameter of a GPT-2 costs 6 FLOPs per token.

    A row of the position table is added once, and a norm's weight multiplies one
    element: neither is part of a matrix product. The token table costs products only as
    the output head. nanoGPT's `transformer_sizing.ipynb` leaves the positions out."""
    step = gpt2(1024)
    attention = step.only(lambda row: row.term.call == "attention")
    matrices = step.total("products") - attention.total("products")
    it.as_printed(matrices == 6 * 1024 * step.parameters)
    it.right(matrices == 6 * 1024 * (12 * 12 * 768**2 + 50257 * 768))


def U5(it: Evidence) -> None:
    r"""Looking up tokens costs a product with one-hot rows: 2sVh FLOPs.

    The lookup copies rows, at 0 FLOPs; its backward adds rows, at most bsh FLOPs.
    Counting the lookup as a product is a convention of that appendix."""
    step = gpt2(1024)
    lookup = step.only(lambda row: row.term.call == "token embedding").flops("counted")
    it.as_printed(lookup["forward"] == 2 * 1024 * 50257 * 768)
    it.right(lookup["forward"] == 0 and lookup["backward"] <= 1024 * 768)


def U6(it: Evidence) -> None:
    r"""Recomputing all layers costs a third more.

    It costs one forward of the layers. The output head does not run again: a step of
    GPT-2 has 24.3 % more FLOPs of products at 1,024 tokens, with every pair counted."""
    ran = gpt2(1024, recompute=1).flops("products")
    inside = gpt2(1024).only(lambda row: row.part == "layer").flops("products")
    it.as_printed(3 * ran["recomputation"] == inside["forward"] + inside["backward"])
    more = ran["recomputation"] / (ran["forward"] + ran["backward"])
    it.elsewhere(abs(more - 1 / 3) < 0.01)
    it.right(round(100 * more, 1) == 24.3)
