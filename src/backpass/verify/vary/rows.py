"""Run the methods of one variation within the limit of work, and sum up their rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from backpass.verify.case import Case, first_line
from backpass.verify.methods import complex_step
from backpass.verify.report import NOT_RUN, PASSED, Row
from backpass.verify.vary.work import TooMuch, Work

TOO_LONG = "it would exceed the work limit of this check"
EXCLUDED = "SHAPES does not allow it"
OTHER_OUTPUTS = "forward's outputs have other shapes than SHAPES declares"

SEARCH = 2.0  # seconds for the diagnosis of one variation

RowsOf = Callable[[Case, Sequence[str]], list[Row]]


def not_run(name: str, what: str, reason: str) -> Row:
    """Return the row of a variation that was not run."""
    return Row(name, "", NOT_RUN, reason=f"{what}: {reason}")


def backward_raises(row: Row) -> str:
    """Return the reason that leaves out inputs or options that only forward supports,
    given the row of a backward that raised."""
    raised = row.exception
    error = first_line(raised) if isinstance(raised, Exception) else row.reason
    return f"forward accepts it, but backward raises an error ({error})"


def outputs_fit(case: Case) -> bool:
    """Whether forward's outputs have the shapes that are declared, if any are."""
    shapes = case.subject.shapes
    if shapes is None:
        return True
    given = dict(zip(case.subject.input_names, case.inputs, strict=False))
    names = [spec.name for spec in shapes.outputs]
    outputs = case.subject.outputs(*case.subject.forward(*case.given()))
    try:
        shapes.bind({**given, **dict(zip(names, outputs, strict=False))})
    except ValueError:
        return False
    return True


def bounded_rows(
    case: Case, rows_of: RowsOf, methods: Sequence[str], otherwise: Sequence[str]
) -> tuple[list[Row], bool]:
    """Return the rows of the methods, and whether all ran within the limit of work.
    Those of ``otherwise`` run if the others gave no verdict on a gradient."""
    found: list[Row] = []
    for names in (methods, otherwise):
        for name in names:
            try:
                found += rows_of(case, [name])
            except TooMuch:
                return found, False
        if any(
            row.quantity in case.quantities and row.verdict != NOT_RUN for row in found
        ):
            break
    return complex_step.unless_contradicted(found), True


def summed_up(
    name: str,
    what: str,
    found: Sequence[Row],
    wrong: Mapping[str, Row],
    known: Collection[str],
    reason_of: Callable[[Row], str],
) -> Iterator[Row]:
    """Yield one row for each wrong quantity of a variation. If there are none, yield
    one row: that of the largest error among the ``known`` quantities that passed, or
    one that says why none was compared."""
    for row in wrong.values():
        reason = ": ".join(filter(None, (what, row.method, reason_of(row))))
        yield replace(row, method=name, reason=reason, how=what)
    passed = [row for row in found if row.verdict == PASSED and row.quantity in known]
    if passed and not wrong:
        worst = max(passed, key=lambda row: (row.error or 0.0) / (row.tolerance or 1.0))
        methods = ", ".join(dict.fromkeys(row.method for row in passed))
        yield Row(name, "all", PASSED, worst.error, worst.tolerance, methods, note=what)
    elif not wrong:
        said = [row for row in found if row.reason]
        of_gradients = [row for row in said if row.quantity]
        reasons = dict.fromkeys(row.reason for row in of_gradients or said)
        yield not_run(name, what, "; ".join(reasons) or "no method applies")


def diagnosis(row: Row, case: Case, work: Work) -> str:
    """Return what is wrong with a gradient; the row's reason if no search is possible,
    or if it would exceed the limit of work or the time left for searches."""
    suspect = case.found.suspects.get((row.method, row.quantity))
    if suspect is None or work.search <= 0:
        return row.reason
    start = time.thread_time()
    try:
        return suspect.diagnose(min(SEARCH, work.search))
    except TooMuch:
        return row.reason
    finally:
        work.search -= time.thread_time() - start
