"""The page of bugs shows each bug, counts them right, and stops where a record is wrong."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from backpass_ledger.bugs import KINDS, every, pages

ROOT = Path(__file__).parents[2]


def rows(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_table_counts_every_bug_once_for_each_tool():
    head, _, *kinds, total = rows(pages.counts())
    assert len(kinds) == len({bug.kind for bug in every()})
    numbers = [[int(cell or 0) for cell in row[1:]] for row in (*kinds, total)]
    assert all(row[0] == sum(row[1:5]) == sum(row[5:]) for row in numbers)
    assert [sum(column) for column in zip(*numbers[:-1], strict=True)] == numbers[-1]
    assert numbers[-1][0] == len(every())
    at = head.index("grad&shy;check: never") - 1
    assert numbers[-1][at] == sum(bug.gradcheck == "never" for bug in every())


def test_the_summary_agrees_with_the_table():
    total = [int(cell or 0) for cell in rows(pages.counts())[-1][1:]]
    check, bugs, usual, varied, telling, gradcheck, *rest = map(int, re.findall(r"\d+", pages.summary()))
    assert [bugs, usual, varied, telling, bugs - check] == total[:5]
    assert [*rest[:2], bugs - gradcheck] == total[5:]
    alone, gradcheck_alone, neither = rest[2:]
    assert check - alone == gradcheck - gradcheck_alone == bugs - alone - gradcheck_alone - neither


def test_every_bug_is_shown_with_its_thread_and_its_code():
    shown = pages.every_bug()
    for bug in every():
        project, number = bug.thread.split("#")
        assert f"(https://github.com/{project}/issues/{number})" in shown
        assert f'data-kind="{bug.kind}" data-caught-by="{pages.caught_by(bug)}"' in shown
        assert pages.source(bug).startswith(f"def {bug.twins.__name__}():\n")
    labels = re.findall(r"^\(([\w-]+)\)=$", shown, re.MULTILINE)
    assert len(labels) == len(set(labels)) == len(every()) + len({bug.kind for bug in every()})
    assert set(re.findall(r"\]\(#(bugs?-[\w-]+)\)", shown)) <= set(labels)


def test_the_page_links_to_bugs_that_exist():
    shown = {pages._label("bug", bug.name) for bug in every()}
    for page in (ROOT / "chapters").glob("*/*.md"):
        assert set(re.findall(r"\(#(bug-[\w-]+)\)", page.read_text())) <= shown


@pytest.mark.parametrize("record", [{"gradcheck": "never"}, {"seen": "varied"}])
def test_a_wrong_record_stops_the_page(monkeypatch, record):
    first = every()[0]
    assert (first.seen, first.gradcheck) == ("usual", "usual")
    monkeypatch.setattr(pages, "every", lambda: (replace(first, **record),))
    with pytest.raises(RuntimeError, match=f"{first.name}: {next(iter(record))}: the record says"):
        pages.every_bug()


def test_what_neither_tool_catches_is_listed_with_the_reason():
    listed = pages.uncaught()
    for bug in every():
        neither = bool(bug.missed) and bug.gradcheck == "never"
        assert (f"(#{pages._label('bug', bug.name)})" in listed) is neither
        assert not neither or pages.escaped(bug.missed) in listed


def test_telling_inputs_are_those_of_bugs_that_need_them():
    listed = pages.telling().splitlines()
    assert len(listed) == sum(bug.seen == "telling" and not bug.missed for bug in every())


def test_kinds_are_unique_and_shown_in_their_order():
    assert len(set(KINDS)) == len(KINDS)
    shown = [kind for kind, _ in pages.by_kind()]
    assert shown == [kind for kind in KINDS if kind in shown]


def test_both_verdicts_are_said_where_gradcheck_does_not_catch_a_bug():
    said = {bug.name: pages._gradcheck(bug) for bug in every()}
    assert "accepts the wrong twin and rejects the corrected one" in said["padding_row"]
    assert (
        "accepts both twins at the usual inputs, and rejects both twins with a row of −∞" in said["logsumexp"]
    )
    assert "catches it at the usual inputs" in said["selu"]
    assert said["layer_norm_of_many_rows"].endswith(
        "and is not run with two normalised axes and 2,001 rows: it would compare matrices of 4,004² elements at most."
    )
