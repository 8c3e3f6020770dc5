"""The benchmarks of attention: every provider computes the same, one that rejects is named, records say what they should."""

import math
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch
from torch.nn.attention import SDPBackend

from backpass.ops import attention, flash_attention
from backpass.recorded import records

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import attention_memory
import attention_speed
import memory
from attention_speed import FLASH, MATH, PLAIN, TILED, Case
from harness import Settings

QUICK = Settings("cpu", quick=True, folder=None)
ON_A_CPU, ON_A_GPU = (Settings(device, quick=False, folder=None) for device in ("cpu", "cuda"))
SPEEDS, PEAKS = (
    [records.load(name, device) for device in records.devices(name)]
    for name in ("attention_speed", "attention_memory")
)
of_each_device = {"argnames": "record", "ids": lambda record: record.device}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", attention_speed.providers("cpu"))
def test_every_provider_of_a_cpu_computes_the_same(name, causal):
    q, k, v, dy = attention_speed.inputs(Case(2, 3, 7, 5, causal), torch.float64, "cpu")
    y, pull = attention_speed.providers("cpu")[name](q, k, v, causal)
    exact_y, saved = attention.forward(q, k, v, causal=causal)
    assert attention_speed.error([y, *pull(dy)], [exact_y, *attention.backward(dy, saved)[:3]]) < 1e-13


def test_a_wrong_result_would_be_seen():
    exact = attention_speed.exact_results(
        *attention_speed.inputs(Case(1, 2, 7, 5, True), torch.float64, "cpu"), True
    )
    assert len(exact) == 4
    for at in range(4):
        wrong = [result * (1.01 if i == at else 1) for i, result in enumerate(exact)]
        assert attention_speed.error(wrong, exact) > 0.009
    with pytest.raises(ValueError):
        attention_speed.error(exact[1:], exact)


@pytest.mark.parametrize("causal", [False, True])
def test_the_flops_credited_are_those_of_the_products(causal):
    """To 3 percent of the tiled form's exact counts, which compute five products in the backward."""
    case = Case(2, 3, 4096, 128, causal)
    exact = {
        "forward": flash_attention.forward_flops(2, 1, 3, 4096, 4096, 128, 128, causal=causal, tile=64),
        "backward": flash_attention.backward_flops(2, 1, 3, 4096, 4096, 128, 128, causal=causal, tile=64),
    }
    assert case.flops == {step: pytest.approx(flops, rel=0.03) for step, flops in exact.items()}


def test_the_bytes_are_those_of_the_arrays():
    case = Case(2, 3, 7, 5, False)
    q, k, v, dy = attention_speed.inputs(case, torch.float32, "cpu")
    y, dq, dk, dv = attention_speed.exact_results(q, k, v, dy, False)
    forward, backward = (
        sum(4 * array.numel() for array in arrays) for arrays in ([q, k, v, y], [q, k, v, y, dy, dq, dk, dv])
    )
    assert case.bytes(torch.float32) == {"forward": forward, "backward": backward}


def test_a_backend_that_rejects_is_left_out_and_named(monkeypatch):
    cudnn = attention_speed.pytorch(SDPBackend.CUDNN_ATTENTION, keep=True)
    found = {"PyTorch, cuDNN": cudnn, **attention_speed.providers("cpu")}
    monkeypatch.setattr(attention_speed, "providers", lambda device: found)
    rows, (refusal,) = attention_speed.time_case(QUICK, Case(1, 2, 7, 8, True), 1e9, 1e9)
    assert {(row["step"], row["provider"]) for row in rows} == {
        (step, name) for step in ("forward", "backward") for name in (TILED, PLAIN, FLASH, MATH)
    }
    assert refusal.startswith("PyTorch, cuDNN: left out where PyTorch says “No ")


def test_an_error_of_ours_is_not_left_out(monkeypatch):
    def failing(q, k, v, causal):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(attention_speed, "providers", lambda device: {"our kernel": failing})
    with pytest.raises(RuntimeError, match="out of memory"):
        attention_speed.time_case(QUICK, Case(1, 2, 7, 8, True), 1e9, 1e9)


