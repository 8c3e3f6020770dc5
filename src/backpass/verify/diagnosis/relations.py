"""The hypotheses of a diagnosis.

Each hypothesis yields guesses, or a diagnosis that needs no test. The first guess that
the numbers support is the diagnosis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from backpass.verify.diagnosis.evidence import Diagnosis, Guess, Pair
from backpass.verify.diagnosis.missing import missing_term
from backpass.verify.diagnosis.named import ACCURACY, COARSEST, name_number
from backpass.verify.diagnosis.places import (
    index_text,
    largest_errors,
    number_text,
    numbers_apart,
    place,
    structured,
)
from backpass.verify.diagnosis.terms import broadcast, matrix_products

LONGEST_AXIS = 256  # along which permutations are searched for
MOST_AXES = 4  # of an array whose axes are permuted

Guesses = Iterator[Guess | Diagnosis]


def first(
    hypotheses: Sequence[Callable[[Pair], Guesses]], pair: Pair
) -> Diagnosis | None:
    """Return the first diagnosis that holds, or None."""
    for hypothesis in pair.clock.within(hypotheses):
        for guess in hypothesis(pair):
            if isinstance(guess, Diagnosis):
                return guess
            if pair.explained(guess.target, guess.prediction, guess.free, guess.tried):
                return Diagnosis(guess.kind, guess.sentence)
    return None


# Where the shapes differ.


def missing_sum(pair: Pair) -> Guesses:
    """The reference is got summed over some axes."""
    sums = ((axes, pair.got.sum(axis=axes)) for axes in _subsets(pair.got.ndim))
    fitting = [(axes, of) for axes, of in sums if of.size == pair.reference.size]
    for axes, of in fitting:
        says = f"{pair.shapes}: a sum over {_axes(axes)} is missing"
        summed = of.reshape(pair.reference.shape)
        yield Guess("missing sum", says, pair.reference, summed)
    if fitting:
        says = f"{pair.shapes}, but no sum of got is the reference"
        yield Diagnosis("shape", says)


def sum_too_many(pair: Pair) -> Guesses:
    """Got is the reference summed or averaged over some axes."""
    x = pair.reference
    for axes in _subsets(x.ndim):
        for what, of in ("sum", x.sum(axis=axes)), ("mean", x.mean(axis=axes)):
            if of.size == pair.got.size:
                says = (
                    f"{pair.shapes}: got is the reference's {what} over {_axes(axes)}"
                )
                of = of.reshape(pair.got.shape)
                yield Guess("sum too many", says, pair.got, of)


def other_shape(pair: Pair) -> Guesses:
    """Got has the reference's elements, transposed or reshaped."""
    x = pair.reference
    says = f"{pair.shapes}: got is the reference transposed"
    for order in _orders(x):
        yield Guess("transpose", says, pair.got, x.transpose(order))
    if pair.got.size == x.size:
        says = f"{pair.shapes}: the elements are right, only the shape is wrong"
        yield Guess("shape", says, x, pair.got.reshape(x.shape))


# Where the shapes are the same.


def zero(pair: Pair) -> Guesses:
    """Got or the reference is 0."""
    if not pair.reference.any():
        says = f"the reference is 0, but got is not: {largest_errors(pair)}"
        yield Diagnosis("zero", says)
    elif not pair.got.any():
        yield Diagnosis("zero", "got is 0, but the reference is not")


def constant_ratio(pair: Pair) -> Guesses:
    """Got is a multiple of the reference."""
    x, ratio = pair.reference, _ratio(pair)
    accuracy = min(max(ACCURACY, pair.accuracy), COARSEST)
    if named := name_number(ratio, pair.lengths, pair.options, accuracy):
        kind, says = "constant ratio", f"got = {named.text} × reference{named.note}"
        if named.value == -1:
            kind, says = "sign", "the sign is wrong: got = −reference"
        tried = 2 * (len(pair.lengths) + len(pair.options)) + 8
        yield Guess(kind, says, pair.got, named.value * x, tried)
    says = f"got = {number_text(ratio, 6)} × reference"
    yield Guess("constant ratio", says, pair.got, ratio * x, free=1)


def some_signs(pair: Pair) -> Guesses:
    """Got has the wrong sign wherever it is wrong."""
    if pair.explained(np.where(pair.wrong, -pair.got, pair.got), pair.reference):
        says = f"the sign is wrong at {place(pair.wrong, pair)}"
        yield Diagnosis("some signs", says)


