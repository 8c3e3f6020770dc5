"""Every re-created mistake is seen by check and by gradcheck at the inputs that its record names and at none before
them, and check fails no corrected twin. The page of bugs shows the recorded verdicts."""

import re

import pytest

import proofs
import recorded as tests
from backpass.recorded import findings
from backpass_ledger.bugs import KINDS, every
from backpass_ledger.bugs.running import LEVELS, checked, faults, levels, recorded, run

BUGS = every()
CHECKED_BY = proofs.imports("backpass.verify", "backpass_ledger.bugs.running")


@pytest.mark.rotates(share=0.1, of=lambda bug, level: [bug.twins, CHECKED_BY])
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
@pytest.mark.parametrize("level", LEVELS)
def test_the_corrected_twin_passes(bug, level):
    if level not in levels(bug):
        return  # the usual inputs are telling
    if level == "varied" and bug.seen == "usual" and not bug.alarmed and not bug.missed:
        return  # varied inputs take a second, and are not what shows the mistake
    found = checked(bug, bug.twins()[0], level)
    assert found.passed is (level not in bug.alarmed), str(found)


@pytest.mark.rotates(share=0.1, of=lambda bug: [bug.twins, CHECKED_BY])
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_tools_find_what_the_record_says(bug):
    found = run(bug)
    assert not faults(bug, found)
    tests.entry("bugs", bug.name, found)
    shown = recorded(bug)
    assert without_numbers(found) == without_numbers(shown), "`make records` writes the results"


def without_numbers(found):
    """The last digits of a diagnosis differ between machines, so only the sign and the first digit of a number count, and
    the size if the number is not a rounding error."""
    return re.sub(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", lambda number: f"{float(number[0]):.0e}", str(found))


def test_every_bug_is_recorded():
    assert sorted(findings.load("bugs").entries) == sorted(bug.name for bug in BUGS)


def test_the_records_are_complete():
    assert len({bug.name for bug in BUGS}) == len({bug.thread for bug in BUGS}) == len(BUGS) >= 40
    for bug in BUGS:
        owner, _, rest = bug.thread.partition("/")
        assert owner and rest.partition("#")[2].isdigit(), bug.thread
        assert bug.wrong.endswith(".") and bug.right
        assert bug.kind in KINDS, bug.name
        assert bool(bug.telling) == bool(bug.telling_inputs)
        assert bool(bug.alarm) == bool(bug.alarmed)
