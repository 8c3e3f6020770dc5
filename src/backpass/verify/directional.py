"""Rows of the methods that know one number a direction: Σ dy·(dy/dx along v), against Σ dx·v."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from backpass.verify.case import Case
from backpass.verify.comparison import judge_gradient
from backpass.verify.report import FAILED, PASSED, Row

RANDOM = 8  # directions for each input
COORDINATES = 128  # up to this many elements, each coordinate is a direction as well

Derivative = Callable[[int, np.ndarray], tuple[float, np.ndarray]]


def rows(case: Case, method: str, tolerance: float, why: str, derivative: Derivative) -> list[Row]:
    """One row a gradient. ``derivative(at, v)`` returns the slope along v and the direction really taken."""
    return [_row(case, method, tolerance, why, derivative, at) for at in case.differentiable]


def _row(case: Case, method: str, tolerance: float, why: str, derivative: Derivative, at: int) -> Row:
    x = case.float64[at]
    got = case.gradients[at]
    got = np.zeros(x.shape) if got is None else got
    if got.shape != x.shape:
        return judge_gradient(case, method, at, got, np.zeros(x.shape), tolerance, why)

    rng = case.rng
    movable = np.isfinite(x)  # elsewhere x + h·v is no step: −∞ stays −∞
    directions = [np.where(movable, rng.standard_normal(x.shape), 0.0) for _ in range(RANDOM)]
    along = [derivative(at, v) for v in directions]
    how = f"{RANDOM} random directions"
    coordinates = None
    if x.size <= COORDINATES:
        how += f" and all {int(movable.sum())} coordinates"
        coordinates = _gradient(at, x, movable, derivative)

    how = f"{how}; {why}"
    row = judge_gradient(
        case,
        method,
        at,
        got=np.array([np.sum(got * moved) for _, moved in along]),
        reference=np.array([value for value, _ in along]),
        tolerance=tolerance,
        how=how,
    )
    if coordinates is None:
        return replace(row, reason="the directional derivatives differ") if row.verdict == FAILED else row
    by_element = judge_gradient(case, method, at, got, coordinates, tolerance, how)
    return (
        by_element
        if by_element.verdict != PASSED or (row.verdict == PASSED and by_element.error > row.error)
        else row
    )


def _gradient(at: int, x: np.ndarray, movable: np.ndarray, derivative: Derivative) -> np.ndarray:
    """The whole gradient, coordinate by coordinate; 0 where x cannot move."""
    gradient = np.zeros(x.shape)
    for index in np.argwhere(movable):
        unit = np.zeros(x.shape)
        unit[tuple(index)] = 1.0
        value, moved = derivative(at, unit)
        gradient[tuple(index)] = value / moved[tuple(index)]
    return gradient
