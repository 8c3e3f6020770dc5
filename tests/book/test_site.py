"""Every page of the built site, in Chromium: typeset, accessible, complete, and dependent on no other site."""

from __future__ import annotations

import json
import re
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from backpass_site import STEPPER, announce_steps
from build import chapters, is_notebook, read_notebook

import proofs

from .conftest import BOOK, SETTLED, WIDE, Visit

PAGES = [*chapters(BOOK), "search", "genindex", "404"]  # index.html only leads to the first
NOTEBOOKS = [name for name in chapters(BOOK) if is_notebook(BOOK / f"{name}.md")]


RAW = re.compile(r"\$|\\\(|\\\[|\\begin|\\frac|\\bar")
VOID = ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr")

RAW_MATHEMATICS = r"""() => {
  const walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node.parentElement.closest('pre, code, script, style, math')) continue;
    if (/\$|\\\(|\\\[|\\begin|\\frac|\\bar/.test(node.data)) found.push(node.data.trim().slice(0, 80));
  }
  return found;
}"""

UNTYPESET = """() => [...document.querySelectorAll('.math')].filter(
  e => !e.querySelector('math') && e.textContent.trim()
).map(e => e.textContent.slice(0, 80))"""

# Wider than a box that neither scrolls nor lets it be seen.
CLIPPED = """() => [...document.querySelectorAll('math, svg[role=img], main img, main table')].filter(e => {
  if (!e.checkVisibility()) return false;
  const seen = e.getBoundingClientRect();
  if (!seen.width) return false;
  for (let box = e.parentElement; box && box.tagName !== 'BODY'; box = box.parentElement) {
    const overflow = getComputedStyle(box).overflowX;
    if (overflow === 'auto' || overflow === 'scroll') return false;
    const edge = box.getBoundingClientRect();
    if (overflow !== 'visible' && (seen.right > edge.right + 2 || seen.left < edge.left - 2)) return true;
  }
  return seen.right > document.documentElement.clientWidth + 2 || seen.left < -2;
}).map(e => e.outerHTML.slice(0, 120))"""

# Scrolls, with no shade that says so.
UNMARKED = """() => [...document.querySelectorAll('.figure, .backpass-scroll, div.math')].filter(
  e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).backgroundImage === 'none'
).map(e => e.outerHTML.slice(0, 120))"""

NAMELESS = """() => [
  ...[...document.querySelectorAll('main .figure')].filter(e => !e.closest('figure')?.querySelector('figcaption'))
    .map(e => ['', e.outerHTML]),
  ...[...document.images].filter(e => !e.closest('.navbar-brand')).map(e => [e.alt, e.outerHTML]),
  ...[...document.querySelectorAll('main svg')].filter(e => !e.closest('[aria-hidden=true], a, button'))
    .map(e => [e.getAttribute('aria-label') || e.querySelector('title')?.textContent || '', e.outerHTML]),
].filter(([alt]) => alt.trim().length < 4 || /[0-9a-f]{16}|[.](png|svg|jpe?g)$/.test(alt)).map(e => e[1].slice(0, 120))"""


# Reaches over the edge of the paper, which the browser can mend by setting the page smaller by up to a quarter; or is
# hidden by a box that paper cannot scroll.
CUT = """paper => [...document.querySelectorAll('main :is(pre, table, svg[role=img], math)')].filter(e => {
  if (!e.checkVisibility()) return false;
  const seen = e.getBoundingClientRect();
  if (seen.right > paper * 1.25) return true;
  if (e.tagName === 'PRE' && getComputedStyle(e).overflowX !== 'visible' && e.scrollWidth > e.clientWidth + 2) return true;
  for (let box = e.parentElement; box && box.tagName !== 'MAIN'; box = box.parentElement) {
    const {overflowX, display} = getComputedStyle(box);
    if (overflowX === 'visible' || display === 'inline') continue;
    if (seen.right > box.getBoundingClientRect().right + 2) return true;
  }
  return false;
}).map(e => e.outerHTML.slice(0, 120))"""
PAPER = 718  # pixels: A4 less two margins of a centimetre
WITHOUT_COLOURS = {"color-contrast": {"enabled": False}}

