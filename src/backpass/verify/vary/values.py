"""Give inputs other values: other signs, tiny numbers, and other integers.

A value is given only if forward has a use for it. A domain that no declaration names
shows in forward: outside, it is not finite, or it does not depend on the input, as
where it clips a probability.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from backpass.contract.arrays import is_array
from backpass.verify.case import Case, Inputs
from backpass.verify.convert import is_floating, to_kind_of, to_numpy
from backpass.verify.outputs import Several
from backpass.verify.reruns import several_outputs
from backpass.verify.vary.draws import Draw, sums_to_one

Tries = tuple[Inputs, ...]
EMPTY_SEGMENT = "an empty segment in"
TINY = 2.0**-20
MOVE = 2.0**-10  # relative: forward shows by it whether it depends on an input


def other_signs(draw: Draw) -> Iterator[tuple[str, Tries]]:
    """Yield the first input with elements of one sign, and each input whose elements
    already have one sign with the other.

    Elements of both signs show at the inputs given what a backward does with them.
    """
    case = draw.case
    for at in case.differentiable:
        x, name = case.float64[at], draw.name(at)
        some = x[np.isfinite(x) & (x != 0)]
        if not some.size or sums_to_one(x):
            continue
        if (some > 0).all() or (some < 0).all():
            changes = [(f"−{name}", -x)]
        elif at == draw.first:
            changes = [(f"|{name}|", np.abs(x)), (f"−|{name}|", -np.abs(x))]
        else:
            continue
        for what, values in changes:
            inputs = draw.replaced(at, values)
            if _keeps_order(case, at, values) and depends(case.elsewhere(inputs), at):
                yield what, (inputs,)


def _keeps_order(case: Case, at: int, values: np.ndarray) -> bool:
    """Whether new values of an input stay below another input's values, or above them,
    if all old values are. One of the inputs may be a bound of the other."""
    for other, bound in enumerate(case.float64):
        if other == at or not is_floating(bound) or not bound.size:
            continue
        try:
            for order in (np.less_equal, np.greater_equal):
                kept = order(case.float64[at], bound).all()
                if kept and not order(values, bound).all():
                    return False
        except ValueError:  # the shapes do not broadcast
            continue
    return True


def farther(x: np.ndarray, name: str, times: float) -> tuple[str, np.ndarray]:
    """Say how an input is changed, and return it with larger values. Numbers between 0
    and 1, which may be probabilities, are moved closer to 1, and distributions closer
    to one-hot rows."""
    if sums_to_one(x) and (x > 0).all():
        powers = x**4
        return f"{name} closer to one-hot rows", powers / powers.sum(-1, keepdims=True)
    if x.size > 1 and 0 < x.min() and x.max() < 1:
        return f"{name} closer to 1", 1 - (1 - x) / times
    return f"{name} × {times:g}", x * times


def unequal(draw: Draw) -> Iterator[tuple[str, Tries]]:
    """Yield each input whose elements are all equal, such as a weight of ones, with
    different ones: at w = 1, a gradient without the factor w is right.

    They have the sign of the elements given and are not larger, except in place of 0.
    """
    for at in draw.case.differentiable:
        x = draw.case.float64[at]
        same = x.size > 1 and (x == x.flat[0]).all() and np.isfinite(x).all()
        if same and not sums_to_one(x):
            factors = draw.rng.uniform(0.4, 0.95, x.shape)
            inputs = draw.replaced(at, factors * (x if x.any() else 1.0))
            yield f"different elements of {draw.name(at)}", (inputs,)


def other_sums(draw: Draw) -> Iterator[tuple[str, Tries]]:
    """Yield each constant whose rows sum to 1 with other sums."""
    for at in sorted(draw.constants):
        x = draw.case.float64[at]
        if sums_to_one(x):
            factors = draw.rng.uniform(0.5, 0.9, (*x.shape[:-1], 1))
            inputs = draw.replaced(at, factors * x)
            yield f"rows of {draw.name(at)} that do not sum to 1", (inputs,)


def tiny(draw: Draw) -> Iterator[tuple[str, Tries]]:
    """Yield the first input close to 0, if its dtype has such numbers."""
    case = draw.case
    if case.dtype in ("float32", "float64"):
        inputs = draw.replaced(draw.first, case.float64[draw.first] * TINY)
        if depends(case.elsewhere(inputs), draw.first):
            yield f"{draw.name(draw.first)} × 2⁻²⁰", (inputs,)


def depends(
    case: Case,
    at: int,
    least: float = 0.0,
    outputs: bool = False,
    where: np.ndarray | bool = True,
) -> bool:
    """Whether y is finite, and changes when an input moves a little: by more than
    ``least`` times the larger of 1 and y's largest element. ``outputs`` asks it of each
    of several outputs, and only the elements ``where`` move."""
    x = case.float64[at]
    move = np.where(where, MOVE * _signs(case, x.shape), 0.0)
    moved = (*case.float64[:at], x * (1 + move), *case.float64[at + 1 :])
    try:
        here, there = (case.forward(values) for values in (case.float64, moved))
    except Exception:
        return False
    several = several_outputs(case) if outputs else None
    change = np.abs(here - there)
    changes = [*map(to_numpy, _parts(several, case, change))] if several else [change]
    size = max(1.0, np.abs(here).max(initial=0.0))
    moved_all = all(of.max(initial=0.0) > least * size for of in changes)
    return bool(np.isfinite(here).all()) and moved_all


def _parts(several: Several, case: Case, vector: np.ndarray) -> list[Any]:
    """Return the part of each output in a vector of all."""
    parts = several.split(to_kind_of(case.run[0], vector))
    return [part for part in parts if part is not None]


def _signs(case: Case, shape: tuple[int, ...]) -> np.ndarray:
    """Return a random sign for each element."""
    return case.rng.choice([-1.0, 1.0], shape)


def other_integers(draw: Draw) -> Iterator[tuple[str, Tries]]:
    """Yield integers that are all equal, integers without one that was given, an empty
    segment, and a mask with one True in each row."""
    case = draw.case
    for at, value in enumerate(case.inputs):
        if not is_array(value) or not value.shape or is_floating(value):
            continue
        values, name = to_numpy(value), draw.name(at)
        if values.dtype == bool:
            one = np.zeros_like(values)
            one[..., values.shape[-1] // 2] = True
            yield f"one True in each row of {name}", (draw.replaced(at, one),)
        elif are_offsets(case, at, values):
            empty, middle = values.copy(), (len(values) - 1) // 2
            empty[middle] = empty[middle + 1]
            yield from _with_empty_segment(draw, at, empty, middle)
        elif are_counts(case, at, values):
            empty, middle = values.copy(), len(values) // 2
            empty[middle - 1] += empty[middle]
            empty[middle] = 0
            yield from _with_empty_segment(draw, at, empty, middle)
        else:
            for what, other in _repeated(values):
                yield f"{what} {name}", (draw.replaced(at, other),)


def _with_empty_segment(
    draw: Draw, at: int, values: np.ndarray, segment: int
) -> Iterator[tuple[str, Tries]]:
    inputs = draw.replaced(at, values)
    if _is_empty(draw.case.elsewhere(inputs), draw.first, at, segment):
        yield f"{EMPTY_SEGMENT} {draw.name(at)}", (inputs,)


def _repeated(values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield integers that are all the same, and integers without the largest, if some
    already occur twice. Negative ones are not replaced: they may be signs."""
    known, counts = np.unique(values[values >= 0], return_counts=True)
    if known.size < 2 or counts.max() < 2:
        return
    often = known[counts.argmax()]
    yield "equal integers in", np.where(values < 0, values, often)
    if known.size > 2:
        rest = np.where(values == known[-1], known[-2], values)
        yield f"no {known[-1]} in", rest


