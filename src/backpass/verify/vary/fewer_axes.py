"""Say whether code without a declaration is wrong only because it has one more axis."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from backpass.contract.arrays import is_array
from backpass.verify.case import Case
from backpass.verify.magnitude import largest
from backpass.verify.report import FAILED, Row

SAME = 1e-6  # of a factor: two factors that differ by less are one


def made_for_fewer(wrong: Mapping[str, Row], case: Case, given: Case) -> str:
    """Return why a backward that is wrong with one more leading axis may be right for
    the axes given, or "".

    A loss may be a mean over the rows of a matrix: then each wrong gradient is off by a
    ratio of lengths. A function of a vector may sum over all elements.
    """
    if factor := _factor(wrong, case):
        return (
            f"each wrong gradient is {factor:.4g} times the reference there, as if a "
            "mean were over the given axes alone"
        )
    if _sums_over_all(wrong, case, given):
        return "backward sums over all elements, as for a vector"
    return ""


def _factor(wrong: Mapping[str, Row], case: Case) -> float:
    """Return the factor of all wrong gradients of a loss, if it is the length of an
    axis or 1 over it; otherwise 0."""
    if case.y.size != 1:
        return 0.0
    factors = []
    for quantity, row in wrong.items():
        reference = case.found.references.get((row.method, quantity))
        if row.verdict != FAILED or reference is None:
            return 0.0
        got = case.gradients[case.differentiable[case.quantities.index(quantity)]]
        if got is None or got.shape != reference.shape or not reference.any():
            return 0.0
        factors.append(float((got * reference).sum() / (reference**2).sum()))
        if largest(got - factors[-1] * reference) > SAME * largest(got):
            return 0.0
    if not factors or np.ptp(factors) > SAME * abs(factors[0]):
        return 0.0
    lengths = {n for x in case.inputs if is_array(x) for n in x.shape if n > 1}
    sizes = [float(n) for n in lengths] + [1 / n for n in lengths]
    near = any(abs(factors[0] - size) <= SAME * size for size in sizes)
    return factors[0] if near else 0.0


def _sums_over_all(wrong: Mapping[str, Row], case: Case, given: Case) -> bool:
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
    return bool(wrong)


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
