"""Execute a kernel's compiled forward and backward, in this process, or in a child
process if this process interprets its kernels."""

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
from backpass.kernels.as_cuda import CAPABILITY


class Call(NamedTuple):
    """The inputs and options of a forward, and the cotangent for its backward."""

    inputs: tuple[object, ...]
    options: Mapping[str, object]
    dy: np.ndarray
    approximate: int | None = None  # the seed of the approximate units' errors
    capability: tuple[int, int] = CAPABILITY


class Passed(NamedTuple):
    """What a forward and a backward returned, and what the verdict lists as wrong."""

    y: torch.Tensor
    gradients: Any
    unsettled: list[str]
    unwritten: list[str]


def passes(stem: str, calls: Sequence[Call]) -> list[Passed | ptx.Fault]:
    """Execute the compiled kernel of an operation, once for each call.

    Return what each call returned, or its fault. Raises RuntimeError if the child
    process fails.
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
        with compiled.executing(
            approximate=call.approximate, capability=call.capability
        ) as verdict:
            y, saved = kernel.forward(*call.inputs, **call.options)
            gradients = kernel.backward(torch.as_tensor(call.dy).to(y.dtype), saved)
    except ptx.Fault as fault:
        return fault
    unsettled = [*map(str, (*verdict.unsettled, *verdict.rounded))]
    return Passed(y, gradients, unsettled, verdict.unwritten)


def main(path: str) -> None:
    """Read calls from a file, execute them, and write their results to the file."""
    stem, calls = torch.load(path, weights_only=False)
    torch.save(passes(stem, calls), path)
