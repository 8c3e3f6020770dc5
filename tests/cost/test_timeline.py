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
from backpass.models import encoder, gpt2, llama, seq2seq
from backpass.training import adamw

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


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_each_moment_is_what_a_step_measures(name, options):
    config = NETWORKS[name]
    predicted = cost.timeline(config, 3, 37, **options)
    measured = cost.measured_timeline(config, 3, 37, **options)
    assert [m[:2] for m in predicted.moments] == [m[:2] for m in measured.moments]
    for ours, theirs in zip(predicted.moments, measured.moments, strict=True):
        if ours.phase != "update":
            assert ours == theirs
    assert predicted.peak.total == measured.peak.total
    assert predicted.rise == measured.rise


def test_at_least_50_megabytes_to_5_percent():
    config = llama.Config(5000, 256, 8, 8, 2, 32, 704)
    assert cost.activations(config, 2, 512).bytes > 50e6
    predicted, measured = cost.timeline(config, 2, 512), cost.measured_timeline(config, 2, 512)
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
    found = cost.timeline(config, 4, 1024)
    assert found.peak.total == max(sum(m.bytes.values()) for m in found.moments)
    assert found.peak.total < cost.memory_budget(config, 4, 1024).bytes
    assert len(found.moments) == len({m[:2] for m in found.moments}) > 2 * 12


def test_a_preset_by_name(monkeypatch):
    config = NETWORKS["gpt2"]
    monkeypatch.setitem(gpt2.PRESETS, "small", config)
    for function in (cost.timeline, cost.measured_timeline):
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
    measured = cost.measured_timeline(config, 1, 4).moments[-1]
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
