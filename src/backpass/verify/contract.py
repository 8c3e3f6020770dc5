"""What a backward owes apart from its numbers: a gradient of the right shape for each input that is there,
None for one that is not; nothing modified; all that for an empty batch too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from backpass.arrays import is_array
from backpass.verify.case import Case
from backpass.verify.convert import device_of, dtype_name, is_torch, to_numpy, to_torch
from backpass.verify.drawing import draw_like
from backpass.verify.report import FAILED, PASSED, Row

NAME = "contract"
HOW = "a gradient of the right shape for each input given; inputs and dy unmodified"
# Leading axes of an empty batch; the one of a factor is broadcast to it.
EMPTY = {"*": (0,), "*a": (1,), "*b": (0,)}


def run(case: Case) -> list[Row]:
    """One row."""
    faults = list(_faults(case))
    how = HOW
    if case.subject.shapes:
        how = f"{HOW}; its dtype; an empty batch too"
        faults += [f"for an empty batch, {fault}" for fault in _faults(_emptied(case))]
    return [Row(NAME, "all", FAILED if faults else PASSED, how=how, reason="; ".join(faults))]


def _emptied(case: Case) -> Case:
    drawn = draw_like(case.subject.shapes, case.rng, case.inputs, leading=EMPTY)
    alike = (
        to_torch(value, case.device, given.dtype) if is_torch(given) else value.astype(given.dtype)
        for value, given in zip(drawn, case.inputs, strict=True)
        if value is not None
    )
    return replace(
        case, inputs=tuple(None if value is None else next(alike) for value in drawn), given_dy=None
    )


def _faults(case: Case) -> Iterator[str]:
    inputs = case.given()
    y, saved = case.subject.forward(*inputs)
    dy = to_torch(case.dy, device_of(y), y.dtype) if is_torch(y) else case.dy.astype(y.dtype)
    gradients = case.by_position(case.subject.backward(dy, saved), every=True)

    for at, gradient in gradients.items():
        name, x = case.quantity(at), case.inputs[at]
        if at not in case.differentiable:
            if gradient is not None:
                yield f"{name}: expected None, the input not being differentiable; got an array"
        elif gradient is None:
            yield f"{name}: expected an array; got None"
        elif tuple(gradient.shape) != tuple(x.shape):
            yield f"{name}: expected the input's shape {list(x.shape)}; got {list(gradient.shape)}"
        elif case.subject.shapes and gradient.dtype != x.dtype:
            yield f"{name}: expected the input's dtype {dtype_name(x)}; got {dtype_name(gradient)}"
    for name, now, before in (
        *zip(case.subject.input_names, inputs, case.float64, strict=False),
        ("dy", dy, case.dy),
    ):
        if is_array(now) and not np.array_equal(to_numpy(now), before, equal_nan=True):
            yield f"{name} was modified in place"
