"""Make the rows of methods that measure one slope per direction.

The slope of Σ dy·y(x) along v is compared with Σ dx·v.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from backpass.verify.case import Case
from backpass.verify.comparison import Judge
from backpass.verify.report import FAILED, PASSED, Row

RANDOM = 8  # directions for each input
LARGE, RANDOM_IF_LARGE = 1 << 20, 1  # fewer directions for arrays of more elements
COORDINATES = 128  # up to this many elements, each coordinate is a direction as well
SLOPES_DIFFER = (
    "the slopes along random directions differ; only inputs of at most "
    f"{COORDINATES} elements are compared by element"
)

Derivative = Callable[[int, np.ndarray], tuple[float, np.ndarray]]


def rows(
    case: Case,
    method: str,
    tolerance: float,
    why: str,
    derivative: Derivative,
    in_all: float = math.inf,
) -> list[Row]:
    """Return one row for each gradient.

    ``derivative(at, v)`` returns the slope along v, and the direction after rounding.
    ``in_all`` limits the number of coordinates of all inputs together.
    """
    found = []
    for at in case.derived:
        size = case.float64[at].size
        each = size <= min(COORDINATES, in_all)
        in_all -= size if each else 0
        found.append(_row(case, method, tolerance, why, derivative, at, each))
    return found


def spread(case: Case, at: int, derivatives: Sequence[Derivative]) -> float:
    """Return the spread of several measurements of one derivative.

    This is the largest difference along one direction, divided by the largest slope.
    """
    x = case.float64[at]
    movable = np.isfinite(x)
    sets = [_directions(case, at)]
    if x.size <= COORDINATES:
        sets.append(_units(x, movable))
    found = 0.0
    for directions in sets:
        slopes = np.array([[_slope(d, at, v) for v in directions] for d in derivatives])
        largest = np.abs(slopes).max(initial=0.0)
        found = max(
            found, np.ptp(slopes, axis=0).max(initial=0.0) / largest if largest else 0.0
        )
    return found


def _slope(derivative: Derivative, at: int, direction: np.ndarray) -> float:
    """Return the slope along the requested direction, of which rounding takes a little
    more or less."""
    slope, moved = derivative(at, direction)
    taken = np.vdot(direction, moved) / (np.vdot(direction, direction) or 1.0)
    return slope / taken if taken else 0.0


def _directions(case: Case, at: int) -> list[np.ndarray]:
    """Return random directions.

    Large arrays get fewer, because each takes longer and is as likely to show a
    mistake.
    """
    size = max(case.float64[at].size, case.y_as_given.size)
    return case.directions.of(at, RANDOM if size <= LARGE else RANDOM_IF_LARGE)


def _units(x: np.ndarray, movable: np.ndarray) -> list[np.ndarray]:
    """Return a direction for each coordinate that can move."""
    units = np.zeros((int(movable.sum()), *x.shape))
    for at, index in enumerate(np.argwhere(movable)):
        units[at, *index] = 1.0
    return [np.asarray(unit) for unit in units]


def _row(
    case: Case,
    method: str,
    tolerance: float,
    why: str,
    derivative: Derivative,
    at: int,
    each: bool,
) -> Row:
    """Return one row: along random directions and, if ``each``, all coordinates."""
    x = case.float64[at]
    got = case.gradients[at]
    got = np.zeros(x.shape) if got is None else got
    movable = np.isfinite(x)  # elsewhere x + h·v does not move: −∞ stays −∞
    coordinates = f" and all {int(movable.sum())} coordinates" if each else ""
    directions = _directions(case, at)
    how = f"{len(directions)} random directions{coordinates}; {why}"

    if each:
        by_element = np.full(x.shape, np.nan)  # where x cannot move
        measured = [
            (slope, moved)
            for slope, moved in (derivative(at, unit) for unit in _units(x, movable))
        ]
        by_element[movable] = [slope / moved.sum() for slope, moved in measured]
        row = Judge(case, method, at, tolerance, how).row(got, by_element)
        if row.verdict != PASSED:
            return row
    elif got.shape != x.shape:
        reason = f"expected shape {list(x.shape)}; got {list(got.shape)}"
        return Row(
            method, case.subject.quantity(at), FAILED, np.inf, tolerance, how, reason
        )

    along = [derivative(at, v) for v in directions]
    seen = got if movable.all() else np.where(movable, got, 0.0)
    slopes = np.array([np.sum(seen * moved) for _, moved in along])
    expected = np.array([slope for slope, _ in along])
    judge = Judge(case, method, at, tolerance, how, explain=False)
    of_directions = judge.row(slopes, expected)
    if of_directions.verdict == FAILED:
        return replace(of_directions, reason=SLOPES_DIFFER)
    return (
        replace(row, error=max(row.error or 0.0, of_directions.error or 0.0))
        if each
        else of_directions
    )
