"""Check that memory does not matter: the layout of arrays, and buffers that are reused.

Strided arrays and a second call must give the same gradients. NumPy ensures this for a
backward written in NumPy. A kernel, which addresses memory itself, and a backward that
reuses a buffer have to ensure it themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from backpass.contract.arrays import Array, is_array, size
from backpass.verify.case import Case, first_line
from backpass.verify.convert import (
    EPSILON,
    epsilon,
    is_floating,
    is_torch,
    to_kind_of,
    to_numpy,
)
from backpass.verify.drawing import VARYING, generator
from backpass.verify.magnitude import largest, within

REPEATS = 4
MOVES = 2  # how often inputs are moved to measure the effect of rounding
FURTHER = 8  # units in the last place by which they are moved
TIMES = 4  # how many times that effect is allowed
# Of the largest element: who reads memory in a wrong order is off by more, and a sum in
# another order by less.
SLIGHT = 1e-6
LARGE = 1 << 20  # elements of an input, for which one layout is tried
LARGE_NUMBER = 1e4  # in half precision, whose largest may be 65,504
GAP = 16  # columns; Triton compiles the same code for strides of multiples of 16
NEAR = 0.01  # of the largest element: a larger difference is not rounding
UNITS = 32  # in the last place; a different layout may change the order of a sum


class Run:
    """One forward and one backward on the inputs as they were given.

    The cotangent is ``dy``, by default the case's.
    """

    def __init__(self, case: Case, dy: np.ndarray | None = None):
        self.case = case
        self.inputs = case.given()
        self.y, self.saved = case.subject.forward(*self.inputs)
        self.dy = to_kind_of(self.y, case.dy if dy is None else dy)
        self.noise = cache(self._noise)

    @cached_property
    def _returned(self) -> tuple[dict[int, Array | None], dict[int, np.ndarray]]:
        """What backward returns, and copies, which no later call changes."""
        found = self.case.slots.by_position(
            self.case.subject.backward(self.dy, self.saved), every=True
        )
        return found, {at: to_numpy(of) for at, of in found.items() if is_array(of)}

    @property
    def gradients(self) -> dict[int, Array | None]:
        """The gradients that backward returns, by position of the input, or None."""
        return self._returned[0]

    @property
    def at_first(self) -> dict[int, np.ndarray]:
        """The same gradients as they were when backward returned them."""
        return self._returned[1]

    @property
    def unit(self) -> float:
        """The machine epsilon of the coarsest of the arrays' dtypes."""
        return epsilon(self.y, *(value for value in self.inputs if is_floating(value)))

    def coarsest(self, key: int | str, *, near: bool) -> float:
        """Return the machine epsilon of the precision in which forward computes, or
        ``unit`` if that is larger. For a gradient that is ``near`` enough for rounding
        to matter, backward's precision counts too."""
        case = self.case
        units = [self.unit, EPSILON[case.computes_in]]
        if near and not isinstance(key, str):
            units.append(EPSILON[case.backward_computes_in(key)])
        return max(units)

    def _noise(self, coarsest: float) -> dict[int | str, float]:
        """Return the largest changes of y and of the gradients when each input moves by
        up to FURTHER times ``coarsest``, relative to its size.

        A shorter move may be lost where a sum rounds, which another order does not.
        """
        rng = generator(self.case.seed, VARYING)
        noise: dict[int | str, float] = {}
        for _ in range(MOVES):
            moved = self.case.changed(
                lambda x: x * (1 + FURTHER * coarsest * rng.uniform(-1, 1, x.shape))
            )
            there = Run(replace(self.case, inputs=moved))
            pairs: dict[int | str, tuple] = {"y": (to_numpy(there.y), to_numpy(self.y))}
            pairs |= {
                at: (there.at_first[at], self.at_first[at])
                for at in there.at_first.keys() & self.at_first.keys()
            }
            for key, (one, other) in pairs.items():
                if one.shape == other.shape:
                    change = np.nan_to_num(one - other)
                    noise[key] = max(noise.get(key, 0.0), largest(change))
        return noise

    @property
    def longest(self) -> int:
        """The length of the longest axis: a sum over one axis has at most so many
        terms."""
        arrays = (*self.case.inputs, self.y)
        return max((n for a in arrays if is_array(a) for n in a.shape), default=1)

    def numbers(self) -> dict[int, np.ndarray]:
        """Copy the gradients of the differentiable inputs, in float64."""
        return {at: to_numpy(self.gradients[at]) for at in self.case.differentiable}

    def backward(
        self, dy: Array | None = None, saved: Any = None
    ) -> dict[int, np.ndarray | None]:
        """Call backward again and return the gradients in float64.

        The cotangent and the saved object are by default the run's own.
        """
        dy = self.dy if dy is None else dy
        saved = self.saved if saved is None else saved
        return self.case.slots.by_input(self.case.subject.backward(dy, saved))


