"""One scheme, on threads and on processes: the same results, and errors that name the rank."""

import os
import pickle
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from backpass.interpreters import counting
from backpass.parallel import RankError, mesh, on_processes, on_threads

RUNS = [on_threads, on_processes]
RANKS = 3
LONG = 300  # seconds; even a slow machine needs fewer


@pytest.fixture(params=RUNS, ids=[run.__name__ for run in RUNS])
def run(request):
    if request.param is on_processes:
        pytest.importorskip("torch.distributed")
    return request.param


def everything(group, seed):
    """Each collective, on arrays of the rank's own."""
    rng = np.random.default_rng([seed, group.rank])
    x, parts = rng.normal(size=(2, 5)), rng.normal(size=(group.size, 4))
    last = group.size - 1
    return [
        group.all_reduce(x),
        group.all_gather(x),
        group.reduce_scatter(parts),
        group.all_to_all(parts),
        group.broadcast(x),
        group.broadcast(x, root=last),
        group.reduce(x),
        group.reduce(x, root=last),
        *(group.shift(x, places=places) for places in (1, -1, 2, 0, group.size + 1)),
    ]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_threads_and_processes_agree(ranks):
    pytest.importorskip("torch.distributed")
    by_thread, by_process = (run(everything, ranks, 7) for run in RUNS)
    for a, b in zip(by_thread, by_process, strict=True):
        for one, other in zip(a, b, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-14, atol=1e-14)


def test_the_collectives_are_what_their_names_say(run):
    def scheme(group):
        x = np.array([10.0**group.rank])
        parts = 10.0**group.rank * np.arange(1.0, group.size + 1)
        return [
            group.all_reduce(x).item(),
            group.all_gather(x).ravel().tolist(),
            group.reduce_scatter(parts).item(),
            group.all_to_all(parts).tolist(),
            group.broadcast(x, root=1).item(),
            group.reduce(x, root=2).item(),
            group.shift(x).item(),
        ]

    assert run(scheme, RANKS) == [
        [111, [1, 10, 100], 111 * part, [part, 10 * part, 100 * part], 10, 111 * (rank == 2), before]
        for rank, (part, before) in enumerate([(1, 100), (2, 1), (3, 10)])
    ]


def test_inputs_are_not_modified(run):
    def scheme(group):
        x = np.full((group.size, 2), float(group.rank))
        before = x.copy()
        for collective in (
            "all_reduce",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
            "broadcast",
            "reduce",
            "shift",
        ):
            getattr(group, collective)(x)
        return np.array_equal(x, before)

    assert run(scheme, RANKS) == [True] * RANKS


def test_any_array_of_numpy_can_be_sent(run):
    def scheme(group):
        x = np.arange(6.0)[::-2]  # strides below 0
        read_only = np.broadcast_to(np.arange(3.0), (3, 3))
        same = group.shift(x, places=group.size)
        moved = same + 1  # what was received is not part of x
        return group.all_reduce(x), group.all_reduce(read_only), group.all_reduce(x[0]), moved - x

    for summed, wide, scalar, apart in run(scheme, 2):
        np.testing.assert_array_equal(summed, [10, 6, 2])
        np.testing.assert_array_equal(wide, 3 * [[0, 2, 4]])
        assert scalar == 10 and np.all(apart == 1)


def test_a_tensor_that_requires_a_gradient_is_not_sent_in_silence(run):
    torch = pytest.importorskip("torch")
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RankError, match="requires no gradient, because autograd does not reach"):
        run(lambda group: group.all_reduce(x), 2)

    def without_autograd(group):
        with torch.no_grad():
            return group.all_reduce(x)

    assert run(without_autograd, 2)[0].tolist() == [2, 2]


@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_only_floating_point_numbers_are_sent(run, dtype):
    with pytest.raises(RankError, match=f"x: expected floating-point numbers; got {dtype}"):
        run(lambda group: group.all_reduce(np.ones(2, dtype=dtype)), 2)


