"""The pages of claims in Chromium: light, folded, searchable from disk, and readable without a script."""

from __future__ import annotations

import gzip
from urllib.parse import quote

import pytest
from build import chapters

from backpass_ledger.claims.ledger import TEXTS, every, text_of
from backpass_ledger.claims.pages import COSTLY
from backpass_ledger.claims.search import nearest, why_none

from .conftest import BOOK
from .test_site import CLIPPED, RAW_MATHEMATICS, UNTYPESET, found_by_axe, opened, turn

MOST = 60_000  # bytes of a page, compressed
MOST_CODE = 60_000  # of the code of a text's checks, which is loaded when a check is opened
PAGES = [name for name in chapters(BOOK) if name.startswith("chapters/claims/")]
INDEX = "chapters/claims/ledger"

# In other words than the claims'.
SENTENCES = [
    "Backprop costs exactly double what a forward costs",
    "With bf16 you don't need to scale the loss, since its range equals that of fp32",
    "Storing a checkpoint every ten layers needs less recomputation than at every layer",
    "Skip connections keep gradients from vanishing",
    "Layer normalization is negligible for the total cost of training",
    "Softmax gradients are especially costly to compute",
    "Adam needs 16 bytes per parameter in mixed precision",
    "the gradient of a matrix product is the incoming gradient times the transposed weight",
    "flash attention never stores the attention matrix and recomputes it in the backward",
    "A larger batch makes clipping more frequent",
]

# On subjects outside the ledger; the last is the nearest of those in tests/claims/test_search.py.
OTHERS = [
    "zyzzyva",
    "Simmer the onions in butter until they are golden, then add the stock",
    "Diffusion models learn to denoise images step by step",
    "Scaling laws predict the loss from the number of parameters and tokens",
]

SHOWN = """() => [...document.querySelectorAll('.ledger-results .claim strong a')].map(e => e.textContent)"""


def shown(page) -> list[str]:
    """The claims that the index shows, once it has answered."""
    page.wait_for_function("document.querySelector('.ledger-results').ariaBusy !== 'true'")
    return page.evaluate(SHOWN)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_claims_is_light(site, name):
    assert len(gzip.compress((site / f"{name}.html").read_bytes(), 9)) <= MOST


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.stem)
def test_the_code_of_a_texts_checks_is_light(site, text):
    assert len(gzip.compress((site / f"_static/claims/{text.stem}.js").read_bytes(), 9)) <= MOST_CODE


def test_the_table_of_counts_fits_a_phone(visit, site):
    page = visit.page
    page.set_viewport_size({"width": 360, "height": 800})
    visit.open(f"file://{site}/{INDEX}.html")
    box = page.locator(".pst-scrollable-table-container").first
    assert box.evaluate("e => e.scrollWidth <= e.clientWidth") and box.locator("th").count() == 8


def test_sections_are_folded_and_a_link_opens_one_with_its_check(visit, site):
    visit.open(f"file://{site}/chapters/claims/twice_note.html")
    page = visit.page
    assert page.locator(".claims-section[open]").count() == 0 < page.locator(".claims-section").count()
    page.evaluate("location.hash = '#w24'")
    page.wait_for_selector("#w24 ~ .claim-check[open] pre")
    assert page.locator(".claims-section[open]").count() == 1
    code = next(claim for claim in every() if claim.name == "W24").code
    assert page.locator("#w24 ~ .claim-check pre").inner_text().strip() == code
    page.wait_for_function("() => document.getElementById('w24').getBoundingClientRect().top < innerHeight")
    assert visit.complaints == []


def test_a_page_that_is_opened_at_a_claim_shows_it(browser, site):
    page = browser.new_page()
    page.goto(f"file://{site}/chapters/claims/twice_note.html#w24")
    page.wait_for_selector("#w24 ~ .claim-check[open] pre")
    top = page.evaluate("document.getElementById('w24').getBoundingClientRect().top")
    assert 0 <= top < page.viewport_size["height"]
    page.close()


