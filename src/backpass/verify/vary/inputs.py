"""Name the inputs of other shapes and values at which a check is repeated.

Some gradient bugs of public projects show only at such inputs: with one more axis, with
different lengths where two were equal, beyond a kernel's block, in a row of zeros, far
from 0, at ties, or in many rows of half precision. The page "Gradient bugs that
happened" counts them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from backpass.contract.arrays import is_array
from backpass.verify import domain
from backpass.verify.case import Case, Inputs
from backpass.verify.convert import (
    in_dtype,
    is_floating,
    is_torch,
    to_kind_of,
    to_numpy,
)
from backpass.verify.vary import axes, kinds, values
from backpass.verify.vary.draws import Draw, Places
from backpass.verify.vary.masks import other_masks
from backpass.verify.vary.work import lines

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
SMALL = 64  # elements
SUMS = "if they always sum to 1, backward may use it"
# Methods that compare element by element. Differences run only if none of them gave a
# verdict.
COMPARING = ("contract", "autograd", "pytorch", "precision")
EXACT = ("contract", "autograd", "pytorch")
DIFFERENCES = ("finite_difference",)


@dataclass(frozen=True)
class Variation:
    """A variation: its description, inputs to try, and the methods to run.

    The first inputs that forward accepts are used; there are none if the declaration
    excludes the variation. The methods of ``otherwise`` run if
    those of ``methods`` gave no verdict on a gradient. ``kind`` decides whether it runs
    by default. Errors up to ``least`` do not count. With ``shapes_as_given``, an object
    without a declaration need not return gradients of the right shape. ``hint`` says
    what excludes the variation.
    """

    what: str
    tries: tuple[Inputs, ...]
    methods: tuple[str, ...] = COMPARING
    otherwise: tuple[str, ...] = DIFFERENCES
    kind: str = kinds.OTHER
    least: float = 0.0
    shapes_as_given: bool = False
    hint: str = ""


def variations(case: Case, chosen: Collection[str]) -> Iterator[Variation]:
    """Yield the variations of the chosen kinds. One that the declaration excludes has
    no inputs to try."""
    names = case.subject.input_names
    shapes = case.subject.shapes_for(case.inputs)
    for variation in _every_variation(case, chosen):
        if variation.kind not in chosen:
            continue
        if shapes is None:
            yield variation
            continue
        tries = tuple(
            _away(case, inputs)
            for inputs in variation.tries
            if domain.fits(shapes, dict(zip(names, inputs, strict=False)))
        )
        yield replace(variation, tries=tries)


def _away(case: Case, inputs: Inputs) -> Inputs:
    """Return the inputs with their values moved away from declared kinks."""
    shapes = case.subject.shapes
    kinks = dict(shapes.kinks) if shapes else {}
    return tuple(
        to_kind_of(value, domain.away(shapes, name, to_numpy(value)))
        if name in kinks and is_floating(value)
        else value
        for name, value in zip(case.subject.input_names, inputs, strict=True)
    )


def _every_variation(case: Case, chosen: Collection[str]) -> Iterator[Variation]:
    """Yield the variations; groups that take forward's time only if they are chosen."""
    draw = Draw(case)
    for what, tries in values.unequal(draw):  # first, while there is work left
        yield Variation(what, tries, kind=kinds.UNEQUAL)
    yield _deeper(draw)
    for places in draw.lengths():
        if not draw.is_width_of_table(places):
            yield from _of_length(draw, places)
    if kinds.SQUARE in chosen and not draw.declared:
        for what, tries in axes.of_square(draw):
            yield Variation(what, tries, EXACT, kind=kinds.SQUARE, shapes_as_given=True)
    yield from _of_values(draw)
    if rows := draw.rows():
        yield from _of_rows(draw, rows, many=kinds.MANY in chosen)
    for what, tries, kind, hint in other_masks(draw):
        yield Variation(what, tries, kind=kind, hint=hint)
    yield from of_integers(draw)
    if rows:
        yield from _in_half_precision(draw, rows)
    if kinds.AXIS in chosen:
        yield from _of_axes(draw)
    if kinds.MANY in chosen:
        for what, tries in axes.long_row(draw, MOST):
            methods = ("autograd", "pytorch")
            yield Variation(what, tries, methods, kind=kinds.MANY, least=ROUNDED)
    if kinds.OTHER in chosen:
        yield from _of_other_values(draw)
    for name, axis, length in draw.fixed():
        what = f"a length other than {length} along axis {axis} of {name}"
        yield Variation(what, (), kind=kinds.LONGER)


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


