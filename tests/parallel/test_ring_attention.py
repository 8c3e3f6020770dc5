"""Attention on a divided sequence: by a ring, and by an exchange of heads."""

from types import SimpleNamespace

import numpy as np
import pytest

from backpass.ops import attention, flash_attention
from backpass.parallel import (
    RankError,
    head_exchange,
    on_processes,
    on_threads,
    ring_attention,
)
from backpass.verify import check

RING = [(False, False), (True, False), (True, True), (False, True)]  # causal, zigzag


class Counting:
    """A group that counts the bytes this rank sends, by the ring's algorithms."""

    def __init__(self, group):
        self.group, self.rank, self.size, self.sent = group, group.rank, group.size, 0

    def all_gather(self, x):
        self.sent += (self.size - 1) * x.nbytes
        return self.group.all_gather(x)

    def all_to_all(self, x):
        self.sent += (self.size - 1) * x.nbytes // self.size
        return self.group.all_to_all(x)

    def shift(self, x, *, places=1):
        self.sent += x.nbytes if places % self.size else 0
        return self.group.shift(x, places=places)


def drawn(ranks, s=4, n_kv=2, g=2, d=3, d_v=5, leading=(2,), seed=0):
    """Return q, k, v, and dy of the whole sequence of ranks · s tokens."""
    rng = np.random.default_rng(seed)
    t = ranks * s
    shapes = (g * n_kv, t, d), (n_kv, t, d), (n_kv, t, d_v), (g * n_kv, t, d_v)
    return tuple(rng.normal(size=(*leading, *shape)) for shape in shapes)


