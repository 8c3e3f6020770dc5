"""Roots and prime factors of fractions."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

from backpass.derivation.text.formal.trees import Unclear


def root(factor: Fraction, count: Fraction) -> Fraction:
    """Return a power of a number that is a fraction. Raises `Unclear`."""
    if count.denominator == 1:
        return Fraction(factor ** int(count))
    if count.denominator == 2 and factor > 0:
        above, below = isqrt(factor.numerator), isqrt(factor.denominator)
        if Fraction(above**2, below**2) == factor:
            return Fraction(above, below) ** count.numerator
    raise Unclear("a root of a number")


def primes(value: Fraction) -> list[tuple[int, int]]:
    found = []
    for whole, sign in ((value.numerator, 1), (value.denominator, -1)):
        if whole > 10**6:
            raise Unclear("a large number")
        prime = 2
        while whole > 1:
            if whole % prime == 0:
                found.append((prime, sign))
                whole //= prime
            else:
                prime += 1
    return found
