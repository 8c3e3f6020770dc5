"""For a test with several choices, enough cases run for any two values to meet."""

import functools
import itertools

import pytest

import pairwise
import proofs

CHOICES = (range(4), "abc", (None, {}, [1]), (True, False))
TESTED = ("backpass.ops.gelu",)


@pytest.fixture(autouse=True)
def at_a_push(monkeypatch):
    monkeypatch.delenv("BACKPASS_PROVE", raising=False)
    monkeypatch.setenv("BACKPASS_SEED", "a commit")


@pytest.fixture
def pairs(tmp_path, monkeypatch):
    """``pairs`` of tested code that is already proved in a lock of its own."""
    monkeypatch.setattr(proofs, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(proofs, "_products", {})
    proofs.proved.cache_clear()
    pairwise.pairs(*CHOICES, of=TESTED)
    proofs.write(proofs._products, whole=False)
    proofs.proved.cache_clear()
    yield functools.partial(pairwise.pairs, of=TESTED)
    proofs.proved.cache_clear()


def met(cases, meet):
    return {part for case in cases for part in itertools.combinations(enumerate(map(repr, case)), meet)}


@pytest.mark.parametrize("meet", [1, 2, 3])
def test_all_values_meet_in_few_cases(pairs, meet):
    found, every = pairs(*CHOICES, meet=meet, more=0), [*itertools.product(*CHOICES)]
    assert met(found, meet) == met(every, meet)
    assert len(found) <= {1: 4, 2: 16, 3: 50}[meet]
    assert [case for case in every if case in found] == found


def test_some_others_rotate_with_the_commit(pairs, monkeypatch):
    first, fixed = pairs(*CHOICES, more=2), pairs(*CHOICES, more=0)
    assert len(first) == len(fixed) + 2 and all(case in first for case in fixed)
    assert pairs(*CHOICES, more=2) == first
    monkeypatch.setenv("BACKPASS_SEED", "another commit")
    assert pairs(*CHOICES, more=2) != first


def test_all_run_where_everything_is_proved(pairs, monkeypatch):
    monkeypatch.setenv("BACKPASS_PROVE", "all")
    assert pairs(*CHOICES) == [*itertools.product(*CHOICES)]


def test_all_run_where_what_is_tested_has_changed(pairs, monkeypatch):
    every = [*itertools.product(*CHOICES)]
    assert len(pairs(*CHOICES)) < len(every)
    monkeypatch.setattr(proofs, "imports", lambda *names: f"{names} changed")
    assert pairs(*CHOICES) == every