def _of_length(draw: Draw, places: Places) -> Iterator[Variation]:
    """Yield one input's length changed alone, length 1, and a long axis."""
    case, declared, length = draw.case, draw.declared, places.length
    inputs = dict.fromkeys(at for at, _ in places)
    for alone in inputs if len(inputs) > 1 else ():
        changed = places.of_input(alone)
        tries = tuple(draw.resized(changed, n) for n in (length + 3, length - 1))
        # In most functions they have to be equal. Without a declaration, forward must
        # accept both.
        if (all if not declared else any)(_takes(case, at) for at in tries):
            of = draw.name(alone)
            what = f"a length other than {length} in {of} alone"
            yield Variation(what, tries, kind=kinds.APART, shapes_as_given=True)
    # Length 1 may be broadcast where no other length fits.
    if declared or any(_takes(case, at) for at in draw.tries(places, length + 3)):
        # Not element by element: in a row of one, normalised parts cancel.
        one = draw.fit(places, 1)
        what, methods = f"length {one} in place of {length}", ("contract", *DIFFERENCES)
        if one < length:
            tries = (draw.resized(places, one),)
            yield Variation(what, tries, methods, kind=kinds.ONE)
    last = any(axis == case.inputs[at].ndim - 1 for at, axis in places)
    longer = ROW if last else ROWS
    for long, kind in (
        (draw.fit(places, longer), kinds.LONGER),
        (_multiple(length, longer), kinds.MULTIPLE),
    ):
        if length < long and draw.most_elements(places, long) <= MOST:
            what = f"length {long} in place of {length}"
            yield Variation(what, draw.tries(places, long), kind=kind)
    # Without a declaration, code may be made for groups within the length.
    short = draw.fit(places, length + 3) if declared else 3 * length
    what = f"length {short} in place of {length}"
    yield Variation(what, draw.tries(places, short), kind=kinds.SHORT)


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
    what, other = values.farther(x, name, TIMES)
    kind = kinds.FAR if far else kinds.OTHER
    yield Variation(what, (draw.replaced(first, other),), kind=kind)
    kink = domain.has_kink(case.subject.shapes, name, 0.0)
    # A function of positive numbers need not be defined at 0.
    one_sided = x.size > 0 and (x.min() > 0 or x.max() < 0) and not draw.declared
    if x.ndim and x.shape[0] > 1 and not one_sided:
        zero = x.copy()
        zero.reshape(-1, x.shape[-1])[0] = 0.0
        of_zeros: tuple[Inputs, ...] = () if kink else (draw.replaced(first, zero),)
        kind = kinds.ZEROS if around_zero and not steps else kinds.OTHER
        yield Variation(f"a row of zeros in {name}", of_zeros, kind=kind)
    # Of few elements, few are equal after rounding to halves.
    square = x.ndim == 2 and x.shape[0] == x.shape[1]  # which should not be singular
    step = 1.0 if x.size <= SMALL and not square else 0.5
    tied = np.where(np.isfinite(x), np.round(x / step) * step, x)
    tied = np.clip(tied, x.min(), x.max()) if x.size else tied
    tries = (draw.replaced(first, tied),)
    kind = kinds.OTHER if steps else kinds.TIES
    yield Variation(f"ties in {name}", tries, DIFFERENCES, (), kind)


