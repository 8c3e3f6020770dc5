"""What a rank of a mesh is said to hold is what the arrays of a run take."""

import numpy as np
import pytest

from backpass import cost
from backpass.cost import Mesh
from backpass.cost.cluster import layers_of_stages
from backpass.cost.networks import storages_in
from backpass.models import gpt2, llama
from backpass.parallel import on_threads, pipeline, zero
from backpass.parallel.network import Network
from backpass.parallel.pipeline import Pipeline
from backpass.parallel.schedules import one_f_one_b
from pairwise import pairs

from ..models.small import parameters_of

NETWORKS = {
    "gpt2": (gpt2, gpt2.Config(24, 16, 16, 5, 4, 12)),
    "gpt2, untied": (gpt2, gpt2.Config(24, 8, 8, 6, 2, 12, tied=False)),
    "llama": (llama, llama.Config(28, 16, 5, 4, 4, 4, 12)),
    "qwen3": (llama, llama.Config(28, 12, 6, 4, 2, 4, 8, tied=True, query_key_norm=True)),
}
B, S = 12, 8


def arrays_of(name, dtype):
    model, config = NETWORKS[name]
    parameters = parameters_of(model, config)
    tokens, targets = np.random.default_rng(3).integers(0, config.vocabulary, (2, B, S))
    if dtype == "float32":
        return {n: w.astype(np.float32) for n, w in parameters.items()}, tokens, targets
    torch = pytest.importorskip("torch")
    whole = {n: torch.asarray(w, dtype=getattr(torch, dtype)) for n, w in parameters.items()}
    return whole, torch.asarray(tokens), torch.asarray(targets)


def held(parts, known):
    """The bytes of the storages in ``parts`` that are not among the ``known``."""
    return sum(size for key, (size, _) in storages_in(parts).items() if key not in known)


def tables_in(network, saved):
    if network.model is gpt2:
        return {}
    attended = saved.own.parts[1].attended.own
    return storages_in((attended.own if hasattr(attended, "own") else attended).q.rotated)


def on_mesh(group, name, dtype, sizes):
    """What a rank of a network holds: weights, sums of gradients, shards, activations, tables."""
    whole, tokens, targets = arrays_of(name, dtype)
    network = Network(group, *NETWORKS[name], **sizes, sequence=True)
    own = network.share(whole)
    _, saved = network.forward(own, tokens, targets, chunked=False)
    weights = storages_in(tuple(own.values()))
    tables = tables_in(network, saved)
    found = {
        "weights": sum(x.nbytes for x in own.values()),
        "activations": held(tuple(saved.own.parts), {*weights, *tables}),
        "tables": sum(size for size, _ in tables.values()),
    }
    gradients = network.backward(saved)
    shards = zero.shard(network.alike, gradients)
    copies = 2 if dtype == "float32" else 3
    found["sums of gradients"] = sum(g.nbytes for g in gradients.values())
    return found | {"shards": copies * sum(g.nbytes for g in shards.values())}


SIZES = [{}, {"tensor": 2}, {"context": 2}, {"data": 2, "context": 2, "tensor": 2}]


@pytest.mark.parametrize(
    ("name", "sizes", "dtype"),
    pairs(NETWORKS, SIZES, ("float32", "bfloat16"), of=("backpass.cost", "backpass.parallel")),
    ids=str,
)
def test_a_network_holds_what_is_said(name, sizes, dtype):
    mesh = Mesh(**sizes)
    _, config = NETWORKS[name]
    each = B // mesh.data
    budget = cost.mesh_memory(config, mesh, B, S, micro_batch=each, dtype=dtype)
    found = on_threads(on_mesh, mesh.ranks, name, dtype, sizes)[0]
    expected = {share.what: share.bytes for share in budget.shares}
    assert expected["weights"] == found["weights"]
    assert expected["sums of gradients"] == found["sums of gradients"]
    assert expected["activations"] == found["activations"]
    assert expected.get("tables", 0) == found["tables"]
    (shards,) = (n for what, n in expected.items() if what.startswith("shards"))
    assert shards == found["shards"]


