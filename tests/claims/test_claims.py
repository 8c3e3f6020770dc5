"""Every claim: its check supports its verdict, its figures are in its check, and what it refers to exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from backpass_ledger.claims.ledger import TEXTS, by_page, every
from backpass_ledger.claims.pages import sign

ROOT = Path(__file__).parents[2]
CLAIMS = {claim.name: claim for claim in every()}


@pytest.mark.on_pages
@pytest.mark.parametrize("name", CLAIMS)
def test_the_check_supports_the_verdict(name):
    CLAIMS[name].run()


@pytest.mark.parametrize("name", CLAIMS)
def test_every_figure_of_the_text_is_in_its_check(name):
    claim = CLAIMS[name]
    assert not claim.code or not claim.unchecked_figures()


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.stem)
def test_claims_are_numbered_in_the_order_of_the_text(text):
    claims = text.claims()
    assert {claim.name[0] for claim in claims} == {text.letter}
    assert [claim.number for claim in claims] == list(range(1, len(claims) + 1))


def test_letters_and_claims_are_unique():
    assert len({text.letter for text in TEXTS}) == len(TEXTS)
    assert len(CLAIMS) == sum(len(text.claims()) for text in TEXTS)


@pytest.mark.parametrize("page", by_page())
def test_the_chapter_exists(page):
    assert (ROOT / "chapters" / f"{page}.md").is_file()


@cache
def functions(file):
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", [name for name, claim in CLAIMS.items() if claim.shown_by])
def test_the_tests_that_show_a_claim_exist(name):
    for test in CLAIMS[name].shown_by:
        file, _, function = test.partition("::")
        assert function in functions(file)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.stem)
def test_every_part_is_on_the_page_below_its_title(text):
    page = (ROOT / "chapters" / "claims" / f"{text.stem}.md").read_text()
    at = [page.index(f'pages.part("{text.stem}", "{part}")') for part in text.parts]
    assert at == sorted(at)
    headings = [re.findall(r"^## (.+)$", page[:place], re.MULTILINE)[-1] for place in at]
    assert headings == list(text.titles.values())
    modules = {file.stem for file in (ROOT / "src/backpass_ledger/claims" / text.stem).glob("*.py")}
    assert modules - {"__init__"} == set(text.parts)


def test_verdicts_are_shown_with_a_sign():
    assert len({sign(claim.verdict)[0] for claim in CLAIMS.values()}) == len(
        {c.verdict for c in CLAIMS.values()}
    )


# The numbers of two or more digits, or with a decimal point, that each record quotes, as read in its text at that place.
QUOTED = {
    (name, place): numbers.split()
    for name, place, numbers in (
        line.split("\t") for line in (ROOT / "tests/claims/quoted.tsv").read_text().splitlines()[1:]
    )
}


def quoted(says):
    plain = re.sub(r"`[^`]*`", "", re.sub(r"(?<=\d)(?:,|\{,\}|\\,)(?=\d{3}(?!\d))", "", says))
    return re.findall(r"\d+\.\d+|\d{2,}", plain)


def test_the_table_has_every_quoted_number():
    found = {
        (claim.name, claim.where): quoted(claim.says) for claim in CLAIMS.values() if claim.name[0] != "U"
    }
    assert {key: numbers for key, numbers in found.items() if numbers} == QUOTED
