"""Arrays with bounds on their rounding errors: how they are created, moved, rounded,
and summed."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path

import numpy as np

from backpass.interpreters import closed_world
from backpass.interpreters.array import BOOL, INT64, DType
from backpass.interpreters.formats import (
    FLOATS,
    LARGEST,
    SHORT,
    TINY,
    UNIT,
    Float,
    rounded,
)

# The rounding in these files is attributed to the line that calls them.
_HELPERS = (
    str(Path(__file__).parent),
    str(Path(__file__).parents[1] / "contract" / "arrays.py"),
)


class Array(closed_world.Array):
    """Float64 values with errors: ``d``, the worst case, and ``squares``, p squared.

    Both are arrays of the same shape. Integers and booleans are exact.
    """

    __slots__ = ("d", "squares")

    def __init__(self, values, dtype, xp, d=None, squares=None):
        super().__init__(values, dtype, xp)
        exact = np.broadcast_to(0.0, values.shape)
        self.d = exact if d is None else d
        self.squares = exact if squares is None else squares

    @property
    def p(self) -> np.ndarray:
        return np.sqrt(self.squares)

    def to_numpy(self) -> np.ndarray:
        """Return a copy of the values, computed without rounding."""
        return self._values.copy()


class Bounds(closed_world.Namespace):
    """The rules of rounding that all functions of a rounding namespace share.

    ``units`` replaces a type's unit roundoff: a machine that truncates has twice the
    usual one. With ``operands``, each factor of a matrix product is first rounded to
    that 16-bit type, as for tensor cores. With ``short_sums``, every partial sum of
    16-bit numbers is rounded to 16 bits, as NumPy does where it adds rows. With
    ``inverses``, dividing by a Python number is multiplying by its inverse in float32,
    as PyTorch does on a GPU. Without ``random`` there is no ``p``, which halves the
    time.
    """

    float32, float16, bfloat16 = FLOATS.values()
    _floating = tuple(FLOATS.values())
    _kinds = "biuf"

    def __init__(
        self,
        units: dict[str, float] | None = None,
        operands: str | None = None,
        short_sums: bool = False,
        inverses: bool = False,
        random: bool = True,
    ):
        self.__name__ = "backpass.interpreters.rounding"
        self.pi = math.pi
        self.dtype = self.float32  # the default of zeros and ones
        self._units = UNIT | (units or {})
        self._operands = operands
        self._short_sums = short_sums
        self._inverses = inverses
        self._random = random
        # The lines that round, in order, if they are to be recorded.
        self._lines: dict[tuple[str, int], None] | None = None
        # The only line that rounds; None if all do.
        self._only: tuple[str, int] | None = None

    def array(self, values: object, dtype: str) -> Array:
        """Return ``values`` rounded to ``dtype``, which count as exact from there on.

        Integers and booleans are not rounded. Raises ValueError for an unknown
        ``dtype``.
        """
        if dtype not in UNIT:
            raise ValueError(f"dtype: expected {', '.join(UNIT)}; got {dtype!r}")
        values = np.asarray(values)
        if values.dtype.kind in "biu":
            return self._own(self.asarray(values))
        return self.wrap(rounded(values.astype(np.float64), dtype), FLOATS[dtype])

    # Creating arrays.

    def wrap(self, values, dtype, d=None, squares=None) -> Array:
        return Array(np.asarray(values), dtype, self, d, squares)

    def _of_numbers(self, values: np.ndarray, dtype: DType) -> Array:
        values = values.astype(np.float64)
        with np.errstate(invalid="ignore"):
            off = np.abs(
                np.where(np.isfinite(values), rounded(values, dtype.name) - values, 0.0)
            )
        return self.wrap(values, dtype, off, off * off)

    def astype(self, x: closed_world.Array, dtype: DType) -> Array:
        x = self._own(x)
        if x.dtype == dtype:
            return x
        if dtype == INT64 and x.dtype == BOOL:
            return self.wrap(x._values.astype(np.int64), INT64)
        if dtype not in self._floating:
            raise TypeError(f"{self.__name__} cannot convert {x.dtype} to {dtype}")
        if x.dtype not in self._floating:
            return self.wrap(x._values.astype(np.float64), dtype)
        if x.dtype.name in SHORT and dtype == self.float32:
            return self.wrap(
                x._values, replace(dtype, factor_of=x.dtype.name), x.d, x.squares
            )
        return self._rounded(x._values, dtype, x.d, lambda: x.squares)

    # What functions share.

    def _rounded(
        self, v, dtype, d, squares: Callable[[], np.ndarray | None], units: float = 1
    ) -> Array:
        """Return ``v`` with the propagated errors and those of ``units`` roundings.

        ``squares`` is called only if there is a ``p``, and returns its squares then.
        """
        u, tiny = self._own_error(dtype.name)
        size = np.abs(v)
        random: np.ndarray | None = None
        with np.errstate(all="ignore"):
            if self._random:
                propagated = squares()
                assert propagated is not None
                random = propagated + (units * (u * size + tiny)) ** 2
            d = d + units * (u * (size + d) + tiny)
            largest = (size + d).max(initial=0.0)
        # Infinite, unknown, or beyond the largest number.
        if not largest < LARGEST[dtype.name]:
            d, random = without_bound(v, d, random, LARGEST[dtype.name])
        return self.wrap(v, dtype, d, random)

    def _accumulated(
        self, v, dtype, count, products, terms, squares_of_terms, d, squares
    ) -> Array:
        """Return a sum of ``count`` terms, each with ``products`` roundings.

        The order is arbitrary: at worst, each term takes part in ``count − 1``
        additions. Half precision is added in float32, unless ``short_sums`` is set;
        that of matrix products always is.
        """
        short = dtype.name in SHORT and not (self._short_sums and not products)
        wide = "float32" if short else dtype.name
        u, tiny = self._own_error(wide)
        random: np.ndarray | None = None
        with np.errstate(all="ignore"):
            roundings = np.maximum(count - 1, 0) + products
            d = d + np.expm1(roundings * np.log1p(u)) * terms + products * count * tiny
            if self._random:  # partial sums in a random order
                added = np.where(
                    np.greater(count, 1),
                    count * (v * v / 3 + squares_of_terms() / 6),
                    0.0,
                )
                random = squares() + u * u * (added + products * squares_of_terms())
        d, random = without_bound(v, d, random, np.inf)
        if wide == dtype.name:
            return self.wrap(v, dtype, d, random)
        return self._rounded(v, dtype, d, lambda: random)

    def _as_operand(self, x: Array) -> Array:
        """Round ``x`` to the 16-bit type of operands, unless it already has 16 bits."""
        assert isinstance(x.dtype, Float) and self._operands is not None
        if x.dtype.name in SHORT or x.dtype.factor_of:
            return x
        short = self._rounded(x._values, FLOATS[self._operands], x.d, lambda: x.squares)
        return self.wrap(x._values, self.float32, short.d, short.squares)

    def _own_error(self, dtype: str) -> tuple[float, float]:
        """Return the unit roundoff and the smallest error at the line that is running.

        They are 0 if only a different line is to round.
        """
        if self._lines is not None:
            frame = sys._getframe(1)
            while frame.f_code.co_filename.startswith(_HELPERS):
                assert frame.f_back is not None  # the caller is in another file
                frame = frame.f_back
            line = frame.f_code.co_filename, frame.f_lineno
            self._lines[line] = None
            if self._only not in (None, line):
                return 0.0, 0.0
        return self._units[dtype], TINY[dtype]

    def _own(self, x: object, *dtypes: DType) -> Array:
        own = super()._own(x, *dtypes)
        assert isinstance(own, Array)  # `wrap` makes no others
        return own

    def _pair(self, a: object, b: object) -> tuple[Array, Array]:
        a, b = super()._pair(a, b)
        return self._own(a), self._own(b)

    def _check_alike(self, a, b) -> None:
        if a.dtype.kind != b.dtype.kind:
            raise TypeError(
                "expected two arrays of the same kind of dtype; "
                f"got {a.dtype} and {b.dtype}"
            )

    def _compared(self, relation: Callable, a, b) -> np.ndarray:
        return relation(a._values, b._values)

    def _beside(self, value: object, other: closed_world.Array) -> Array:
        """Round a number to float32, in which PyTorch computes half precision."""
        if other.dtype not in self._floating:
            return self._own(super()._beside(value, other))
        if isinstance(value, (bool, np.ndarray)) or not isinstance(value, Real):
            raise TypeError(
                f"expected an array of {self.__name__} or a number; "
                f"got {type(value).__name__}"
            )
        number = self._own(self.asarray(float(value), dtype=self.float32))
        return self.wrap(number._values, other.dtype, number.d, number.squares)

    def _moved(self, x, move: Callable, *how) -> Array:
        x = self._own(x)
        if x.dtype in (BOOL, INT64):
            return self.wrap(move(x._values, *how), x.dtype)
        return self.wrap(
            *(move(x._values, *how), x.dtype),
            *(np.asarray(move(e, *how)) for e in (x.d, x.squares)),
        )

    def _joined(
        self, join: Callable, arrays: Sequence[closed_world.Array], axis: int
    ) -> Array:
        joined = super()._joined(join, arrays, axis)
        d, squares = (
            join([getattr(x, e) for x in arrays], axis=axis) for e in ("d", "squares")
        )
        return self.wrap(
            joined._values, FLOATS.get(joined.dtype.name, joined.dtype), d, squares
        )


def without_bound(
    v, d, squares, largest: float
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the errors for values that may be infinite or NaN.

    An infinite value or NaN has the error 0, because it is compared exactly. The bound
    is ∞ where the worst case is unknown or reaches ``largest``.
    """
    finite = np.isfinite(v)
    with np.errstate(invalid="ignore"):
        d = np.where(finite, np.where(np.abs(v) + d < largest, d, np.inf), 0.0)
    if squares is not None:
        squares = np.where(finite & ~np.isnan(squares), squares, 0.0)
    return d, squares


def wider(a: Array, b: Array) -> DType:
    """Return the dtype of a result: float32 if the two differ."""
    return FLOATS[a.dtype.name if a.dtype == b.dtype else "float32"]
