"""Build the terms that a gradient may lack.

They are products of dy, y and the inputs, and sums of such products over an axis.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")
Group = TypeVar("Group", bound=Hashable)

LARGEST = 1 << 22  # elements of an array; larger arrays are left out
# Entries of the gradient at which terms are tried first. Those that fit there are tried
# at all entries.
SAMPLE = 1 << 11
COLUMNS = 64  # positions of the last axis in that sample
# Products of terms and sums, themselves summed over leading axes: the largest number of
# summands, and the entries at which they are tried first.
LEADING = 1 << 14
SUMMED_AT = 24
MULTIPLICATIONS = 1 << 27  # of a matrix product; larger products are not tried
SIMPLEST = 2000  # terms that are tried in pairs

_FRACTIONS = {"½": 0.5, "⅓": 1 / 3, "¼": 0.25, "2": 2.0, "3": 3.0, "4": 4.0, "1": 1.0}
# The largest numerator or denominator of other fractions, which are named if one of the
# two is a length.
_LARGEST_PART = 12


@dataclass(frozen=True)
class Term:
    """A term such as ``y·Σ(dy·y)``.

    It has a text, a number of factors, the arrays whose product it is, and the
    gradient's shape. The product is broadcast along axes that it lacks, and summed over
    leading axes that the gradient lacks.
    """

    text: str
    note: str
    factors: int
    parts: tuple[np.ndarray, ...]
    shape: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return f"{self.text}{self.note}"

    @cached_property
    def own_shape(self) -> tuple[int, ...]:
        """The product's shape."""
        shape = _broadcast(*(part.shape for part in self.parts))
        assert shape is not None  # as `_product` ensures
        return shape

    @property
    def value(self) -> np.ndarray:
        """The term's array, in the gradient's shape."""
        value = math.prod(self.parts[1:], start=self.parts[0])
        if self.shape is None:
            return value
        extra = max(0, value.ndim - len(self.shape))
        return np.broadcast_to(
            value.sum(axis=tuple(range(extra))) if extra else value, self.shape
        )

    def at(self, index: tuple[np.ndarray, ...]) -> np.ndarray:
        """Compute the value at some entries of the gradient only."""
        assert self.shape is not None
        extra = max(0, len(self.own_shape) - len(self.shape))
        full = (*self.own_shape[:extra], *self.shape)
        value = _product_at(self, full, (slice(None),) * extra + index)
        return np.ravel(value.sum(axis=tuple(range(extra))))


@dataclass(frozen=True)
class Number:
    """A number with a name: ½, n, 1/√n."""

    value: float
    text: str
    note: str = ""


def name_number(
    value: float, lengths: Mapping[int, str], accuracy: float = 1e-5
) -> Number | None:
    """Return the simple number near ``value``, or None.

    It is a small integer or fraction, or made of a length n: n, 1/n, √n, 1/√n, 1 − 1/n.
    """
    sign = "−" if value < 0 else ""
    size = abs(value)
    for text, number in _FRACTIONS.items():
        if abs(size - number) <= accuracy * number:
            length = round(max(number, 1 / number))
            note = (
                f" ({length} is {lengths[length]})"
                if length > 2 and length in lengths
                else ""
            )
            return Number(float(np.copysign(number, value)), sign + text, note)
    for length, whose in lengths.items():
        for text, number in _of_length(length) if length > 1 else ():
            if abs(size - number) <= accuracy * number:
                return Number(
                    float(np.copysign(number, value)),
                    sign + text,
                    f" ({length} is {whose})",
                )
    return _fraction(value, lengths, accuracy)


def _fraction(
    value: float, lengths: Mapping[int, str], accuracy: float
) -> Number | None:
    """Return a fraction such as ``3/5`` of small numbers, one of them a length."""
    for below in range(2, _LARGEST_PART + 1):
        above = round(abs(value) * below)
        if (
            1 < above <= _LARGEST_PART
            and math.gcd(above, below) == 1
            and {above, below} & lengths.keys()
        ):
            if abs(abs(value) - above / below) <= accuracy * abs(value):
                note = "; ".join(
                    f"{n} is {lengths[n]}" for n in (above, below) if n in lengths
                )
                sign = "−" if value < 0 else ""
                number = float(np.copysign(above / below, value))
                return Number(number, f"{sign}{above}/{below}", f" ({note})")
    return None


