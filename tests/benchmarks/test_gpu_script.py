"""``benchmarks/gpu.sh`` fits into nine minutes, writes as it goes, and continues where the last run stopped.

A script in place of Python notes what it is called with, and leaves what the benchmark or the tests would leave.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
if not (shutil.which("bash") and shutil.which("timeout") and sys.platform == "linux"):
    pytest.skip("the script needs bash and GNU coreutils", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu.sh"
RECORDS = [
    "operations",
    "captured_step",
    "attention_speed",
    "linear_cross_entropy_memory",
    "attention_memory",
]
RECORDS += ["roofline"]
ORDER = ["new", *RECORDS, "tests", "far"]
STAND_IN = """#!/usr/bin/env bash
echo "$*" >>"$CALLS"
[[ "$*" == *"$CUT"* ]] && exit 130
[[ "$*" == *--rehearse* || "$1" == -m ]] && exit 0
name=$(basename "$1" .py)
while [[ "$1" != --results ]]; do shift; done
echo '  "finished": true' >"$2/$name-gpu.json"
"""


@pytest.fixture
def run(tmp_path):
    stand_in, calls = tmp_path / "python", tmp_path / "calls"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)

    def run(*parts, cut="no such call", **settings):
        """Run the script; return its status, what it printed, and the calls by their first words."""
        calls.write_text("")
        own = {"PYTHON": str(stand_in), "CALLS": str(calls), "CUT": cut, "BACKPASS_COMMIT": "0123456789ab"}
        done = subprocess.run(
            ["bash", SCRIPT, tmp_path / "results", *parts],
            env={**os.environ, **own, **settings},
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout, calls.read_text().splitlines()

    return run


def started(printed):
    """The parts that were started, with the seconds that each may take."""
    found = re.findall(r"^\[\d+ s\] (\w+), at most (\d+) s$", printed, re.MULTILINE)
    return {name: int(seconds) for name, seconds in found}


def test_the_parts_run_in_order_and_leave_nothing(run):
    status, printed, calls = run()
    assert status == 0, printed
    assert list(started(printed)) == ORDER
    assert printed.splitlines()[-1].endswith("failed or cut: nothing; left: nothing")
    timed = [Path(call.split()[0]).stem for call in calls if "--results" in call]
    assert timed == RECORDS
    assert all((SCRIPT.parent / f"{name}.py").is_file() for name in RECORDS)
    assert "softcap or dropout" in next(call for call in calls if "pytest" in call)


def test_a_second_run_has_nothing_to_do(run):
    run()
    status, printed, calls = run()
    assert status == 0 and not calls
    assert printed.count("done by an earlier run") == len(ORDER)


def test_a_part_that_was_cut_is_continued(run):
    status, printed, _ = run(cut="benchmarks/operations.py --results")
    assert status == 1 and "failed or cut: operations; left: operations" in printed
    status, printed, calls = run()
    assert status == 0 and list(started(printed)) == ["operations"] and len(calls) == 1


def test_all_parts_together_keep_to_the_budget(run):
    """A part gets no more than what is left, and is not started for a few seconds."""
    _, printed, _ = run(BUDGET="60")
    assert max(started(printed).values()) <= 60
    _, printed, calls = run("tests", "far", BUDGET="19")
    assert not calls and printed.count("left to the next run") + printed.count("done by an earlier run") == 2
    status, _, calls = run("no_such_part")
    assert status != 0 and not calls
    assert "budget=${BUDGET:-540}" in SCRIPT.read_text()


def test_without_time_everything_is_left(run):
    status, printed, calls = run(BUDGET="0")
    assert status == 1 and not calls
    assert printed.splitlines()[-1].endswith(f"left: {' '.join(ORDER)}")


def test_it_measures_on_a_cpu_at_tiny_sizes(tmp_path):
    """One part as it is; the others call scripts that have tests of their own."""
    own = {
        "PYTHON": sys.executable,
        "TINY": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    done = subprocess.run(
        ["bash", SCRIPT, tmp_path, "roofline"], env={**os.environ, **own}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + (tmp_path / "log.txt").read_text()
    (path,) = tmp_path.glob("roofline-*.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["finished"] and record["rows"] and record["code"]
