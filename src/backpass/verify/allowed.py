"""Judge kernels whose error comes from what a GPU may round differently.

These are products that round their operands to TF32, if the user declares them, and
units such as division, which may have an error of two units in the last place. A larger
tolerance would hide mistakes of the same size. So the kernels are executed once more
without these errors, and the results are held to the bound of their dtype. By how much
the errors change them is measured and noted.
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
AMPLIFIED = 1e-2  # of the largest element: the most that the errors of units may change
Compared = Callable[[Case, Any], Sequence[Row]]


def with_tf32(
    before: Sequence[Row], case: Case, given: Any, exact: Any, compared: Compared
) -> list[Row]:
    """Return the rows of kernels in place of those ``before``, given what they returned
    with operands rounded to TF32, and what with all digits of these."""
    for row in before:  # of errors that are accepted
        case.found.suspects.pop((row.method, row.quantity), None)
    changes = _changes(case, given, exact)
    rows = []
    for row in compared(case, exact):
        change = changes.get(row.quantity)
        if row.verdict != PASSED or change is None:
            rows.append(row)
            continue
        name, size = row.quantity, f"by {change:.1e} of its largest element"
        if change < 1:
            note = (
                "accepted, as declared: operands of products are rounded to TF32, "
                f"which changes {name} {size}"
            )
            how = f"with all digits of the operands of products, {row.how}"
            rows.append(replace(row, how=how, note=note))
        else:
            reason = f"TF32 leaves no digit of {name}: it changes {name} {size}"
            wrong = replace(row, verdict=FAILED, error=change, tolerance=1.0)
            rows.append(replace(wrong, reason=reason))
    return rows


def may_be_units(rows: Sequence[Row]) -> bool:
    """Whether a row failed by so little that the errors of units may explain it."""
    return any(map(_is_slight, rows))


def with_units(
    before: Sequence[Row], case: Case, given: Any, exact: Any, compared: Compared
) -> list[Row]:
    """Return the rows of kernels, given what they returned with the errors that PTX
    allows their units, and what with units that round to the nearest. A row that the
    second result does not explain is that ``before``."""
    changes = _changes(case, given, exact)
    again = compared(case.with_own_suspects(), exact)
    passed = {row.quantity: row for row in again if row.verdict == PASSED}
    rows = []
    for row in before:
        own, change = passed.get(row.quantity), changes.get(row.quantity, np.inf)
        if own is None or not _is_slight(row) or not change < AMPLIFIED:
            rows.append(row)
            continue
        case.found.suspects.pop((row.method, row.quantity), None)
        note = (
            f"the errors that PTX allows units such as division change {row.quantity} "
            f"by {change:.1e} of its largest element"
        )
        how = f"with units that round to the nearest, {own.how}"
        rows.append(replace(own, how=how, note=note))
    return rows


def _is_slight(row: Row) -> bool:
    return row.verdict == FAILED and row.error is not None and row.error < AMPLIFIED


def _changes(case: Case, given: Any, exact: Any) -> dict[str, float]:
    """Return the largest change of an element of each quantity, relative to the largest
    element."""
    before, after = (by_quantity(case, done) for done in (given, exact))
    return {name: _change(before[name], own) for name, own in after.items()}


def by_quantity(case: Case, done: Any) -> dict[str, np.ndarray | None]:
    """Return y and the gradients of an execution."""
    gradients = case.slots.by_input(done.gradients)
    named = {case.subject.quantity(at): gradients[at] for at in case.differentiable}
    return {"y": to_numpy(done.y), **named}


def _change(given: np.ndarray | None, exact: np.ndarray | None) -> float:
    if given is None or exact is None or given.shape != exact.shape:
        return 0.0 if given is exact is None else float("nan")
    known = np.isfinite(exact)
    change = np.abs(np.where(known, given, 0.0) - np.where(known, exact, 0.0))
    most = largest(exact)
    return float(change.max(initial=0.0)) / (most or 1.0)
