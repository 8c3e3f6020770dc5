"""The hypotheses of a diagnosis. Each returns None if it does not hold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from backpass.verify.diagnosis.evidence import Diagnosis, Pair
from backpass.verify.diagnosis.named import name_number
from backpass.verify.diagnosis.places import (
    index_text,
    largest_errors,
    number_text,
    place,
    structured,
)
from backpass.verify.diagnosis.terms import matrix_products

LONGEST_AXIS = 256  # along which permutations are searched for


def first(
    hypotheses: Sequence[Callable[[Pair], Diagnosis | None]], pair: Pair
) -> Diagnosis | None:
    """Return the first diagnosis that holds, or None."""
    tried = pair.clock.within(hypotheses)
    return next((found for hypothesis in tried if (found := hypothesis(pair))), None)


# Where the shapes differ.


def missing_sum(pair: Pair) -> Diagnosis | None:
    """The reference is got summed over some axes."""
    fits = False
    for axes in _subsets(pair.got.ndim):
        summed = pair.got.sum(axis=axes)
        if summed.size != pair.reference.size:
            continue
        which = _axes(axes)
        if pair.explained(pair.reference, summed.reshape(pair.reference.shape)):
            return Diagnosis(
                "missing sum", f"{pair.shapes}: a sum over {which} is missing"
            )
        fits = True
    return (
        Diagnosis(
            "shape", f"{pair.shapes}: a sum would fit the shape, but not the values"
        )
        if fits
        else None
    )


def sum_too_many(pair: Pair) -> Diagnosis | None:
    """Got is the reference summed or averaged over some axes."""
    for axes in _subsets(pair.reference.ndim):
        for what, value in (
            ("sum", pair.reference.sum(axis=axes)),
            ("mean", pair.reference.mean(axis=axes)),
        ):
            if value.size == pair.got.size and pair.explained(
                pair.got, value.reshape(pair.got.shape)
            ):
                which = _axes(axes)
                return Diagnosis(
                    "sum too many",
                    f"{pair.shapes}: got is the reference's {what} over {which}",
                )
    return None


def other_shape(pair: Pair) -> Diagnosis | None:
    """Got has the reference's elements, transposed or reshaped."""
    for order in (
        itertools.permutations(range(pair.reference.ndim))
        if pair.reference.ndim <= 4
        else ()
    ):
        if pair.explained(pair.got, pair.reference.transpose(order)):
            return Diagnosis(
                "transpose", f"{pair.shapes}: got is the reference transposed"
            )
    if pair.got.size == pair.reference.size and pair.explained(
        pair.reference, pair.got.reshape(pair.reference.shape)
    ):
        return Diagnosis(
            "shape", f"{pair.shapes}: the elements are right, only the shape is wrong"
        )
    return None


# Where the shapes are the same.


def zero(pair: Pair) -> Diagnosis | None:
    if not pair.reference.any():
        return Diagnosis(
            "zero", f"the reference is 0, but got is not: {largest_errors(pair)}"
        )
    return (
        None
        if pair.got.any()
        else Diagnosis("zero", "got is 0, but the reference is not")
    )


def constant_ratio(pair: Pair) -> Diagnosis | None:
    ratio = float(
        np.vdot(pair.reference, pair.got) / np.vdot(pair.reference, pair.reference)
    )
    named = name_number(ratio, pair.lengths)
    if named and pair.explained(
        pair.got, named.value * pair.reference, tried=2 * len(pair.lengths) + 8
    ):
        if named.value == -1:
            return Diagnosis("sign", "the sign is wrong: got = −reference")
        return Diagnosis(
            "constant ratio", f"got = {named.text} × reference{named.note}"
        )
    if pair.explained(pair.got, ratio * pair.reference, free=1):
        return Diagnosis("constant ratio", f"got = {number_text(ratio, 6)} × reference")
    return None


def some_signs(pair: Pair) -> Diagnosis | None:
    if not pair.explained(np.where(pair.wrong, -pair.got, pair.got), pair.reference):
        return None
    return Diagnosis("some signs", f"the sign is wrong at {place(pair.wrong, pair)}")


def arranged(pair: Pair) -> Diagnosis | None:
    """Got is the reference transposed, or permuted along an axis."""
    x = pair.reference
    for order in itertools.permutations(range(x.ndim)) if x.ndim <= 4 else ():
        if order != tuple(range(x.ndim)) and pair.explained(
            pair.got, x.transpose(order)
        ):
            axes = "" if x.ndim == 2 else f" (its axes in the order {list(order)})"
            return Diagnosis("transpose", f"got is the reference transposed{axes}")
    for axis in range(x.ndim):
        places = _permutation(pair, axis)
        if places is not None and pair.explained(pair.got, np.take(x, places, axis)):
            return Diagnosis(
                "permuted",
                f"along axis {axis} got is the reference {_how_permuted(places)}",
            )
    return None


