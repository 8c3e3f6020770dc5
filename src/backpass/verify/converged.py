"""Judge a gradient that differences find wrong by differences that have converged.

A difference accuses only where all shorter steps agree with it. Where none has
converged, it shows nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from backpass.verify.case import Case
from backpass.verify.comparison import Judge
from backpass.verify.convert import EPSILON, in_dtype
from backpass.verify.diagnosis.places import index_text, numbers_apart
from backpass.verify.differences import (
    FACTOR,
    LEVELS,
    Step,
    best_step,
    raw_difference,
    replaced,
)
from backpass.verify.directional import LARGE, directions_of
from backpass.verify.findings import SLOPES_DIFFER
from backpass.verify.magnitude import largest
from backpass.verify.report import FAILED, NOT_RUN, PASSED, Row

TIMES = (1.0, 0.5, 0.7, 1.4)  # the steps of one level
SPREADS = 2  # times the spread over a level's steps: a difference's own error
UNITS = 2  # in the last place of y: its rounding
LEVELS_IF_LARGE = 3
DOUBT = 4  # times a difference's own error: a smaller error may be the difference's
SURE = 1e-4  # of the largest element: differences less accurate confirm nothing
FARTHER = 64  # steps, over which y changes in a wider dtype
HALVINGS = 20  # of a step, to find where y jumps
ALIKE = 1e-3  # of an error, by which two differences of it may disagree
LOSSY = 1e-9  # of y's largest element: more than float64 rounds in a usual sum
BATCH, TWO = 16, 2  # elements and directions that are measured together
FEW, CLEAR = 4, 1e3  # elements first; they suffice if off by as many times the doubts


@dataclass(frozen=True)
class Measured:
    """The errors of backward along some directions, by differences of several levels.

    ``doubts`` say how far each error may be off; infinite if no differences converge.
    """

    errors: np.ndarray
    doubts: np.ndarray


def judged(row: Row, case: Case, at: int, step: Step) -> Row:
    """Return the verdict of converged differences on a gradient whose row failed.

    The gradient is finite and has the shape of its input.
    """
    if row.reason == SLOPES_DIFFER:
        return _by_direction(row, case, at, step)
    return _by_element(row, case, at, step)


def _by_direction(row: Row, case: Case, at: int, step: Step) -> Row:
    off = [abs(error) for error, _ in case.found.slopes[row.method, row.quantity]]
    size = max(off) / row.error if row.error and np.isfinite(row.error) else 0.0
    allowed = (row.tolerance or 0.0) * (size or case.scales[at])
    order = np.argsort(off)[::-1]
    failing = [directions_of(case, at)[i] for i in order if not off[i] <= allowed]
    known, most = True, 0.0
    for start in range(0, len(failing), TWO):
        batch = failing[start : start + TWO]
        found = measured(case, at, _gradient(case, at), batch, step)
        errors = np.abs(found.errors)
        if (errors > np.maximum(DOUBT * found.doubts, allowed)).any():
            wider = _error_of_wider(case, at, failing, step, allowed)
            return row if wider is None else _passed(row, wider / (size or 1.0))
        most = max(most, errors.max())
        known &= bool((errors <= allowed).all())
        known &= bool((found.doubts <= SURE * max(size, case.scales[at])).all())
    error = most / (size or 1.0)
    return _passed(row, error) if known and size else _too_coarse(row)


def _by_element(row: Row, case: Case, at: int, step: Step) -> Row:
    got, reference = (
        _gradient(case, at),
        case.found.references[row.method, row.quantity],
    )
    off = np.abs(got - reference)
    allowed = (row.tolerance or 0.0) * (largest(reference) or case.scales[at])
    errors, doubts = np.zeros(got.shape), np.zeros(got.shape)
    seen, wrong = np.zeros(got.shape, bool), np.zeros(got.shape, bool)
    order = _worst_first(off, reference, allowed)
    batches = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]
    for batch in (*([order[:FEW]] if len(order) > FEW else []), *batches):
        units = [_unit(got.shape, i) for i in batch]
        found = measured(case, at, got, units, step)
        errors.flat[batch], doubts.flat[batch] = found.errors, found.doubts
        few = not seen.any() and len(batch) < len(order)
        seen.flat[batch] = True
        least = np.maximum(allowed, (row.tolerance or 0.0) * np.abs(got - errors))
        times = CLEAR if few else DOUBT
        wrong = seen & (np.abs(errors) > np.maximum(times * doubts, least))
        if wrong.any() and (wrong == seen).all():
            # Such as a wrong factor: nothing else needs shorter steps.
            if not few or _are_alike(got - errors, reference, seen):
                break
    better = seen & np.isfinite(doubts) & (doubts <= SURE * np.abs(got - errors))
    refined = np.where(better | wrong, got - errors, np.where(seen, got, reference))
    if wrong.any():
        units = [_unit(got.shape, i) for i in order]
        wider = _error_of_wider(case, at, units, step, allowed)
        if wider is not None:
            return _passed(row, wider / (largest(reference) or case.scales[at]))
        return _failed(row, case, at, refined, wrong)
    size = largest(np.where(seen & ~better, 0.0, refined))
    known = (np.abs(errors) <= (row.tolerance or 0.0) * size) & (doubts <= SURE * size)
    if known.all() and size:
        return _passed(row, largest(errors) / size)
    return _too_coarse(row, int((~known).sum()), got.size)


def _are_alike(found: np.ndarray, given: np.ndarray, where: np.ndarray) -> bool:
    """Whether the usual step was as good at these elements."""
    return np.allclose(
        found[where], given[where], rtol=SURE, atol=SURE * largest(given)
    )


def _failed(
    row: Row, case: Case, at: int, reference: np.ndarray, wrong: np.ndarray
) -> Row:
    """Return the row of a gradient that is wrong at some elements."""
    got = _gradient(case, at)
    given = case.found.references[row.method, row.quantity]
    if (wrong | (reference == given)).all() and _are_alike(reference, given, wrong):
        return row  # the usual step was as good
    again = Judge(case, row.method, at, row.tolerance or 0.0, row.how).row(
        got, reference
    )
    if again.verdict == FAILED:
        return again
    case.found.suspects.pop((row.method, row.quantity), None)
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    shown, expected = numbers_apart(got[index], reference[index])
    said = f"got {shown}, expected {expected}"
    return replace(row, reason=f"wrong at {index_text(index)}: {said}")


def _passed(row: Row, error: float) -> Row:
    how = f"{row.how}; shorter steps where the usual one is too long"
    return replace(row, verdict=PASSED, error=error, reason="", how=how)


def _too_coarse(row: Row, unknown: int = 0, of: int = 0) -> Row:
    where = f" at {unknown} of {of} elements" if of > 1 else ""
    reason = f"differences are too coarse here: they vary with the step{where}"
    return Row(row.method, row.quantity, NOT_RUN, reason=reason)


def _gradient(case: Case, at: int) -> np.ndarray:
    got = case.gradients[at]
    return np.zeros(case.float64[at].shape) if got is None else got


def _worst_first(off: np.ndarray, reference: np.ndarray, allowed: float) -> list[int]:
    """Return the places of the failing elements; those that are worst absolutely and
    those that are worst relatively come first, in turn."""
    off = np.where(np.isfinite(off), off, 0.0).ravel()
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.nan_to_num(off / np.abs(reference.ravel()), posinf=0.0)
    pairs = zip(np.argsort(-off), np.argsort(-share), strict=True)
    order = dict.fromkeys(int(i) for pair in pairs for i in pair)
    return [i for i in order if off[i] > allowed]


def _unit(shape: tuple[int, ...], at: int) -> np.ndarray:
    unit = np.zeros(shape)
    unit.flat[at] = 1.0
    return unit


def measured(
    case: Case, at: int, got: np.ndarray, directions: Sequence[np.ndarray], step: Step
) -> Measured:
    """Measure backward's errors along directions by differences that have converged.

    The steps start at one level above ``step``, where y rounds less, and become
    shorter. A level counts only if all levels of shorter steps agree with it, within
    their own errors. The most accurate of these levels gives the result.
    """
    levels = 1 + (LEVELS_IF_LARGE if case.float64[at].size > LARGE else LEVELS)
    shares = FACTOR ** (1 - np.arange(float(levels)))
    lengths = float(np.max(step)) * shares
    shape = (len(directions), levels, len(TIMES))
    found, noise = np.full(shape, np.nan), np.zeros(shape[:2])
    rounding = UNITS * EPSILON[case.precision] * _norm(case.dy * case.y)
    for which, direction in enumerate(directions):
        for level, share in enumerate(shares):
            found[which, level] = [
                _error(case, at, got, direction, times * share * step)
                for times in TIMES
            ]
            noise[which, level] = rounding / largest(share * step * direction)
        noise[which] += _jump(case, at, direction, step) / lengths
    spreads = SPREADS * np.ptp(found, axis=2)
    # Some spreads are small by chance.
    spreads = np.maximum(spreads, [_median(of) for of in spreads.T])
    doubts = np.maximum(_with_noise_of_shorter(spreads), noise)
    best = [_most_accurate(*of) for of in zip(found[:, :, 0], doubts, strict=True)]
    errors, doubts = np.array(best).reshape(-1, 2).T
    return Measured(errors, doubts)


def _jump(case: Case, at: int, direction: np.ndarray, step: Step) -> float:
    """Return by how much Σ dy·y jumps next to the inputs if it does not change over the
    shortest step, as where forward rounds 1 − σ(x) to a few digits; 0 if it changes
    there, or if it begins to change without a jump. It is infinite if y changes over
    no step, and does so in a wider dtype."""
    here = replaced(case, at, case.float64[at])

    def change(times: float) -> float:
        there = case.rounded(case.float64[at] + times * step * direction)
        with np.errstate(invalid="ignore"):
            moved = case.forward(replaced(case, at, there)) - y
            return float(np.sum(np.where(case.dy == 0, 0.0, case.dy * moved)))

    y = case.forward(here)
    lengths = FACTOR ** -np.arange(float(LEVELS))[::-1]
    if change(lengths[0]) or change(-lengths[0]):
        return 0.0
    if not any(change(side * n) for side in (1.0, -1.0) for n in lengths):
        return (
            np.inf if _changes_if_wider(case, at, FARTHER * step * direction) else 0.0
        )
    most = 0.0
    for side in (1.0, -1.0):
        low, high = 0.0, next((side * n for n in lengths if change(side * n)), 0.0)
        for _ in range(HALVINGS if high else 0):
            middle = (low + high) / 2
            low, high = (low, middle) if change(middle) else (middle, high)
        most = max(most, abs(change(high)))
    return most


def _error_of_wider(
    case: Case, at: int, directions: Sequence[np.ndarray], step: Step, allowed: float
) -> float | None:
    """Return backward's largest error along some directions, by differences of forward
    in NumPy's widest dtype; None if one is not allowed over any of three steps. Float64
    may round 1 − σ(x) to the same number over a short step."""
    most = 0.0
    try:
        for direction in directions:
            errors = (
                abs(_error_if_wider(case, at, times * step * direction))
                for times in (FACTOR**1.5, FACTOR, 1 / FACTOR)
            )
            error = next((error for error in errors if error <= allowed), None)
            if error is None:
                return None
            most = max(most, error)
    except Exception:  # forward need not accept this dtype
        return None
    return most


def _error_if_wider(case: Case, at: int, taken: np.ndarray) -> float:
    """Return backward's error along a direction, per unit of its largest element; NaN
    if forward does not compute in the widest dtype."""
    inputs = [in_dtype(value, "longdouble") for value in case.inputs]
    wide = taken.astype(np.longdouble)
    with np.errstate(invalid="ignore"):  # y may be undefined so far away
        ahead, behind = (
            case.subject.forward(*inputs[:at], inputs[at] + moved, *inputs[at + 1 :])[0]
            for moved in (wide, -wide)
        )
        if ahead.dtype != np.longdouble:
            return np.nan
        slope = np.sum(case.dy * (ahead - behind)) / 2
    return float((np.sum(_gradient(case, at) * taken) - slope) / largest(taken))


def confirmed_if_wider(row: Row, case: Case) -> bool:
    """Whether differences in NumPy's widest dtype, over two steps, show the same error
    as a row that failed, where its gradient is most wrong."""
    if row.quantity not in case.quantities:
        return False
    at = case.differentiable[case.quantities.index(row.quantity)]
    got, key = _gradient(case, at), (row.method, row.quantity)
    reference, slopes = case.found.references.get(key), case.found.slopes.get(key)
    if row.reason == SLOPES_DIFFER and slopes:
        direction = max(slopes, key=lambda of: abs(of[0]))[1]
    elif reference is not None and reference.shape == got.shape:
        off = np.nan_to_num(np.abs(got - reference))
        direction = _unit(got.shape, int(off.argmax()))
    else:
        return False
    step = best_step(case, at)
    try:
        one, other = (
            _error_if_wider(case, at, times * step * direction)
            for times in (FACTOR, 1.0)
        )
    except Exception:  # forward need not accept this dtype
        return False
    return one != 0 and abs(one - other) <= ALIKE * abs(one)


def lossy(case: Case) -> str:
    """Return why differences of forward show nothing where it loses digits, as
    log(1 − σ(x)) does at a large x; "" if it does not, or if that is not known."""
    if case.uses_torch or case.computes_in != "float64":
        return ""
    try:
        wide = [in_dtype(value, "longdouble") for value in case.inputs]
        y, _ = case.subject.forward(*wide)
    except Exception:  # it need not accept this dtype
        return ""
    if y.dtype != np.longdouble or y.shape != case.y.shape:
        return ""
    with np.errstate(invalid="ignore"):
        off = largest(y - case.y) / (largest(case.y) or 1.0)
    if not off > LOSSY:
        return ""
    return f"forward loses digits there: y differs by {off:.1g} in a wider dtype"


def _changes_if_wider(case: Case, at: int, taken: np.ndarray) -> bool:
    """Whether y changes over a step in NumPy's widest dtype."""
    try:
        wide = [in_dtype(value, "longdouble") for value in case.inputs]
        y, _ = case.subject.forward(*wide)
        wide[at] = wide[at] + taken
        there, _ = case.subject.forward(*wide)
    except Exception:  # it need not accept this dtype
        return False
    return y.dtype == np.longdouble and bool((y != there).any())


