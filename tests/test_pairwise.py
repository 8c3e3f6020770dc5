"""Of a test with several choices, enough cases run for any two values to meet."""

import itertools

import pytest

from pairwise import pairs

CHOICES = (range(4), "abc", (None, {}, [1]), (True, False))


@pytest.fixture(autouse=True)
def at_a_push(monkeypatch):
    monkeypatch.delenv("BACKPASS_PROVE", raising=False)
    monkeypatch.setenv("BACKPASS_SEED", "a commit")


def met(cases, meet):
    return {part for case in cases for part in itertools.combinations(enumerate(map(repr, case)), meet)}


@pytest.mark.parametrize("meet", [1, 2, 3])
def test_all_values_meet_in_few_cases(meet):
    found, every = pairs(*CHOICES, meet=meet, more=0), [*itertools.product(*CHOICES)]
    assert met(found, meet) == met(every, meet)
    assert len(found) <= {1: 4, 2: 16, 3: 50}[meet]
    assert [case for case in every if case in found] == found


def test_some_others_rotate_with_the_commit(monkeypatch):
    first, fixed = pairs(*CHOICES, more=2), pairs(*CHOICES, more=0)
    assert len(first) == len(fixed) + 2 and all(case in first for case in fixed)
    assert pairs(*CHOICES, more=2) == first
    monkeypatch.setenv("BACKPASS_SEED", "another commit")
    assert pairs(*CHOICES, more=2) != first


def test_all_run_where_everything_is_proved(monkeypatch):
    monkeypatch.setenv("BACKPASS_PROVE", "all")
    assert pairs(*CHOICES) == [*itertools.product(*CHOICES)]
