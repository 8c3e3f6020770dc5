"""Arrays of float64 numbers that bound the rounding error of a lower precision.

    x = rounding.array(numbers, "bfloat16")
    y, saved = softmax.forward(x)
    y.to_numpy()            # computed in float64
    y.d, y.p                # bounds on the error of each element in bfloat16

``d`` is a worst case: no run that rounds as the lines say can exceed it. ``p`` is the
root of the sum of the squares of all local errors, as if they were independent. It is
close to the error of random numbers, and correlated errors exceed it. A sum or product
of 16-bit arrays is computed in float32 and rounded once, as PyTorch does; ``astype``
rounds where it narrows. Numbers given to ``array`` are exact.

``by_line`` says how much each line of an operation contributes to ``d``.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from linecache import getline
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from backpass.interpreters import closed_world
from backpass.interpreters.closed_world import BOOL, INT64, DType, _reduced_last

# The unit roundoff: half of machine epsilon.
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# The error below the smallest normal number: half the spacing there or, where such
# numbers are flushed to 0, the number itself.
TINY = {"float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}
# Numbers from here on are infinite.
LARGEST = {"float32": 2.0**128, "float16": 2.0**16, "bfloat16": 2.0**128}
BITS = {"float32": 24, "float16": 11, "bfloat16": 8}
# The roundings of exp, log, tanh, erf, sin and cos. Arithmetic and sqrt have one.
FUNCTION_UNITS = 4
SHORT = ("float16", "bfloat16")
# The rounding in these files is attributed to the line that calls them.
_HELPERS = (
    str(Path(__file__).parent),
    str(Path(__file__).parents[1] / "contract" / "arrays.py"),
)


@dataclass(frozen=True)
class _Float(DType):
    """A floating-point type.

    ``factor_of`` is a 16-bit type that represents the numbers up to a constant factor.
    They are not rounded again as operands of a tensor core, because a kernel may apply
    the factor after the product.
    """

    factor_of: str | None = field(default=None, compare=False)


_FLOATS = {name: _Float(name, "real floating") for name in UNIT}


class Array(closed_world.Array):
    """Float64 values with errors: ``d``, the worst case, and ``squares``, p squared.

    Both are arrays of the same shape. Integers and booleans are exact.
    """

    __slots__ = ("d", "squares")

    def __init__(self, values, dtype, xp, d=None, squares=None):
        super().__init__(values, dtype, xp)
        self.d = np.broadcast_to(0.0, values.shape) if d is None else d
        self.squares = (
            np.broadcast_to(0.0, values.shape) if squares is None else squares
        )

    @property
    def p(self) -> np.ndarray:
        return np.sqrt(self.squares)

    def to_numpy(self) -> np.ndarray:
        """Return a copy of the values, computed without rounding."""
        return self._values.copy()


class Line(NamedTuple):
    """A source line that rounds, and its share of the bound on each result."""

    place: str  # softmax.py:61
    source: str
    shares: tuple[float, ...]


class Namespace(closed_world.Namespace):
    """The functions of a rounding array.

    ``units`` replaces a type's unit roundoff: a machine that truncates has twice the
    usual one. With ``operands``, each factor of a matrix product is first rounded to
    that 16-bit type, as for tensor cores. With ``short_sums``, every partial sum of
    16-bit numbers is rounded to 16 bits, as NumPy does where it adds rows. With
    ``inverses``, dividing by a Python number is multiplying by its inverse in float32,
    as PyTorch does on a GPU. Without ``random`` there is no ``p``, which halves the
    time.
    """

    float32, float16, bfloat16 = (
        _FLOATS[name] for name in ("float32", "float16", "bfloat16")
    )

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
            return self.asarray(values)
        return self.wrap(rounded(values.astype(np.float64), dtype), _FLOATS[dtype])

    # Creating arrays.

    def wrap(self, values, dtype, d=None, squares=None) -> Array:
        return Array(np.asarray(values), dtype, self, d, squares)

    def asarray(self, values, *, dtype=None, device=None) -> Array:
        if device not in (None, Array.device):
            raise ValueError(f"device: expected {Array.device!r}; got {device!r}")
        if isinstance(values, closed_world.Array):
            own = self._own(values)
            return own if dtype in (None, own.dtype) else self.astype(own, dtype)
        plain = np.asarray(values)
        if plain.dtype.kind in "biu" and dtype in (None, BOOL, INT64):
            dtype = dtype or (BOOL if plain.dtype.kind == "b" else INT64)
            return self.wrap(plain.astype(closed_world._STORAGE[dtype]), dtype)
        if plain.dtype.kind not in "biuf" or dtype not in (None, *_FLOATS.values()):
            raise TypeError(
                f"cannot make an array of {dtype or self.dtype} from NumPy's {plain.dtype}"
            )
        dtype = dtype or self.dtype
        values = plain.astype(np.float64)
        with np.errstate(invalid="ignore"):
            off = np.abs(
                np.where(np.isfinite(values), rounded(values, dtype.name) - values, 0.0)
            )
        return self.wrap(values, dtype, off, off * off)

    def full(self, shape, value, *, dtype=None, device=None) -> Array:
        one = self.asarray(value, dtype=dtype, device=device)
        if one.ndim:
            raise TypeError(
                f"value: expected a single number; got shape {list(one.shape)}"
            )
        shape = shape if isinstance(shape, tuple) else (shape,)
        return self._own(self.broadcast_to(one, shape))

    def astype(self, x: closed_world.Array, dtype: DType) -> Array:
        x = self._own(x)
        if x.dtype == dtype:
            return x
        if dtype == INT64 and x.dtype == BOOL:
            return self.wrap(x._values.astype(np.int64), INT64)
        if dtype not in _FLOATS.values():
            raise TypeError(f"{self.__name__} cannot convert {x.dtype} to {dtype}")
        if x.dtype not in _FLOATS.values():
            return self.wrap(x._values.astype(np.float64), dtype)
        if x.dtype.name in SHORT and dtype == self.float32:
            return self.wrap(
                x._values, replace(dtype, factor_of=x.dtype.name), x.d, x.squares
            )
        return self._rounded(x._values, dtype, x.d, lambda: x.squares)

    # Arithmetic: the propagated error of the operands, then the rounding of the result.

    def add(self, a, b) -> Array:
        return self._sum_of_two(operator.add, a, b)

    def subtract(self, a, b) -> Array:
        return self._sum_of_two(operator.sub, a, b)

    def _sum_of_two(self, operation: Callable, a, b) -> Array:
        a, b = self._pair(a, b)
        if a.dtype in (BOOL, INT64):
            return self._of_integers(operation, a, b)
        with np.errstate(all="ignore"):
            v = operation(a._values, b._values)
            exact = any(not (x._values.any() or x.d.any()) for x in (a, b))  # adding 0
            return self._rounded(
                v,
                _wider(a, b),
                a.d + b.d,
                lambda: a.squares + b.squares,
                0 if exact else 1,
            )

    def multiply(self, a, b) -> Array:
        a, b = self._pair(a, b)
        if a.dtype in (BOOL, INT64):
            return self._of_integers(operator.mul, a, b)
        with np.errstate(all="ignore"):
            p, q = np.abs(a._values), np.abs(b._values)
            d = p * b.d + a.d * q + a.d * b.d
            dtype = _wider(a, b)
            # The factor beside a constant.
            other = a if b.ndim == 0 else b if a.ndim == 0 else None
            if other is not None and dtype == self.float32:
                dtype = replace(
                    dtype,
                    factor_of=other.dtype.factor_of if other.dtype == dtype else None,
                )
            squares = lambda: p * p * b.squares + a.squares * (q * q)  # noqa: E731
            return self._rounded(a._values * b._values, dtype, d, squares)

    def divide(self, a, b) -> Array:
        if self._inverses and isinstance(b, Real):
            return self._multiply_by_inverse(a, b)
        a, b = self._pair(a, b)
        if a.dtype in (BOOL, INT64):
            raise TypeError(f"division needs floating-point numbers; got {a.dtype}")
        with np.errstate(all="ignore"):
            v, q = a._values / b._values, np.abs(b._values)
            d = np.where(b.d < q, (a.d + np.abs(v) * b.d) / (q - b.d), np.inf)
            d = np.where(np.isinf(q), 0.0, d)
            squares = lambda: (a.squares + v * v * b.squares) / (q * q)  # noqa: E731
            return self._rounded(v, _wider(a, b), d, squares)

    def _multiply_by_inverse(self, a, number) -> Array:
        a, b = self._pair(a, number)
        with np.errstate(all="ignore"):
            inverse = 1 / b._values
            off = np.abs(a._values) * np.abs(np.float64(np.float32(inverse)) - inverse)
            d = a.d * np.abs(inverse) + off
            squares = lambda: a.squares * inverse**2 + off**2  # noqa: E731
            return self._rounded(a._values * inverse, _wider(a, b), d, squares)

    def negative(self, x) -> Array:
        x = self._own(x, INT64, *_FLOATS.values())
        return self.wrap(-x._values, x.dtype, x.d, x.squares)

    # Functions: the slope at the value, and the largest effect of an error d.

    def exp(self, x) -> Array:
        return self._function(
            x, np.exp, lambda x, v: v, lambda x, v, d: v * np.expm1(d)
        )

    def log(self, x) -> Array:
        return self._function(
            x,
            np.log,
            lambda x, v: 1 / x,
            lambda x, v, d: np.where(d < x, -np.log1p(-d / x), np.inf),
        )

    def sqrt(self, x) -> Array:
        most = lambda x, v, d: v - np.sqrt(np.maximum(x - d, 0.0))  # noqa: E731
        return self._function(x, np.sqrt, lambda x, v: 0.5 / v, most, 1)

    def tanh(self, x) -> Array:
        slope = lambda x, v: 1 - v * v  # noqa: E731
        return self._function(
            x, np.tanh, slope, lambda x, v, d: slope(x, v) * d + 0.5 * d * d
        )

    def erf(self, x) -> Array:
        slope = lambda x, v: 2 / math.sqrt(math.pi) * np.exp(-x * x)  # noqa: E731
        return self._function(
            x, _erf, slope, lambda x, v, d: slope(x, v) * d + 0.5 * d * d
        )

    def sin(self, x) -> Array:
        return self._function(
            x,
            np.sin,
            lambda x, v: np.cos(x),
            lambda x, v, d: np.abs(np.cos(x)) * d + 0.5 * d * d,
        )

    def cos(self, x) -> Array:
        return self._function(
            x,
            np.cos,
            lambda x, v: np.sin(x),
            lambda x, v, d: np.abs(np.sin(x)) * d + 0.5 * d * d,
        )

    def _function(self, x, function, slope, most, units=FUNCTION_UNITS) -> Array:
        x = self._own(x, *_FLOATS.values())
        with np.errstate(all="ignore"):
            v = function(x._values)
            d = np.where(x.d == 0, 0.0, most(x._values, v, x.d))

            def squares():
                grown = slope(x._values, v) ** 2 * x.squares
                return np.where(x.squares == 0, 0.0, grown)

            return self._rounded(v, _FLOATS[x.dtype.name], d, squares, units)

    def sum(self, x, /, *, axis=None, keepdims=False) -> Array:
        x = self._own(x, INT64, *_FLOATS.values())

        def total(values: np.ndarray) -> np.ndarray:
            terms, kept = _reduced_last(values, axis)
            found = np.asarray(terms.sum(axis=-1))
            return found.reshape(kept) if keepdims else found

        v = total(x._values)
        if x.dtype == INT64:
            return self.wrap(v, INT64)
        count = x.size // max(v.size, 1)
        with np.errstate(all="ignore"):
            d = total(x.d)
            terms = total(np.abs(x._values)) + d
            squares = lambda: total(x._values**2)  # noqa: E731
            return self._accumulated(
                v, x.dtype, count, 0, terms, squares, d, lambda: total(x.squares)
            )

    def matmul(self, a, b) -> Array:
        a, b = self._own(a, *_FLOATS.values()), self._own(b, *_FLOATS.values())
        dtype = _wider(a, b)
        if self._operands and dtype == self.float32:
            a, b = (self._as_operand(x) for x in (a, b))
        A, B = np.abs(a._values), np.abs(b._values)
        with np.errstate(all="ignore"):
            v = a._values @ b._values
            terms = (A + a.d) @ (B + b.d)
            d = np.maximum(terms - A @ B, 0.0) if a.d.any() or b.d.any() else 0.0
            propagated = lambda: (A * A) @ b.squares + a.squares @ (B * B)  # noqa: E731
            squares = lambda: (A * A) @ (B * B)  # noqa: E731
            return self._accumulated(
                v, dtype, a.shape[-1], 1, terms, squares, d, propagated
            )

    def scatter_add(self, rows, index, length) -> Array:
        rows, index = (
            self._own(rows, *_FLOATS.values()),
            self._own(index, INT64)._values,
        )

        def total(values: np.ndarray) -> np.ndarray:
            out = np.zeros((length, *values.shape[1:]))
            np.add.at(out, index, values)
            return out

        v, d = total(rows._values), total(rows.d)
        count = np.bincount(index, minlength=length).reshape(
            length, *[1] * (v.ndim - 1)
        )
        terms = total(np.abs(rows._values)) + d
        squares = lambda: total(rows._values**2)  # noqa: E731
        return self._accumulated(
            v, rows.dtype, count, 0, terms, squares, d, lambda: total(rows.squares)
        )

    # Comparing and choosing, by the values alone.

    def max(self, x, /, *, axis=None, keepdims=False) -> Array:
        x = self._own(x, INT64, *_FLOATS.values())
        values, kept = _reduced_last(x._values, axis)
        if values.shape[-1] == 0:
            raise ValueError("max needs at least one element; got none")
        at = values.argmax(axis=-1)[..., None]
        v = np.take_along_axis(values, at, axis=-1)
        d, squares = (
            _reduced_last(np.asarray(part), axis)[0] for part in (x.d, x.squares)
        )
        with np.errstate(all="ignore"):
            d = (values + d).max(axis=-1, keepdims=True) - v
            d = np.where(np.isfinite(v), d, 0.0)
        shape = kept if keepdims else v.shape[:-1]
        squares = np.take_along_axis(squares, at, axis=-1)
        return self.wrap(
            v.reshape(shape), x.dtype, d.reshape(shape), squares.reshape(shape)
        )

    def where(self, condition, a, b) -> Array:
        a, b = self._pair(a, b)
        chosen = self._own(condition, BOOL)._values
        parts = (
            np.where(chosen, p, q)
            for p, q in ((a._values, b._values), (a.d, b.d), (a.squares, b.squares))
        )
        v, d, squares = parts
        return self.wrap(
            v, a.dtype if a.dtype in (BOOL, INT64) else _wider(a, b), d, squares
        )

    # What the functions above share.

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
            d, random = _without_bound(v, d, random, LARGEST[dtype.name])
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
        d, random = _without_bound(v, d, random, np.inf)
        if wide == dtype.name:
            return self.wrap(v, dtype, d, random)
        return self._rounded(v, dtype, d, lambda: random)

    def _as_operand(self, x: Array) -> Array:
        """Round ``x`` to the 16-bit type of operands, unless it already has 16 bits."""
        assert isinstance(x.dtype, _Float) and self._operands is not None
        if x.dtype.name in SHORT or x.dtype.factor_of:
            return x
        short = self._rounded(
            x._values, _FLOATS[self._operands], x.d, lambda: x.squares
        )
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

    def _of_integers(self, operation: Callable, a: Array, b: Array) -> Array:
        if a.dtype == BOOL:
            raise TypeError(
                "arithmetic needs numbers; got booleans; use where to choose by them"
            )
        return self.wrap(operation(a._values, b._values), INT64)

    def _own(self, x: object, *dtypes: DType) -> Array:
        own = super()._own(x, *dtypes)
        assert isinstance(own, Array)  # `wrap` makes no others
        return own

    def _pair(self, a, b) -> tuple[Array, Array]:
        """Return both as arrays.

        A Python scalar is rounded to float32, in which PyTorch computes in half
        precision.
        """
        if not isinstance(a, Array):
            a = self._beside(a, self._own(b))
        elif not isinstance(b, Array):
            b = self._beside(b, self._own(a))
        a, b = self._own(a), self._own(b)
        if a.dtype.kind != b.dtype.kind:
            raise TypeError(
                "expected two arrays of the same kind of dtype; "
                f"got {a.dtype} and {b.dtype}"
            )
        return a, b

    def _beside(self, value: object, other: closed_world.Array) -> Array:
        if other.dtype not in _FLOATS.values():
            return self._own(super()._beside(value, other))
        if isinstance(value, (bool, np.ndarray)) or not isinstance(value, Real):
            raise TypeError(
                f"expected an array of {self.__name__} or a number; "
                f"got {type(value).__name__}"
            )
        number = self.asarray(float(value), dtype=self.float32)
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
            joined._values, _FLOATS.get(joined.dtype.name, joined.dtype), d, squares
        )


def _relation(relation: Callable) -> Callable:
    def function(self: Namespace, a, b) -> Array:
        a, b = self._pair(a, b)
        with np.errstate(invalid="ignore"):
            return self.wrap(relation(a._values, b._values), BOOL)

    return function


for _symbol, _name in closed_world._RELATIONS.items():
    setattr(Namespace, _name, _relation(getattr(operator, _symbol)))


def _without_bound(
    v, d, squares, largest: float
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the errors for values that may be infinite or NaN.

    The error of such a value is 0, because it is compared as such. There is no bound
    (∞) where the worst case is unknown or reaches ``largest``.
    """
    finite = np.isfinite(v)
    with np.errstate(invalid="ignore"):
        d = np.where(finite, np.where(np.abs(v) + d < largest, d, np.inf), 0.0)
    if squares is not None:
        squares = np.where(finite & ~np.isnan(squares), squares, 0.0)
    return d, squares


