"""Repeat the check at other inputs, and say which quantities are wrong there."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from backpass.contract.arrays import is_array
from backpass.verify import sides
from backpass.verify.case import Case, Inputs, NotRun, first_line
from backpass.verify.converged import confirmed_if_wider, lossy
from backpass.verify.differences import best_step
from backpass.verify.findings import COORDINATES
from backpass.verify.magnitude import largest
from backpass.verify.methods import autograd, finite_difference, precision, pytorch
from backpass.verify.outputs import Malformed
from backpass.verify.report import COULD_NOT_RUN, FAILED, NOT_RUN, PASSED, Row
from backpass.verify.reruns import several_outputs
from backpass.verify.vary.axes import is_in_slices
from backpass.verify.vary.inputs import DEEPER, EMPTY, FEWER, Variation, variations
from backpass.verify.vary.kinds import (
    AXIS,
    LONGER,
    MANY,
    MULTIPLE,
    NO_ROWS,
    ONE,
    OTHER,
    SHORT,
    SQUARE,
    TIES,
    ZEROS,
    chosen,
)
from backpass.verify.vary.ranks import of_another_rank
from backpass.verify.vary.rows import (
    EXCLUDED,
    OTHER_OUTPUTS,
    TOO_LONG,
    RowsOf,
    backward_raises,
    bounded_rows,
    diagnosis,
    not_run,
    outputs_fit,
    summed_up,
)
from backpass.verify.vary.structure import REPEATS, is_kept, repeats
from backpass.verify.vary.suggested import declaration
from backpass.verify.vary.values import EMPTY_SEGMENT, depends
from backpass.verify.vary.vectors import sums_over_all
from backpass.verify.vary.work import TooMuch, Work

NAME = "varied inputs"
DECLARE = "if the axes are always those that you gave, declare them: SHAPES = "
ANY_AXES = "if any leading axes are meant, declare them as * in SHAPES"
APART = "forward does not treat each slice of it as an array without it"
HELD = (
    "the layer holds as many integers as this length, such as the labels of a batch; if "
    "the length may change, declare SHAPES"
)
CONSTANT = 1e-6  # of y, because rounding may change it by √ε, as near arccos(1)
COLUMNS = 128  # of a doubled vector: the most that are tried one by one
EQUAL = 1e-9  # of a gradient: the spread of elements to which one number was added
VANISHING = 1e-9  # of a gradient at the inputs given
KINKS = 0.03  # of a slope: a larger error is not excused as one of kinks
# Kinds with other lengths than those given: without a declaration, code may be made for
# columns of fixed meanings.
RESIZED = (NO_ROWS, ONE, SHORT, LONGER, MULTIPLE, MANY)
# A row is its own mean, has the norm 0, or equals another row.
COINCIDING = (ONE, ZEROS, TIES, OTHER)
LOSS = (
    "without a declaration, a loss need not support one more axis: its mean may be "
    f"over rows or over all elements; {ANY_AXES}"
)
OF_A_VECTOR = f"backward sums over all elements, as for a vector; {ANY_AXES}"
IGNORES = (
    "forward does not use the elements added to an input; if its length may change, "
    "declare SHAPES"
)
OPERATORS = (pytorch.NAME, precision.NAME)  # the methods that call the operator


def varied(case: Case, rows_of: RowsOf, vary: bool | None, work: Work) -> Iterator[Row]:
    """Yield the rows of every variation that ``vary`` allows: one, or one for each
    wrong quantity.

    ``rows_of(case, methods)`` runs methods.
    """
    kinds = chosen(case, vary)
    presumed = not vary and case.subject.shapes is None
    rows: list[Row] = []
    after_longer = too_long = False
    for variation in variations(case, kinds):
        # The long length before it has already shown what is wrong.
        if variation.kind == MULTIPLE and after_longer and _has_failed(rows):
            continue
        after_longer = variation.kind == LONGER
        if variation.kind == SHORT and not too_long:
            continue
        if case.held and any(_unlike_held(case, of) for of in variation.tries):
            yield replace(not_run(NAME, variation.what, HELD), variation=variation.what)
            continue
        if presumed and not all(is_kept(case, inputs) for inputs in variation.tries):
            continue
        rows = list(_rows(case, variation, rows_of, work, bool(vary)))
        if variation.kind in (LONGER, MULTIPLE):
            too_long = any(row.reason.endswith(TOO_LONG) for row in rows)
        yield from (replace(row, variation=variation.what) for row in rows)


def _unlike_held(case: Case, inputs: Inputs) -> bool:
    """Whether the length of an axis changes that is that of an array of integers which
    the layer holds, without a declaration."""
    if case.subject.shapes is not None:
        return False
    return any(
        old != new and old in case.held
        for value, other in zip(case.inputs, inputs, strict=True)
        if is_array(value) and is_array(other) and value.ndim == other.ndim
        for old, new in zip(value.shape, other.shape, strict=True)
    )


def _has_failed(rows: Sequence[Row]) -> bool:
    return any(row.verdict == FAILED for row in rows)


def _rows(
    case: Case, variation: Variation, rows_of: RowsOf, work: Work, asked: bool
) -> Iterator[Row]:
    problem = apart = ""
    for inputs in variation.tries:
        if turned := of_another_rank(case, inputs):
            yield not_run(NAME, variation.what, turned)
            return
        other = work.counted(case.elsewhere(inputs))
        try:
            y = other.y_as_given
        except TooMuch:
            yield not_run(NAME, variation.what, TOO_LONG)
            return
        except Exception as error:
            problem = f"forward raises an error ({first_line(error)})"
            continue
        if not _is_meant(variation, other, case):
            apart = f"{APART}; {ANY_AXES}"
            continue
        if np.isfinite(y).all() or not (case.finite or np.isnan(y).any()):
            break
        problem = _not_finite(other)
    else:
        yield not_run(NAME, variation.what, apart or problem or EXCLUDED)
        return
    methods = [
        name
        for name in variation.methods
        # At such inputs a right backward may lose more digits than PyTorch.
        if asked or name != "precision"
    ]
    of_torch = "autograd" in methods and "torch" in sys.modules
    if of_torch and autograd.computes_another(case):
        methods.remove("autograd")
    try:
        fits = outputs_fit(other)
    except TooMuch:
        fits = True  # the first method that runs says so
    if not fits:
        yield not_run(NAME, variation.what, OTHER_OUTPUTS)
        return
    found, all_ran = bounded_rows(other, rows_of, methods, variation.otherwise)
    try:
        found = [_unless_excused(row, variation, other) for row in found]
        failed = any(row.verdict == FAILED for row in found)
        if failed and (reason := _unsuited(variation, other, case)):
            found = [_not_if_failed(row, reason) for row in found]
        elif failed and (reason := lossy(other)):
            found = [
                row if confirmed_if_wider(row, other) else _not_if_failed(row, reason)
                for row in found
            ]
        found = [_unless_vanishing(row, other, case) for row in found]
        found = _without_operator(found, asked, other)
        rows = list(_summary(variation, found, other, case, work))
    except TooMuch:
        rows, all_ran = [], False
    if not all_ran and all(row.verdict in (PASSED, NOT_RUN) for row in rows):
        rows = [not_run(NAME, variation.what, TOO_LONG)]
    yield from rows


def _not_finite(case: Case) -> str:
    """Return the reason for excluding inputs at which y is not finite."""
    try:
        overflows = case.dtype != "float64" and np.isfinite(case.y).all()
    except (Exception, TooMuch):  # it need not accept float64
        overflows = False
    if overflows:
        return f"forward overflows in {case.dtype} there: y is finite in float64"
    return "y is not finite"


def _is_meant(variation: Variation, other: Case, given: Case) -> bool:
    """Whether forward may be meant for inputs with one more axis.

    Without a declaration, it is if it computes the same for each slice as for all
    together. A function of a vector may treat columns as slices instead.
    """
    if variation.what != DEEPER or given.subject.shapes is not None:
        return True
    some = [
        at
        for at, value in enumerate(other.inputs)
        if is_array(value) and value.ndim > given.inputs[at].ndim
    ]
    try:
        if is_in_slices(other, other.inputs, some, reduced=True):
            return True
        vectors = all(0 < other.float64[at].size <= COLUMNS for at in some)
        vectors &= all(other.inputs[at].ndim == 2 for at in some)
        return vectors and is_in_slices(other, other.inputs, some, axis=1)
    except TooMuch:
        return True  # the methods that run next say so


def _without_operator(rows: list[Row], asked: bool, case: Case) -> list[Row]:
    """Return the rows, without those of an operator that is NaN where forward is not,
    such as a mean of no labels, and without being asked for variations also of one
    whose y differs from forward's: it may be made for the given inputs alone."""
    of_operator = [
        row for row in rows if row.method in OPERATORS and row.verdict == FAILED
    ]
    differs = any(row.quantity == "y" and not asked for row in of_operator)
    if differs or any(_operator_is_nan(row, case) for row in of_operator):
        return [row for row in rows if row.method not in OPERATORS]
    return rows


