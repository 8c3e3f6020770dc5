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
