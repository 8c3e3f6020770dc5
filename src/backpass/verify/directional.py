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
from backpass.verify.findings import COORDINATES, SLOPES_DIFFER
from backpass.verify.report import FAILED, PASSED, Row

RANDOM = 8  # directions for each input
LARGE, RANDOM_IF_LARGE = 1 << 20, 1  # fewer directions for arrays of more elements
RANDOM_IF_SLOW = 2  # and where each takes long

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
    in_all = 0 if case.slow else in_all
    for at in case.derived:
        size = case.float64[at].size
        each = size <= min(COORDINATES, in_all)
        in_all -= size if each else 0
        found.append(
            _row(Judge(case, method, at, tolerance, why), at, derivative, each)
        )
    return found


def spread(case: Case, at: int, derivatives: Sequence[Derivative]) -> float:
    """Return the spread of several measurements of one derivative.

    This is the largest difference along one direction, divided by the largest slope.
    """
    x = case.float64[at]
    sets = [directions_of(case, at)]
    if x.size <= COORDINATES and not case.slow:
        sets.append(_units(np.isfinite(x)))
    found = 0.0
    for directions in sets:
        slopes = np.array([[_slope(d, at, v) for v in directions] for d in derivatives])
        if size := np.abs(slopes).max(initial=0.0):
            found = max(found, np.ptp(slopes, axis=0).max() / size)
    return found


def _slope(derivative: Derivative, at: int, direction: np.ndarray) -> float:
    """Return the slope along the requested direction, of which rounding takes a little
    more or less."""
    slope, moved = derivative(at, direction)
    taken = np.vdot(direction, moved) / (np.vdot(direction, direction) or 1.0)
    return slope / taken if taken else 0.0


def directions_of(case: Case, at: int) -> list[np.ndarray]:
    """Return random directions.

    Large arrays get fewer, because each takes longer and is as likely to show a
    mistake.
    """
    size = max(case.float64[at].size, case.y_as_given.size)
    count = RANDOM_IF_SLOW if case.slow else RANDOM
    return case.directions.of(at, count if size <= LARGE else RANDOM_IF_LARGE)


def _units(movable: np.ndarray) -> list[np.ndarray]:
    """Return a direction for each coordinate that can move."""
    units = np.eye(movable.size)[movable.ravel()]
    return [unit.reshape(movable.shape) for unit in units]


def _row(judge: Judge, at: int, derivative: Derivative, each: bool) -> Row:
    """Return one row: along random directions and, if ``each``, all coordinates."""
    case = judge.case
    x = case.float64[at]
    got = case.gradients[at]
    got = np.zeros(x.shape) if got is None else got
    movable = np.isfinite(x)  # elsewhere x + h·v does not move: −∞ stays −∞
    coordinates = f" and all {int(movable.sum())} coordinates" if each else ""
    directions = directions_of(case, at)
    how = f"{len(directions)} random directions{coordinates}; {judge.how}"
    judge = replace(judge, how=how)

    if each:
        by_element = np.full(x.shape, np.nan)  # where x cannot move
        measured = [derivative(at, unit) for unit in _units(movable)]
        by_element[movable] = [slope / moved.sum() for slope, moved in measured]
        row = judge.row(got, by_element)
        if row.verdict != PASSED:
            return row
    elif got.shape != x.shape:
        reason = f"expected shape {list(x.shape)}; got {list(got.shape)}"
        return judge.verdict(FAILED, np.inf, reason)

    along = [derivative(at, v) for v in directions]
    seen = got if movable.all() else np.where(movable, got, 0.0)
    slopes = np.array([np.sum(seen * moved) for _, moved in along])
    expected = np.array([slope for slope, _ in along])
    of_directions = replace(judge, explain=False).row(slopes, expected)
    if of_directions.verdict == FAILED:
        case.found.slopes[judge.method, judge.quantity] = [
            (error, moved)
            for error, (_, moved) in zip(slopes - expected, along, strict=True)
        ]
        return replace(of_directions, reason=SLOPES_DIFFER)
    return (
        replace(row, error=max(row.error or 0.0, of_directions.error or 0.0))
        if each
        else of_directions
    )