def _of_axes(draw: Draw) -> Iterator[Variation]:
    """Yield an axis fewer, a longer one in place of length 1, and whole blocks."""
    changed = partial(Variation, methods=EXACT, kind=kinds.AXIS, shapes_as_given=True)
    if fewer := tuple(axes.an_axis_fewer(draw)):
        yield changed(FEWER, fewer)
    for what, tries in axes.lengthened(draw):
        yield changed(what, tries)
    for places in draw.lengths():
        if not draw.is_width_of_table(places):
            yield _of_block(draw, places)


def _of_other_values(draw: Draw) -> Iterator[Variation]:
    """Yield other signs, numbers close to 0, and other integers."""
    for what, tries in values.other_signs(draw):
        yield Variation(what, tries, EXACT)
    for what, tries in values.other_sums(draw):
        yield Variation(what, tries, EXACT, hint=SUMS)
    for what, tries in values.tiny(draw):
        methods = ("autograd", "pytorch", "complex_step")
        yield Variation(what, tries, methods, (), least=CANCELLED)
    for what, tries in values.other_integers(draw):
        yield Variation(what, tries, EXACT)


def _of_block(draw: Draw, places: Places) -> Variation:
    """Return a length of whole blocks, which is even, or else one more than the given
    length: of those that are tried otherwise, most are odd and end within a block."""
    tensors, length = is_torch(draw.case.inputs[draw.first]), places.length
    block = draw.fit(places, BLOCK if tensors else BLOCK_OF_ARRAYS)
    tries = draw.tries(places, length + 1)
    what = f"length {length + 1} in place of {length}"
    if length != block and draw.most_elements(places, block) <= FEW:
        tries = (*draw.tries(places, block), *tries)
        what = f"length {block} or {length + 1} in place of {length}"
    return Variation(what, tries, EXACT, kind=kinds.LONGER)


def _in_half_precision(draw: Draw, rows: Places) -> Iterator[Variation]:
    """Yield many rows in each half precision that is declared. Without a clause, it is
    the one that was given; otherwise bfloat16, and only for tensors."""
    case, x = draw.case, draw.case.inputs[draw.first]
    short = {"float16", "bfloat16"} & {case.dtype}
    low = [*short] or ["bfloat16"] * is_torch(x)
    if case.subject.shapes and (declared := case.subject.shapes.dtypes):
        # NumPy has no bfloat16.
        halves = ("float16", "bfloat16") if is_torch(x) else ("float16",)
        low = [dtype for dtype in declared if dtype in halves]
    for dtype in low if x.ndim > 1 and draw.most_elements(rows, ROWS) <= MOST else ():
        many = tuple(in_dtype(x, dtype) for x in draw.resized(rows, ROWS))
        what = f"{ROWS} rows of {dtype}"
        yield Variation(what, (many,), ("precision",), (), kinds.HALF)


def _of_rows(draw: Draw, rows: Places, many: bool) -> Iterator[Variation]:
    """Yield an empty batch and, if wanted, so many rows that their elements exceed
    65,536."""
    case, length = draw.case, rows.length
    if draw.declared or any(_takes(case, at) for at in draw.tries(rows, length + 3)):
        yield Variation(EMPTY, draw.tries(rows, 0), ("contract",), (), kinds.NO_ROWS)
    elements = sum(math.prod(case.inputs[at].shape) for at, _ in rows)
    count = MANY * length // elements + LONGER
    if many and count > ROWS and draw.most_elements(rows, count) <= MOST:
        tries = draw.tries(rows, count)
        if _cost_by_row(draw, rows):
            what = f"{count:,} rows in place of {length}"
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


def of_integers(draw: Draw) -> Iterator[Variation]:
    """Yield integers that include a declared sentinel, or the one that an option says
    to ignore."""
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
        values, spec = to_numpy(value), draw.spec(at)
        for what, other in domain.with_sentinel(spec, values) if spec else ():
            tries = (draw.replaced(at, other),)
            yield Variation(what, tries, kind=kinds.IGNORED)
        for option in IGNORED & {*options} if values.dtype != bool else ():
            ignored = options[option]
            declared = spec is not None and ignored in spec.sentinels
            if type(ignored) is int and values.size > 1 and not declared:
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
