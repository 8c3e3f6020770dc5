"""Repeat the check with a different call: options changed, an optional input left out,
an output unused, one array given twice, or the cotangent of a scaled loss.

Some gradient bugs show at ordinary inputs, but only in such a call.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from backpass.verify.case import Case, first_line
from backpass.verify.convert import EPSILON, to_kind_of, to_numpy
from backpass.verify.magnitude import farthest, largest
from backpass.verify.outputs import Several
from backpass.verify.report import COULD_NOT_RUN, FAILED, PASSED, Row
from backpass.verify.vary.kinds import (
    LEFT_OUT,
    OPTION,
    SCALED,
    SWITCH,
    TWICE,
    UNUSED,
    chosen,
)
from backpass.verify.vary.options import (
    left_out,
    other_values,
    untried,
    with_its_sentinels,
    with_other_options,
)
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
from backpass.verify.vary.work import TooMuch, Work

NAME = "varied call"
SCALE = 65536.0  # of a loss, a usual factor of loss scaling
LINEAR = 1e-12  # a power of two scales float64 exactly; sums may be reordered
METHODS = ("contract", "autograd", "pytorch")
OTHERWISE = ("finite_difference",)
UNDEFINED = (
    "a gradient is not finite there, and the option need not have this value; list its "
    "values in SHAPES: '; options alpha=1.5|2'"
)


def varied_call(
    case: Case, rows_of: RowsOf, vary: bool | None, work: Work
) -> Iterator[Row]:
    """Yield one row for each variation that ``vary`` allows, or one for each quantity
    that is wrong in it.

    ``rows_of(case, methods)`` runs methods.
    """
    kinds = chosen(case, vary)
    if SCALED in kinds:
        yield from _named(f"dy × {SCALE:,.0f}", _scaled(case))
    if TWICE in kinds:
        yield from _given_twice(case)
    for kind, cases in ((UNUSED, _unused_outputs), (LEFT_OUT, _left_out)):
        for what, other in cases(case) if kind in kinds else ():
            yield from _named(what, _rows(what, other, rows_of, work))
    declared = bool(case.subject.shapes and case.subject.shapes.options)
    for what, value, other in _other_options(case):
        switch = isinstance(value, bool) and not declared
        if (SWITCH if switch else OPTION) in kinds:
            rows = list(_rows(what, other, rows_of, work))
            if not declared:
                rows = _not_refused(what, _unless_undefined(what, value, other, rows))
            yield from _named(what, rows)
    for what in _undeclared_options(case) if declared else ():
        yield from _named(what, [not_run(NAME, what, EXCLUDED)])
    for what, why in untried(case) if OPTION in kinds and not declared else ():
        yield from _named(what, [not_run(NAME, what, why)])


def _named(what: str, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows with the name of their variation."""
    return (replace(row, variation=what) for row in rows)


def _not_refused(what: str, rows: list[Row]) -> list[Row]:
    """Return the rows, or one row marked "not run" if backward only raises with an
    option that forward accepts."""
    if not rows or any(row.verdict != COULD_NOT_RUN for row in rows):
        return rows
    return [not_run(NAME, what, backward_raises(rows[0]))]


def _unless_undefined(
    what: str, value: object, case: Case, rows: list[Row]
) -> list[Row]:
    """Return the rows, or one row marked "not run" if they failed and a gradient is not
    finite with another number, which need not be one that an option may have."""
    failed = any(row.verdict == FAILED for row in rows)
    if not failed or isinstance(value, bool | str):
        return rows
    gradients = [got for got in case.gradients.values() if got is not None]
    if all(np.isfinite(got).all() for got in gradients):
        return rows
    return [not_run(NAME, what, UNDEFINED)]


def _rows(what: str, case: Case, rows_of: RowsOf, work: Work) -> Iterator[Row]:
    """Yield the rows of one variation; none if forward rejects the call."""
    case = work.counted(case)
    try:
        if not np.isfinite(case.y_as_given).all() and case.finite:
            return
        if not outputs_fit(case):
            yield not_run(NAME, what, OTHER_OUTPUTS)
            return
    except TooMuch:
        yield not_run(NAME, what, TOO_LONG)
        return
    except Exception:
        return
    found, all_ran = bounded_rows(case, rows_of, METHODS, OTHERWISE)
    wrong: dict[str, Row] = {}
    # The operator that would judge a convention is that of the call that was given.
    unjudged = {f"d{name}" for name in case.conventions} if not case.operator else set()
    for row in found:
        rejected = row.verdict == COULD_NOT_RUN and row.method not in ("contract",)
        wanted = row.quantity not in unjudged or row.method == "contract"
        if row.verdict in (FAILED, COULD_NOT_RUN) and wanted and not rejected:
            wrong.setdefault(row.quantity, row)
    if not all_ran and not wrong:
        yield not_run(NAME, what, TOO_LONG)
        return
    yield from summed_up(
        NAME,
        what,
        found,
        wrong,
        case.quantities,
        lambda row: diagnosis(row, case, work),
    )


