"""The Triton kernel, forward and backward, against float64: on a CUDA device, or in Triton's interpreter when
``TRITON_INTERPRET=1`` is set."""

from __future__ import annotations

from dataclasses import replace

from backpass import kernels
from backpass.verify.case import Case, NotRun
from backpass.verify.convert import to_numpy, to_torch
from backpass.verify.precision import LOW, rows_against_float64
from backpass.verify.report import Row

NAME = "Triton kernel"
# In the last place, the least bound: a kernel computes in float32, then rounds once.
UNITS = {"float32": 4, "float16": 1, "bfloat16": 1}


def run(case: Case) -> list[Row]:
    """A row for y and one a gradient; none for the reader's own object. Raises NotRun with the reason."""
    stem = case.subject.stem
    if stem is None:
        return []
    if stem not in kernels.STEMS:
        raise NotRun("this operation has no kernel")
    if reason := kernels.available():
        raise NotRun(reason)
    import torch

    device = case.device if case.device.startswith(kernels.device()) else kernels.device()
    dtype = getattr(torch, case.dtype if case.dtype in LOW else "float32")
    rounded = replace(case, inputs=tuple(to_torch(value, device, dtype) for value in case.inputs))
    kernel = kernels.load(stem)
    y, saved = kernel.forward(*rounded.inputs, **case.subject.options)
    gradients = rounded.by_input(kernel.backward(to_torch(rounded.dy, device, dtype), saved))
    where = "in Triton's interpreter" if kernels.interpreted() else "on CUDA"
    rows = rows_against_float64(rounded, NAME, to_numpy(y), gradients, UNITS[rounded.dtype])
    return [replace(row, how=f"{where}, {row.how}") for row in rows]
