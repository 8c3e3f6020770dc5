"""Measure the size of arrays and their differences, with few temporary arrays."""

from __future__ import annotations

import numpy as np


def largest(x: np.ndarray) -> float:
    """Return the largest absolute value of the finite elements; 0 if there are none."""
    # |x| would be a second array as large as x.
    most = float(max(x.max(initial=0.0), -x.min(initial=0.0)))
    return most if np.isfinite(most) else largest(x[np.isfinite(x)])


def farthest(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest absolute difference of two arrays of finite numbers.

    It is infinite if the difference overflows.
    """
    apart = np.asarray(one - other)
    return float(np.abs(apart, out=apart).max(initial=0.0))


def within(one: np.ndarray, other: np.ndarray, allowed: float) -> bool:
    """Whether no two corresponding elements differ by more than ``allowed``.

    Equal infinities agree, and so do two NaN.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        apart = farthest(one, other)
    if np.isfinite(apart):
        return apart <= allowed
    finite = np.isfinite(one) & np.isfinite(other)
    rest = np.array_equal(one[~finite], other[~finite], equal_nan=True)
    return rest and bool((np.abs(one[finite] - other[finite]) <= allowed).all())


def most_by_size(
    pairs: list[tuple[np.ndarray, np.ndarray, float]], here: np.ndarray
) -> np.ndarray:
    """Return the largest allowed error among elements at most twice as large as the one
    ``here``."""
    errors = np.array([times * np.abs(got - wanted) for got, wanted, times in pairs])
    sizes = np.array([np.abs(wanted) for _, wanted, _ in pairs])
    known = np.isfinite(errors)
    if not known.any():
        return np.zeros(here.shape)
    order = np.argsort(sizes[known])
    most = np.maximum.accumulate(errors[known][order])
    at = np.searchsorted(sizes[known][order], 2 * here, side="right") - 1
    return most[np.maximum(at, 0)]