def _scaled(case: Case) -> Iterator[Row]:
    """Yield a row that says whether scaling the cotangent scales the gradients."""
    try:
        first, there = case.gradients, case.gradients_for(SCALE * case.dy)
    except Exception:  # the contract says what raises
        return
    worst = 0.0
    for at in case.derived:
        got, expected = there[at], first[at]
        if got is None or expected is None:
            continue
        if not (np.isfinite(expected).all() and np.isfinite(got).all()):
            continue  # float16 overflows, which loss scaling handles
        size = SCALE * max(largest(expected), case.scales[at])
        error = farthest(got, SCALE * expected) / size if size else 0.0
        worst = max(worst, error)
        if error > LINEAR:
            reason = (
                f"dy × {SCALE:,.0f}: the gradient is not {SCALE:,.0f} times as large"
            )
            quantity = case.subject.quantity(at)
            yield Row(NAME, quantity, FAILED, error, LINEAR, reason=reason)
    if worst <= LINEAR:
        yield Row(NAME, "all", PASSED, worst, LINEAR, note=f"dy × {SCALE:,.0f}")


def _given_twice(case: Case) -> Iterator[Row]:
    """Yield a row for the first two inputs with equal shapes and dtypes, given as one
    array: the sum of their gradients must be that for two arrays with equal elements.
    """
    pairs = itertools.combinations(case.differentiable, 2)
    alike = (
        (a, b)
        for a, b in pairs
        if case.inputs[a].shape == case.inputs[b].shape
        and case.inputs[a].dtype == case.inputs[b].dtype
    )
    for a, b in itertools.islice(alike, 1):
        names = [case.subject.input_names[at] for at in (a, b)]
        what = f"{names[0]} and {names[1]} are one array"
        try:
            apart, together = (_sums(case, a, b, twice) for twice in (False, True))
        except _Rejected:
            return
        except Exception as raised:
            reason = f"{what}: backward raises {first_line(raised)}"
            yield Row(NAME, "all", FAILED, reason=reason, variation=what)
            return
        size = max(largest(apart), case.scales[a])
        error = farthest(together, apart) / size if size else 0.0
        # Autograd adds the two in their dtype.
        usual = LINEAR if case.takes_float64 else 4 * EPSILON[case.dtype]
        if error > usual:
            reason = (
                f"{what}: the sum of their gradients differs from that of two copies"
            )
            quantity = case.subject.quantity(a)
            row = Row(NAME, quantity, FAILED, error, usual, reason=reason)
        else:
            row = Row(NAME, "all", PASSED, error, usual, note=what)
        yield replace(row, variation=what)


class _Rejected(Exception):
    """Forward rejects the call."""


def _sums(case: Case, a: int, b: int, twice: bool) -> np.ndarray:
    """Return the sum of the gradients of two inputs with equal elements."""
    inputs = list(case.native(case.float64) if case.takes_float64 else case.given())
    inputs[b] = inputs[a] if twice else to_kind_of(inputs[a], to_numpy(inputs[a]))
    try:
        y, saved = case.subject.forward(*inputs)
    except Exception as error:
        raise _Rejected from error
    if tuple(y.shape) != case.dy.shape:
        raise _Rejected
    found = case.slots.by_input(case.subject.backward(to_kind_of(y, case.dy), saved))
    first, second = found[a], found[b]
    assert first is not None and second is not None
    # Autograd sees one tensor as one leaf, whose gradient is the sum.
    return first if twice and case.subject.torch_only else first + second


def _unused_outputs(case: Case) -> Iterator[tuple[str, Case]]:
    """Yield the case with a cotangent of 0 for each output in turn, if there are
    several. Autograd then passes None or zeros to a Function's backward."""
    try:
        _, saved = case.subject.forward(*case.given())
    except Exception:
        return
    saved = saved[-1] if case.subject.torch_only else saved
    if not isinstance(saved, Several) or sum(saved.joined) < 2:
        return
    start = 0
    for number, (output, joined) in enumerate(
        zip(saved.outputs, saved.joined, strict=True), start=1
    ):
        if not joined:
            continue
        stop = start + int(np.prod(tuple(output.shape)))
        dy = case.dy.copy()
        dy[start:stop] = 0.0
        start = stop
        yield (
            f"output {number} is not used",
            replace(_again(case), given_dy=dy),
        )


def _other_options(case: Case) -> Iterator[tuple[str, object, Case]]:
    """Yield the case with one option changed, or one input that is not an array, and
    the other value."""
    shapes = case.subject.shapes
    declared = dict(shapes.options) if shapes and shapes.options else None
    changed = with_other_options(_again(case), other_values, declared)
    for name, _, other, there in changed:
        there = replace(there, operator=None, inputs=with_its_sentinels(there, case))
        yield f"{name}={other!r}", other, there


def _undeclared_options(case: Case) -> Iterator[str]:
    """Yield a value of each option that would be tried if the clause of options did not
    exclude it. An option that has several declared values is varied."""
    assert case.subject.shapes
    declared = dict(case.subject.shapes.options)
    named = with_other_options(_again(case), other_values)
    first = {name: other for name, _, other, _ in reversed([*named])}
    for name, other in reversed(first.items()):
        if len(declared.get(name, ())) < 2:
            yield f"{name}={other!r}"


def _left_out(case: Case) -> Iterator[tuple[str, Case]]:
    """Yield the case without each input whose default is None, if one of the others has
    a gradient, and the declaration, if there is one, says that it may be None."""
    specs = case.subject.shapes.inputs if case.subject.shapes else ()
    for what, there in left_out(case):
        given = zip(specs, there.inputs, strict=False)
        allowed = all(spec.optional or x is not None for spec, x in given)
        if allowed and case.subject.differentiable(there.inputs):
            yield what, replace(there, operator=None)


def _again(case: Case) -> Case:
    """Return the case with nothing computed yet."""
    return case.elsewhere(case.inputs)
