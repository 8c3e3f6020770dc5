"""Pages are light: what they send, and what they make a browser do."""

from __future__ import annotations

import gzip

import pytest

from .conftest import TYPESET, Visit
from .test_site import PAGES

MOST_BYTES = 1_000_000  # a page and all it needs, compressed
MOST_SECONDS = 2.0  # of a browser's main thread, until the page is typeset, beside other tests
TYPICAL = [
    "intro",
    "chapters/operations/softmax",
    "chapters/attention/scaled_dot_product",
    "chapters/networks/gpt2",
]

PACKED = (".woff", ".woff2", ".png")


@pytest.mark.parametrize("name", [name for name in PAGES if name != "404"])
def test_a_page_is_light_on_the_wire(browser, address, name):
    visit = Visit(browser)
    sent: dict[str, int] = {}

    def note(response) -> None:
        body = response.body()
        sent[response.url] = len(body if response.url.endswith(PACKED) else gzip.compress(body, 6))

    visit.page.on("response", note)
    visit.open(f"{address}/{name}.html")
    visit.page.context.close()
    heaviest = sorted(sent.items(), key=lambda item: -item[1])[:5]
    assert sum(sent.values()) <= MOST_BYTES, heaviest
    assert not any(url.split("?")[0].endswith("fontawesome.js") for url in sent)
    assert name == "search" or not any(url.endswith("searchindex.js") for url in sent)


@pytest.mark.parametrize("name", TYPICAL)
def test_a_typical_page_keeps_a_browser_busy_for_a_short_time(browser, address, name):
    """In seconds of CPU, so that what else the machine does matters little; the best of three."""
    seconds = []
    for _ in range(3):
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto(f"{address}/{name}.html", wait_until="load")
        page.evaluate(TYPESET)
        metrics = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
        seconds.append(metrics["TaskDuration"])
        page.context.close()
    assert min(seconds) <= MOST_SECONDS
