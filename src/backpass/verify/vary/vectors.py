"""Say whether the code of a backward is made for a vector, without a declaration."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from backpass.verify.case import Case
from backpass.verify.magnitude import largest

SAME = 1e-6  # relative: what moves less does not depend


def sums_over_all(wrong: Iterable[str], case: Case, given: Case) -> bool:
    """Whether a wrong gradient of a vector depends in each slice on the cotangents of
    the other slices, which forward keeps apart."""
    for quantity in wrong:
        if quantity not in case.quantities:
            return False
        at = case.differentiable[case.quantities.index(quantity)]
        if given.inputs[at].ndim != 1 or case.inputs[at].ndim != 2 or case.y.ndim != 2:
            return False
        apart = [axis for axis in (0, 1) if not _mixes(case, at, axis, forward=True)]
        if not apart or not all(_mixes(case, at, axis) for axis in apart):
            return False
    return True


def _mixes(case: Case, at: int, axis: int, forward: bool = False) -> bool:
    """Whether the first slice of y or of a gradient changes with another slice of the
    input or of the cotangent."""
    x, dy = case.float64[at], case.dy
    if x.shape[axis] < 2 or dy.shape[axis] != x.shape[axis]:
        return True

    def moved(values: np.ndarray) -> np.ndarray:
        values = values.copy()
        np.moveaxis(values, axis, 0)[1:] *= 1.25
        return values

    if forward:
        inputs = (*case.float64[:at], moved(x), *case.float64[at + 1 :])
        pair = [case.y, case.forward(inputs)]
    else:
        found = (case.gradients_for(of)[at] for of in (dy, moved(dy)))
        pair = [np.zeros(x.shape) if got is None else got for got in found]
    here, there = (value.take(0, axis) for value in pair)
    return bool(largest(here - there) > SAME * largest(here))