def another_call(done: Run) -> Iterator[str]:
    """Yield a fault if a further call of backward matters.

    A second call with the same dy must return the same gradients. A call with a
    different dy must not change gradients that were already returned.
    """
    case, first = done.case, done.numbers()
    for at in unequal(done, done.backward(to_kind_of(done.y, case.dy)), first):
        name = case.subject.quantity(at)
        yield f"{name} changes when backward is called a second time with the same dy"
    done.backward(to_kind_of(done.y, -case.dy))
    for at in unequal(done, done.numbers(), first):
        name = case.subject.quantity(at)
        yield (
            f"{name}, already returned, changes when backward is called with a "
            "different dy"
        )


def other_strides(done: Run) -> Iterator[str]:
    """Yield a fault if inputs or cotangents that are not contiguous change a result.

    A forward may reject such inputs. A backward has to accept whatever dy the network
    computes. If identical calls already differ, that is reported instead.
    """
    faults = list(_with_other_strides(done))
    if faults and (differ := _not_deterministic(done)):
        verb = "differs" if len(differ) == 1 else "differ"
        yield (
            f"{', '.join(differ)} {verb} between identical calls: forward and backward "
            "are not deterministic"
        )
    else:
        yield from faults


def _not_deterministic(done: Run) -> list[str]:
    """Return the quantities that differ between calls with the same arrays."""
    differ: dict[str, None] = {}
    first = done.numbers()
    for _ in range(REPEATS):
        again = Run(done.case)
        if not _equal(done, "y", to_numpy(again.y), to_numpy(done.y)):
            differ["y"] = None
        try:
            gradients = again.backward()
        except Exception:
            continue
        for at in unequal(done, gradients, first):
            differ[done.case.subject.quantity(at)] = None
    return list(differ)


def _with_other_strides(done: Run) -> Iterator[str]:
    dy = done.dy
    arrays = [at for at, value in enumerate(done.case.inputs) if is_array(value)]
    # Each layout takes as long again, and such a fault shows at a small size too.
    small = max(size(tuple(value.shape)) for value in done.case.arrays) <= LARGE
    for layout in LAYOUTS if small else LAYOUTS[:1]:
        some = [at for at in arrays if done.inputs[at].ndim >= layout.axes]
        if some and (faults := _of_inputs(done, some, layout)):
            alone = [at for at in some if _of_inputs(done, [at], layout)]
            named = _of_inputs(done, alone, layout) if alone else []
            yield from named or faults
            break
    for layout in LAYOUTS:
        if dy.ndim < layout.axes or not (small or layout.of in (spread, permuted)):
            continue
        what, laid_out = f"for a dy that is {layout.words}", layout.of(dy, len(arrays))
        if faults := [*_compared(done, what, laid_out)]:
            yield from faults
            break
    if dy.ndim and dy.shape[0] > 1:
        repeated = expanded(dy)
        whole = to_kind_of(done.y, np.ascontiguousarray(to_numpy(repeated)))
        what = "for a dy that is expanded along axis 0"
        yield from _compared(done, what, repeated, expected=done.backward(whole))


def _of_inputs(
    done: Run,
    some: Sequence[int],
    layout: Layout,
) -> list[str]:
    """Return the faults for some inputs in another layout. A forward may reject it."""
    case, names = done.case, [done.case.subject.input_names[at] for at in some]
    given = enumerate(case.given())
    inputs = (layout.of(x, at) if at in some else x for at, x in given)
    try:
        y, saved = case.subject.forward(*inputs)
    except Exception:
        return []
    verb = "is" if len(names) == 1 else "are"
    what = f"when {' and '.join(names)} {verb} {layout.words}"
    same = _equal(done, "y", to_numpy(y), to_numpy(done.y), least=SLIGHT)
    if not same and layout.of in (swapped, permuted):
        return []  # such as dropout, which draws in the order of memory
    return [
        *([] if same else [f"y differs {what}"]),
        *_compared(done, what, saved=saved),
    ]


def spread(value: Array, at: int) -> Array:
    """Return the same numbers with gaps between neighbours and between rows."""
    shape = (*(length + 1 for length in value.shape[:-1]), 2 * value.shape[-1] + 2)
    inside = (*(slice(length) for length in value.shape[:-1]), slice(1, -1, 2))
    return _written(_filled(shape, value)[inside], value)


