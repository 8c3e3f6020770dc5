"""Slopes of y on the two sides of an input, where they may differ.

At a kink, y has one slope on each side, and each number between the two is a
subgradient: that of ReLU at 0 may be 0, 1/2, or 1. Which of them autograd returns is a
convention of its operation. Where elements are equal, as in a maximum with ties, the
same holds for the sum of their gradients, if they move together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from backpass.verify.case import Case
from backpass.verify.comparison import Judge
from backpass.verify.differences import FACTOR, Step, replaced
from backpass.verify.magnitude import farthest, largest
from backpass.verify.report import PASSED, Row

UNDEFINED, SHORTER = 4, 3  # elements that are tried, and steps to each side
STEADY = 0.05  # of a slope: a logarithm changes more over such steps
MOST = 128  # elements that are examined; of more, random ones
DIFFER, NEAR = 1e-3, 1e-4  # of the slopes


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


def is_infinite_at_kinks(case: Case, at: int, step: Step) -> bool:
    """Whether y has a kink at each element where a gradient is NaN or infinite, as a
    norm has at 0; of many elements, random ones are tried."""
    x, got = case.float64[at], case.gradients[at]
    if got is None or got.shape != x.shape or not np.isfinite(case.y).all():
        return False
    places = case.rng.permutation(np.argwhere(~np.isfinite(got)))[:UNDEFINED]
    return len(places) > 0 and all(
        differ(case, at, step * _unit(x.shape, index)) for index in places
    )


def slope(case: Case, at: int, moved: np.ndarray) -> np.ndarray | None:
    """Return the slope of y to one side, per unit of the step's length; None if shorter
    steps change it, or if y is not finite there."""
    x, slopes = case.float64[at], []
    for level in range(SHORTER):
        taken = moved / FACTOR**level
        with np.errstate(divide="ignore", invalid="ignore"):  # y may be undefined there
            there = case.forward(replaced(case, at, x + taken))
        slopes.append((there - case.y) / largest(taken))
    size = largest(slopes[0])
    steady = all(
        bool(np.isfinite(one).all()) and farthest(one, slopes[0]) <= STEADY * size
        for one in slopes
    )
    return slopes[0] if steady else None


def differ(case: Case, at: int, moved: np.ndarray) -> bool:
    """Whether y's slopes on the two sides differ along a direction."""
    ahead, behind = slope(case, at, moved), slope(case, at, -moved)
    if ahead is None or behind is None:
        return False
    size = np.abs(case.dy * ahead).sum() + np.abs(case.dy * behind).sum()
    return bool(np.abs(case.dy * (ahead + behind)).sum() > DIFFER * size)


def excused(
    judge: Judge, got: np.ndarray | None, reference: np.ndarray, step: Step
) -> Row | None:
    """Return a passed row if a gradient differs from the reference only at kinks, and
    is a subgradient there; otherwise None."""
    case, at = judge.case, judge.key
    if at == "y" or not np.isfinite(case.y).all():
        return None
    apart = differing(got, reference, judge.tolerance * largest(reference))
    if got is None or not is_subgradient(case, at, got, apart, step):
        return None
    row = judge.row(got, np.where(apart, got, reference))
    case.found.references[judge.method, judge.quantity] = reference
    passes = "any slope between those of the two sides passes"
    note = kink_note(int(apart.sum()), passes)
    return _with_note(row, note) if row.verdict == PASSED else None


def kink_note(n: int, passes: str) -> str:
    """Return the note of a gradient of which n elements are excused, and what passes
    there."""
    places = "1 element is at a kink" if n == 1 else f"{n} elements are at kinks"
    return f"{places}, where {passes}"


def _with_note(row: Row, note: str) -> Row:
    return replace(row, note="; ".join(filter(None, (row.note, note))))


def differing(
    got: np.ndarray | None, reference: np.ndarray, allowed: float
) -> np.ndarray:
    """Return the elements at which a gradient differs from a finite reference by more
    than is allowed; none if it has another shape."""
    if got is None or got.shape != reference.shape:
        return np.zeros(reference.shape, bool)
    known = np.isfinite(reference)
    return known & ~(np.abs(got - np.where(known, reference, 0.0)) <= allowed)


def is_subgradient(
    case: Case, at: int, got: np.ndarray, apart: np.ndarray, step: Step
) -> bool:
    """Whether y has a kink at each of some elements of an input, and a gradient lies
    between the slopes on the two sides: at each, and where equal ones move together."""
    if not apart.any() or not np.isfinite(got[apart]).all():
        return False
    places = case.rng.permutation(np.argwhere(apart))[:MOST]
    return all(
        _is_between(case, at, step * _unit(got.shape, index), got, kinked=True)
        or _is_share(case, at, step, index, got)
        for index in places
    ) and all(
        _is_between(case, at, step * together, got)
        for together in _equal(case.float64[at], apart)
    )


def _is_share(
    case: Case, at: int, step: Step, index: np.ndarray, got: np.ndarray
) -> bool:
    """Whether y does not change with one of several equal elements alone, as a median
    of three does not, and a gradient is a part of the slope of all together."""
    x, here = case.float64[at], tuple(index)
    together = (x == x[here]).astype(float)
    alone = step * _unit(got.shape, index)
    flat = [slope(case, at, sign * alone) for sign in (1, -1)]
    both = [slope(case, at, sign * step * together) for sign in (1, -1)]
    if together.sum() < 3 or any(of is None for of in (*flat, *both)):
        return False
    if any(np.any(of != 0) for of in flat):
        return False
    ends = [0.0, float((case.dy * both[0]).sum()), -float((case.dy * both[1]).sum())]
    return min(ends) <= got[here] <= max(ends)


def _unit(shape: tuple[int, ...], index: np.ndarray) -> np.ndarray:
    unit = np.zeros(shape)
    unit[tuple(index)] = 1.0
    return unit


def _equal(x: np.ndarray, apart: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the directions in which equal elements move together, if one is apart."""
    values, counts = np.unique(x, return_counts=True)
    for value in np.intersect1d(values[counts > 1], x[apart]):
        yield (x == value).astype(float)


def _is_between(
    case: Case, at: int, moved: np.ndarray, got: np.ndarray, *, kinked: bool = False
) -> bool:
    """Whether a gradient's slope along a direction is that of slopes of y's elements
    each of which lies between those on its two sides, and, if ``kinked``, whether these
    differ."""
    ahead, behind = slope(case, at, moved), slope(case, at, -moved)
    if ahead is None or behind is None:
        return False
    ahead, behind = case.dy * ahead, -case.dy * behind
    size = np.abs(ahead).sum() + np.abs(behind).sum()
    if kinked and np.abs(ahead - behind).sum() <= DIFFER * size:
        return False
    low, high = np.minimum(ahead, behind).sum(), np.maximum(ahead, behind).sum()
    along = np.sum(np.where(moved == 0, 0.0, got) * moved) / largest(moved)
    return bool(low - NEAR * size <= along <= high + NEAR * size)
