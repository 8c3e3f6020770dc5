"""How large an array's elements are, and how far two arrays are apart, without more temporary arrays than needed."""

from __future__ import annotations

import numpy as np


def largest(x: np.ndarray) -> float:
    """The largest absolute value among the finite elements; 0 if there are none."""
    most = float(
        max(x.max(initial=0.0), -x.min(initial=0.0))
    )  # |x| would be a second array as large as x
    return most if np.isfinite(most) else largest(x[np.isfinite(x)])


def farthest(one: np.ndarray, other: np.ndarray) -> float:
    """The largest absolute difference of two arrays of finite numbers; infinite if it overflows."""
    apart = np.asarray(one - other)
    return float(np.abs(apart, out=apart).max(initial=0.0))


def within(one: np.ndarray, other: np.ndarray, allowed: float) -> bool:
    """Whether no two corresponding elements differ by more than ``allowed``; equal infinities agree, and NaN with NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        apart = farthest(one, other)
    if np.isfinite(apart):
        return apart <= allowed
    finite = np.isfinite(one) & np.isfinite(other)
    rest = np.array_equal(one[~finite], other[~finite], equal_nan=True)
    return rest and bool((np.abs(one[finite] - other[finite]) <= allowed).all())