def arranged(pair: Pair) -> Guesses:
    """Got is the reference transposed, or permuted along an axis."""
    x = pair.reference
    for order in _orders(x):
        if order != tuple(range(x.ndim)):
            axes = "" if x.ndim == 2 else f" (its axes in the order {list(order)})"
            says = f"got is the reference transposed{axes}"
            yield Guess("transpose", says, pair.got, x.transpose(order))
    for axis in range(x.ndim):
        if places := _permutation(pair, axis):
            says = f"along axis {axis} got is the reference {_how_permuted(places)}"
            yield Guess("permuted", says, pair.got, np.take(x, places, axis))


def reshaped(pair: Pair) -> Guesses:
    """Got is reshaped where two axes should have been swapped, as heads and rows are
    where heads are split or merged."""
    x = pair.reference
    width = x.shape[-1] if x.ndim >= 2 else 0
    pieces = [n for n in range(2, width) if width % n == 0]
    tried = math.comb(x.ndim, 2) + len(pieces)
    for one, other in itertools.combinations(range(x.ndim), 2):
        says = f"got is reshaped where axes {one} and {other} should be swapped"
        swapped = np.swapaxes(x, one, other).reshape(x.shape)
        yield Guess("reshape", says, pair.got, swapped, tried)
    for n in pieces:
        says = (
            f"got is reshaped where the {n} pieces of axis {x.ndim - 1} should be "
            f"swapped with axis {x.ndim - 2}"
        )
        cut = x.reshape(*x.shape[:-1], n, -1)  # heads side by side
        swapped = np.swapaxes(cut, -3, -2).reshape(x.shape)
        yield Guess("reshape", says, pair.got, swapped, tried)


def summed(pair: Pair) -> Guesses:
    """Got is the reference's sum or mean over an axis, repeated, or its running sum."""
    x = pair.reference
    for axis, length in enumerate(x.shape):
        total = np.broadcast_to(x.sum(axis=axis, keepdims=True), x.shape)
        running = np.cumsum(x, axis)
        repeated = f"of the reference over axis {axis}, repeated along it"
        along = f"the running sum of the reference along axis {axis}"
        for what, value in (
            (f"the sum {repeated}", total),
            (f"the mean {repeated}", total / length),
            (along, running),
            (f"{along}, from its end", total - running + x),
        ):
            yield Guess("summed", f"got is {what}", pair.got, value)


def one_place(pair: Pair) -> Guesses:
    """Got is wrong only at one element, in a few slices or in a triangle, and is 0 or a
    multiple of the reference there, or the reference is 0."""
    where = _one_place(pair)
    if where is None:
        return
    wrong = pair.wrong
    reference, got = pair.reference[wrong], pair.got[wrong]
    there = Pair(reference, got, pair.terms, None, pair.accuracy)
    if relation := first((zero, constant_ratio), there):
        how = str(relation)
        if not reference.any():
            how = f"the reference is 0, but got is not: {_at_first(pair)}"
        yield Diagnosis("one place", f"wrong only at {where}; there: {how}")


def one_place_alone(pair: Pair) -> Guesses:
    """Got is wrong only at one element, in a few slices or in a triangle."""
    if where := _one_place(pair):
        yield Diagnosis("one place", f"wrong only at {where}; there: {_at_first(pair)}")


def _one_place(pair: Pair) -> str | None:
    wrong = pair.wrong
    where = structured(wrong) if wrong.size >= 4 else None
    if where is None or (wrong.mean() > 0.5 and not where.startswith("the entries")):
        return None
    return where


def _at_first(pair: Pair) -> str:
    """Return both numbers at the first wrong element."""
    index = tuple(np.argwhere(pair.wrong)[0])
    got, expected = numbers_apart(pair.got[index], pair.reference[index])
    return f"got {got} at {index_text(index)}, expected {expected}"


def some_zero(pair: Pair) -> Guesses:
    """Got is 0 wherever it is wrong."""
    if not pair.got[pair.wrong].any():
        says = f"got is 0 but should not be at {place(pair.wrong, pair)}"
        yield Diagnosis("some zero", says)


def another_product(pair: Pair) -> Guesses:
    """Got and the reference are two different matrix products of the terms."""
    products = list(matrix_products(pair.terms, pair.reference.shape))

    def named(target: np.ndarray) -> str | None:
        explained = (
            text
            for text, value in products
            if pair.explained(target, value, tried=len(products))
        )
        return next(explained, None)

    if (got := named(pair.got)) and (reference := named(pair.reference)):
        says = f"got is {got}; the reference is {reference}"
        yield Diagnosis("another product", says)