def test_symbols_pass():
    from backpass.interpreters import symbolic

    x = symbolic.array("x", (2,))
    (y, _) = on_threads(lambda group: group.all_reduce(x), 2)
    assert np.all(y.to_numpy() == 2 * x.to_numpy())


@pytest.mark.parametrize("root", [-1, 2, 1.0, True], ids=str)
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_a_root_that_is_not_a_rank_is_rejected(run, collective, root):
    with pytest.raises(RankError, match="root: expected a rank from 0 to 1; got"):
        run(lambda group: getattr(group, collective)(np.ones(2), root=root), 2)


def test_places_that_are_not_integers_are_rejected(run):
    with pytest.raises(RankError, match="places: expected an integer; got float"):
        run(lambda group: group.shift(np.ones(2), places=2.0), 2)


def test_the_error_can_be_sent_to_another_process():
    error = pickle.loads(pickle.dumps(RankError(1, "no memory")))
    assert (error.rank, str(error)) == (1, "rank 1: no memory")


def test_the_arithmetic_of_all_ranks_is_counted():
    with counting.tally() as t:
        on_threads(lambda group: group.all_reduce(counting.array(np.ones(5))) * 2.0, 4)
    assert t.total == 5 * 3 + 4 * 5


def test_the_ranks_take_turns_in_the_same_order():
    def scheme(group, order):
        for step in range(3):
            order.append((step, group.rank))
            group.all_reduce(np.ones(2))

    for _ in range(5):
        on_threads(scheme, 3, order := [])
        assert order[:3] == [(0, 0), (0, 1), (0, 2)] and order[3:] == [
            (1, 2),
            (1, 0),
            (1, 1),
            (2, 1),
            (2, 2),
            (2, 0),
        ]


def test_complex_numbers_pass():
    (y, *_) = on_threads(lambda group: group.all_reduce(np.array([1 + 2j])), 3)
    assert y == 3 + 6j


def test_a_rank_that_fails_is_named_at_once(run):
    def scheme(group, x):
        if group.rank == 1:
            raise ArithmeticError("the second rank cannot")
        return group.all_reduce(x)

    with pytest.raises(RankError, match=r"(?s)^rank 1: .*ArithmeticError: the second rank cannot") as caught:
        run(scheme, RANKS, np.ones(2))
    assert caught.value.rank == 1


DIFFER = {
    "name": (lambda g, x: g.all_reduce(x), lambda g, x: g.all_gather(x)),
    "shape": (lambda g, x: g.all_reduce(x), lambda g, x: g.all_reduce(x[:1])),
    "dtype": (lambda g, x: g.all_reduce(x), lambda g, x: g.all_reduce(x.astype("float32"))),
    "library": (
        lambda g, x: g.all_reduce(x),
        lambda g, x: g.all_reduce(pytest.importorskip("torch").tensor(x)),
    ),
    "root": (lambda g, x: g.broadcast(x, root=0), lambda g, x: g.broadcast(x, root=1)),
    "places": (lambda g, x: g.shift(x, places=1), lambda g, x: g.shift(x, places=0)),
    "shape of a shift": (lambda g, x: g.shift(x), lambda g, x: g.shift(x[:1])),
    "shape of an all-to-all": (lambda g, x: g.all_to_all(x[:, None]), lambda g, x: g.all_to_all(x)),
}


@pytest.mark.parametrize("case", DIFFER)
def test_ranks_that_call_differently_fail_at_once(run, case):
    began = time.monotonic()
    with pytest.raises(RankError, match=r"the same collective.*rank 0 called \w+\(x\[2.*, rank 1 \w+\(x\["):
        run(lambda group: DIFFER[case][group.rank](group, np.ones(2)), 2)
    assert time.monotonic() - began < 30  # not after the timeout of processes


def test_ranks_that_wait_for_each_other_in_different_groups_fail():
    def crossed(group):
        halves = mesh(group, rows=2, columns=2)
        x = np.ones(1)
        first, second = ("rows", "columns") if group.rank in (0, 3) else ("columns", "rows")
        return halves[first].all_reduce(halves[second].all_reduce(x))

    with pytest.raises(RankError, match="called all_reduce, which not every rank did"):
        on_threads(crossed, 4)


