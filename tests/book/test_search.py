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


# As Search.query does, but without showing the results, because that fetches every page in the list.
FOUND = f"""queries => queries.map(query => {{
  const [text, ...terms] = Search._parseQuery(query);
  return Search._performSearch(text, ...terms).reverse().slice(0, {FIRST}).map(([doc]) => doc);
}})"""


@pytest.fixture(scope="module")
def found(window, address) -> dict[str, list[str]]:
    """The first results of every query, in their order."""
    window.open(f"{address}/search.html")
    window.page.wait_for_function("() => Search.hasIndex()")
    first = window.page.evaluate(FOUND, [*QUERIES])
    window.leave()
    return dict(zip(QUERIES, first, strict=True))


@pytest.mark.parametrize("query", QUERIES)
def test_the_chapter_is_among_the_first_results(found, query):
    assert f"chapters/{QUERIES[query]}" in found[query]


def test_search_works_from_disk(visit, site):
    shown = [href for href, _ in results(visit.page, f"file://{site}", "LayerNorm gradient")[:FIRST]]
    assert "chapters/operations/layer_norm.html" in shown


def test_a_page_is_listed_once_and_its_excerpt_is_prose(visit, address, found):
    visit.page.goto(f"{address}/search.html?q=softmax")
    visit.page.wait_for_function("() => document.querySelectorAll('#search-results p.context').length >= 10")
    shown = visit.page.evaluate(
        "() => [...document.querySelectorAll('#search-results ul.search > li')]"
        ".map(e => [e.querySelector('a').getAttribute('href'), e.querySelector('p.context')?.innerText || ''])"
    )
    assert visit.complaints == []
    links = [href for href, _ in shown]
    assert [link.removesuffix(".html") for link in links[:FIRST]] == found["softmax"]
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