def _with_noise_of_shorter(spreads: np.ndarray) -> np.ndarray:
    """Return the spreads of each level, none less than the noise of y that a shorter
    step shows would make it. Such noise is more than y's rounding where forward
    cancels, as in 1 − σ(x)."""
    lengths = FACTOR ** -np.arange(float(spreads.shape[1]))
    noise = np.fmax.accumulate((spreads * lengths)[:, ::-1], axis=1)[:, ::-1] / lengths
    return np.where(np.isnan(spreads), np.nan, noise)


def _median(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else 0.0


def _most_accurate(errors: np.ndarray, doubts: np.ndarray) -> tuple[float, float]:
    """Return the error and the doubt of the most accurate level that agrees with all
    shorter steps."""
    error, doubt = 0.0, np.inf
    for one, its in zip(errors[::-1], doubts[::-1], strict=True):
        if np.isnan(its):  # y is not defined so far away, or x + h rounds to x
            if np.isfinite(doubt):
                break
            continue
        if np.isfinite(doubt) and abs(one - error) > doubt + its:
            break
        if its < doubt:
            error, doubt = float(one), float(its)
    return error, doubt


def _error(
    case: Case, at: int, got: np.ndarray, direction: np.ndarray, step: Step
) -> float:
    """Return backward's error along a direction, per unit of it."""
    change, moved = raw_difference(case, at, direction, step)
    taken = np.vdot(direction, moved) / (np.vdot(direction, direction) or 1.0)
    with np.errstate(invalid="ignore"):
        slope = np.sum(np.where(case.dy == 0, 0.0, case.dy * change))
    if not (taken and np.isfinite(slope)):
        return np.nan
    return float((np.sum(got * moved) - slope) / taken)


def _norm(values: np.ndarray) -> float:
    size = largest(values) or 1.0
    shares = np.where(np.isfinite(values), values, 0.0) / size
    return size * float(np.sqrt(np.sum(shares**2)))
