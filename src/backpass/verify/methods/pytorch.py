"""Compare with PyTorch's own operator in float64, forward and backward.

This is the only check that the forward computes what its name says.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from backpass.contract.arrays import Array
from backpass.verify import references
from backpass.verify.case import Case, NotRun
from backpass.verify.comparison import Judge, Key
from backpass.verify.differences import best_step
from backpass.verify.magnitude import largest
from backpass.verify.methods.autograd import differentiate
from backpass.verify.methods.finite_difference import has_kink
from backpass.verify.report import FAILED, NOT_RUN, Row

NAME = "PyTorch's operator"
SHARED = (
    "equal elements of the input share a gradient: backward and the operator share it "
    "differently, and either is a convention"
)
TOLERANCE = 1e-12
WHY = "every element; rounding in a different order"


def run(case: Case) -> list[Row]:
    """Return a row for y and each gradient. Raises NotRun without an operator."""
    operator = bound_operator(case)
    if operator is None:
        stem = case.subject.stem
        remedy = (
            f"write a function {stem} in src/backpass/verify/references.py"
            if stem
            else "give one as operator="
        )
        raise NotRun(f"no operator to compare with; {remedy}")
    case.require_float64()
    expected_y, expected = differentiate(case, operator)
    y, got = case.on_tensors
    pairs: dict[Key, tuple] = {"y": (y, expected_y)}
    pairs |= {at: (got[at], expected[at]) for at in case.differentiable}
    tolerance = case.tolerance("pytorch", TOLERANCE, WHY)
    rows = []
    for key, pair in pairs.items():
        row = Judge(case, NAME, key, *tolerance).row(*pair)
        rows.append(row if key == "y" else _unless_shared(case, row, key, *pair))
    return rows


def bound_operator(case: Case) -> Callable[..., Array] | None:
    """Return the user's operator, or the operation's reference with the case's options,
    or None."""
    stem, options = case.subject.stem, case.subject.options
    if case.operator is not None or stem not in references.STEMS:
        return case.operator
    return lambda *inputs: references.load(stem)(*inputs, **options)


def _unless_shared(
    case: Case, row: Row, at: int, got: np.ndarray | None, reference: np.ndarray
) -> Row:
    """Return the row, marked "not run" if it failed because backward and the operator
    share a gradient differently among equal elements of the input, at a kink of y."""
    x = case.float64[at]
    if row.verdict != FAILED or got is None or got.shape != reference.shape:
        return row
    off, near = got - reference, TOLERANCE**0.5 * largest(reference)
    _, group, counts = np.unique(x, return_inverse=True, return_counts=True)
    group = group.reshape(x.shape)
    tied = counts[group] > 1
    if not np.isfinite(off).all() or largest(off[~tied]) > near:
        return row
    sums = np.bincount(group.ravel(), off.ravel())
    if largest(sums) > near or not has_kink(case, at, best_step(case, at)):
        return row
    return Row(row.method, row.quantity, NOT_RUN, reason=SHARED)
