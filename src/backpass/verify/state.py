"""Check that state left behind by earlier calls does not matter.

Gradients must not change after a forward with other inputs, or when an input is frozen,
and they must be right at the other inputs too. A model that uses a layer twice, or
recomputes it, calls forward, forward, backward, backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from backpass.contract.arrays import size
from backpass.verify.case import Case, NotRun, first_line
from backpass.verify.converged import DOUBT, lossy, measured
from backpass.verify.convert import to_numpy
from backpass.verify.differences import best_step, difference
from backpass.verify.directional import LARGE
from backpass.verify.drawing import VARYING, generator
from backpass.verify.magnitude import farthest, largest
from backpass.verify.memory import Run, unequal
from backpass.verify.methods.autograd import differentiate_forward
from backpass.verify.methods.finite_difference import has_kink

SEEN = 1e-7  # of a gradient's natural size: the least that a difference can tell from 0
WRONG = 1e-3  # of the largest element: a larger error at other inputs is a fault


def state_faults(done: Run) -> Iterator[str]:
    """Yield each fault, in words."""
    other = other_inputs(done.case)
    yield from _after_other_inputs(done, other)
    if done.case.again:
        yield from _in_a_second_step(done, other)
    # Such a fault shows at a small size too.
    if max(size(array.shape) for array in done.case.arrays) <= LARGE:
        yield from _at_other_inputs(done, other)
    yield from _frozen(done)


def _after_other_inputs(done: Run, other: Case) -> Iterator[str]:
    """Yield a fault if a forward with other inputs in between changes the gradients.

    It does if backward uses state of the last forward, or if a forward reuses results
    of the first.
    """
    case, first, run = done.case, done.numbers(), Run(done.case)
    try:
        case.subject.forward(*other.given())
    except Exception:  # forward may reject inputs that we chose
        return
    try:
        after = run.backward()
    except Exception as error:
        yield (
            "backward fails when forward was called with other inputs in between: "
            f"{first_line(error)}"
        )
        return
    for at in unequal(done, after, first):
        name = case.subject.quantity(at)
        yield f"{name} changes when forward is called with other inputs before backward"


def _in_a_second_step(done: Run, other: Case) -> Iterator[str]:
    """Yield a fault if a layer's gradients change because it was called before.

    Gradients of parameters may be added up. Where y changes, as with a running mean or
    a step of gradient descent, nothing is said.
    """
    case, first = done.case, done.numbers()
    assert case.again is not None
    inputs, options = case.given(), case.subject.options
    try:
        y, returned, count = case.again(other.given(), inputs, done.dy, **options)
        after = case.slots.by_input(returned)
    except Exception:  # it may have to be called once, or with these inputs alone
        return
    if not np.array_equal(to_numpy(y), to_numpy(done.y), equal_nan=True):
        return
    own = {at: of for at, of in first.items() if at < count}
    for at in unequal(done, after, own):
        name = case.subject.quantity(at)
        yield f"{name} changes if the same layer ran forward and backward before"


def other_inputs(case: Case, change: float = 0.2) -> Case:
    """Return the case with each differentiable input reversed and its elements scaled
    by random factors within ``change`` of 1."""
    rng = generator(case.seed, VARYING)
    inputs = case.changed(
        lambda x: np.flip(x) * rng.uniform(1 - change, 1 + change, x.shape)
    )
    return case.elsewhere(inputs, explain=False)


def _at_other_inputs(done: Run, other: Case) -> Iterator[str]:
    """Yield a fault for each gradient that is right at the first inputs but wrong at
    others, because it uses state of the first call."""
    try:
        declared = done.case.computes_in
        wrong = _wrong(replace(other, declared=declared))
        wrong = {} if wrong and lossy(other) else wrong
        first = _wrong(done.case) if wrong else {}
        if wrong.keys() - first.keys():
            # The same numbers in reverse keep constraints on the inputs, such as rows
            # that sum to 1.
            same = _wrong(replace(other_inputs(done.case, 0.0), declared=declared))
            wrong = {at: error for at, error in wrong.items() if at in same}
    except Exception:  # other methods report errors and forwards that are too coarse
        return
    for at in wrong.keys() - first.keys():
        name = done.case.subject.quantity(at)
        off = f"by {wrong[at]:.1g} of its largest element"
        yield f"{name} is wrong at a second input, {off}"


def _wrong(case: Case) -> dict[int, float]:
    """Return the errors of wrong gradients, against autograd or, if it cannot run,
    against one slope for each input."""
    case.require_float64()
    got = case.gradients
    if not np.isfinite(case.y).all():
        return {}
    try:
        return _unlike(case, got, differentiate_forward(case, case.judge)[1])
    except (NotRun, ImportError):
        return _unlike_slopes(case, got)


def _unlike(case: Case, got: dict, expected: dict) -> dict[int, float]:
    errors = {}
    for at in case.differentiable:
        if got[at] is not None and got[at].shape == expected[at].shape:
            size = max(largest(expected[at]), case.scales[at])
            error = farthest(got[at], expected[at])
            if size and error > WRONG * size:
                errors[at] = error / size
    return errors


def _unlike_slopes(case: Case, got: dict) -> dict[int, float]:
    errors = {}
    for at in case.derived:
        step = best_step(case, at)
        slopes = []
        for times in (1.0, 0.5):
            # Zeros stay, because many functions have a kink there.
            x, first = case.float64[at], case.directions.first(at)
            along = np.where(x == 0, 0.0, first) if x.any() else first
            change, moved = difference(case, at, along, times * step)
            slopes.append(float(np.sum(case.dy * change)))
        if got[at] is None or got[at].shape != moved.shape:
            continue
        error = abs(float(np.sum(got[at] * moved)) - slopes[1])
        size = max(map(abs, slopes))
        least = SEEN * case.scales[at] * float(np.linalg.norm(moved))
        if error > max(WRONG * size, 4 * abs(slopes[0] - slopes[1]), least):
            # The step may be too long for small elements.
            found = measured(case, at, got[at], [along], step)
            off = abs(found.errors[0]) > max(
                DOUBT * found.doubts[0], WRONG * size, least
            )
            if off and not has_kink(case, at, step):
                errors[at] = error / size if size else np.inf
    return errors


def _frozen(done: Run) -> Iterator[str]:
    """Yield a fault if freezing one input changes the gradients of the others."""
    case, first = done.case, done.numbers()
    if case.subject.frozen is None or len(case.differentiable) < 2:
        return
    for frozen in case.differentiable:
        name = case.subject.input_names[frozen]
        without = replace(case, subject=case.subject.frozen(name))
        try:
            got = Run(without, case.dy).backward()
        except Exception as error:
            yield f"fails when {name} does not require a gradient: {first_line(error)}"
            continue
        for at in unequal(done, got, {at: first[at] for at in without.differentiable}):
            other = case.subject.quantity(at)
            yield f"{other} differs when {name} does not require a gradient"
