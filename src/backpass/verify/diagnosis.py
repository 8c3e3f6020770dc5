"""How a wrong gradient is wrong, in a sentence.

Hypotheses are tried in turn, the simplest first: a constant ratio, a sign, a transpose, a missing sum, a
missing factor, a missing term. One is named only if it reproduces the numbers to the accuracy they are known to, and
only if that could not be chance: every wrong element it gets right to 1e-9 is 30 bits of evidence, and more
are wanted the more hypotheses were tried.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from backpass.arrays import Array
from backpass.verify.convert import to_numpy
from backpass.verify.terms import Term, dictionary, matrix_products, name_number

EVIDENCE = 20  # bits wanted beyond the logarithm of the number of hypotheses tried
PAIRS = 240  # so many of the simplest terms are tried two at a time
LONGEST_AXIS = 256  # along which permutations are looked for


@dataclass(frozen=True)
class Diagnosis:
    """What relates a gradient to its reference: ``kind`` for programs, the sentence for people."""

    kind: str
    sentence: str

    def __str__(self) -> str:
        return self.sentence

    __repr__ = __str__


def diagnose(
    reference: Array,
    got: Array,
    terms: Mapping[str, Array] | None = None,
    *,
    backward: Callable[[np.ndarray], np.ndarray] | None = None,
    accuracy: float = 1e-9,
) -> Diagnosis:
    """Say how ``got`` differs from ``reference``.

    ``terms`` are named arrays from which a missing factor or term may be built: dy, y, the inputs.
    ``backward`` computes ``got`` from another cotangent; with it a factor dropped early is found. ``accuracy``
    is the error of the reference, relative to its largest element.
    """
    terms = {name: np.nan_to_num(to_numpy(value)) for name, value in (terms or {}).items()}
    pair = Pair(to_numpy(reference), to_numpy(got), terms, backward, accuracy)
    if pair.reference.shape != pair.got.shape:
        return _first(_SHAPE, pair) or Diagnosis("shape", pair.shapes)
    if not np.isfinite(pair.got).all():
        return Diagnosis("not finite", f"got is not finite at {_place(~np.isfinite(pair.got), pair)}")
    if not pair.wrong.any():
        return Diagnosis("equal", "no difference")
    return _first(_RELATIONS, pair) or Diagnosis(
        "unknown", f"no simple relation found; {_largest_errors(pair)}"
    )


@dataclass(frozen=True)
class Pair:
    """A reference and what was got, with the material for explanations."""

    reference: np.ndarray
    got: np.ndarray
    terms: dict[str, np.ndarray]
    backward: Callable[[np.ndarray], np.ndarray] | None
    accuracy: float

    @property
    def shapes(self) -> str:
        """The two shapes in words."""
        return f"expected shape {list(self.reference.shape)}; got {list(self.got.shape)}"

    @cached_property
    def difference(self) -> np.ndarray:
        """reference − got."""
        return self.reference - self.got

    @cached_property
    def allowed(self) -> float:
        """The largest difference that does not count."""
        return self.accuracy * max(np.abs(self.reference).max(initial=0.0), np.abs(self.got).max(initial=0.0))

    @cached_property
    def wrong(self) -> np.ndarray:
        """Where the two differ."""
        return np.abs(self.difference) > self.allowed

    @cached_property
    def lengths(self) -> dict[int, str]:
        """Lengths of axes, each with where it occurs: what a forgotten mean or sum multiplies by."""
        found: dict[int, str] = {}
        for name, array in (*self.terms.items(), ("the gradient", self.reference)):
            for axis, length in enumerate(array.shape):
                found.setdefault(length, f"the length of {name}'s axis {axis}")
            found.setdefault(array.size, f"the number of elements of {name}")
        return found

    def explained(self, target: np.ndarray, prediction: np.ndarray, free: int = 0, tried: int = 1) -> bool:
        """Whether ``prediction``, with ``free`` fitted numbers and one of ``tried``, reproduces ``target``
        and could not do so by chance."""
        if prediction.shape != target.shape or not np.isfinite(prediction).all():
            return False
        if np.abs(prediction - target).max(initial=0.0) > self.allowed:
            return False
        if target.shape != self.difference.shape:
            informative, size = target.size, np.abs(target).max(initial=0.0)
        else:
            informative, size = int(self.wrong.sum()), np.abs(self.difference).max()
        bits = (informative - free) * math.log2(size / self.allowed) if size > self.allowed > 0 else 0.0
        return bits >= EVIDENCE + math.log2(tried)


def _first(hypotheses, pair: Pair) -> Diagnosis | None:
    return next((found for hypothesis in hypotheses if (found := hypothesis(pair))), None)


# Where the shapes differ.


def _missing_sum(pair: Pair) -> Diagnosis | None:
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


def _sum_too_many(pair: Pair) -> Diagnosis | None:
    """Got is the reference, summed over some axes."""
    for axes in _subsets(pair.reference.ndim):
        for what, value in (("sum", pair.reference.sum(axis=axes)), ("mean", pair.reference.mean(axis=axes))):
            if value.size == pair.got.size and pair.explained(pair.got, value.reshape(pair.got.shape)):
                which = _axes(axes)
                return Diagnosis("sum too many", f"{pair.shapes}: got is the reference's {what} over {which}")
    return None


def _other_shape(pair: Pair) -> Diagnosis | None:
    """Got has the reference's elements, transposed or merely arranged in another shape."""
    for order in itertools.permutations(range(pair.reference.ndim)) if pair.reference.ndim <= 4 else ():
        if pair.explained(pair.got, pair.reference.transpose(order)):
            return Diagnosis("transpose", f"{pair.shapes}: got is the reference transposed")
    if pair.got.size == pair.reference.size and pair.explained(
        pair.reference, pair.got.reshape(pair.reference.shape)
    ):
        return Diagnosis("shape", f"{pair.shapes}: the right elements, to be reshaped")
    return None


