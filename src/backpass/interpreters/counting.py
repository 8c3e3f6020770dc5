"""Arrays of float64 numbers that count the arithmetic done with them.

    x = counting.array(numpy_array)
    with counting.tally() as t:
        y, saved = softmax.forward(x)
    t.total, t.by_kind     # 4n − 1 a row; {'subtract': …, 'exp': …, …}

One addition, subtraction, multiplication, division, exp, log, tanh, erf, sqrt, sin or
cos counts 1. Negation, comparison, max, where, indexing and moving count 0, and so does
arithmetic on integers, which only decides where a number goes. The results are NumPy's,
except that a sum is added from left to right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Real

import numpy as np

from backpass.interpreters.closed_world import Array, DType, Namespace

KINDS = tuple("add subtract multiply divide exp log tanh erf sqrt sin cos".split())

# Everything counted so far. A tally is the difference of two readings.
_odometer = dict.fromkeys(KINDS, 0)


class Tally:
    """The operations counted in a ``tally()`` block: ``total`` and ``by_kind``.

    ``by_kind`` has only the kinds that occurred.
    """

    def __init__(self) -> None:
        self._start = dict(_odometer)
        self._stop: dict[str, int] | None = None

    @property
    def by_kind(self) -> dict[str, int]:
        end = self._stop or _odometer
        return {
            kind: end[kind] - self._start[kind]
            for kind in KINDS
            if end[kind] > self._start[kind]
        }

    @property
    def total(self) -> int:
        return sum(self.by_kind.values())

    def __repr__(self) -> str:
        kinds = ", ".join(f"{kind} {n}" for kind, n in self.by_kind.items())
        return f"Tally({self.total}: {kinds})" if kinds else "Tally(0)"


@contextmanager
def tally() -> Iterator[Tally]:
    """Count the scalar operations on counting arrays within the block. Tallies nest."""
    opened = Tally()
    try:
        yield opened
    finally:
        opened._stop = dict(_odometer)


class Number:
    """A float64 number that counts its arithmetic, which is only with other Numbers."""

    __slots__ = ("value",)

    def __init__(self, value: float):
        self.value = value

    def __add__(self, other: Number) -> Number:
        _odometer["add"] += 1
        return Number(self.value + other.value)

    def __sub__(self, other: Number) -> Number:
        _odometer["subtract"] += 1
        return Number(self.value - other.value)

    def __mul__(self, other: Number) -> Number:
        _odometer["multiply"] += 1
        return Number(self.value * other.value)

    def __truediv__(self, other: Number) -> Number:
        _odometer["divide"] += 1
        try:
            return Number(self.value / other.value)
        except ZeroDivisionError:  # IEEE 754 has a result where Python raises
            return Number(float(np.divide(self.value, other.value)))

    def __neg__(self) -> Number:
        return Number(-self.value)

    def __repr__(self) -> str:
        return repr(self.value)


_FUNCTIONS = {
    name: getattr(np, name) for name in ("exp", "log", "tanh", "sqrt", "sin", "cos")
}
_FUNCTIONS["erf"] = math.erf


class _Numbers:
    """The counting interpreter's scalars."""

    name = "backpass.interpreters.counting"
    dtype = DType("float64", "real floating")
    pi = math.pi

    def constant(self, value: object) -> Number:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"expected a real number; got {value!r}")
        return Number(float(value))

    def function(self, name: str, x: Number) -> Number:
        _odometer[name] += 1
        return Number(float(_FUNCTIONS[name](x.value)))

    def compare(self, relation: Callable, a: Number, b: Number) -> bool:
        return relation(a.value, b.value)

    def maximum(self, values: Sequence[Number]) -> Number:
        # NumPy's max, so that NaN stays NaN.
        return Number(float(np.max([x.value for x in values])))

    def export(self, values: np.ndarray) -> np.ndarray:
        return np.array([x.value for x in values.flat], dtype=np.float64).reshape(
            values.shape
        )


xp = Namespace(_Numbers())


def array(values: object) -> Array:
    """Return a counting array of a NumPy array, a nested list or a number.

    Integers and booleans are not counted. Raises TypeError for anything other than real
    numbers.
    """
    return xp.asarray(values)
