"""Name the simple numbers that a gradient may be off by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

_FRACTIONS = {"½": 0.5, "⅓": 1 / 3, "¼": 0.25, "2": 2.0, "3": 3.0, "4": 4.0, "1": 1.0}
# The largest numerator or denominator of other fractions, which are named if one of the
# two is a length.
_LARGEST_PART = 12
ACCURACY, COARSEST = 1e-5, 2e-3  # of a number; and at most in low precision


@dataclass(frozen=True)
class Number:
    """A number with a name: ½, n, 1/√n."""

    value: float
    text: str
    note: str = ""


def name_number(
    value: float,
    lengths: Mapping[int, str],
    options: Mapping[str, float] | None = None,
    accuracy: float = ACCURACY,
) -> Number | None:
    """Return the simple number that is nearest to ``value``, or None if none is near.

    It is the value of an option or 1 over it, a small integer or fraction, or made of a
    length n: n, 1/n, √n, 1/√n, 1 − 1/n.
    """
    size = abs(value)
    of_options = _of_options(options or {})
    near = [
        (number, text, note)
        for number, text, note in (*of_options, *_candidates(size, lengths))
        if abs(size - number) <= accuracy * number
    ]
    if not near:
        return None
    # At the usual accuracy, those that are near are one number with several names.
    number, text, note = near[0]
    if accuracy > ACCURACY:
        number, text, note = min(near, key=lambda of: abs(size - of[0]))
    sign = "−" if value < 0 else ""
    return Number(float(np.copysign(number, value)), sign + text, note)


def _candidates(
    size: float, lengths: Mapping[int, str]
) -> Iterator[tuple[float, str, str]]:
    """Yield simple numbers that ``size`` may be, each with its text and a note on its
    lengths."""

    def note(*numbers: int) -> str:
        known = [f"{n} is {lengths[n]}" for n in numbers if n in lengths]
        return f" ({'; '.join(known)})" if known else ""

    for text, number in _FRACTIONS.items():
        length = round(max(number, 1 / number))
        yield number, text, note(length) if length > 2 else ""
    for length in lengths:
        for text, number in _of_length(length) if length > 1 else ():
            yield number, text, note(length)
    for below in range(2, _LARGEST_PART + 1):
        above = round(size * below)
        if 1 < above <= _LARGEST_PART and math.gcd(above, below) == 1:
            if says := note(above, below):
                yield above / below, f"{above}/{below}", says


def _of_options(options: Mapping[str, float]) -> Iterator[tuple[float, str, str]]:
    """Yield the options' values other than 0 and 1, and 1 over each."""
    for name, value in options.items():
        if abs(value) not in (0.0, 1.0):
            note = f" ({name} is {value:g})"
            yield abs(value), f"{abs(value):g}", note
            yield 1 / abs(value), f"1/{abs(value):g}", note


def _of_length(n: int) -> tuple[tuple[str, float], ...]:
    return (
        (f"{n}", n),
        (f"1/{n}", 1 / n),
        (f"√{n}", n**0.5),
        (f"1/√{n}", n**-0.5),
        (f"(1 − 1/{n})", 1 - 1 / n),
    )
