"""Slopes of y on the two sides of an input, where they may differ.

At a kink, such as ReLU's, a gradient may be either slope or a number between them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from backpass.verify.case import Case
from backpass.verify.comparison import Judge
from backpass.verify.differences import FACTOR, Step, replaced
from backpass.verify.magnitude import farthest, largest
from backpass.verify.report import PASSED, Row

UNDEFINED, SHORTER = 4, 3  # elements that are tried, and steps to each side
STEADY = 0.05  # of a slope: a logarithm changes more over such steps
MOST = 128  # elements at kinks that are examined
DIFFER, NEAR = 1e-3, 1e-4  # of the larger slope


def infinite_beside_finite(case: Case, at: int, step: Step) -> str:
    """Return where a gradient is NaN or infinite although y is finite, as are its
    slopes on both sides; "" if that is nowhere, or not known.

    Not even at a kink is such a number a derivative of one of the sides.
    """
    x, got = case.float64[at], case.gradients[at]
    if got is None or got.shape != x.shape or not np.isfinite(case.y).all():
        return ""
    for index in np.argwhere(~np.isfinite(got) & np.isfinite(x))[:UNDEFINED]:
        unit = np.zeros(x.shape)
        unit[tuple(index)] = 1.0
        if all(slope(case, at, side * step * unit) is not None for side in (1, -1)):
            found = got[tuple(index)]
            where = f" at index {[int(i) for i in index]}" if index.size else ""
            return (
                f"{'NaN' if np.isnan(found) else 'infinite'}{where}, where y is finite "
                "and its slopes on both sides are finite"
            )
    return ""


def slope(case: Case, at: int, moved: np.ndarray) -> np.ndarray | None:
    """Return the slope of y to one side, per unit of the step's length; None if shorter
    steps change it, or if y is not finite there."""
    x, slopes = case.float64[at], []
    for level in range(SHORTER):
        taken = moved / FACTOR**level
        there = case.forward(replaced(case, at, x + taken))
        slopes.append((there - case.y) / largest(taken))
    size = largest(slopes[0])
    steady = all(
        bool(np.isfinite(one).all()) and farthest(one, slopes[0]) <= STEADY * size
        for one in slopes
    )
    return slopes[0] if steady else None


def excused(
    judge: Judge, got: np.ndarray | None, reference: np.ndarray, step: Step
) -> Row | None:
    """Return a passed row if a gradient differs from the reference only at kinks, and
    is between the slopes on the two sides there; otherwise None."""
    case, at = judge.case, judge.key
    if got is None or got.shape != reference.shape or at == "y":
        return None
    known = np.isfinite(reference)
    if not np.isfinite(got[known]).all() or not np.isfinite(case.y).all():
        return None
    off = np.where(known, np.abs(got - np.where(known, reference, 0.0)), 0.0)
    apart = np.argwhere(off > judge.tolerance * largest(reference))
    if len(apart) > MOST:
        return None
    free = reference.copy()
    for index in map(tuple, apart):
        unit = np.zeros(got.shape)
        unit[index] = 1.0
        if not _is_between(case, at, step * unit, float(got[index])):
            return None
        free[index] = got[index]
    row = judge.row(got, free)
    judge.case.found.references[judge.method, judge.quantity] = reference
    places = "element is at a kink" if len(apart) == 1 else "elements are at kinks"
    note = (
        f"{len(apart)} {places}, where any slope between those of the two sides passes"
    )
    return _with_note(row, note) if row.verdict == PASSED else None


def _with_note(row: Row, note: str) -> Row:
    return replace(row, note="; ".join(filter(None, (row.note, note))))


def _is_between(case: Case, at: int, moved: np.ndarray, got: float) -> bool:
    """Whether y has a kink along a coordinate, and a gradient is between the slopes of
    the loss on its two sides."""
    ahead, behind = slope(case, at, moved), slope(case, at, -moved)
    if ahead is None or behind is None:
        return False
    two = float(np.sum(case.dy * ahead)), -float(np.sum(case.dy * behind))
    size = max(map(abs, two))
    near = NEAR * size
    return max(two) - min(two) > DIFFER * size and (
        min(two) - near <= got <= max(two) + near
    )