def _of_length(n: int) -> tuple[tuple[str, float], ...]:
    return (
        (f"{n}", n),
        (f"1/{n}", 1 / n),
        (f"√{n}", n**0.5),
        (f"1/√{n}", n**-0.5),
        (f"(1 − 1/{n})", 1 - 1 / n),
    )


class Dictionary:
    """The terms of a gradient's shape.

    They are products of up to three arrays, sums over an axis of products of up to two,
    and products of up to two arrays with such a sum. There are thousands of the last
    kind, so none is computed before it is known to fit: two matrix products tell, for
    all of them at once, how near a multiple of each comes to the difference at a sample
    of entries.
    """

    def __init__(
        self,
        terms: Mapping[str, np.ndarray],
        shape: tuple[int, ...],
        wrong: np.ndarray | None = None,
        over: Callable[..., bool] = lambda share=1.0: False,
    ) -> None:
        self.shape = shape
        self.over = over
        self.rows, self.index = _sample(
            shape, np.ones(shape, dtype=bool) if wrong is None else wrong
        )
        atoms = _atoms(terms)
        self._products = [*atoms, *_products(atoms)]
        triples = (
            itertools.combinations_with_replacement(atoms, 3)
            if math.prod(shape) <= 1 << 16
            else ()
        )
        made = (
            _product(pair, c)
            for a, b, c in triples
            if (pair := _product(a, b)) is not None and not over()
        )
        self._triples = [term for term in made if term is not None]
        simplest_first = sorted(self._products, key=lambda term: term.factors)
        self._sums = [
            total
            for product in simplest_first
            if not over(share=0.5)
            for total in _sums(product)
        ]

    @cached_property
    def products(self) -> _Terms:
        """Arrays, and products of two, in the gradient's shape."""
        return _Terms(self._products, self.shape, self.index)

    @cached_property
    def triples(self) -> _Terms:
        """Products of three."""
        return _Terms(self._triples, self.shape, self.index)

    @cached_property
    def sums(self) -> _Terms:
        """Sums of arrays and of products of two, over one axis."""
        return _Terms(self._sums, self.shape, self.index)

    def __len__(self) -> int:
        single = (
            len(self.products.terms) + len(self.triples.terms) + len(self.sums.terms)
        )
        return single + len(self._products) * len(self._sums)

    def __iter__(self) -> Iterator[Term]:
        """Every term, the simplest first."""
        return (
            self.made(entry) for entries, _ in self._by_factors() for entry in entries
        )

    def made(self, entry: tuple[Term, ...]) -> Term:
        """Return the entry's only term, or the product of its two terms."""
        if len(entry) == 1:
            return entry[0]
        made = self._scaled(*entry)
        assert made is not None  # `repeated` keeps terms whose products fit
        return made

    def _by_factors(self) -> Iterator[tuple[list[tuple[Term, ...]], np.ndarray]]:
        """Yield terms, the simplest first, with their values at the sample.

        Several terms are yielded at a time. Each is given as one term, or as the two of
        which it is the product.
        """
        singles = self.products, self.triples, self.sums
        (products, p), (sums, s) = (
            self.products.repeated(self.shape),
            self.sums.repeated(self.shape),
        )
        p_of, s_of = _positions(products), _positions(sums)
        summed = defaultdict(list)
        for term in self._summed():
            summed[term.factors].append(term)
        for factors in range(
            1, max([*p_of, *summed], default=0) + max(s_of, default=0) + 1
        ):
            for single in singles:
                if which := [
                    i for i, term in enumerate(single.terms) if term.factors == factors
                ]:
                    yield [(single.terms[i],) for i in which], single.values[which]
            for k in range(1, factors):
                for i in s_of.get(factors - k, ()):
                    if of_k := p_of.get(k):
                        yield [(products[j], sums[i]) for j in of_k], p[of_k] * s[i]
            if factors in summed:
                yield (
                    [(term,) for term in summed[factors]],
                    np.array([term.at(self.index) for term in summed[factors]]),
                )

    def _summed(self) -> Iterator[Term]:
        """Yield products times sums that are summed over leading axes, at most as many
        as are tried in pairs."""
        pairs = itertools.product(self._sums, self._products)
        made = (
            self._scaled(product, total)
            for total, product in pairs
            if max(len(total.own_shape), len(product.own_shape)) > len(self.shape)
        )
        return itertools.islice((term for term in made if term is not None), SIMPLEST)

    @cached_property
    def simplest(self) -> tuple[list[tuple[Term, ...]], np.ndarray]:
        """The SIMPLEST first terms (see ``made``), and their values at the sample as
        unit vectors. Terms that are multiples of each other there are included once."""
        found, columns, seen = [], [], set()
        for terms, values in self._by_factors():
            size = np.abs(values).max(axis=1)
            usable = (size > 0) & np.isfinite(size)
            values = values[usable] / size[usable, None]
            largest = np.take_along_axis(
                values, np.abs(values).argmax(axis=1)[:, None], axis=1
            )
            keys = np.round(values * np.sign(largest), 9) + 0.0
            for term, value, key in zip(
                itertools.compress(terms, usable), values, keys, strict=True
            ):
                if (name := key.tobytes()) not in seen:
                    seen.add(name)
                    found.append(term)
                    columns.append(value / np.linalg.norm(value))
            if len(found) >= SIMPLEST or self.over():
                break
        return found[:SIMPLEST], np.array(columns[:SIMPLEST])

    def near(
        self, difference: np.ndarray, allowed: float, *, by_row: bool = False
    ) -> list[Term]:
        """Return the terms of which a multiple is near the difference.

        Near means within ``allowed``, and only the sample is compared. With ``by_row``,
        the multiple may differ between rows. The simplest terms come first.
        """
        d = difference[self.index].reshape(self.rows if by_row else 1, -1)
        most = d.size * allowed**2 + 1e-12 * np.vdot(d, d)
        found: list[tuple[int, int, Term]] = []
        for kind, terms in enumerate((self.products, self.triples, self.sums)):
            if terms.terms and not self.over():
                values = terms.values.reshape(-1, *d.shape)
                left = _left(
                    np.vdot(d, d),
                    np.einsum("trc,rc->tr", values, d),
                    (values**2).sum(axis=2),
                )
                close = [terms.terms[i] for i in np.nonzero(left <= most)[0]]
                found += [(term.factors, kind, term) for term in close]
        found += [(term.factors, 3, term) for term in self._near_scaled(d, most)]
        if not by_row:
            found += [
                (term.factors, 3, term)
                for term in self._near_summed(difference, allowed)
            ]
        return [term for *_, term in sorted(found, key=lambda entry: entry[:2])]

    def _near_scaled(self, d: np.ndarray, most: float) -> Iterator[Term]:
        """Yield products times sums that have the gradient's shape."""
        products, p = self.products.repeated(self.shape)
        sums, s = self.sums.repeated(self.shape)
        if not products or not sums or self.over():
            return
        p, s = p.reshape(-1, *d.shape), s.reshape(-1, *d.shape)
        left = np.zeros((len(sums), len(products)))
        for row, target in enumerate(d):
            along = s[:, row] @ (p[:, row] * target).T
            left += _left(
                target @ target, along, s[:, row] ** 2 @ (p[:, row] ** 2).T, rows=False
            )
        for i, j in np.argwhere(left <= most):
            if made := self._scaled(products[j], sums[i]):
                yield made

    def _near_summed(self, difference: np.ndarray, allowed: float) -> Iterator[Term]:
        """Yield products times sums that are then summed over leading axes."""
        index = tuple(axis[:: max(1, len(axis) // SUMMED_AT)] for axis in self.index)
        d = np.ravel(difference[index])
        most = d.size * allowed**2 + 1e-12 * (d @ d)
        by_shape = (
            _grouped(terms, lambda term: term.own_shape)
            for terms in (self._products, self._sums)
        )
        for (a, products), (b, sums) in itertools.product(
            *(terms.items() for terms in by_shape)
        ):
            full = _summed_shape(a, b, self.shape)
            if full is None or self.over():
                continue
            along, size = (
                np.zeros((len(sums), len(products))),
                np.zeros((len(sums), len(products))),
            )
            for entry in range(len(d)):
                at = (
                    *(slice(None),) * (len(full) - len(self.shape)),
                    *(axis[entry] for axis in index),
                )
                p, s = (
                    np.array([np.ravel(_product_at(term, full, at)) for term in terms])
                    for terms in (products, sums)
                )
                value = s @ p.T
                along += d[entry] * value
                size += value**2
            left = _left(float(d @ d), along, size, rows=False)
            for i, j in np.argwhere(left <= most):
                if made := self._scaled(products[j], sums[i]):
                    yield made

    def _scaled(self, product: Term, total: Term) -> Term | None:
        made = _product(product, total)
        return None if made is None else _fit(made, self.shape)


class _Terms:
    """The terms that fit the gradient's shape, and their values at a sample of its
    entries."""

    def __init__(
        self, terms: list[Term], shape: tuple[int, ...], index: tuple[np.ndarray, ...]
    ) -> None:
        self.terms = [made for term in terms if (made := _fit(term, shape))]
        self.values = np.array([term.at(index) for term in self.terms])

    def repeated(self, shape: tuple[int, ...]) -> tuple[list[Term], np.ndarray]:
        """Return the terms that are not summed over leading axes, and their values."""
        which = [
            i for i, term in enumerate(self.terms) if len(term.own_shape) <= len(shape)
        ]
        return [self.terms[i] for i in which], self.values[
            which
        ] if which else self.values[:0]


def _left(
    whole: float, along: np.ndarray, size: np.ndarray, rows: bool = True
) -> np.ndarray:
    """Return what the best multiple of a term leaves of the difference, squared.

    With ``rows``, each row has its own multiple, and the squares are added.
    """
    with np.errstate(all="ignore"):
        explained = np.where(size > 0, along**2 / size, -np.inf)
    left = whole - (explained.sum(axis=-1) if rows else explained)
    return np.where(np.isfinite(left), left, np.inf)


def _sample(
    shape: tuple[int, ...], wrong: np.ndarray
) -> tuple[int, tuple[np.ndarray, ...]]:
    """Choose the entries of a few rows and columns, wrong ones first, evenly spread.

    Returns the number of rows, and the index of the entries, row by row.
    """
    if not shape:
        return 1, ()
    wrong = wrong.reshape(-1, shape[-1])
    columns = _spread(
        np.any(wrong, axis=0),
        COLUMNS if wrong.size > SAMPLE and len(wrong) > 1 else SAMPLE,
    )
    rows = _spread(
        np.any(wrong[:, columns], axis=1), max(1, SAMPLE // max(1, len(columns)))
    )
    return len(rows), np.unravel_index(
        (rows[:, None] * shape[-1] + columns).ravel(), shape
    )


def _spread(wrong: np.ndarray, count: int) -> np.ndarray:
    """Return all positions if they are few; otherwise ``count`` positions, evenly
    spread over the wrong ones, or completed by right ones if these are too few."""
    if len(wrong) <= count:
        return np.arange(len(wrong))
    order = np.argsort(~wrong, kind="stable")
    if wrong.sum() > count:
        order = np.nonzero(wrong)[0][np.linspace(0, wrong.sum() - 1, count).astype(int)]
    return np.sort(order[:count])


def _atoms(terms: Mapping[str, np.ndarray]) -> list[Term]:
    """Return the arrays, the inverses of those smaller than y, and the exponential of a
    y that may be log-probabilities."""
    atoms = [
        Term(name, "", 1, (value,))
        for name, value in terms.items()
        if 0 < value.size <= LARGEST and value.any()
    ]
    size_of_y = terms["y"].size if "y" in terms else 1
    for atom in list(atoms):
        (value,) = atom.parts
        if value.size < size_of_y and value.all():
            atoms += [
                Term(f"1/{atom.text}", "", 1, (1 / value,)),
                Term(f"1/{atom.text}²", "", 2, (value**-2.0,)),
            ]
        elif atom.text == "y" and value.ndim and (value <= 0).all():
            atoms.append(Term("exp(y)", "", 1, (np.exp(value),)))
    return atoms


def matrix_products(
    terms: Mapping[str, np.ndarray], shape: tuple[int, ...]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the matrix products of two terms that have the shape, with their texts.

    Each term is used as it is and transposed, with its leading axes as they are and
    merged.
    """
    matrices = {
        name: value
        for name, value in terms.items()
        if value.ndim >= 2 and value.size <= LARGEST
    }
    for (one, a), (other, b) in itertools.permutations(matrices.items(), 2):
        for merge in (False, True) if max(a.ndim, b.ndim) > 2 else (False,):
            if merge:
                a, b = a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1])
            for (left, p), (right, q) in itertools.product(
                _orientations(one, a), _orientations(other, b)
            ):
                batch = _broadcast(p.shape[:-2], q.shape[:-2])
                if (
                    p.shape[-1] == q.shape[-2]
                    and batch == shape[:-2]
                    and shape[-2:] == (p.shape[-2], q.shape[-1])
                ):
                    if math.prod(shape) * p.shape[-1] <= MULTIPLICATIONS:
                        yield f"{left} @ {right}", p @ q


def _orientations(
    name: str, value: np.ndarray
) -> tuple[tuple[str, np.ndarray], tuple[str, np.ndarray]]:
    return (name, value), (f"{name}ᵀ", value.mT)


def _products(atoms: list[Term]) -> list[Term]:
    pairs = itertools.combinations_with_replacement(atoms, 2)
    return [made for one, other in pairs if (made := _product(one, other))]


def _product(one: Term, other: Term) -> Term | None:
    if _broadcast(one.own_shape, other.own_shape) is None:
        return None
    if other.text.startswith("1/"):
        text = one.text + other.text[1:]
    elif one.text.startswith("1/"):
        text = other.text + one.text[1:]
    else:
        text = f"{one.text}²" if one is other else f"{one.text}·{other.text}"
    return Term(
        text,
        one.note + other.note,
        one.factors + other.factors,
        (*one.parts, *other.parts),
    )


def _sums(term: Term) -> Iterator[Term]:
    axes = [axis for axis, length in enumerate(term.own_shape) if length > 1]
    if not axes:
        return
    value = term.value
    for axis in axes:
        total = value.sum(axis=axis, keepdims=True)
        yield Term(
            f"Σ({term.text})", f" (Σ over axis {axis})", term.factors + 1, (total,)
        )


def _fit(term: Term, shape: tuple[int, ...]) -> Term | None:
    """Return the term in the gradient's shape, or None if it does not fit.

    It is broadcast along axes that it lacks, and summed over surplus leading axes.
    """
    own = term.own_shape
    extra = max(0, len(own) - len(shape))
    if any(
        n not in (1, m) for n, m in zip(own[extra:][::-1], shape[::-1], strict=False)
    ):
        return None
    if any(n != 1 for n in own[:extra]):
        text = f"Σ({term.text})" if "Σ" not in term.text else term.text
        note = term.note or " (Σ over the leading axes)"
        return replace(
            term, text=text, note=note, factors=term.factors + 1, shape=shape
        )
    return replace(term, shape=shape)


def _summed_shape(
    a: tuple[int, ...], b: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the surplus leading axes of a product of arrays of shapes ``a`` and ``b``,
    followed by the gradient's shape.

    None if there are no such axes, if their product exceeds LEADING, or if the product
    does not fit the gradient's shape.
    """
    own = _broadcast(a, b)
    if own is None:
        return None
    extra = len(own) - len(shape)
    if extra <= 0 or any(
        n not in (1, m) for n, m in zip(own[extra:], shape, strict=True)
    ):
        return None
    return (*own[:extra], *shape) if math.prod(own[:extra]) <= LEADING else None


@lru_cache(4096)
def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def _grouped(
    items: Iterable[Item], key: Callable[[Item], Group]
) -> dict[Group, list[Item]]:
    found: dict[Group, list[Item]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return dict(found)


def _positions(terms: list[Term]) -> dict[int, list[int]]:
    """Return the positions of the terms, by their number of factors."""
    return _grouped(range(len(terms)), lambda i: terms[i].factors)


def _product_at(term: Term, full: tuple[int, ...], at: tuple) -> np.ndarray:
    parts = (
        part if part.shape == full else np.broadcast_to(part, full)
        for part in term.parts
    )
    return math.prod(part[at] for part in parts)
