"""Judge kernels that lose digits of numbers near 0, and of no others.

A small element of an element-wise result has to be as exact as PyTorch's. But code such
as ``(1 - e) / (1 + e)``, where e is near 1, is right: its error is a few units in the
last place of the largest element. A wrong formula may be off by as little, but not by
less than half a unit: so much a single rounding may change, and code that reads y from
memory has one more than PyTorch's. For more, the kernels are executed once more with
numbers in float64 beside those of the kernels, from operands that were never rounded.
If these numbers are within the bound, only rounding is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from backpass.ptx.shadow import Shadow, TooLong
from backpass.verify.case import Case
from backpass.verify.convert import EPSILON
from backpass.verify.report import FAILED, PASSED, Row
from backpass.verify.unrounded import without_rounding

ROUNDED = 0.5  # units in the last place of the largest element: one rounding
FORMULA = 2  # such units: what a polynomial in place of a function is off by
LOST = 4  # such units that small elements may lose
SECONDS = 4.0  # of CPU time, for which kernels are executed once more
UNIT = EPSILON["float32"]
# Returns the rows of a case, given what was executed and the error that is allowed.
Compared = Callable[[Case, Any, float], Sequence[Row]]


def may_be_lost(rows: Sequence[Row], case: Case) -> bool:
    """Whether a row in float32 failed by so little that only small elements can have
    lost digits."""
    return case.dtype == "float32" and any(
        row.verdict == FAILED and row.error is not None and row.error <= LOST * UNIT
        for row in rows
    )


def with_lost(
    before: Sequence[Row],
    case: Case,
    done: Any,
    again: Callable[..., Any],
    compared: Compared,
) -> list[Row]:
    """Return the rows of kernels. One that failed by little passes if the numbers
    beside those of the kernels are right; ``again`` executes them with a shadow."""
    apart = case.with_own_suspects()

    def right(done: Any, units: float) -> set[str]:
        rows = compared(apart, done, units * UNIT)
        return {row.quantity for row in rows if row.verdict == PASSED}

    rounded, lost = right(done, ROUNDED), right(done, LOST)
    wrong = {row.quantity for row in before if row.verdict == FAILED}
    if lost & wrong - rounded:
        shadow = Shadow(math.inf, overflows=False, seconds=SECONDS)
        try:
            found = again(shadow=shadow)
        except TooLong:
            lost = rounded
        else:
            lost &= right(without_rounding(found, shadow), FORMULA)
    rows = []
    for row in before:
        if row.verdict == FAILED and row.quantity in rounded | lost:
            case.found.suspects.pop((row.method, row.quantity), None)
            row = _as_lost(row, row.quantity in rounded)
        rows.append(row)
    return rows


def _as_lost(row: Row, rounded: bool) -> Row:
    most = ROUNDED if rounded else LOST
    note = (
        f"elements of {row.quantity} near 0 lose digits: each error is at most {most:g} "
        "units in the last place of the largest element"
    )
    if not rounded:
        note += ", and the same instructions without rounding are right"
    return replace(row, verdict=PASSED, tolerance=most * UNIT, reason="", note=note)
