"""A network whose parameters are gathered piece by piece has the loss and gradients of one process."""

import weakref

import numpy as np
import pytest

from backpass.parallel import on_processes, on_threads, sharded, zero
from backpass.parallel.sharded import Sharded
from backpass.parallel.traffic import Counted

from ..models.small import parameters_of
from .test_network import ranks_of, worst
from .test_pipeline import NETWORKS, batch, on_one

MESHES = [
    {"data": 2},
    {"data": 3},
    {"data": 2, "tensor": 2, "sequence": True},
    {"context": 2, "tensor": 2},
    {"data": 2, "context": 2},
]


def by_pieces(group, name, sizes):
    model, config = NETWORKS[name]
    network = Sharded(group, model, config, **sizes)
    own = network.share(parameters_of(model, config))
    loss, gradients = network.gradients(own, *batch(config), scale=0.7)
    alone = float(network.loss(own, *batch(config)))
    lengths = {name: x.shape for name, x in own.items()}
    assert lengths == {name: g.shape for name, g in gradients.items()}
    return (float(loss), network.whole(gradients), network.norms(gradients)), alone


def check(run, name, sizes):
    expected = on_one(name)
    for found, alone in run(by_pieces, ranks_of(sizes), name, sizes):
        assert worst(found, expected) < 1e-12
        assert abs(alone - expected[0]) < 1e-12 * expected[0]


@pytest.mark.parametrize("sizes", MESHES, ids=lambda sizes: " ".join(sizes))
@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_the_network(name, sizes):
    check(on_threads, name, sizes)


def test_in_processes():
    pytest.importorskip("torch.distributed")
    check(on_processes, "gpt2", {"data": 3})


def test_all_targets_ignored():
    def scheme(group):
        model, config = NETWORKS["llama"]
        network = Sharded(group, model, config, data=2)
        tokens, targets = batch(config)
        own = network.share(parameters_of(model, config))
        loss, gradients = network.gradients(own, tokens, np.full_like(targets, -100))
        return float(loss), max(np.max(np.abs(g)) for g in gradients.values())

    for loss, largest in on_threads(scheme, 2):
        assert np.isnan(loss) and largest == 0


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_is_gathered_and_sent(name, ranks):
    """One piece at a time; each is gathered twice and reduced once, the first and the last once each."""
    model, config = NETWORKS[name]
    whole = parameters_of(model, config)

    def scheme(group):
        network = Sharded(group, model, config, data=ranks)
        network.network.alike = counted = Counted(network.network.alike)
        network.gradients(network.share(whole), *batch(config))
        calls = [call for call in counted.calls if call.name != "all_reduce"]
        sent = sum(call.moved(ranks)[1] for call in calls)
        return sent, network.bytes_moved(8), network.largest

    parts = [sum(w.nbytes for n, w in whole.items() if n.startswith(p)) for p in ("h.0.", "layers.0.", "wte")]
    for sent, formula, largest in on_threads(scheme, ranks):
        assert sent == formula
        assert largest == max(parts) < sum(w.nbytes for w in whole.values())


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_what_was_gathered_is_freed_before_more_is(name, monkeypatch):
    """When a piece is gathered, no array of a piece before it is alive."""
    model, config = NETWORKS[name]
    gathered, alive = Sharded._gathered, []

    def watched(self, piece, own):
        alive.append([n for n, made in self.__dict__.get("made", {}).items() if made() is not None])
        found = gathered(self, piece, own)
        self.made = {n: weakref.ref(x) for n, x in found.items()}
        return found

    monkeypatch.setattr(Sharded, "_gathered", watched)

    def scheme(group):
        network = Sharded(group, model, config, data=group.size)
        own = network.share(parameters_of(model, config))
        network.loss(own, *batch(config))
        network.gradients(own, *batch(config))

    on_threads(scheme, 2)
    pieces = len(sharded.pieces(model, config))
    assert len(alive) == 2 * (pieces + 2 * pieces - 2)
    assert [names for names in alive if names] == []


@pytest.mark.parametrize("mistake", ["not reduced", "another layer", "head not counted"])
def test_a_mistake_is_noticed(mistake, monkeypatch):
    if mistake == "not reduced":
        monkeypatch.setattr(zero, "reduced", lambda group, g: zero.shard(group, g))
    elif mistake == "another layer":  # the second time, another layer's parameters
        gathered = Sharded._gathered
        seen = set()

        def wrong(self, piece, own):
            first = self.pieces[2] if id(piece) in seen and len(piece.names) > 2 else piece
            seen.add(id(piece))
            found = gathered(self, first, own)
            return dict(zip(piece.names.values(), found.values(), strict=True))

        monkeypatch.setattr(Sharded, "_gathered", wrong)
    else:
        monkeypatch.setattr(sharded, "add", lambda total, found: total.update(found))
    expected = on_one("gpt2")
    assert all(worst(found, expected) > 1e-4 for found, _ in on_threads(by_pieces, 2, "gpt2", {"data": 2}))


def test_half_precision_sends_gradients_in_float32():
    torch = pytest.importorskip("torch")
    model, config = NETWORKS["llama"]
    whole = {n: torch.asarray(w, dtype=torch.bfloat16) for n, w in parameters_of(model, config).items()}
    shapes = model.parameter_shapes(config)

    def scheme(group):
        network = Sharded(group, model, config, data=2)
        network.network.alike = counted = Counted(network.network.alike)
        network.gradients(network.share(whole), *map(torch.asarray, batch(config)))
        by_pieces = sum(c.moved(2)[1] for c in counted.calls if c.name != "all_reduce")
        counted.calls.clear()
        own = zero.shard(counted, whole)
        zero.reduced(counted, zero.gathered(counted, own, shapes))
        return by_pieces, network.bytes_moved(2), sum(c.moved(2)[1] for c in counted.calls)

    for by_pieces, formula, at_once in on_threads(scheme, 2):
        assert by_pieces == formula
        assert at_once == zero.bytes_moved(shapes, 2, 2)
