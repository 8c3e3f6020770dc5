"""torch.autograd through the subject's own forward, in float64: the whole gradient, element by element."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np

from backpass.arrays import Array
from backpass.verify.case import Case, NotRun, first_line
from backpass.verify.comparison import judge_gradient
from backpass.verify.convert import EPSILON, dtype_name, is_torch, to_numpy, to_torch
from backpass.verify.outputs import join
from backpass.verify.report import Row

NAME = "torch autograd"
TOLERANCE = 1e-12
WHY = "every element; rounding in another order"


def run(case: Case) -> list[Row]:
    """One row a gradient. Raises NotRun where the forward is not made of operations that autograd follows."""
    case.require_float64()
    _, reference = differentiate(case, case.subject.plain_forward)
    _, got = by_hand(case)
    tolerance, why = case.tolerance("autograd", TOLERANCE, WHY)
    return [
        judge_gradient(case, NAME, at, got[at], reference[at], tolerance, why) for at in case.differentiable
    ]


def differentiate(
    case: Case, function: Callable[..., Array], dtype=None
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """y, and the gradients autograd finds for it, on fresh tensors of ``dtype`` (float64 unless given)."""
    key = (function, dtype)
    if key not in case.differentiated:
        case.differentiated[key] = _differentiate(case, function, dtype)
    return case.differentiated[key]


def _differentiate(
    case: Case, function: Callable[..., Array], dtype
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    import torch

    leaves = [to_torch(value, case.device, dtype) for value in case.inputs]
    for at in case.differentiable:
        leaves[at].requires_grad_()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy's functions on tensors
            y, _ = join(function(*leaves))
    except Exception as error:
        if case.subject.shapes is not None:
            raise
        raise NotRun(f"forward does not run on tensors that autograd follows ({first_line(error)})") from None
    if not is_torch(y) or not y.requires_grad:
        raise NotRun("autograd cannot follow forward: its output is not a tensor that requires a gradient")
    if function is case.subject.plain_forward:
        _refuse_another_function(case, to_numpy(y), dtype_name(y))
    wanted = [leaves[at] for at in case.differentiable]
    found = torch.autograd.grad(y, wanted, to_torch(case.dy, case.device, y.dtype), allow_unused=True)
    gradients = {
        at: np.zeros(tuple(leaves[at].shape)) if gradient is None else to_numpy(gradient)
        for at, gradient in zip(case.differentiable, found, strict=True)
    }
    return to_numpy(y), gradients


def _refuse_another_function(case: Case, y: np.ndarray, dtype: str) -> None:
    """Raise NotRun if lines that were given NumPy arrays compute something different on tensors, as ``x.var()`` does."""
    given = case.y_as_given
    unit = max(EPSILON[dtype], EPSILON[case.dtype], EPSILON[case.y_dtype])
    if y.shape != given.shape or not np.allclose(y, given, rtol=unit**0.5, atol=unit**0.5, equal_nan=True):
        raise NotRun("forward computes a different y on tensors than on the arrays that were given")


def by_hand(case: Case, dtype=None) -> tuple[np.ndarray, dict[int, np.ndarray | None]]:
    """The subject's own y and gradients: on tensors of ``dtype`` (float64 unless given); an object without SHAPES that
    was given NumPy arrays need not support any other library and gets NumPy arrays in float64."""
    if case.subject.shapes is None and not case.uses_torch:
        return case.y, case.gradients
    y, saved = case.subject.forward(*(to_torch(value, case.device, dtype) for value in case.inputs))
    returned = case.subject.backward(to_torch(case.dy, case.device, y.dtype), saved)
    return to_numpy(y), case.by_input(returned)