_SHAPE = (_other_shape, _missing_sum, _sum_too_many)


# Where the shapes are the same.


def _zero(pair: Pair) -> Diagnosis | None:
    return None if pair.got.any() else Diagnosis("zero", "got is 0, the reference is not")


def _constant_ratio(pair: Pair) -> Diagnosis | None:
    ratio = float(np.vdot(pair.reference, pair.got) / np.vdot(pair.reference, pair.reference))
    named = name_number(ratio, pair.lengths)
    if named and pair.explained(pair.got, named.value * pair.reference, tried=2 * len(pair.lengths) + 8):
        if named.value == -1:
            return Diagnosis("sign", "the sign is wrong: got = −reference")
        return Diagnosis("constant ratio", f"got = {named.text} × reference{named.note}")
    if pair.explained(pair.got, ratio * pair.reference, free=1):
        return Diagnosis("constant ratio", f"got = {_number(ratio, 6)} × reference")
    return None


def _some_signs(pair: Pair) -> Diagnosis | None:
    if not pair.explained(np.where(pair.wrong, -pair.got, pair.got), pair.reference):
        return None
    return Diagnosis("some signs", f"the sign is wrong at {_place(pair.wrong, pair)}")


def _arranged(pair: Pair) -> Diagnosis | None:
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


def _summed(pair: Pair) -> Diagnosis | None:
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


def _one_place(pair: Pair) -> Diagnosis | None:
    """Right but for one element, a few slices, the diagonal: said with how it is wrong there."""
    place = _structured(pair.wrong)
    if place is None or pair.wrong.size < 4 or pair.wrong.mean() > 0.5:
        return None
    there = Pair(pair.reference[pair.wrong], pair.got[pair.wrong], pair.terms, None, pair.accuracy)
    how = _first((_zero, _constant_ratio), there)
    if how is None:
        index = tuple(np.argwhere(pair.wrong)[0])
        how = f"got {_number(pair.got[index])} at {_index(index)}, expected {_number(pair.reference[index])}"
    return Diagnosis("one place", f"wrong only at {place}; there: {how}")


def _some_zero(pair: Pair) -> Diagnosis | None:
    if pair.got[pair.wrong].any():
        return None
    return Diagnosis("some zero", f"got is 0, and should not be, at {_place(pair.wrong, pair)}")


