"""Differentiate the backward of an autograd.Function once more, and compare with
finite differences of its gradients.

A Function that saves an intermediate of its forward can have right gradients and a
wrong second derivative, without any error. A Function need not support second
derivatives, so a wrong one is a failure only if the method is named. Otherwise
``noticed`` reports it in a row that is not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from backpass.verify.case import Case, NotRun, first_line
from backpass.verify.convert import to_numpy, to_torch
from backpass.verify.diagnosis.places import numbers_apart
from backpass.verify.report import FAILED, NOT_RUN, PASSED, Row

NAME = "second derivative"
TOLERANCE = 1e-6
WHY = "a difference of gradients along a random direction; step⁴ and rounding / step"
STEPS = (1e-3, 1e-4)  # of the size of an input; the second agrees away from kinks
UNSURE = 0.1  # of an error: differences that vary by more do not show it
ELEMENTS = 1 << 16  # of the inputs, at most, if the method is not named
INSTEAD = (
    "save only inputs and outputs on ctx, or mark backward with "
    "torch.autograd.function.once_differentiable"
)
REMEDY = f"autograd treats other arrays that forward saved as constants: {INSTEAD}"
UNASKED = (
    "a Function need not support it, so it is judged only if the method is named. But "
    "autograd differentiates this backward again without an error, and the result is "
    "wrong with respect to {}: " + INSTEAD
)


class _Slope(NamedTuple):
    """How the gradients change with one input: by autograd, by the best of several
    differences, the error that is left, and whether the differences show it."""

    got: float
    expected: float
    error: float
    sure: bool


def run(case: Case) -> list[Row]:
    """Return one row for each input, and one for dy: how the gradients change with it.

    Raises NotRun unless the subject is a Function whose backward autograd can follow.
    """
    tolerance, why = case.tolerance("second_derivative", TOLERANCE, WHY)
    return [
        _row("ddy" if at is None else case.subject.quantity(at), slope, tolerance, why)
        for at, slope in _slopes(case, tolerance)
    ]


def noticed(case: Case) -> list[Row]:
    """Return one row if autograd can differentiate backward again but does so wrongly.

    Nothing is said of a large input, because the gradients are computed many times.
    """
    if not case.subject.torch_only or sum(x.numel() for x in case.arrays) > ELEMENTS:
        return []
    try:
        wrong = [
            (at, slope)
            for at, slope in _slopes(case, TOLERANCE)
            if slope.error > TOLERANCE and slope.sure
        ]
    except Exception:  # the methods that compare the gradients say what raises
        return []
    if not wrong:
        return []
    inputs = case.subject.input_names
    names = ", ".join("dy" if at is None else inputs[at] for at, _ in wrong)
    return [Row(NAME, "", NOT_RUN, reason=UNASKED.format(names))]


def _row(quantity: str, slope: _Slope, tolerance: float, why: str) -> Row:
    if slope.error <= tolerance:
        return Row(NAME, quantity, PASSED, slope.error, tolerance, why)
    if not slope.sure:
        reason = "the differences of the gradients vary with the step, as at a kink"
        return Row(NAME, quantity, NOT_RUN, reason=reason)
    got, expected = numbers_apart(slope.got, slope.expected)
    reason = f"got a slope of {got}, expected {expected}: {REMEDY}"
    return Row(NAME, quantity, FAILED, slope.error, tolerance, why, reason)


def _slopes(case: Case, tolerance: float) -> Iterator[tuple[int | None, _Slope]]:
    """Yield the positions of the inputs, and None for dy, each with how the gradients
    change with it."""
    if not case.subject.torch_only:
        raise NotRun("only a torch.autograd.Function can be differentiated twice")
    case.require_float64()
    weights = {at: case.directions.of(at, 2)[1] for at in case.differentiable}
    found, of_dy = _differentiated(case, weights)
    yield None, _slope_of_dy(case, weights, of_dy)
    for at in case.differentiable:
        direction = case.directions.first(at)
        got = float(np.sum(found[at] * direction))
        least = float(np.linalg.norm(found[at] * direction))
        slopes: list[float] = []
        for step in STEPS:
            expected, unit = _difference(case, at, direction, weights, step)
            slopes.append(expected)
            size = max(abs(expected), least, unit)
            if abs(got - expected) <= tolerance * size:
                break
        off = min(slopes, key=lambda slope: abs(got - slope)) - got
        error = abs(off) / size if size else 0.0
        varies = max(slopes) - min(slopes)
        yield at, _Slope(got, got + off, error, varies <= UNSURE * abs(off))


def _slope_of_dy(case: Case, weights: dict[int, np.ndarray], got: np.ndarray) -> _Slope:
    """Return how the gradients change with dy, along a random direction. They are
    linear in dy, so no difference is needed."""
    direction = case.rng.standard_normal(case.dy.shape)
    gradients = case.gradients_for(direction)
    known = ((weights[at], of) for at, of in gradients.items() if of is not None)
    expected = float(sum(np.sum(weight * of) for weight, of in known))
    slope = float(np.sum(got * direction))
    least = float(np.linalg.norm(got * direction))
    size = max(abs(expected), least)
    return _Slope(slope, expected, abs(slope - expected) / size if size else 0.0, True)


def _differentiated(
    case: Case, weights: dict[int, np.ndarray]
) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """Return the gradient of the weighted sum of all gradients, by autograd: that of
    each input, and that of dy."""
    import torch

    # Not case.run, because the graph is freed.
    _, (y, leaves, _) = case.subject.forward(*case.native(case.float64))
    wanted = [leaves[at] for at in case.differentiable]
    dy = to_torch(case.dy, case.device, y.dtype).requires_grad_()
    try:
        gradients = torch.autograd.grad(
            y, wanted, dy, create_graph=True, allow_unused=True
        )
        total = _weighted(gradients, [weights[at] for at in case.differentiable])
        if not total.requires_grad:
            raise NotRun("autograd does not follow backward: dy has no effect on it")
        *second, of_dy = torch.autograd.grad(
            total, [*wanted, dy], allow_unused=True, retain_graph=True
        )
        total.backward()  # through all paths, so that once_differentiable raises
    except RuntimeError as error:
        raise NotRun(
            f"autograd does not follow backward ({first_line(error)})"
        ) from None
    found = {
        at: np.zeros(case.float64[at].shape) if of is None else to_numpy(of)
        for at, of in zip(case.differentiable, second, strict=True)
    }
    return found, np.zeros(case.dy.shape) if of_dy is None else to_numpy(of_dy)


def _weighted(gradients: Sequence[Any], weights: Sequence[np.ndarray]) -> Any:
    pairs = zip(gradients, weights, strict=True)
    return sum((to_torch(v).to(g.device) * g).sum() for g, v in pairs if g is not None)


def _difference(
    case: Case,
    at: int,
    direction: np.ndarray,
    weights: dict[int, np.ndarray],
    relative: float,
) -> tuple[float, float]:
    """Return the slope of the weighted sum of all gradients along a direction, and the
    change of this slope that rounding may cause."""
    step = relative * (float(np.abs(case.float64[at]).max(initial=0.0)) or 1.0)

    def total(times: float) -> float:
        inputs = [*case.float64]
        inputs[at] = inputs[at] + times * step * direction
        y, saved = case.subject.forward(*case.native(tuple(inputs)))
        dy = to_torch(case.dy, case.device, y.dtype)
        gradients = case.slots.by_input(case.subject.backward(dy, saved))
        known = ((weights[of], g) for of, g in gradients.items() if g is not None)
        return float(sum(np.sum(v * g) for v, g in known))

    near, far = total(1) - total(-1), total(2) - total(-2)
    unit = 1e-9 * abs(total(0)) / step
    return (8 * near - far) / (12 * step), unit
