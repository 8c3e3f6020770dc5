"""Repeat the check at inputs of other shapes and values, drawn from the given inputs.

Some gradient bugs of public projects show only at such inputs: with one more axis, with
different lengths where two were equal, beyond a kernel's block, in a row of zeros, far
from 0, at ties, or in many rows of half precision. The page "Gradient bugs that
happened" counts them.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from backpass.contract.arrays import Array, is_array
from backpass.contract.shapes import Shapes
from backpass.verify.case import Case, Inputs, first_line
from backpass.verify.convert import (
    in_dtype,
    is_floating,
    is_torch,
    to_kind_of,
    to_numpy,
    to_torch,
)
from backpass.verify.directional import COORDINATES
from backpass.verify.drawing import VARYING, generator
from backpass.verify.methods import finite_difference, precision, pytorch
from backpass.verify.report import COULD_NOT_RUN, FAILED, NOT_RUN, PASSED, Row

NAME = "varied inputs"
LONGER = 37  # added to a length: odd, so that the sum is not a multiple of a block
# Longer than the blocks into which kernels cut the rows, and the elements of one row.
ROWS, ROW = 256 + LONGER, 1024 + LONGER
TIMES = 20
DEEPER, EMPTY = "one more leading axis", "no rows"
DECLARE = 'if x may only be a matrix, declare it: SHAPES = "x[b, n] -> y[b, n]"'
MOST = 1 << 20  # elements of a varied input, at most
KINKS = 0.03  # of a slope: a larger error is not excused as one of kinks
MANY = 1 << 17  # elements of many rows: more than 65,536
# Options that name an integer without a gradient.
IGNORED = {"ignore_index", "ignore", "ignored", "padding_idx", "pad_id", "pad"}
SEARCH = 2.0  # seconds for a diagnosis
# Methods that compare element by element. Differences run only if none of them gave a
# verdict.
COMPARING = ("contract", "autograd", "pytorch", "precision")
DIFFERENCES = ("finite_difference",)

OPERATORS = (pytorch.NAME, precision.NAME)  # the methods that call the operator

RowsOf = Callable[[Case, Sequence[str]], list[Row]]


@dataclass(frozen=True)
class _Variation:
    """A variation: its description, inputs to try, and the methods to run.

    The first inputs that forward accepts are used. The methods of ``otherwise`` run if
    those of ``methods`` gave no verdict on a gradient.
    """

    what: str
    tries: tuple[Inputs, ...]
    methods: tuple[str, ...] = COMPARING
    otherwise: tuple[str, ...] = DIFFERENCES


def varied(case: Case, rows_of: RowsOf) -> list[Row]:
    """Return the rows of every variation: one, or one for each wrong quantity.

    ``rows_of(case, methods)`` runs methods.
    """
    return [
        row
        for variation in _variations(case)
        for row in _rows(case, variation, rows_of)
    ]


def _rows(case: Case, variation: _Variation, rows_of: RowsOf) -> Iterator[Row]:
    problem = ""
    for inputs in variation.tries:
        other = case.elsewhere(inputs)
        try:
            y = other.y_as_given
        except Exception as error:
            problem = f"forward rejects them ({first_line(error)})"
            continue
        if np.isfinite(y).all() or not case.finite:
            break
        problem = "y is not finite there"
    else:
        yield Row(NAME, "", NOT_RUN, reason=f"{variation.what}: {problem}")
        return
    found = rows_of(other, variation.methods)
    if not any(
        row.quantity in other.quantities and row.verdict != NOT_RUN for row in found
    ):
        found += rows_of(other, variation.otherwise)
    yield from _summary(variation.what, found, other, case)


def _summary(what: str, found: list[Row], case: Case, given: Case) -> Iterator[Row]:
    """Yield one row if nothing is wrong; otherwise one for each wrong quantity, from
    the first method that found it. ``given`` is the case that was varied."""
    wrong: dict[str, Row] = {}
    for row in found:
        # The operator need not accept these inputs.
        rejected = row.verdict == COULD_NOT_RUN and row.method in OPERATORS
        # Among so many elements, some are at a kink, such as ReLU's.
        kinks = row.method == finite_difference.NAME and _is_small(row, case)
        if row.verdict in (FAILED, COULD_NOT_RUN) and not (rejected or kinks):
            wrong.setdefault(row.quantity, row)
    if "y" in wrong:  # forward and the operator differ, so their gradients may too
        wrong = {"y": wrong["y"]}
    known = {*case.quantities, *({"all"} if what == EMPTY else ())}
    passed = [row for row in found if row.verdict == PASSED and row.quantity in known]
    declared = case.subject.shapes is not None
    misfit = ""
    if wrong and not declared:
        misfit, wrong = _misfit(what, wrong, case, given)
    if misfit and not wrong:
        reason = f"{what}: forward accepts it, {misfit}"
        yield Row(NAME, "", NOT_RUN, reason=reason)
    elif wrong:
        for quantity, row in wrong.items():
            suspect = case.found.suspects.get((row.method, quantity))
            reason = suspect.diagnose(SEARCH) if suspect else row.reason
            reason = ": ".join(filter(None, (what, row.method, reason)))
            if what == DEEPER and not declared:
                reason += f"; {DECLARE}"
            yield replace(row, method=NAME, reason=reason, how=what)
    elif passed:
        worst = max(passed, key=lambda row: (row.error or 0.0) / (row.tolerance or 1.0))
        methods = ", ".join(dict.fromkeys(row.method for row in passed))
        yield Row(NAME, "all", PASSED, worst.error, worst.tolerance, methods, note=what)
    else:
        reasons = dict.fromkeys(row.reason for row in found if row.reason)
        reason = f"{what}: {'; '.join(reasons) or 'no method applies'}"
        yield Row(NAME, "", NOT_RUN, reason=reason)


def _is_small(row: Row, case: Case) -> bool:
    """Whether an error of slopes is so small that kinks may cause it, at inputs with
    too many elements for a difference of each."""
    many = case.float64[case.differentiable[0]].size > COORDINATES
    return many and row.error is not None and row.error < KINKS


def _misfit(
    what: str, wrong: dict[str, Row], case: Case, given: Case
) -> tuple[str, dict[str, Row]]:
    """Return the sign that backward does not support inputs that forward accepts, or
    "", and the rows that are wrong nevertheless.

    The sign is that backward raises. For one more axis, it is also that gradients have
    wrong shapes and forward does not treat each slice as it treats a smaller array.
    """
    raised = [row.reason for row in wrong.values() if row.verdict == COULD_NOT_RUN]
    if len(raised) == len(wrong):
        return f"backward does not ({raised[0]})", {}
    if what != DEEPER or not case.dy.ndim or _is_done_to_each_slice(case, given):
        return "", wrong
    other = {
        case.subject.quantity(at): (gradient.shape, case.float64[at].shape)
        for at, gradient in case.gradients.items()
        if gradient is not None and gradient.shape != case.float64[at].shape
    }
    if not other:
        return "", wrong
    name, (got, shape) = next(iter(other.items()))
    rest = {of: row for of, row in wrong.items() if of not in (*other, "all")}
    return f"but {name} is {list(got)}, not {list(shape)}", rest


def _is_done_to_each_slice(deeper: Case, given: Case) -> bool:
    """Whether forward treats each slice of the new leading axis as it treats an array
    without that axis."""
    more = [
        at
        for at, value in enumerate(deeper.inputs)
        if is_array(value) and value.ndim > given.inputs[at].ndim
    ]
    y = deeper.y_as_given
    try:
        for index, there in enumerate(y):
            inputs = (
                x[index] if at in more else x for at, x in enumerate(deeper.given())
            )
            here = to_numpy(given.subject.forward(*inputs)[0])
            if here.shape != there.shape or not np.allclose(here, there):
                return False
    except Exception:
        return False
    return bool(y.ndim)


def _variations(case: Case) -> Iterator[_Variation]:
    """Yield the variations that the declaration allows, if there is one."""
    shapes, names = case.subject.shapes, case.subject.input_names
    for variation in _every_variation(case):
        if shapes is None:
            yield variation
            continue
        tries = tuple(
            inputs
            for inputs in variation.tries
            if _fits(shapes, dict(zip(names, inputs, strict=False)))
        )
        if tries:
            yield replace(variation, tries=tries)


def _fits(shapes: Shapes, given: dict[str, object]) -> bool:
    try:
        shapes.bind(given)
    except ValueError:
        return False
    return True


def _every_variation(case: Case) -> Iterator[_Variation]:
    draw = _Draw(case)
    first = case.differentiable[0]
    x, name = case.float64[first], draw.name(first)
    arrays = [at for at, value in enumerate(case.inputs) if is_array(value)]
    declared = case.subject.shapes is not None

    most = max(case.float64[at].ndim for at in arrays)
    deepest = [at for at in arrays if case.float64[at].ndim == most]
    yield _Variation(
        DEEPER, tuple(draw.deeper(some) for some in (deepest, [first], arrays))
    )

    for length, places in draw.lengths():
        if draw.is_width_of_table(places):
            continue
        inputs = dict.fromkeys(at for at, _ in places)
        for alone in inputs if len(inputs) > 1 else ():
            changed = [place for place in places if place[0] == alone]
            tries = tuple(draw.resized(changed, n) for n in (length + 3, length - 1))
            # In most functions they have to be equal. Without a declaration, forward
            # must accept both.
            if (all if not declared else any)(_takes(case, at) for at in tries):
                of = draw.name(alone)
                what = f"{of}'s length changed from {length}, the others' kept"
                yield _Variation(what, tries)
        # Length 1 may be broadcast where no other length fits.
        if declared or any(_takes(case, at) for at in draw.tries(places, length + 3)):
            # Not element by element: in a row of one, normalised parts cancel.
            what, methods = f"length 1 in place of {length}", ("contract", *DIFFERENCES)
            yield _Variation(what, (draw.resized(places, 1),), methods)
        last = any(axis == case.float64[at].ndim - 1 for at, axis in places)
        longer = ROW if last else ROWS
        if length < longer and draw.most_elements(places, longer) <= MOST:
            what = f"length {longer} in place of {length}"
            yield _Variation(what, draw.tries(places, longer))

    yield _Variation(f"{name} × {TIMES}", (draw.replaced(first, x * TIMES),))
    if x.ndim and x.shape[0] > 1:
        zero = x.copy()
        zero.reshape(-1, x.shape[-1])[0] = 0.0
        yield _Variation(f"a row of zeros in {name}", (draw.replaced(first, zero),))
    tied = np.where(np.isfinite(x), np.round(2 * x) / 2, x)
    tries = (draw.replaced(first, tied),)
    yield _Variation(f"ties in {name}", tries, DIFFERENCES, ())
    rows = next((places for _, places in draw.lengths() if (first, 0) in places), None)
    # In the half precision that was given; otherwise in bfloat16, only for tensors.
    short = {"float16", "bfloat16"} & {case.dtype}
    low = short.pop() if short else "bfloat16" if is_torch(case.inputs[first]) else ""
    if rows:
        yield from _of_rows(draw, rows, declared)
    yield from _of_integers(case, draw)
    if low and x.ndim > 1 and rows and draw.most_elements(rows, ROWS) <= MOST:
        many = tuple(in_dtype(value, low) for value in draw.resized(rows, ROWS))
        yield _Variation(f"{ROWS} rows of {low}", (many,), ("precision",), ())


def _of_rows(
    draw: _Draw, rows: Sequence[tuple[int, int]], declared: bool
) -> Iterator[_Variation]:
    """Yield an empty batch, and so many rows that their elements exceed 65,536."""
    case = draw.case
    length = case.inputs[rows[0][0]].shape[0]
    if declared or any(_takes(case, at) for at in draw.tries(rows, length + 3)):
        yield _Variation(EMPTY, draw.tries(rows, 0), ("contract",), ())
    elements = sum(math.prod(case.inputs[at].shape) for at, _ in rows)
    many = MANY * length // elements + LONGER
    if many > ROWS and draw.most_elements(rows, many) <= MOST:
        tries = draw.tries(rows, many)
        if _cost_by_row(draw, rows):
            what = f"{many:,} rows in place of {length}"
            yield _Variation(what, tries, ("autograd", "pytorch"))


def _cost_by_row(draw: _Draw, rows: Sequence[tuple[int, int]]) -> bool:
    """Whether the time of many rows grows at most as their number: each row of y
    depends on its own row of the inputs alone, and no Python loop runs over them."""
    case = draw.case
    whole = {at for at, _ in rows}
    if any(axis for _, axis in rows):  # y may have both axes, and rows² elements
        return False

    def ran(part: slice) -> tuple[np.ndarray, int]:
        inputs = (x[part] if at in whole else x for at, x in enumerate(case.given()))
        y, lines = _lines(case.subject.forward, tuple(inputs))
        return to_numpy(y), lines

    try:
        y, lines = ran(slice(None))
        for part in (slice(1, None), slice(None, -1)):  # a causal row uses earlier rows
            fewer, lines_of_fewer = ran(part)
            same = fewer.shape == y[part].shape and np.allclose(fewer, y[part])
            if not same or lines != lines_of_fewer:
                return False
    except Exception:
        return False
    return True


def _lines(forward: Callable, inputs: Inputs) -> tuple[Array, int]:
    """Return y, and how many lines of Python ran."""
    count, before = itertools.count(), sys.gettrace()

    def trace(frame: object, event: str, argument: object) -> Callable:
        next(count)
        return trace

    sys.settrace(trace)
    try:
        y = forward(*inputs)[0]
    finally:
        sys.settrace(before)
    return y, next(count)


def _of_integers(case: Case, draw: _Draw) -> Iterator[_Variation]:
    """Yield a mask with a row of only False or only True, and integers that include the
    one that an option says to ignore."""
    options = dict(case.subject.all_options)
    names = case.subject.input_names
    options |= {
        name: value
        for name, value in zip(names, case.inputs, strict=False)
        if not is_array(value)
    }
    for at, value in enumerate(case.inputs):
        if not is_array(value) or not value.shape or is_floating(value):
            continue
        values = to_numpy(value)
        if values.dtype == bool:
            for filled in (False, True):
                other = values.copy()
                other[0] = filled
                tries = (draw.replaced(at, other),)
                yield _Variation(f"a row of {filled} in {names[at]}", tries)
            continue
        for option in IGNORED & {*options}:
            ignored = options[option]
            if type(ignored) is int and values.size > 1:
                other = values.copy()
                other.reshape(-1)[-1] = ignored
                tries = (draw.replaced(at, other),)
                yield _Variation(f"{option} = {ignored} in {names[at]}", tries)


def _takes(case: Case, inputs: Inputs) -> bool:
    try:
        case.subject.forward(*case.elsewhere(inputs).given())
    except Exception:
        return False
    return True


class _Draw:
    """Draws inputs like those of a case.

    Each element is one of the user's, scaled by a random factor near 1.
    """

    def __init__(self, case: Case):
        self.case = case
        self.rng = generator(case.seed, VARYING)

    def name(self, at: int) -> str:
        return self.case.subject.input_names[at]

    def lengths(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """Return each length above 1, with its places: input and axis. With a
        declaration these are the places of a letter; without one, equal lengths count
        as one."""
        places: dict[object, list[tuple[int, int]]] = {}
        for at, value in enumerate(self.case.inputs):
            for axis, length in enumerate(value.shape if is_array(value) else ()):
                if length > 1:
                    places.setdefault(self._letter(at, axis), []).append((at, axis))
        inputs = self.case.inputs
        return [
            (inputs[same[0][0]].shape[same[0][1]], same) for same in places.values()
        ]

    def _letter(self, at: int, axis: int) -> object:
        """Return the letter of an axis in the declaration; its length without one. A
        group of leading axes is counted from its end."""
        shape, shapes = self.case.inputs[at].shape, self.case.subject.shapes
        if shapes is None or at >= len(shapes.inputs):
            return shape[axis]
        axes = shapes.inputs[at].axes
        from_end = len(shape) - axis
        own = len(axes) if shapes.inputs[at].group is None else len(axes) - 1
        return axes[-from_end] if from_end <= own else ("*", from_end - own)

    def is_width_of_table(self, places: Sequence[tuple[int, int]]) -> bool:
        """Whether a length is that of the last axis of a constant input: a table, such
        as RoPE's, whose columns may belong together."""
        return any(
            at in self.constants and axis == self.case.inputs[at].ndim - 1
            for at, axis in places
        )

    @property
    def constants(self) -> set[int]:
        """The positions of the floating-point inputs that have no gradient."""
        floating = {at for at, x in enumerate(self.case.inputs) if is_floating(x)}
        return floating - {*self.case.differentiable}

    def most_elements(self, places: Sequence[tuple[int, int]], length: int) -> int:
        return max(int(np.prod(self._shape(at, places, length))) for at, _ in places)

    def tries(self, places: Sequence[tuple[int, int]], length: int) -> tuple:
        """Return two tries of inputs with a different length. The second has integers
        that may occur more than once, even if those given are a permutation."""
        return self.resized(places, length), self.resized(places, length, twice=True)

    def resized(
        self, places: Sequence[tuple[int, int]], length: int, twice: bool = False
    ) -> Inputs:
        """Return the inputs with a different length at these places."""
        changed = {
            at: self._like(at, self._shape(at, places, length), twice)
            for at in dict.fromkeys(at for at, _ in places)
        }
        return tuple(
            changed.get(at, value) for at, value in enumerate(self.case.inputs)
        )

    def deeper(self, positions: Sequence[int]) -> Inputs:
        """Return the inputs, those at ``positions`` with one more leading axis."""
        return tuple(
            self._like(at, (2, *value.shape)) if at in positions else value
            for at, value in enumerate(self.case.inputs)
        )

    def replaced(self, at: int, values: np.ndarray) -> Inputs:
        inputs = self.case.inputs
        return (*inputs[:at], to_kind_of(inputs[at], values), *inputs[at + 1 :])

    def _shape(
        self, at: int, places: Sequence[tuple[int, int]], length: int
    ) -> tuple[int, ...]:
        shape = self.case.inputs[at].shape
        return tuple(
            length if (at, axis) in places else old for axis, old in enumerate(shape)
        )

    def _like(self, at: int, shape: tuple[int, ...], twice: bool = False) -> object:
        given = self.case.inputs[at]
        own = to_numpy(given).ravel()
        count = int(np.prod(shape))
        if at in self.constants:  # a table: its rows again, each scaled by about 1
            rows = self.rng.uniform(0.9, 1.1, (*shape[:-1], 1)[: len(shape)])
            return to_kind_of(given, rows * _repeated(to_numpy(given), shape))
        if is_floating(given):
            near = self.rng.choice(own, shape) * self.rng.uniform(0.9, 1.1, shape)
            return to_kind_of(given, near)
        if not twice and np.array_equal(np.sort(own), np.arange(own.size)):
            # A permutation again: every place once.
            values = self.rng.permutation(count).reshape(shape)
        elif own.size > 2 and (np.diff(own.astype(float)) >= 0).all():
            # Such as offsets.
            values = np.sort(self.rng.choice(own, count)).reshape(shape)
        else:
            values = self.rng.choice(own, shape)
        return to_torch(values) if is_torch(given) else values.astype(given.dtype)


def _repeated(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the values with each axis repeated, or cut, to the length in ``shape``,
    which may have more leading axes."""
    own = shape[len(shape) - values.ndim :]
    at = np.ix_(*(np.arange(n) % old for n, old in zip(own, values.shape, strict=True)))
    return np.broadcast_to(values[at], shape).copy()
