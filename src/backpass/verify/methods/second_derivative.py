"""Differentiate the backward of an autograd.Function once more, and compare with
finite differences of its gradients.

A Function that saves an intermediate of its forward can have right gradients and a
wrong second derivative, without any error. The method runs only if it is named, because
a Function need not support second derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backpass.verify.case import Case, NotRun, first_line
from backpass.verify.convert import to_numpy, to_torch
from backpass.verify.report import FAILED, PASSED, Row

NAME = "second derivative"
TOLERANCE = 1e-6
WHY = "a difference of gradients along a random direction; step⁴ and rounding / step"
STEP = 1e-3  # of the size of an input
REMEDY = (
    "autograd takes what the forward saved for a constant; save only inputs and outputs, "
    "or mark backward with torch.autograd.function.once_differentiable"
)


def run(case: Case) -> list[Row]:
    """Return one row for each input: how the gradients change with it.

    Raises NotRun unless the subject is a Function whose backward autograd can follow.
    """
    if not case.subject.torch_only:
        raise NotRun("only a torch.autograd.Function can be differentiated twice")
    case.require_float64()
    weights = {at: case.directions.of(at, 2)[1] for at in case.differentiable}
    found = _differentiated(case, weights)
    rows = []
    tolerance, why = case.tolerance("second_derivative", TOLERANCE, WHY)
    for at in case.differentiable:
        direction = case.directions.first(at)
        got = float(np.sum(found[at] * direction))
        expected, unit = _difference(case, at, direction, weights)
        size = max(abs(expected), float(np.linalg.norm(found[at] * direction)), unit)
        error = abs(got - expected) / size if size else 0.0
        wrong = not error <= tolerance
        reason = f"got a slope of {got:.4g}, expected {expected:.4g}: {REMEDY}"
        rows.append(
            Row(
                NAME,
                case.subject.quantity(at),
                FAILED if wrong else PASSED,
                error,
                tolerance,
                why,
                reason=reason if wrong else "",
            )
        )
    return rows


def _differentiated(
    case: Case, weights: dict[int, np.ndarray]
) -> dict[int, np.ndarray]:
    """Return the gradient of the weighted sum of all gradients, by autograd."""
    import torch

    _, (y, leaves, _) = case.run
    wanted = [leaves[at] for at in case.differentiable]
    dy = to_torch(case.dy, case.device, y.dtype).requires_grad_()
    try:
        gradients = torch.autograd.grad(
            y, wanted, dy, create_graph=True, allow_unused=True
        )
        total = _weighted(gradients, [weights[at] for at in case.differentiable])
        if not total.requires_grad:
            raise NotRun("autograd does not follow backward: dy has no effect on it")
        second = torch.autograd.grad(
            total, wanted, allow_unused=True, retain_graph=True
        )
        total.backward()  # through all paths, so that once_differentiable raises
    except RuntimeError as error:
        raise NotRun(
            f"autograd does not follow backward ({first_line(error)})"
        ) from None
    return {
        at: np.zeros(case.float64[at].shape) if of is None else to_numpy(of)
        for at, of in zip(case.differentiable, second, strict=True)
    }


def _weighted(gradients: Sequence[Any], weights: Sequence[np.ndarray]) -> Any:
    pairs = zip(gradients, weights, strict=True)
    return sum((to_torch(v).to(g.device) * g).sum() for g, v in pairs if g is not None)


def _difference(
    case: Case, at: int, direction: np.ndarray, weights: dict[int, np.ndarray]
) -> tuple[float, float]:
    """Return the slope of the weighted sum of all gradients along a direction, and the
    change of this slope that rounding may cause."""
    step = STEP * (float(np.abs(case.float64[at]).max(initial=0.0)) or 1.0)

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
