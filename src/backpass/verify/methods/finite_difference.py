"""Compare with central differences of the forward.

They are taken along random directions and, for a small input, along every coordinate.
The method uses only the forward and needs no formula for its derivative. Its error is
rounding over the step plus the step squared: about ε^⅔ ≈ 4e-11 at best, and much more
if the forward is ill-conditioned. A forward that does not accept or return float64 is
evaluated at its own precision, with that precision's ε. A gradient that backward
computes in low precision gets the tolerance of that precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from backpass.verify import beside, converged, sides, symmetric
from backpass.verify.case import Case, NotRun
from backpass.verify.comparison import Judge
from backpass.verify.convert import EPSILON
from backpass.verify.differences import (
    FACTOR,
    Step,
    best_step,
    difference,
    first_difference,
    replaced,
)
from backpass.verify.directional import (
    Derivative,
    rows,
    spread,
)
from backpass.verify.findings import COORDINATES, SLOPES_DIFFER
from backpass.verify.magnitude import largest
from backpass.verify.report import FAILED, NOT_RUN, PASSED, VACUOUS, Row

NAME = "finite differences"
TOLERANCE = 1e-7
WHY = "step² and rounding / step"
# Times ε^⅔: the constants of both errors, and the rounding of a long sum.
LOW_TOLERANCE = 64
# At a kink, the bend exceeds KINK times the element's change, and with half the step
# more than SHARP of the bend remains: about a half, where a smooth function keeps a
# quarter.
KINK = 0.1
HIDDEN = 0.01  # of the largest change: smaller ones may be noise
SHARP = 0.4
KINK_DIRECTIONS = 4
BENT_LEVELS = (3, 6)  # of shorter steps, over which a kink bends y as much
TIED = 1e-3  # of a slope: where ties are kept, a smaller error is not called wrong
BRIEFER, BENT_DIRECTIONS = 256, 5  # a step that crosses few kinks, and its directions
COARSEST = 0.1  # the largest tolerance at which a comparison is still useful
# Other steps show a difference's own error: truncation grows with the step's square,
# and rounding with its inverse.
OTHER_STEPS = (0.5, 0.7, 1.4)
FEW = 0.25  # of y's elements
BRIEF = 1 / 16  # crosses few of the kinks that the usual step in float32 crosses
DOUBT = 4  # times their spread: a smaller error may be that of the differences
LEAST = 1e-5  # of the gradient: smaller errors cannot be seen in float32
Steps = dict[int, Step]  # by position of the input
KINKED = (
    "y has a kink there: its slopes on the two sides of these inputs differ, so no "
    "difference is its derivative"
)
COARSE = "differences are too coarse here"
OFF = "the error is far larger than the change of the differences with the step"


def run(case: Case) -> list[Row]:
    """Return one row for each gradient. Raises NotRun if forward is too coarse."""
    usual, why, note = TOLERANCE, WHY, ""
    try:
        case.require_float64()
    except NotRun as reason:
        case = _at_own_precision(case, reason)
        (usual, why), note = _low(case.precision), str(reason)
    steps = {at: best_step(case, at) for at in case.derived}
    judged = _rows(case, steps, usual, why, note)
    if note:
        return judged
    return [
        _unless_coarse(row, case, at, steps)
        for at, row in zip(case.derived, judged, strict=True)
    ]


def _unless_coarse(row: Row, case: Case, at: int, steps: Steps) -> Row:
    """Return the row or, if it failed and backward computes the gradient in low
    precision, the row at that precision's tolerance.

    It is "not run" if that precision is too coarse, or if backward's rounding may be as
    large as the error, as where large parts of the gradient cancel.
    """
    note = case.coarse_backward(at) if row.verdict == FAILED else ""
    if not note:
        return row
    precision = case.backward_computes_in(at)
    if _low_tolerance(precision) > COARSEST:
        reason = f"{note}, which is too coarse for differences"
        return Row(NAME, row.quantity, NOT_RUN, reason=reason)
    again = _rows(case, steps, *_low(precision), note)[case.derived.index(at)]
    if again.verdict != FAILED or again.error is None:
        return again
    noise = case.noise_of_backward(at)
    if not again.error <= DOUBT * noise:
        return again
    reason = (
        f"{note}; its rounding changes {row.quantity} by {noise:.1e}, and the error is "
        f"{again.error:.1e}"
    )
    return Row(NAME, row.quantity, NOT_RUN, reason=reason)


def _rows(case: Case, steps: Steps, usual: float, why: str, note: str) -> list[Row]:
    """Return one row for each gradient. The note, if any, says why precision is low."""
    # For the book's operations, other methods compare every element.
    in_all = COORDINATES if case.subject.stem else math.inf
    tolerance = case.tolerance("finite_difference", usual, why)

    def found(times: float = 1.0) -> list[Row]:
        return rows(case, NAME, *tolerance, _derivative(case, steps, times), in_all)

    judged = [
        _reconsidered(row, case, at, steps, low=bool(note))
        for at, row in zip(case.derived, found(), strict=True)
    ]
    for times in (BRIEF, BRIEF / 4) if note else ():
        if any(map(_is_unclear, judged)):
            shorter = zip(case.derived, judged, found(times), strict=True)
            judged = [
                _clearer(row, again, case, at, steps, times)
                for at, row, again in shorter
            ]
    return [replace(row, note=note or row.note) for row in judged]


def _is_unclear(row: Row) -> bool:
    return row.reason == KINKED or row.reason.startswith(COARSE)


def _clearer(
    row: Row, again: Row, case: Case, at: int, steps: Steps, times: float
) -> Row:
    """Return the row or, if differences could not judge it, that of a shorter step,
    unless this one varies as much with the step."""
    if not _is_unclear(row):
        return row
    if again.verdict == PASSED:
        return again
    if row.reason == KINKED or has_kink(case, at, times * steps[at]):
        return row
    own = _own_error(case, at, steps, (times, times / 2))
    return again if (again.error or 0.0) > DOUBT * own else row


def _reconsidered(row: Row, case: Case, at: int, steps: Steps, *, low: bool) -> Row:
    if row.verdict == FAILED:
        if not low and (found := symmetric.judged(row, case, at)):
            return found
        if not low and (reason := sides.infinite_beside_finite(case, at, steps[at])):
            return replace(row, reason=reason)
        reason = _why_not_judged(row, case, at, steps, low)
        found = None if low else _at_kinks(row, case, at, steps[at])
        at_kink = reason == KINKED or _is_at_a_kink(row, case, at, steps[at])
        if not (found or low) and at_kink:
            found = beside.judged(case, at, partial(_of_input, at=at))
            if found and found.verdict == FAILED and reason != KINKED:
                found = None
        if (found or reason == KINKED) and (
            wrong := wrong_at_ties(case, at, steps[at])
        ):
            case.found.suspects.pop((NAME, row.quantity), None)
            return replace(row, reason=wrong)
        if found:
            if found.verdict == FAILED:
                case.found.suspects.pop((NAME, row.quantity), None)
            return found
        if reason:
            return Row(NAME, row.quantity, NOT_RUN, reason=reason)
        got = case.gradients[at]
        misfit = got is not None and got.shape != case.float64[at].shape
        if low or misfit or (got is not None and not np.isfinite(got).all()):
            return row
        return converged.judged(row, case, at, steps[at])
    # In float32 the tolerance allows for noise that may not be there.
    if (
        row.verdict == PASSED
        and low
        and row.error is not None
        and row.error > max(DOUBT * _own_error(case, at, steps), LEAST)
    ):
        case.found.suspect(NAME, row.quantity, row.error / 2, lambda seconds: OFF)
        return replace(row, verdict=FAILED, reason=OFF)
    return row


def _is_at_a_kink(row: Row, case: Case, at: int, step: Step) -> bool:
    """Whether y has a kink at the element that is most wrong or, if no single element
    is known, at those that are 0."""
    x, got = case.float64[at], case.gradients[at]
    reference = case.found.references.get((NAME, row.quantity))
    if got is None or got.shape != x.shape:
        return False
    if row.reason == SLOPES_DIFFER:
        direction = np.where(x == 0, case.directions.first(at), 0.0)
    elif reference is not None:
        off = np.nan_to_num(np.abs(got - reference))
        direction = (off == off.max()).astype(float)
    else:
        return False
    return bool(direction.any()) and sides.differ(case, at, step * direction)


def unless_seen(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, those of gradients that are too small for differences marked
    "not run" if an exact method has compared them."""
    seen = {
        row.quantity for row in rows if row.verdict == PASSED and row.method != NAME
    }

    def judged(row: Row) -> Row:
        if row.method != NAME or row.verdict != VACUOUS or row.quantity not in seen:
            return row
        return Row(NAME, row.quantity, NOT_RUN, reason=row.reason.partition(":")[0])

    return [judged(row) for row in rows]


