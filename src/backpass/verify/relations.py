"""The hypotheses of a diagnosis: each looks at a pair, and returns None where it does not hold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from backpass.verify.evidence import Diagnosis, Pair
from backpass.verify.places import index_text, largest_errors, number_text, place, structured
from backpass.verify.terms import Term, dictionary, matrix_products, name_number

PAIRS = 240  # so many of the simplest terms are tried two at a time
POWERS = (1, 2, 3, -1, -2, -3)  # of a number for each row
LONGEST_AXIS = 256  # along which permutations are looked for


def first(hypotheses: Sequence[Callable[[Pair], Diagnosis | None]], pair: Pair) -> Diagnosis | None:
    """The first diagnosis that holds."""
    return next((found for hypothesis in hypotheses if (found := hypothesis(pair))), None)


# Where the shapes differ.


def missing_sum(pair: Pair) -> Diagnosis | None:
    """The reference is got, summed over some axes."""
    fits = False
    for axes in _subsets(pair.got.ndim):
        summed = pair.got.sum(axis=axes)
        if summed.size != pair.reference.size:
            continue
        which = _axes(axes)
        if pair.explained(pair.reference, summed.reshape(pair.reference.shape)):
            return Diagnosis("missing sum", f"{pair.shapes}: a sum over {which} is missing")
        fits = True
    return Diagnosis("shape", f"{pair.shapes}: summing fits the shape, not the values") if fits else None


def sum_too_many(pair: Pair) -> Diagnosis | None:
    """Got is the reference, summed over some axes."""
    for axes in _subsets(pair.reference.ndim):
        for what, value in (("sum", pair.reference.sum(axis=axes)), ("mean", pair.reference.mean(axis=axes))):
            if value.size == pair.got.size and pair.explained(pair.got, value.reshape(pair.got.shape)):
                which = _axes(axes)
                return Diagnosis("sum too many", f"{pair.shapes}: got is the reference's {what} over {which}")
    return None


def other_shape(pair: Pair) -> Diagnosis | None:
    """Got has the reference's elements, transposed or merely arranged in another shape."""
    for order in itertools.permutations(range(pair.reference.ndim)) if pair.reference.ndim <= 4 else ():
        if pair.explained(pair.got, pair.reference.transpose(order)):
            return Diagnosis("transpose", f"{pair.shapes}: got is the reference transposed")
    if pair.got.size == pair.reference.size and pair.explained(
        pair.reference, pair.got.reshape(pair.reference.shape)
    ):
        return Diagnosis("shape", f"{pair.shapes}: the right elements, to be reshaped")
    return None


# Where the shapes are the same.


def zero(pair: Pair) -> Diagnosis | None:
    if not pair.reference.any():
        return Diagnosis("zero", f"the reference is 0, got is not: {largest_errors(pair)}")
    return None if pair.got.any() else Diagnosis("zero", "got is 0, the reference is not")


def constant_ratio(pair: Pair) -> Diagnosis | None:
    ratio = float(np.vdot(pair.reference, pair.got) / np.vdot(pair.reference, pair.reference))
    named = name_number(ratio, pair.lengths)
    if named and pair.explained(pair.got, named.value * pair.reference, tried=2 * len(pair.lengths) + 8):
        if named.value == -1:
            return Diagnosis("sign", "the sign is wrong: got = −reference")
        return Diagnosis("constant ratio", f"got = {named.text} × reference{named.note}")
    if pair.explained(pair.got, ratio * pair.reference, free=1):
        return Diagnosis("constant ratio", f"got = {number_text(ratio, 6)} × reference")
    return None


def some_signs(pair: Pair) -> Diagnosis | None:
    if not pair.explained(np.where(pair.wrong, -pair.got, pair.got), pair.reference):
        return None
    return Diagnosis("some signs", f"the sign is wrong at {place(pair.wrong, pair)}")


