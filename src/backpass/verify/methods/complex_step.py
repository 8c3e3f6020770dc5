"""Differentiate by complex steps: dy/dx along v is Im f(x + i·h·v) / h, up to h².

Nothing is subtracted, so the step may be 1e-30, and the only error is rounding. The
forward must be analytic and must accept complex numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from backpass.verify.analytic import watched
from backpass.verify.case import ROUNDINGS, Case, Inputs, NotRun, first_line
from backpass.verify.convert import EPSILON, in_dtype
from backpass.verify.differences import best_step, first_difference, shorter_changes
from backpass.verify.directional import rows
from backpass.verify.drawing import MEASURING, generator
from backpass.verify.magnitude import farthest, largest
from backpass.verify.measured import FINE, jumps, spread
from backpass.verify.methods import finite_difference
from backpass.verify.report import FAILED, NOT_RUN, PASSED, Row

NAME = "complex step"
TOLERANCE = 1e-12
WHY = "rounding only"
STEP = 1e-30
# If the forward is analytic, a complex step and a finite difference along one direction
# agree to AGREEMENT, apart from the finite difference's noise relative to y.
AGREEMENT = 1e-4
NOISE = 1e-8
CALLS = "forward is not analytic as written: it calls "
DIFFERS = "its complex step differs from its finite difference"
NOT_ANALYTIC = (
    f"forward is not analytic as written, or it loses digits: {DIFFERS} (|x|, a "
    "conjugate, or np.var and np.std, which take |x|² of complex numbers?)"
)
# Of NumPy's functions, those that are not analytic are watched.
INEXACT = (
    f"forward loses digits there, or converts numbers: {DIFFERS}, and it calls no "
    "function that is known not to be analytic"
)
UNCONFIRMED = (
    "no finite difference of forward converges there, so none can confirm that forward "
    "is analytic as written"
)


def run(case: Case) -> list[Row]:
    """Return one row for each gradient.

    Raises NotRun if forward is not an analytic function of complex numbers.
    """
    case.require_float64()
    seen: dict[int, dict[str, None]] = {at: {} for at in case.derived}
    first = {at: _first_change(case, at, seen[at]) for at in case.derived}

    def derivative(at: int, direction: np.ndarray) -> tuple[float, np.ndarray]:
        known = direction is case.directions.first(at)
        change = first[at] if known else _change(case, at, direction)
        return float(np.sum(case.dy * change)), direction

    found = rows(
        case, NAME, *case.tolerance("complex_step", TOLERANCE, WHY), derivative
    )
    return [
        _unless_dropped(row, seen[at])
        for at, row in zip(case.derived, found, strict=True)
    ]


def _unless_dropped(row: Row, seen: Mapping[str, None]) -> Row:
    """Return the row, marked "not run" if it failed and forward has called functions
    that are not analytic, which drop a part of the complex step."""
    if row.verdict != FAILED or not seen:
        return row
    reason = f"{CALLS}{' and '.join(seen)}"
    return Row(NAME, row.quantity, NOT_RUN, reason=reason)


def unless_contradicted(rows: list[Row]) -> list[Row]:
    """Return the rows, those of complex steps marked "not run" that failed where finite
    differences agree with backward: forward is not analytic as written."""
    agree = {
        row.quantity: row.tolerance or 0.0
        for row in rows
        if row.method == finite_difference.NAME and row.verdict == PASSED
    }

    def judged(row: Row) -> Row:
        least = 2 * agree.get(row.quantity, np.inf)
        if (
            row.method != NAME
            or row.verdict != FAILED
            or not (row.error or 0.0) > least
        ):
            return row
        return Row(NAME, row.quantity, NOT_RUN, reason=NOT_ANALYTIC)

    return [judged(row) for row in rows]


def roughness(case: Case, at: int) -> float:
    """Return how far dy/dx along a direction jumps by forward's own rounding: much more
    than its last digits where forward cancels, as in the difference of two sigmoids."""
    direction = case.directions.first(at)

    def slope(values: Inputs) -> np.ndarray:
        change = _change(replace(case, inputs=values), at, direction)
        return np.array(np.sum(case.dy * change))

    return float(jumps(slope, case.float64, generator(case.seed, MEASURING), FINE))


def _change(
    case: Case, at: int, direction: np.ndarray, seen: dict[str, None] | None = None
) -> np.ndarray:
    """Return dy/dx along the direction, and collect in ``seen`` the functions that are
    not analytic."""
    values = [in_dtype(value, "complex128") for value in case.float64]
    values[at] = values[at] + 1j * STEP * direction
    if seen is not None and not case.uses_torch:
        values[at] = watched(values[at], seen)
    try:
        with np.errstate(invalid="ignore"), warnings.catch_warnings():
            # Such a cast shows in y.
            warnings.filterwarnings("ignore", "Casting complex values to real")
            y = case.forward(tuple(values))
    except Exception as error:
        if case.subject.stem is not None:
            raise
        raise NotRun(
            f"forward does not accept complex numbers ({first_line(error)})"
        ) from None
    if not np.iscomplexobj(y):
        raise NotRun(
            "forward turns complex numbers into real ones (an absolute value, a real part, "
            "np.var or np.std, a conversion)"
        )
    return np.where(np.isfinite(y), y.imag / STEP, 0.0)


def _first_change(case: Case, at: int, seen: dict[str, None]) -> np.ndarray:
    """Return dy/dx along the first random direction.

    Raises NotRun if finite differences disagree, over steps of any size.
    """
    near, _ = first_difference(case, at)
    direction, step = case.directions.first(at), best_step(case, at)
    exact = _change(case, at, direction, seen)
    size, noise = max(largest(near), largest(exact)), NOISE * largest(case.y)
    if farthest(near, exact) <= AGREEMENT * size + noise:
        return exact
    if not np.array_equal(case.forward(case.float64), case.y, equal_nan=True):
        raise NotRun("forward returns a different y when it is called again")
    noise = max(noise, _noise(case) / largest(step * direction))
    if farthest(near, exact) <= AGREEMENT * size + noise < size:
        return exact
    # The usual step may be too long, for example where y is the root of a small x.
    unlike, steady = np.isfinite(case.y), np.zeros(exact.shape, bool)
    before = np.full(exact.shape, np.nan)
    for change in shorter_changes(case, at, direction, step):
        unlike &= ~_agree(change, exact, noise)
        steady |= _agree(change, before, noise)
        before = change
    if (unlike & steady).any():
        calls = f"{CALLS}{' and '.join(seen)}" if seen else ""
        raise NotRun(calls or (NOT_ANALYTIC if case.uses_torch else INEXACT))
    if unlike.any():
        raise NotRun(UNCONFIRMED)
    return exact


def _noise(case: Case) -> float:
    """Return how far y moves with the last digits of the inputs, with a margin: more
    than its own last digits where large terms cancel."""
    rng, unit = generator(case.seed, MEASURING), 2 * EPSILON["float64"]
    return ROUNDINGS * largest(spread(case.forward, case.float64, unit, rng))


def _agree(one: np.ndarray, other: np.ndarray, noise: float) -> np.ndarray:
    """Return where two changes of y are close to each other; NaN is close to none."""
    with np.errstate(invalid="ignore"):
        size = np.maximum(np.abs(one), np.abs(other))
        return np.abs(one - other) <= AGREEMENT * size + noise