def _of_input(case: Case, at: int) -> Row:
    """Return the row of one gradient at other inputs."""
    steps = {of: best_step(case, of) for of in case.derived}
    found = rows(case, NAME, TOLERANCE, WHY, _derivative(case, steps))
    row = found[case.derived.index(at)]
    if row.verdict != FAILED or has_kink(case, at, steps[at]):
        return row if row.verdict == PASSED else Row(NAME, row.quantity, NOT_RUN)
    return converged.judged(row, case, at, steps[at])


def _at_kinks(row: Row, case: Case, at: int, step: Step) -> Row | None:
    """Return a passed row if a gradient whose row failed is wrong only at kinks, where
    it is between the slopes on the two sides; otherwise None."""
    reference = case.found.references.get((NAME, row.quantity))
    if row.reason == SLOPES_DIFFER or reference is None or row.tolerance is None:
        return None
    judge = Judge(case, NAME, at, row.tolerance, row.how)
    return sides.excused(judge, case.gradients[at], reference, step)


def _own_error(
    case: Case, at: int, steps: Steps, compared: Sequence[float] = (1.0, *OTHER_STEPS)
) -> float:
    """Return how much the differences vary with the step."""
    return spread(case, at, [_derivative(case, steps, times) for times in compared])


def _derivative(case: Case, steps: Steps, times: float = 1.0) -> Derivative:
    """Return a function that computes the slope of the loss along a direction, from a
    difference over ``times`` the step."""

    def derivative(at: int, direction: np.ndarray) -> tuple[float, np.ndarray]:
        if times == 1.0 and direction is case.directions.first(at):
            change, moved = first_difference(case, at, steps[at])
        else:
            change, moved = difference(case, at, direction, times * steps[at])
        return float(np.sum(case.dy * change)), moved

    return derivative


