"""Formulas are typeset when the book is built, so that a page needs no script to show them."""

from __future__ import annotations

import base64
import html
import io
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import backpass_mathematics
import matplotlib.pyplot as plt
import numpy as np
import pytest
from backpass_mathematics import Typesetter, typeset
from make_font import CHARACTERS
from paper.pages import article

from .test_site import PAGES

MATHEMATICS = re.compile(r"<math\b.*?</math>", re.DOTALL)
# The single letter of an <mi> is shown in italics, which are characters of their own.
ITALIC = {
    **{chr(ord("A") + n): chr(0x1D434 + n) for n in range(26)},
    **{chr(ord("a") + n): chr(0x1D44E + n) for n in range(26)},
    "h": "ℎ",
    **{chr(0x391 + n): chr(0x1D6E2 + n) for n in range(25) if n != 17},
    **{chr(0x3B1 + n): chr(0x1D6FC + n) for n in range(25)},
    **dict(zip("∂ϵϕϖϑϱ", "𝜕𝜖𝜙𝜛𝜗𝜚", strict=True)),
}


@pytest.fixture(scope="module")
def typesetter():
    return Typesetter({"st": r"\stackrel{#1}{#2}"})


@pytest.fixture
def shown(typesetter):
    """A function that typesets HTML, in which every formula can be read."""

    def of(page: str) -> str:
        complaints = []
        result = typeset(page, typesetter, lambda *complaint: complaints.append(complaint))
        assert complaints == []
        return result

    return of


def test_a_formula_becomes_mathml_that_keeps_its_latex(shown):
    page = shown(r'<p class="x">Where \(a &lt; b_1\) holds.</p>')
    assert page.startswith(r'<p class="x">Where <math data-tex="a &lt; b_1">')
    assert page.endswith("</math> holds.</p>")
    root = ElementTree.fromstring(MATHEMATICS.search(page)[0])
    assert "".join(root.itertext()) == "a<b1"


def test_punctuation_stays_with_the_formula_before_it(typesetter):
    page = r'<p>of <span class="math notranslate">\(x\)</span>, so <span class="math notranslate">\(y\)</span> is</p>'
    result = typeset(page, typesetter, lambda *complaint: None)
    before, _, rest = result.partition('<span class="held">')
    assert before == "<p>of " and "</math></span>,</span> so <span" in rest and "held" not in rest


def test_a_displayed_formula_is_a_block(shown):
    assert 'display="block"' in shown(r"<div>\[ \sum_i x_i \]</div>")
    assert 'display="block"' not in shown(r"<p>\(\sum_i x_i\)</p>")


@pytest.mark.parametrize("tag", ["pre", "code", "script", "style", "svg", "textarea"])
def test_code_and_drawings_stay(shown, tag):
    page = rf"<{tag}>print('\(x\)')</{tag}><p title='\(x\)'>text</p><!-- \(x\) -->"
    assert shown(page) == page


def test_the_marks_of_a_step_stay(shown):
    """By the class, the page shows what changed in the line that a reader points at."""
    root = ElementTree.fromstring(shown(r"\(\class{derivation-come}{\frac{x}{2}} + 1\)"))
    (marked,) = root.findall(".//*[@class='derivation-come']")
    assert marked.find(".//mfrac") is not None or marked.tag == "mfrac"


def test_a_formula_that_cannot_be_read_stays_and_is_reported(typesetter):
    complaints = []
    page = r"<p>\(\unknown x\) and \(y\)</p>"
    result = typeset(page, typesetter, lambda *complaint: complaints.append(complaint))
    assert result.startswith(r"<p>\(\unknown x\) and <math")
    ((latex, problem),) = complaints
    assert latex == r"\unknown x" and r"\unknown" in problem


def test_macros_of_the_configuration_are_known_and_no_formula_defines_one_for_the_next(shown, typesetter):
    assert "<mover>" in shown(r"\(\st{1}{Q}\)")
    shown(r"\(\newcommand{\mine}{x} \mine\)")
    ((_, problem),) = typesetter.converted([(r"\mine", False)]).values()
    assert problem


def test_an_underscore_in_text_is_a_character(shown):
    assert "final_ln" in re.sub("<[^>]*>", "", shown(r"\(\text{final_ln} + \text{a\_b}\)"))


def test_brackets_are_tall_only_around_what_is_tall(shown):
    assert 'stretchy="true"' not in shown(r"\(\left( x_i + 1 \right)\)")
    assert shown(r"\(\left( \frac{x}{2} + 1 \right)\)").count('stretchy="true"') == 2
    assert shown(r"\(\displaystyle \left( \sum_i x_i \right)\)").count('stretchy="true"') == 2


def test_a_letter_that_leans_has_room_except_before_its_own_index(shown):
    """Chromium and Safari would let V reach into the sign behind it."""
    assert shown(r"\(V + 1\)").count("lean-4") == 1
    assert shown(r"\(\bar{V} + 1\)").count("lean-4") == 1
    assert "lean" not in shown(r"\(V_i + V^2 + \bar{V}_i + x\)")