def _another_product(pair: Pair) -> Diagnosis | None:
    """Got and the reference are both matrix products of the terms, but not the same."""
    products = list(matrix_products(pair.terms, pair.reference.shape))
    named = [
        next((text for text, value in products if pair.explained(target, value, tried=len(products))), None)
        for target in (pair.got, pair.reference)
    ]
    return (
        Diagnosis("another product", "got is {}; the reference is {}".format(*named)) if all(named) else None
    )


def _missing_factor(pair: Pair) -> Diagnosis | None:
    factors = [term for term in _dictionary(pair) if term.factors <= 2]
    for term in factors:
        if pair.explained(pair.reference, pair.got * term.value, tried=2 * len(factors)):
            return Diagnosis("missing factor", f"reference = got × {term}: the factor is missing")
        if pair.explained(pair.got, pair.reference * term.value, tried=2 * len(factors)):
            return Diagnosis("factor too many", f"got = reference × {term}: one factor too many")
    return None


def _dropped_before(pair: Pair) -> Diagnosis | None:
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


def _missing_term(pair: Pair) -> Diagnosis | None:
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
    return None


_RELATIONS = (
    _zero,
    _constant_ratio,
    _some_signs,
    _arranged,
    _summed,
    _one_place,
    _another_product,
    _missing_factor,
    _dropped_before,
    _missing_term,
    _some_zero,
)


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
    text = named.text if named else _number(weight, 6)
    text = {"1": "", "−1": "−"}.get(text, f"{text}·")
    return f"{text}{term}"


# Saying where.


def _place(mask: np.ndarray, pair: Pair) -> str:
    return _structured(mask) or _by_sign(mask, pair) or _count(mask)


def _count(mask: np.ndarray) -> str:
    return f"{int(mask.sum())} of {mask.size} entries, the first at {_index(np.argwhere(mask)[0])}"


def _structured(mask: np.ndarray) -> str | None:
    """The place in words when it is one element, slices along one axis, or a part of the last two axes."""
    if mask.all():
        return None
    if mask.sum() == 1:
        return _index(np.argwhere(mask)[0])
    for axis in range(mask.ndim):
        along = mask.any(axis=tuple(a for a in range(mask.ndim) if a != axis))
        wanted = np.broadcast_to(
            np.expand_dims(along, [a for a in range(mask.ndim) if a != axis]), mask.shape
        )
        if mask.ndim > 1 and not along.all() and (wanted == mask).all():
            return f"axis {axis}, position {', '.join(str(i) for i in np.nonzero(along)[0])}"
    if mask.ndim >= 2 and min(mask.shape[-2:]) > 1:
        square = np.ones(mask.shape[-2:], dtype=bool)
        for name, part in (
            ("the diagonal of the last two axes", np.eye(*mask.shape[-2:], dtype=bool)),
            ("the entries above the diagonal", np.triu(square, 1)),
            ("the entries below the diagonal", np.tril(square, -1)),
        ):
            if (mask == part).all():
                return name
    return None


def _by_sign(mask: np.ndarray, pair: Pair) -> str | None:
    """``the entries where x < 0``, when there are enough for that to be no chance."""
    if not EVIDENCE <= mask.size or not EVIDENCE / 4 <= mask.sum() <= mask.size - EVIDENCE / 4:
        return None
    for name, value in pair.terms.items():
        if value.shape == mask.shape:
            for relation, part in ((">", value > 0), ("<", value < 0)):
                if (mask == part).all():
                    return f"the entries where {name} {relation} 0"
    return None


def _largest_errors(pair: Pair) -> str:
    worst = np.argsort(-np.abs(pair.difference), axis=None, kind="stable")[: min(3, int(pair.wrong.sum()))]
    listed = []
    for flat in worst:
        index = np.unravel_index(flat, pair.reference.shape)
        listed.append(
            f"{_index(index)} (got {_number(pair.got[index])}, expected {_number(pair.reference[index])})"
        )
    return f"{int(pair.wrong.sum())} of {pair.wrong.size} entries differ, most at {', '.join(listed)}"


def _number(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}g}".replace("-", "−")


def _index(index) -> str:
    return f"index {[int(i) for i in index]}" if len(index) else "its only element"


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