def _why_not_judged(row: Row, case: Case, at: int, steps: Steps, low: bool) -> str:
    """Return why differences cannot judge a gradient that they find wrong: a kink, an
    infinity, or their own error; otherwise an empty string."""
    if has_kink(case, at, steps[at]):
        return KINKED
    got = case.gradients[at]
    if got is not None and np.isinf(got).any() and not np.isnan(got).any():
        return (
            "backward returns an infinity, which a difference can neither confirm nor "
            "refute"
        )
    if not low or row.error is None or not np.isfinite(row.error):
        return ""
    own = _own_error(case, at, steps)
    # A shorter step shows kinks that this one crosses, but rounds more.
    if _crosses_kinks(case, at, steps[at]):
        own = max(own, _own_error(case, at, steps, (1.0, BRIEF)))
    if row.error > DOUBT * own:
        return ""
    return (
        f"{COARSE}: they vary by {own:.1e} with the step, and "
        f"differ by {row.error:.1e} from backward"
    )


def _crosses_kinks(case: Case, at: int, step: Step) -> bool:
    """Whether some elements of y bend over a step by more than a smooth y. Rounding
    bends most elements, or the only one."""
    change, bend = _change_and_bend(case, at, step * case.directions.first(at))
    bent = bend > KINK * _of_each(change)
    return bool(bent.any()) and bent.mean() < FEW


def has_kink(case: Case, at: int, step: Step) -> bool:
    """Whether y's slopes on the two sides of these inputs differ, over every step."""
    for along in _breaking_ties(case, at):
        if _kinked(case, at, step, along) and all(
            _bends(case, at, step / FACTOR**level * along) for level in BENT_LEVELS
        ):
            return True
    return False


def _bends(case: Case, at: int, moved: np.ndarray) -> bool:
    """Whether y bends over a step. Over a short one, a smooth y bends only by
    rounding."""
    change, bend = _change_and_bend(case, at, moved)
    return bool((bend > KINK * _of_each(change)).any())


def _of_each(change: np.ndarray) -> np.ndarray:
    """Return the change of each element of y, or a part of the largest one: elements
    that move further do not hide a kink."""
    return np.maximum(change, HIDDEN * change.max(initial=0.0))


def _breaking_ties(case: Case, at: int) -> Iterator[np.ndarray]:
    """Yield directions in which every coordinate moves and no two move alike, so that
    each direction leaves zeros and ties."""
    x = case.float64[at]
    rng = case.rng
    for _ in range(KINK_DIRECTIONS):
        sizes = rng.uniform(0.5, 1.5, x.shape) * rng.choice([-1.0, 1.0], x.shape)
        yield np.where(np.isfinite(x), sizes, 0.0)


def wrong_at_ties(case: Case, at: int, step: Step) -> str:
    """Return how a gradient is wrong whichever way it is shared among equal elements of
    the input; "" if it is not, or if that is not known.

    If equal elements move together, ties do not break. If y is smooth along such a
    direction, a derivative of each branch of y has the slope of the difference. Those
    that are 0 first keep their place, because many functions have a kink there.
    """
    x, got = case.float64[at], case.gradients[at]
    values, group = np.unique(x, return_inverse=True)
    if got is None or values.size == x.size:
        return ""
    if not (np.isfinite(x).all() and np.isfinite(got).all()):
        return ""
    for moving in (values != 0, np.ones(values.shape, bool)):
        if found := _wrong_together(case, at, step, moving, group.reshape(x.shape)):
            return found
        if moving.all():
            break
    return ""


