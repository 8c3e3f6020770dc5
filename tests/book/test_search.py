"""The search finds chapters first, and shows what they say."""

from __future__ import annotations

import re

import pytest
from backpass_search import words
from sphinx.errors import ExtensionError

FIRST = 3

# What readers type, and the chapter that they look for.
QUERIES = {
    "softmax": "operations/softmax",
    "softmax gradient": "operations/softmax",
    "softmax Jacobian": "operations/softmax",
    "layernorm": "operations/layer_norm",
    "LayerNorm gradient": "operations/layer_norm",
    "layer normalization": "operations/layer_norm",
    "rmsnorm": "operations/rms_norm",
    "cross entropy": "operations/cross_entropy",
    "gelu": "operations/activations",
    "swiglu": "operations/activations",
    "matmul": "operations/linear",
    "embedding": "operations/embeddings",
    "weight tying": "operations/embeddings",
    "rope": "operations/rope",
    "dropout": "operations/residual_stream",
    "attention": "attention/scaled_dot_product",
    "causal mask": "attention/scaled_dot_product",
    "why scale by sqrt d": "attention/scaled_dot_product",
    "multi-head attention": "attention/heads",
    "GQA": "attention/grouped_query",
    "kv cache": "attention/grouped_query",
    "flash": "attention/flash",
    "online softmax": "attention/flash",
    "backward": "foundations/chain_rule",
    "backpropagation": "foundations/chain_rule",
    "gradient check": "foundations/verification",
    "FLOPs": "foundations/counting",
    "6N": "cost/tally",
    "MFU": "cost/time",
    "activation memory": "cost/memory",
    "numerical stability": "operations/softmax",
    "bf16": "numerics/precision",
    "gradient checkpointing": "numerics/recomputation",
    "gradient clipping": "numerics/clipping",
    "gradient accumulation": "numerics/averaging",
    "AdamW": "numerics/optimiser",
    "vanishing gradients": "numerics/gradient_flow",
    "gpt2": "networks/gpt2",
    "gradcheck": "foundations/verification",
    "all-reduce": "parallel/collectives",
    "cheat sheet": "reference/card",
    "lectures": "reference/lectures",
    "slides": "reference/lectures",
}

# Questions in a reader's own words, some of which the page does not have.
QUESTIONS = {
    "rmsnorm backward formula": "operations/rms_norm",
    "why divide by sqrt d_k": "attention/scaled_dot_product",
    "6ND": "cost/tally",
    "how much memory do I need to train 7B": "cost/memory",
    "triton race condition": "reference/compiled_kernels",
    "softmax derivative": "operations/softmax",
    "embedding gradient": "operations/embeddings",
    "how does backprop work in attention": "foundations/thirty_minutes",
    "gradient of layernorm gamma": "operations/layer_norm",
    "why is backward twice the forward": "cost/ratio",
    "derivative of cross entropy with respect to logits": "operations/cross_entropy",
    "gradient of matrix multiplication": "operations/linear",
    "vocab parallel cross entropy": "parallel/tensor",
    "how many flops per token": "cost/tally",
    "does my model fit on 80GB": "cost/calculator",
    "how long will training take": "cost/time",
    "what does flash attention save for backward": "attention/flash",
    "loss is NaN in fp16": "numerics/precision",
    "adam update formula": "numerics/optimiser",
    "zero stage 3 memory": "parallel/data",
    "pipeline bubble fraction": "parallel/pipelines",
    "test my triton kernel without a gpu": "reference/compiled_kernels",
    "my custom autograd function is wrong": "reference/check_your_own",
    "repeat_kv gradient": "attention/grouped_query",
    "tied embeddings lm head gradient": "operations/output_head",
    "gelu tanh approximation derivative": "operations/activations",
    "variable used twice sum of gradients": "foundations/chain_rule",
    "rotary embedding backward": "operations/rope",
    "dropout backward scale mask": "operations/residual_stream",
    "logit softcapping gradient": "attention/variants",
    "activation checkpointing cost": "numerics/recomputation",
    "famous gradient bugs": "claims/bugs",
    "price of a training run": "cost/calculator",
    "jvp vs vjp": "foundations/chain_rule",
    "swiglu hidden size 8/3": "operations/feed_forward",
    "allreduce backward megatron f and g": "parallel/tensor",
    "clip_grad_norm derivative": "numerics/clipping",
    "difference between batch mean and token mean loss": "numerics/averaging",
    "attention backward dQ dK dV": "attention/scaled_dot_product",
    "is backward always 2x forward": "cost/ratio",
    "sigmoid derivative": "operations/activations",
    "forward does not accept complex numbers": "reference/check_your_own",
    "no simple relation found": "reference/check_your_own",
    "bias gradient sum over batch": "operations/linear",
}


