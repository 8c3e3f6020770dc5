"""Name the simple numbers that a gradient may be off by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

_FRACTIONS = {"½": 0.5, "⅓": 1 / 3, "¼": 0.25, "2": 2.0, "3": 3.0, "4": 4.0, "1": 1.0}
# The largest numerator or denominator of other fractions, which are named if one of the
# two is a length.
_LARGEST_PART = 12


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