def test_scores_that_would_not_fit_are_not_computed(monkeypatch):
    monkeypatch.setitem(attention_speed.SCORES_LIMIT, "cpu", 4 * 2 * 7 * 7 - 1)
    rows, refusals = attention_speed.time_case(QUICK, Case(1, 2, 7, 8, False), 1e9, 1e9)
    assert {row["provider"] for row in rows} == {TILED, FLASH}
    assert [refusal.split(":")[0] for refusal in refusals] == [PLAIN, MATH]


def test_the_rate_and_the_share_of_the_roof_are_of_what_is_credited():
    case = Case(1, 2, 7, 8, False)
    rows, _ = attention_speed.time_case(QUICK, case, bandwidth=1e9, rate=1e6)
    for row in rows:
        credited = case.flops[row["step"]] / row["milliseconds"] * 1e3
        assert row["gigaflops_per_second"] == pytest.approx(credited / 1e9)
        assert row["share_of_ceiling"] == pytest.approx(credited / 1e6)


def test_the_cases_of_a_gpu():
    found = attention_speed.cases(ON_A_GPU, None)
    assert {(case.s, case.d, case.causal) for case in found} == {
        (s, d, causal)
        for s in (1024, 2048, 4096, 8192, 16_384)
        for d in (64, 128)
        for causal in (True, False)
    }
    for case in found:
        assert case.batch * case.s == 16_384 and case.n_h * case.d == 2048
    assert attention_speed.threads_of(ON_A_GPU) == (None,)


def test_the_cases_of_a_cpu():
    lengths = [
        [case.s for case in attention_speed.cases(ON_A_CPU, threads) if case.causal] for threads in (1, 2)
    ]
    assert lengths == [[512, 1024, 2048, 4096, 8192, 16_384], [512, 1024, 2048, 4096]]


def test_the_providers_of_a_gpu():
    assert list(attention_speed.providers("cuda")) == [
        "our kernel",
        FLASH,
        "PyTorch, efficient",
        "PyTorch, cuDNN",
        MATH,
    ]


def test_the_last_queries_exact_gradient_is_that_of_the_whole():
    q, k, v, dy = attention_speed.inputs(Case(1, 1, 37, 5, True), torch.float64, "cpu")
    _, saved = attention.forward(q, k, v, causal=True)
    whole = attention.backward(dy, saved)[0]
    last = attention_memory.exact_dq(q, k, v, dy)
    torch.testing.assert_close(last, whole[..., -attention_memory.LOOKED_AT :, :], rtol=1e-12, atol=1e-14)


def test_a_rise_is_what_a_step_occupies():
    assert 2**26 <= memory.alone("cpu", rise_of, 2**26) < 1.1 * 2**26


def rise_of(count: int) -> int:
    """After a higher mark was left by what is gone."""
    torch.ones(2 * count, dtype=torch.uint8)
    return memory.rise(lambda: torch.ones(count, dtype=torch.uint8), "cpu").bytes


@pytest.mark.parametrize(argvalues=SPEEDS, **of_each_device)
def test_the_record_of_speeds_is_whole(record):
    assert not record.dirty
    on_gpu = record.threads is None
    for name in ("our kernel",) if on_gpu else (TILED, FLASH):
        for threads in (None,) if on_gpu else attention_speed.THREADS:
            found = {
                (row["step"], row["s"], row["d"], row["mask"])
                for row in record.where(provider=name)
                if row.get("threads") == threads
            }
            assert found >= {
                (step, case.s, case.d, "causal" if case.causal else "none")
                for step in ("forward", "backward")
                for case in attention_speed.cases(ON_A_GPU if on_gpu else ON_A_CPU, threads)
            }
    for row in record.rows:
        assert row["largest_error"] < {"float32": 1e-5, "bfloat16": 0.1}[row["dtype"]]


@pytest.mark.parametrize(argvalues=PEAKS, **of_each_device)
def test_in_tiles_memory_grows_with_the_length_and_else_with_its_square(record):
    assert not record.dirty
    peaks = {
        name: {row["s"]: row["mebibytes"] for row in record.where(provider=name)}
        for name in {row["provider"] for row in record.rows}
    }
    for name, of_length in peaks.items():
        first, last = 2048, max(of_length)
        growth = math.log(of_length[last] / of_length[first]) / math.log(last / first)
        assert (1.7 < growth < 2.2) if name in attention_speed.QUADRATIC else (growth < 1.2), (name, growth)
    for name in set(peaks) - set(attention_speed.QUADRATIC):
        assert peaks[name][16_384] < 1024