def reshaped(pair: Pair) -> Diagnosis | None:
    """Got is reshaped where two axes should have been swapped, as heads and rows are
    where heads are split or merged."""
    x = pair.reference
    pieces = (
        [n for n in range(2, x.shape[-1]) if x.shape[-1] % n == 0]
        if x.ndim >= 2
        else []
    )
    tried = math.comb(x.ndim, 2) + len(pieces)
    for one, other in itertools.combinations(range(x.ndim), 2):
        if pair.explained(
            pair.got, np.swapaxes(x, one, other).reshape(x.shape), tried=tried
        ):
            return Diagnosis(
                "reshape",
                f"got is reshaped where axes {one} and {other} should be swapped",
            )
    for n in pieces:
        cut = x.reshape(*x.shape[:-1], n, -1)  # heads side by side
        if pair.explained(
            pair.got, np.swapaxes(cut, -3, -2).reshape(x.shape), tried=tried
        ):
            return Diagnosis(
                "reshape",
                f"got is reshaped where the {n} pieces of axis {x.ndim - 1} should be "
                f"swapped with axis {x.ndim - 2}",
            )
    return None


def summed(pair: Pair) -> Diagnosis | None:
    """Got is the reference's sum or mean over an axis, repeated, or its running sum."""
    x = pair.reference
    for axis in range(x.ndim):
        total = np.broadcast_to(x.sum(axis=axis, keepdims=True), x.shape)
        for what, value in (
            (
                f"the sum of the reference over axis {axis}, repeated along it",
                total,
            ),
            (
                f"the mean of the reference over axis {axis}, repeated along it",
                total / x.shape[axis],
            ),
            (f"the running sum of the reference along axis {axis}", np.cumsum(x, axis)),
            (
                f"the running sum of the reference along axis {axis}, from its end",
                total - np.cumsum(x, axis) + x,
            ),
        ):
            if pair.explained(pair.got, value):
                return Diagnosis("summed", f"got is {what}")
    return None


def one_place(pair: Pair) -> Diagnosis | None:
    """Got is wrong only at one element, in a few slices or in a triangle.

    The sentence says how it is wrong there.
    """
    place = structured(pair.wrong)
    triangle = place is not None and place.startswith("the entries")
    if (
        place is None
        or pair.wrong.size < 4
        or (pair.wrong.mean() > 0.5 and not triangle)
    ):
        return None
    there = Pair(
        pair.reference[pair.wrong],
        pair.got[pair.wrong],
        pair.terms,
        None,
        pair.accuracy,
    )
    relation = first((zero, constant_ratio), there)
    if relation is not None:
        how = str(relation)
    else:
        index = tuple(np.argwhere(pair.wrong)[0])
        got, expected = number_text(pair.got[index]), number_text(pair.reference[index])
        how = f"got {got} at {index_text(index)}, expected {expected}"
    return Diagnosis("one place", f"wrong only at {place}; there: {how}")


def some_zero(pair: Pair) -> Diagnosis | None:
    if pair.got[pair.wrong].any():
        return None
    return Diagnosis(
        "some zero", f"got is 0 but should not be at {place(pair.wrong, pair)}"
    )


def another_product(pair: Pair) -> Diagnosis | None:
    """Got and the reference are two different matrix products of the terms."""
    products = list(matrix_products(pair.terms, pair.reference.shape))
    named = [
        next(
            (
                text
                for text, value in products
                if pair.explained(target, value, tried=len(products))
            ),
            None,
        )
        for target in (pair.got, pair.reference)
    ]
    return (
        Diagnosis("another product", "got is {}; the reference is {}".format(*named))
        if all(named)
        else None
    )


def missing_factor(pair: Pair) -> Diagnosis | None:
    index = pair.dictionary.index
    got, reference = np.ravel(pair.got[index]), np.ravel(pair.reference[index])
    factors = [
        (term, value)
        for single in (pair.dictionary.products, pair.dictionary.sums)
        for term, value in zip(single.terms, single.values, strict=True)
        if term.factors <= 2
    ]
    for term, value in pair.clock.within(
        sorted(factors, key=lambda entry: entry[0].factors)
    ):
        if np.abs(got * value - reference).max() <= pair.allowed:
            if pair.explained(
                pair.reference, pair.got * term.value, tried=2 * len(factors)
            ):
                return Diagnosis(
                    "missing factor", f"reference = got × {term}: the factor is missing"
                )
        if np.abs(reference * value - got).max() <= pair.allowed:
            if pair.explained(
                pair.got, pair.reference * term.value, tried=2 * len(factors)
            ):
                return Diagnosis(
                    "factor too many", f"got = reference × {term}: one factor too many"
                )
    return None


