"""Name the inputs of other shapes and values at which a check is repeated.

Some gradient bugs of public projects show only at such inputs: with one more axis, with
different lengths where two were equal, beyond a kernel's block, in a row of zeros, far
from 0, at ties, or in many rows of half precision. The page "Gradient bugs that
happened" counts them.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from backpass.contract.arrays import Array, is_array
from backpass.contract.shapes import Shapes
from backpass.verify.case import Case, Inputs
from backpass.verify.convert import in_dtype, is_floating, is_torch, to_numpy
from backpass.verify.vary import axes, values
from backpass.verify.vary.draws import Draw, Places

LONGER = 37  # added to a length: odd, so that the sum is not a multiple of a block
# Longer than the blocks into which kernels cut the rows, and the elements of one row.
ROWS, ROW = 256 + LONGER, 1024 + LONGER
# Even lengths, and whole numbers of the usual blocks of kernels and of NumPy code.
BLOCK, BLOCK_OF_ARRAYS = 256, 64
FEW = 1 << 17  # elements of an input with such a length, at most
TIMES = 20
DEEPER, FEWER, EMPTY = "one more leading axis", "one axis fewer", "no rows"
MOST = 1 << 20  # elements of a varied input, at most
MANY = 1 << 17  # elements of many rows: more than 65,536
# Options that name an integer without a gradient.
IGNORED = {"ignore_index", "ignore", "ignored", "padding_idx", "pad_id", "pad"}
# Close to 0, and in long sums, rounding is large beside what is left of two terms. An
# error has to be larger to count.
CANCELLED, ROUNDED = 0.03, 1e-6
# Methods that compare element by element. Differences run only if none of them gave a
# verdict.
COMPARING = ("contract", "autograd", "pytorch", "precision")
EXACT = ("contract", "autograd", "pytorch")
DIFFERENCES = ("finite_difference",)


@dataclass(frozen=True)
class Variation:
    """A variation: its description, inputs to try, and the methods to run.

    The first inputs that forward accepts are used. The methods of ``otherwise`` run if
    those of ``methods`` gave no verdict on a gradient. Errors up to ``least`` do not
    count. With ``shapes_as_given``, an object without a declaration need not return
    gradients of the right shape.
    """

    what: str
    tries: tuple[Inputs, ...]
    methods: tuple[str, ...] = COMPARING
    otherwise: tuple[str, ...] = DIFFERENCES
    least: float = 0.0
    shapes_as_given: bool = False


def variations(case: Case) -> Iterator[Variation]:
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


def _every_variation(case: Case) -> Iterator[Variation]:
    draw = Draw(case)
    yield _deeper(draw)
    for length, places in draw.lengths():
        if not draw.is_width_of_table(places):
            yield from _of_length(draw, length, places)
    yield from _of_values(draw)
    if rows := draw.rows():
        yield from _of_rows(draw, rows)
    yield from _of_integers(draw)
    if rows:
        yield from _in_half_precision(draw, rows)
    yield from _further(draw)


def _deeper(draw: Draw) -> Variation:
    """Return the inputs with one more leading axis: those with the most axes, the first
    with a gradient, or all."""
    inputs = draw.case.inputs
    arrays = [at for at, value in enumerate(inputs) if is_array(value)]
    most = max(inputs[at].ndim for at in arrays)
    deepest = [at for at in arrays if inputs[at].ndim == most]
    some = (deepest, [draw.first], arrays)
    return Variation(DEEPER, tuple(draw.deeper(positions) for positions in some))


def _of_length(draw: Draw, length: int, places: Places) -> Iterator[Variation]:
    """Yield one input's length changed alone, length 1, and a long axis."""
    case, declared = draw.case, draw.declared
    inputs = dict.fromkeys(at for at, _ in places)
    for alone in inputs if len(inputs) > 1 else ():
        changed = [place for place in places if place[0] == alone]
        tries = tuple(draw.resized(changed, n) for n in (length + 3, length - 1))
        # In most functions they have to be equal. Without a declaration, forward must
        # accept both.
        if (all if not declared else any)(_takes(case, at) for at in tries):
            of = draw.name(alone)
            what = f"{of}'s length changed from {length}, the others' kept"
            yield Variation(what, tries)
    # Length 1 may be broadcast where no other length fits.
    if declared or any(_takes(case, at) for at in draw.tries(places, length + 3)):
        # Not element by element: in a row of one, normalised parts cancel.
        what, methods = f"length 1 in place of {length}", ("contract", *DIFFERENCES)
        yield Variation(what, (draw.resized(places, 1),), methods)
    last = any(axis == case.inputs[at].ndim - 1 for at, axis in places)
    longer = ROW if last else ROWS
    if length < longer and draw.most_elements(places, longer) <= MOST:
        what = f"length {longer} in place of {length}"
        yield Variation(what, draw.tries(places, longer))


