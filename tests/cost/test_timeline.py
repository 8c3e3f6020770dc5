"""The predicted memory of a training step equals what is alive while one runs."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backpass import cost, figures
from backpass.cost.live import Live
from backpass.cost.networks import layer_of
from backpass.cost.sizes import network_of
from backpass.cost.timeline import Timeline, measured_timeline
from backpass.models import encoder, gpt2, llama, seq2seq
from backpass.torch_internals import Unread, allocates
from backpass.training import adamw
from backpass.training._blocks import BLOCK
from pairwise import pairs

NETWORKS = {
    "gpt2": gpt2.Config(600, 70, 24, 5, 3, 40),
    "gpt2, untied": gpt2.Config(300, 70, 24, 3, 3, 40, tied=False),
    "llama": llama.Config(500, 24, 6, 4, 2, 6, 50),
    "qwen3, tied": llama.Config(500, 24, 4, 4, 1, 6, 50, tied=True, query_key_norm=True),
    "one layer": llama.Config(500, 24, 1, 4, 4, 6, 50, biases=True),
    "encoder": encoder.Config(24, 5, 3, 40, norm_first=True),
    "encoder, final norm": encoder.Config(24, 4, 3, 40, final_norm=True),
    "seq2seq": seq2seq.Config(24, 2, 3, 3, 40),
}
OPTIONS = [
    {},
    {"flash": False},
    {"chunked": False},
    {"flash": False, "chunked": False, "dtype": "float64"},
    {"dtype": "bfloat16"},
]


CHOICES = {
    "all": lambda names: None,
    "last": lambda names: names[-3:],
    "first": lambda names: names[:2],
    "second half": lambda names: names[len(names) // 2 :],
    "every third": lambda names: names[::3],
    "none": lambda names: [],
}
RECOMPUTED = [None, 1, 2, 5, ("attention",), ("feed_forward", "norms")]


def equal(config, batch, sequence, **options):
    """Return the predicted timeline. The moments of a real step equal its moments, except for the kinds in the update."""
    predicted = cost.timeline(config, batch, sequence, **options)
    measured = measured_timeline(config, batch, sequence, **options)
    assert [m[:2] for m in predicted.moments] == [m[:2] for m in measured.moments]
    for ours, theirs in zip(predicted.moments, measured.moments, strict=True):
        assert ours == theirs or (ours.part == "AdamW" and ours.total == theirs.total)
    assert predicted.peak.total == measured.peak.total
    assert predicted.rise == measured.rise
    return predicted


# All 2,880 take sixteen minutes.
@pytest.mark.parametrize(
    ("name", "options", "choice", "recompute", "clip"),
    pairs(NETWORKS, OPTIONS, CHOICES, RECOMPUTED, (False, True), more=12),
    ids=str,
)
def test_each_moment_is_what_a_step_measures(name, options, choice, recompute, clip):
    config = NETWORKS[name]
    wanted = CHOICES[choice]([*network_of(config).shapes])
    predicted = equal(config, 3, 37, wanted=wanted, recompute=recompute, clip=clip, **options)
    again = [moment.part for moment in predicted.moments if moment.phase == "recomputation"]
    layers = [
        moment.part
        for moment in predicted.moments
        if moment.phase == "backward" and layer_of(moment.part)[1] is not None
    ]
    assert {*again} <= {*layers}
    if not isinstance(recompute, int):
        assert not again
    elif wanted is None:
        stacks = [
            [part for part in layers if part.startswith(stack)]
            for stack in {layer_of(part)[0] for part in layers}
        ]
        assert len(again) == sum(-(-len(stack) // recompute) for stack in stacks)
    if recompute == 2 and name != "one layer" and choice != "last":
        # A moment has the bytes of each kind when their total is largest. A segment of two layers then still holds its
        # input, and one of a single layer may not.
        most = max(moment.bytes["saved"] for moment in predicted.moments)
        kept = cost.activations(config, 3, 37, wanted=wanted, recompute=recompute, **options)
        assert most == kept.most


@pytest.mark.parametrize(
    ("name", "choice"), pairs(NETWORKS, [*CHOICES][1:], of=("backpass.cost",), meet=1), ids=str
)
def test_frozen_parameters_have_no_gradients_and_no_states(name, choice):
    config = NETWORKS[name]
    shapes = network_of(config).shapes
    wanted = CHOICES[choice]([*shapes])
    predicted, all_of_them = (cost.timeline(config, 3, 37, wanted=some) for some in (wanted, None))
    trained, everything = (sum(torch.Size(shapes[n]).numel() for n in some) for some in (wanted, shapes))
    for kind in ("gradients", "optimiser"):
        ours, whole = (t.moments[-1].bytes[kind] for t in (predicted, all_of_them))
        assert ours * everything == whole * trained
    assert predicted.moments[-1].bytes["parameters"] == all_of_them.moments[-1].bytes["parameters"]
    assert predicted.peak.total < all_of_them.peak.total


RUNS = {
    "a frozen half": lambda name, i: i is None or i >= 5,
    "frozen ends": lambda name, i: i is not None and 4 <= i < 8,
    "biases of all layers": lambda name, i: i is not None and "bias" in name,
    "biases, then norms": lambda name, i: i is not None and ("bias" if i < 6 else "norm") in name,
    "the last norm": lambda name, i: i is None and "norm" in name,
}


@pytest.mark.parametrize(("choice", "model"), pairs(RUNS, (llama, encoder), of=("backpass.cost",), meet=1))
def test_of_each_run_of_equal_layers_a_few_run(choice, model):
    config = llama.Config(90, 8, 11, 2, 1, 4, 20, biases=True)
    config = config if model is llama else encoder.Config(8, 11, 2, 20, final_norm=True)
    names = model.parameter_shapes(config)
    layers = {name: int(name.split(".")[1]) if name.startswith("layers.") else None for name in names}
    wanted = [name for name, i in layers.items() if RUNS[choice](name, i)]
    assert 0 < len(wanted) < len(names)
    equal(config, 2, 7, wanted=wanted)


RATES = [(0.1, 0.0, 0.0), (0.0, 0.0, 0.2), (0.1, 0.3, 0.0), (0.1, 0.3, 0.2)]


@pytest.mark.parametrize(
    ("rates", "options"),
    pairs(RATES, [{}, {"chunked": False, "dtype": "bfloat16"}], of=("backpass.cost",), meet=1),
    ids=str,
)
def test_masks_of_dropout_are_not_saved(rates, options):
    config = gpt2.Config(600, 70, 24, 5, 3, 40, 1e-5, True, *rates)
    options = {**options, "flash": not rates[1]}
    predicted = equal(config, 3, 37, dropout=True, **options)
    kept = [cost.activations(config, 3, 37, dropout=on, **options).bytes for on in (True, False)]
    assert kept[0] == kept[1]
    (loss,) = [m for m in predicted.moments if m.part == "loss"]
    assert loss.bytes["saved"] == kept[0]
    equal(config, 3, 37, dropout=True, wanted=["h.3.mlp.c_fc.weight", "ln_f.bias"], **options)


def test_dropout_of_a_network_without_it():
    for function in (cost.timeline, measured_timeline):
        with pytest.raises(ValueError, match="dropout: expected False; only gpt2 has dropout"):
            function(NETWORKS["llama"], 3, 37, dropout=True)


@pytest.mark.parametrize(
    ("name", "dtype"), pairs(NETWORKS, ("float32", "bfloat16"), of=("backpass.cost",), meet=1)
)
def test_clipping_holds_no_second_set_of_gradients(name, dtype):
    predicted, without = (
        cost.timeline(NETWORKS[name], 3, 37, dtype=dtype, clip=clip) for clip in (True, False)
    )
    clip = predicted.moments[-2]
    assert clip[:2] == ("update", "clip")
    assert Timeline(predicted.title, (*predicted.moments[:-2], predicted.moments[-1])) == without
    gradients = cost.memory_budget(NETWORKS[name], 3, 37, dtype=dtype).shares
    (whole,) = (share.bytes for share in gradients if share.what == "gradients")
    assert clip.bytes["gradients"] == whole
    # The largest parameter has fewer elements than a block, and is scaled as a whole.
    largest = max(torch.Size(s).numel() for s in network_of(NETWORKS[name]).shapes.values())
    assert 0 < clip.bytes["working"] <= 3 * 4 * largest + 100


@pytest.mark.parametrize("n", [BLOCK + 1, 5 * BLOCK])
def test_clipping_works_block_by_block(n):
    config = gpt2.Config(n // 8, 4, 8, 1, 2, 3)
    clip = cost.timeline(config, 1, 4, clip=True).moments[-2]
    measured = measured_timeline(config, 1, 4, clip=True).moments[-2]
    assert measured.total == pytest.approx(clip.total, rel=0.05, abs=2000)
    assert measured.bytes["working"] < 3 * 4 * BLOCK


@pytest.mark.parametrize("function", [cost.timeline, measured_timeline])
def test_other_choices_are_rejected(function):
    with pytest.raises(TypeError, match="clip: expected True or False; got float"):
        function(NETWORKS["llama"], 3, 37, clip=1.0)
    with pytest.raises(ValueError, match="wanted: expected names of parameters; got 'nrom"):
        function(NETWORKS["llama"], 3, 37, wanted=["nrom.weight"])
    with pytest.raises(TypeError, match="wanted: expected a collection of names"):
        function(NETWORKS["llama"], 3, 37, wanted="norm.weight")


OF_50_MEGABYTES = {
    "frozen": (llama.Config(5000, 256, 10, 8, 2, 32, 704), {"chunked": False}),
    "dropout": (
        gpt2.Config(5000, 256, 256, 4, 8, 1024, 1e-5, True, 0.1, 0.1, 0.1),
        {"flash": False, "dropout": True},
    ),
}


@pytest.mark.parametrize("name", OF_50_MEGABYTES)
def test_at_least_50_megabytes_to_5_percent_with_choices(name):
    config, options = OF_50_MEGABYTES[name]
    batch, sequence = (2, 512) if name == "frozen" else (2, 256)
    if name == "frozen":
        names = llama.parameter_shapes(config)
        options = {
            **options,
            "wanted": [n for n in names if not n.startswith(("embed", "layers.0", "layers.1."))],
        }
    assert cost.activations(config, batch, sequence, **options).bytes > 50e6
    predicted, measured = (
        f(config, batch, sequence, **options, clip=True) for f in (cost.timeline, measured_timeline)
    )
    assert predicted.peak[:2] == measured.peak[:2]
    for ours, theirs in zip(predicted.moments, measured.moments, strict=True):
        assert abs(ours.total - theirs.total) <= 0.05 * theirs.total
    assert abs(predicted.rise - measured.rise) <= 0.05 * measured.rise


def test_at_least_50_megabytes_to_5_percent():
    config = llama.Config(5000, 256, 8, 8, 2, 32, 704)
    assert cost.activations(config, 2, 512).bytes > 50e6
    predicted, measured = cost.timeline(config, 2, 512), measured_timeline(config, 2, 512)
    assert predicted.peak[:2] == measured.peak[:2]
    for ours, theirs in zip(predicted.moments, measured.moments, strict=True):
        assert abs(ours.total - theirs.total) <= 0.05 * theirs.total
    assert abs(predicted.rise - measured.rise) <= 0.05 * measured.rise


STEP = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch
from memory import rise
from backpass.models import gpt2

torch.set_num_threads(1)

def step(config, batch, sequence):
    shapes = gpt2.parameter_shapes(config)
    parameters = {name: torch.empty(shape).normal_(std=0.02) for name, shape in shapes.items()}
    tokens = torch.randint(config.vocabulary, (batch, sequence))
    return lambda: gpt2.backward(gpt2.forward(parameters, tokens, tokens, config=config)[1])

step(gpt2.Config(50, 8, 8, 1, 2, 8), 1, 8)()  # PyTorch's own memory of a first call
print(json.dumps(rise(step(gpt2.Config(5000, 512, 256, 6, 8, 1024), 4, 256), "cpu").bytes))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the high-water mark is reset through /proc")
def test_the_operating_system_measures_the_same_to_5_percent():
    """In a process of its own, whose allocator returns freed memory at once."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the high-water mark of this process cannot be reset")
    benchmarks = Path(__file__).resolve().parents[2] / "benchmarks"
    command = [sys.executable, "-c", STEP, str(benchmarks)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, check=True, env=environment)
    config = gpt2.Config(5000, 512, 256, 6, 8, 1024)
    assert cost.activations(config, 4, 256).bytes > 50e6
    assert cost.timeline(config, 4, 256).rise == pytest.approx(json.loads(done.stdout), rel=0.05, abs=0)


