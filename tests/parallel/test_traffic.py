"""What collectives move: each algorithm computes what the operation computes, and moves what the formula says."""

import numpy as np
import pytest

from backpass import ops
from backpass.parallel import on_threads, traffic

RANKS = [1, 2, 3, 4, 5, 8]
PART = 3  # elements


def parts_of(name, x):
    """Each rank's parts by number, and what the ranks are to hold in the end."""
    r = len(x)
    y, _ = ops.load(name).forward(x)
    if name in ("all_reduce", "broadcast"):
        return [dict(enumerate(own)) for own in x], [dict(enumerate(own)) for own in y]
    if name == "reduce":
        return [dict(enumerate(own)) for own in x], [dict(enumerate(y[0])), *[{}] * (r - 1)]
    if name == "all_gather":
        return [{p: x[p]} for p in range(r)], [dict(enumerate(own)) for own in y]
    if name == "reduce_scatter":
        return [dict(enumerate(own)) for own in x], [{p: y[p]} for p in range(r)]
    if name == "all_to_all":
        held = [{p * r + q: x[p, q] for q in range(r)} for p in range(r)]
        return held, [{p * r + q: y[q, p] for p in range(r)} for q in range(r)]
    return [{p: x[p]} for p in range(r)], [{(p - 1) % r: y[p]} for p in range(r)]  # shift


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", traffic.COLLECTIVES)
def test_a_ring_computes_the_collective_and_moves_what_the_formula_says(name, ranks):
    shape = (ranks, PART) if name in ("all_gather", "shift") else (ranks, ranks, PART)
    x = np.random.default_rng(ranks).normal(size=shape)
    parts, expected = parts_of(name, x)
    rounds = traffic.ring(name, ranks)
    held = traffic.run(rounds, parts)
    for own, wanted in zip(held, expected, strict=True):
        for part, value in wanted.items():
            np.testing.assert_allclose(own[part], value, rtol=1e-13, atol=1e-13)
    elements = x[0].size
    assert traffic.moved(name, elements, ranks) == (len(rounds), traffic.busiest(rounds) * PART)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", ["all_reduce", "broadcast", "reduce"])
def test_a_tree_computes_the_collective_and_moves_what_the_formula_says(name, ranks):
    x = np.random.default_rng(ranks).normal(size=(ranks, PART))
    y, _ = ops.load(name).forward(x)
    rounds = traffic.tree(name, ranks)
    held = traffic.run(rounds, [{0: own} for own in x])
    last = 1 if name == "reduce" else ranks
    for own, value in zip(held[:last], y[:last], strict=True):
        np.testing.assert_allclose(own[0], value, rtol=1e-13, atol=1e-13)
    assert traffic.moved(name, PART, ranks, algorithm="tree") == (len(rounds), traffic.busiest(rounds) * PART)


def test_a_rank_takes_part_in_a_round_once_and_the_ring_sends_to_neighbours():
    for name in traffic.COLLECTIVES:
        for messages in traffic.ring(name, 5):
            for ends in ("sender", "receiver"):
                ranks = [getattr(message, ends) for message in messages]
                assert len({*ranks}) == len(ranks)
            if name != "all_to_all":
                assert all((m.receiver - m.sender) % 5 in (1, 4) for m in messages)
    for name in ("all_reduce", "broadcast", "reduce"):
        for messages in traffic.tree(name, 7):
            ranks = [rank for m in messages for rank in (m.sender, m.receiver)]
            assert len({*ranks}) == len(ranks)


def test_parts_that_do_not_divide_are_filled_up():
    assert traffic.moved("all_reduce", 10, 4) == (6, 18)  # parts of 3
    assert traffic.moved("all_reduce", 10, 4, algorithm="tree") == (4, 20)
    assert traffic.moved("all_reduce", 10, 1) == (0, 0)


def test_a_counted_group_lists_what_a_rank_called():
    def scheme(group):
        counted = traffic.Counted(group)
        x = np.full((group.size, 5), group.rank + 1.0, dtype=np.float32)
        outputs = [
            counted.all_reduce(x),
            counted.all_gather(x),
            counted.reduce_scatter(x),
            counted.all_to_all(x),
            counted.broadcast(x, root=1),
            counted.reduce(x, root=2),
            counted.shift(x, places=-1),
        ]
        counted.shift(x, places=3)  # home again: nothing moves
        own = [
            group.all_reduce(x),
            group.all_gather(x),
            group.reduce_scatter(x),
            group.all_to_all(x),
            group.broadcast(x, root=1),
            group.reduce(x, root=2),
            group.shift(x, places=-1),
        ]
        for a, b in zip(outputs, own, strict=True):
            np.testing.assert_array_equal(a, b)
        return counted.calls, counted.moved(), (counted.rank, counted.size) == (group.rank, group.size)

    for calls, moved, same in on_threads(scheme, 3):
        assert same
        assert [call.name for call in calls] == list(traffic.COLLECTIVES)
        assert {(call.shape, call.width) for call in calls} == {((3, 5), 4)}
        elements = 20 + 30 + 10 + 10 + 15 + 15 + 15
        assert moved == (4 + 2 + 2 + 2 + 4 + 4 + 1, 4 * elements)


def test_other_names_are_rejected():
    with pytest.raises(LookupError, match=r"name: expected a collective that a ring runs, .*; got 'gather'"):
        traffic.ring("gather", 3)
    with pytest.raises(
        LookupError, match="that a tree runs, one of all_reduce, broadcast, reduce; got 'shift'"
    ):
        traffic.tree("shift", 3)
    with pytest.raises(LookupError, match="a tree runs"):
        traffic.moved("all_gather", 3, 3, algorithm="tree")
    with pytest.raises(LookupError, match="a ring runs"):
        traffic.moved("gather", 3, 3)
    with pytest.raises(LookupError, match="algorithm: expected ring or tree; got 'star'"):
        traffic.moved("shift", 3, 3, algorithm="star")
    with pytest.raises(ValueError, match="ranks: expected an integer of at least 1; got 0"):
        traffic.ring("shift", 0)
