"""Each benchmark script runs and leaves a valid record. No time is asserted: that is the machine's affair."""

import getpass
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from backpass import records

pytest.importorskip("torch")

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPTS = sorted(path.name for path in BENCHMARKS.glob("*.py") if "__main__" in path.read_text())
UNTIMED = {path.name for path in BENCHMARKS.glob("*.py") if "import digits, of_page" in path.read_text()}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs a script with --quick and returns what it printed and the record it wrote, once a script."""
    done: dict[str, tuple[str, records.Record]] = {}

    def once(script: str) -> tuple[str, records.Record]:
        if script not in done:
            folder = tmp_path_factory.mktemp("results")
            source = os.pathsep.join(path for path in sys.path if path)
            printed = subprocess.run(
                [sys.executable, BENCHMARKS / script, "--quick", "--device", "cpu", "--results", folder],
                env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
            )
            assert printed.returncode == 0, printed.stderr
            (path,) = folder.iterdir()
            done[script] = printed.stdout, records.read(path)
        return done[script]

    return once


def test_there_are_scripts():
    assert {"operations.py", "roofline.py"} <= set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_quick_run_leaves_a_record(script, run):
    printed, record = run(script)
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


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_record_names_no_person_and_no_host(script, run):
    _, record = run(script)
    for private in (getpass.getuser(), platform.node()):
        assert not re.search(rf"\b{re.escape(private)}\b", repr(record))


def test_the_experiments_of_pages_are_not_timed():
    assert UNTIMED == {
        f"{name}.py"
        for name in ("gradient_depth", "gradient_noise", "gradient_warmup", "precision_runs", "two_models")
    }


def test_the_operations_are_timed_by_every_provider_of_a_cpu(run):
    _, record = run("operations.py")
    for name in {row["operation"] for row in record.rows}:
        steps = {"both"} if name.endswith("cross_entropy") else {"forward", "backward", "both"}
        found = {(row["step"], row["provider"]) for row in record.where(operation=name)}
        assert found == {
            (step, name) for step in steps for name in ("ours", "PyTorch")
        }  # --quick compiles none


def test_the_roofline_is_the_lower_of_both_ceilings(run):
    _, record = run("roofline.py")
    bandwidth, rate = (
        record.facts[key] for key in ("copy_gigabytes_per_second", "matmul_gigaflops_per_second")
    )
    for row in record.rows:
        assert row["intensity"] == row["flops"] / row["bytes"]
        assert row["ceiling_gigaflops_per_second"] == pytest.approx(min(rate, bandwidth * row["intensity"]))


def test_a_device_that_is_not_there_is_refused():
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "operations.py", "--device", "cuda"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "this machine has no CUDA device" in done.stderr
