"""Judge kernels whose products round the operands to TF32, as the user declared.

A tolerance for TF32 would hide mistakes of the same size. So the kernels are executed
once more, with products that use all digits of their operands, and these results are
held to the bound of their dtype. By how much TF32 changes them is measured and noted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from backpass.verify.case import Case
from backpass.verify.convert import to_numpy
from backpass.verify.magnitude import largest
from backpass.verify.report import FAILED, PASSED, Row

DECLARE = "tf32_products=True accepts this rounding"


def judged(
    before: Sequence[Row],
    case: Case,
    rounded: Any,
    full: Any,
    compared: Callable[[Case, Any], Sequence[Row]],
) -> list[Row]:
    """Return the rows of kernels in place of those ``before``, given what they returned
    with operands rounded to TF32 and with all digits of these."""
    for row in before:  # of errors that are accepted
        case.found.suspects.pop((row.method, row.quantity), None)
    given, exact = (_by_quantity(case, done) for done in (rounded, full))
    rows = []
    for row in compared(case, full):
        if row.verdict == PASSED and row.quantity in exact:
            change = _change(given[row.quantity], exact[row.quantity])
            row = _with_change(row, change)
        rows.append(row)
    return rows


def _with_change(row: Row, change: float) -> Row:
    name = row.quantity
    size = f"by {change:.1e} of its largest element"
    if not change < 1:
        reason = f"TF32 leaves no digit of {name}: it changes {name} {size}"
        return replace(row, verdict=FAILED, error=change, tolerance=1.0, reason=reason)
    said = f"operands of products are rounded to TF32, which changes {name} {size}"
    how = f"with all digits of the operands of products, {row.how}"
    return replace(row, how=how, note=f"accepted, as declared: {said}")


def _by_quantity(case: Case, done: Any) -> dict[str, np.ndarray | None]:
    gradients = case.slots.by_input(done.gradients)
    named = {case.subject.quantity(at): gradients[at] for at in case.differentiable}
    return {"y": to_numpy(done.y), **named}


def _change(given: np.ndarray | None, exact: np.ndarray | None) -> float:
    """Return the largest change of an element, relative to the largest element."""
    if given is None or exact is None or given.shape != exact.shape:
        return 0.0 if given is exact is None else float("nan")
    known = np.isfinite(exact)
    change = np.abs(np.where(known, given, 0.0) - np.where(known, exact, 0.0))
    most = largest(exact)
    return float(change.max(initial=0.0)) / (most or 1.0)