def test_the_pdf_finds_the_latex(shown):
    page = shown(r'<article class="bd-article"><p>\(a \text{"x"} &lt; b\)</p><div>\[c\]</div></article>')
    found = article(page, "page")
    assert found.p.get_text() == r'\(a \text{"x"} < b\)'
    assert found.div.get_text() == r"\[c\]"


TWICE = """
import multiprocessing, sys
sys.path.insert(0, {folder!r})
from backpass_mathematics import SharedTypesetter, Typesetter
formulas = [("x^2", False), (r"\\frac{{x}}{{2}}", True), (r"\\nosuch", False)]
shared = SharedTypesetter({{}})
expected = shared.converted(formulas)
forked = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(shared.converted(formulas) != expected))
forked.start()
forked.join()
assert forked.exitcode == 0
assert Typesetter({{}}).converted(formulas) == expected
"""


def test_processes_share_a_typesetter_and_end():
    code = TWICE.format(folder=str(Path(backpass_mathematics.__file__).parent))
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def formulas(site, name: str) -> list[str]:
    return MATHEMATICS.findall((site / f"{name}.html").read_text())


def test_every_page_is_typeset_and_asks_for_no_typesetter(site):
    """Which formulas are left as text is tested with the links (`test_site`)."""
    numbers = {name: len(formulas(site, name)) for name in PAGES}
    assert sum(numbers.values()) > 8_000
    assert all(numbers[name] > 100 for name in ("chapters/operations/softmax", "chapters/attention/heads"))
    for name in PAGES:
        text = (site / f"{name}.html").read_text()
        assert text.count("<math data-tex=") == numbers[name] == len(re.findall(r"<math\b", text))
        assert not re.search(r"mathjax[^\"' ]*\.js", text, re.IGNORECASE), name


def test_the_font_has_every_character_of_every_formula(site):
    index = (site / "_static/claims/index.js").read_text().replace('\\"', '"')
    found = [formula for name in PAGES for formula in formulas(site, name)] + MATHEMATICS.findall(index)
    used = set()
    for formula in set(found):
        for tag, text in re.findall(r"<(\w+)[^>]*>([^<>]+)<", formula):
            text = html.unescape(text)
            used.update(ITALIC.get(text, text) if tag == "mi" else text)
    ranges = [[int(end, 16) for end in each.split("-")] for each in CHARACTERS.split()]
    has = {code for each in ranges for code in range(each[0], each[-1] + 1)}
    assert sorted(character for character in used if ord(character) not in has) == []


def test_a_page_without_scripts_shows_its_formulas(browser, address):
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(f"{address}/chapters/operations/softmax.html")
    assert page.locator("main math").count() > 100
    sizes = [formula.bounding_box() for formula in page.locator("main .derivation math").all()[:20]]
    assert all(size["width"] > 5 and size["height"] > 5 for size in sizes)
    assert "\\(" not in page.locator("main .derivation").first.inner_text()
    page.context.close()


PHANTOM = """() => [...document.querySelectorAll('.derivation-right, div.math, .formula, span.math.wide')].filter(box => {
  if (!box.checkVisibility() || box.scrollWidth <= box.clientWidth + 1) return false;
  const left = box.getBoundingClientRect().left;
  const ends = [...box.querySelectorAll('math')].map(e => e.getBoundingClientRect().right - left);
  return Math.max(...ends) <= box.clientWidth + 1;
}).map(e => e.textContent.slice(0, 60))"""


def test_nothing_scrolls_sideways_that_is_not_cut(visit, address):
    visit.open(f"{address}/chapters/attention/heads.html")
    assert visit.page.evaluate(PHANTOM) == []


TALL = """<style>
  @font-face {{ font-family: drawn; src: url("data:font/woff2;base64,{font}") }}
  math {{ font: 60px drawn; padding: 10px }}
</style>
<math id="{name}"><mo stretchy="true" symmetric="true" form="prefix">{sign}</mo><mspace height="90px" depth="90px"/></math>"""


@pytest.mark.parametrize("signs", ["()", "[]", "{}"])
def test_a_tall_bracket_is_the_mirror_image_of_the_other(browser, signs):
    """Such a bracket is assembled of parts, which have to stand above each other."""
    images = []
    for name, sign in zip(("left", "right"), signs, strict=True):
        page = browser.new_page()
        font = base64.b64encode(backpass_mathematics.FONT.read_bytes()).decode()
        page.set_content(TALL.format(font=font, name=name, sign=sign))
        page.evaluate("document.fonts.load('60px drawn')")
        ink = plt.imread(io.BytesIO(page.locator("math").screenshot()))[..., 0] < 0.5
        page.close()
        columns = np.flatnonzero(ink.any(0))
        images.append(ink[:, columns[0] : columns[-1] + 1])
    left, right = images
    assert left.any(1).sum() > 170 and abs(left.shape[1] - right.shape[1]) <= 1
    width = min(left.shape[1], right.shape[1])
    differ = left[:, :width] != right[:, ::-1][:, :width]
    assert differ.mean() < 0.05