def _operator_is_nan(row: Row, case: Case) -> bool:
    if row.error is None or not np.isnan(row.error):
        return False
    reference = case.found.references.get((row.method, row.quantity))
    if reference is not None:
        return bool(np.isnan(reference).any())
    return row.quantity == "y" and bool(np.isfinite(case.y_as_given).all())


def _unsuited(variation: Variation, case: Case, given: Case) -> str:
    """Return why inputs need not suit code without a declaration; "" if they do."""
    if given.subject.shapes is not None:
        return ""
    if variation.kind == NO_ROWS:
        return "without a declaration, backward need not support an empty array"
    if variation.what == DEEPER and not given.y_as_given.shape:
        return LOSS
    if variation.kind in RESIZED and _ignores_the_added(case, given):
        return IGNORES
    segments = variation.what.startswith(EMPTY_SEGMENT)
    return REPEATS if not segments and repeats(given.inputs, case.inputs) else ""


def _ignores_the_added(case: Case, given: Case) -> bool:
    """Whether y does not depend on the elements added to an input, as when a fixed
    number of labels selects from its rows."""
    for at in case.differentiable:
        old, new = given.inputs[at].shape, case.inputs[at].shape
        if len(old) != len(new) or all(n <= m for m, n in zip(old, new, strict=True)):
            continue
        added = np.ones(new, bool)
        added[tuple(map(slice, old))] = False
        if not depends(case, at, where=added):
            return depends(case, at)
    return False


