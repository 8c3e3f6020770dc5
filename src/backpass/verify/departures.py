"""Name the line at which a wrong kernel loses its digits.

The kernels of a check that failed are executed once more, with numbers in float64
beside those of the kernels, from operands that were never rounded. If these numbers are
right, the first instruction that departs from them far enough to explain the error is
named. If none departs, or if they are as wrong, the error is not one of rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from backpass import ptx
from backpass.ptx.shadow import Shadow, TooLong
from backpass.verify.allowed import DECLARE, by_quantity
from backpass.verify.case import Case
from backpass.verify.comparison import largest_error
from backpass.verify.convert import EPSILON
from backpass.verify.diagnosis import NOTHING_FOUND
from backpass.verify.findings import Suspect, Wrong
from backpass.verify.report import FAILED, Row
from backpass.verify.unrounded import without_rounding

SECONDS = 4.0  # of CPU time; an execution that takes longer names nothing
SHARE = 0.25  # of the error: what an instruction that explains it departs by
AGREES = (
    "every instruction of the kernels agrees with float64 up to rounding: look for a "
    "wrong formula, index, or mask"
)
AS_WRONG = (
    "without rounding, the same instructions are as wrong: look for a wrong formula, "
    "index, or mask"
)
REMAINS = 0.5  # of the error: what rounding does not explain
FIRST = "the first instruction that departs from float64 is "
TO_EIGHT_BITS = (
    "converts to 8-bit numbers, and one that is rounded differently becomes its "
    "neighbour: compare the conversions; every other instruction agrees with float64 up "
    "to rounding"
)


class Departed(NamedTuple):
    """The line that departs from float64, "" if none does, or None if it is not known;
    and y and the gradients without rounding."""

    line: str | None
    exact: dict[str, np.ndarray | None]


def named(rows: Sequence[Row], case: Case, again: Callable[[Shadow], Any]) -> list[Row]:
    """Return the rows of an execution; those that failed name the line that departs
    from float64. ``again`` executes the kernels with a shadow."""
    if not case.explain:
        return [*rows]

    @cache
    def departed(limit: float, overflows: bool) -> Departed:
        shadow = Shadow(limit, overflows, SECONDS)
        try:
            done = again(shadow)
        except TooLong:
            return Departed(None, {})
        exact = by_quantity(case, without_rounding(done, shadow))
        return Departed(_departed(done, shadow), exact)

    def said(error: float, wrong: Wrong | None, quantity: str) -> str | None:
        if not math.isfinite(error):
            return departed(SHARE, True).line
        if wrong is not None:
            error = largest_error(wrong.got, wrong.reference)
        limit = max(2 * EPSILON[case.dtype], SHARE * min(error, 1.0))
        line, exact = departed(limit, False)
        own = exact.get(quantity)
        if line == "" or wrong is None or own is None or own.shape != wrong.got.shape:
            return line
        remains = largest_error(own, wrong.reference)
        # Where the numbers beside are not known, they are those of the execution.
        return AS_WRONG if REMAINS * error < remains != error else line

    return [_with_line(row, case, said) for row in rows]


def with_cause(rows: Sequence[Row], case: Case, cause: str) -> list[Row]:
    """Return the rows of an execution; those that failed name a known cause. A right
    value has it as a note."""
    found = []
    for row in rows:
        if row.verdict != FAILED:
            row = replace(row, note="; ".join(filter(None, (row.note, cause))))
        elif (known := case.found.suspects.get((row.method, row.quantity))) is None:
            row = replace(row, reason=f"{row.reason}; {cause}")
        else:
            told = _told(known, cause)
            case.found.suspects[row.method, row.quantity] = told
        found.append(row)
    return found


def _told(known: Suspect, cause: str) -> Suspect:
    def diagnose(seconds: float) -> str:
        return f"{known.diagnose(seconds)}; {cause}"

    return replace(known, diagnose=diagnose)


def _with_line(row: Row, case: Case, said: Callable[..., str | None]) -> Row:
    if row.verdict != FAILED or not row.quantity or row.error is None:
        return row
    error, key = row.error, (row.method, row.quantity)
    known = case.found.suspects.get(key)
    if known is None:
        line = said(error, None, row.quantity) if not math.isfinite(error) else None
        return replace(row, reason=f"{row.reason}; {line}") if line else row
    if not math.isfinite(error):  # the shapes differ
        return row

    def diagnose(seconds: float) -> str:
        found = known.diagnose(seconds)
        wrong = known.arrays() if known.arrays else None
        line = said(error, wrong, row.quantity)
        unknown = NOTHING_FOUND in found
        if line is None or not (unknown or line.startswith(FIRST)):
            return found
        return f"{found}; {line or AGREES}"

    case.found.suspects[key] = replace(known, diagnose=diagnose)
    return row


def _departed(done: Any, shadow: Shadow) -> str | None:
    """Return the line that departs by more than the shadow's limit, and None if it is
    not known. If none does, return one that converts to 8 bits, or ""."""
    first = shadow.first
    if first is None:
        return _to_eight_bits(run.text for run in done.verdict.runs)
    reaches = shadow.stored > shadow.limit
    if shadow.overflows and math.isfinite(shadow.stored):
        # An operation on bits may have hidden where it comes from.
        reaches = not math.isfinite(first.got) and not done.verdict.unwritten
    if not reaches:
        return None
    where = f" at {first.place}" if first.place else ""
    return (
        f"{FIRST}{first.instruction}{where}: {first.got:.7g} instead of {first.exact:.7g} in block {first.block}, "
        f"thread {first.thread}{_cure(first.instruction)}"
    )


def _to_eight_bits(texts: Iterable[str]) -> str:
    """Return the first line of kernels that converts to 8 bits; "" if none does. For
    capability 8.0, Triton compiles it to instructions on bits."""
    for text in dict.fromkeys(texts):
        for instruction in ptx.parse(text).code:
            place = instruction.place
            if place is not None and "float8" in place.text:
                return f"{place} {TO_EIGHT_BITS}"
    return ""


def _cure(instruction: str) -> str:
    """Return what to do about an instruction that rounds its operands or result."""
    operation, *modifiers = instruction.split(".")
    if "tf32" in modifiers:
        return (
            "; tl.dot rounds operands in float32 to TF32 unless "
            f'input_precision="ieee"; {DECLARE}'
        )
    types = (x.removesuffix("x2") for x in modifiers)
    short = [_SHORT[x] for x in types if x in _SHORT]
    if short and operation != "mma":
        return f"; it rounds to {short[0]}"
    return ""


_SHORT = {"f16": "float16", "bf16": "bfloat16"}