def _of_values(draw: Draw) -> Iterator[Variation]:
    """Yield the first input far from 0, with a row of zeros, and with ties."""
    first, x, name = draw.first, draw.case.float64[draw.first], draw.name(draw.first)
    yield Variation(f"{name} × {TIMES}", (draw.replaced(first, x * TIMES),))
    if x.ndim and x.shape[0] > 1:
        zero = x.copy()
        zero.reshape(-1, x.shape[-1])[0] = 0.0
        yield Variation(f"a row of zeros in {name}", (draw.replaced(first, zero),))
    tied = np.where(np.isfinite(x), np.round(2 * x) / 2, x)
    tries = (draw.replaced(first, tied),)
    yield Variation(f"ties in {name}", tries, DIFFERENCES, ())


def _further(draw: Draw) -> Iterator[Variation]:
    """Yield an axis fewer, axes that are longer than 1, lengths of a whole block, a
    long row, other signs, numbers close to 0, and other integers."""
    if fewer := tuple(axes.an_axis_fewer(draw)):
        yield Variation(FEWER, fewer, EXACT, shapes_as_given=True)
    for what, tries in axes.lengthened(draw):
        yield Variation(what, tries, EXACT, shapes_as_given=True)
    for length, places in draw.lengths():
        if not draw.is_width_of_table(places):
            yield _of_block(draw, length, places)
    for what, tries in axes.long_row(draw, MOST):
        yield Variation(what, tries, ("autograd", "pytorch"), least=ROUNDED)
    for what, tries in values.other_signs(draw):
        yield Variation(what, tries, EXACT)
    for what, tries in values.tiny(draw):
        methods = ("autograd", "pytorch", "complex_step")
        yield Variation(what, tries, methods, (), least=CANCELLED)
    for what, tries in values.other_integers(draw):
        yield Variation(what, tries, EXACT)


def _of_block(draw: Draw, length: int, places: Places) -> Variation:
    """Return a length of whole blocks, which is even, or else one more than the given
    length: of those that are tried otherwise, most are odd and end within a block."""
    tensors = is_torch(draw.case.inputs[draw.first])
    block = BLOCK if tensors else BLOCK_OF_ARRAYS
    tries = draw.tries(places, length + 1)
    what = f"length {length + 1} in place of {length}"
    if length != block and draw.most_elements(places, block) <= FEW:
        tries = (*draw.tries(places, block), *tries)
        what = f"length {block} or {length + 1} in place of {length}"
    return Variation(what, tries, EXACT)


def _in_half_precision(draw: Draw, rows: Places) -> Iterator[Variation]:
    """Yield many rows in the half precision that was given; otherwise in bfloat16, and
    only for tensors."""
    case, x = draw.case, draw.case.inputs[draw.first]
    short = {"float16", "bfloat16"} & {case.dtype}
    low = short.pop() if short else "bfloat16" if is_torch(x) else ""
    if low and x.ndim > 1 and draw.most_elements(rows, ROWS) <= MOST:
        many = tuple(in_dtype(value, low) for value in draw.resized(rows, ROWS))
        yield Variation(f"{ROWS} rows of {low}", (many,), ("precision",), ())


def _of_rows(draw: Draw, rows: Places) -> Iterator[Variation]:
    """Yield an empty batch, and so many rows that their elements exceed 65,536."""
    case = draw.case
    length = case.inputs[rows[0][0]].shape[0]
    if draw.declared or any(_takes(case, at) for at in draw.tries(rows, length + 3)):
        yield Variation(EMPTY, draw.tries(rows, 0), ("contract",), ())
    elements = sum(math.prod(case.inputs[at].shape) for at, _ in rows)
    many = MANY * length // elements + LONGER
    if many > ROWS and draw.most_elements(rows, many) <= MOST:
        tries = draw.tries(rows, many)
        if _cost_by_row(draw, rows):
            what = f"{many:,} rows in place of {length}"
            yield Variation(what, tries, ("autograd", "pytorch"))


def _cost_by_row(draw: Draw, rows: Places) -> bool:
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


def _of_integers(draw: Draw) -> Iterator[Variation]:
    """Yield a mask with a row of only False or only True, and integers that include the
    one that an option says to ignore."""
    case = draw.case
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
                yield Variation(f"a row of {filled} in {names[at]}", tries)
            continue
        for option in IGNORED & {*options}:
            ignored = options[option]
            if type(ignored) is int and values.size > 1:
                other = values.copy()
                other.reshape(-1)[-1] = ignored
                tries = (draw.replaced(at, other),)
                yield Variation(f"{option} = {ignored} in {names[at]}", tries)


def _takes(case: Case, inputs: Inputs) -> bool:
    try:
        case.subject.forward(*case.elsewhere(inputs).given())
    except Exception:
        return False
    return True
