"""Build the terms that a gradient may lack.

They are products of dy, y and the inputs, and sums of such products over an axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

LARGEST = 1 << 22  # elements of an array; larger arrays are left out
MULTIPLICATIONS = 1 << 27  # of a matrix product; larger products are not tried


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
        shape = broadcast(*(part.shape for part in self.parts))
        assert shape is not None  # as `times` ensures
        return shape

    @property
    def value(self) -> np.ndarray:
        """The term's array, in the gradient's shape."""
        value = math.prod(self.parts[1:], start=self.parts[0])
        if self.shape is None:
            return value
        if extra := max(0, value.ndim - len(self.shape)):
            value = value.sum(axis=tuple(range(extra)))
        return np.broadcast_to(value, self.shape)

    def at(self, index: tuple[np.ndarray, ...]) -> np.ndarray:
        """Compute the value at some entries of the gradient only."""
        assert self.shape is not None
        extra = max(0, len(self.own_shape) - len(self.shape))
        full = (*self.own_shape[:extra], *self.shape)
        value = product_at(self, full, (slice(None),) * extra + index)
        return np.ravel(value.sum(axis=tuple(range(extra))))


def atoms_of(terms: Mapping[str, np.ndarray]) -> list[Term]:
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


def products_of_two(atoms: list[Term]) -> list[Term]:
    pairs = itertools.combinations_with_replacement(atoms, 2)
    return [made for one, other in pairs if (made := times(one, other))]


def times(one: Term, other: Term) -> Term | None:
    if broadcast(one.own_shape, other.own_shape) is None:
        return None
    if other.text.startswith("1/"):
        text = one.text + other.text[1:]
    elif one.text.startswith("1/"):
        text = other.text + one.text[1:]
    else:
        text = f"{one.text}²" if one is other else f"{one.text}·{other.text}"
    note, factors = one.note + other.note, one.factors + other.factors
    return Term(text, note, factors, (*one.parts, *other.parts))


def sums_over_axes(term: Term) -> Iterator[Term]:
    axes = [axis for axis, length in enumerate(term.own_shape) if length > 1]
    if not axes:
        return
    value = term.value
    for axis in axes:
        total = value.sum(axis=axis, keepdims=True)
        yield Term(
            f"Σ({term.text})", f" (Σ over axis {axis})", term.factors + 1, (total,)
        )


def fitted(term: Term, shape: tuple[int, ...]) -> Term | None:
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
        text = term.text if "Σ" in term.text else f"Σ({term.text})"
        note = term.note or " (Σ over the leading axes)"
        term = replace(term, text=text, note=note, factors=term.factors + 1)
    return replace(term, shape=shape)


def product_at(term: Term, full: tuple[int, ...], at: tuple) -> np.ndarray:
    parts = (
        part if part.shape == full else np.broadcast_to(part, full)
        for part in term.parts
    )
    return math.prod(part[at] for part in parts)


@lru_cache(4096)
def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


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
            pairs = itertools.product(_orientations(one, a), _orientations(other, b))
            for (left, p), (right, q) in pairs:
                batch = broadcast(p.shape[:-2], q.shape[:-2])
                if batch is None or p.shape[-1] != q.shape[-2]:
                    continue
                few = math.prod(shape) * p.shape[-1] <= MULTIPLICATIONS
                if few and shape == (*batch, p.shape[-2], q.shape[-1]):
                    yield f"{left} @ {right}", p @ q


def _orientations(
    name: str, value: np.ndarray
) -> tuple[tuple[str, np.ndarray], tuple[str, np.ndarray]]:
    return (name, value), (f"{name}ᵀ", value.mT)
