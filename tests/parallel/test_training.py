"""The training loop on a mesh makes the steps of one process, and its states go on on any mesh."""

import multiprocessing
import os
import time
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from backpass.models import gpt2, llama
from backpass.parallel import RankError, on_processes, on_threads
from backpass.parallel.schedules import one_f_one_b, zero_bubble
from backpass.parallel.training import Run
from backpass.training import run, states
from pairwise import pairs

TEXT = bytes(np.random.default_rng(0).integers(97, 123, 4000).astype(np.uint8))
OPTIONS = run.Options(steps=8, batch=3, length=8, lr=1e-2, warmup=2, clip=0.5)
NETWORKS = {
    "gpt2": (gpt2, gpt2.Config(256, 8, 8, 2, 4, 7)),
    "qwen3": (llama, llama.Config(256, 6, 2, 4, 2, 4, 5, query_key_norm=True)),
    "drops": (gpt2, gpt2.Config(256, 8, 8, 2, 4, 7, embedding_dropout=0.1, residual_dropout=0.2)),
}
MESHES = [
    {"data": 2},
    {"tensor": 3},
    {"data": 2, "tensor": 2, "sequence": True},
    {"context": 2, "tensor": 2},
    {"pipeline": one_f_one_b(2, 3)},
    {"pipeline": zero_bubble(2, 1), "data": 2},
    {"sharded": True, "data": 3},
    {"sharded": True, "context": 2, "tensor": 2, "sequence": True},
]
CASES = pairs(("gpt2", "qwen3"), MESHES, of=("backpass.parallel",), meet=1)
CASES += [("drops", sizes) for sizes in MESHES if not {"pipeline", "sharded"} & sizes.keys()]
LIKE = np.zeros(1)


@pytest.fixture(scope="module")
def on_one():
    """The records and the last state of all steps on one process, by network."""

    def made(name):
        own = run.Run.start(*NETWORKS[name], TEXT, OPTIONS, like=LIKE)
        return [*own], own.state()

    return {name: made(name) for name in NETWORKS}


def steps(group, start, name, state, sizes, until):
    """Make the steps up to a number, and return the records and the state."""
    if start:
        own = Run.start(*NETWORKS[name], TEXT, OPTIONS, like=LIKE, group=group, **sizes)
    else:
        own = Run.resumed(state, TEXT, like=LIKE, group=group, **sizes)
    records = [own.step() for _ in range(until - own.made)]
    return records, own.state()


def steps_without_model(*inputs):
    records, state = steps(*inputs)
    return records, state._replace(model=None)  # a module cannot be sent to another process


def check_same(found, expected, at=slice(None)):
    (records, state), (right, last) = found, expected
    for record, exact in zip(records, right[at], strict=True):
        assert record.step == exact.step
        assert abs(record.loss - exact.loss) < 1e-9 * exact.loss
        assert abs(record.norm - exact.norm) < 1e-9 * exact.norm
        assert record.norms.keys() == exact.norms.keys()
    pairs = [(state.parameters, last.parameters)]
    pairs += [(state.optimiser[key], last.optimiser[key]) for key in ("mean", "square")]
    for mine, whole in pairs:
        assert mine.keys() == whole.keys()
        for name, x in whole.items():
            np.testing.assert_allclose(mine[name], x, rtol=0, atol=1e-9 * max(np.abs(x).max(), 1e-3))


@pytest.mark.parametrize(
    ("name", "sizes"), CASES, ids=lambda value: " ".join([value] if isinstance(value, str) else value)
)
def test_every_step_is_that_of_one_process(name, sizes, on_one):
    for found in on_threads(steps, _ranks(sizes), True, name, None, sizes, OPTIONS.steps):
        check_same(found, on_one[name])


def test_every_step_in_processes(on_one):
    pytest.importorskip("torch.distributed")
    for found in on_processes(steps_without_model, 4, True, "qwen3", None, MESHES[2], OPTIONS.steps):
        check_same(found, on_one["qwen3"])


@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_a_state_of_one_mesh_goes_on_on_another(name, on_one, tmp_path):
    pytest.importorskip("safetensors")
    (_, state), *_ = on_threads(steps, 4, True, name, None, MESHES[2], 2)
    path = states.save(tmp_path, state)
    state = states.load(path)
    _, state = on_threads(steps, 3, False, name, state, {"tensor": 3}, 4)[1]
    own = run.Run.resumed(state, TEXT, like=LIKE)
    own.step()
    in_pipeline = {"pipeline": zero_bubble(2, 3)}
    _, state = on_threads(steps, 2, False, name, own.state(), in_pipeline, 6)[1]
    for found in on_threads(steps, 2, False, name, state, {"context": 2}, 8):
        check_same(found, on_one[name], slice(6, None))


