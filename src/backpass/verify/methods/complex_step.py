"""Differentiate by complex steps: dy/dx along v is Im f(x + i·h·v) / h, up to h².

Nothing is subtracted, so the step may be 1e-30, and the only error is rounding. The
forward must be analytic and must accept complex numbers.
"""

from __future__ import annotations

import warnings

import numpy as np

from backpass.verify.case import Case, NotRun, first_line
from backpass.verify.convert import in_dtype
from backpass.verify.differences import best_step, first_difference, shorter_changes
from backpass.verify.directional import rows
from backpass.verify.magnitude import farthest, largest
from backpass.verify.report import Row

NAME = "complex step"
TOLERANCE = 1e-12
WHY = "rounding only"
STEP = 1e-30
# If the forward is analytic, a complex step and a finite difference along one direction
# agree to AGREEMENT, apart from the finite difference's noise relative to y.
AGREEMENT = 1e-4
NOISE = 1e-8
NOT_ANALYTIC = (
    "forward is not analytic as written: its complex step differs from its finite "
    "difference (|x|, a conjugate, or np.var and np.std, which take |x|² of complex "
    "numbers?)"
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
    first = {at: _first_change(case, at) for at in case.derived}

    def derivative(at: int, direction: np.ndarray) -> tuple[float, np.ndarray]:
        known = direction is case.directions.first(at)
        change = first[at] if known else _change(case, at, direction)
        return float(np.sum(case.dy * change)), direction

    return rows(case, NAME, *case.tolerance("complex_step", TOLERANCE, WHY), derivative)


def _change(case: Case, at: int, direction: np.ndarray) -> np.ndarray:
    """Return dy/dx along the direction."""
    values = [in_dtype(value, "complex128") for value in case.float64]
    values[at] = values[at] + 1j * STEP * direction
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


def _first_change(case: Case, at: int) -> np.ndarray:
    """Return dy/dx along the first random direction.

    Raises NotRun if finite differences disagree, over steps of any size.
    """
    near, _ = first_difference(case, at)
    direction = case.directions.first(at)
    exact = _change(case, at, direction)
    size, noise = max(largest(near), largest(exact)), NOISE * largest(case.y)
    if farthest(near, exact) <= AGREEMENT * size + noise:
        return exact
    # The usual step may be too long, for example where y is the root of a small x.
    unlike, steady = np.isfinite(case.y), np.zeros(exact.shape, bool)
    before = np.full(exact.shape, np.nan)
    for change in shorter_changes(case, at, direction, best_step(case, at)):
        unlike &= ~_agree(change, exact, noise)
        steady |= _agree(change, before, noise)
        before = change
    if (unlike & steady).any():
        raise NotRun(NOT_ANALYTIC)
    if unlike.any():
        raise NotRun(UNCONFIRMED)
    return exact


def _agree(one: np.ndarray, other: np.ndarray, noise: float) -> np.ndarray:
    """Return where two changes of y are close to each other; NaN is close to none."""
    with np.errstate(invalid="ignore"):
        size = np.maximum(np.abs(one), np.abs(other))
        return np.abs(one - other) <= AGREEMENT * size + noise
