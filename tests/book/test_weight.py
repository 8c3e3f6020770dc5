"""Pages are light: what they send, and what they make a browser do."""

from __future__ import annotations

import gzip

import pytest
from backpass_site import PLAIN
from pygments.styles import get_style_by_name
from pygments.token import Text

from .conftest import BOOK, TYPESET, Visit
from .test_site import PAGES

CONFIGURATION = BOOK / "_config.yml"
MOST_BYTES = 1_000_000  # a page and all it needs, compressed
MOST_WORK = 3.0  # of a browser's main thread, until the page is typeset, in times of PAGE
PAGE = "<!doctype html>" + "".join(f"<p>{f'<b>{n}</b> <i>word</i> ' * 50}</p>" for n in range(500))
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


def seconds(browser, show) -> float:
    """Of CPU that a browser's main thread is busy with a page, so that what else the machine does matters little; the
    best of three."""
    found = []
    for _ in range(3):
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        show(page)
        page.evaluate(TYPESET)
        metrics = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
        found.append(metrics["TaskDuration"])
        page.context.close()
    return min(found)


@pytest.mark.parametrize("name", TYPICAL)
def test_a_typical_page_keeps_a_browser_busy_for_a_short_time(browser, address, name):
    """Machines differ, so a plain page of 50,000 elements, shown just before, is the unit."""
    unit = seconds(browser, lambda page: page.set_content(PAGE, wait_until="load"))
    busy = seconds(browser, lambda page: page.goto(f"{address}/{name}.html", wait_until="load"))
    assert busy <= MOST_WORK * unit, f"{busy:.2f} s, where the plain page takes {unit:.2f} s"


@pytest.mark.parametrize("tone", ["light", "dark"])
def test_code_without_an_element_has_the_colour_of_the_text(tone):
    style = get_style_by_name(f"a11y-high-contrast-{tone}")
    assert f"pygments_{tone}_style: a11y-high-contrast-{tone}" in CONFIGURATION.read_text()
    for kind in PLAIN:
        assert style.style_for_token(kind) == style.style_for_token(Text)