def test_open_sections_are_typeset_and_accessible(visit, address):
    page = opened(visit, address, "chapters/claims/twice_note")
    page.evaluate("document.querySelectorAll('.claims-section').forEach(section => { section.open = true; })")
    assert page.evaluate(UNTYPESET) == page.evaluate(RAW_MATHEMATICS) == []
    page.locator(".claim-check summary").first.click()
    page.wait_for_selector(".claim-check pre")
    turn(page, "dark")
    assert found_by_axe(page, context=".claims-section") == []
    page.set_viewport_size({"width": 360, "height": 800})
    page.wait_for_timeout(300)  # wide formulas get a box that scrolls
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate(CLIPPED) == []


def test_paper_shows_every_claim(visit, site):
    visit.open(f"file://{site}/chapters/claims/twice_note.html")
    page = visit.page
    page.emulate_media(media="print")
    claims = page.locator(".claim")
    assert claims.count() == len(TEXTS[4].claims())
    assert all(claim.is_visible() for claim in claims.all())


def test_without_a_script_every_claim_can_be_read(browser, site):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(f"file://{site}/chapters/claims/twice_note.html")
    page.locator(".claims-section summary").first.click()
    assert page.locator(".claim").first.is_visible()
    said = page.locator(".bd-article noscript")
    assert said.is_visible() and "The filters and the code of the checks need JavaScript" in said.inner_text()
    page.goto(f"file://{site}/chapters/claims/bugs.html")
    assert said.is_visible() and "The filter needs JavaScript" in said.inner_text()
    page.goto(f"file://{site}/{INDEX}.html")
    assert "The index needs JavaScript" in page.locator("#ledger-index").inner_text()
    assert page.locator("#ledger-index a").count() == len(TEXTS)
    page.context.close()


def test_the_filter_of_a_text_opens_the_sections_with_what_it_shows(visit, site):
    visit.open(f"file://{site}/chapters/claims/twice_note.html")
    page = visit.page
    page.locator(".claims-filter select").first.select_option("false")
    expected = sum(claim.verdict.key == "false" for claim in TEXTS[4].claims())
    assert page.locator(".claim:visible").count() == expected
    page.locator(".claims-filter select").first.select_option("")
    assert page.locator(".claim:visible").count() == 0


