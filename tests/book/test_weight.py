"""Pages are light: what they send, what they make a browser do, and how long they are."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path
from statistics import median
from urllib.parse import unquote, urlsplit

import pytest
from backpass_site import PLAIN
from build import chapters
from pygments.styles import get_style_by_name
from pygments.token import Text

from .conftest import BOOK, SETTLED, WIDE, Visit
from .test_site import PAGES, Links, shared, text_of

CONFIGURATION = BOOK / "_config.yml"
MOST_BYTES = 500_000  # a page and all it needs, compressed
MOST_WORK = 1.5  # of a browser's main thread, until the page is laid out, in times of PAGE
MOST_SHIFT = 0.01  # of what a reader sees, while a page loads: the browser's cumulative layout shift
PAGE = "<!doctype html>" + "".join(f"<p>{f'<b>{n}</b> <i>word</i> ' * 50}</p>" for n in range(500))
TYPICAL = [
    "intro",
    "chapters/operations/softmax",
    "chapters/attention/scaled_dot_product",
    "chapters/networks/gpt2",
    "chapters/claims/gradient_flow_post",
    "chapters/claims/ledger",
    "chapters/reference/api",
]
# The pages that moved most when formulas were typeset in the browser.
MOVED = ["chapters/reference/card", "chapters/attention/linear_time", "chapters/operations/softmax"]

LOOKED_UP = {
    "chapters/reference/api",
    "chapters/reference/api_checks",
    "chapters/claims/bugs",
}  # not read through

ALSO = ("_static/basic.css",)  # a style sheet imports it
PACKED = (".woff", ".woff2", ".png")


READ = [name for name in chapters(BOOK) if name not in LOOKED_UP]
ON_THE_WIRE = [name for name in PAGES if name != "404"]


@cache
def packed(path: Path) -> int:
    """The bytes of a file on the wire."""
    data = path.read_bytes()
    return len(data if path.suffix in PACKED else gzip.compress(data, 6))


def named(site: Path, name: str) -> dict[str, int]:
    """The bytes of a page and of each file that it names or may load later, by their paths in the site."""
    page = site / f"{name}.html"
    addresses = [
        urlsplit(each).path for each in Links(page.read_text()).loaded if not each.startswith("data:")
    ]
    files = {
        page,
        *(site / path for path in ALSO),
        *((page.parent / unquote(address)).resolve() for address in addresses),
    }
    return {str(file.relative_to(site)): packed(file) for file in files}


def test_every_page_is_light_on_the_wire(site):
    for name in ON_THE_WIRE:
        sent = named(site, name)
        heaviest = sorted(sent.items(), key=lambda item: -item[1])[:5]
        assert sum(sent.values()) <= MOST_BYTES, (name, heaviest)
        assert not any(path.endswith("fontawesome.js") for path in sent)
        assert name == "search" or "searchindex.js" not in sent


@pytest.mark.rotates(share=0.03, of=text_of, checks=shared)
@pytest.mark.parametrize("name", ON_THE_WIRE)
def test_a_browser_loads_what_a_page_names_and_no_font(browser, site, address, name):
    """The bytes counted above are therefore the bytes sent. The window is new, so nothing is cached."""
    visit = Visit(browser)
    visit.open(f"{address}/{name}.html")
    sent = {
        unquote(urlsplit(url).path).removeprefix("/") for url in visit.requests if url.startswith(address)
    }
    visit.page.context.close()
    assert sent <= {*named(site, name), "favicon.ico"}


def seconds(browser, show) -> float:
    """Of CPU that a browser's main thread is busy with a page, so that what else the machine does matters little."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    show(page)
    page.evaluate(SETTLED)
    metrics = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    page.context.close()
    return metrics["TaskDuration"]


@pytest.mark.rotates(share=0.25, of=text_of, checks=shared)
@pytest.mark.parametrize("name", TYPICAL)
def test_a_typical_page_keeps_a_browser_busy_for_a_short_time(browser, address, name):
    """Machines differ, so a plain page of 50,000 elements, shown just before, is the unit. What else runs only adds to
    both, so the shortest times are compared."""
    units, found = [], []
    for _ in range(6):
        units.append(seconds(browser, lambda page: page.set_content(PAGE, wait_until="load")))
        found.append(seconds(browser, lambda page: page.goto(f"{address}/{name}.html", wait_until="load")))
        unit, busy = min(units), min(found)
        if len(found) > 1 and busy <= MOST_WORK * unit:
            return
    pytest.fail(f"{busy:.2f} s, where the plain page takes {unit:.2f} s")


NOTE_SHIFTS = """
  window.shifts = [];
  new PerformanceObserver(list => {
    for (const {value, hadRecentInput, sources} of list.getEntries()) {
      if (!hadRecentInput) window.shifts.push([value, sources[0]?.node?.textContent?.slice(0, 60)]);
    }
  }).observe({type: 'layout-shift', buffered: true});
"""


@pytest.mark.rotates(share=0.25, of=text_of, checks=shared)
@pytest.mark.parametrize("name", MOVED)
def test_a_page_stays_in_place_while_it_loads(browser, address, name):
    """A busy machine may paint a part of a page before the rest arrives, so one quiet showing of three is enough."""
    for _ in range(3):
        page = browser.new_context(viewport=WIDE).new_page()
        page.add_init_script(NOTE_SHIFTS)
        page.goto(f"{address}/{name}.html", wait_until="load")
        page.evaluate(SETTLED)
        shifts = page.evaluate("window.shifts")
        page.context.close()
        if sum(value for value, _ in shifts) <= MOST_SHIFT:
            return
    pytest.fail(str(shifts))


SCREEN = 710  # pixels of a page that a laptop shows
HEIGHTS = """() => {
  const seen = e => e.checkVisibility({visibilityProperty: true}) && !e.closest('.toggle-hidden, .output:is(.stream, .text_plain)');
  const code = [...document.querySelectorAll('.bd-article div.highlight')].filter(seen);
  return [document.documentElement.scrollHeight, code.reduce((sum, e) => sum + e.offsetHeight, 0)];
}"""


def heights(visit, address, name: str) -> tuple[float, float]:
    """The heights of a page and of its code as it opens, at 1280 pixels: with its folds closed."""
    visit.open(f"{address}/{name}.html")
    height, code = visit.page.evaluate(HEIGHTS)
    return height, code


@pytest.mark.rotates(share=0.05, of=text_of, checks=shared)
@pytest.mark.parametrize("name", READ)
def test_a_page_is_short(visit, address, name):
    height, _ = heights(visit, address, name)
    assert height <= 35 * SCREEN


@pytest.mark.rotates(share=0.1, of=lambda: [BOOK / "ext" / "backpass_folds.py"], checks=shared)
def test_most_pages_are_shorter_and_mostly_not_code(visit, address):
    found = [heights(visit, address, name) for name in READ]
    assert median(height for height, _ in found) <= 20 * SCREEN
    assert sum(code for _, code in found) <= sum(height for height, _ in found) / 4


@pytest.mark.parametrize("tone", ["light", "dark"])
def test_code_without_an_element_has_the_colour_of_the_text(tone):
    style = get_style_by_name(f"a11y-high-contrast-{tone}")
    assert f"pygments_{tone}_style: a11y-high-contrast-{tone}" in CONFIGURATION.read_text()
    for kind in PLAIN:
        assert style.style_for_token(kind) == style.style_for_token(Text)
