"""A network in a pipeline has the loss, the gradients, and the norms of one process."""

import numpy as np
import pytest

from backpass.models import gpt2, llama
from backpass.parallel import RankError, on_processes, on_threads, pipeline
from backpass.parallel.pipeline import Pipeline
from backpass.parallel.schedules import gpipe, one_f_one_b, zero_bubble
from backpass.parallel.sharded import Sharded
from backpass.parallel.traffic import Counted

from ..models.small import parameters_of
from .test_network import ranks_of, worst

NETWORKS = {
    "gpt2": (gpt2, gpt2.Config(11, 8, 8, 5, 4, 7)),
    "gpt2, untied": (gpt2, gpt2.Config(11, 8, 6, 4, 3, 5, tied=False)),
    "llama": (llama, llama.Config(13, 6, 4, 6, 2, 4, 7)),
    "qwen3": (llama, llama.Config(9, 6, 4, 4, 2, 4, 5, tied=True, query_key_norm=True)),
}
SCHEDULES = {
    "gpipe": gpipe(2, 3),
    "1f1b": one_f_one_b(3, 4),
    "interleaved": one_f_one_b(2, 4, chunks=2),
    "zero bubble": zero_bubble(4, 6),
    "few micro-batches": zero_bubble(3, 2),
    "one rank": one_f_one_b(1, 3),
}
MESHES = [{"data": 2}, {"context": 2}, {"tensor": 2, "sequence": True}]


def batch(config):
    """Twelve sequences of 8 tokens; one has no counted target, others have few."""
    tokens, targets = np.random.default_rng(3).integers(0, config.vocabulary, (2, 12, 8))
    targets[0, :7] = -100
    targets[5] = -100
    targets[2, ::2] = -100
    return tokens, targets


def made(group, name, schedule, sizes):
    model, config = NETWORKS[name]
    return Pipeline(group, model, config, schedule, **sizes), parameters_of(model, config)


def in_pipeline(group, name, schedule, sizes):
    network, parameters = made(group, name, schedule, sizes)
    share = network.share(parameters)
    tokens, targets = batch(network.config)
    loss, gradients = network.gradients(share, tokens, targets, scale=0.7)
    alone = float(network.loss(share, tokens, targets))
    found = (float(loss), network.whole(gradients), network.norms(gradients))
    return found, alone, network.held


def on_one(name):
    model, config = NETWORKS[name]
    loss, saved = model.forward(parameters_of(model, config), *batch(config), config=config)
    gradients = model.backward(saved, scale=0.7)
    return float(loss), gradients, {n: np.linalg.norm(g) for n, g in gradients.items()}


