"""What a backward owes apart from its numbers: a gradient for each input, of its shape; nothing modified."""

from __future__ import annotations

import numpy as np

from backpass.arrays import is_array
from backpass.verify.case import Case
from backpass.verify.convert import to_numpy
from backpass.verify.report import FAILED, PASSED, Row

NAME = "contract"
HOW = "a gradient of the right shape for each input; inputs and dy unmodified"


def run(case: Case) -> list[Row]:
    """One row."""
    faults = list(_faults(case))
    return [Row(NAME, "all", FAILED if faults else PASSED, how=HOW, reason="; ".join(faults))]


def _faults(case: Case):
    inputs = case.native(case.float64)
    _, saved = case.subject.forward(*inputs)
    dy = case.native((case.dy,))[0]
    returned = case.subject.backward(dy, saved)
    gradients = case.by_input(returned)

    for at in case.differentiable:
        name, gradient, x = case.quantity(at), gradients[at], case.float64[at]
        if gradient is None:
            yield f"{name}: expected an array; got None"
        elif gradient.shape != x.shape:
            yield f"{name}: expected the input's shape {list(x.shape)}; got {list(gradient.shape)}"
    for name, now, before in [
        *zip(case.subject.input_names, inputs, case.float64, strict=False),
        ("dy", dy, case.dy),
    ]:
        if is_array(now) and not np.array_equal(to_numpy(now), before, equal_nan=True):
            yield f"{name} was modified in place"
