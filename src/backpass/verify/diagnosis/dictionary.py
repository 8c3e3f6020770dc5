"""Search the terms of a gradient's shape for those that it lacks."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TypeVar

import numpy as np

from backpass.verify.diagnosis.terms import (
    Term,
    atoms_of,
    broadcast,
    fitted,
    product_at,
    products_of_two,
    sums_over_axes,
    times,
)

Item = TypeVar("Item")
Group = TypeVar("Group", bound=Hashable)

# Entries of the gradient at which terms are tried first. Those that fit there are tried
# at all entries.
SAMPLE = 1 << 11
COLUMNS = 64  # positions of the last axis in that sample
# Products of terms and sums, themselves summed over leading axes: the largest number of
# summands, and the entries at which they are tried first.
LEADING = 1 << 14
SUMMED_AT = 24
SIMPLEST = 2000  # terms that are tried in pairs


class Dictionary:
    """The terms of a gradient's shape.

    They are products of up to three arrays, sums over an axis of products of up to two,
    and products of up to two arrays with such a sum. There are thousands of the last
    kind, so none is computed before it is known to fit: two matrix products show, for
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
        atoms = atoms_of(terms)
        products = [*atoms, *products_of_two(atoms)]
        threes = (
            itertools.combinations_with_replacement(atoms, 3)
            if math.prod(shape) <= 1 << 16
            else ()
        )
        triples = [
            made
            for a, b, c in threes
            if not over() and (pair := times(a, b)) and (made := times(pair, c))
        ]
        sums = [
            total
            for product in sorted(products, key=lambda term: term.factors)
            if not over(share=0.5)
            for total in sums_over_axes(product)
        ]
        # Arrays and products of two; products of three; sums of arrays and of products
        # of two, over one axis.
        self.products, self.triples, self.sums = self._singles = tuple(
            _Terms(every, shape, self.index) for every in (products, triples, sums)
        )

    def __len__(self) -> int:
        singles = sum(len(single.terms) for single in self._singles)
        return singles + len(self.products.every) * len(self.sums.every)

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
        (products, p), (sums, s) = self.products.repeated, self.sums.repeated
        p_of, s_of = _positions(products), _positions(sums)
        summed = _grouped(self._summed(), lambda term: term.factors)
        most = max([*p_of, *summed], default=0) + max(s_of, default=0)
        for factors in range(1, most + 1):
            for single in self._singles:
                if which := _positions(single.terms).get(factors):
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
        pairs = itertools.product(self.sums.every, self.products.every)
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
        for kind, terms in enumerate(self._singles):
            if terms.terms and not self.over():
                values = terms.values.reshape(-1, *d.shape)
                left = _left(
                    np.vdot(d, d),
                    np.einsum("trc,rc->tr", values, d),
                    (values**2).sum(axis=2),
                )
                close = [terms.terms[i] for i in np.nonzero(left <= most)[0]]
                found += [(term.factors, kind, term) for term in close]
        scaled = [*self._near_scaled(d, most)]
        scaled += [] if by_row else self._near_summed(difference, allowed)
        found += [(term.factors, 3, term) for term in scaled]
        return [term for *_, term in sorted(found, key=lambda entry: entry[:2])]

    def _near_scaled(self, d: np.ndarray, most: float) -> Iterator[Term]:
        """Yield products times sums that have the gradient's shape."""
        (products, p), (sums, s) = self.products.repeated, self.sums.repeated
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
            _grouped(terms.every, lambda term: term.own_shape)
            for terms in (self.products, self.sums)
        )
        for (a, products), (b, sums) in itertools.product(
            *(terms.items() for terms in by_shape)
        ):
            full = _summed_shape(a, b, self.shape)
            if full is None or self.over():
                continue
            along, size = np.zeros((2, len(sums), len(products)))
            for entry in range(len(d)):
                at = (
                    *(slice(None),) * (len(full) - len(self.shape)),
                    *(axis[entry] for axis in index),
                )
                p, s = (
                    np.array([np.ravel(product_at(term, full, at)) for term in terms])
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
        made = times(product, total)
        return None if made is None else fitted(made, self.shape)


class _Terms:
    """Terms, and the values at a sample of the gradient's entries of those that fit its
    shape."""

    def __init__(
        self, every: list[Term], shape: tuple[int, ...], index: tuple[np.ndarray, ...]
    ) -> None:
        self.every, self.shape, self.index = every, shape, index

    @cached_property
    def terms(self) -> list[Term]:
        """The terms that fit the gradient's shape."""
        return [made for term in self.every if (made := fitted(term, self.shape))]

    @cached_property
    def values(self) -> np.ndarray:
        """Their values at the sample."""
        return np.array([term.at(self.index) for term in self.terms])

    @cached_property
    def repeated(self) -> tuple[list[Term], np.ndarray]:
        """The terms that are not summed over leading axes, and their values."""
        kept = [len(term.own_shape) <= len(self.shape) for term in self.terms]
        return [*itertools.compress(self.terms, kept)], self.values[
            np.array(kept, bool)
        ]


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


def _summed_shape(
    a: tuple[int, ...], b: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the surplus leading axes of a product of arrays of shapes ``a`` and ``b``,
    followed by the gradient's shape.

    None without surplus axes, if their product exceeds LEADING, or if the product of
    arrays does not fit the gradient's shape.
    """
    own = broadcast(a, b)
    if own is None:
        return None
    extra = len(own) - len(shape)
    if extra <= 0 or any(
        n not in (1, m) for n, m in zip(own[extra:], shape, strict=True)
    ):
        return None
    return (*own[:extra], *shape) if math.prod(own[:extra]) <= LEADING else None


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
