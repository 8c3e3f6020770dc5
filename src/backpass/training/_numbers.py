"""Checks of the numbers that a training step is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any


def check_integer(**numbers: object) -> None:
    """Raise TypeError unless each number is an integer, and not a bool."""
    for name, value in numbers.items():
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise TypeError(f"{name}: expected an integer; got {type(value).__name__}")


def check_count(**numbers: Any) -> None:
    """Raise TypeError or ValueError unless each number is an integer of at least 1, and
    not a bool."""
    for name, value in numbers.items():
        check_integer(**{name: value})
        if value < 1:
            raise ValueError(f"{name}: expected an integer of at least 1; got {value}")


def check_rate(**rates: object) -> None:
    """Raise TypeError unless each is a real number; ValueError unless it is finite and
    at least 0."""
    check_reals(rates, "a finite number ≥ 0", lambda x: 0 <= x < math.inf)


def check_positive(**numbers: object) -> None:
    """Raise TypeError unless each is a real number; ValueError unless it is above 0."""
    check_reals(numbers, "a number above 0", lambda x: x > 0)


def check_share(**shares: object) -> None:
    """Raise TypeError unless each is a real number; ValueError unless it is at least 0
    and below 1."""
    check_reals(shares, "a number of at least 0 and below 1", lambda x: 0 <= x < 1)


def check_reals(
    numbers: Mapping[str, object], expected: str, fits: Callable[[float], bool]
) -> None:
    """Raise TypeError unless each is a real number; ValueError unless it ``fits``."""
    for name, number in numbers.items():
        if not isinstance(number, Real):
            came = type(number).__name__
            raise TypeError(f"{name}: expected a real number; got {came}")
        if not fits(float(number)):
            raise ValueError(f"{name}: expected {expected}; got {number}")
