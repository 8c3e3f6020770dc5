"""The package's kernels, executed as compiled: in their own tests at odd sizes, and without their barriers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton", reason="kernels need triton, which is published for Linux")
HERE = Path(__file__).parent


def run(*command):
    """Run Python in a process whose kernels are compiled, not interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"BACKPASS_PTX": "1", "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, cwd=HERE.parents[1]
    )


def test_every_kernel_is_as_exact_as_in_the_interpreter():
    """In bfloat16, by the kernels' own tests at an odd shape; ``tests/compiled`` has the other dtypes."""
    tiles = "several_tiles and 37 and (softcap or last and not window) or beside_a_window"
    chosen = f"bfloat16 and (odd_sizes and (63 or 66 or 40) or {tiles})"
    done = run(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "tests/kernels", "-k", chosen
    )
    assert done.returncode == 0, done.stdout[-3000:]
    passed = int(done.stdout.rsplit(" passed", 1)[0].rsplit(None, 1)[-1])
    assert passed > 20, done.stdout[-300:]


def test_the_tests_of_compiled_kernels():
    """Those in ``tests/compiled``, in a process whose kernels are not interpreted."""
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "tests/compiled")
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout and " skipped" not in done.stdout


def test_a_removed_barrier_is_a_race():
    done = run(str(HERE / "changes.py"))
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert {stem for stem, _ in found} == {"softmax", "layer_norm", "cross_entropy"}
    # Two barriers are not needed. No thread uses shared memory before the first barrier of cross-entropy, which is
    # executed once. In layer norm, what a thread overwrites after the barrier is read before it by that thread alone.
    assert [stem for stem, what in found if what == "nothing"] == ["layer_norm", "cross_entropy"]
    assert all(what.startswith("Race: ") for _, what in found if what != "nothing")