def test_a_collective_that_not_all_ranks_call_does_not_hang(run):
    with pytest.raises(RankError, match="called all_reduce, which not every rank did"):
        run(lambda group: group.rank and group.all_reduce(np.ones(2)), RANKS)


def test_a_killed_process_is_named():
    pytest.importorskip("torch.distributed")

    def scheme(group):
        if group.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return group.all_reduce(np.ones(3))

    began = time.monotonic()
    with pytest.raises(RankError, match=r"^rank 2: the process ended without an answer"):
        on_processes(scheme, RANKS, timeout=LONG)
    assert time.monotonic() - began < LONG


def test_a_process_that_hangs_is_ended():
    pytest.importorskip("torch.distributed")

    def hangs(group):
        return time.sleep(100) if group.rank == 1 else group.rank

    with pytest.raises(RankError, match="no answer within 5 s; ranks without an answer: 0, 1, 2") as caught:
        on_processes(hangs, RANKS, timeout=5)
    assert caught.value.rank == 1 and "in hangs" in str(caught.value)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads the state of a process from /proc")
def test_processes_that_a_scheme_starts_end_with_it():
    pytest.importorskip("torch.distributed")

    def state(pid):
        file = Path(f"/proc/{pid}/stat")
        return file.read_text().rpartition(")")[2].split()[0] if file.exists() else "gone"

    pids = on_processes(lambda group: subprocess.Popen(["sleep", "300"]).pid, 2)
    end = time.monotonic() + 10
    while time.monotonic() < end and any(state(pid) not in ("Z", "X", "gone") for pid in pids):
        time.sleep(0.02)
    assert all(state(pid) in ("Z", "X", "gone") for pid in pids)


def test_the_time_counts_from_when_all_ranks_have_begun(monkeypatch):
    distributed = pytest.importorskip("torch.distributed")
    begin = distributed.init_process_group
    monkeypatch.setattr(distributed, "init_process_group", lambda *a, **k: (time.sleep(4), begin(*a, **k)))
    assert on_processes(lambda group: group.rank, 2, timeout=3.5) == [0, 1]


def test_a_process_that_waits_for_another_is_not_to_blame():
    pytest.importorskip("torch.distributed")

    def scheme(group):
        return group.shift(np.ones(2)) if group.rank else time.sleep(100)

    with pytest.raises(RankError, match=r"(?s)rank 0: no answer .* in scheme"):
        on_processes(scheme, RANKS, timeout=5)

    def all_wait(group):
        halves = mesh(group, rows=2, columns=2)
        first, second = ("rows", "columns") if group.rank in (0, 3) else ("columns", "rows")
        return halves[first].all_reduce(halves[second].all_reduce(np.ones(1)))

    with pytest.raises(RankError, match=r"(?s)rank 0: no answer .* in all_reduce\n.* in all_wait"):
        on_processes(all_wait, 4, timeout=5)


def test_arguments_that_make_no_sense(run):
    with pytest.raises(TypeError, match="scheme: expected a function that takes a group; got int"):
        run(3, 2)
    with pytest.raises(RankError, match=r"(?s)TypeError: x: expected an array; got list"):
        run(lambda group: group.all_reduce([1.0, 2.0]), 2)
    with pytest.raises(TypeError, match="timeout: expected a real number; got str"):
        on_processes(everything, 2, 7, timeout="8")


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_to_all"])
def test_parts_that_are_not_the_ranks_are_rejected(run, collective):
    with pytest.raises(RankError, match=r"(?s)ValueError"):
        run(lambda group: getattr(group, collective)(np.ones((RANKS + 1, 2))), RANKS)


@pytest.mark.parametrize(
    ("ranks", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)], ids=str
)
def test_a_number_of_ranks_that_makes_no_sense_is_rejected(run, ranks, error):
    with pytest.raises(error, match="ranks: expected an integer"):
        run(everything, ranks, 0)