def arranged(pair: Pair) -> Diagnosis | None:
    """Transposed, reversed, shifted or permuted along an axis, or summed along it once more."""
    x = pair.reference
    for order in itertools.permutations(range(x.ndim)) if x.ndim <= 4 else ():
        if order != tuple(range(x.ndim)) and pair.explained(pair.got, x.transpose(order)):
            axes = "" if x.ndim == 2 else f" (its axes in the order {list(order)})"
            return Diagnosis("transpose", f"got is the reference transposed{axes}")
    for axis in range(x.ndim):
        order = _permutation(pair, axis)
        if order is not None and pair.explained(pair.got, np.take(x, order, axis)):
            return Diagnosis("permuted", f"along axis {axis} got is the reference {_how_permuted(order)}")
    return None


def reshaped(pair: Pair) -> Diagnosis | None:
    """Reshaped where two axes should have changed places, as heads and rows do where heads are split or merged."""
    x = pair.reference
    pieces = [n for n in range(2, x.shape[-1]) if x.shape[-1] % n == 0] if x.ndim >= 2 else []
    tried = math.comb(x.ndim, 2) + len(pieces)
    for one, other in itertools.combinations(range(x.ndim), 2):
        if pair.explained(pair.got, np.swapaxes(x, one, other).reshape(x.shape), tried=tried):
            return Diagnosis(
                "reshape", f"got is reshaped where axes {one} and {other} should have changed places"
            )
    for n in pieces:
        cut = x.reshape(*x.shape[:-1], n, -1)  # heads side by side
        if pair.explained(pair.got, np.swapaxes(cut, -3, -2).reshape(x.shape), tried=tried):
            where = f"the {n} pieces of axis {x.ndim - 1} should have changed places with axis {x.ndim - 2}"
            return Diagnosis("reshape", f"got is reshaped where {where}")
    return None


