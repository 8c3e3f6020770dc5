"""The Triton kernel, forward and backward, against float64: on a CUDA device, or in Triton's interpreter when
``TRITON_INTERPRET=1`` is set."""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import replace

from backpass.verify.case import Case, NotRun
from backpass.verify.convert import to_numpy, to_torch
from backpass.verify.precision import EPSILON, rows_against_float64
from backpass.verify.report import Row

NAME = "Triton kernel"
UNITS = {
    "float32": 4,
    "float16": 1,
    "bfloat16": 1,
}  # the least bound: it computes in float32, then rounds once


def run(case: Case) -> list[Row]:
    """A row for y and one a gradient; none for the reader's own object. Raises NotRun with the reason."""
    stem = case.subject.stem
    if stem is None:
        return []
    device = _device(case, stem)
    import torch

    dtype = getattr(torch, case.dtype if case.dtype in EPSILON else "float32")
    rounded = replace(case, inputs=tuple(to_torch(value, device, dtype) for value in case.inputs))
    kernel = importlib.import_module(f"backpass.kernels.{stem}")
    y, saved = kernel.forward(*rounded.inputs, **case.subject.options)
    gradients = rounded.by_input(kernel.backward(to_torch(rounded.dy, device, dtype), saved))
    where = "on CUDA" if device.startswith("cuda") else "in Triton's interpreter"
    rows = rows_against_float64(rounded, NAME, to_numpy(y), gradients, UNITS[rounded.dtype])
    return [replace(row, how=f"{where}, {row.how}") for row in rows]


def _device(case: Case, stem: str) -> str:
    """The device to run on. Raises NotRun with the reason when there is none."""
    if not _exists(f"backpass.kernels.{stem}"):
        raise NotRun(f"there is no kernel for {stem}")
    for needed in ("torch", "triton"):
        if not _exists(needed):
            raise NotRun(f"{needed} is not installed")
    import torch

    if os.environ.get("TRITON_INTERPRET") == "1":
        return "cpu"
    if torch.cuda.is_available():
        return case.device if case.device.startswith("cuda") else "cuda"
    raise NotRun("no CUDA device; TRITON_INTERPRET=1 runs it in Triton's interpreter")


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