MARK_SHOWN = """() => {
  for (const e of document.querySelectorAll('body *')) if (e.checkVisibility()) e.dataset.shown = '';
}"""

# Marks what was not shown before and, of the elements whose text has the same colour, size, weight and backgrounds, and so
# the same contrast, one.
MARK_LOOKS = """() => {
  const grounds = new Map([[document, '']]);
  const ground = e => {
    if (!grounds.has(e)) {
      const {backgroundColor, backgroundImage, opacity} = getComputedStyle(e);
      const own = backgroundColor === 'rgba(0, 0, 0, 0)' ? '' : backgroundColor;
      grounds.set(e, [ground(e.parentNode), own, backgroundImage === 'none' ? '' : backgroundImage,
                      opacity === '1' ? '' : opacity].join('/'));
    }
    return grounds.get(e);
  };
  const seen = new Set();
  for (const e of document.querySelectorAll('body *')) {
    if (e.checkVisibility() && !('shown' in e.dataset)) e.dataset.looks = '';
    if (![...e.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim())) continue;
    if (!e.checkVisibility({visibilityProperty: true})) continue;
    const {color, fill, fontSize, fontWeight, textShadow} = getComputedStyle(e);
    const looks = [e.tagName, color, fill, fontSize, fontWeight, textShadow, ground(e)].join('|');
    if (!seen.has(looks)) e.dataset.looks = '';
    seen.add(looks);
  }
}"""


class Links(HTMLParser):
    """The addresses a page refers to, what it loads, the places in it that can be referred to, and mathematics in its text
    that was not typeset."""

    LITERAL = ("pre", "code", "script", "style", "title", "math")

    def __init__(self, text: str):
        super().__init__()
        self.addresses, self.loaded, self.places, self.raw = [], [], set(), []
        self._open: list[tuple[str, bool]] = []
        self._literal = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list) -> None:
        given = dict(attributes)
        self.places.update(filter(None, (given.get("id"), given.get("name"))))
        for key in ("href", "src"):
            if given.get(key) and tag != "use":
                self.addresses.append(given[key])
                if key == "src" or (tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon")):
                    self.loaded.append(given[key])
        if tag not in VOID:
            literal = tag in self.LITERAL
            self._open.append((tag, literal))
            self._literal += literal

    def handle_endtag(self, tag: str) -> None:
        if any(tag == each for each, _ in self._open):
            while self._open:
                each, literal = self._open.pop()
                self._literal -= literal
                if each == tag:
                    break

    def handle_data(self, data: str) -> None:
        if not self._literal and RAW.search(data):
            self.raw.append(data.strip()[:80])


def found_by_axe(page, context: str | None = None, **options) -> list[str]:
    """What axe finds, one line each. Where it finds nothing wrong it describes no elements, which takes most of its time."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, context=context, options={"resultTypes": ["violations"], **options})
    return [
        f"{finding['id']}: {finding['help']}: {node['html'][:200]}"
        for finding in found.response["violations"]
        for node in finding["nodes"]
    ]


def turn(page, theme: str) -> None:
    page.emulate_media(color_scheme=theme)
    page.wait_for_selector(f"html[data-theme={theme}]")
    page.wait_for_function("() => document.getAnimations().length === 0")  # colours that fade over


def text_of(name: str) -> list:
    """The page's own text; `shared` has what all pages share."""
    path = BOOK / f"{name}.md"
    return [path] if path.exists() else [name]


@cache
def shared() -> list[Path | str]:
    """The code and files with which every page is written."""
    folders = [BOOK / folder for folder in ("ext", "_static", "_templates", "assets/site")]
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]
    own = proofs.imports(*(f"backpass.{name}" for name in ("book", "figures", "text")))
    return [own, BOOK / "_config.yml", *(path for path in files if "__pycache__" not in path.parts)]