def missing_factor(pair: Pair) -> Guesses:
    """The reference is got times a term, or got is the reference times a term."""
    index = pair.dictionary.index
    factors = [
        (term, value)
        for single in (pair.dictionary.products, pair.dictionary.sums)
        for term, value in zip(single.terms, single.values, strict=True)
        if term.factors <= 2
    ]
    factors.sort(key=lambda entry: entry[0].factors)
    for term, value in pair.clock.within(factors):
        for kind, less, more, says in (
            (
                "missing factor",
                pair.got,
                pair.reference,
                f"reference = got × {term}: the factor is missing",
            ),
            (
                "factor too many",
                pair.reference,
                pair.got,
                f"got = reference × {term}: one factor too many",
            ),
        ):
            off = np.ravel(less[index]) * value - np.ravel(more[index])
            if np.abs(off).max() <= pair.allowed:
                yield Guess(kind, says, more, less * term.value, 2 * len(factors))


def without_dy(pair: Pair) -> Guesses:
    """Got is backward's result for a cotangent of zeros.

    It may be a multiple of the reference all the same, for the dy that was given.
    """
    dy = pair.terms.get("dy")
    of_zeros = None if dy is None else pair.result_for(np.zeros_like(dy))
    if dy is None or of_zeros is None:
        return
    says = "got does not depend on dy"
    if pair.explained(pair.got, of_zeros):
        says = _with_its_ratio(pair, dy, says)
    yield Guess("without dy", says, pair.got, of_zeros)


def _with_its_ratio(pair: Pair, dy: np.ndarray, says: str) -> str:
    """Return the sentence for a gradient that does not depend on dy. If the gradient is
    a multiple of the reference, the sentence says so.

    The dy of a loss is one number, which is then a factor of the multiple: without dy,
    a gradient that is otherwise right is the reference for dy = 1.
    """
    ratio = first((constant_ratio,), pair)
    if ratio is None:
        return says
    if dy.size == 1:
        if np.abs(pair.got - pair.reference / dy.item()).max() <= pair.allowed:
            return says
        of_one = name_number(_ratio(pair) * dy.item(), pair.lengths)
        if of_one and not name_number(_ratio(pair), pair.lengths):
            return f"{says}; for dy = 1, got = {of_one.text} × reference{of_one.note}"
    return f"{ratio}, and {says}"


def _ratio(pair: Pair) -> float:
    """Return the multiple of the reference that is nearest to got."""
    x = pair.reference
    return float(np.vdot(x, pair.got) / np.vdot(x, x))


def dropped_before(pair: Pair) -> Guesses:
    """The reference is backward's result for dy multiplied or divided by a term, by 1
    plus a term, or by their ratio."""
    dy = pair.terms.get("dy")
    if pair.backward is None or dy is None:
        return
    factors = [
        (factor, says)
        for name, value in pair.terms.items()
        if name != "dy" and broadcast(value.shape, dy.shape) == dy.shape
        for factor, says in _factors(name, value)
    ]
    for factor, says in pair.clock.within(factors):
        if (again := pair.result_for(dy * factor)) is not None:
            says = f"reference = backward({says}"
            yield Guess("missing factor", says, pair.reference, again, len(factors))


def _factors(name: str, value: np.ndarray) -> Iterator[tuple[np.ndarray, str]]:
    """Yield factors that dy may lack or have once too often, each with the rest of the
    sentence."""
    more = 1 + value
    yield value, f"dy × {name}): the factor {name} is missing"
    yield more, f"dy × (1 + {name})): the factor 1 + {name} is missing"
    if value.all():
        yield 1 / value, f"dy / {name}): one factor {name} too many"
        says = f"dy × (1 + {name}) / {name}): got uses {name} where 1 + {name} is meant"
        yield more / value, says
    if more.all():
        yield 1 / more, f"dy / (1 + {name})): one factor 1 + {name} too many"
        says = f"dy × {name} / (1 + {name})): got uses 1 + {name} where {name} is meant"
        yield value / more, says


def one_slice(pair: Pair) -> Guesses:
    """Got is backward's result for one slice of dy, found by bisection. The rest of dy
    is not used."""
    dy = pair.terms.get("dy")
    if pair.backward is None or dy is None:
        return
    for axis, length in enumerate(dy.shape):
        along = np.arange(length).reshape(
            [-1 if a == axis else 1 for a in range(dy.ndim)]
        )

        def is_all_of_dy(start: int, end: int, along=along, tried=dy.ndim * length):
            part = (start <= along) & (along < end)
            again = (
                None if pair.clock.over() else pair.result_for(np.where(part, dy, 0.0))
            )
            return again is not None and pair.explained(pair.got, again, tried=tried)

        low, high = 0, length
        while high - low > 1:
            middle = (low + high) // 2
            if is_all_of_dy(low, middle):
                high = middle
            elif is_all_of_dy(middle, high):
                low = middle
            else:
                break
        if high - low == 1 < length:
            kept = pair.reference.shape[: axis + 1] == dy.shape[: axis + 1]
            says = (
                "the rest of dy is not used"
                if kept
                else f"the sum over axis {axis} of dy is missing"
            )
            where = f"backward(dy at position {low} of axis {axis})"
            yield Diagnosis("missing sum", f"got = {where}: {says}")