def _unless_vanishing(row: Row, case: Case, given: Case) -> Row:
    """Return the row, marked "not run" if it failed and the gradient almost vanishes
    compared with that at the inputs given, as that of a loss that is almost 0."""
    if row.verdict != FAILED:
        return row
    (_, got), (_, before) = _gradient_of(row, case), _gradient_of(row, given)
    key = row.method, row.quantity
    reference = case.found.references.get(key)
    if reference is None:  # differences along directions
        reference = np.array([error for error, _ in case.found.slopes.get(key, ())])
    if got is None or before is None or not reference.size:
        return row
    if not np.isfinite(got).all():
        return row
    if not max(largest(got), largest(reference)) < VANISHING * largest(before):
        return row
    reason = f"{row.quantity} is there so small that rounding may cause the error"
    return _not_if_failed(row, reason)


def _not_if_failed(row: Row, reason: str) -> Row:
    """Return the row, marked "not run" if it failed."""
    if row.verdict != FAILED:
        return row
    return Row(row.method, row.quantity, NOT_RUN, reason=reason)


def _unless_excused(row: Row, variation: Variation, case: Case) -> Row:
    """Return the row, marked "not run" if it failed by an error that a variation leaves
    to rounding, by a shape that need not be that of the input, or by a gradient that is
    not finite where y is constant."""
    if row.verdict != FAILED:
        return row
    reason = ""
    if row.error is not None and row.error <= variation.least:
        reason = f"rounding may cause the error of {row.error:.1e} at these inputs"
    elif variation.shapes_as_given or (
        case.subject.shapes is None
        and variation.kind in RESIZED
        and not _drops_axes(case)
    ):
        reason = _misfit_of(row, case)
    if not reason and case.subject.shapes is None:
        if variation.kind in COINCIDING:
            reason = _undefined(row, case)
        elif variation.kind in RESIZED:
            reason = _coincides(row, case)
        elif variation.what == FEWER:
            reason = _is_added_up(row, case)
    return _not_if_failed(row, reason) if reason else row


