"""What a backward owes apart from its numbers: a gradient of the right shape for each input that is there,
None for one that is not; nothing modified; all that for an empty batch too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from backpass.arrays import is_array
from backpass.verify.case import Case
from backpass.verify.convert import to_numpy
from backpass.verify.drawing import draw_like
from backpass.verify.report import FAILED, PASSED, Row

NAME = "contract"
HOW = "a gradient of the right shape for each input given; inputs and dy unmodified"
EMPTY = {
    "*": (0,),
    "*a": (1,),
    "*b": (0,),
}  # leading axes of an empty batch; the one of a factor is broadcast


def run(case: Case) -> list[Row]:
    """One row."""
    faults = list(_faults(case))
    how = HOW
    if case.subject.shapes:
        how = f"{HOW}; an empty batch too"
        empty = draw_like(case.subject.shapes, case.rng, case.inputs, leading=EMPTY)
        faults += [
            f"for an empty batch, {fault}" for fault in _faults(replace(case, inputs=empty, given_dy=None))
        ]
    return [Row(NAME, "all", FAILED if faults else PASSED, how=how, reason="; ".join(faults))]


def _faults(case: Case) -> Iterator[str]:
    inputs = case.native(case.float64)
    _, saved = case.subject.forward(*inputs)
    dy = case.native((case.dy,))[0]
    gradients = case.by_position(case.subject.backward(dy, saved), every=True)

    for at, gradient in gradients.items():
        name, x = case.quantity(at), case.float64[at]
        if at not in case.differentiable:
            if gradient is not None:
                yield f"{name}: expected None, the input not being differentiable; got an array"
        elif gradient is None:
            yield f"{name}: expected an array; got None"
        elif tuple(gradient.shape) != x.shape:
            yield f"{name}: expected the input's shape {list(x.shape)}; got {list(gradient.shape)}"
    for name, now, before in (
        *zip(case.subject.input_names, inputs, case.float64, strict=False),
        ("dy", dy, case.dy),
    ):
        if is_array(now) and not np.array_equal(to_numpy(now), before, equal_nan=True):
            yield f"{name} was modified in place"
