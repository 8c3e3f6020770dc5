"""Every re-created mistake is seen by check and by gradcheck at the inputs that its record names and at none before
them, and check fails no corrected twin."""

import pytest

from backpass.bugs import KINDS, every
from backpass.bugs.running import LEVELS, checked, gradcheck, levels, seen

BUGS = every()
NAMED = [bug for bug in BUGS if bug.says]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
@pytest.mark.parametrize("level", LEVELS)
def test_the_corrected_twin_passes(bug, level):
    if level not in levels(bug):
        return  # the usual inputs are telling
    if level == "varied" and bug.seen == "usual" and not bug.alarmed and not bug.missed:
        return  # varied inputs take a second, and are not what shows the mistake
    found = checked(bug, bug.twins()[0], level)
    assert found.passed is (level not in bug.alarmed), str(found)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_check_sees_the_mistake_where_its_record_says(bug):
    assert seen(bug) == ("" if bug.missed else bug.seen)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_gradcheck_sees_the_mistake_where_its_record_says(bug):
    assert gradcheck(bug) == bug.gradcheck


@pytest.mark.parametrize("bug", NAMED, ids=lambda bug: bug.name)
def test_the_report_names_the_mistake(bug):
    assert bug.says in str(checked(bug, bug.twins()[1], bug.seen, explain=True))


def test_the_records_are_complete():
    assert len({bug.name for bug in BUGS}) == len({bug.thread for bug in BUGS}) == len(BUGS) >= 40
    for bug in BUGS:
        owner, _, rest = bug.thread.partition("/")
        assert owner and rest.partition("#")[2].isdigit(), bug.thread
        assert bug.wrong.endswith(".") and bug.right
        assert bug.kind in KINDS, bug.name
        assert bool(bug.telling) == bool(bug.telling_inputs)
        assert bool(bug.alarm) == bool(bug.alarmed)
