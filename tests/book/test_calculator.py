"""The page of calculators, in Chromium: its text is Python's numbers, by hand and from the address, and impossible
settings are refused."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from urllib.parse import urlencode

import pytest

from backpass import cost
from backpass.cost import javascript

from .test_site import NEXT_FRAME, WIDE, Visit, serious, turn

PAGE = "chapters/cost/calculator.html"
PHONE = {"width": 360, "height": 800}

# The summary's numbers by row, of setting A or B.
SUMMARY = """column => Object.fromEntries([...document.querySelectorAll('#calculator-summary tbody tr')].map(row =>
  [row.cells[0].textContent, (row.cells[column].querySelector('.calculator-exact') ?? row.cells[column]).textContent]))"""

MEMORY = """[...document.querySelectorAll('#calculator-memory tbody tr')].map(row =>
  [row.cells[0].textContent, row.cells[1].textContent])"""

# What the page says after each of these addresses.
AT_ADDRESSES = f"""async addresses => {{
  const summary = {SUMMARY};
  const found = [];
  for (const address of addresses) {{
    location.hash = address;
    await new Promise((done, fail) => {{
      addEventListener('hashchange', done, {{once: true}});
      setTimeout(() => fail(`no change of the address to ${{address}}`), 5000);
    }});
    found.push(summary(1));
  }}
  return found;
}}"""


@pytest.fixture(scope="module")
def visit(browser, site) -> Visit:
    """A window at the page, from disk."""
    visit = Visit(browser)
    visit.page.set_default_timeout(5000)
    visit.open(f"file://{site}/{PAGE}")
    yield visit
    # A window that goes to another page no longer waits for the icon.
    assert [each for each in visit.complaints if "favicon" not in each] == []
    assert [url for url in visit.requests if not url.startswith((f"file://{site}/", "data:", "blob:"))] == []
    visit.page.context.close()


@pytest.fixture
def page(visit, site):
    visit.page.set_viewport_size(WIDE)
    visit.open("about:blank")  # an address that differs only after # does not load the page again
    visit.open(f"file://{site}/{PAGE}")
    return visit.page


def expected(found, convention, tokens):
    """The summary's numbers as the page writes them."""
    flops, total, model = found.flops(convention), found.total(convention), found.model().total(convention)
    numbers = {**flops, "total": total, "model's FLOPs: nothing computed twice": model}
    numbers |= {"total a token, rounded": (2 * total + tokens) // (2 * tokens)}
    numbers |= {"N, parameters": found.parameters, "6·N·tokens": 6 * found.parameters * tokens}
    ratio = Fraction(flops["backward"] + flops["recomputation"], flops["forward"])
    ten_thousandths = (2 * ratio.numerator * 10**4 + ratio.denominator) // (2 * ratio.denominator)
    texts = {name: f"{number:,}" for name, number in numbers.items()}
    return texts | {
        "backward and recomputation ÷ forward": f"{ten_thousandths // 10**4}.{ten_thousandths % 10**4:04}"
    }


def drawn(rng):
    """An address with random sizes of one of the presets' families, and what it should say."""
    config = cost.configuration(rng.choice([*cost.presets()]))
    convention = rng.choice([*cost.CONVENTIONS])
    batch, sequence = rng.randint(1, 9000), rng.randint(1, 1024)
    options = {"flash": rng.random() < 0.5, "recompute": rng.choice([None, "layers"])}
    found = cost.tally(config, batch, sequence, **options)
    setting = javascript.setting(config) | {"b": batch, "s": sequence} | options
    given = {name: "1" if value in (True, "layers") else value for name, value in setting.items() if value}
    return urlencode({"convention": convention, **given}), expected(found, convention, batch * sequence)


def test_the_text_is_pythons_at_random_settings(page):
    rng = random.Random(7)
    cases = [drawn(rng) for _ in range(80)]
    texts = page.evaluate(AT_ADDRESSES, [address for address, _ in cases])
    for text, (address, numbers) in zip(texts, cases, strict=True):
        assert {name: text[name] for name in numbers} == numbers, address


def test_a_setting_is_typed_kept_in_the_address_and_opened_again(page):
    """With the keyboard only."""
    page.focus("#A-preset")
    page.keyboard.type("qwen3-8b")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    page.focus("#A-b")
    page.keyboard.press("Control+a")
    page.keyboard.type("3")
    page.keyboard.press("Tab")
    page.keyboard.type("1000")
    assert page.evaluate("document.activeElement.id") == "A-s"
    page.focus("#A-recompute")
    page.keyboard.press("Space")
    numbers = expected(cost.tally("qwen3-8b", 3, 1000, flash=True, recompute="layers"), "counted", 3000)
    assert numbers.items() <= page.evaluate(SUMMARY, 1).items()
    assert page.locator("#calculator-says").text_content().count("FLOPs a step of 3 × 1,000 tokens") == 1

    page.wait_for_url(lambda url: "s=1000" in url)
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    assert page.input_value("#A-preset") == "qwen3-8b"
    assert numbers.items() <= page.evaluate(SUMMARY, 1).items()
    assert page.url == address


def test_two_settings_and_their_terms(page, tmp_path):
    page.check("#compare")
    page.select_option("#B-preset", "gpt2-xl")
    page.fill("#B-s", "1000")
    page.uncheck("#B-flash")
    page.select_option("#convention", "products-halved")
    gpt2 = cost.tally("gpt2-xl", 1, 1000)
    assert expected(gpt2, "products-halved", 1000).items() <= page.evaluate(SUMMARY, 2).items()
    llama = cost.tally("llama-3-8b", 1, 8192, flash=True)
    assert expected(llama, "products-halved", 8192).items() <= page.evaluate(SUMMARY, 1).items()
    with page.expect_download() as download:
        page.click("text=Download B's terms as CSV")
    download.value.save_as(tmp_path / "terms.csv")
    assert (tmp_path / "terms.csv").read_text() == gpt2.csv()
    page.click("#calculator-terms > summary")
    row = page.locator("#calculator-terms tr", has_text="query, key, value projection").first
    row.locator("summary").click()
    assert row.locator(".calculator-formula").text_content() == "L × [6·b·h²·s]"
    page.wait_for_url(lambda url: "s=1000" in url)
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    assert page.input_value("#B-preset") in ("gpt2-xl", "gpt2-1.5b")
    assert expected(gpt2, "products-halved", 1000).items() <= page.evaluate(SUMMARY, 2).items()


def test_a_config_is_pasted_or_refused(page):
    config = {
        "model_type": "qwen2",
        "vocab_size": 1000,
        "hidden_size": 96,
        "num_hidden_layers": 5,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "intermediate_size": 200,
    }
    page.click("#calculator-A summary")
    page.fill("#A-config", json.dumps(config))
    page.click("#calculator-A >> text=Read the config")
    found = cost.tally(cost.from_hugging_face(config), 1, 8192, flash=True)
    assert expected(found, "counted", 8192).items() <= page.evaluate(SUMMARY, 1).items()
    page.fill("#A-config", json.dumps(config | {"sliding_window": 4096, "use_sliding_window": True}))
    page.click("#calculator-A >> text=Read the config")
    refusal = page.text_content("#A-read")
    assert "sliding_window: 4096 is not available" in refusal
    assert "use_sliding_window: true is not available" in refusal
    assert page.input_value("#A-h") == "96"  # as before


def test_an_impossible_setting_has_no_result(page):
    page.fill("#A-n_kv", "5")
    assert page.text_content("#A-faults") == "nkv: expected a divisor of nh = 32; got 5"
    assert page.get_attribute("#A-n_kv", "aria-invalid") == "true"
    assert not page.is_visible("#calculator-results")
    page.fill("#A-n_kv", "4")
    assert page.is_visible("#calculator-results")


def test_a_whole_run_and_memory(page):
    assert page.locator("#calculator-run tbody tr").count() == 0
    for name, value in {"tokens": "15e12", "peak": "989.4", "mfu": "38", "hourPrice": "2.5"}.items():
        page.fill(f"#run-{name}", value)
    found = cost.tally("llama-3-8b", 1, 8192, flash=True)
    steps = -(-15 * 10**12 // 8192)
    hours = steps * found.model().total() / (989.4e12 * 0.38) / 3600
    cells = page.locator("#calculator-run tbody td")
    assert cells.nth(0).locator(".calculator-exact").text_content() == f"{steps:,}"
    assert cells.nth(3).text_content() == f"{hours:,.1f}"
    assert cells.nth(4).text_content() == f"{hours * 2.5:,.2f}"
    page.fill("#run-mfu", "140")
    page.fill("#run-power", "much")
    refusal = page.text_content("#run-faults")
    assert "MFU, %: expected a number above 0 and at most 100" in refusal
    assert refusal.endswith("got much")
    assert page.locator("#calculator-run table").count() == 0
    page.select_option("#memory-moments", "bfloat16")
    saved = cost.activations("llama-3-8b", 1, 8192, dtype="bfloat16", chunked=False)
    in_all = found.parameters * (2 + 2 + 4 + 2 * 2) + saved.bytes + saved.constants
    total = page.locator("#calculator-memory tbody tr").last.locator("td")
    assert total.locator(".calculator-exact").text_content() == f"{in_all:,}"
    assert total.locator(".calculator-short").text_content() == f"{in_all / 2**30:,.3f} GiB"
    page.check("#A-recompute")
    lines = dict(page.evaluate(MEMORY))
    layer = saved.by_part()["layers.0"]
    assert lines["saved by one layer, recomputed"] == f"{layer:,}{layer / 2**30:,.3f} GiB"
    assert lines["tables of the rotations"] == f"{saved.constants:,}{saved.constants / 2**20:,.3f} MiB"
    assert "saved by the layers" not in lines
    note = "The saved arrays are those of a step that trains every parameter"
    assert note not in page.text_content("#calculator-memory")
    page.check("#A-frozen")
    assert note in page.text_content("#calculator-memory")


def test_everything_open_is_accessible_and_fits_a_phone(browser, address):
    from axe_playwright_python.sync_playwright import Axe

    visit = Visit(browser)
    visit.open(f"{address}/{PAGE}")  # axe reads style sheets, which a page from disk may not
    page = visit.page
    page.check("#compare")
    page.select_option("#B-preset", "gpt2")
    page.fill("#B-s", "512")
    page.fill("#run-tokens", "1e9")
    for each in ("#calculator-A summary", "#calculator-B summary", "#calculator-terms > summary"):
        page.click(each)
    assert visit.complaints == []
    turn(page, "light")
    assert serious(Axe().run(page, context="#calculator").response) == []
    turn(page, "dark")
    page.fill("#A-n_kv", "5")
    assert serious(Axe().run(page, context="#calculator").response) == []  # with a refusal
    page.set_viewport_size(PHONE)
    page.evaluate(NEXT_FRAME)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.fill("#A-n_kv", "4")
    assert page.is_visible("#calculator-terms-inside table")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    visit.page.context.close()
