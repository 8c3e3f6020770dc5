"""Each benchmark script runs and leaves a valid record. No time is asserted: that is the machine's affair."""

import getpass
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from backpass.recorded import records

pytest.importorskip("torch")

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import harness  # noqa: E402

SCRIPTS = sorted(path.name for path in BENCHMARKS.glob("*.py") if "__main__" in path.read_text())
# Scripts that record no times: the experiments of pages, public kernels, and the CPU time of the two commands.
UNTIMED = {name for name in SCRIPTS if "milliseconds" not in (BENCHMARKS / name).read_text()}
SHARED = sorted(path for path in BENCHMARKS.glob("*.py") if path.name not in SCRIPTS)


def run(script: str, folder: Path) -> tuple[str, records.Record]:
    """Run a script with --quick, and return what it printed and the record it wrote."""
    source = os.pathsep.join(path for path in sys.path if path)
    printed = subprocess.run(
        [sys.executable, BENCHMARKS / script, "--quick", "--device", "cpu", "--results", folder],
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert printed.returncode == 0, printed.stderr
    (path,) = folder.iterdir()
    return printed.stdout, records.read(path)


def test_there_are_scripts():
    assert {"operations.py", "roofline.py"} <= set(SCRIPTS)


def operations_are_timed_by_every_provider_of_a_cpu(record):
    for name in {row["operation"] for row in record.rows}:
        steps = {"both"} if name.endswith("cross_entropy") else {"forward", "backward", "both"}
        found = {(row["step"], row["provider"]) for row in record.where(operation=name)}
        assert found == {
            (step, name) for step in steps for name in ("ours", "PyTorch")
        }  # --quick compiles none


def the_roofline_is_the_lower_of_both_ceilings(record):
    bandwidth, rate = (
        record.facts[key] for key in ("copy_gigabytes_per_second", "matmul_gigaflops_per_second")
    )
    for row in record.rows:
        assert row["intensity"] == row["flops"] / row["bytes"]
        assert row["ceiling_gigaflops_per_second"] == pytest.approx(min(rate, bandwidth * row["intensity"]))


MORE = {
    "operations.py": operations_are_timed_by_every_provider_of_a_cpu,
    "roofline.py": the_roofline_is_the_lower_of_both_ceilings,
}


@pytest.mark.rotates(share=0.2, of=lambda script: [BENCHMARKS / script, *SHARED])
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_quick_run_leaves_a_record(script, tmp_path):
    printed, record = run(script, tmp_path)
    assert record.name == Path(script).stem
    assert record.question in printed
    assert record.threads == 1
    assert set(record.versions) >= {"backpass", "python", "torch"}
    assert record.commit
    assert record.rows
    keys = [key for key, _, _ in record.columns]
    for row in record.rows:
        assert set(row) == set(keys)
        if script in UNTIMED:  # a page compares its own draw with the record
            continue
        assert row["milliseconds"] > 0
        if script != "training_run.py":  # a run is not compared with anything
            assert 0 <= row["largest_error"] < 1e-5
    # The record names no person and no host.
    for private in (getpass.getuser(), platform.node()):
        assert not re.search(rf"\b{re.escape(private)}\b", repr(record))
    MORE.get(script, lambda record: None)(record)


def test_only_experiments_of_pages_public_kernels_and_the_weight_are_not_timed():
    assert UNTIMED == {
        f"{name}.py"
        for name in (
            "gradient_depth",
            "gradient_noise",
            "gradient_warmup",
            "precision_runs",
            "public_kernels",
            "two_models",
            "weight",
        )
    }


def test_only_experiments_are_written_at_their_end():
    """A script that times several parts writes its record after each, so that a run that is cut short leaves them."""
    at_once = {name for name in SCRIPTS if "Recording(" not in (BENCHMARKS / name).read_text()}
    experiments = {"gradient_depth", "gradient_flow", "gradient_noise", "gradient_warmup", "precision_runs"}
    assert at_once == {f"{name}.py" for name in (*experiments, "training_run", "two_models")}


def test_a_device_that_is_not_there_is_rejected(monkeypatch, capsys):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    monkeypatch.setattr(sys, "argv", ["operations.py", "--device", "cuda"])
    with pytest.raises(SystemExit) as caught:
        harness.settings("How fast?")
    assert caught.value.code == 2
    assert "this machine has no CUDA device" in capsys.readouterr().err
