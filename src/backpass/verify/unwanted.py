"""Check an operation whose forward and backward take ``wanted``.

No gradient is wanted, each one alone, and all but each one; forward is told, or
backward alone. The unwanted gradients must be None, and the others those of the full
backward. Unwanted gradients must not be computed: the number of operations of the
backward, counted at small inputs, must be that of ``backward_flops``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from backpass.interpreters import counting
from backpass.verify.case import Case, first_line
from backpass.verify.convert import to_numpy
from backpass.verify.memory import Run, unequal
from backpass.verify.methods import symbolic


def unwanted_faults(done: Run) -> Iterator[str]:
    """Describe each fault."""
    case = done.case
    if case.subject.told is None:
        return
    names = [case.subject.input_names[at] for at in case.differentiable]
    alone = [(name,) for name in names]
    left_out = [tuple(other for other in names if other != name) for name in names]
    choices = list(dict.fromkeys([(), *alone, *left_out]))
    faults = [fault for wanted in choices for fault in _wrong_gradients(done, wanted)]
    yield from faults or _computed_in_vain(case, choices)


def _wrong_gradients(done: Run, wanted: tuple[str, ...]) -> Iterator[str]:
    """Describe unwanted gradients that are returned and wanted ones that change."""
    case, names = done.case, done.case.subject.input_names
    assert case.subject.told is not None
    for part in ("forward", "backward"):
        says = f"when {part} is given wanted={wanted}"
        told = replace(case, subject=case.subject.told(**{part: wanted}))
        try:
            run = Run(told, case.dy)
            run.saved = run.saved if part == "forward" else done.saved
            got = run.gradients
        except Exception as error:
            yield f"fails {says}: {first_line(error)}"
            continue
        found = {at: None if g is None else to_numpy(g) for at, g in got.items()}
        kept = {
            at: to_numpy(done.gradients[at])
            for at in case.differentiable
            if names[at] in wanted
        }
        for at in case.differentiable:
            if at not in kept and found[at] is not None:
                yield f"{case.quantity(at)}: expected None {says}; got an array"
        for at in unequal(done, found, kept):
            yield f"{case.quantity(at)} differs {says}"


def _computed_in_vain(case: Case, choices: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Describe the first count that differs from ``backward_flops``.

    If the count of the full backward differs, the formula is not judged.
    """
    formula, shapes = case.subject.backward_flops, case.subject.shapes
    if formula is None or shapes is None:
        return
    assert case.subject.told is not None
    names = case.subject.input_names
    inputs = {
        name: x if x is None or name not in case.subject.positive else np.abs(x)
        for name, x in zip(names, symbolic.drawn(case)[-1], strict=True)
    }
    takes = inspect.signature(formula).parameters
    given = {**case.subject.options, **shapes.dimensions(inputs)}
    given = {name: value for name, value in given.items() if name in takes}
    y, saved = case.subject.forward(
        *(None if x is None else counting.array(x) for x in inputs.values())
    )
    dy = counting.array(case.rng.standard_normal(y.shape))
    for wanted in (None, *choices):
        with counting.tally() as counted:
            case.subject.told(backward=wanted).backward(dy, saved)
        expected = formula(**given, wanted=wanted)
        if counted.total != expected:
            if wanted is not None:
                yield (
                    f"{counted.total} operations when backward is given wanted={wanted}; "
                    f"backward_flops says {expected}"
                )
            return
