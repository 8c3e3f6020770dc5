"""The terms that a gradient may lack: products of dy, y and the inputs, and sums of them over an axis."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

LARGEST = 1 << 14  # elements of an array from which terms are built; larger ones are left out

_FRACTIONS = {"½": 0.5, "⅓": 1 / 3, "¼": 0.25, "2": 2.0, "3": 3.0, "4": 4.0, "1": 1.0}


@dataclass(frozen=True)
class Term:
    """``y·Σ(dy·y)`` in words, its value in the gradient's shape, how many factors it is made of."""

    text: str
    note: str
    value: np.ndarray
    factors: int

    def __str__(self) -> str:
        return f"{self.text}{self.note}"


@dataclass(frozen=True)
class Number:
    """A number with a name: ½, n, 1/√n."""

    value: float
    text: str
    note: str = ""


def name_number(value: float, lengths: Mapping[int, str], accuracy: float = 1e-5) -> Number | None:
    """The simple number near ``value``: a small integer or fraction, a length, its inverse, its root."""
    sign = "−" if value < 0 else ""
    size = abs(value)
    for text, number in _FRACTIONS.items():
        if abs(size - number) <= accuracy * number:
            length = round(max(number, 1 / number))
            note = f" ({length} is {lengths[length]})" if length > 2 and length in lengths else ""
            return Number(float(np.copysign(number, value)), sign + text, note)
    for length, whose in lengths.items():
        for text, number in _of_length(length) if length > 1 else ():
            if abs(size - number) <= accuracy * number:
                return Number(float(np.copysign(number, value)), sign + text, f" ({length} is {whose})")
    return None


def _of_length(n: int) -> tuple[tuple[str, float], ...]:
    return (
        (f"{n}", n),
        (f"1/{n}", 1 / n),
        (f"√{n}", n**0.5),
        (f"1/√{n}", n**-0.5),
        (f"(1 − 1/{n})", 1 - 1 / n),
    )


def dictionary(terms: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> list[Term]:
    """Terms of the gradient's shape, the simplest first, each direction of the space once."""
    atoms = [
        Term(name, "", value, 1) for name, value in terms.items() if 0 < value.size <= LARGEST and value.any()
    ]
    statistics = [atom for atom in atoms if atom.value.size < np.size(terms.get("y")) and atom.value.all()]
    for atom in statistics:
        atoms += [
            Term(f"1/{atom.text}", "", 1 / atom.value, 1),
            Term(f"1/{atom.text}²", "", atom.value**-2.0, 2),
        ]
    pairs = _products(atoms)
    products = [*atoms, *pairs]
    triples = [made for pair in pairs for atom in atoms if (made := _product(pair, atom))]
    sums = [total for product in products for total in _sums(product)]
    scaled = [made for total in sums for product in products if (made := _product(product, total))]
    found: list[Term] = []
    seen: set[bytes] = set()
    for term in sorted([*products, *triples, *sums, *scaled], key=lambda term: term.factors):
        fitted = _fit(term, shape)
        if fitted is None or not fitted.value.any():
            continue
        direction = fitted.value.ravel() / np.abs(fitted.value).max()
        key = np.round(direction * np.sign(direction[np.argmax(np.abs(direction))]), 9).tobytes()
        if key not in seen:
            seen.add(key)
            found.append(fitted)
    return found


def matrix_products(
    terms: Mapping[str, np.ndarray], shape: tuple[int, ...]
) -> Iterator[tuple[str, np.ndarray]]:
    """Products of two terms, each as it is or transposed, that have the shape; leading axes as they are, or
    merged."""
    matrices = {name: value for name, value in terms.items() if value.ndim >= 2 and value.size <= LARGEST}
    for (one, a), (other, b) in itertools.permutations(matrices.items(), 2):
        for merge in (False, True) if max(a.ndim, b.ndim) > 2 else (False,):
            if merge:
                a, b = a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1])
            for (left, p), (right, q) in itertools.product(_orientations(one, a), _orientations(other, b)):
                if p.shape[-1] == q.shape[-2]:
                    try:
                        value = p @ q
                    except ValueError:
                        continue
                    if value.shape == shape:
                        yield f"{left} @ {right}", value


def _orientations(name: str, value: np.ndarray) -> tuple[tuple[str, np.ndarray], tuple[str, np.ndarray]]:
    return (name, value), (f"{name}ᵀ", value.mT)


def _products(atoms: list[Term]) -> list[Term]:
    pairs = itertools.combinations_with_replacement(atoms, 2)
    return [made for one, other in pairs if (made := _product(one, other))]


def _product(one: Term, other: Term) -> Term | None:
    try:
        value = one.value * other.value
    except ValueError:
        return None
    if other.text.startswith("1/"):
        text = one.text + other.text[1:]
    elif one.text.startswith("1/"):
        text = other.text + one.text[1:]
    else:
        text = f"{one.text}²" if one is other else f"{one.text}·{other.text}"
    return Term(text, one.note + other.note, value, one.factors + other.factors)


def _sums(term: Term) -> Iterator[Term]:
    for axis, length in enumerate(term.value.shape):
        if length > 1:
            note = f" (Σ over axis {axis})"
            yield Term(f"Σ({term.text})", note, term.value.sum(axis=axis, keepdims=True), term.factors + 1)


def _fit(term: Term, shape: tuple[int, ...]) -> Term | None:
    """The term in the gradient's shape: repeated along axes it lacks, summed over leading ones too many."""
    value = term.value
    extra = value.ndim - len(shape)
    if extra > 0:
        note = "" if value.shape[:extra] == (1,) * extra else " (Σ over the leading axes)"
        text = f"Σ({term.text})" if note and "Σ" not in term.text else term.text
        term = Term(text, term.note or note, value.sum(axis=tuple(range(extra))), term.factors + bool(note))
    try:
        return Term(term.text, term.note, np.broadcast_to(term.value, shape), term.factors)
    except ValueError:
        return None
