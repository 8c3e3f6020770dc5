"""What a failure at other inputs of an executed kernel does not show: a fault.

A forward that is wrong there may not be made for them, and a small error may be one of
rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from backpass.verify.report import FAILED, Row
from backpass.verify.vary.rows import not_run

NAME = "varied inputs"
UNKNOWN = "the reference is NaN at"
COARSE = 1e-3  # a smaller error may be one of rounding
OF_INTEGERS = (
    "forward is not right there, so it may be made for integers like those given"
)
OF_NAN = (
    "y is NaN there, and the operator's is not; if this may be given, it is a fault, "
    "which a check with SHAPES reports"
)
OF_OPTIONS = (
    "forward is not right there, so the option may mean another thing to the operator"
)


def if_right(found: list[Row], otherwise: str) -> list[Row]:
    """Return the rows of other integers or options; if y is wrong there, or a kernel
    does not run to its end, one row that says why nothing follows."""
    wrong = {row.quantity: row for row in found if row.verdict == FAILED}
    if "y" in wrong or [*wrong] == [""]:
        what = found[0].variation
        if "NaN at" in wrong.get("y", found[0]).reason:
            otherwise = OF_NAN
        return [replace(not_run(NAME, what, otherwise), variation=what)]
    return found


def with_reference(found: list[Row]) -> list[Row]:
    """Return the rows; one that was not run if the operator's gradient is NaN, as that
    of a mean of no elements may be."""
    if any(row.verdict == FAILED and UNKNOWN in row.reason for row in found):
        what = found[0].variation
        reason = "a gradient of the operator is NaN there"
        return [replace(not_run(NAME, what, reason), variation=what)]
    return found


def without_small_errors(
    found: Sequence[Row], others: str = "other lengths"
) -> list[Row]:
    """Return the rows, with one that was not run in place of those that failed by a
    small error. A mask that is wrong shows in faults or large errors, and so does an
    overflow."""
    small = [row for row in found if row.verdict == FAILED and 0 < _error(row) < COARSE]
    if not small:
        return [*found]
    errors = ", ".join(f"{_error(row):.1e} in {row.quantity}" for row in small)
    reason = (
        f"left to the {others}, because its error ({errors}) is below {COARSE:g} "
        "and may be one of rounding"
    )
    what = small[0].variation
    left = replace(not_run(NAME, what, reason), variation=what)
    return [*(row for row in found if row not in small), left]


def _error(row: Row) -> float:
    return row.error or 0.0 if row.relative is None else row.relative