def are_offsets(case: Case, at: int, values: np.ndarray) -> bool:
    """Whether integers rise from 0 to the length of an axis of a different input."""
    return bool(
        values.ndim == 1
        and values.size > 2
        and values[0] == 0
        and (np.diff(values) > 0).all()
        and int(values[-1]) in _lengths(case, at)
    )


def are_counts(case: Case, at: int, values: np.ndarray) -> bool:
    """Whether integers are lengths of segments of an axis of a different input."""
    return bool(
        values.ndim == 1
        and values.size > 1
        and (values >= 0).all()
        and int(values.sum()) in _lengths(case, at)
    )


def _lengths(case: Case, at: int) -> set[int]:
    """Return the lengths of the axes of the other inputs."""
    return {
        length
        for other, value in enumerate(case.inputs)
        if other != at and is_array(value)
        for length in value.shape
    }


def _is_empty(case: Case, first: int, at: int, segment: int) -> bool:
    """Whether y of a segment, if y has about as many rows as there are segments,
    depends on no element of the first input. For ``np.add.reduceat`` an empty segment
    has one element."""
    x = case.float64[first]
    others = case.float64[first + 1 :]
    moved = (*case.float64[:first], x + _signs(case, x.shape), *others)
    try:
        here, there = (case.forward(values) for values in (case.float64, moved))
    except Exception:
        return False
    known = len(case.float64[at])
    in_rows = here.shape[:1] in ((known,), (known - 1,))
    return not in_rows or bool(np.array_equal(here[segment], there[segment]))
