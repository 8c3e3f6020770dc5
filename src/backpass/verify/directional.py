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
    movable = np.isfinite(x)  # elsewhere x + h·v is no step: −∞ stays −∞
    small = x.size <= COORDINATES
    coordinates = f" and all {int(movable.sum())} coordinates" if small else ""
    how = f"{RANDOM} random directions{coordinates}; {why}"

    if small:
        by_element = _gradient(at, x, movable, derivative)
        row = judge_gradient(case, method, at, got, by_element, tolerance, how)
        if row.verdict != PASSED:
            return row
    elif got.shape != x.shape:
        reason = f"expected shape {list(x.shape)}; got {list(got.shape)}"
        return Row(method, case.quantity(at), FAILED, np.inf, tolerance, how, reason)

    rng = case.rng
    directions = [np.where(movable, rng.standard_normal(x.shape), 0.0) for _ in range(RANDOM)]
    along = [derivative(at, v) for v in directions]
    slopes = np.array([np.sum(got[movable] * moved[movable]) for _, moved in along])
    expected = np.array([slope for slope, _ in along])
    of_directions = judge_gradient(replace(case, explain=False), method, at, slopes, expected, tolerance, how)
    if of_directions.verdict == FAILED:
        hint = "" if small else f"; an input of at most {COORDINATES} elements would show where"
        return replace(of_directions, reason=f"the slopes along random directions differ{hint}")
    return replace(row, error=max(row.error, of_directions.error or 0.0)) if small else of_directions


def _gradient(at: int, x: np.ndarray, movable: np.ndarray, derivative: Derivative) -> np.ndarray:
    """The whole gradient, coordinate by coordinate; NaN where x cannot move."""
    gradient = np.full(x.shape, np.nan)
    for index in np.argwhere(movable):
        unit = np.zeros(x.shape)
        unit[tuple(index)] = 1.0
        slope, moved = derivative(at, unit)
        gradient[tuple(index)] = slope / moved[tuple(index)]
    return gradient
