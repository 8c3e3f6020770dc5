"""Every re-created mistake is seen, at the inputs that its record names and at none before them, and no corrected twin
is failed."""

import numpy as np
import pytest

from backpass.bugs import BUGS, calls, elementwise, places, rows
from backpass.verify import check

assert all((calls, elementwise, places, rows))  # which register their bugs
LEVELS = ("usual", "varied", "telling")
NAMED = [bug for bug in BUGS if bug.says]


def report(bug, op, level, explain=False):
    """What check finds in one twin."""
    make = bug.telling if level == "telling" else bug.inputs
    keywords = {**bug.keywords, **(bug.telling_keywords if level == "telling" else {})}
    inputs = make(np.random.default_rng(0))
    with np.errstate(all="ignore"):
        return check(op, *inputs, vary=level == "varied", explain=explain, raises=False, **keywords)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
@pytest.mark.parametrize("level", LEVELS)
def test_the_corrected_twin_passes(bug, level):
    if level == "telling" and bug.telling is None:
        return  # the usual inputs are telling
    if level == "varied" and bug.seen == "usual" and not bug.alarmed:
        return  # varied inputs take a second, and are not what shows the mistake
    found = report(bug, bug.twins()[0], level)
    assert found.passed is (level not in bug.alarmed), str(found)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_mistake_is_seen_where_its_record_says(bug):
    for level in LEVELS:
        if level == "telling" and bug.telling is None:
            break
        if not report(bug, bug.twins()[1], level).passed:
            assert (level, bug.missed) == (bug.seen, ""), "seen earlier than its record says"
            return
    assert bug.missed, "not seen"


@pytest.mark.parametrize("bug", NAMED, ids=lambda bug: bug.name)
def test_the_report_names_the_mistake(bug):
    assert bug.says in str(report(bug, bug.twins()[1], bug.seen, explain=True))


def test_the_records_are_complete():
    assert len({bug.name for bug in BUGS}) == len({bug.thread for bug in BUGS}) == len(BUGS) >= 40
    for bug in BUGS:
        owner, _, rest = bug.thread.partition("/")
        assert owner and rest.partition("#")[2].isdigit(), bug.thread
        assert bug.wrong.endswith(".") and bug.right
        assert bool(bug.telling) == bool(bug.telling_inputs)
        assert bool(bug.alarm) == bool(bug.alarmed)