class Watched(pipeline._Step):
    """A step that notes the most bytes that its saved arrays have taken."""

    def _forward(self, j, k):
        x = super()._forward(j, k)
        if self.scale is not None:
            known = {
                *storages_in(tuple(self.w.values())),
                *storages_in(tuple((self.runner._shared or {}).values())),
            }
            parts = [part for saved in self.saved.values() for _, part, _ in saved]
            tables = self.pipeline.network.schemes.found
            known |= {
                *storages_in(tuple(block._tables for block in tables.values() if hasattr(block, "_tables")))
            }
            self.pipeline.most = max(getattr(self.pipeline, "most", 0), held(tuple(parts), known))
        return x


def in_pipeline(group, name, mesh, batches):
    whole, tokens, targets = arrays_of(name, "float32")
    sizes = {"data": mesh.data, "context": mesh.context, "tensor": mesh.tensor}
    model, config = NETWORKS[name]
    layers = layers_of_stages(config.layers, mesh.pipeline)
    schedule = one_f_one_b(mesh.pipeline, batches)
    network = Pipeline(group, model, config, schedule, layers=layers, **sizes, sequence=True)
    own = network.share(whole)
    _, gradients = network.gradients(own, tokens, targets)
    return sum(x.nbytes for x in own.values()), sum(g.nbytes for g in gradients.values()), network.most


MESHES = [Mesh(pipeline=3), Mesh(pipeline=2, tensor=2), Mesh(pipeline=2, context=2, data=2)]


@pytest.mark.parametrize(
    ("name", "mesh", "batches"),
    pairs(("gpt2", "qwen3"), MESHES, (2, 6), of=("backpass.cost", "backpass.parallel")),
    ids=str,
)
def test_a_rank_of_a_pipeline_holds_what_is_said(name, mesh, batches, monkeypatch):
    monkeypatch.setattr(pipeline, "_Step", Watched)
    _, config = NETWORKS[name]
    each = B // (batches * mesh.data)
    found = on_threads(in_pipeline, mesh.ranks, name, mesh, batches)
    on_stage = mesh.ranks // mesh.pipeline
    totals = []
    for place in range(mesh.pipeline):
        weights, sums, most = found[place * on_stage]
        budget = cost.mesh_memory(config, mesh, B, S, micro_batch=each, dtype="float32", place=place)
        of = {share.what: share.bytes for share in budget.shares}
        assert (of["weights"], of["sums of gradients"], of["activations"]) == (weights, sums, most)
        totals.append(budget.bytes)
    assert cost.mesh_memory(config, mesh, B, S, micro_batch=each, dtype="float32").bytes == max(totals)


def test_recomputation_keeps_the_inputs_and_one_layer():
    config = llama.Config.preset("llama-3-8b")
    mesh = Mesh(data=2, tensor=4, pipeline=4)
    plain, again = (
        {s.what: s.bytes for s in cost.mesh_memory(config, mesh, 64, 4096, recompute=r, place=1).shares}
        for r in (False, True)
    )
    held = 3 * layers_of_stages(32, 4)[1]  # of three micro-batches
    assert again["one layer, recomputed"] * held == plain["activations"]
    assert again["activations"] == held * 4096 * 4096 * 2 // 4
    assert all(plain[what] == again[what] for what in ("weights", "sums of gradients"))


def test_more_chunks_hold_more():
    config = llama.Config.preset("llama-3-8b")
    found = []
    for v in (1, 2):
        budget = cost.mesh_memory(config, Mesh(pipeline=4, chunks=v), 32, 4096, place=1)
        found.append(next(s.bytes for s in budget.shares if s.what == "activations"))
    # Nine layers, whole for three micro-batches; or in chunks of four and five, of which
    # as many are held as the schedule says.
    layer = found[0] // (3 * 9)
    assert 27 * layer == found[0] < found[1] <= 5 * layer * one_f_one_b(4, 8, chunks=2).in_flight(1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dtype": "bfloat"}, LookupError, "no dtype is called 'bfloat'"),
        ({"place": 2}, ValueError, "place: expected an integer from 0 to 1, or None; got 2"),
        ({"micro_batch": 5}, ValueError, "batch: expected a multiple of"),
        ({"recompute": 1}, TypeError, "recompute: expected True or False"),
    ],
)
def test_arguments_that_make_no_sense(options, error, message):
    with pytest.raises(error, match=message):
        cost.mesh_memory("llama-3-8b", Mesh(pipeline=2), 8, 1024, **options)