def check(run, name, schedule, sizes):
    expected, ranks = on_one(name), len(schedule.ranks)
    each = ranks_of(sizes)
    for rank, (found, alone, held) in enumerate(run(in_pipeline, ranks * each, name, schedule, sizes)):
        assert worst(found, expected) < 1e-12
        assert abs(alone - expected[0]) < 1e-12 * expected[0]
        assert held == schedule.in_flight(rank // each)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_the_network(name, schedule):
    check(on_threads, name, SCHEDULES[schedule], {})


@pytest.mark.parametrize("sizes", MESHES, ids=str)
@pytest.mark.parametrize("schedule", ["gpipe", "interleaved", "few micro-batches"])
def test_every_stage_on_a_mesh(schedule, sizes):
    check(on_threads, "gpt2" if "data" in sizes else "qwen3", SCHEDULES[schedule], sizes)


def test_in_processes():
    pytest.importorskip("torch.distributed")
    check(on_processes, "gpt2", SCHEDULES["1f1b"], {})
    check(on_processes, "qwen3", zero_bubble(2, 3), {"tensor": 2, "sequence": True})


def test_layers_are_chosen_and_repetition_is_equal():
    def gradients(group, layers):
        network, parameters = made(group, "gpt2", one_f_one_b(2, 3), {"layers": layers})
        loss, found = network.gradients(network.share(parameters), *batch(network.config))
        return loss, found, network.whole(found)

    one, again, default = (on_threads(gradients, 2, layers) for layers in ([1, 4], [1, 4], None))
    for (loss, own, _), (same, repeated, _) in zip(one, again, strict=True):
        assert loss == same and own.keys() == repeated.keys()
        assert all(np.array_equal(own[name], repeated[name]) for name in own)
    assert "h.1.ln_1.weight" in one[1][1] and "h.1.ln_1.weight" in default[0][1]
    for name, exact in default[0][2].items():
        np.testing.assert_allclose(one[0][2][name], exact, rtol=1e-11, atol=1e-14)


def test_all_targets_ignored():
    def loss(group):
        network, parameters = made(group, "llama", zero_bubble(2, 3), {})
        tokens, targets = batch(network.config)
        found, gradients = network.gradients(network.share(parameters), tokens, np.full_like(targets, -100))
        return float(found), max(np.max(np.abs(g)) for g in gradients.values())

    for found, largest in on_threads(loss, 2):
        assert np.isnan(found) and largest == 0


@pytest.mark.parametrize("made", [lambda *given: Pipeline(*given, gpipe(1, 3)), Sharded])
def test_dropout_is_rejected(made):
    config = gpt2.Config(11, 8, 8, 2, 4, 7, residual_dropout=0.2)
    with pytest.raises(
        RankError, match="config: expected no dropout in a pipeline or on shards; got residual"
    ):
        on_threads(lambda group: made(group, gpt2, config), 1)


@pytest.mark.parametrize("made", [lambda *given: Pipeline(*given, gpipe(1, 3)), Sharded])
def test_scales_that_make_no_sense(made):
    def scheme(group):
        network = made(group, *NETWORKS["llama"])
        share = network.share(parameters_of(*NETWORKS["llama"]))
        network.gradients(share, *batch(network.config), scale=0.0)

    with pytest.raises(RankError, match="scale: expected"):
        on_threads(scheme, 1)


@pytest.mark.parametrize("made", [lambda *given: Pipeline(*given, gpipe(1, 3)), Sharded])
def test_inputs_that_do_not_fit(made):
    def scheme(group, wrong):
        model, config = NETWORKS["llama"]
        network = made(group, model, config)
        parameters = parameters_of(model, config)
        tokens, targets = batch(config)
        if wrong == "targets":
            targets = targets[:9]
        elif wrong == "tokens":
            tokens = tokens > 3
        elif wrong == "parameters":
            parameters["norm.weight"] = np.ones(7)
        own = network.share(parameters)
        if wrong == "missing":
            del own["norm.weight"]
        elif wrong == "whole":
            network.whole({"norm": own["norm.weight"]})
        elif wrong == "norms":
            network.norms({"norm": own["norm.weight"]})
        network.gradients(own, tokens, targets)

    for wrong, message in (
        ("targets", r"targets: .*\[9, 8\]"),
        ("tokens", "tokens: expected integers; got dtype bool"),
        ("parameters", "norm.weight: expected shape .6.; got shape .7."),
        ("missing", "parameters: they do not fit:\n    norm.weight: is missing"),
        ("whole", "(shards|shares): they do not fit:\n    norm: is not a parameter"),
        ("norms", "gradients: they do not fit:\n    norm: is not a parameter"),
    ):
        with pytest.raises(RankError, match=message):
            on_threads(scheme, 1, wrong)


def test_what_a_stage_does_not_have():
    def scheme(group, method):
        network, parameters = made(group, "llama", gpipe(2, 3), {})
        own = network.share(parameters)
        if method == "share":
            parameters.pop("layers.3.mlp.up_proj.weight")
            network.share(parameters)
        name = "norm.weight" if group.rank == 0 else "layers.0.mlp.up_proj.weight"
        getattr(network, method)(own | {name: parameters[name]})

    for method, message in (
        ("share", "parameters: they do not fit:\n    layers.3.mlp.up_proj.weight: is missing"),
        ("whole", r"shares: they do not fit:\n    (norm|layers\.0.*)\.weight: is not a parameter"),
        ("norms", r"gradients: they do not fit:\n    (norm|layers\.0.*)\.weight: is not a parameter"),
    ):
        with pytest.raises(RankError, match=message):  # of the rank that fails first
            on_threads(scheme, 2, method)


def test_a_micro_batch_without_counted_targets():
    """Its own loss is the mean of nothing, NaN, and must not reach the sum."""
    model, config = NETWORKS["gpt2"]
    tokens, targets = batch(config)
    targets[4:8] = -100
    loss, saved = model.forward(parameters_of(model, config), tokens, targets, config=config)
    exact = model.backward(saved)

    def scheme(group):
        network, parameters = made(group, "gpt2", one_f_one_b(2, 3), {})
        found, gradients = network.gradients(network.share(parameters), tokens, targets)
        return float(found), network.whole(gradients)

    for found, gradients in on_threads(scheme, 2):
        assert abs(found - loss) < 1e-12 * loss
        for name, gradient in gradients.items():
            np.testing.assert_allclose(gradient, exact[name], rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("kind", ["pipeline", "shards"])
def test_half_precision_is_summed_in_float32(kind):
    torch = pytest.importorskip("torch")
    model, config = NETWORKS["qwen3"]
    parameters = {n: torch.asarray(w, dtype=torch.bfloat16) for n, w in parameters_of(model, config).items()}
    tokens, targets = map(torch.asarray, batch(config))
    loss, saved = model.forward(parameters, tokens, targets, config=config)
    exact = model.backward(saved)

    def scheme(group):
        inputs = group, model, config
        network = Pipeline(*inputs, one_f_one_b(2, 3)) if kind == "pipeline" else Sharded(*inputs, data=2)
        found, gradients = network.gradients(network.share(parameters), tokens, targets)
        return found, {*(g.dtype for g in gradients.values())}, network.whole(gradients)

    for found, dtypes, gradients in on_threads(scheme, 2):
        assert found.dtype == torch.float32 and dtypes == {torch.float32}
        assert abs(found - loss) < 0.01 * loss
        for name, gradient in gradients.items():
            error = torch.linalg.vector_norm(gradient - exact[name].float())
            assert error < 0.05 * torch.linalg.vector_norm(exact[name].float())


def test_what_a_rank_sends():
    """In a slot in which a rank sends, all of them do; one activation is b·s·h numbers."""
    schedule = one_f_one_b(3, 4)

    def calls(group):
        network, parameters = made(group, "llama", schedule, {})
        network.line = Counted(network.line)
        network.gradients(network.share(parameters), *batch(network.config))
        return [(call.name, call.shape) for call in network.line.calls]

    slots = [
        kind
        for ending in schedule.ending()
        for kind, last in (("F", 2), ("B", 0))
        if any(a.kind == kind and a.stage != last for a in ending.values())
    ]
    for found in on_threads(calls, 3):
        assert found == [("shift", (3, 8, 6))] * len(slots) + [("all_reduce", ())]


class Forgets(Pipeline):
    """A pipeline whose ends do not add their gradients of a tied table."""

    def __init__(self, *inputs, **options):
        super().__init__(*inputs, **options)
        self.ends = self.line.split(self.line.rank)


@pytest.mark.parametrize("mistake", ["table", "shares", "send", "stale"])
def test_mistakes_are_noticed(mistake, monkeypatch):
    if mistake == "table":
        monkeypatch.setitem(globals(), "Pipeline", Forgets)
    if mistake == "shares":
        init = pipeline._Step.__init__

        def shared(step, *inputs):
            init(step, *inputs)
            step.shares = [1 / len(step.shares) for _ in step.shares]

        monkeypatch.setattr(pipeline._Step, "__init__", shared)
    if mistake == "send":
        backward = pipeline._Step._backward
        monkeypatch.setattr(
            pipeline._Step,
            "_backward",
            lambda step, kind, j, k: None if (d := backward(step, kind, j, k)) is None else 2 * d,
        )
    if mistake == "stale":  # the last micro-batch's gradients take the place of the sum
        backward = pipeline._Step._backward

        def stale(step, *inputs):
            step.gradients = {}
            return backward(step, *inputs)

        monkeypatch.setattr(pipeline._Step, "_backward", stale)
    expected = on_one("gpt2")
    assert all(
        worst(found, expected) > 1e-3
        for found, *_ in on_threads(in_pipeline, 2, "gpt2", SCHEDULES["gpipe"], {})
    )


@pytest.mark.parametrize(
    ("ranks", "inputs", "message"),
    [
        (3, (gpipe(2, 3), {}), "whose product is 3"),
        (2, (gpipe(2, 5), {}), "a multiple of 5, the number of micro-batches; got .12, 8."),
        (6, (gpipe(6, 3), {}), "layers: expected 6 numbers from 1"),
        (2, (gpipe(2, 3), {"layers": [2, 2]}), "with the sum 5; got 2, 2"),
        (2, (gpipe(2, 3), {"layers": 5}), "layers: expected 2 integers, one for each stage; got int"),
        (2, (gpipe(2, 3), {"layers": [2.5, 2.5]}), r"layers\[0\]: expected an integer; got float"),
        (2, (True, {}), "schedule: expected a Schedule, such as one_f_one_b returns; got bool"),
        (4, (gpipe(2, 3), {"tensor": 2, "data": 2}), "whose product is 4"),
    ],
)
def test_sizes_that_do_not_fit(ranks, inputs, message):
    with pytest.raises((RankError, ValueError), match=message):
        on_threads(in_pipeline, ranks, "gpt2", *inputs)
