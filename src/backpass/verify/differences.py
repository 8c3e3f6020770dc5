"""Measure slopes of forward by central differences, over steps of several sizes.

A difference is accurate only if its step is much shorter than the scale on which the
slope changes: an input of 1e-6 under a square root, or the ε of a norm at a row of
zeros. Shorter steps show whether it is.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backpass.verify.case import Case, Inputs
from backpass.verify.convert import EPSILON
from backpass.verify.magnitude import farthest, largest

FACTOR, LEVELS = 16.0, 8  # a level's step is that much shorter than the one before
Step = float | np.ndarray  # for all coordinates, or one for each


def shorter_changes(
    case: Case, at: int, direction: np.ndarray, step: Step
) -> Iterator[np.ndarray]:
    """Yield the change of y per unit of each level's step; NaN where y is undefined at
    one of its ends."""
    for level in range(LEVELS):
        yield raw_difference(case, at, direction, step / FACTOR**level)[0]


def first_difference(
    case: Case, at: int, step: Step | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return ``difference`` along the first direction, by default the best step's.

    The result is cached, because other methods are compared with it.
    """
    key = (first_difference, at)
    if key not in case.shared:
        step = best_step(case, at) if step is None else step
        case.shared[key] = difference(case, at, case.directions.first(at), step)
    return case.shared[key]


def difference(
    case: Case, at: int, direction: np.ndarray, step: Step
) -> tuple[np.ndarray, np.ndarray]:
    """Do the same as ``raw_difference``, with 0 where y is not finite."""
    change, moved = raw_difference(case, at, direction, step)
    return np.where(np.isfinite(change), change, 0.0), moved


def raw_difference(
    case: Case, at: int, direction: np.ndarray, step: Step
) -> tuple[np.ndarray, np.ndarray]:
    """Return the change of y per unit of the step, and the direction actually taken,
    which differs because x + h·v rounds.

    A step for each coordinate scales that coordinate of the direction. The unit is then
    the largest step taken.
    """
    x = case.float64[at]
    taken = step * direction
    unit = largest(taken) / (largest(direction) or 1.0) or 1.0
    ahead, behind = case.rounded(x + taken), case.rounded(x - taken)
    with np.errstate(invalid="ignore"):
        moved = np.where(np.isfinite(x), (ahead - behind) / (2 * unit), 0.0)
        y_ahead, y_behind = (
            case.forward(replaced(case, at, there)) for there in (ahead, behind)
        )
        change = y_ahead - y_behind
        return change / (2 * unit), moved


def best_step(case: Case, at: int) -> Step:
    """Return the step whose result agrees best with that of half the step.

    The candidates are the step for numbers about 1, the step for numbers of the input's
    size, and a step for each coordinate. A step with which a coordinate does not move,
    because x + h rounds to x, is avoided.
    """
    x = case.float64[at]
    step = EPSILON[case.precision] ** (1 / 3)
    movable = np.isfinite(x)
    size = np.where(movable, np.abs(x), 0.0)
    most = size.max(initial=0.0) or 1.0
    typical = (
        most * np.sqrt(np.mean((size[movable] / most) ** 2)) if movable.any() else 1.0
    )
    if 0.1 <= typical <= 10:
        return step
    direction = case.directions.first(at)

    def disagreement(step: Step) -> float:
        whole, moved = difference(case, at, direction, step)
        half, half_moved = difference(case, at, direction, step / 2)
        if ((moved == 0) | (half_moved == 0))[direction != 0].any():
            return np.inf
        # Over a step that is too short, both may round to the same change.
        unit = largest(step * direction) / (largest(direction) or 1.0) or 1.0
        rounding = EPSILON[case.precision] * largest(case.y) / unit
        return (farthest(whole, half) + rounding) / (largest(whole) or 1.0)

    return min(
        (step, step * (typical or 1.0), step * np.maximum(size, 1.0)), key=disagreement
    )


def replaced(case: Case, at: int, value: np.ndarray) -> Inputs:
    return (*case.float64[:at], value, *case.float64[at + 1 :])
