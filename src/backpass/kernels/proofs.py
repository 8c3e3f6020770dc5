"""Ask an external prover whether executed kernels have races in any schedule.

An execution finds the races of one order of the threads. SentryWard, an optional
package on PyPI, reads the same PTX, launch, and numbers, and proves that no schedule of
the launch has a race or a deadlock, or says why it cannot. What it cannot prove may be
right: it counts as not proved, and not as wrong.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from backpass.kernels.compiled import Run

PROVER = "sentryward"
SECONDS = 60  # for each launch
MEMORY = 4096  # MiB
MISSING = "the prover is not installed: pip install sentryward"
PROVED = ("race_free", "verified")


class Proof(NamedTuple):
    """What the prover says of one launch: ``proved``, and why not otherwise."""

    kernel: str
    programs: int
    proved: bool
    said: str


def missing() -> bool:
    """Whether the prover is not installed."""
    return importlib.util.find_spec(PROVER) is None


def prover() -> str:
    """Return the prover's name and version."""
    return f"SentryWard {importlib.metadata.version(PROVER)}"


def of(runs: Iterable[Run]) -> list[Proof]:
    """Return a proof, or an attempt, for each launch; equal launches have one."""
    found: dict[Any, Proof] = {}
    for run in runs:
        key = run.text, run.grid, tuple(run.numbers.items())
        if key not in found:
            found[key] = _of_one(run)
    return [*found.values()]


def _of_one(run: Run) -> Proof:
    programs = 1
    for length in run.grid:
        programs *= length
    answer = _asked(run.text, _input(run))
    result = str(answer.get("result", "no answer"))
    messages = [str(x.get("message", "")) for x in answer.get("diagnostics", ())]
    said = ": ".join([result.replace("_", " "), *filter(None, messages[:1])])
    return Proof(run.kernel, programs, result in PROVED, said)


def _input(run: Run) -> dict[str, Any]:
    """Return the prover's description of a launch. Tensors stay symbolic."""
    grid: Sequence[int] = (*run.grid, 1, 1)[:3]
    numbers = [
        {"type": type, "offset": 0, "parameter": name, "value": value}
        for name, (type, value) in run.numbers.items()
    ]
    return {
        "schema": "spverify.kernel-input/v1",
        "launch": {"grid_dim": [*grid], "block_dim": [run.threads, 1, 1]},
        "arguments": numbers,
    }


def _asked(text: str, description: dict[str, Any]) -> dict[str, Any]:
    """Return the prover's answer."""
    with tempfile.TemporaryDirectory() as folder:
        kernel, given = Path(folder) / "kernel.ptx", Path(folder) / "input.json"
        kernel.write_text(text)
        given.write_text(json.dumps(description))
        command = [sys.executable, "-m", PROVER, str(kernel), "--input", str(given)]
        command += ["--timeout", str(SECONDS), "--memory-limit-mib", str(MEMORY)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        return {"result": "error", "diagnostics": [{"message": last}]}
    return answer if isinstance(answer, dict) else {}