def wider(value: Array, at: int) -> Array:
    """Return the same numbers as the first columns of a wider array, such as a part of
    a packed projection: neighbours are adjacent, rows are not. The width depends on
    the position ``at``, so that no two inputs have the same strides."""
    *rows, width = value.shape
    whole = _filled((*rows, width + GAP * (1 + at)), value)
    return _written(whole[..., :width], value)


def _written(window: Array, value: Array) -> Array:
    window[...] = value
    return window


def swapped(value: Array, at: int) -> Array:
    """Return the same numbers with the two axes before the last in the other order in
    memory, such as heads and positions. The last axis stays innermost."""
    return _reordered(value, -3, -2)


def permuted(value: Array, at: int) -> Array:
    """Return the same numbers in the channels-last layout: without gaps, and with axis
    1 (axis 0 of a matrix) innermost."""
    return _reordered(value, 1 if value.ndim > 2 else 0, -1)


def _reordered(value: Array, axis: int, to: int) -> Array:
    """Return the same numbers with an axis at another place in memory."""
    if is_torch(value):
        return value.movedim(axis, to).contiguous().movedim(to, axis)
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(value, axis, to)), to, axis)


class Layout(NamedTuple):
    """A layout of an array in memory: in words, what lays out an array so, and how many
    axes the array has at least."""

    words: str
    of: Callable[[Array, int], Array]
    axes: int


LAYOUTS = (
    Layout("not contiguous", spread, 1),
    Layout("the first columns of a wider array", wider, 2),
    Layout("laid out with the two axes before the last in the other order", swapped, 3),
    Layout("laid out with its axes in another order", permuted, 2),
)


def expanded(value: Array) -> Array:
    """Return an array that repeats the first slice along axis 0, with stride 0.

    The slice lies at the start of a buffer as large as a contiguous array of that
    shape. Code that ignores the stride then reads wrong numbers, but no memory outside
    the buffer.
    """
    shape = tuple(value.shape)
    once = _filled(shape, value)[:1]
    once[...] = value[:1]
    return once.expand(shape) if is_torch(value) else np.broadcast_to(once, shape)


def _filled(shape: tuple[int, ...], like: Array) -> Array:
    """Return an array of NaN, which shows in any result; of 0 for integers.

    In half precision it is of large numbers of both signs: on some CPUs PyTorch's
    products read a column more, if the length is odd, and multiply it by 0.
    """
    if is_torch(like) and is_floating(like) and like.itemsize == 2:
        array = like.new_full(shape, LARGE_NUMBER)
        array[..., ::2] *= -1
        return array
    fill = float("nan") if is_floating(like) else 0
    if is_torch(like):
        return like.new_full(shape, fill)
    return np.full(shape, fill, dtype=like.dtype)


def _compared(
    done: Run,
    what: str,
    dy: Array | None = None,
    saved: Any = None,
    expected: dict | None = None,
) -> Iterator[str]:
    expected = expected or done.numbers()  # before a call that may overwrite them
    try:
        got = done.backward(dy, saved)
    except Exception as error:
        yield f"backward fails {what}: {first_line(error)}"
        return
    for at in unequal(done, got, expected, SLIGHT):
        yield f"{done.case.subject.quantity(at)} differs {what}"


def unequal(done: Run, got: dict, expected: dict, least: float = 0.0) -> list[int]:
    """Return the positions of the gradients that differ by more than rounding, and by
    more than a share ``least`` of the largest element."""
    return [
        at
        for at in expected
        if not _equal(done, at, got[at], expected[at], done.case.scales[at], least)
    ]


def _equal(
    done: Run,
    key: int | str,
    got: np.ndarray | None,
    expected: np.ndarray | None,
    scale: float = 0.0,
    least: float = 0.0,
) -> bool:
    """Whether the two agree to rounding, or to a share ``least`` of the largest.

    Allowed are a few units of the largest element or, if it is larger, of ``scale``. In
    an ill-conditioned computation, a few times the change is allowed that one unit in
    the inputs causes. That change grows as the square root of a sum's length, and the
    rounding of a sum term by term, which NumPy computes where BLAS does not take the
    strides, as the length; so the change is allowed as many times more.
    """
    if got is None or expected is None:
        return got is expected
    if got.shape != expected.shape:
        return False
    if np.array_equal(got, expected):
        return True
    size = max(largest(expected), scale)

    def agree(allowed: float) -> bool:
        return within(got, expected, allowed)

    if agree(max(UNITS * done.unit, least) * size):
        return True
    coarsest = done.coarsest(key, near=agree(NEAR * size))
    noise = TIMES * math.sqrt(done.longest) * done.noise(coarsest).get(key, 0.0)
    return agree(UNITS * coarsest * size + noise)
