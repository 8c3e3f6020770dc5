"""What schedules promise is counted: their length, their bubble, and what the ranks hold."""

from fractions import Fraction
from itertools import pairwise

import pytest

from backpass.parallel.schedules import Action, gpipe, one_f_one_b, scheduled, zero_bubble

SIZES = [(p, m) for p in range(1, 7) for m in range(1, 14)]


def actions(schedule):
    return [timed.action for rank in schedule.ranks for timed in rank]


def schedules(p, m):
    found = [gpipe(p, m), one_f_one_b(p, m), zero_bubble(p, m), gpipe(p, m, chunks=2)]
    if m % p == 0:
        found += [one_f_one_b(p, m, chunks=v) for v in (2, 3)]
    return found


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_nothing_runs_before_what_it_needs(p, m):
    for schedule in schedules(p, m):
        ends = {t.action: t.stop for rank in schedule.ranks for t in rank}
        starts = {t.action: t.start for rank in schedule.ranks for t in rank}
        assert len(ends) == len(actions(schedule))
        for rank, timed in enumerate(schedule.ranks):
            assert all(t.action.stage % p == rank for t in timed)
            assert all(a.stop <= b.start for a, b in pairwise(timed))
        for j in range(m):
            for k in range(schedule.stages):
                came = "I" if Action("I", j, k) in ends else "B"
                if k:
                    assert ends["F", j, k - 1] <= starts["F", j, k]
                    assert ends[came, j, k] <= starts[came, j, k - 1]
                assert ends["F", j, k] <= starts[came, j, k]
                if came == "I":
                    assert ends["I", j, k] <= starts["W", j, k]


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_bubbles(p, m):
    for schedule in (gpipe(p, m), one_f_one_b(p, m)):
        assert schedule.slots == 3 * (m + p - 1)
        assert schedule.bubble() == Fraction(p - 1, m + p - 1)
    assert zero_bubble(p, m).slots == (3 * m + p - 1 if m >= p else 2 * (m + p) - 1)
    for v in (2, 3):
        if m % p == 0:
            assert one_f_one_b(p, m, chunks=v).bubble() == Fraction(p - 1, v * m + p - 1)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_what_a_rank_holds(p, m):
    each = range(p)
    assert [gpipe(p, m).in_flight(r) for r in each] == [m] * p
    assert [one_f_one_b(p, m).in_flight(r) for r in each] == [min(p - r, m) for r in each]
    assert [zero_bubble(p, m).in_flight(r) for r in each] == [min(p, m)] * p
    if m % p == 0:
        for v in (2, 3):
            held = [one_f_one_b(p, m, chunks=v).in_flight(r) for r in each]
            assert held == [min((v - 1) * p + 2 * (p - r) - 1, v * m) for r in each]


def F(j, k):
    return Action("F", j, k)


def B(j, k):
    return Action("B", j, k)


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        (
            [[F(0, 0), F(1, 0), B(0, 0), B(1, 0)], [F(0, 1), F(1, 1), B(1, 1)]],
            "rank 1, micro-batch 0, stage 1: expected F and B, or F, I, and W; got F",
        ),
        (
            [[F(0, 0), B(0, 0), F(1, 0), B(1, 0)], [F(0, 1), F(1, 1), B(0, 1), B(1, 1)]],
            "wait without end: rank 0 at B of micro-batch 0 on stage 0, rank 1 at F of micro-batch 1",
        ),
        ([[F(0, 0), B(0, 0), F(0, 1)], [F(0, 1), B(0, 1)]], "rank 0 has F of micro-batch 0 on stage 1"),
        ([[F(0, 0), B(0, 0)], []], "the same number of stages on each of 2 ranks; got 1 stages"),
        ([[F(0, 0), B(0, 0), B(0, 0)]], "got B, B, F"),
        ([[F(0, 0), B(0, 0), F(-1, 0), B(-1, 0)]], "micro-batches and stages from 0"),
        ([[B(0, 0), F(0, 0)]], "wait without end: rank 0 at B"),
        ([], "got 0 stages"),
    ],
)
def test_lists_that_cannot_be_worked_through(orders, message):
    with pytest.raises(ValueError, match=message):
        scheduled(orders)


def test_orders_of_something_else():
    with pytest.raises(TypeError, match="orders: expected lists of Action; got str"):
        scheduled([["F"]])


def test_chunks_need_groups_of_micro_batches():
    with pytest.raises(ValueError, match="batches: expected a multiple of 4 with chunks"):
        one_f_one_b(4, 6, chunks=2)
    with pytest.raises(ValueError, match="ranks"):
        gpipe(0, 1)


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ({"F": 1}, ValueError, "lengths: expected one for B; got {'F': 1}"),
        ({"F": 1, "B": 0}, ValueError, r"lengths\[B\]: expected an integer of at least 1; got 0"),
        ({"F": -1, "B": 2}, ValueError, r"lengths\[F\]: expected an integer of at least 1; got -1"),
        ({"F": 1, "B": 1.5}, TypeError, r"lengths\[B\]: expected an integer; got float"),
    ],
)
def test_lengths_that_make_no_sense(lengths, error, message):
    with pytest.raises(error, match=message):
        gpipe(2, 3, lengths=lengths)


def test_twice_as_many_micro_batches_as_ranks_show_how_much_is_held():
    for p in range(1, 6):
        for v in (1, 2, 3):
            of_stage = [1 + k * k % 5 for k in range(p * v)]
            few, many = one_f_one_b(p, 2 * p, chunks=v), one_f_one_b(p, 5 * p, chunks=v)
            assert [few.most(r, of_stage) for r in range(p)] == [many.most(r, of_stage) for r in range(p)]
            assert few.most(0, [1] * p * v) == few.in_flight(0)
