"""Compare with PyTorch's own operator in float64, forward and backward.

This is the only check that the forward computes what its name says.
"""

from __future__ import annotations

from collections.abc import Callable

from backpass.contract.arrays import Array
from backpass.verify import references
from backpass.verify.case import Case, NotRun
from backpass.verify.comparison import Judge, Key
from backpass.verify.methods.autograd import differentiate, unless_shared
from backpass.verify.report import Row

NAME = "PyTorch's operator"
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
        rows.append(row if key == "y" else unless_shared(case, row, key, *pair))
    return rows


def bound_operator(case: Case) -> Callable[..., Array] | None:
    """Return the user's operator, or the operation's reference with the case's options,
    or None."""
    stem, options = case.subject.stem, case.subject.options
    if case.operator is not None or stem not in references.STEMS:
        return case.operator
    return lambda *inputs: references.load(stem)(*inputs, **options)
