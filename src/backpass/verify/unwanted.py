"""Check an operation whose forward and backward take ``wanted``.

No gradient is wanted, each one alone, all but each one, and some at random; forward is
given these names, or backward, or forward one more than backward. The unwanted
gradients must be None, and the others those of the full backward. Unwanted gradients
must not be computed: the number of operations of the backward, counted at small inputs,
must be that of ``backward_flops``. An operation that cannot be counted is not judged by
that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from backpass.contract.shapes import Shapes
from backpass.interpreters import counting
from backpass.verify.case import Case, first_line
from backpass.verify.convert import to_numpy
from backpass.verify.drawing import VARYING, generator
from backpass.verify.memory import Run, unequal
from backpass.verify.methods import symbolic

RANDOM = 3  # sets of inputs, where there are more than the others reach
SHOWN = 6  # faults that are described; one that ignores ``wanted`` has dozens


def unwanted_faults(done: Run) -> Iterator[str]:
    """Describe the first faults, and say how many more there are."""
    case = done.case
    if case.subject.told is None:
        return
    names = [case.subject.input_names[at] for at in case.differentiable]
    alone = [(name,) for name in names]
    left_out = [tuple(other for other in names if other != name) for name in names]
    rng = generator(case.seed, VARYING)
    some = [
        tuple(name for name in names if rng.random() < 0.5)
        for _ in range(RANDOM if len(names) > 3 else 0)
    ]
    choices = list(dict.fromkeys([(), *alone, *left_out, *some]))
    faults = (
        fault
        for wanted in choices
        for told in _ways_to_tell(names, wanted)
        for fault in _wrong_gradients(done, wanted, told)
    )
    found = 0
    for found, fault in enumerate(faults, 1):
        if found <= SHOWN:
            yield fault
    if found > SHOWN:
        yield f"{found - SHOWN} more for other values of wanted"
    elif not found:
        yield from _computed_in_vain(case, choices)


def _ways_to_tell(
    names: Sequence[str], wanted: tuple[str, ...]
) -> Iterator[dict[str, tuple[str, ...]]]:
    """Yield what forward and backward are given, by part."""
    yield {"forward": wanted}
    yield {"backward": wanted}
    for other in [name for name in names if name not in wanted][:1]:
        outer = tuple(name for name in names if name in wanted or name == other)
        yield {"forward": outer, "backward": wanted}


def _wrong_gradients(
    done: Run, wanted: tuple[str, ...], told: dict[str, tuple[str, ...]]
) -> Iterator[str]:
    """Describe unwanted gradients that are returned and wanted ones that change."""
    case, names = done.case, done.case.subject.input_names
    assert case.subject.told is not None
    given = [f"{part} is given wanted={names_}" for part, names_ in told.items()]
    says = f"when {' and '.join(given)}"
    try:
        run = Run(replace(case, subject=case.subject.told(**told)), case.dy)
        run.saved = run.saved if "forward" in told else done.saved
        dy = to_numpy(run.dy).copy()
        got = run.gradients
    except Exception as error:
        yield f"fails {says}: {first_line(error)}"
        return
    if not np.array_equal(to_numpy(run.dy), dy, equal_nan=True):
        yield f"backward modifies dy {says}"
    found = {at: None if g is None else to_numpy(g) for at, g in got.items()}
    kept = {at: of for at, of in done.numbers().items() if names[at] in wanted}
    for at in case.differentiable:
        if at not in kept and found[at] is not None:
            yield f"{case.subject.quantity(at)}: expected None {says}; got an array"
    for at in unequal(done, found, kept):
        yield f"{case.subject.quantity(at)} differs {says}"


def _computed_in_vain(case: Case, choices: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Describe the first count that differs from ``backward_flops``.

    If the count of the full backward differs, the formula is not judged. Nor is it if a
    reader's operation cannot run on counting arrays.
    """
    formula, shapes = case.subject.backward_flops, case.subject.shapes
    if formula is None or shapes is None:
        return
    if "wanted" not in inspect.signature(formula).parameters:
        return
    try:
        yield from [*_wrong_counts(case, choices, formula, shapes)]
    except Exception:
        if case.subject.stateless:  # an operation of this package
            raise


def _wrong_counts(
    case: Case,
    choices: Sequence[tuple[str, ...]],
    formula: Callable[..., Any],
    shapes: Shapes,
) -> Iterator[str]:
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