def _misfit_of(row: Row, case: Case) -> str:
    """Return the reason for excluding a gradient of a wrong shape, or "" if its shape
    is right."""
    try:
        misfits = _misfits(case, case.gradients)
    except Malformed:
        return ""
    if case.subject.shapes is not None:
        # NumPy and PyTorch differ: over no axes, PyTorch's sum is one over all.
        misfits = {} if misfits else _misfits(case, case.on_tensors[1])
    if not misfits or row.quantity not in (*misfits, "all"):
        return ""
    name, shapes = next(iter(misfits.items()))
    hint = "" if case.subject.shapes else "; a fixed length can be declared in SHAPES"
    return _supports_less(name, *shapes) + hint


def _drops_axes(case: Case) -> bool:
    """Whether a gradient lacks only axes of length 1, as by ``np.squeeze``."""
    try:
        misfits = _misfits(case, case.gradients)
    except Malformed:
        return False
    return any(
        [n for n in got if n != 1] == [n for n in shape if n != 1]
        for got, shape in misfits.values()
    )


def _gradient_of(row: Row, case: Case) -> tuple[int, np.ndarray | None]:
    """Return the index of the input whose gradient a row judges, and that gradient;
    None if the row judges something else."""
    if row.quantity not in case.quantities:
        return -1, None
    at = case.differentiable[case.quantities.index(row.quantity)]
    return at, case.gradients[at]


def _undefined(row: Row, case: Case) -> str:
    """Return the reason for excluding a gradient that is not finite where an output
    does not depend on its input, or has a kink: 0/0 where a row of one element is
    divided by its norm, or where two points coincide."""
    at, got = _gradient_of(row, case)
    if got is None or np.isfinite(got).all():
        return ""
    if not depends(case, at, CONSTANT, outputs=True):
        which, name = several_outputs(case), case.subject.input_names[at]
        why = f"{'an output' if which else 'y'} does not depend on {name} there"
    elif any(
        finite_difference.has_kink(case, of, best_step(case, of))
        for of in dict.fromkeys((at, case.differentiable[0]))
    ):
        why = "y has a kink there"
    else:
        return ""
    return f"{why}, and {row.quantity} is not finite"


def _coincides(row: Row, case: Case) -> str:
    """Return the reason for excluding a gradient that is not finite at kinks of y: the
    elements drawn repeat those given, so that points coincide or a row has norm 0."""
    at, got = _gradient_of(row, case)
    if got is None or np.isfinite(got).all():
        return ""
    if not sides.is_infinite_at_kinks(case, at, best_step(case, at)):
        return ""
    return (
        f"y has a kink where {row.quantity} is not finite, as where two points that "
        "were drawn coincide"
    )


