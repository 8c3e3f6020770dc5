"""Repeat the check at other inputs, and say which quantities are wrong there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from backpass.contract.arrays import is_array
from backpass.verify.case import Case, NotRun, first_line
from backpass.verify.convert import to_numpy
from backpass.verify.directional import COORDINATES
from backpass.verify.methods import finite_difference, precision, pytorch
from backpass.verify.report import COULD_NOT_RUN, FAILED, NOT_RUN, PASSED, Row
from backpass.verify.vary.inputs import DEEPER, EMPTY, Variation, variations
from backpass.verify.vary.kinds import chosen
from backpass.verify.vary.structure import is_kept
from backpass.verify.vary.work import TooMuch, Work

NAME = "varied inputs"
DECLARE = 'if x may only be a matrix, declare it: SHAPES = "x[b, n] -> y[b, n]"'
KINKS = 0.03  # of a slope: a larger error is not excused as one of kinks
TOO_LONG = "it would exceed the bound of work"
OTHER_OUTPUTS = "forward's outputs have other shapes than SHAPES declares"
SEARCH = 2.0  # seconds for a diagnosis
OPERATORS = (pytorch.NAME, precision.NAME)  # the methods that call the operator

RowsOf = Callable[[Case, Sequence[str]], list[Row]]


def varied(case: Case, rows_of: RowsOf, vary: bool | None, work: Work) -> Iterator[Row]:
    """Yield the rows of every variation that ``vary`` allows: one, or one for each
    wrong quantity.

    ``rows_of(case, methods)`` runs methods.
    """
    kinds = chosen(case, vary)
    presumed = not vary and case.subject.shapes is None
    for variation in variations(case, kinds):
        if presumed and not all(is_kept(case, inputs) for inputs in variation.tries):
            continue
        rows = _rows(case, variation, rows_of, work, bool(vary))
        yield from (replace(row, variation=variation.what) for row in rows)


def _rows(
    case: Case, variation: Variation, rows_of: RowsOf, work: Work, asked: bool
) -> Iterator[Row]:
    problem = ""
    for inputs in variation.tries:
        other = work.counted(case.elsewhere(inputs))
        try:
            y = other.y_as_given
        except TooMuch:
            yield Row(NAME, "", NOT_RUN, reason=f"{variation.what}: {TOO_LONG}")
            return
        except Exception as error:
            problem = f"forward rejects them ({first_line(error)})"
            continue
        if np.isfinite(y).all() or not (case.finite or np.isnan(y).any()):
            break
        problem = "y is not finite there"
    else:
        yield Row(NAME, "", NOT_RUN, reason=f"{variation.what}: {problem}")
        return
    methods = [
        name
        for name in variation.methods
        # At such inputs a right backward may lose more digits than PyTorch.
        if asked or name != "precision"
    ]
    try:
        fits = outputs_fit(other)
    except TooMuch:
        fits = True  # the first method that runs says so
    if not fits:
        yield Row(NAME, "", NOT_RUN, reason=f"{variation.what}: {OTHER_OUTPUTS}")
        return
    found, all_ran = bounded_rows(other, rows_of, methods, variation.otherwise)
    try:
        found = [_unless_excused(row, variation, other) for row in found]
        if not asked:
            found = _without_operator(found)
        rows = list(_summary(variation.what, found, other, case))
    except TooMuch:
        rows, all_ran = [], False
    if not all_ran and all(row.verdict in (PASSED, NOT_RUN) for row in rows):
        rows = [Row(NAME, "", NOT_RUN, reason=f"{variation.what}: {TOO_LONG}")]
    yield from rows


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


def _without_operator(rows: list[Row]) -> list[Row]:
    """Return the rows, without those of an operator whose y differs from forward's: it
    may be made for the given inputs alone."""
    if not any(
        row.method in OPERATORS and row.quantity == "y" and row.verdict == FAILED
        for row in rows
    ):
        return rows
    return [row for row in rows if row.method not in OPERATORS]


def bounded_rows(
    case: Case, rows_of: RowsOf, methods: Sequence[str], otherwise: Sequence[str]
) -> tuple[list[Row], bool]:
    """Return the rows of the methods, and whether all ran within the bound of work.
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
    return found, True


def _unless_excused(row: Row, variation: Variation, case: Case) -> Row:
    """Return the row, marked "not run" if it failed by an error that a variation leaves
    to rounding, or by a shape that need not be that of the input."""
    if row.verdict != FAILED:
        return row
    if row.error is not None and row.error <= variation.least:
        reason = f"off by {row.error:.1e}, which may be rounding there"
        return Row(row.method, row.quantity, NOT_RUN, reason=reason)
    if not variation.shapes_as_given:
        return row
    misfits = _misfits(case, case.gradients)
    if case.subject.shapes is not None:
        # NumPy and PyTorch differ: over no axes, PyTorch's sum is one over all.
        misfits = {} if misfits else _misfits(case, case.on_tensors[1])
    if not misfits or row.quantity not in (*misfits, "all"):
        return row
    name, (got, _) = next(iter(misfits.items()))
    reason = f"backward is not made for it: {name} is {list(got)}"
    return Row(row.method, row.quantity, NOT_RUN, reason=reason)