class TestIndex:
    @pytest.fixture
    def page(self, visit, site):
        visit.open(f"file://{site}/{INDEX}.html")
        yield visit.page
        assert visit.complaints == []

    @pytest.mark.parametrize("sentence", SENTENCES)
    def test_finds_what_the_command_finds(self, page, sentence):
        page.locator("#ledger-sentence").fill(sentence)
        assert shown(page)[:3] == [claim.name for _, claim in nearest(sentence, 3)]

    def test_shows_verdict_right_statement_and_chapter(self, page):
        page.locator("#ledger-sentence").fill(SENTENCES[0])
        _, claim = nearest(SENTENCES[0], 1)[0]
        assert shown(page)[0] == claim.name
        first = page.locator(".ledger-results .claim").first
        words = " ".join(first.inner_text().split())
        assert claim.verdict.words in words and text_of(claim).name in words and claim.where in words
        assert "Right:" in words
        links = [link.get_attribute("href") for link in first.locator("a").all()]
        assert links == [f"{text_of(claim).stem}.html#{claim.name.lower()}", f"../{claim.page}.html"]

    def filtered(self, page, keep):
        """The number that the index says, after as many as `keep` accepts were expected."""
        expected = sum(map(keep, every()))
        shown(page)
        assert page.locator(".ledger-form output").inner_text().startswith(f"{expected} of ")
        assert 0 < expected

    def test_filters_by_text_and_section(self, page):
        text = TEXTS[3]
        part = text.parts[1]
        page.get_by_label("text", exact=True).select_option(text.name)
        self.filtered(page, lambda claim: text_of(claim) is text)
        page.get_by_label("section").select_option(text.titles[part])
        names = {claim.name for claim in text.part(part)}
        self.filtered(page, lambda claim: claim.name in names)

    def test_filters_by_verdict_and_topic(self, page):
        page.get_by_label("verdict").select_option("✗ false")
        page.get_by_label("topic").select_option("memory")
        self.filtered(page, lambda claim: (claim.verdict.key, claim.topic) == ("false", "memory"))

    def test_filters_by_harm(self, page):
        page.get_by_label("harm").select_option("what I must change")
        self.filtered(page, lambda claim: claim.harm >= COSTLY)

    def test_filters_by_words(self, page):
        page.get_by_label("words").fill("checkpoint Layer")

        def keep(claim):
            words = f"{claim.name} {claim.where} {claim.says} {claim.truth}".lower()
            return "checkpoint" in words and "layer" in words

        self.filtered(page, keep)

    @pytest.mark.parametrize("sentence", [*OTHERS, "f999", "t0"])
    def test_says_when_nothing_is_near(self, page, sentence):
        page.locator("#ledger-sentence").fill(sentence)
        assert shown(page) == []
        assert page.locator(".ledger-more").is_hidden()
        assert page.locator(".ledger-form output").inner_text() == why_none(sentence)

    @pytest.mark.parametrize("number", ["f435", " #F0435 "])
    def test_finds_a_claim_by_its_number(self, page, number):
        page.locator("#ledger-sentence").fill(number)
        assert shown(page) == ["F435"]

    def test_the_way_back_finds_what_was_asked(self, page, site):
        page.locator("#ledger-sentence").fill(SENTENCES[0])
        page.get_by_label("text", exact=True).select_option(TEXTS[3].name)
        page.get_by_label("section").select_option(label=TEXTS[3].titles["challenges"])
        page.get_by_label("verdict").select_option("✗ false")
        page.get_by_label("words").fill("FLOPs")
        asked = shown(page)
        assert 0 < len(asked) < len(TEXTS[3].part("challenges"))
        page.locator(".ledger-results .claim strong a").first.click()
        page.wait_for_url(f"**/{TEXTS[3].stem}.html#*")
        page.wait_for_selector(
            ".claim-check[open] pre"
        )  # the checks of the open section are a script of their own
        page.go_back()
        page.wait_for_selector(".ledger-results .claim")
        assert shown(page) == asked
        assert page.locator("#ledger-sentence").input_value() == SENTENCES[0]
        assert page.get_by_label("words").input_value() == "FLOPs"
        # The address alone has it too, and an empty form leaves it.
        address = page.url
        page.goto("about:blank")
        page.goto(address)
        assert shown(page) == asked
        page.goto(f"{address.partition('#')[0]}#text=none&verdict={quote('✗ false')}")
        self.filtered(page, lambda claim: claim.verdict.key == "false")
        page.get_by_label("verdict").select_option("all")
        shown(page)
        assert "#" not in page.url

    def test_the_address_of_a_heading_asks_nothing(self, page, site):
        page.goto(f"file://{site}/{INDEX}.html#claims-index")
        assert shown(page) == [] and page.url.endswith("#claims-index")
        page.locator("#ledger-sentence").fill(SENTENCES[0])
        asked = shown(page)
        page.evaluate("location.hash = '#claims-index'")
        assert asked and shown(page) == asked

    def test_shows_more_on_request(self, page):
        assert shown(page) == []
        page.locator(".ledger-more").click()
        first = shown(page)
        page.locator(".ledger-more").click()
        assert first and shown(page)[: len(first)] == first and len(shown(page)) == 2 * len(first)
        assert page.evaluate(UNTYPESET) == page.evaluate(RAW_MATHEMATICS) == []


def test_wide_tables_are_readable_on_a_phone(visit, site):
    page = visit.page
    page.set_viewport_size({"width": 360, "height": 800})
    visit.open(f"file://{site}/{INDEX}.html")
    assert page.locator("table").first.evaluate("table => table.offsetWidth") < 520
    visit.open(f"file://{site}/chapters/claims/gradient_flow_post.html")
    captions = page.locator("caption").all()
    assert captions
    for caption in captions:
        shown = caption.evaluate(
            "caption => { const r = document.createRange(); r.selectNodeContents(caption);"
            " return r.getBoundingClientRect().right; }"
        )
        assert shown <= 360


def test_the_index_is_accessible_in_dark_colours(visit, address):
    """Served, because axe reads the style sheets."""
    page = opened(visit, address, INDEX)
    page.locator("#ledger-sentence").fill(SENTENCES[0])
    assert shown(page)
    turn(page, "dark")
    assert found_by_axe(page, context="#ledger-index") == []
