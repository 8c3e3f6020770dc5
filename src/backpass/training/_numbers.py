"""Checks of the numbers that a training step is given."""

from __future__ import annotations

import math
from numbers import Integral, Real


def check_count(**numbers: object) -> None:
    """Raise TypeError or ValueError unless each number is an integer of at least 1, and
    not a bool."""
    for name, value in numbers.items():
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise TypeError(f"{name}: expected an integer; got {type(value).__name__}")
        if value < 1:
            raise ValueError(f"{name}: expected an integer of at least 1; got {value}")


def check_rate(**rates: object) -> None:
    """Raise TypeError unless each is a real number; ValueError unless it is finite and
    at least 0."""
    for name, rate in rates.items():
        number = real(name, rate)
        if not (math.isfinite(number) and number >= 0):
            raise ValueError(f"{name}: expected a finite number ≥ 0; got {rate}")


def check_positive(**numbers: object) -> None:
    """Raise TypeError unless each is a real number; ValueError unless it is above 0."""
    for name, value in numbers.items():
        if not real(name, value) > 0:
            raise ValueError(f"{name}: expected a number above 0; got {value}")


def check_share(**shares: object) -> None:
    """Raise TypeError unless each is a real number; ValueError unless it is at least 0
    and below 1."""
    for name, share in shares.items():
        if not 0 <= real(name, share) < 1:
            raise ValueError(
                f"{name}: expected a number of at least 0 and below 1; got {share}"
            )


def real(name: str, value: object) -> float:
    """Return ``value`` as a float. Raises TypeError unless it is a real number."""
    if not isinstance(value, Real):
        raise TypeError(f"{name}: expected a real number; got {type(value).__name__}")
    return float(value)
