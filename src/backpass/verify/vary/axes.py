"""Change the axes of inputs: one fewer, a longer one in place of length 1, a long row.

Without a declaration, forward shows whether such inputs are meant: it has to do to each
slice what it does to an array without the axis.
"""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from backpass.contract.arrays import is_array
from backpass.verify.case import Case, Inputs
from backpass.verify.convert import (
    EPSILON,
    is_floating,
    is_torch,
    to_kind_of,
    to_numpy,
)
from backpass.verify.magnitude import largest
from backpass.verify.vary.draws import Draw, Places
from backpass.verify.vary.work import TooMuch, lines

Tries = tuple[Inputs, ...]
LENGTHENED = 3
ROWS = 2  # that are given with a long row
# Elements of one row: more than 65,536, and as even or odd as the length given, of
# which forward may take the half.
LONG = (1 << 17) + 36
# From a length to its double, what is stored may grow by this factor.
SHORT, GROWTH = 1024, 2.2
MOST_STORED = 1 << 25  # bytes that NumPy stores at once at the full length
MOST_RETURNED = 1 << 24  # elements of all results of PyTorch there
MOST_LINES = 200_000  # of Python, more than calls that import a library run


def an_axis_fewer(draw: Draw) -> Iterator[Inputs]:
    """Yield the first slice along the first axis: of the inputs with the most axes, of
    the first with a gradient, and of all."""
    case, inputs = draw.case, draw.case.inputs
    arrays = [at for at, value in enumerate(inputs) if is_array(value)]
    most = max(inputs[at].ndim for at in arrays)
    deepest = [at for at in arrays if inputs[at].ndim == most]
    if inputs[draw.first].ndim < 2:
        return
    for some in dict.fromkeys(map(tuple, (deepest, [draw.first], arrays))):
        if any(inputs[at].ndim == 0 for at in some):
            continue
        fewer = tuple(
            value[0] if at in some else value for at, value in enumerate(inputs)
        )
        if draw.declared or is_in_slices(case, case.inputs, some):
            yield fewer


def lengthened(draw: Draw) -> Iterator[tuple[str, Tries]]:
    """Yield three in place of each length 1 of the first input: of it alone, and of all
    inputs with as many axes."""
    case = draw.case
    x = case.inputs[draw.first]
    for axis in range(x.ndim):
        if x.shape[axis] != 1:
            continue
        what = f"length {LENGTHENED} in place of 1 along axis {axis}"
        alike = [
            at
            for at, value in enumerate(case.inputs)
            if is_array(value) and value.ndim == x.ndim and value.shape[axis] == 1
        ]
        tries = []
        for some in dict.fromkeys(map(tuple, ([draw.first], alike))):
            places = Places.of(((at, axis) for at in some), 1, None)
            inputs = draw.resized(places, LENGTHENED)
            if draw.declared or is_in_slices(case, inputs, some, axis, kept=True):
                tries.append(inputs)
        if tries:
            yield what, tuple(tries)


def is_in_slices(
    case: Case,
    inputs: Inputs,
    some: Sequence[int],
    axis: int = 0,
    *,
    kept: bool = False,
    reduced: bool = False,
) -> bool:
    """Whether forward computes the same for each slice of some inputs as for all slices
    together. A slice lacks the axis; with ``kept``, the axis has length 1.

    With ``reduced``, an output that is a number may also be the sum or the mean of the
    slices' outputs, as for a loss.
    """
    length = inputs[some[0]].shape[axis]
    if any(inputs[at].shape[axis] != length for at in some):
        return False

    def slice_of(value: Any, index: int) -> Any:
        here = to_numpy(value).take([index], axis)
        return to_kind_of(value, here if kept else here.squeeze(axis))

    try:
        whole = _outputs(case, inputs)
        slices = [
            _outputs(
                case,
                tuple(
                    slice_of(value, index) if at in some else value
                    for at, value in enumerate(inputs)
                ),
            )
            for index in range(length)
        ]
        join = np.concatenate if kept else np.stack
        return all(
            _is_near(case, y, join(parts, axis))
            or (reduced and not y.ndim and _is_reduced(case, y, parts))
            for y, parts in zip(whole, zip(*slices, strict=True), strict=True)
        )
    except Exception:
        return False


def _outputs(case: Case, inputs: Inputs) -> list[np.ndarray]:
    """Return forward's floating-point outputs."""
    subject = case.subject
    outputs = subject.outputs(*subject.forward(*case.elsewhere(inputs).given()))
    return [to_numpy(y) for y in outputs if is_floating(y)]


def _is_reduced(case: Case, y: np.ndarray, parts: Sequence[np.ndarray]) -> bool:
    total = np.sum(parts, axis=0)
    return any(_is_near(case, y, of) for of in (total, total / len(parts)))


def _is_near(case: Case, y: np.ndarray, there: np.ndarray) -> bool:
    """Whether two results of forward differ by no more than rounding."""
    near = max(1e-5, 16 * EPSILON[case.dtype])
    return y.shape == there.shape and np.allclose(
        y, there, rtol=near, atol=near * largest(there)
    )


