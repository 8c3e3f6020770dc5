"""Whether a gradient that differs from autograd's is as good a choice at a kink.

At a kink, y has one slope on each side, and each number between the two is a
subgradient: that of ReLU at 0 may be 0, 1/2, or 1. Which of them autograd returns is a
convention of its operation. Where elements are equal, as in a maximum with ties, the
same holds for the sum of their gradients, if they move together.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from backpass.verify.case import Case
from backpass.verify.convert import EPSILON
from backpass.verify.magnitude import largest

MOST = 256  # elements that are examined; of more, random ones
LEAST = 1e-3  # of the larger slope: the least difference of the slopes at a kink
SHARP = 0.4  # of that difference, which a shorter step does not shrink at a kink
NEAR = 1e-4  # of the slopes: their error over the step


def is_subgradient(
    case: Case, at: int, got: np.ndarray | None, reference: np.ndarray, off: float
) -> bool:
    """Whether y has a kink at each element at which a gradient differs from a reference
    by more than ``off``, and the gradient lies between the slopes on the two sides."""
    if got is None or got.shape != reference.shape:
        return False
    differs = ~(np.abs(got - reference) <= off)
    if not differs.any() or not np.isfinite(got).all():
        return False
    places = case.rng.permutation(np.flatnonzero(differs))[:MOST]
    elements = [_unit(got.shape, int(i)) for i in places]
    return all(
        _has_kink(case, at, one) and _is_between(case, at, one, got) for one in elements
    ) and all(
        _is_between(case, at, one, got) for one in _equal(case.float64[at], differs)
    )


def _unit(shape: tuple[int, ...], at: int) -> np.ndarray:
    unit = np.zeros(shape)
    unit.flat[at] = 1.0
    return unit


def _equal(x: np.ndarray, differs: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the directions in which equal elements move together, if one differs."""
    values, counts = np.unique(x, return_counts=True)
    for value in np.intersect1d(values[counts > 1], x[differs]):
        yield (x == value).astype(float)


def _is_between(case: Case, at: int, direction: np.ndarray, got: np.ndarray) -> bool:
    """Whether a gradient's slope along a direction is that of derivatives of y's
    elements each of which lies between the slopes on its two sides."""
    behind, ahead = (case.dy * slope for slope in _slopes(case, at, direction, 1.0))
    low, high = np.minimum(behind, ahead).sum(), np.maximum(behind, ahead).sum()
    room = NEAR * (np.abs(behind).sum() + np.abs(ahead).sum())
    return bool(low - room <= np.sum(got * direction) <= high + room)


def _has_kink(case: Case, at: int, direction: np.ndarray) -> bool:
    gaps = []
    for times in (1.0, 0.5):
        behind, ahead = _slopes(case, at, direction, times)
        gaps.append(np.abs(case.dy * (ahead - behind)).sum())
    size = np.abs(case.dy * ahead).sum() + np.abs(case.dy * behind).sum()
    return bool(gaps[1] > LEAST * size and gaps[1] > SHARP * gaps[0])


def _slopes(
    case: Case, at: int, direction: np.ndarray, times: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return y's slopes behind and ahead of the input, over steps as large as central
    differences take at the elements that move."""
    x = case.float64[at]
    size = largest(x[direction != 0]) or 1.0
    taken = times * size * EPSILON[case.precision] ** (1 / 3) * direction
    here = case.forward(case.float64)
    behind, ahead = (
        case.forward((*case.float64[:at], x + move, *case.float64[at + 1 :]))
        for move in (-taken, taken)
    )
    unit = largest(taken)
    with np.errstate(invalid="ignore"):
        return (here - behind) / unit, (ahead - here) / unit