def killed(group, folder, sizes):
    """Store a state after 3 steps; then rank 1 dies in the middle of the next step."""
    own = Run.start(*NETWORKS["gpt2"], TEXT, OPTIONS, like=LIKE, group=group, **sizes)
    for _ in range(3):
        own.step()
    state = own.state()
    if group.rank == 0:
        states.save(folder, state)
    if group.rank == 1:
        own.network.norms = lambda gradients: os._exit(1)
    own.step()


def test_a_killed_rank_and_a_run_that_goes_on(on_one, tmp_path):
    pytest.importorskip("torch.distributed")
    pytest.importorskip("safetensors")
    with pytest.raises(RankError) as caught:
        on_processes(killed, 3, tmp_path, {"tensor": 3}, timeout=300)
    assert caught.value.rank == 1
    _, state = states.newest(tmp_path)
    assert state.step == 3
    for found in on_threads(steps, 2, False, "gpt2", state, {"data": 2}, 8):
        check_same(found, on_one["gpt2"], slice(3, None))


def clipped_by_own_norm(group):
    own = Run.start(*NETWORKS["gpt2"], TEXT, OPTIONS, like=LIKE, group=group, tensor=2)
    own._norms = lambda gradients: run.clipping.norms(gradients)
    for _ in range(3):
        own.step()
    return own.parameters["ln_f.weight"]


def test_clipping_by_a_ranks_own_norm_drives_the_ranks_apart():
    a, b = on_threads(clipped_by_own_norm, 2)
    assert np.max(np.abs(a - b)) > 1e-6


def not_finite(group, where):
    own = Run.start(*NETWORKS["gpt2"], TEXT, OPTIONS, like=LIKE, group=group, tensor=2)
    own.step()
    before = {name: x.copy() for name, x in own.parameters.items()}
    if where == "loss" and group.rank == 1:
        own.parameters["h.0.mlp.c_fc.weight"][0, 0] = np.nan
        before = {name: x.copy() for name, x in own.parameters.items()}
    if where == "gradient" and group.rank == 1:
        backward = own.network.backward
        own.network.backward = lambda saved, **options: {
            n: g * np.inf for n, g in backward(saved, **options).items()
        }
    with np.errstate(invalid="ignore"), pytest.raises(FloatingPointError, match="step 2: ") as caught:
        own.step()
    for name, x in own.parameters.items():
        np.testing.assert_array_equal(x, before[name])
    return str(caught.value)


@pytest.mark.parametrize(
    ("sizes", "recompute", "message"),
    [
        ({"pipeline": one_f_one_b(2, 3)}, 1, "recompute cannot be chosen in a pipeline"),
        ({"sharded": True, "data": 2}, 1, "recompute cannot be chosen with shards"),
        ({"sharded": True, "pipeline": one_f_one_b(2, 3)}, 0, "sharded: not available in a pipeline"),
    ],
)
def test_what_does_not_go_together(sizes, recompute, message):
    def started(group):
        options = replace(OPTIONS, recompute=recompute)
        Run.start(*NETWORKS["gpt2"], TEXT, options, like=LIKE, group=group, **sizes)

    with pytest.raises(RankError, match=message):
        on_threads(started, 2)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_what_is_not_finite_on_one_rank_stops_all(where):
    for message in on_threads(not_finite, 2, where):
        assert ("the loss is nan" in message) == (where == "loss")


def _ranks(sizes):
    ranks = {**sizes, "pipeline": len(sizes["pipeline"].ranks)} if "pipeline" in sizes else sizes
    return prod(size for size in ranks.values() if not isinstance(size, bool))


def late(group, sizes, seconds):
    """Make two steps; in the second, rank 1 sleeps between its forward and its backward."""
    own = Run.start(*NETWORKS["gpt2"], TEXT, OPTIONS, like=LIKE, group=group, **sizes)
    own.step()
    norms = own.network.norms

    def sleeping(gradients):
        time.sleep(seconds if group.rank == 1 else 0)
        return norms(gradients)

    own.network.norms = sleeping
    return own.step().loss


@pytest.mark.parametrize(
    "sizes", [{"tensor": 2}, {"pipeline": one_f_one_b(2, 3)}], ids=["tensor", "pipeline"]
)
def test_a_slow_rank_is_waited_for_and_a_hanging_one_is_named(sizes, on_one):
    pytest.importorskip("torch.distributed")
    right = on_one["gpt2"][0][1].loss
    assert all(abs(loss - right) < 1e-9 * right for loss in on_processes(late, 2, sizes, 0.3, timeout=300))
    with pytest.raises(RankError) as caught:
        on_processes(late, 2, sizes, 600, timeout=8)
    assert caught.value.rank == 1
    assert not multiprocessing.active_children()