def summed(pair: Pair) -> Diagnosis | None:
    """Got is the reference summed over an axis and repeated, or summed up step by step along it."""
    x = pair.reference
    for axis in range(x.ndim):
        total = np.broadcast_to(x.sum(axis=axis, keepdims=True), x.shape)
        for what, value in (
            (f"the reference summed over axis {axis}, once for each element along it", total),
            (
                f"the mean of the reference over axis {axis}, once for each element along it",
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
    """Right but for one element, a few slices, the diagonal: said with how it is wrong there."""
    place = structured(pair.wrong)
    if place is None or pair.wrong.size < 4 or pair.wrong.mean() > 0.5:
        return None
    there = Pair(pair.reference[pair.wrong], pair.got[pair.wrong], pair.terms, None, pair.accuracy)
    how = first((zero, constant_ratio), there)
    if how is None:
        index = tuple(np.argwhere(pair.wrong)[0])
        got, expected = number_text(pair.got[index]), number_text(pair.reference[index])
        how = f"got {got} at {index_text(index)}, expected {expected}"
    return Diagnosis("one place", f"wrong only at {place}; there: {how}")


def some_zero(pair: Pair) -> Diagnosis | None:
    if pair.got[pair.wrong].any():
        return None
    return Diagnosis("some zero", f"got is 0, and should not be, at {place(pair.wrong, pair)}")


def another_product(pair: Pair) -> Diagnosis | None:
    """Got and the reference are both matrix products of the terms, but not the same."""
    products = list(matrix_products(pair.terms, pair.reference.shape))
    named = [
        next((text for text, value in products if pair.explained(target, value, tried=len(products))), None)
        for target in (pair.got, pair.reference)
    ]
    return (
        Diagnosis("another product", "got is {}; the reference is {}".format(*named)) if all(named) else None
    )


def missing_factor(pair: Pair) -> Diagnosis | None:
    factors = [term for term in _dictionary(pair) if term.factors <= 2]
    for term in factors:
        if pair.explained(pair.reference, pair.got * term.value, tried=2 * len(factors)):
            return Diagnosis("missing factor", f"reference = got × {term}: the factor is missing")
        if pair.explained(pair.got, pair.reference * term.value, tried=2 * len(factors)):
            return Diagnosis("factor too many", f"got = reference × {term}: one factor too many")
    return None


def without_dy(pair: Pair) -> Diagnosis | None:
    """Got is what backward makes of a cotangent of zeros."""
    if pair.backward is None or "dy" not in pair.terms:
        return None
    try:
        of_zeros = pair.backward(np.zeros_like(pair.terms["dy"]))
    except Exception:
        return None
    same = of_zeros is not None and pair.explained(pair.got, of_zeros)
    return Diagnosis("without dy", "got does not depend on dy") if same else None


def dropped_before(pair: Pair) -> Diagnosis | None:
    """The reference is what backward makes of dy times (or over) an input."""
    dy = pair.terms.get("dy")
    if pair.backward is None or dy is None:
        return None
    others = {name: value for name, value in pair.terms.items() if name != "dy"}
    for name, value in others.items():
        try:
            if np.broadcast_shapes(value.shape, dy.shape) != dy.shape:
                continue
            again = pair.backward(dy * value)
        except Exception:
            continue
        if pair.explained(pair.reference, again, tried=len(others)):
            return Diagnosis(
                "missing factor", f"reference = backward(dy × {name}): the factor {name} is missing"
            )
    return None


def one_slice(pair: Pair) -> Diagnosis | None:
    """Got is what backward makes of one slice of dy: the others do not enter."""
    dy = pair.terms.get("dy")
    if pair.backward is None or dy is None:
        return None
    for axis, length in enumerate(dy.shape):
        for position in range(length) if 1 < length <= LONGEST_AXIS else ():
            alone = np.where(_along(axis, dy.ndim, length) == position, dy, 0.0)
            try:
                again = pair.backward(alone)
            except Exception:
                break
            if pair.explained(pair.got, again, tried=dy.ndim * length):
                return Diagnosis(
                    "missing sum",
                    f"got = backward(dy at position {position} of axis {axis}): the sum over axis {axis} of dy is missing",
                )
    return None


def _along(axis: int, ndim: int, length: int) -> np.ndarray:
    """0, 1, … along one axis, of length 1 along the others."""
    return np.arange(length).reshape([length if a == axis else 1 for a in range(ndim)])


def missing_term(pair: Pair) -> Diagnosis | None:
    """reference − got is a multiple of one term, or a combination of two."""
    terms = _dictionary(pair)
    for term, weight in _single_fits(pair, terms):
        named = name_number(weight, pair.lengths)
        exact = named.value if named else weight
        if pair.explained(pair.difference, exact * term.value, free=not named, tried=len(terms)):
            return Diagnosis("missing term", f"reference − got = {_weighted(weight, term, pair)}")
    for (one, other), weights in _pair_fits(pair, terms[:PAIRS]):
        prediction = weights[0] * one.value + weights[1] * other.value
        if pair.explained(pair.difference, prediction, free=2, tried=PAIRS**2):
            first = _weighted(weights[0], one, pair)
            second = _weighted(abs(weights[1]), other, pair)
            return Diagnosis(
                "missing term", f"reference − got = {first} {'−' if weights[1] < 0 else '+'} {second}"
            )
    return _times_powers(pair, terms)


def _times_powers(pair: Pair, terms: list[Term]) -> Diagnosis | None:
    """reference − got is a term times powers of a number for each row, such as a saved 1/r: one or two of them."""
    d = pair.difference
    for name, row in pair.terms.items():
        if row.ndim != d.ndim or row.shape != (*d.shape[:-1], 1) or not row.all():
            continue
        columns = {power: row.ravel() ** power for power in POWERS}
        tried = len(terms) * len(POWERS) ** 2
        for term, ratio in _rowwise_fits(pair, terms):
            for powers in itertools.chain.from_iterable(itertools.combinations(POWERS, k) for k in (1, 2)):
                if len(np.unique(row)) <= len(powers):
                    continue  # as many numbers to choose as there are to explain
                matrix = np.stack([columns[power] for power in powers], axis=1)
                weights, *_ = np.linalg.lstsq(matrix, ratio.ravel(), rcond=None)
                prediction = (matrix @ weights).reshape(row.shape) * term.value
                if pair.explained(d, prediction, free=len(powers), tried=tried):
                    made = [Term(f"{_power(name, power)}·{term}", "", term.value, 1) for power in powers]
                    parts = [_weighted(weight, one, pair) for weight, one in zip(weights, made, strict=True)]
                    return Diagnosis(
                        "missing term", "reference − got = " + " + ".join(parts).replace("+ −", "− ")
                    )
    return None


def _rowwise_fits(pair: Pair, terms: list[Term]) -> Iterator[tuple[Term, np.ndarray]]:
    """Each term with its weight for every row, where these nearly reproduce the difference."""
    d = pair.difference
    for term in terms:
        size = (term.value**2).sum(axis=-1, keepdims=True)
        if size.all():
            weights = (term.value * d).sum(axis=-1, keepdims=True) / size
            if np.abs(weights * term.value - d).max() <= 2 * pair.allowed:
                yield term, weights


def _power(name: str, power: int) -> str:
    """``r²``, ``1/r``."""
    size = name + ("", "²", "³")[abs(power) - 1]
    return size if power > 0 else f"1/{size}"


def _dictionary(pair: Pair) -> list[Term]:
    return dictionary(pair.terms, pair.reference.shape)


def _single_fits(pair: Pair, terms: list[Term]) -> Iterator[tuple[Term, float]]:
    """Each term with its least-squares weight, where that nearly reproduces the difference."""
    d = pair.difference
    for term in terms:
        weight = float(np.vdot(term.value, d) / np.vdot(term.value, term.value))
        if np.abs(weight * term.value - d).max() <= 2 * pair.allowed:
            yield term, weight


def _pair_fits(pair: Pair, terms: list[Term]) -> Iterator[tuple[tuple[Term, Term], np.ndarray]]:
    """Pairs of terms with their least-squares weights, where these nearly reproduce the difference."""
    if len(terms) < 2:
        return
    d = pair.difference.ravel()
    columns = np.array([term.value.ravel() for term in terms])
    columns = columns / np.linalg.norm(columns, axis=1, keepdims=True)
    for i in range(len(terms)):
        rest = columns[i + 1 :] - np.outer(columns[i + 1 :] @ columns[i], columns[i])
        norms = np.linalg.norm(rest, axis=1)
        target = d - (d @ columns[i]) * columns[i]
        usable = norms > 1e-6
        along = np.where(usable, rest @ target / np.where(usable, norms, 1.0), 0.0)
        unexplained = np.maximum(target @ target - along**2, 0.0)
        for j in np.nonzero(usable & (unexplained <= 1e-6 * (d @ d)))[0]:
            both = terms[i], terms[i + 1 + j]
            matrix = np.stack([term.value.ravel() for term in both], axis=1)
            weights, *_ = np.linalg.lstsq(matrix, d, rcond=None)
            if np.abs(matrix @ weights - d).max() <= pair.allowed:
                yield both, weights


def _weighted(weight: float, term: Term, pair: Pair) -> str:
    """``−½·y·Σ(dy·y), Σ over axis 1``."""
    named = name_number(weight, pair.lengths)
    text = named.text if named else number_text(weight, 6)
    text = {"1": "", "−1": "−"}.get(text, f"{text}·")
    return f"{text}{term}"


def _axes(axes: tuple[int, ...]) -> str:
    return f"axis {axes[0]}" if len(axes) == 1 else f"axes {', '.join(map(str, axes))}"


def _subsets(count: int) -> Iterator[tuple[int, ...]]:
    """Non-empty subsets of the axes, small ones first."""
    return itertools.chain.from_iterable(itertools.combinations(range(count), k) for k in range(1, count + 1))


def _permutation(pair: Pair, axis: int) -> list[int] | None:
    """For each slice of got along the axis, the reference's that it equals; None unless a permutation."""
    length = pair.reference.shape[axis]
    if not 1 < length <= LONGEST_AXIS:
        return None
    rows, ours = (np.moveaxis(a, axis, 0).reshape(length, -1) for a in (pair.reference, pair.got))
    order = []
    for row in ours:
        same = np.nonzero(np.abs(rows - row).max(axis=1, initial=0.0) <= pair.allowed)[0]
        if len(same) != 1:
            return None
        order.append(int(same[0]))
    return order if sorted(order) == list(range(length)) and order != list(range(length)) else None


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
