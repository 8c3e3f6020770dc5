"""NumPy alone suffices to check a NumPy backward: without PyTorch and Triton, what needs them is not run."""

import json
import os
import subprocess
import sys

import pytest

HIDE = """
import sys
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] in ("torch", "triton", "matplotlib")
        return None if hidden else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding
"""

CHECKS = """
import contextlib, io, json
from types import SimpleNamespace
import numpy as np
import backpass
from backpass import cli
from backpass.verify import check

own = SimpleNamespace(forward=lambda x: (x * x, x), backward=lambda dy, x: 2 * x * dy)
wrong = SimpleNamespace(forward=lambda x: (x * x, x), backward=lambda dy, x: x * dy)
x = np.random.default_rng(0).normal(size=(2, 3))
found = {
    "own": check(own, x, raises=False).to_dict(),
    "low": check(own, x.astype(np.float32), raises=False).to_dict(),
    "wrong": check(wrong, x, raises=False).to_dict(),
}
out, err = io.StringIO(), io.StringIO()
with contextlib.redirect_stdout(out):
    found["verify"] = cli.main(["verify", "softmax"])
found["said"] = out.getvalue()
for name, arguments in (
    ("help", ["--help"]),
    ("dtype", ["verify", "softmax", "--dtype", "bfloat16"]),
    ("device", ["verify", "softmax", "--device", "cpu"]),
    ("torch", ["check", "backpass.ops.softmax", "--torch"]),
):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err), contextlib.suppress(SystemExit):
        cli.main(arguments)
with contextlib.redirect_stdout(io.StringIO()):
    found["check"] = cli.main(["check", "backpass.ops.softmax"])
found["err"] = err.getvalue()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict:
    """What one process found in which PyTorch, Triton and Matplotlib cannot be imported."""
    done = subprocess.run(
        [sys.executable, "-c", HIDE + CHECKS],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_numpy_backward_is_checked(found):
    verdicts = {row["method"]: row["verdict"] for row in found["own"]["rows"]}
    assert found["own"]["passed"]
    assert {"contract", "finite differences", "complex step"} <= {
        m for m, v in verdicts.items() if v == "passed"
    }
    assert verdicts["torch autograd"] == "not run"
    assert not found["wrong"]["passed"] and found["wrong"]["findings"][0]["what"] == "got = ½ × reference"


def test_low_precision_does_not_need_it(found):
    assert not {row["verdict"] for row in found["low"]["rows"]} & {"could not run", "FAILED"}


def test_the_reason_is_said(found):
    reasons = {row["method"]: row["reason"] for row in found["own"]["rows"]}
    assert reasons["torch autograd"] == "PyTorch is not installed"


def test_the_command_line(found):
    assert found["verify"] == found["check"] == 0
    assert "torch autograd, softmax: PyTorch is not installed" in found["said"]
    assert found["said"].splitlines()[-1].startswith("✓ passed: 1 operation")
    assert found["err"].count("PyTorch is not installed; it comes with backpass[torch]") == 3
