"""Training on shards makes the steps of one process, stores 1/r, and moves what an all-reduce moves."""

import numpy as np
import pytest

from backpass.models import gpt2, llama
from backpass.parallel import RankError, on_processes, on_threads, zero
from backpass.parallel.network import Network
from backpass.parallel.traffic import Counted, moved
from backpass.training import accumulation, adamw, clipping

from ..models.small import parameters_of

NETWORKS = {
    "gpt2": (gpt2, gpt2.Config(11, 8, 6, 2, 3, 5)),
    "llama": (llama, llama.Config(9, 6, 2, 4, 2, 4, 5)),
}
STEPS, CLIP = 5, 1.2  # some steps are clipped, others are not
OPTIONS = {"lr": 0.01, "weight_decay": 0.1}


def batch(config, step):
    """Four sequences, with different numbers of counted targets."""
    tokens, targets = np.random.default_rng(step).integers(0, config.vocabulary, (2, 4, 6))
    targets[0, :5] = -100
    targets[3, ::2] = -100
    return tokens, targets


def on_one(name):
    model, config = NETWORKS[name]
    parameters = parameters_of(model, config)
    state, losses = adamw.start(parameters), []
    for step in range(STEPS):
        loss, saved = model.forward(parameters, *batch(config, step), config=config)
        gradients, _ = clipping.clip(model.backward(saved), CLIP)
        adamw.update(parameters, gradients, state, decayed=adamw.with_axes(parameters), **OPTIONS)
        losses.append(float(loss))
    return losses, parameters


def on_shards(group, name, steps=STEPS):
    """Return the losses, the whole parameters, and what the rank stores and has sent."""
    model, config = NETWORKS[name]
    shapes = model.parameter_shapes(config)
    counted = Counted(group)
    network = Network(group, model, config, data=group.size)
    own = zero.shard(group, parameters_of(model, config))
    state, losses = adamw.start(own), []
    for step in range(steps):
        whole = zero.gathered(counted, own, shapes)
        loss, saved = network.forward(whole, *batch(config, step))
        gradients = zero.reduced(counted, network.partial(saved))
        lengths = zero.norms(group, gradients)
        gradients, _ = clipping.clip(gradients, CLIP, of_each=lengths)
        adamw.update(own, gradients, state, decayed=adamw.with_axes(whole), **OPTIONS)
        losses.append(float(loss))
    stored = sum(x.nbytes for each in (own, state["mean"], state["square"]) for x in each.values())
    sent = sum(call.moved(group.size)[1] for call in counted.calls)
    return losses, zero.gathered(group, own, shapes), stored, sent


def check_same(found, expected, shapes, ranks):
    (losses, parameters, stored, sent), (right, exact) = found, expected
    np.testing.assert_allclose(losses, right, rtol=1e-9)
    assert parameters.keys() == exact.keys()
    for name, x in exact.items():
        np.testing.assert_allclose(parameters[name], x, rtol=0, atol=1e-9)
    assert stored == zero.bytes_stored(shapes, ranks, 8)
    assert sent == STEPS * zero.bytes_moved(shapes, ranks, 8)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_step_is_that_of_one_process(name, ranks):
    model, config = NETWORKS[name]
    expected = on_one(name)
    for found in on_threads(on_shards, ranks, name):
        check_same(found, expected, model.parameter_shapes(config), ranks)


def test_every_step_in_processes():
    pytest.importorskip("torch.distributed")
    model, config = NETWORKS["llama"]
    first, expected = on_processes(on_shards, 3, "llama"), on_one("llama")
    for found in first:
        check_same(found, expected, model.parameter_shapes(config), 3)
    assert on_processes(on_shards, 3, "llama", 2)[0][0] == first[0][0][:2]  # bit for bit


@pytest.mark.parametrize("mistake", ["mean of means", "not reduced", "averaged", "own norm"])
def test_a_mistake_is_noticed(mistake, monkeypatch):
    if mistake == "mean of means":
        monkeypatch.setattr(accumulation, "counted", lambda targets: 1)
    elif mistake == "own norm":
        monkeypatch.setattr(zero, "norms", lambda group, gradients: clipping.norms(gradients))
    elif mistake == "averaged":
        right = zero.reduced
        monkeypatch.setattr(
            zero, "reduced", lambda group, g: {n: x / group.size**2 for n, x in right(group, g).items()}
        )
    else:
        monkeypatch.setattr(zero, "reduced", lambda group, g: zero.shard(group, g))
    losses, _ = on_one("llama")
    for found in on_threads(on_shards, 2, "llama"):
        assert np.max(np.abs(np.array(found[0]) - losses)) > 1e-6


def test_any_shape_on_any_number_of_ranks():
    rng = np.random.default_rng(0)
    arrays = {
        "0": rng.normal(size=()),
        "1": rng.normal(size=5),
        "2": rng.normal(size=(3, 7)),
        "none": np.zeros((0, 2)),
    }
    shapes = {name: x.shape for name, x in arrays.items()}

    def scheme(group):
        own = zero.shard(group, arrays)
        assert all(x.shape == (zero.shard_length(shapes[n], group.size),) for n, x in own.items())
        gradients = {name: x * (group.rank + 1) for name, x in arrays.items()}
        summed = zero.gathered(group, zero.reduced(group, gradients), shapes)
        return zero.gathered(group, own, shapes), summed, zero.norms(group, own)

    for ranks in (1, 2, 3, 4, 6):
        for whole, summed, lengths in on_threads(scheme, ranks):
            for name, x in arrays.items():
                np.testing.assert_array_equal(whole[name], x)
                np.testing.assert_allclose(summed[name], x * ranks * (ranks + 1) / 2, rtol=1e-14)
                assert abs(lengths[name] - np.linalg.norm(x)) < 1e-13


def test_an_all_reduce_moves_as_much():
    shapes = {"w": (6, 4), "b": (8,)}
    for ranks in (2, 4):
        assert zero.bytes_moved(shapes, ranks, 4) == 4 * sum(
            moved("all_reduce", n, ranks)[1] for n in (24, 8)
        )


def test_a_norm_that_overflows_or_is_not_finite():
    def scheme(group, x):
        return zero.norms(group, {"w": np.full(3, x if group.rank else 1.0)})

    assert abs(on_threads(scheme, 2, 1e200)[0]["w"] / (np.sqrt(3) * 1e200) - 1) < 1e-12
    with pytest.raises(RankError, match="FloatingPointError: gradients: on some ranks"):
        on_threads(scheme, 2, np.inf)


def test_a_shard_of_another_length():
    with pytest.raises(
        RankError, match=r"shards: w: expected shape \[2\], a part of \[3\] on 2 ranks; got \[3\]"
    ):
        on_threads(lambda group: zero.gathered(group, {"w": np.zeros(3)}, {"w": (3,)}), 2)
