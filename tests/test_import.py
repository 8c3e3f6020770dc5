"""Importing the package is cheap, and brings in none of the heavy libraries."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "triton", "sympy", "matplotlib")


def imported(statement):
    """Return the CPU seconds of the statement in a fresh interpreter, and the heavy libraries that it imports."""
    program = (
        "import json, sys, time; start = time.process_time()\n"
        f"{statement}\n"
        "seconds = time.process_time() - start\n"
        f"print(json.dumps([seconds, [name for name in {HEAVY} if name in sys.modules]]))"
    )
    return json.loads(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)


@pytest.mark.parametrize(
    "statement",
    [
        "import backpass",
        "import backpass.contract.arrays, backpass.contract.shapes, backpass.contract.values",
        "from backpass.ops import softmax, linear, matmul, scale, fork, residual",
        "from backpass.models import encoder, gpt2, llama, seq2seq",
        "from backpass.training import accumulation, adamw, batches, clipping, schedule",
        "from backpass.training import initial, run, sampling, states, texts",
        "import backpass.cost",
        "import backpass.interpreters.counting",
    ],
)
def test_brings_in_nothing_heavy(statement):
    assert imported(statement)[1] == []


def test_takes_less_than_three_tenths_of_a_cpu_second():
    assert min(imported("import backpass")[0] for _ in range(3)) < 0.3