def results(page, root: str, query: str) -> list[tuple[str, str]]:
    """Address and text of each result."""
    page.goto("about:blank")
    page.goto(f"{root}/search.html?q={query}")
    page.wait_for_selector("#search-results ul.search li a")
    page.wait_for_function("() => document.querySelector('#search-results .search-summary').textContent")
    return page.evaluate(
        "() => [...document.querySelectorAll('#search-results ul.search > li')]"
        ".map(e => [e.querySelector('a').getAttribute('href'), e.innerText])"
    )


ODD = ("softmax qwxyzzy", "qwxyzzy")

# As Search.query does, but without showing the results, because that fetches every page in the list.
FOUND = f"""queries => queries.map(query => {{
  const [text, ...terms] = Search._parseQuery(query);
  return Search._performSearch(text, ...terms).reverse().slice(0, {FIRST}).map(([doc, , anchor]) => doc + anchor);
}})"""


@pytest.fixture(scope="module")
def found(window, address) -> dict[str, list[str]]:
    """The first results of every query, in their order."""
    window.open(f"{address}/search.html")
    window.page.wait_for_function("() => Search.hasIndex()")
    queries = [*QUERIES, *QUESTIONS, *ODD]
    first = window.page.evaluate(FOUND, queries)
    window.leave()
    return dict(zip(queries, first, strict=True))


@pytest.mark.parametrize(("query", "page"), (QUERIES | QUESTIONS).items())
def test_the_chapter_is_among_the_first_results(found, query, page):
    assert f"chapters/{page}" in found[query]


def test_nearly_all_chapters_are_the_first_result(found):
    wanted = QUERIES | QUESTIONS
    later = [query for query, page in wanted.items() if found[query][0] != f"chapters/{page}"]
    assert len(later) <= len(wanted) // 10, later


def test_a_word_that_no_page_has_does_not_count(found):
    assert found["softmax qwxyzzy"][0] == found["softmax"][0]
    assert found["qwxyzzy"] == []


def test_a_section_is_listed_whose_heading_says_the_query(found):
    assert "chapters/attention/scaled_dot_product#why-divide-by-sqrt-d" in found["why divide by sqrt d_k"]


def test_search_works_from_disk(visit, site):
    shown = [href for href, _ in results(visit.page, f"file://{site}", "LayerNorm gradient")[:FIRST]]
    assert "chapters/operations/layer_norm.html" in shown
    assert visit.complaints == []


def test_a_page_is_listed_once_and_its_excerpt_is_prose(visit, address, found):
    visit.page.goto(f"{address}/search.html?q=softmax")
    visit.page.wait_for_function("() => document.querySelectorAll('#search-results p.context').length >= 10")
    shown = visit.page.evaluate(
        "() => [...document.querySelectorAll('#search-results ul.search > li')]"
        ".map(e => [e.querySelector('a').getAttribute('href'), e.querySelector('p.context')?.innerText || ''])"
    )
    assert visit.complaints == []
    links = [href for href, _ in shown]
    assert [link.replace(".html", "") for link in links[:FIRST]] == found["softmax"]
    assert len(links) == len(set(links))
    for _, excerpt in shown[:10]:
        assert not re.search(r"\\[a-z]+|\$|[Ss]how the |[Hh]ide the |derive\(|import ", excerpt), excerpt


def test_a_function_is_found_by_its_full_name(visit, address):
    shown = [href for href, _ in results(visit.page, address, "backpass.verify.check")[:FIRST]]
    assert any("#backpass.verify.check" in href for href in shown)


def test_the_words_of_a_page_are_a_list(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# No header\n")
    assert words(page) == []
    page.write_text("---\nsearch: [rope, rotary embedding]\n---\n# Title\n")
    assert words(page) == ["rope", "rotary embedding"]
    page.write_text("---\nsearch: rope\n---\n# Title\n")
    with pytest.raises(ExtensionError, match="search: expected a list of words; got 'rope'"):
        words(page)
