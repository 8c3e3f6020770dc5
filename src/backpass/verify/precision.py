"""A float32, bfloat16 or float16 result against float64 on the same, already rounded, inputs.

The bound is twice the error of PyTorch's own operator at that dtype, or of autograd through the subject's
forward, and never less than a few units in the last place, PyTorch's error being small by luck now and then.
Where a gradient is small because large numbers cancel, the unit is theirs.
"""

from __future__ import annotations

import numpy as np

from backpass.verify.autograd import differentiate
from backpass.verify.case import Case, NotRun
from backpass.verify.comparison import judge_gradient, judge_y, largest_error
from backpass.verify.convert import EPSILON, to_kind_of, to_numpy
from backpass.verify.pytorch import bound_operator
from backpass.verify.report import Row

NAME = "low precision"
UNITS = 4  # in the last place, the least bound: operations made of others round between them
RESOLUTION = 1e-12  # of the float64 reference
LOW = ("float32", "float16", "bfloat16")


def run(case: Case) -> list[Row]:
    """A row for y and one a gradient; none for float64 inputs. Raises NotRun without a float64 reference."""
    if case.dtype not in LOW:
        return []
    y, saved = case.subject.forward(*case.given())
    got = case.by_input(case.subject.backward(to_kind_of(y, case.dy), saved))
    return rows_against_float64(case, NAME, to_numpy(y), got, UNITS)


def rows_against_float64(
    case: Case, method: str, y: np.ndarray, got: dict[int, np.ndarray | None], units: int
) -> list[Row]:
    """Judge a low-precision y and gradients by the float64 ones, within what PyTorch does at that dtype."""
    expected_y, expected, source = _reference(case)
    bounds, whose = _bounds(case, expected_y, expected, units)
    how = f"{case.dtype} against float64{source}; {whose}"
    rows = [judge_y(case, method, y, expected_y, bounds["y"], how)]
    return rows + [
        judge_gradient(case, method, at, got[at], expected[at], bounds[at], how, resolution=RESOLUTION)
        for at in case.differentiable
    ]


def _reference(case: Case) -> tuple[np.ndarray, dict[int, np.ndarray], str]:
    """y and gradients in float64: by autograd through the subject's forward, which knows nothing of its backward;
    where it cannot follow, of the subject itself, else of the operator that was given."""
    try:
        return *differentiate(case, case.subject.plain_forward), ""
    except (NotRun, ImportError):
        pass
    try:
        gradients = {at: np.zeros(1) if found is None else found for at, found in case.gradients.items()}
        return case.y, gradients, ""
    except NotRun as reason:
        if case.operator is None:
            raise NotRun(f"{reason}; an operator= would give the reference") from None
        return *differentiate(case, case.operator), " of PyTorch's operator"


def _bounds(
    case: Case, y: np.ndarray, gradients: dict[int, np.ndarray], units: int
) -> tuple[dict[str | int, float], str]:
    """Tolerance for y and, by position, for each gradient; and where it comes from."""
    unit = EPSILON[case.dtype]
    least: dict[str | int, float] = {"y": units * unit}
    for at in case.differentiable:
        largest = np.abs(gradients[at]).max(initial=0.0)
        cancelled = case.scale(at) / largest if largest > 0 else 1.0
        least[at] = units * unit * max(1.0, cancelled)

    operator = bound_operator(case)
    try:
        import torch

        dtype = getattr(torch, case.dtype)
        their_y, theirs = differentiate(case, operator or case.subject.plain_forward, dtype)
    except (NotRun, ImportError):
        return {key: 4 * bound for key, bound in least.items()}, f"{4 * units} units in the last place"
    errors = {"y": largest_error(their_y, y)}
    errors |= {at: largest_error(theirs[at], gradients[at]) for at in case.differentiable}
    whose = "PyTorch's operator" if operator else "torch autograd"
    bounds = {key: max(2 * errors[key], least[key]) for key in least}
    return bounds, f"twice {whose}'s error, at least {units} units in the last place"