def of_another_input(pair: Pair) -> Guesses:
    """Got is the gradient of a different input, or its negative."""
    for name, other in pair.others.items():
        for sign, value in (("", other), ("minus ", -other)):
            says = f"got is {sign}the reference of {name}"
            yield Guess("another gradient", says, pair.got, value, 2 * len(pair.others))


def of_a_variant(pair: Pair) -> Guesses:
    """The reference is what backward returns with one of its arguments changed."""
    for tried, (says, value) in enumerate(pair.clock.within(pair.variants), 1):
        guess = Guess(
            "variant", f"reference = {says}", pair.reference, value, 2 * tried
        )
        if "negated" in says and pair.explained(*guess[2:4], tried=guess.tried):
            yield from missing_term(pair)  # names the term with the wrong sign
        yield guess


def of_outputs(pair: Pair) -> Guesses:
    """Got is forward's gradient for other cotangents of several outputs."""
    for tried, (says, got, value) in enumerate(pair.clock.within(pair.outputs), 1):
        if value is not None:
            yield Guess("cotangent", says, got, value, 2 * tried)


def of_a_term(pair: Pair) -> Guesses:
    """Got is a multiple of one term, and the reference is not."""
    for term in pair.clock.within(pair.dictionary.near(pair.got, 2 * pair.allowed)):
        value = term.value
        if not value.any():
            continue
        weight = float(np.vdot(value, pair.got) / np.vdot(value, value))
        named = name_number(weight, pair.lengths)
        if named is None:
            continue
        times = {"1": "", "−1": "−"}.get(named.text, f"{named.text}·")
        says = f"got is {times}{term}, and the reference is not a multiple of that"
        tried = len(pair.dictionary)
        yield Guess("a term", says, pair.got, named.value * value, tried)


def of_a_rerun(pair: Pair) -> Guesses:
    """Got is forward's gradient under a change, for a different cotangent."""
    for tried, (says, got, value) in enumerate(pair.clock.within(pair.reruns), 1):
        if value is not None:
            yield Guess("rerun", f"got is {says}", got, value, 2 * tried)


def _axes(axes: tuple[int, ...]) -> str:
    return f"axis {axes[0]}" if len(axes) == 1 else f"axes {', '.join(map(str, axes))}"


def _orders(x: np.ndarray) -> Iterator[tuple[int, ...]]:
    """Return every order of the axes, if they are few."""
    return itertools.permutations(range(x.ndim)) if x.ndim <= MOST_AXES else iter(())


def _subsets(count: int) -> Iterator[tuple[int, ...]]:
    """Return the non-empty subsets of the axes, small ones first."""
    return itertools.chain.from_iterable(
        itertools.combinations(range(count), k) for k in range(1, count + 1)
    )


def _permutation(pair: Pair, axis: int) -> list[int] | None:
    """Return, for each slice of got along the axis, the position of the equal slice of
    the reference; None if these are not a permutation."""
    length = pair.reference.shape[axis]
    if not 1 < length <= LONGEST_AXIS:
        return None
    rows, ours = (
        np.moveaxis(a, axis, 0).reshape(length, -1) for a in (pair.reference, pair.got)
    )
    order = []
    for row in ours:
        equal = np.abs(rows - row).max(axis=1, initial=0.0) <= pair.allowed
        if equal.sum() != 1:
            return None
        order.append(int(equal.argmax()))
    in_place = list(range(length))
    return order if sorted(order) == in_place != order else None


def _how_permuted(order: list[int]) -> str:
    length = len(order)
    if order == list(range(length))[::-1] and length > 2:
        return "reversed"
    for shift in range(1, length):
        if order == [(i - shift) % length for i in range(length)]:
            back = length - shift
            return f"shifted by {shift}" if shift <= back else f"shifted by −{back}"
    moved = [i for i, j in enumerate(order) if i != j]
    if len(moved) == 2:
        return f"with {moved[0]} and {moved[1]} exchanged"
    return f"permuted: {order}"