def without_dy(pair: Pair) -> Diagnosis | None:
    """Got is backward's result for a cotangent of zeros."""
    if pair.backward is None or "dy" not in pair.terms:
        return None
    try:
        of_zeros = pair.backward(np.zeros_like(pair.terms["dy"]))
    except Exception:
        return None
    same = of_zeros is not None and pair.explained(pair.got, of_zeros)
    return Diagnosis("without dy", "got does not depend on dy") if same else None


def dropped_before(pair: Pair) -> Diagnosis | None:
    """The reference is backward's result for dy multiplied or divided by a term, by 1
    plus a term, or by their ratio."""
    dy = pair.terms.get("dy")
    if pair.backward is None or dy is None:
        return None
    factors = [
        (factor, says)
        for name, value in pair.terms.items()
        if name != "dy"
        for factor, says in _factors(name, value)
        if _broadcasts(factor, dy.shape)
    ]
    for factor, says in pair.clock.within(factors):
        again = _tried(pair.backward, dy * factor)
        if again is not None and pair.explained(
            pair.reference, again, tried=len(factors)
        ):
            return Diagnosis("missing factor", f"reference = backward({says}")
    return None


def _factors(name: str, value: np.ndarray) -> Iterator[tuple[np.ndarray, str]]:
    """Yield factors that dy may lack or have once too often, each with the rest of the
    sentence."""
    more = 1 + value
    yield value, f"dy × {name}): the factor {name} is missing"
    yield more, f"dy × (1 + {name})): the factor 1 + {name} is missing"
    if value.all():
        yield 1 / value, f"dy / {name}): one factor {name} too many"
        yield (
            more / value,
            f"dy × (1 + {name}) / {name}): got uses {name} where 1 + {name} is meant",
        )
    if more.all():
        yield 1 / more, f"dy / (1 + {name})): one factor 1 + {name} too many"
        yield (
            value / more,
            f"dy × {name} / (1 + {name})): got uses 1 + {name} where {name} is meant",
        )


def _broadcasts(value: np.ndarray, shape: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(value.shape, shape) == shape
    except ValueError:
        return False


def _tried(
    backward: Callable[[np.ndarray], np.ndarray | None], dy: np.ndarray
) -> np.ndarray | None:
    try:
        return backward(dy)
    except Exception:
        return None


def one_slice(pair: Pair) -> Diagnosis | None:
    """Got is backward's result for one slice of dy, found by bisection. The rest of dy
    is not used."""
    dy = pair.terms.get("dy")
    if pair.backward is None or dy is None:
        return None
    for axis, length in enumerate(dy.shape):
        along = _along(axis, dy.ndim, length)
        low, high = 0, length
        while high - low > 1:
            middle = (low + high) // 2
            for start, end in ((low, middle), (middle, high)):
                part = (start <= along) & (along < end)
                again = (
                    None
                    if pair.clock.over()
                    else _tried(pair.backward, np.where(part, dy, 0.0))
                )
                if again is not None and pair.explained(
                    pair.got, again, tried=dy.ndim * length
                ):
                    low, high = start, end
                    break
            else:
                break
        if high - low == 1 < length:
            kept = pair.reference.shape[: axis + 1] == dy.shape[: axis + 1]
            says = (
                "the rest of dy is not used"
                if kept
                else f"the sum over axis {axis} of dy is missing"
            )
            return Diagnosis(
                "missing sum",
                f"got = backward(dy at position {low} of axis {axis}): {says}",
            )
    return None


def of_another_input(pair: Pair) -> Diagnosis | None:
    """Got is the gradient of a different input, or its negative."""
    for name, other in pair.others.items():
        for sign, value in (("", other), ("minus ", -other)):
            if pair.explained(pair.got, value, tried=2 * len(pair.others)):
                return Diagnosis(
                    "another gradient", f"got is {sign}the reference of {name}"
                )
    return None


def of_a_variant(pair: Pair) -> Diagnosis | None:
    """The reference is what backward returns with one of its arguments changed."""
    for tried, (says, value) in enumerate(pair.clock.within(pair.variants), 1):
        if pair.explained(pair.reference, value, tried=2 * tried):
            return Diagnosis("variant", f"reference = {says}")
    return None


def _along(axis: int, ndim: int, length: int) -> np.ndarray:
    """Return 0, 1, … along one axis, with length 1 along the others."""
    return np.arange(length).reshape([length if a == axis else 1 for a in range(ndim)])


def _axes(axes: tuple[int, ...]) -> str:
    return f"axis {axes[0]}" if len(axes) == 1 else f"axes {', '.join(map(str, axes))}"


def _subsets(count: int) -> Iterator[tuple[int, ...]]:
    """Yield the non-empty subsets of the axes, small ones first."""
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
        same = np.nonzero(np.abs(rows - row).max(axis=1, initial=0.0) <= pair.allowed)[
            0
        ]
        if len(same) != 1:
            return None
        order.append(int(same[0]))
    return (
        order
        if sorted(order) == list(range(length)) and order != list(range(length))
        else None
    )


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
