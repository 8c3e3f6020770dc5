"""Name the inputs of other shapes and values at which a check is repeated.

Some gradient bugs of public projects show only at such inputs: with one more axis, with
different lengths where two were equal, beyond a kernel's block, in a row of zeros, far
from 0, at ties, or in many rows of half precision. The page "Gradient bugs that
happened" counts them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from backpass.contract.arrays import is_array
from backpass.contract.shapes import Shapes
from backpass.verify.case import Case, Inputs
from backpass.verify.convert import in_dtype, is_floating, is_torch, to_numpy
from backpass.verify.vary import kinds
from backpass.verify.vary.draws import Draw, Places
from backpass.verify.vary.work import lines

LONGER = 37  # added to a length: odd, so that the sum is not a multiple of a block
# Longer than the blocks into which kernels cut the rows, and the elements of one row.
ROWS, ROW = 256 + LONGER, 1024 + LONGER
TIMES = 20
DEEPER, EMPTY = "one more leading axis", "no rows"
MOST = 1 << 20  # elements of a varied input, at most
MANY = 1 << 17  # elements of many rows: more than 65,536
# Options that name an integer without a gradient.
IGNORED = {"ignore_index", "ignore", "ignored", "padding_idx", "pad_id", "pad"}
# Methods that compare element by element. Differences run only if none of them gave a
# verdict.
COMPARING = ("contract", "autograd", "pytorch", "precision")
DIFFERENCES = ("finite_difference",)


@dataclass(frozen=True)
class Variation:
    """A variation: its description, inputs to try, and the methods to run.

    The first inputs that forward accepts are used. The methods of ``otherwise`` run if
    those of ``methods`` gave no verdict on a gradient. ``kind`` decides whether it runs
    by default.
    """

    what: str
    tries: tuple[Inputs, ...]
    methods: tuple[str, ...] = COMPARING
    otherwise: tuple[str, ...] = DIFFERENCES
    kind: str = kinds.OTHER


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


def _deeper(draw: Draw) -> Variation:
    """Return the inputs with one more leading axis: those with the most axes, the first
    with a gradient, or all."""
    inputs = draw.case.inputs
    arrays = [at for at, value in enumerate(inputs) if is_array(value)]
    most = max(inputs[at].ndim for at in arrays)
    deepest = [at for at in arrays if inputs[at].ndim == most]
    some = (deepest, [draw.first], arrays)
    tries = tuple(draw.deeper(positions) for positions in some)
    return Variation(DEEPER, tries, kind=kinds.AXIS)


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
            yield Variation(what, tries, kind=kinds.APART)
    # Length 1 may be broadcast where no other length fits.
    if declared or any(_takes(case, at) for at in draw.tries(places, length + 3)):
        # Not element by element: in a row of one, normalised parts cancel.
        what, methods = f"length 1 in place of {length}", ("contract", *DIFFERENCES)
        yield Variation(what, (draw.resized(places, 1),), methods, kind=kinds.ONE)
    last = any(axis == case.inputs[at].ndim - 1 for at, axis in places)
    longer = ROW if last else ROWS
    for long, kind in (
        (longer, kinds.LONGER),
        (_multiple(length, longer), kinds.MULTIPLE),
    ):
        if length < long and draw.most_elements(places, long) <= MOST:
            what = f"length {long} in place of {length}"
            yield Variation(what, draw.tries(places, long), kind=kind)


def _multiple(length: int, least: int) -> int:
    """Return the first odd multiple of a length that is not below ``least``. A function
    that needs pairs or groups within the length finds them in it too."""
    times = -(-least // length)
    return length * (times + 1 - times % 2)


def _of_values(draw: Draw) -> Iterator[Variation]:
    """Yield the first input far from 0, with a row of zeros, and with ties."""
    case, first, name = draw.case, draw.first, draw.name(draw.first)
    x = case.float64[first]
    exact = case.dtype in ("float64", "float32")  # half precision rounds more there
    around_zero = exact and x.size > 0 and x.min() < 0 < x.max()
    # A gradient that is 0 everywhere is that of a step function, which may jump at 0.
    steps = case.subject.input_names[first] in case.subject.zero_gradients
    # Probabilities, cosines and the like end at 1.
    far = around_zero and np.abs(x).max() > 1
    tries = (draw.replaced(first, x * TIMES),)
    kind = kinds.FAR if far else kinds.OTHER
    yield Variation(f"{name} × {TIMES}", tries, kind=kind)
    if x.ndim and x.shape[0] > 1:
        zero = x.copy()
        zero.reshape(-1, x.shape[-1])[0] = 0.0
        tries = (draw.replaced(first, zero),)
        kind = kinds.ZEROS if around_zero and not steps else kinds.OTHER
        yield Variation(f"a row of zeros in {name}", tries, kind=kind)
    tied = np.where(np.isfinite(x), np.round(2 * x) / 2, x)
    tied = np.clip(tied, x.min(), x.max()) if x.size else tied
    tries = (draw.replaced(first, tied),)
    kind = kinds.OTHER if steps else kinds.TIES
    yield Variation(f"ties in {name}", tries, DIFFERENCES, (), kind)


def _in_half_precision(draw: Draw, rows: Places) -> Iterator[Variation]:
    """Yield many rows in the half precision that was given; otherwise in bfloat16, and
    only for tensors."""
    case, x = draw.case, draw.case.inputs[draw.first]
    short = {"float16", "bfloat16"} & {case.dtype}
    low = short.pop() if short else "bfloat16" if is_torch(x) else ""
    if low and x.ndim > 1 and draw.most_elements(rows, ROWS) <= MOST:
        many = tuple(in_dtype(value, low) for value in draw.resized(rows, ROWS))
        what = f"{ROWS} rows of {low}"
        yield Variation(what, (many,), ("precision",), (), kinds.HALF)


def _of_rows(draw: Draw, rows: Places) -> Iterator[Variation]:
    """Yield an empty batch, and so many rows that their elements exceed 65,536."""
    case = draw.case
    length = case.inputs[rows[0][0]].shape[0]
    if draw.declared or any(_takes(case, at) for at in draw.tries(rows, length + 3)):
        yield Variation(EMPTY, draw.tries(rows, 0), ("contract",), (), kinds.EMPTY)
    elements = sum(math.prod(case.inputs[at].shape) for at, _ in rows)
    many = MANY * length // elements + LONGER
    if many > ROWS and draw.most_elements(rows, many) <= MOST:
        tries = draw.tries(rows, many)
        if _cost_by_row(draw, rows):
            what = f"{many:,} rows in place of {length}"
            yield Variation(what, tries, ("autograd", "pytorch"), kind=kinds.MANY)


def _cost_by_row(draw: Draw, rows: Places) -> bool:
    """Whether the time of many rows grows at most as their number: each row of y
    depends on its own row of the inputs alone, and no Python loop runs over them."""
    case = draw.case
    whole = {at for at, _ in rows}
    if any(axis for _, axis in rows):  # y may have both axes, and rows² elements
        return False

    def rows_of(part: slice) -> tuple[np.ndarray, int]:
        inputs = (x[part] if at in whole else x for at, x in enumerate(case.given()))
        (y, _), ran = lines(case.subject.forward, *inputs)
        return to_numpy(y), ran

    try:
        y, ran = rows_of(slice(None))
        for part in (slice(1, None), slice(None, -1)):  # a causal row uses earlier rows
            fewer, ran_of_fewer = rows_of(part)
            same = fewer.shape == y[part].shape and np.allclose(fewer, y[part])
            if not same or ran != ran_of_fewer:
                return False
    except Exception:
        return False
    return True


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
                what = f"a row of {filled} in {names[at]}"
                yield Variation(what, tries, kind=kinds.MASK)
            continue
        for option in IGNORED & {*options}:
            ignored = options[option]
            if type(ignored) is int and values.size > 1:
                other = values.copy()
                other.reshape(-1)[-1] = ignored
                tries = (draw.replaced(at, other),)
                what = f"{option} = {ignored} in {names[at]}"
                yield Variation(what, tries, kind=kinds.IGNORED)


def _takes(case: Case, inputs: Inputs) -> bool:
    try:
        case.subject.forward(*case.elsewhere(inputs).given())
    except Exception:
        return False
    return True