def _wrong_together(
    case: Case, at: int, step: Step, moving: np.ndarray, group: np.ndarray
) -> str:
    """Return how a gradient is wrong if the groups of equal elements that are
    ``moving`` move; otherwise ""."""
    got, unit, rng = case.gradients[at], float(np.min(step)), case.rng
    assert got is not None
    wrong = []
    for _ in range(KINK_DIRECTIONS):
        sizes = rng.uniform(0.5, 1.5, moving.size)
        sizes *= rng.choice([-1.0, 1.0], moving.size)
        direction = np.where(moving, sizes, 0.0)[group]
        change, moved = difference(case, at, direction, unit)
        slope, of_backward = np.sum(case.dy * change), np.sum(got * moved)
        _, bend = _change_and_bend(case, at, unit * direction)
        bent = DOUBT * np.sum(np.abs(case.dy) * bend) / unit
        size = max(np.sum(np.abs(case.dy * change)), np.sum(np.abs(got * moved)))
        smooth = bent <= TIED * size  # several kinks that meet may bend y little
        if smooth and abs(of_backward - slope) > bent + TIED * size:
            wrong.append((of_backward, slope, direction, TIED * size))
    if len(wrong) < 2:
        return ""
    of_backward, slope, direction, least = wrong[0]
    found = converged.measured(case, at, got, [direction], unit)
    if not abs(found.errors[0]) > max(converged.DOUBT * found.doubts[0], least):
        return ""
    return (
        f"where equal elements of {case.subject.input_names[at]} move together, y has no "
        f"kink, and the slope is {slope:.4g}; backward's is {of_backward:.4g}. Equal "
        "elements may share a gradient, but their shares sum to 1"
    )


def _kinked(case: Case, at: int, step: Step, direction: np.ndarray) -> bool:
    change, bend = _change_and_bend(case, at, step * direction)
    _, bend_of_half = _change_and_bend(case, at, step / 2 * direction)
    bent = bend > KINK * _of_each(change)
    return bool((bent & (bend_of_half > SHARP * bend)).any())


def _change_and_bend(
    case: Case, at: int, moved: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the change of each element of y from behind to ahead, and its bend: twice
    its distance from their mean."""
    x = case.float64[at]
    with np.errstate(divide="ignore", invalid="ignore"):  # y may be undefined there
        ahead, here, behind = (
            case.forward(replaced(case, at, case.rounded(there)))
            for there in (x + moved, x, x - moved)
        )
        change, bend = np.abs(ahead - behind), np.abs(ahead - 2 * here + behind)
    return np.nan_to_num(change, posinf=0.0), np.nan_to_num(bend, posinf=0.0)


def errs_over_any_step(case: Case, at: int) -> bool:
    """Whether a gradient's slopes are as wrong over a step so short that kinks cannot
    be the cause.

    A kink that a step crosses bends y by twice the error that it causes, and a shorter
    step crosses fewer. The medians over random directions are compared.
    """
    got = case.gradients[at]
    if case.computes_in != "float64" or got is None:
        return False
    step = best_step(case, at)
    errors, shorter, bends = [], [], []
    for direction in case.directions.of(at, BENT_DIRECTIONS):
        for found, h in ((errors, step), (shorter, step / BRIEFER)):
            change, moved = difference(case, at, direction, h)
            found.append(abs(np.sum(case.dy * change) - np.sum(got * moved)))
        taken = step / BRIEFER * direction
        _, bend = _change_and_bend(case, at, taken)
        unit = largest(taken) / (largest(direction) or 1.0) or 1.0
        bends.append(np.sum(np.abs(case.dy) * bend) / unit)
    wrong = np.median(shorter)
    return bool(wrong > DOUBT * np.median(bends) and wrong > np.median(errors) / 2)


def _at_own_precision(case: Case, reason: NotRun) -> Case:
    """Return the case with numbers rounded to the precision in which forward computes.

    If forward does not accept float64, it gets the inputs' dtype. Raises NotRun if the
    precision is too coarse.
    """
    precision = case.computes_in
    if _low_tolerance(precision) > COARSEST:
        raise NotRun(f"{reason}, and {precision} is too coarse for differences")
    fed = "float64" if case.takes_float64 else case.dtype
    return replace(case, precision=precision, fed=fed)


def _low(precision: str) -> tuple[float, str]:
    """Return the tolerance at low precision, and why it is that."""
    return _low_tolerance(precision), f"{WHY}, {LOW_TOLERANCE}·ε^⅔ of {precision}"


def _low_tolerance(precision: str) -> float:
    return LOW_TOLERANCE * EPSILON[precision] ** (2 / 3)
