"""A kernel's forward and backward as compiled, in this process, or in another one if
the kernels of this one are interpreted."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from backpass import kernels, ptx


class Call(NamedTuple):
    """Inputs of a forward, its options, and the cotangent for its backward."""

    inputs: tuple[object, ...]
    options: Mapping[str, object]
    dy: np.ndarray
    approximate: int | None = None  # the seed of the approximate units' errors


class Passed(NamedTuple):
    """What a forward and a backward returned, and what else the verdict says."""

    y: torch.Tensor
    gradients: Any
    unsettled: list[str]
    unwritten: list[str]


def passes(stem: str, calls: Sequence[Call]) -> list[Passed | ptx.Fault]:
    """Execute the kernel of an operation as compiled, once for each call.

    Raises RuntimeError if another process is needed, and it fails.
    """
    if not kernels.interpreted():
        return [_passed(stem, call) for call in calls]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop("TRITON_INTERPRET", None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calls"
        torch.save((stem, list(calls)), path)
        main = f"import {__name__} as passes; passes.main({str(path)!r})"
        command = [sys.executable, "-c", main]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RuntimeError(f"executing the compiled kernel {stem!r} failed: {last}")
        return torch.load(path, weights_only=False)


def _passed(stem: str, call: Call) -> Passed | ptx.Fault:
    from backpass.kernels import compiled

    kernel = kernels.load(stem)
    try:
        with compiled.executing(approximate=call.approximate) as verdict:
            y, saved = kernel.forward(*call.inputs, **call.options)
            gradients = kernel.backward(torch.as_tensor(call.dy).to(y.dtype), saved)
    except ptx.Fault as fault:
        return fault
    return Passed(y, gradients, [*map(str, verdict.unsettled)], verdict.unwritten)


def main(path: str) -> None:
    """Replace the calls in a file by what they return."""
    stem, calls = torch.load(path, weights_only=False)
    torch.save(passes(stem, calls), path)
