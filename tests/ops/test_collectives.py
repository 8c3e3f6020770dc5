"""What the collectives promise beside the contract: they are PyTorch's, run by real processes, and reject a root that is not a rank."""

import numpy as np
import pytest

from backpass import ops
from backpass.parallel import on_processes

RANKS = 3


def all_reduce(dist, rank, x):
    dist.all_reduce(x)
    return x


def all_gather(dist, rank, x):
    y = [x.new_empty(x.shape) for _ in range(RANKS)]
    dist.all_gather(y, x)
    return y


def reduce_scatter(dist, rank, x):
    y = x.new_empty(x.shape[1:])
    dist.reduce_scatter(y, list(x))
    return y


def all_to_all(dist, rank, x):
    y = x.new_empty(x.shape)
    dist.all_to_all_single(y, x)
    return y


def broadcast(dist, rank, x):
    dist.broadcast(x, src=1)
    return x


def reduce(dist, rank, x):
    dist.reduce(x, dst=1)
    return x if rank == 1 else 0 * x  # what the other ranks hold afterwards is not defined


def shift(dist, rank, x):
    y = x.new_empty(x.shape)
    sends = dist.P2POp(dist.isend, x, (rank + 1) % RANKS)
    receives = dist.P2POp(dist.irecv, y, (rank - 1) % RANKS)
    for request in dist.batch_isend_irecv([sends, receives]):
        request.wait()
    return y


CASES = [
    (all_reduce, (RANKS, 4), {}),
    (all_gather, (RANKS, 4), {}),
    (reduce_scatter, (RANKS, RANKS, 4), {}),
    (all_to_all, (RANKS, RANKS, 4), {}),
    (broadcast, (RANKS, 4), {"root": 1}),
    (reduce, (RANKS, 4), {"root": 1}),
    (shift, (RANKS, 4), {"places": 1}),
]


def arrays():
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape) for _, shape, _ in CASES]


def one_rank(group):
    """Run every collective of PyTorch on the rank's part of every array."""
    import torch
    from torch import distributed as dist

    got = []
    for (collective, _, _), x in zip(CASES, arrays(), strict=True):
        y = collective(dist, group.rank, torch.tensor(x[group.rank]))
        got.append(torch.stack(y).numpy() if isinstance(y, list) else y.numpy())
    return got


@pytest.fixture(scope="module")
def by_gloo():
    """The outputs of PyTorch's collectives, of each rank and each case."""
    pytest.importorskip("torch.distributed")
    return on_processes(one_rank, RANKS)


@pytest.mark.parametrize("case", range(len(CASES)), ids=[case[0].__name__ for case in CASES])
def test_it_is_pytorchs_collective(by_gloo, case):
    collective, _, options = CASES[case]
    y, _ = ops.load(collective.__name__).forward(arrays()[case], **options)
    for rank, got in enumerate(by_gloo):
        np.testing.assert_allclose(got[case], y[rank], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("stem", ["broadcast", "reduce"])
@pytest.mark.parametrize("root", [-1, 3, 1.0, "0", None, True], ids=str)
def test_a_root_that_is_not_a_rank_is_rejected(stem, root):
    with pytest.raises(ValueError, match="root: expected a rank from 0 to 2; got"):
        ops.load(stem).forward(np.ones((3, 2)), root=root)


@pytest.mark.parametrize("places", [1.0, "1", None, True], ids=str)
def test_places_that_are_not_integers_are_rejected(places):
    with pytest.raises(TypeError, match="places: expected an integer; got"):
        ops.shift.forward(np.ones((3, 2)), places=places)


@pytest.mark.parametrize("places", [-7, -4, -1, 0, 1, 2, 4, 9])
def test_a_shift_is_numpys_roll(places):
    x = np.random.default_rng(0).normal(size=(4, 2))
    y, saved = ops.shift.forward(x, places=places)
    assert np.array_equal(y, np.roll(x, places, axis=0))
    assert np.array_equal(ops.shift.backward(y, saved), x)


@pytest.mark.parametrize("stem", ["all_gather", "broadcast"])
def test_copies_share_the_memory_of_the_input(stem):
    x = np.ones((3, 5))
    y, _ = ops.load(stem).forward(x)
    assert np.shares_memory(y, x)


def test_sums_of_half_precision_are_rounded_once():
    x = np.ones((3000, 1), dtype=np.float16)
    y, saved = ops.all_reduce.forward(x)
    assert y.dtype == np.float16 and np.all(y == 3000)  # a running sum in float16 stalls at 2048
    assert np.all(ops.all_reduce.backward(x, saved) == 3000)
