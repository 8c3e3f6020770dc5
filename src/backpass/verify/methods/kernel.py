"""Compare the Triton kernel, forward and backward, with float64.

It runs on a CUDA device, or in Triton's interpreter if ``TRITON_INTERPRET=1`` is set.
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from backpass import kernels
from backpass.interpreters import rounding
from backpass.verify.case import Case, Inputs, NotRun
from backpass.verify.convert import to_kind_of, to_numpy, to_torch
from backpass.verify.drawing import draw_like
from backpass.verify.methods.precision import LOW, rows_against_float64
from backpass.verify.report import FAILED, Row

NAME = "Triton kernel"

# A row longer than a program can hold is processed in pieces, perhaps by a different
# kernel. A few such rows are enough; their last piece is not full.
LONG_ROWS = {"*": (2,), "*a": (2,), "*b": (2,)}
BEYOND = 37


def run(case: Case) -> list[Row]:
    """Return a row for y and one for each gradient; none for the user's own object.

    If these pass and the kernel's module sets ROW_BYTES, there are also rows for inputs
    with longer rows than that. Raises NotRun if there is no kernel, or it cannot run.
    """
    stem = case.subject.stem
    if stem is None:
        return []
    if stem not in kernels.STEMS:
        raise NotRun("this operation has no kernel")
    if reason := kernels.available():
        raise NotRun(reason)
    kernel = kernels.load(stem)
    where = "in Triton's interpreter" if kernels.interpreted() else "on CUDA"
    where = "as compiled" if kernels.executed() else where
    device = kernels.device()
    device = case.device if case.device.startswith(device) else device
    dtype = case.dtype if case.dtype in LOW else "float32"
    here = replace(case, inputs=placed(case, case.inputs, dtype, device))
    rows = _rows(here, kernel, where, case.drawn)
    row_bytes = getattr(kernel, "ROW_BYTES", None)
    if row_bytes and all(row.verdict != FAILED for row in rows):
        longer = placed(case, long_rows(case, row_bytes), dtype, device)
        where += f", at rows of {length(row_bytes)}"
        at_long = replace(case, inputs=longer, given_dy=None)
        rows += _rows(at_long, kernel, where, drawn=True)
    return rows


def length(row_bytes: int) -> int:
    """Return a length of rows beyond that many bytes."""
    return row_bytes // 4 + BEYOND  # a kernel computes in float32


def long_rows(case: Case, row_bytes: int) -> Inputs:
    """Draw inputs like the case's, with rows of the first floating-point input that
    are longer than that many bytes."""
    shapes = case.subject.shapes
    assert shapes is not None  # an operation with a kernel declares them
    row = next(spec.axes[-1] for spec in shapes.inputs if spec.floating)
    lengths = {row: length(row_bytes)}
    return draw_like(shapes, case.rng, case.inputs, leading=LONG_ROWS, lengths=lengths)


def placed(case: Case, inputs: Inputs, dtype: str, device: str) -> Inputs:
    """Return the inputs as tensors of the dtype. Wide inputs remain in float32."""
    import torch

    low, wide = getattr(torch, dtype), torch.float32
    return tuple(
        to_torch(value, device, wide if at in case.wide else low)
        for at, value in enumerate(inputs)
    )


def _rows(case: Case, kernel: ModuleType, where: str, drawn: bool) -> list[Row]:
    y, saved = kernel.forward(*case.inputs, **case.subject.options)
    gradients = case.slots.by_input(kernel.backward(to_kind_of(y, case.dy), saved))
    rounds = world(case.dtype, kernel, drawn, interpreted=kernels.interpreted())
    results = to_numpy(y), gradients, case.dtype
    rows = rows_against_float64(case, NAME, *results, world=rounds, drawn=drawn)
    return [replace(row, how=f"{where}, {row.how}") for row in rows]


def world(
    dtype: str, kernel: ModuleType, drawn: bool, interpreted: bool = False
) -> rounding.Namespace:
    """Return the namespace that rounds as the kernel does.

    A kernel rounds where its operation does, and at the operands of tensor cores if its
    module sets OPERANDS. Triton's interpreter truncates float32 to bfloat16, where a
    GPU rounds.
    """
    truncates = dtype == "bfloat16" and interpreted
    units = {dtype: 2 * rounding.UNIT[dtype]} if truncates else None
    rounds_operands = dtype in rounding.SHORT and getattr(kernel, "OPERANDS", False)
    return rounding.Namespace(units, dtype if rounds_operands else None, random=drawn)