def _is_added_up(row: Row, case: Case) -> str:
    """Return the reason for excluding a gradient whose elements are all equal: code for
    matrices adds a product of two vectors, which is one number, to an array."""
    _, got = _gradient_of(row, case)
    if got is None or got.size < 2 or np.ptp(got) > EQUAL * largest(got):
        return ""
    return (
        "forward accepts it, but backward adds up one number to all elements of "
        f"{row.quantity}, as for a matrix"
    )


def _supports_less(name: str, got: Sequence[int], shape: Sequence[int]) -> str:
    """Return the reason that leaves out inputs for which a gradient has a wrong
    shape."""
    return (
        f"forward accepts it, but backward returns {name} of shape {list(got)} for an "
        f"input of shape {list(shape)}"
    )


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


def _summary(
    variation: Variation, found: list[Row], case: Case, given: Case, work: Work
) -> Iterator[Row]:
    """Yield one row if nothing is wrong; otherwise one for each wrong quantity, from
    the first method that found it. ``given`` is the case that was varied."""
    what = variation.what
    wrong: dict[str, Row] = {}
    for row in found:
        if row.verdict not in (FAILED, COULD_NOT_RUN):
            continue
        # The operator need not accept these inputs.
        rejected = row.verdict == COULD_NOT_RUN and row.method in OPERATORS
        # Among so many elements, some are at a kink, such as ReLU's.
        kinks = row.method == finite_difference.NAME and _is_small(row, case)
        if not (rejected or kinks):
            wrong.setdefault(row.quantity, row)
    if "y" in wrong:  # forward and the operator differ, so their gradients may too
        wrong = {"y": wrong["y"]}
    known = {*case.quantities, *({"all"} if what == EMPTY else ())}
    hint, misfit = variation.hint, ""
    if wrong and case.subject.shapes is None:
        if variation.kind in (AXIS, SQUARE):
            text = declaration(given, square=variation.kind == SQUARE)
            hint = f'{DECLARE}"{text}"'
        misfit, wrong = _misfit(what, wrong, case)
        if what == DEEPER and wrong and sums_over_all(wrong, case, given):
            misfit, wrong = OF_A_VECTOR, {}
    if misfit and not wrong:
        yield not_run(NAME, what, misfit)
        return
    hint = hint or _fixed(case, given)
    hint = f"; {hint}" if hint else ""
    yield from summed_up(
        NAME, what, found, wrong, known, lambda row: diagnosis(row, case, work) + hint
    )


def _fixed(case: Case, given: Case) -> str:
    """Return a sentence on an integer of the object that is the length of an axis at
    the inputs given, but not at these; "" if there is none."""
    changed = {
        old
        for value, other in zip(given.inputs, case.inputs, strict=True)
        if is_array(value) and is_array(other) and value.ndim == other.ndim
        for old, new in zip(value.shape, other.shape, strict=True)
        if old != new and old > 1
    }
    names = [
        f"{of} is {count}" for of, count in given.counts.items() if count in changed
    ]
    if not names:
        return ""
    return (
        f"{' and '.join(names)}, a length of the inputs given but not of these: compute "
        "with the length of the array or, if it never changes, declare it in SHAPES"
    )


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


def _misfit(what: str, wrong: dict[str, Row], case: Case) -> tuple[str, dict[str, Row]]:
    """Return the reason why backward does not support inputs that forward accepts, or
    "", and the rows that are wrong nevertheless.

    The reason is that backward raises. For one more axis, it may also be that gradients
    have wrong shapes: code for a fixed number of axes sums over those.
    """
    raised = [row for row in wrong.values() if row.verdict == COULD_NOT_RUN]
    if len(raised) == len(wrong):
        return backward_raises(raised[0]), {}
    try:
        other = _misfits(case, case.gradients) if what == DEEPER else {}
    except Malformed:
        return "", wrong
    if not other:
        return "", wrong
    name, (got, shape) = next(iter(other.items()))
    rest = {of: row for of, row in wrong.items() if of not in (*other, "all")}
    return f"{_supports_less(name, got, shape)}; {ANY_AXES}", rest