@pytest.mark.rotates(share=0.03, of=text_of, checks=shared)
@pytest.mark.parametrize("name", PAGES)
def test_page(visit, address, name):
    """One window, to save time, shows the page as it opens, then on a wide screen, and in dark colours. axe takes nearly
    all of the time."""
    page = opened(visit, address, name)
    check_as_it_opens(visit, address)

    page.set_viewport_size({"width": 1920, "height": 1080})
    page.evaluate(SETTLED)
    turn(page, "light")
    assert found_by_axe(page) == []
    page.evaluate(MARK_SHOWN)
    page.set_viewport_size(WIDE)
    # In dark colours only the colours differ, so one element stands for all that look alike.
    turn(page, "dark")
    page.evaluate(MARK_LOOKS)
    assert found_by_axe(page, context="[data-looks]") == []


@pytest.mark.rotates(share=0.03, of=text_of, checks=shared)
@pytest.mark.parametrize("name", PAGES)
def test_page_is_accessible_on_a_phone(visit, address, name):
    page = opened(visit, address, name)
    check_on_a_phone(page)
    # Colours are the same at every width, and comparing them takes the longest.
    assert found_by_axe(page, rules=WITHOUT_COLOURS) == []
    check_on_paper(page)


def opened(visit: Visit, address: str, name: str):
    """The page in the window, without anything that moves."""
    visit.open(f"{address}/{name}.html")
    visit.page.add_style_tag(content="* { transition: none !important; animation: none !important; }")
    return visit.page


def check_as_it_opens(visit: Visit, address: str) -> None:
    for query in (RAW_MATHEMATICS, UNTYPESET, CLIPPED, NAMELESS):
        assert visit.page.evaluate(query) == []
    assert clipped_in_folds(visit.page) == []
    assert visit.complaints == []
    assert [url for url in visit.requests if not url.startswith((address, "data:"))] == []


# Opens every fold, and waits until what is in them has been measured.
OPEN_FOLDS = """() => new Promise(done => {
  window.folds = [...document.querySelectorAll('.bd-article details:not([open])')];
  document.addEventListener('backpass:measured', done, { once: true });
  setTimeout(done, window.folds.length ? 5000 : 0);
  for (const fold of window.folds) fold.open = true;
})"""


def clipped_in_folds(page) -> list[str]:
    """What is clipped while every fold is open."""
    page.evaluate(OPEN_FOLDS)
    page.evaluate(SETTLED)
    clipped = page.evaluate(CLIPPED)
    page.evaluate("() => { for (const fold of window.folds) fold.open = false; }")
    page.evaluate(SETTLED)
    return clipped


def check_on_a_phone(page) -> None:
    page.set_viewport_size({"width": 360, "height": 800})
    page.evaluate(SETTLED)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate(CLIPPED) == []
    assert page.evaluate(UNMARKED) == []
    assert clipped_in_folds(page) == []


def check_on_paper(page) -> None:
    page.set_viewport_size({"width": PAPER, "height": 1000})
    page.emulate_media(media="print", color_scheme="light")
    page.evaluate(SETTLED)
    assert page.evaluate(CUT, PAPER) == []


def test_a_derivation_can_be_stepped_through(browser, address):
    """By pointing and from the keyboard: the line, the line that it follows from, and what changed."""
    visit = Visit(browser)  # in the shared window the pointer would stay where it is
    page = visit.page
    visit.open(f"{address}/chapters/operations/softmax.html")
    lines = page.locator(".derivation-line[data-above]")
    lines.nth(2).hover()
    (here,) = page.locator(".derivation-here").all()
    (above,) = page.locator(".derivation-above").all()
    assert here.get_attribute("data-above") == above.get_attribute("id")
    assert here.locator(".derivation-come").count() and above.locator(".derivation-gone").count()
    lines.nth(0).locator(".derivation-right").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator(".derivation-here").get_attribute("id") == lines.nth(1).get_attribute("id")
    page.keyboard.press("ArrowUp")
    assert page.locator(".derivation-here").get_attribute("id") == lines.nth(0).get_attribute("id")
    before = lines.nth(0).get_attribute("id")
    page.keyboard.press("Enter")
    assert page.url.endswith(f"#{before}")
    assert visit.complaints == []
    numbers = page.locator(".derivation-number").all_text_contents()  # folded solutions included
    assert numbers == [f"({n})" for n in range(1, len(numbers) + 1)]


