"""The closed-world array: array-API arrays of symbols, or of numbers that count.

NumPy moves the scalars (indexing, reshaping, broadcasting) and never computes with
them. Arithmetic runs scalar by scalar, through the scalars' own operators, so a matrix
product counts, or is proved, because its products and sums ran. A function that the
namespace does not list raises AttributeError, so that nothing goes uncounted or
unproved.

An interpreter is one ``Scalars``; ``Namespace`` and ``Array`` do the rest. Arrays of
integers (tokens, positions) and of booleans (masks) hold plain NumPy values: deciding
where a number goes is not arithmetic on it, and costs nothing.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from functools import partial, reduce
from math import prod
from typing import NoReturn

import numpy as np

from backpass.interpreters.array import BOOL, INT64, Array, DType
from backpass.interpreters.moving import Moving, Scalar, Scalars, elementwise

__all__ = ["BOOL", "INT64", "Array", "DType", "Namespace", "NotOffered", "Scalars"]

Axis = int | tuple[int, ...] | None


def _arithmetic(operation: Callable) -> Callable:
    def function(self: Namespace, a: Array, b: Array) -> Array:
        a, b = self._pair(a, b)
        if a.dtype == BOOL:
            raise TypeError(
                "arithmetic needs numbers; got booleans; use where to choose by them"
            )
        if a.dtype == INT64:
            return self.wrap(operation(a._values, b._values), INT64)
        return self.wrap(elementwise(operation, a._values, b._values), self.dtype)

    return function


def _function(name: str) -> Callable:
    def function(self: Namespace, x: Array) -> Array:
        return self._map(
            lambda value: self.scalars.function(name, value),
            self._own(x, self.dtype)._values,
        )

    return function


def _comparison(relation: Callable) -> Callable:
    def function(self: Namespace, a: Array, b: Array) -> Array:
        a, b = self._pair(a, b)
        with np.errstate(invalid="ignore"):  # comparing NaN gives False, and no warning
            return self.wrap(self._compared(relation, a, b), BOOL)

    return function


def _reduction(of_truths: Callable) -> Callable:
    def function(
        self: Namespace, x: Array, /, *, axis: Axis = None, keepdims: bool = False
    ) -> Array:
        found = of_truths(self._own(x, BOOL)._values, axis=axis, keepdims=keepdims)
        return self.wrap(found, BOOL)

    return function


_PRODUCTS = "a power is written as products"
_INSTEAD = {  # of what a backward may look for, what does the same
    **dict.fromkeys(("pow", "power", "square"), _PRODUCTS),
    "abs": "an absolute value is written where(x < 0, -x, x)",
    "maximum": "the larger of two is written where(a < b, b, a)",
    "minimum": "the smaller of two is written where(a < b, a, b)",
    "mean": "a mean is written as a sum, divided by its length",
}


class NotOffered(AttributeError):
    """Raised for a function ``name`` that the closed world does not have."""


class Namespace(Moving):
    """The functions of one closed world: these, those of ``Moving``, and no others."""

    def __init__(self, scalars: Scalars):
        self.scalars = scalars
        self.dtype = scalars.dtype
        self._floating = (scalars.dtype,)
        self.pi = scalars.pi
        self.__name__ = scalars.name
        setattr(self, scalars.dtype.name, scalars.dtype)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        hint = _INSTEAD.get(name)
        raise NotOffered(
            f"{self.__name__} does not offer {name!r}{f'; {hint}' if hint else ''}. An unlisted function would "
            f"go uncounted and unproved. There are: {', '.join(dir(self))}",
            name=name,
            obj=self,
        )

    def __dir__(self) -> list[str]:
        return sorted(
            name
            for name in {*vars(Moving), *vars(Namespace), *vars(self)}
            if name[0] != "_" and name not in _INTERNAL
        )

    def __repr__(self) -> str:
        return f"<array namespace {self.__name__!r}>"

    # Arithmetic, one scalar at a time.

    add = _arithmetic(operator.add)
    subtract = _arithmetic(operator.sub)
    multiply = _arithmetic(operator.mul)

    def divide(self, a: Array, b: Array) -> Array:
        a, b = self._pair(a, b)
        if a.dtype != self.dtype:
            raise TypeError(f"division needs {self.dtype}; got {a.dtype}")
        return self.wrap(
            elementwise(operator.truediv, a._values, b._values), self.dtype
        )

    def negative(self, x: Array) -> Array:
        x = self._own(x, INT64, self.dtype)
        if x.dtype == INT64:
            return self.wrap(-x._values, INT64)
        return self._map(operator.neg, x._values)

    exp = _function("exp")
    log = _function("log")
    tanh = _function("tanh")
    sqrt = _function("sqrt")
    sin = _function("sin")
    cos = _function("cos")
    erf = _function("erf")  # not in the array API; see backpass.contract.arrays.erf

    def sum(
        self, x: Array, /, *, axis: Axis = None, keepdims: builtins.bool = False
    ) -> Array:
        """Add from left to right: n − 1 additions for n terms. Without terms, 0."""
        x = self._own(x, INT64, self.dtype)
        terms, kept = reduced_last(x._values, axis)
        zero = 0 if x.dtype == INT64 else self.scalars.constant(0)
        total = self._sum_last(terms, zero)
        return self.wrap(total.reshape(kept) if keepdims else total, x.dtype)

    def matmul(self, a: Array, b: Array) -> Array:
        """Multiply, then add from left to right: n products and n − 1 additions for
        each element."""
        a, b = self._own(a, self.dtype), self._own(b, self.dtype)
        if not (a.ndim and b.ndim):
            raise ValueError("a matrix product needs at least one axis on each side")
        left = a._values[np.newaxis] if a.ndim == 1 else a._values
        right = b._values[:, np.newaxis] if b.ndim == 1 else b._values
        if left.shape[-1] != right.shape[-2]:
            raise ValueError(
                f"shapes {list(a.shape)} and {list(b.shape)} have no matrix product"
            )
        # [..., m, 1, n] times [..., 1, p, n], summed over n
        products = elementwise(
            operator.mul,
            left[..., np.newaxis, :],
            right.swapaxes(-1, -2)[..., np.newaxis, :, :],
        )
        total = self._sum_last(products, self.scalars.constant(0))
        if a.ndim == 1:
            total = total[..., 0, :]
        if b.ndim == 1:
            total = total[..., 0]
        return self.wrap(total, self.dtype)

    def scatter_add(self, rows: Array, index: Array, length: int) -> Array:
        """Add ``rows[k, *]`` into ``out[index[k], *]``; return ``out[length, *]``.

        This is not in the array API; see ``contract.arrays.scatter_add``. The first row
        of an index is moved, and each further row is added. A row of ``out`` that no
        index names is 0.
        """
        rows, index = self._own(rows, self.dtype), self._own(index, INT64)
        out = np.full((length, *rows.shape[1:]), self.scalars.constant(0), dtype=object)
        reached = set()
        for row, i in zip(rows._values, index._values.tolist(), strict=True):
            if not 0 <= i < length:
                raise IndexError(
                    f"index: expected integers from 0 to {length - 1}; got {i}"
                )
            out[i] = elementwise(operator.add, out[i], row) if i in reached else row
            reached.add(i)
        return Array(out, self.dtype, self)

    def _sum_last(self, terms: np.ndarray, zero: Scalar) -> np.ndarray:
        if terms.shape[-1] == 0:
            return np.full(terms.shape[:-1], zero, dtype=terms.dtype)
        total = reduce(
            lambda a, b: elementwise(operator.add, a, b), np.moveaxis(terms, -1, 0)
        )
        # NumPy returns a scalar for one term without other axes.
        return np.asarray(total, dtype=terms.dtype)

    # Comparing and choosing, which is free.

    equal = _comparison(operator.eq)
    not_equal = _comparison(operator.ne)
    less = _comparison(operator.lt)
    less_equal = _comparison(operator.le)
    greater = _comparison(operator.gt)
    greater_equal = _comparison(operator.ge)

    def _compared(self, relation: Callable, a: Array, b: Array) -> np.ndarray:
        if a.dtype != self.dtype:
            return relation(a._values, b._values)
        compare = partial(self.scalars.compare, relation)
        return elementwise(compare, a._values, b._values).astype(np.bool_)

    def logical_and(self, a: Array, b: Array) -> Array:
        return self.wrap(self._own(a, BOOL)._values & self._own(b, BOOL)._values, BOOL)

    def logical_or(self, a: Array, b: Array) -> Array:
        return self.wrap(self._own(a, BOOL)._values | self._own(b, BOOL)._values, BOOL)

    def logical_not(self, x: Array) -> Array:
        return self.wrap(~self._own(x, BOOL)._values, BOOL)

    any = _reduction(np.any)
    all = _reduction(np.all)

    def max(
        self, x: Array, /, *, axis: Axis = None, keepdims: builtins.bool = False
    ) -> Array:
        x = self._own(x, INT64, self.dtype)
        values, kept = reduced_last(x._values, axis)
        if values.shape[-1] == 0:
            raise ValueError("max needs at least one element; got none")
        if x.dtype == INT64:
            top = values.max(axis=-1)
        else:
            top = np.empty(values.shape[:-1], dtype=object)
            for index in np.ndindex(top.shape):
                top[index] = self.scalars.maximum(values[index].tolist())
        return self.wrap(np.asarray(top).reshape(kept) if keepdims else top, x.dtype)

    def where(self, condition: Array, a: Array, b: Array) -> Array:
        a, b = self._pair(a, b)
        return self.wrap(
            np.where(self._own(condition, BOOL)._values, a._values, b._values), a.dtype
        )


_INTERNAL = {"wrap", "scalars", "dtype"}


def reduced_last(values: np.ndarray, axis: Axis) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return ``values`` with the axes to reduce merged into a last one, and the
    result's shape with ``keepdims``."""
    rank = values.ndim
    given = (
        range(rank) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    )
    chosen = [operator.index(a) for a in given]
    if len({a % rank for a in chosen if -rank <= a < rank}) != len(chosen):
        raise ValueError(
            f"axis: expected different axes of an array with {rank}; got {axis!r}"
        )
    chosen = [a % rank for a in chosen]
    others = [a for a in range(rank) if a not in chosen]
    shape = tuple(values.shape[a] for a in others)
    kept = tuple(1 if a in chosen else length for a, length in enumerate(values.shape))
    terms = values.transpose(others + chosen).reshape(
        *shape, prod(values.shape[a] for a in chosen)
    )
    return terms, kept