def test_the_peak_is_less_than_the_sum():
    config = gpt2.Config.preset("gpt2")
    found = cost.timeline(config, 4, 256)
    assert found.peak.total == max(sum(m.bytes.values()) for m in found.moments)
    assert found.peak.total < cost.memory_budget(config, 4, 256).bytes
    assert len(found.moments) == len({m[:2] for m in found.moments}) > 2 * 12


def test_a_preset_by_name(monkeypatch):
    config = NETWORKS["gpt2"]
    monkeypatch.setitem(gpt2.PRESETS, "small", config)
    for function in (cost.timeline, measured_timeline):
        assert function("small", 1, 5) == function(config, 1, 5)
        with pytest.raises(LookupError, match="small"):
            function("smal", 1, 5)


def test_saved_arrays_pile_up_and_gradients_appear():
    config = llama.Config(500, 24, 6, 4, 2, 6, 50)
    found = cost.timeline(config, 3, 37)
    forward = [m.bytes["saved"] for m in found.moments if m.phase == "forward"]
    backward = [m.bytes["gradients"] for m in found.moments if m.phase == "backward"]
    assert forward == sorted(forward) and backward == sorted(backward)
    kept = cost.activations(config, 3, 37)
    (loss,) = [m for m in found.moments if m.part == "loss"]
    assert (loss.bytes["saved"], loss.bytes["inputs"]) == (kept.bytes, kept.constants + 3 * 37 * 8)
    assert found.moments[-1].bytes["gradients"] == cost.memory_budget(config, 3, 37).shares[1].bytes


