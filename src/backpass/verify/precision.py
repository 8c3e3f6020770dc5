"""A float32, bfloat16 or float16 result against float64 on the same, already rounded, inputs.

The bound is twice the error of PyTorch's own operator at that dtype, or of autograd through the subject's
forward, and never less than a few units in the last place, PyTorch's error being small by luck now and then.
Where a gradient is small because large numbers cancel, the unit is theirs.
"""

from __future__ import annotations

import numpy as np

from backpass.arrays import Array
from backpass.verify.autograd import differentiate
from backpass.verify.case import Case, NotRun
from backpass.verify.comparison import judge_gradient, judge_y, largest_error
from backpass.verify.convert import is_torch, to_numpy, to_torch
from backpass.verify.pytorch import bound_operator
from backpass.verify.report import Row

NAME = "low precision"
UNITS = 4  # in the last place, the least bound: plain lines round after every operation
RESOLUTION = 1e-12  # of the float64 reference
EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def run(case: Case) -> list[Row]:
    """A row for y and one a gradient; none for float64 inputs."""
    if case.dtype not in EPSILON:
        return []
    inputs = [value.copy() if isinstance(value, np.ndarray) else value for value in case.inputs]
    y, saved = case.subject.forward(*inputs)
    got = case.by_input(case.subject.backward(_like(y, case.dy), saved))
    return rows_against_float64(case, NAME, to_numpy(y), got)


def rows_against_float64(
    case: Case, method: str, y: np.ndarray, got: dict[int, np.ndarray | None], units: int = UNITS
) -> list[Row]:
    """Judge a low-precision y and gradients by the float64 ones, within what PyTorch does at that dtype."""
    bounds, whose = _bounds(case, units)
    how = f"{case.dtype} against float64; {whose}"
    rows = [judge_y(case, method, y, case.y, bounds["y"], how)]
    return rows + [
        judge_gradient(case, method, at, got[at], case.gradients[at], bounds[at], how, resolution=RESOLUTION)
        for at in case.differentiable
    ]


def _bounds(case: Case, units: int) -> tuple[dict[str | int, float], str]:
    """Tolerance for y and, by position, for each gradient; and where it comes from."""
    least = {key: units * one for key, one in _one_rounding(case).items()}
    errors, whose = _errors_of_pytorch(case)
    if errors is None:
        return {key: 4 * bound for key, bound in least.items()}, f"{4 * units} units in the last place"
    bounds = {key: max(2 * errors[key], least[key]) for key in least}
    return bounds, f"twice {whose}'s error, at least {units} units in the last place"


def _one_rounding(case: Case) -> dict[str | int, float]:
    """One unit in the last place of y, and of the numbers whose difference each gradient is."""
    unit = EPSILON[case.dtype]
    units: dict[str | int, float] = {"y": unit}
    for at in case.differentiable:
        largest = np.abs(case.gradients[at]).max(initial=0.0)
        units[at] = unit * max(1.0, case.scale(at) / largest) if largest > 0 else unit
    return units


def _errors_of_pytorch(case: Case) -> tuple[dict[str | int, float] | None, str]:
    operator = bound_operator(case)
    try:
        import torch

        y, gradients = differentiate(case, operator or case.subject.plain_forward, getattr(torch, case.dtype))
    except (NotRun, ImportError):
        return None, ""
    errors: dict[str | int, float] = {"y": largest_error(y, case.y)}
    errors |= {at: largest_error(gradients[at], case.gradients[at]) for at in case.differentiable}
    return errors, "PyTorch's operator" if operator else "torch autograd"


def _like(y: Array, dy: np.ndarray) -> Array:
    return to_torch(dy, str(y.device), y.dtype) if is_torch(y) else dy.astype(y.dtype)
