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
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from linecache import getline
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from backpass.interpreters.array import BOOL, INT64
from backpass.interpreters.bounds import Array, Bounds, wider
from backpass.interpreters.closed_world import reduced_last
from backpass.interpreters.formats import (
    BITS,
    FLOATS,
    LARGEST,
    SHORT,
    TINY,
    UNIT,
    rounded,
)

__all__ = [
    "BITS",
    "LARGEST",
    "SHORT",
    "TINY",
    "UNIT",
    "Array",
    "Line",
    "Namespace",
    "array",
    "by_line",
    "rounded",
    "run",
    "xp",
]


# The roundings of exp, log, tanh, erf, sin and cos. Arithmetic and sqrt have one.
FUNCTION_UNITS = 4


class Line(NamedTuple):
    """A source line that rounds, and its share of the bound on each result."""

    place: str  # softmax.py:61
    source: str
    shares: tuple[float, ...]


def _function(
    function: Callable,
    slope: Callable,
    most: Callable | None = None,
    units: int = FUNCTION_UNITS,
) -> Callable:
    """Return the method of a function v(x), from its slope and ``most``, the largest
    effect of an error d. By default, the second derivative is at most 1."""

    def largest(x: np.ndarray, v: np.ndarray, d: np.ndarray) -> np.ndarray:
        return np.abs(slope(x, v)) * d + 0.5 * d * d

    def method(self: Namespace, x) -> Array:
        x = self._own(x, *FLOATS.values())
        with np.errstate(all="ignore"):
            v = function(x._values)
            d = np.where(x.d == 0, 0.0, (most or largest)(x._values, v, x.d))

            def squares():
                grown = slope(x._values, v) ** 2 * x.squares
                return np.where(x.squares == 0, 0.0, grown)

            return self._rounded(v, FLOATS[x.dtype.name], d, squares, units)

    return method


def _erf(x: np.ndarray) -> np.ndarray:
    return np.asarray(_erf_each(x), dtype=np.float64)


_erf_each = np.frompyfunc(math.erf, 1, 1)


class Namespace(Bounds):
    """The functions of a rounding array."""

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
            v, d = operation(a._values, b._values), a.d + b.d
            exact = any(not (x._values.any() or x.d.any()) for x in (a, b))  # adding 0
            squares = lambda: a.squares + b.squares  # noqa: E731
            return self._rounded(v, wider(a, b), d, squares, 0 if exact else 1)

    def multiply(self, a, b) -> Array:
        a, b = self._pair(a, b)
        if a.dtype in (BOOL, INT64):
            return self._of_integers(operator.mul, a, b)
        with np.errstate(all="ignore"):
            p, q = np.abs(a._values), np.abs(b._values)
            d = p * b.d + a.d * q + a.d * b.d
            dtype = wider(a, b)
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
            return self._rounded(v, wider(a, b), d, squares)

    def _multiply_by_inverse(self, a, number) -> Array:
        a, b = self._pair(a, number)
        with np.errstate(all="ignore"):
            inverse = 1 / b._values
            off = np.abs(a._values) * np.abs(np.float64(np.float32(inverse)) - inverse)
            d = a.d * np.abs(inverse) + off
            squares = lambda: a.squares * inverse**2 + off**2  # noqa: E731
            return self._rounded(a._values * inverse, wider(a, b), d, squares)

    def negative(self, x) -> Array:
        x = self._own(x, INT64, *FLOATS.values())
        return self.wrap(-x._values, x.dtype, x.d, x.squares)

    def _of_integers(self, operation: Callable, a: Array, b: Array) -> Array:
        if a.dtype == BOOL:
            raise TypeError(
                "arithmetic needs numbers; got booleans; use where to choose by them"
            )
        return self.wrap(operation(a._values, b._values), INT64)

    # Functions: the slope at the value, and the largest effect of an error d.

    exp = _function(np.exp, lambda x, v: v, lambda x, v, d: v * np.expm1(d))
    log = _function(
        np.log,
        lambda x, v: 1 / x,
        lambda x, v, d: np.where(d < x, -np.log1p(-d / x), np.inf),
    )
    sqrt = _function(
        np.sqrt,
        lambda x, v: 0.5 / v,
        lambda x, v, d: v - np.sqrt(np.maximum(x - d, 0.0)),
        units=1,
    )
    tanh = _function(np.tanh, lambda x, v: 1 - v * v)
    erf = _function(_erf, lambda x, v: 2 / math.sqrt(math.pi) * np.exp(-x * x))
    sin = _function(np.sin, lambda x, v: np.cos(x))
    cos = _function(np.cos, lambda x, v: -np.sin(x))

    def sum(self, x, /, *, axis=None, keepdims=False) -> Array:
        x = self._own(x, INT64, *FLOATS.values())

        def total(values: np.ndarray) -> np.ndarray:
            terms, kept = reduced_last(values, axis)
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
        a, b = self._own(a, *FLOATS.values()), self._own(b, *FLOATS.values())
        dtype = wider(a, b)
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
        rows = self._own(rows, *FLOATS.values())
        index = self._own(index, INT64)._values

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
        x = self._own(x, INT64, *FLOATS.values())
        values, kept = reduced_last(x._values, axis)
        if values.shape[-1] == 0:
            raise ValueError("max needs at least one element; got none")
        at = values.argmax(axis=-1)[..., None]
        v = np.take_along_axis(values, at, axis=-1)
        d, squares = (
            reduced_last(np.asarray(part), axis)[0] for part in (x.d, x.squares)
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
        dtype = a.dtype if a.dtype in (BOOL, INT64) else wider(a, b)
        pairs = (a._values, b._values), (a.d, b.d), (a.squares, b.squares)
        v, d, squares = (np.where(chosen, p, q) for p, q in pairs)
        return self.wrap(v, dtype, d, squares)


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
