"""The hypotheses that a gradient lacks terms: one, two, or one times powers of an array
with one number a row."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from backpass.verify.diagnosis.dictionary import SIMPLEST
from backpass.verify.diagnosis.evidence import Guess, Pair
from backpass.verify.diagnosis.named import name_number
from backpass.verify.diagnosis.places import number_text
from backpass.verify.diagnosis.terms import Term

# So many of the simplest terms are tried in pairs first. Trying all of them next
# requires more evidence.
PAIRS = 240
SHARE = 0.7  # of the time: the search for two terms ends when it is spent
CHUNK = 256  # terms that are compared with all others at once
POWERS = (1, 2, 3, -1, -2, -3)  # of a number that belongs to a row, such as 1/r


def missing_term(pair: Pair) -> Iterator[Guess]:
    """reference − got is a multiple of one term."""
    terms = pair.dictionary.near(pair.difference, 2 * pair.allowed)
    for term in pair.clock.within(terms):
        value = term.value
        if not value.any():  # as near to a small difference as any other term
            continue
        weight = float(np.vdot(value, pair.difference) / np.vdot(value, value))
        named = name_number(weight, pair.lengths)
        prediction = (named.value if named else weight) * value
        tried = len(pair.dictionary)
        yield _lacks(pair, [weight], [term], prediction, tried, free=not named)


def missing_terms(pair: Pair) -> Iterator[Guess]:
    """reference − got is a combination of two terms, or one times powers of an array
    with one number a row."""
    for count in (PAIRS, SIMPLEST):
        for both, weights in pair.clock.within(_pair_fits(pair, count), SHARE):
            one, other = (w * term.value for w, term in zip(weights, both, strict=True))
            yield _lacks(pair, weights, both, one + other, count**2, free=2)
    yield from _times_powers(pair)


def _lacks(
    pair: Pair,
    weights: Iterable[float],
    terms: Iterable[Term],
    prediction: np.ndarray,
    tried: int,
    free: int,
) -> Guess:
    """Return the guess that ``got`` lacks the weighted sum of the terms."""
    parts = map(_weighted, weights, terms, itertools.repeat(pair))
    says = f"reference − got = {' + '.join(parts)}".replace("+ −", "− ")
    return Guess("missing term", says, pair.difference, prediction, tried, free)


def _times_powers(pair: Pair) -> Iterator[Guess]:
    """reference − got is a term times one power, or the sum of two powers, of an array
    with one number a row, such as a saved 1/r."""
    d = pair.difference
    rows = {
        name: row
        for name, row in pair.terms.items()
        if row.ndim == d.ndim
        and row.shape == (*d.shape[:-1], 1) != d.shape
        and row.all()
    }
    terms = pair.dictionary.near(d, 2 * pair.allowed, by_row=True) if rows else []
    tried = len(pair.dictionary) * len(POWERS) ** 2 if rows else 0
    each = itertools.product(rows.items(), terms)
    for (name, row), term in pair.clock.within(each, SHARE):
        ratio = _weight_of_rows(term.value, d, 2 * pair.allowed)
        if ratio is None:
            continue
        columns = {power: row.ravel() ** power for power in POWERS}
        for count in (1, 2):
            if len(np.unique(row)) <= count:
                break  # there are as many free numbers as values to explain
            for powers in itertools.combinations(POWERS, count):
                matrix = np.stack([columns[power] for power in powers], axis=1)
                weights, *_ = np.linalg.lstsq(matrix, ratio.ravel(), rcond=None)
                prediction = (matrix @ weights).reshape(row.shape) * term.value
                made = [
                    replace(term, text=f"{_power(name, power)}·{term.text}")
                    for power in powers
                ]
                yield _lacks(pair, weights, made, prediction, tried, free=count)


def _weight_of_rows(
    value: np.ndarray, d: np.ndarray, allowed: float
) -> np.ndarray | None:
    """Return the term's weight in every row, if the weights nearly reproduce the
    difference; otherwise None."""
    size = (value**2).sum(axis=-1, keepdims=True)
    if not size.all():
        return None
    weights = (value * d).sum(axis=-1, keepdims=True) / size
    return weights if np.abs(weights * value - d).max() <= allowed else None


def _power(name: str, power: int) -> str:
    """Return ``r²`` or ``1/r``."""
    size = name + ("", "²", "³")[abs(power) - 1]
    return size if power > 0 else f"1/{size}"


def _pair_fits(
    pair: Pair, count: int
) -> Iterator[tuple[tuple[Term, Term], np.ndarray]]:
    """Yield pairs of the simplest terms that nearly reproduce the difference, with
    their least-squares weights."""
    terms, columns = pair.dictionary.simplest
    terms, columns = terms[:count], columns[:count]
    if len(terms) < 2:
        return
    d = np.ravel(pair.difference[pair.dictionary.index])
    along, whole = columns @ d, d @ d
    for start in range(0, len(terms), CHUNK):
        if pair.clock.over(SHARE):
            return
        cosines = columns[start : start + CHUNK] @ columns.T
        sines = 1 - cosines**2
        with np.errstate(all="ignore"):
            explained = (
                along - along[start : start + CHUNK, None] * cosines
            ) ** 2 / sines
        unexplained = whole - along[start : start + CHUNK, None] ** 2 - explained
        later = np.arange(len(terms)) > np.arange(start, start + len(cosines))[:, None]
        for i, j in np.argwhere(
            later & (sines > 1e-12) & (unexplained <= 1e-6 * whole)
        ):
            made = pair.dictionary.made
            both = made(terms[start + i]), made(terms[j])
            at_sample = np.stack(
                [term.at(pair.dictionary.index) for term in both], axis=1
            )
            weights, *_ = np.linalg.lstsq(at_sample, d, rcond=None)
            if np.abs(at_sample @ weights - d).max() <= pair.allowed:
                yield both, weights


def _weighted(weight: float, term: Term, pair: Pair) -> str:
    """Return ``−½·y·Σ(dy·y) (Σ over axis 1)``."""
    named = name_number(weight, pair.lengths)
    text = named.text if named else number_text(weight, 6)
    text = {"1": "", "−1": "−"}.get(text, f"{text}·")
    return f"{text}{term}"