def _misfits(
    case: Case, gradients: Mapping[int, np.ndarray | None]
) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the gradients of wrong shapes, each with its shape and that of its
    input."""
    return {
        case.subject.quantity(at): (gradient.shape, case.float64[at].shape)
        for at, gradient in gradients.items()
        if gradient is not None and gradient.shape != case.float64[at].shape
    }


def _summary(what: str, found: list[Row], case: Case, given: Case) -> Iterator[Row]:
    """Yield one row if nothing is wrong; otherwise one for each wrong quantity, from
    the first method that found it. ``given`` is the case that was varied."""
    wrong: dict[str, Row] = {}
    for row in found:
        # The operator need not accept these inputs.
        rejected = row.verdict == COULD_NOT_RUN and row.method in OPERATORS
        # Among so many elements, some are at a kink, such as ReLU's.
        kinks = row.method == finite_difference.NAME and _is_small(row, case)
        if row.verdict in (FAILED, COULD_NOT_RUN) and not (rejected or kinks):
            wrong.setdefault(row.quantity, row)
    if "y" in wrong:  # forward and the operator differ, so their gradients may too
        wrong = {"y": wrong["y"]}
    known = {*case.quantities, *({"all"} if what == EMPTY else ())}
    passed = [row for row in found if row.verdict == PASSED and row.quantity in known]
    declared = case.subject.shapes is not None
    misfit = ""
    if wrong and not declared:
        misfit, wrong = _misfit(what, wrong, case, given)
    if misfit and not wrong:
        reason = f"{what}: forward accepts it, {misfit}"
        yield Row(NAME, "", NOT_RUN, reason=reason)
    elif wrong:
        for row in wrong.values():
            reason = _diagnosis(row, case)
            reason = ": ".join(filter(None, (what, row.method, reason)))
            if what == DEEPER and not declared:
                reason += f"; {DECLARE}"
            yield replace(row, method=NAME, reason=reason, how=what)
    elif passed:
        worst = max(passed, key=lambda row: (row.error or 0.0) / (row.tolerance or 1.0))
        methods = ", ".join(dict.fromkeys(row.method for row in passed))
        yield Row(NAME, "all", PASSED, worst.error, worst.tolerance, methods, note=what)
    else:
        reasons = dict.fromkeys(row.reason for row in found if row.reason)
        reason = f"{what}: {'; '.join(reasons) or 'no method applies'}"
        yield Row(NAME, "", NOT_RUN, reason=reason)


def _diagnosis(row: Row, case: Case) -> str:
    """Return what is wrong with a gradient; the row's reason if no search is possible,
    or if it would exceed the bound of work."""
    suspect = case.found.suspects.get((row.method, row.quantity))
    try:
        return suspect.diagnose(SEARCH) if suspect else row.reason
    except TooMuch:
        return row.reason


def _is_small(row: Row, case: Case) -> bool:
    """Whether an error of slopes is so small that kinks may cause it, at inputs with
    too many elements for a difference of each, and a shorter step is not as wrong."""
    shapes = case.subject.shapes
    if shapes and shapes.kinks:  # the inputs are away from them
        return False
    many = case.float64[case.differentiable[0]].size > COORDINATES
    if not many or row.error is None or not row.error < KINKS:
        return False
    if row.quantity not in case.quantities:
        return True
    at = case.differentiable[case.quantities.index(row.quantity)]
    try:
        return not finite_difference.errs_over_any_step(case, at)
    except (NotRun, TooMuch):
        return True


def _misfit(
    what: str, wrong: dict[str, Row], case: Case, given: Case
) -> tuple[str, dict[str, Row]]:
    """Return the sign that backward does not support inputs that forward accepts, or
    "", and the rows that are wrong nevertheless.

    The sign is that backward raises. For one more axis, it is also that gradients have
    wrong shapes and forward does not treat each slice as it treats a smaller array.
    """
    raised = [row.reason for row in wrong.values() if row.verdict == COULD_NOT_RUN]
    if len(raised) == len(wrong):
        return f"backward does not ({raised[0]})", {}
    if what != DEEPER or not case.dy.ndim or _is_done_to_each_slice(case, given):
        return "", wrong
    other = _misfits(case, case.gradients)
    if not other:
        return "", wrong
    name, (got, shape) = next(iter(other.items()))
    rest = {of: row for of, row in wrong.items() if of not in (*other, "all")}
    return f"but {name} is {list(got)}, not {list(shape)}", rest


def _is_done_to_each_slice(deeper: Case, given: Case) -> bool:
    """Whether forward treats each slice of the new leading axis as it treats an array
    without that axis."""
    more = [
        at
        for at, value in enumerate(deeper.inputs)
        if is_array(value) and value.ndim > given.inputs[at].ndim
    ]
    y = deeper.y_as_given
    try:
        for index, there in enumerate(y):
            inputs = (
                x[index] if at in more else x for at, x in enumerate(deeper.given())
            )
            here = to_numpy(given.subject.forward(*inputs)[0])
            if here.shape != there.shape or not np.allclose(here, there):
                return False
    except Exception:
        return False
    return bool(y.ndim)
