"""Each bug is found as its record says, and its mended twin is not accused."""

import pytest

from backpass.claims.bug import KINDS
from backpass.claims.bugs import bugs_of, every_bug

BUGS = {bug.name: bug for bug in every_bug()}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_found_as_recorded(name):
    BUGS[name].run()


@pytest.mark.parametrize("kind", KINDS)
def test_a_bug_stands_among_its_kind(kind):
    assert {bug.kind for bug in bugs_of(kind)} == {kind}


def test_there_are_at_least_sixty_and_each_has_its_own_name():
    assert len(BUGS) == len(list(every_bug())) >= 60