@pytest.mark.parametrize("n", [100, adamw.BLOCK + 1, 5 * adamw.BLOCK])
def test_the_update_works_block_by_block(n):
    config = gpt2.Config(n // 8, 4, 8, 1, 2, 3)
    update = cost.timeline(config, 1, 4).moments[-1]
    assert update.part == "AdamW"
    measured = measured_timeline(config, 1, 4).moments[-1]
    assert measured.total == pytest.approx(update.total, rel=0.05, abs=2000)


def test_live_bytes_of_known_tensors():
    x = torch.ones(1000)
    with Live() as live:
        live.add(x, counted=False)
        y = x + 1  # 4,000 bytes
        z = y[10:]  # a view
        del y
        w = z * z  # 3,960 more
        del z
        x.add_(1)
        assert sum(size for _, size in live.events) == 3960
    assert live.peak == 4000 + 3960
    del w
    assert sum(size for _, size in live.events) == 0


def test_a_result_is_inferred_once_for_each_kind_of_inputs(monkeypatch):
    x, y = torch.empty(4, 6, device="meta"), torch.empty(6, 1, 4, device="meta").transpose(0, 2)
    half, whole = x.bfloat16(), x.long()
    calls = {
        "+ 1": lambda: whole + 1,
        "+ 1.0": lambda: whole + 1.0,
        "+ True": lambda: (whole > 0) + True,
        "spread": lambda: y * x,
        "half": lambda: half * y,
        "with a float32": lambda: half * torch.empty((), device="meta"),
        "rows": lambda: x.sum(1),
        "keeping": lambda: x.sum(1, keepdim=True),
        "in float64": lambda: x.sum(1, dtype=torch.float64),
        "columns": lambda: x.mT.contiguous(),
        "joined": lambda: torch.cat([x, x], 1),
        "a product": lambda: x @ x.mT,
        "beside": lambda: torch.empty_like(y),
    }
    plain = ((name, call()) for name, call in calls.items())
    kinds = {name: (found.shape, found.stride(), found.dtype) for name, found in plain}
    inferred, original = [], Unread.__torch_dispatch__

    def infer(mode, func, *given):
        inferred.append(func)
        return original(mode, func, *given)

    monkeypatch.setattr(Unread, "__torch_dispatch__", infer)
    with Live() as live:
        for name, call in calls.items():
            first, count = call(), len(inferred)
            again = call()
            assert not any(map(allocates, inferred[count:])), name
            assert live.number(first) != live.number(again), name
            for found in (first, again):
                assert (found.shape, found.stride(), found.dtype) == kinds[name]

        for same in (x.view(24), x.view(24), x.add_(1), x.add_(1)):
            live.add(x)
            assert live.number(same) == live.number(x)
        for _ in range(2):
            same = torch.ops.aten._unsafe_view(first, (1, *first.shape))  # its schema says no more
            assert live.number(same) == live.number(first)


def test_numbers_of_tensors_without_values_read_as_good():
    t = torch.empty(3, dtype=torch.int64, device="meta")
    with Live():
        assert int(t.sum()) == 0 and not bool((t < 0).any())
        assert float(t.sum() * 1.0) == 0.0
    with pytest.raises((RuntimeError, NotImplementedError)):
        int(t.sum())


def test_a_budget():
    config = llama.Config(500, 24, 2, 4, 2, 6, 50)
    count = sum(torch.Size(shape).numel() for shape in llama.parameter_shapes(config).values())
    budget = cost.memory_budget(config, 3, 37, dtype="bfloat16")
    of = {share.what: (share.dtype, share.bytes) for share in budget.shares}
    assert of["weights"] == of["gradients"] == ("bfloat16", 2 * count)
    for what in ("master weights", "AdamW's means", "AdamW's squares"):
        assert of[what] == ("float32", 4 * count)
    kept = cost.activations(config, 3, 37, dtype="bfloat16")
    assert of["activations"] == ("int64, bfloat16, float32", kept.bytes)
    assert of["logits"] == ("float32", 4 * 3 * 37 * 500)
    assert budget.bytes == 16 * count + kept.bytes + kept.constants
    wide = cost.memory_budget(config, 3, 37, dtype="float64")
    assert sum(s.bytes for s in wide.shares if s.elements == count) == 4 * 8 * count
    assert "(logits)" in repr(budget) and "MiB" in budget._repr_html_()


def test_shown_in_a_terminal_and_drawn():
    found = cost.timeline(replace(NETWORKS["llama"], layers=2), 3, 37)
    assert f"{found.peak.total:,} bytes = {found.peak.total / 2**20:,.1f} MiB" in repr(found)
    assert repr(found).count("peak") == 2 and found._repr_html_().count("<tr>") == len(found.moments) + 1
    figure, axes, words = figures.of_timeline(found)
    assert f"{found.peak.total / 2**20:,.1f} MiB, in the {found.peak.phase} of {found.peak.part}" in words
    tops = [0.0] * len(found.moments)
    for bars in axes.containers:
        tops = [top + bar.get_height() for top, bar in zip(tops, bars, strict=True)]
    assert max(tops) == pytest.approx(found.peak.total / 2**20, rel=0.01, abs=0)
    assert 'role="img"' in figures.to_html(figure, alt=words, caption="Memory.")