# The stops of the tab key in each derivation that do not scroll.
STOPS = """() => [...document.querySelectorAll('.derivation')].map(
  e => e.querySelectorAll('.derivation-right[tabindex="0"]:not(.scrolls), .derivation-number:not([tabindex="-1"])').length
)"""


def test_a_derivation_is_one_stop_of_the_tab_key(visit, address):
    page = visit.page
    visit.open(f"{address}/chapters/operations/softmax.html")
    assert set(page.evaluate(STOPS)) == {1}
    rights = page.locator(".derivation").nth(1).locator(".derivation-right")
    rights.nth(0).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")  # returns to the line that was left
    assert rights.nth(1).evaluate("e => e === document.activeElement")
    assert set(page.evaluate(STOPS)) == {1}
    for _ in range(rights.count()):  # the arrows stay inside
        page.keyboard.press("ArrowDown")
    assert rights.last.evaluate("e => e === document.activeElement")


# What scrolls sideways and cannot be reached with the tab key.
UNREACHED = """() => [...document.querySelectorAll('.bd-article pre, .bd-article div.math, .derivation-right')].filter(
  e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1 && e.tabIndex !== 0
).length"""


def test_what_scrolls_in_a_fold_can_be_reached_once_it_opens(browser, address):
    page = browser.new_context(viewport={"width": 360, "height": 800}).new_page()
    page.goto(f"{address}/chapters/operations/softmax.html")
    page.evaluate(SETTLED)
    assert page.evaluate(UNREACHED) == 0
    reached = "() => document.querySelectorAll('.bd-article [tabindex=\"0\"]').length"
    before = page.evaluate(reached)
    page.evaluate("() => document.querySelectorAll('.bd-article details').forEach(e => (e.open = true))")
    page.evaluate(SETTLED)
    assert page.evaluate(UNREACHED) == 0 and page.evaluate(reached) > before + 5
    page.context.close()


def test_buttons_step_through_the_first_derivation(visit, address):
    page = visit.page
    visit.open(f"{address}/chapters/operations/softmax.html")
    stepper = page.locator(".derivation-stepper")
    assert stepper.count() == 1
    steps = page.locator(".derivation:has(.derivation-stepper) .derivation-line[data-above]")
    previous, following = stepper.locator("button").all()
    assert previous.get_attribute("aria-disabled") == "true"
    for at in range(steps.count()):
        following.click()
        (here,) = page.locator(".derivation-here").all()
        assert here.get_attribute("id") == steps.nth(at).get_attribute("id")
        assert stepper.locator("output").inner_text().startswith(f"{at + 1} of {steps.count()}: ")
    assert following.get_attribute("aria-disabled") == "true"
    previous.focus()
    page.keyboard.press("Enter")
    assert page.locator(".derivation-here").get_attribute("id") == steps.nth(at - 1).get_attribute("id")
    assert visit.complaints == []


@pytest.mark.parametrize(
    ("steps", "above"), [((0, 1, 2, 3), 2), ((0, 1, 1), 1), ((2,), 0), ((0, 0), None), ((), None)]
)
def test_buttons_stand_above_the_first_derivation_with_two_steps_else_with_one(steps, above):
    line = '<div class="derivation-line" data-above="x-1"></div>'
    derivations = [f'<div class="derivation" role="group">\n{line * count}</div>' for count in steps]
    context = {"body": "".join(derivations)}
    announce_steps(None, "page", "page.html", context, None)
    if above is not None:
        derivations[above] = derivations[above].replace("\n", f"\n{STEPPER}", 1)
    assert context["body"] == "".join(derivations)


def test_steps_are_not_announced_without_script(browser, address):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(f"{address}/chapters/operations/softmax.html")
    assert not page.locator(".derivation-stepper").is_visible()
    page.context.close()


SHOWN_STEPS = """() => [...document.querySelectorAll('.backpass-steps')].map(
  figure => [...figure.querySelectorAll('.step')].filter(e => e.checkVisibility()).map(e => e.dataset.value)
)"""


