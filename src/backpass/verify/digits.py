"""Judge kernels that lose digits of numbers near 0, and of no others.

A small element of an element-wise result has to be as exact as PyTorch's. But code such
as ``(1 - e) / (1 + e)``, where e is near 1, is right: its error is a few units in the
last place of the largest element. A wrong formula may be off by as little. So the
kernels are executed once more with numbers in float64 beside those of the kernels, from
operands that were never rounded. If these numbers are within the bound, only rounding
is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from backpass.ptx.beside import CODES, SIZES
from backpass.ptx.shadow import Shadow, TooLong
from backpass.ptx.tensors import address_of
from backpass.verify.case import Case
from backpass.verify.convert import EPSILON, is_torch, to_numpy
from backpass.verify.report import FAILED, PASSED, Row

LOST = 4  # units in the last place of the largest element
SECONDS = 4.0  # of CPU time, for which kernels are executed once more
Compared = Callable[[Case, Any], Sequence[Row]]


def may_be_lost(rows: Sequence[Row], case: Case) -> bool:
    """Whether a row in float32 failed by so little that only small elements can have
    lost digits."""
    return case.dtype == "float32" and any(map(_is_slight, rows))


def with_lost(
    before: Sequence[Row], case: Case, again: Callable[..., Any], compared: Compared
) -> list[Row]:
    """Return the rows of kernels. One that failed by little passes if the numbers
    beside those of the kernels do; ``again`` executes them with a shadow."""
    shadow = Shadow(math.inf, overflows=False, seconds=SECONDS)
    suspects = {**case.found.suspects}
    try:
        done = again(shadow=shadow)
    except TooLong:
        return [*before]
    exact = done._replace(
        y=_each(done.y, shadow), gradients=_each(done.gradients, shadow)
    )
    passed = {row.quantity for row in compared(case, exact) if row.verdict == PASSED}
    case.found.suspects.clear()
    case.found.suspects.update(suspects)
    rows = []
    for row in before:
        if row.quantity in passed and _is_slight(row):
            case.found.suspects.pop((row.method, row.quantity), None)
            row = _as_lost(row)
        rows.append(row)
    return rows


def _is_slight(row: Row) -> bool:
    if row.verdict != FAILED or row.error is None:
        return False
    return row.error <= LOST * EPSILON["float32"]


def _as_lost(row: Row) -> Row:
    assert row.error is not None
    note = (
        f"elements of {row.quantity} near 0 lose digits: the error is "
        f"{row.error / EPSILON['float32']:.1g} units in the last place of the largest "
        "element; the same instructions without rounding are within the bound"
    )
    tolerance = LOST * EPSILON["float32"]
    return replace(row, verdict=PASSED, tolerance=tolerance, reason="", note=note)


def _each(value: Any, shadow: Shadow) -> Any:
    """Return what is beside each tensor of what forward or backward returned."""
    if isinstance(value, dict):
        return {name: _each(of, shadow) for name, of in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_each(of, shadow) for of in value)
    return _beside(value, shadow) if is_torch(value) else value


def _beside(tensor: Any, shadow: Shadow) -> Any:
    """Return the float64 numbers beside a tensor of float32 that a launch has written;
    the tensor itself where they are not known."""
    import torch

    if tensor.dtype != torch.float32 or not tensor.is_contiguous():
        return tensor
    executed = tensor.detach().view(torch.uint8).numpy().ravel()
    start, size = address_of(executed), executed.size
    for (address, n), (space, content) in shadow.spaces.items():
        at = start - address
        if not 0 <= at <= n - size:
            continue
        if not np.array_equal(content[at : at + size], executed):
            return tensor  # changed since
        slots = at // 2 + SIZES["f32"] * np.arange(tensor.numel())
        known = space.codes[slots] == CODES["f32"]
        numbers = np.where(known, space.values[slots], to_numpy(tensor).ravel())
        return torch.from_numpy(numbers.reshape(tuple(tensor.shape)))
    return tensor