def of_square(draw: Draw) -> Iterator[tuple[str, Tries]]:
    """Yield inputs in which one of two equal lengths of an array is changed.

    It is the length of an axis whose slices forward treats each by itself, such as the
    rows of softmax or the columns of batch norm, which therefore need not be as many as
    the elements of a slice. A matrix whose inverse is computed has no such axis.
    """
    case = draw.case
    for at in case.differentiable:
        shape = tuple(case.inputs[at].shape)
        for axis, length in enumerate(shape):
            if length < 2 or shape.count(length) < 2:
                continue
            for some in _with_same_length(case, at, axis):
                places = Places.of(some, length, None)
                if _is_slice_by_slice(draw, places):
                    new = list(shape)
                    new[axis] = length + LENGTHENED
                    what = f"shape {new} of {draw.name(at)} in place of {list(shape)}"
                    yield what, draw.tries(places, new[axis])
                    break


def _with_same_length(case: Case, at: int, axis: int) -> list[list[tuple[int, int]]]:
    """Return an axis by itself, and with all axes of that length of vectors, and with
    those of all other inputs."""
    length = case.inputs[at].shape[axis]
    others = [
        (other, other_axis)
        for other, value in enumerate(case.inputs)
        if is_array(value) and other != at
        for other_axis in range(value.ndim)
        if value.shape[other_axis] == length
    ]
    vectors = [place for place in others if case.inputs[place[0]].ndim == 1]
    found = [[(at, axis), *more] for more in ([], vectors, others)]
    return [some for n, some in enumerate(found) if some not in found[:n]]


def _is_slice_by_slice(draw: Draw, places: Places) -> bool:
    """Whether forward, given the inputs without the first or the last slice along an
    axis, returns what it returns for all without that slice."""
    case = draw.case
    try:
        y = to_numpy(case.subject.forward(*case.given())[0])
        for kept in (slice(1, None), slice(None, -1)):
            inputs = list(case.given())
            for at, axis in places:
                inputs[at] = inputs[at][(slice(None),) * axis + (kept,)]
            there = to_numpy(case.subject.forward(*inputs)[0])
            if not any(
                there.shape == part.shape and np.allclose(there, part)
                for axis, length in enumerate(y.shape)
                if length == places.length
                for part in [y[(slice(None),) * axis + (kept,)]]
            ):
                return False
    except Exception:
        return False
    return True


def long_row(draw: Draw, most: int) -> Iterator[tuple[str, Tries]]:
    """Yield inputs with a last axis of more than 65,536 elements, and few rows, if
    memory and lines of Python do not grow faster than its length. Two axes of one
    input that change together would be too large."""
    x = draw.case.inputs[draw.first]
    last = (draw.first, x.ndim - 1)
    places = next((same for same in draw.lengths() if last in same), None)
    if places is None or draw.is_width_of_table(places):
        return
    if len({at for at, _ in places}) < len(places):
        return
    short = [x for x in _with_row(draw, places, SHORT) if is_array(x)]
    elements = max(math.prod(x.shape) for x in short)
    if elements // SHORT * LONG <= most and _grows_as_length(draw, places):
        length = LONG + x.shape[-1] % 2
        what = f"a row of {length:,} in place of {x.shape[-1]}"
        yield what, (_with_row(draw, places, length),)


def _with_row(draw: Draw, places: Places, length: int) -> Inputs:
    """Return the inputs with a last axis of this length, and with at most ROWS rows, or
    the fewest that the declaration allows."""
    rows, case = draw.rows(), draw.case
    few = draw.fit(rows, ROWS) if rows else 0
    if rows and rows != places and case.inputs[draw.first].shape[0] > few:
        draw = Draw(case.elsewhere(draw.resized(rows, few)))
    return draw.resized(places, length)


def _grows_as_length(draw: Draw, places: Places) -> bool:
    """Whether forward and backward run the same lines of Python, and store at most
    twice as much, when the length is doubled; and not too much at the full length."""
    case = draw.case
    once, twice = (
        case.elsewhere(_with_row(draw, places, n)) for n in (SHORT, 2 * SHORT)
    )
    try:
        if _lines(once) != _lines(twice):
            return False
        count, most = (
            (_elements_stored, MOST_RETURNED)
            if case.uses_torch
            else (_bytes_stored, MOST_STORED)
        )
        stored, more = (count(_both(there)) for there in (once, twice))
    except (Exception, TooMuch):
        return False
    return more <= GROWTH * stored and more // (2 * SHORT) * LONG <= most


def _both(case: Case) -> Callable[[], None]:
    """Return a call of forward and backward."""
    dy, given = case.dy, case.given()

    def run() -> None:
        y, saved = case.subject.forward(*given)
        case.subject.backward(to_kind_of(y, dy), saved)

    return run


def _lines(case: Case) -> int:
    """Return how many lines of Python run in forward and backward, not for the first
    time. Raise TooMuch for so many that a loop runs over the elements."""
    run = _both(case)
    lines(run, most=MOST_LINES)
    return lines(run, most=MOST_LINES)[1]


def _bytes_stored(run: Callable[[], None]) -> int:
    """Return the most bytes that NumPy stores at once during a call."""
    if traced := tracemalloc.is_tracing():
        tracemalloc.reset_peak()
    else:
        tracemalloc.start()
    try:
        first, _ = tracemalloc.get_traced_memory()
        run()
        return tracemalloc.get_traced_memory()[1] - first
    finally:
        if not traced:
            tracemalloc.stop()


def _elements_stored(run: Callable[[], None]) -> int:
    """Return the number of elements of all tensors that PyTorch returns in a call."""
    from backpass.torch_internals import TorchDispatchMode

    stored = 0

    class Counted(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):  # type: ignore
            nonlocal stored
            found = op(*args, **(kwargs or {}))
            results = found if isinstance(found, tuple | list) else (found,)
            stored += sum(x.numel() for x in results if is_torch(x))
            return found

    with Counted():
        run()
    return stored