def test_a_figure_that_moves_moves_from_the_keyboard_and_stands_still_in_print(visit, address):
    page = visit.page
    visit.open(f"{address}/chapters/numerics/averaging.html")
    before = page.evaluate(SHOWN_STEPS)[0]
    slider = page.locator(".backpass-steps input").first
    slider.focus()
    page.keyboard.press("ArrowRight")
    after = page.evaluate(SHOWN_STEPS)[0]
    assert len(before) == len(after) == 1 and before != after
    assert page.locator(".backpass-steps output").first.inner_text() == after[0]
    assert slider.get_attribute("aria-valuetext") == after[0]
    page.emulate_media(media="print")
    assert not slider.is_visible() and page.evaluate(SHOWN_STEPS)[0] == after


def test_a_figure_that_moves_stands_still_without_script(browser, address):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(f"{address}/chapters/numerics/averaging.html")
    figure = page.locator(".backpass-steps").first
    assert figure.locator(".step:not([hidden])").count() == 1
    assert not figure.locator("input").is_visible()
    page.context.close()


# Not 404: a server sends it from any address, so its links start at the server's root.
@pytest.mark.rotates(share=0.1, of=text_of, checks=shared)
@pytest.mark.parametrize("name", [name for name in PAGES if name != "404"])
def test_opens_from_disk(visit, site, name):
    """Typeset, whole on a screen, a phone and paper, and without a request to anywhere else."""
    visit.open(f"file://{site}/{name}.html")
    check_as_it_opens(visit, f"file://{site}/")
    check_on_a_phone(visit.page)
    check_on_paper(visit.page)


def test_links_resolve_and_pages_stand_alone(site):
    """Every page: its links lead somewhere, it loads nothing from elsewhere, and no mathematics is left as text."""
    pages = {path: Links(path.read_text()) for path in site.rglob("*.html") if "_static" not in path.parts}
    broken, loaded, raw = [], [], []
    for path, links in pages.items():
        here = path.relative_to(site)
        loaded += [f"{here}: {each}" for each in links.loaded if urlsplit(each).netloc]
        raw += [f"{here}: {each}" for each in links.raw]
        for address in links.addresses:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or (path.name == "404.html" and address.startswith("/")):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            place = unquote(parts.fragment)
            if not target.exists() or (place and target in pages and place not in pages[target].places):
                broken.append(f"{here} → {address}")
    assert broken == []
    assert loaded == []
    assert raw == []


CODE = re.compile(r"<pre>(.*?)</pre>", re.DOTALL)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_all_code_is_on_the_page(site, name):
    """Some of it is folded, none of it is lost, except what is removed by tag."""
    text = (site / f"{name}.html").read_text()
    shown = {unescape(re.sub(r"<[^>]+>", "", each)).strip() for each in CODE.findall(text)}
    for cell in read_notebook(BOOK / f"{name}.md").cells:
        if cell.cell_type == "code" and not {"remove-input", "remove-cell"} & set(
            cell.metadata.get("tags", ())
        ):
            assert cell.source.strip() in shown


def test_page_prints(visit, address, tmp_path):
    name = NOTEBOOKS[0]
    visit.open(f"{address}/{name}.html")
    printed = Path(tmp_path / "page.pdf")
    visit.page.pdf(path=printed)
    assert printed.stat().st_size > 20_000
    visit.page.emulate_media(media="print")
    assert not visit.page.is_visible(".bd-sidebar-primary")
    assert visit.page.evaluate(CLIPPED) == []


def test_the_card_prints_as_one_sheet(visit, address):
    visit.open(f"{address}/chapters/reference/card.html")
    assert not visit.page.is_visible(".backpass-sheet")
    printed = visit.page.pdf(format="A4")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 1
    visit.page.emulate_media(media="print")
    assert visit.page.is_visible(".backpass-sheet") and not visit.page.is_visible(".backpass-card")


def test_index_leads_to_the_first_page(site):
    index = (site / "index.html").read_text()
    assert json.dumps("intro.html")[1:-1] in index