def _wider(a: Array, b: Array) -> DType:
    """Return the dtype of a result: float32 if the two differ."""
    return _FLOATS[a.dtype.name if a.dtype == b.dtype else "float32"]


def _erf(x: np.ndarray) -> np.ndarray:
    return np.asarray(_erf_each(x), dtype=np.float64)


_erf_each = np.frompyfunc(math.erf, 1, 1)


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round float64 numbers to the nearest of ``dtype``."""
    if dtype != "bfloat16":
        with np.errstate(over="ignore"):
            return values.astype(dtype).astype(np.float64)
    fraction, exponent = np.frexp(values)
    # There are fewer bits below the smallest normal number.
    bits = BITS[dtype] + np.minimum(exponent + 125, 0)
    short = np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits)
    return np.where(np.abs(short) < LARGEST[dtype], short, np.copysign(np.inf, values))


xp = Namespace()
array = xp.array


def run(
    op: Any,
    inputs: Sequence[object],
    dy: object,
    dtype: str,
    options: dict | None = None,
    xp: Namespace = xp,
    wide: Collection[int] = (),
) -> tuple[Array, tuple[Array | None, ...]]:
    """Run an operation on NumPy arrays at ``dtype``, and at float32 for those in the
    positions ``wide``; return ``y`` and the gradients as rounding arrays."""
    given = [
        xp.array(value, "float32" if at in wide else dtype)
        if isinstance(value, np.ndarray)
        else value
        for at, value in enumerate(inputs)
    ]
    y, saved = op.forward(*given, **(options or {}))
    returned = op.backward(xp.astype(xp.array(dy, dtype), y.dtype), saved)
    return y, returned if isinstance(returned, tuple) else (returned,)


def by_line(
    op: Any,
    inputs: Sequence[object],
    dy: object,
    dtype: str,
    options: dict | None = None,
) -> list[Line]:
    """Return the lines that round, the worst first, with their shares of ``d``.

    There is a share for y and for each gradient, summed over the elements; it is 0 for
    a missing gradient. The operation runs once for each line.
    """
    world = Namespace(random=False)
    world._lines = {}

    def bounds() -> np.ndarray:
        y, gradients = run(op, inputs, dy, dtype, options, world)
        return np.array(
            [0.0 if result is None else result.d.sum() for result in (y, *gradients)]
        )

    whole = bounds()
    lines = []
    for file, number in list(world._lines):
        world._only = file, number
        with np.errstate(invalid="ignore"):
            shares = np.where(whole > 0, bounds() / whole, 0.0)
        lines.append(
            Line(
                f"{Path(file).name}:{number}",
                getline(file, number).strip(),
                tuple(shares.tolist()),
            )
        )
    return sorted(lines, key=lambda line: -max(line.shares))
