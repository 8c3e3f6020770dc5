"""What a text's page opens with, its folded sections, and its corrected tables."""

import re

import pytest

from backpass_ledger.claims import pages
from backpass_ledger.claims.evidence import CAVEAT, FALSE, TRUE
from backpass_ledger.claims.ledger import TEXTS, text
from backpass_ledger.claims.pages import COSTLY, MOST, Figure, corrected, figure

STEMS = [found.stem for found in TEXTS]


@pytest.mark.parametrize("stem", STEMS)
def test_the_first_records_are_those_with_the_most_harm(stem):
    claims = text(stem).claims()
    shown = re.findall(r"^1\. \*\*\[(\w+)\]", pages.costly(stem), re.MULTILINE)
    harms = {claim.name: claim.harm for claim in claims}
    assert 0 < len(shown) == min(MOST, sum(harm >= COSTLY for harm in harms.values()))
    assert [harms[name] for name in shown] == sorted(harms.values(), reverse=True)[: len(shown)]


@pytest.mark.parametrize("stem", STEMS)
def test_its_sentence_counts_the_records(stem):
    claims = text(stem).claims()
    first, *_ = pages.costly(stem).splitlines()
    found = [int(number) for number in re.findall(r"\d+", first)]
    costly = sum(claim.harm >= COSTLY for claim in claims)
    true = sum(claim.verdict is TRUE for claim in claims)
    assert found == [len(claims), true, costly, COSTLY, 0, 10, *[MOST] * (costly > MOST)]
    assert "have a harm of 3 or more" in first


@pytest.mark.parametrize("stem", STEMS)
def test_it_says_what_needs_javascript_to_those_without(stem):
    (said,) = re.findall(r"^<p><noscript>(.*)</noscript></p>$", pages.costly(stem), re.MULTILINE)
    assert "JavaScript" in said and f"backpass_ledger/claims/{stem}" in said


@pytest.mark.parametrize("stem", STEMS)
def test_the_first_records_say_what_is_right(stem):
    items = pages.costly(stem).split("\n1. ")[1:]
    claims = {claim.name: claim for claim in text(stem).claims()}
    for item in items:
        claim = claims[re.match(r"\*\*\[(\w+)\]", item)[1]]
        assert (
            claim.says in item and f"**Right:** {claim.truth}" in item and pages.sign(claim.verdict) in item
        )


def test_the_summary_of_a_section_counts_its_verdicts():
    for found in TEXTS:
        for part in found.parts:
            claims = found.part(part)
            records, verdicts = pages.summary(claims).split("record", 1)
            assert int(records.split()[-1]) == len(claims)
            assert sum(map(int, re.findall(r"(\d+) (?=[a-z])", verdicts))) == len(claims)


@pytest.mark.parametrize(
    ("stem", "part", "start"),
    [("thesis", "scores", "§3.1.1 · 16 "), ("thesis", "sequences", "§2.2.1 to §2.2.2 · "), ("twice_note", "product", "15 ")],
)  # fmt: skip
def test_the_summary_begins_with_the_sections_of_the_text(stem, part, start):
    assert pages.summary(text(stem).part(part)).startswith(start)


def test_the_claims_of_a_part_are_read_once_for_each_table(monkeypatch):
    from backpass_ledger.claims.twice_note import example

    first, again = text("twice_note").part("example"), text("twice_note").part("example")
    assert first is not again and all(one is other for one, other in zip(first, again, strict=True))
    row, *rows = example.CLAIMS.strip().splitlines()
    monkeypatch.setattr(example, "CLAIMS", "\n".join([row.replace("caveat", "false "), *rows]))
    monkeypatch.setattr(getattr(example, first[0].name), "__doc__", "What it says.\n\nWhat is right.")
    changed, *others = text("twice_note").part("example")
    assert first[0].verdict is CAVEAT and changed.verdict is FALSE and others == first[1:]


def test_a_part_is_folded_and_names_the_file_of_its_checks():
    part = pages.part("twice_note", "example")
    assert part.startswith('<details class="claims-section" data-checks="twice_note"><summary>')
    assert part.count('<div class="claim"') == len(text("twice_note").part("example"))
    assert "`twice_note/example.py`" in part and part.endswith("</details>")


def test_a_part_whose_check_contradicts_its_verdict_is_not_shown(monkeypatch):
    from backpass_ledger.claims.twice_note import example

    names = [claim.name for claim in text("twice_note").part("example") if claim.verdict is TRUE]
    first = re.search(rf"^{names[0]} +true.*$", example.CLAIMS, re.MULTILINE)[0]
    monkeypatch.setattr(example, "CLAIMS", first.replace("true", "caveat"))
    monkeypatch.setattr(getattr(example, names[0]), "__doc__", "What it says.\n\nWhat is right.")
    for name in [key for key in vars(example) if re.fullmatch(r"[A-Z]\d+", key) and key != names[0]]:
        monkeypatch.delattr(example, name)
    with pytest.raises(RuntimeError, match=f"{names[0]}: WrongVerdict"):
        pages.part("twice_note", "example")


@pytest.mark.parametrize(
    ("printed", "right", "options", "expected"),
    [
        ("1,100", 1099.51, {"to": -2}, Figure("1,100", "1,100", False)),
        ("1,100", 1099.51, {}, Figure("1,100", "1,100", False)),
        ("138", 137.44, {}, Figure("138", "137", True)),
        ("12.0", 12.04, {"shown": 1}, Figure("12.0", "12.0", False)),
        ("12.0", 12.06, {"shown": 2}, Figure("12.0", "12.06", True)),
        ("+3–4", 29.5, {}, Figure("+3–4", "30", True)),
        ("~33", 33.3, {"shown": 1}, Figure("~33", "33.3", False)),
    ],
)
def test_a_printed_figure_is_right_if_the_number_rounds_to_it(printed, right, options, expected):
    assert figure(printed, right, **options) == expected


def test_a_figure_needs_a_number():
    with pytest.raises(ValueError, match="expected a figure with a number; got 'none'"):
        figure("none", 3.0)


OF_VERDICT = {claim.verdict: claim for claim in text("thesis").claims()}


class TestCorrected:
    wrong, right = Figure("9nd", "11nd", True), Figure("3", "3", False)

    def test_marks_what_is_wrong_and_links_to_its_records(self):
        claim = OF_VERDICT[FALSE]
        rows = [("one", [self.wrong, self.right], claim.where)]
        table = corrected("thesis", "A table", ["FLOPs", "bytes"], rows)
        cells = re.findall(r"<td[^>]*>(.*?)</td>", table)
        assert cells[1:5] == ["9nd", "<strong>11nd</strong>", "3", "3"]
        assert f'<a href="#{claim.name.lower()}">{claim.name}</a>' in table
        assert "FLOPs, printed" in table and "bytes, right" in table

    def test_rejects_a_wrong_figure_where_all_records_are_true(self):
        with pytest.raises(ValueError, match="one: a figure is wrong where all claims are true"):
            corrected("thesis", "", ["FLOPs"], [("one", [self.wrong], OF_VERDICT[TRUE].where)])

    def test_rejects_a_place_without_a_record(self):
        with pytest.raises(ValueError, match="expected a place of thesis; got '§9'"):
            corrected("thesis", "", ["FLOPs"], [("one", [self.right], "§9")])

    def test_a_place_has_the_records_below_it(self):
        found = pages.at("thesis", "§3.2")
        assert len(found) > 1 and all(claim.where.startswith("§3.2,") for claim in found)
        assert pages.at("thesis", OF_VERDICT[CAVEAT].where)[-1].verdict is CAVEAT
