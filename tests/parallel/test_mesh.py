"""Groups within a group: by colour, and along the axes of a mesh."""

import threading

import numpy as np
import pytest

from backpass.parallel import RankError, mesh, on_processes, on_threads, traffic

RUNS = [on_threads, on_processes]


@pytest.fixture(params=RUNS, ids=[run.__name__ for run in RUNS])
def run(request):
    if request.param is on_processes:
        pytest.importorskip("torch.distributed")
    return request.param


def held(group):
    """The numbers of the ranks of the whole that are in the group."""

    def ranks(part):
        return part.all_gather(np.asarray(float(group.rank))).tolist()

    return ranks


def test_ranks_of_one_colour_are_a_group(run):
    def scheme(group):
        part = group.split(group.rank % 2 - 7)
        return held(group)(part), part.rank, part.size

    assert run(scheme, 5) == [
        ([0, 2, 4], 0, 3),
        ([1, 3], 0, 2),
        ([0, 2, 4], 1, 3),
        ([1, 3], 1, 2),
        ([0, 2, 4], 2, 3),
    ]


def test_groups_split_again_and_are_apart(run):
    def scheme(group):
        half = group.split(group.rank // 2)
        one, same = half.split(half.rank), half.split(0)
        again = group.split(group.rank // 2)  # the same ranks, another group
        return [held(group)(each) for each in (half, one, same, again, group)]

    every = [0, 1, 2, 3]
    assert run(scheme, 4) == [
        [pair, [rank], pair, pair, every]
        for rank, pair in zip(every, [[0, 1], [0, 1], [2, 3], [2, 3]], strict=True)
    ]


def test_collectives_within_a_part_sum_over_the_part_only(run):
    def scheme(group):
        part = group.split(group.rank // 2)
        x = np.array([1.0, 10.0]) * 10.0 ** (2 * group.rank)
        return [
            part.all_reduce(x).tolist(),
            part.reduce_scatter(x).tolist(),
            part.broadcast(x, root=1).tolist(),
            part.reduce(x, root=1).tolist(),
            part.shift(x).tolist(),
            part.all_to_all(x).tolist(),
        ]

    for rank, found in enumerate(run(scheme, 4)):
        first = 10.0 ** (4 * (rank // 2))
        a, b = (first * np.array([1.0, 10.0]), 100 * first * np.array([1.0, 10.0]))
        own = rank % 2
        assert found == [
            (a + b).tolist(),
            (a + b)[own].tolist(),
            b.tolist(),
            (a + b).tolist() if own else [0, 0],
            (a if own else b).tolist(),
            [a[own], b[own]],
        ]


def test_a_mesh_has_the_last_axis_vary_fastest(run):
    def scheme(group):
        axes = mesh(group, data=2, pipeline=1, tensor=3)
        return [(name, part.rank, held(group)(part)) for name, part in axes.items()]

    for rank, found in enumerate(run(scheme, 6)):
        row, column = divmod(rank, 3)
        assert found == [
            ("data", row, [column, column + 3]),
            ("pipeline", 0, [rank]),
            ("tensor", column, [3 * row, 3 * row + 1, 3 * row + 2]),
        ]


def test_a_part_that_is_finished_does_not_end_another_one():
    late = threading.Event()

    def scheme(group):
        part = group.split(group.rank // 2)
        if group.rank < 2:
            late.set()
            return part.all_reduce(np.ones(1)).item()
        total = [part.all_reduce(np.full(1, float(i))).item() for i in range(20)]
        return late.is_set(), total

    assert on_threads(scheme, 4) == [2, 2, *[(True, [2.0 * i for i in range(20)])] * 2]


@pytest.mark.parametrize("where", ["the part", "the whole"])
def test_a_rank_that_fails_ends_the_parts_that_it_is_in(run, where):
    def scheme(group):
        part = group.split(group.rank // 2)
        if group.rank == 3:
            raise ArithmeticError("no memory left")
        return (part if where == "the part" else group).all_reduce(np.ones(2))

    with pytest.raises(RankError, match="no memory left") as caught:
        run(scheme, 4)
    assert caught.value.rank == 3


def test_an_exchange_that_a_part_misses_is_named():
    def scheme(group):
        part = group.split(0)
        return part.all_reduce(np.ones(2)) if group.rank else None

    with pytest.raises(RankError, match=r"rank [12]: called all_reduce, which not every rank did"):
        on_threads(scheme, 3)


def test_an_error_of_a_part_names_its_lowest_rank():
    def scheme(group):
        part = group.split(group.rank // 2)
        return part.all_reduce(np.ones(2 + group.rank // 3))  # rank 3's is longer

    with pytest.raises(RankError, match=r"rank 0 called .*, rank 1 all_reduce") as caught:
        on_threads(scheme, 4)
    assert caught.value.rank == 2


@pytest.mark.parametrize(
    "sizes, kind, message",
    [
        ({"data": 2, "tensor": 2}, ValueError, "is 6, the number of ranks; got data = 2 × tensor = 2"),
        ({}, ValueError, "the number of ranks; got none"),
        ({"data": 0, "tensor": 6}, ValueError, "data: expected an integer of at least 1; got 0"),
        ({"data": 3.0, "tensor": 2}, TypeError, "data: expected an integer; got float"),
    ],
)
def test_a_mesh_that_does_not_fit_is_rejected_by_every_rank(sizes, kind, message):
    def scheme(group):
        with pytest.raises(kind) as caught:
            mesh(group, **sizes)
        return str(caught.value)

    assert all(message in said for said in on_threads(scheme, 6))


def test_a_colour_is_an_integer(run):
    def scheme(group):
        with pytest.raises(TypeError, match="colour: expected an integer; got str"):
            group.split("red")

    run(scheme, 2)


def test_a_counted_group_counts_in_its_parts():
    def scheme(group):
        part = traffic.Counted(group).split(group.rank // 2)
        part.all_reduce(np.ones(4))
        return part.moved()

    assert on_threads(scheme, 4) == [(2, 32)] * 4
