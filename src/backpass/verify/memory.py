"""The memory layout of arrays must not matter: strided arrays and a second call give the same gradients.

NumPy ensures this for a backward written in NumPy. A kernel, which addresses memory itself, and a backward that
reuses a buffer have to ensure it themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from backpass.arrays import Array, is_array
from backpass.verify.case import Case, first_line
from backpass.verify.convert import epsilon, is_floating, is_torch, to_kind_of, to_numpy

REPEATS = 4
UNITS = 32  # in the last place: a different order in memory may change the order of a sum


class Run:
    """Forward and backward once, on the inputs as they were given."""

    def __init__(self, case: Case):
        self.case = case
        self.inputs = case.given()
        self.y, self.saved = case.subject.forward(*self.inputs)
        self.dy = to_kind_of(self.y, case.dy)

    @cached_property
    def gradients(self) -> dict[int, Array | None]:
        """Backward's results by position of the input, for every input for which it returns a gradient or None."""
        return self.case.by_position(self.case.subject.backward(self.dy, self.saved), every=True)

    def backward(self, dy: Array, saved: Any) -> dict[int, np.ndarray | None]:
        """The gradients of a further call, in float64."""
        return self.case.by_input(self.case.subject.backward(dy, saved))


def another_call(done: Run) -> Iterator[str]:
    """A second backward with the same dy must return the same gradients; one with a different dy must not change them."""
    case = done.case
    first = {at: to_numpy(done.gradients[at]) for at in case.differentiable}
    again = done.backward(to_kind_of(done.y, case.dy), done.saved)
    for at in unequal(done, again, first):
        yield f"{case.quantity(at)} changes when backward is called a second time with the same dy"
    done.backward(to_kind_of(done.y, -case.dy), done.saved)
    for at in unequal(done, {at: to_numpy(done.gradients[at]) for at in first}, first):
        yield f"{case.quantity(at)}, already returned, changes when backward is called with a different dy"


def other_strides(done: Run) -> Iterator[str]:
    """Inputs and cotangents that are not contiguous must give the same numbers.

    A forward may refuse such inputs; a backward has to accept whatever dy the network computes. If identical calls
    already differ, that is reported instead.
    """
    faults = list(_with_other_strides(done))
    if faults and (differ := _not_deterministic(done)):
        calls = "identical calls: forward and backward are not deterministic"
        faults = [f"{', '.join(differ)} {'differs' if len(differ) == 1 else 'differ'} between {calls}"]
    yield from faults


def _not_deterministic(done: Run) -> list[str]:
    """The quantities that differ when everything is repeated with the same contiguous arrays."""
    found: dict[str, None] = {}
    first = {at: to_numpy(done.gradients[at]) for at in done.case.differentiable}
    for _ in range(REPEATS):
        again = Run(done.case)
        if not _equal(done, to_numpy(again.y), to_numpy(done.y), 0.0):
            found["y"] = None
        try:
            gradients = again.backward(again.dy, again.saved)
        except Exception:
            continue
        found |= dict.fromkeys(done.case.quantity(at) for at in unequal(done, gradients, first))
    return list(found)


def _with_other_strides(done: Run) -> Iterator[str]:
    case = done.case
    first = {at: to_numpy(done.gradients[at]) for at in case.differentiable}
    try:
        y, saved = case.subject.forward(*(spread(v) if is_array(v) else v for v in case.given()))
    except Exception:
        pass
    else:
        if not _equal(done, to_numpy(y), to_numpy(done.y), 0.0):
            yield "y differs when the inputs are not contiguous"
        yield from _compared(done, "inputs that are not contiguous", done.dy, saved, first)
    yield from _compared(done, "a dy that is not contiguous", spread(done.dy), done.saved, first)
    if done.dy.ndim > 1:
        yield from _compared(
            done, "a dy whose axes have a different order in memory", permuted(done.dy), done.saved, first
        )
    if done.dy.ndim and done.dy.shape[0] > 1:
        repeated = expanded(done.dy)
        expected = done.backward(to_kind_of(done.y, np.ascontiguousarray(to_numpy(repeated))), done.saved)
        yield from _compared(done, "a dy that is expanded along axis 0", repeated, done.saved, expected)


def spread(value: Array) -> Array:
    """The same numbers with gaps between neighbours and between rows."""
    if value.ndim == 0:
        return value
    shape = (*(length + 1 for length in value.shape[:-1]), 2 * value.shape[-1] + 2)
    inside = (*(slice(length) for length in value.shape[:-1]), slice(1, -1, 2))
    window = _filled(shape, value)[inside]
    window[...] = value
    return window


def permuted(value: Array) -> Array:
    """The same numbers without gaps and with axis 1 (axis 0 of a matrix) innermost: the channels-last layout."""
    axis = 1 if value.ndim > 2 else 0
    inner = [*(other for other in range(value.ndim) if other != axis), axis]
    back = [inner.index(other) for other in range(value.ndim)]
    if is_torch(value):
        return value.permute(inner).contiguous().permute(back)
    return np.ascontiguousarray(value.transpose(inner)).transpose(back)


def expanded(value: Array) -> Array:
    """An array of the same shape that repeats the first slice along axis 0, with a stride of 0.

    It lies at the start of a buffer as large as a contiguous array of that shape, so that code which ignores the
    stride reads wrong numbers and not memory outside the buffer.
    """
    first = value[:1]
    count = int(np.prod(first.shape))
    memory = _filled((int(np.prod(value.shape)),), value)
    memory[:count] = first.reshape(-1)
    once = memory[:count].reshape(first.shape)
    return once.expand(value.shape) if is_torch(value) else np.broadcast_to(once, value.shape)


def _filled(shape: tuple[int, ...], like: Array) -> Array:
    """An array of NaN, which shows in any result that reads it; of 0 for integers."""
    fill = float("nan") if is_floating(like) else 0
    if is_torch(like):
        return like.new_full(shape, fill)
    return np.full(shape, fill, dtype=like.dtype)


def _compared(done: Run, what: str, dy: Array, saved: Any, expected: dict) -> Iterator[str]:
    try:
        got = done.backward(dy, saved)
    except Exception as error:
        yield f"backward fails for {what}: {first_line(error)}"
        return
    for at in unequal(done, got, expected):
        yield f"{done.case.quantity(at)} differs for {what}"


def unequal(done: Run, got: dict, expected: dict) -> list[int]:
    """Positions of the gradients that differ by more than rounding."""
    return [at for at in expected if not _equal(done, got[at], expected[at], done.case.scale(at))]


def _equal(done: Run, got: np.ndarray | None, expected: np.ndarray | None, scale: float) -> bool:
    """Whether the two agree to rounding, which is relative to the largest element or, if larger, to ``scale``."""
    if got is None or expected is None:
        return got is expected
    if got.shape != expected.shape:
        return False
    if np.array_equal(got, expected):
        return True
    unit = epsilon(done.y, *(value for value in done.inputs if is_floating(value)))
    finite = np.abs(expected[np.isfinite(expected)])
    largest = max(finite.max(initial=0.0), scale)
    return np.allclose(got, expected, rtol=0, atol=UNITS * unit * largest, equal_nan=True)