def step(group, arrays, module=ring_attention, **options):
    """Return this rank's y, dq, dk, dv, and the bytes of the forward and of both."""
    group = Counting(group)
    zigzag = options.get("zigzag", False)
    here = ring_attention.positions(group.rank, group.size, arrays[0].shape[-2] // group.size, zigzag=zigzag)
    q, k, v, dy = (x[..., here, :] for x in arrays)
    y, saved = module.forward(group, q, k, v, **options)
    first = group.sent
    return y, *module.backward(group, dy, saved), first, group.sent - first


def together(found, zigzag=False):
    """Return the whole arrays y, dq, dk, dv from the ranks' shards."""
    ranks, s = len(found), found[0][0].shape[-2]
    at = [i for p in range(ranks) for i in ring_attention.positions(p, ranks, s, zigzag=zigzag)]
    back = np.argsort(at)
    shards = list(zip(*found, strict=True))[:4]
    return [np.concatenate([np.asarray(x) for x in each], axis=-2)[..., back, :] for each in shards]


def on_one(arrays, op=attention, **options):
    options.pop("zigzag", None)
    *inputs, dy = arrays
    y, saved = op.forward(*inputs, **options)
    return [y, *op.backward(dy, saved)[:3]]


def distance(found, expected):
    """Return the largest difference, relative to the largest element of its array."""
    return max(np.max(np.abs(a - b)) / np.max(np.abs(b)) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("causal, zigzag", RING)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_ring_is_attention(ranks, causal, zigzag):
    arrays = drawn(ranks)
    options = {"causal": causal, "scale": 0.7}
    found = on_threads(lambda group: step(group, arrays, zigzag=zigzag, **options), ranks)
    assert distance(together(found, zigzag), on_one(arrays, **options)) < 1e-12


@pytest.mark.parametrize("order", ["consecutive", "interleaved"])
def test_either_order_of_heads(order):
    arrays = drawn(3, g=3, leading=())
    options = {"causal": True, "head_order": order}
    found = on_threads(lambda group: step(group, arrays, zigzag=True, **options), 3)
    assert distance(together(found, True), on_one(arrays, **options)) < 1e-12


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_an_exchange_of_heads_is_attention(ranks, causal):
    arrays = drawn(ranks, s=3, n_kv=2 * ranks)
    options = {"causal": causal, "scale": 0.7}
    found = on_threads(lambda group: step(group, arrays, head_exchange, **options), ranks)
    assert distance(together(found), on_one(arrays, **options)) < 1e-12


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_in_processes(ranks):
    pytest.importorskip("torch.distributed")
    arrays = drawn(ranks, n_kv=ranks)

    def both(group):
        ring = step(group, arrays, causal=True, zigzag=True)
        return ring, step(group, arrays, head_exchange, causal=True)

    ring, exchanged = zip(*on_processes(both, ranks), strict=True)
    expected = on_one(arrays, causal=True)
    assert distance(together(ring, True), expected) < 1e-12
    assert distance(together(exchanged), expected) < 1e-12


@pytest.mark.parametrize("module, zigzag", [(ring_attention, True), (head_exchange, False)])
def test_the_checker_judges_the_whole_scheme(module, zigzag):
    ranks = 2
    options = {"causal": True} | ({"zigzag": True} if zigzag else {})

    def forward(q, k, v):
        dy = np.zeros((*q.shape[:-1], v.shape[-1]), dtype=q.dtype)
        found = on_threads(lambda group: step(group, (q, k, v, dy), module, **options), ranks)
        return together(found, zigzag)[0], (q, k, v)

    def backward(dy, saved):
        found = on_threads(lambda group: step(group, (*saved, dy), module, **options), ranks)
        return tuple(together(found, zigzag)[1:])

    *inputs, _ = drawn(ranks, s=2, d=2, d_v=3, leading=())
    scheme = SimpleNamespace(forward=forward, backward=backward)
    report = check(scheme, *inputs, methods=["complex_step", "finite_difference"])
    assert report.passed


@pytest.mark.parametrize("module", [ring_attention, head_exchange])
def test_tensors_and_half_precision(module):
    torch = pytest.importorskip("torch")
    arrays = drawn(2)
    expected = on_one(arrays, causal=True)
    for dtype, bound in ((torch.float64, 1e-12), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)):
        given = tuple(torch.tensor(x).to(dtype) for x in arrays)
        found = on_threads(lambda group, given=given: step(group, given, module, causal=True), 2)
        assert all(x.dtype == dtype for x in found[0][:4])
        wide = [[x.double() for x in each[:4]] for each in found]
        assert distance(together(wide), expected) < bound


def test_sums_in_half_precision_are_those_of_one_process():
    """The blocks are merged in float32, so only the results are rounded."""
    arrays = tuple(x.astype(np.float16) for x in drawn(4, s=8))
    found = on_threads(lambda group: step(group, arrays), 4)
    exact = on_one(tuple(x.astype(np.float64) for x in arrays))
    ours = distance([x.astype(np.float64) for x in together(found)], exact)
    theirs = distance([x.astype(np.float64) for x in on_one(arrays, flash_attention)], exact)
    assert ours < 1.5 * theirs


@pytest.mark.parametrize("causal, zigzag", RING)
def test_large_scores_do_not_overflow(causal, zigzag):
    q, k, v, dy = drawn(3)
    arrays = 1e2 * q, 1e2 * k, v, dy
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        found = on_threads(lambda group: step(group, arrays, causal=causal, zigzag=zigzag, scale=1.0), 3)
    got = together(found, zigzag)
    assert np.max(np.abs(arrays[0] @ np.swapaxes(arrays[1].repeat(2, -3), -1, -2))) > 1e4
    # The softmax is nearly one-hot, so the scores' gradients are differences of equal numbers.
    for a, b in zip(got, on_one(arrays, causal=causal, scale=1.0), strict=True):
        assert np.max(np.abs(a - b)) < 1e-11


@pytest.mark.parametrize("module", [ring_attention, head_exchange])
def test_a_repetition_gives_the_same_bits(module):
    arrays = drawn(4, n_kv=4)
    first, second = (on_threads(lambda group: step(group, arrays, module, causal=True), 4) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_inputs_are_not_modified():
    arrays = drawn(3, n_kv=3)
    before = [x.copy() for x in arrays]
    on_threads(lambda group: step(group, arrays, causal=True, zigzag=True), 3)
    on_threads(lambda group: step(group, arrays, head_exchange, causal=True), 3)
    assert all(np.array_equal(x, y) for x, y in zip(arrays, before, strict=True))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_the_bytes_are_the_formula(ranks, itemsize):
    arrays = [x.astype(f"f{itemsize}") for x in drawn(ranks, n_kv=ranks, leading=())]
    lengths = (ranks - 1) * 8
    found = on_threads(lambda group: step(group, arrays, causal=True), ranks)
    forward, backward = ring_attention.bytes_moved(ranks, 4, ranks, 3, 5, itemsize)
    assert all(each[4:] == (forward + lengths, backward) for each in found)
    found = on_threads(lambda group: step(group, arrays, head_exchange), ranks)
    forward, backward = head_exchange.bytes_moved(ranks, 4, 2 * ranks, ranks, 3, 5, itemsize)
    assert all(each[4:] == (forward + lengths, backward) for each in found)


@pytest.mark.parametrize("zigzag", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_the_scores_seen_are_those_of_the_mask(ranks, zigzag):
    s = 6
    for rank in range(ranks):
        own = np.array(ring_attention.positions(rank, ranks, s, zigzag=zigzag))
        seen = ring_attention.scores_seen(rank, ranks, s, zigzag=zigzag)
        for at, count in enumerate(seen):
            keys = ring_attention.positions((rank - at) % ranks, ranks, s, zigzag=zigzag)
            assert count == np.sum(own[:, None] >= np.array(keys))
        total = s * (s + 1) // 2 + s * s * ((ranks - 1) / 2 if zigzag else rank)
        assert sum(seen) == total
        if zigzag:
            assert seen == [s * (s + 1) // 2, *[s * s // 2] * (ranks - 1)]


class Broken(Counting):
    """A group of which one shift, by number, stays at home."""

    def __init__(self, group, stays):
        super().__init__(group)
        self.stays, self.shifts = stays, 0

    def shift(self, x, *, places=1):
        self.shifts += 1
        moved = self.group.shift(x, places=places)
        return x if self.shifts - 1 == self.stays else moved


@pytest.mark.parametrize("causal, zigzag", RING)
def test_every_shift_counts(causal, zigzag):
    """Forward and backward make 4 + (8 + 2) shifts on three ranks."""
    arrays = drawn(3)
    expected = on_one(arrays, causal=causal)

    def run(stays):
        counts = []

        def scheme(group):
            broken = Broken(group, stays)
            here = ring_attention.positions(group.rank, 3, 4, zigzag=zigzag)
            q, k, v, dy = (x[..., here, :] for x in arrays)
            y, saved = ring_attention.forward(broken, q, k, v, causal=causal, zigzag=zigzag)
            gradients = ring_attention.backward(broken, dy, saved)
            counts.append(broken.shifts)
            return y, *gradients

        return distance(together(on_threads(scheme, 3), zigzag), expected), counts

    right, counts = run(None)
    assert right < 1e-12 and counts == [14] * 3
    for stays in range(14):
        assert run(stays)[0] > 1e-3


def test_every_exchange_counts(monkeypatch):
    arrays = drawn(2)
    expected = on_one(arrays)
    for stays in range(8):

        class Lazy(Counting):
            calls = 0

            def all_to_all(self, x, stays=stays):
                self.calls += 1
                moved = self.group.all_to_all(x)
                return x if self.calls - 1 == stays else moved

        found = on_threads(lambda group, lazy=Lazy: step(lazy(group), arrays, head_exchange), 2)
        assert distance(together(found), expected) > 1e-3


def test_the_log_sum_exp_of_one_block_is_not_enough():
    arrays = drawn(2)

    def scheme(group):
        here = ring_attention.positions(group.rank, 2, 4)
        q, k, v, dy = (x[..., here, :] for x in arrays)
        y, saved = ring_attention.forward(group, q, k, v)
        own = flash_attention.forward(q, k, v)[1].lse
        return y, *ring_attention.backward(group, dy, saved._replace(lse=own))

    assert distance(together(on_threads(scheme, 2)), on_one(arrays)) > 1e-2


def test_a_query_that_has_seen_nothing_is_merged():
    y = np.ones((2, 3))
    hidden = np.zeros((2, 3)), np.full(2, -np.inf)
    for pair in ((hidden, (y, np.zeros(2))), ((y, np.zeros(2)), hidden)):
        merged, lse = ring_attention.merge(*pair)
        assert np.array_equal(merged, y) and np.array_equal(lse, [0, 0])


@pytest.mark.parametrize("run", [on_threads, on_processes], ids=["threads", "processes"])
@pytest.mark.parametrize("module", [ring_attention, head_exchange])
def test_parts_of_different_lengths_are_rejected(run, module):
    if run is on_processes:
        pytest.importorskip("torch.distributed")

    def scheme(group):
        x = np.ones((2, 3 + group.rank, 4))
        return module.forward(group, x, x, x)

    with pytest.raises(RankError, match=r"same length on all ranks(.|\n)*lengths \[3, 4\] by rank"):
        run(scheme, 2)


def test_what_does_not_fit_is_rejected():
    x = np.ones((2, 3, 4))

    def refused(match, scheme):
        with pytest.raises(RankError, match=match):
            on_threads(scheme, 2)

    ring, exchange = ring_attention.forward, head_exchange.forward
    refused("zigzag: expected an even number.*got 3", lambda g: ring(g, x, x, x, zigzag=True))
    refused("zigzag: expected a bool|zigzag", lambda g: ring(g, x, x, x, zigzag=1))
    refused("causal", lambda g: ring(g, x, x, x, causal=1))
    refused("head_order", lambda g: ring(g, x, x, x, head_order="sorted"))
    refused("scale", lambda g: exchange(g, x, x, x, scale="1"))
    refused(r"k: .*shape", lambda g: ring(g, x, x[:, :2], x))
    refused("k, v: expected a multiple of 2 heads.*got 1", lambda g: exchange(g, x, x[:1], x[:1]))
    for module in (ring_attention, head_exchange):

        def wrong(g, module=module):
            return module.backward(g, x[:, :2], module.forward(g, x, x, x)[1])

        refused("dy: expected the output's shape", wrong)
