"""Arithmetic of numbers and arrays alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import reduce

import numpy as np
import sympy

from backpass.derivation.language.calculus import Value


def each(value: Value, function: Callable[[sympy.Expr], sympy.Expr]) -> Value:
    """Apply a function to a number, or to each element of an array."""
    if not isinstance(value, np.ndarray):
        return function(value)
    return np.vectorize(function, otypes=[object])(value)


def each_in_turn(
    value: Value, function: Callable[[sympy.Expr, int], sympy.Expr]
) -> Value:
    """Apply a function to a number, or to each element of an array and its number: an
    element has its own cases, as an index has."""
    numbers = itertools.count()
    return each(value, lambda one: function(one, next(numbers)))


def units(value: Value) -> list[Value]:
    """Return the unit vectors in the shape of a value."""
    if not isinstance(value, np.ndarray):
        return [sympy.S.One]
    units = []
    for place in np.ndindex(value.shape):
        unit = np.full(value.shape, sympy.S.Zero, dtype=object)
        unit[place] = sympy.S.One
        units.append(unit)
    return units


def added(terms: list[Value]) -> Value:
    """Return the sum of numbers, or of arrays."""
    if any(isinstance(term, np.ndarray) for term in terms):
        return sum((np.asarray(term, dtype=object) for term in terms[1:]), terms[0])
    return sympy.Add(*terms)


def multiplied(first: Value, second: Value) -> Value:
    """Return a product, which is a number if it has one element."""
    if not (isinstance(first, np.ndarray) and isinstance(second, np.ndarray)):
        return first * second
    product = first @ second
    return product[0, 0] if product.shape == (1, 1) else product


def raised(value: Value, exponent: int) -> Value:
    """Return a power of a number, or of a square array by products of matrices."""
    if not isinstance(value, np.ndarray):
        return value**exponent
    return reduce(multiplied, [value] * exponent)


def determinant(value: Value) -> sympy.Expr:
    """Return the determinant of a square array, or a number itself."""
    if not isinstance(value, np.ndarray):
        return value
    return _minor(value, tuple(range(len(value))), {})


def inverse(
    matrix: np.ndarray, is_zero: Callable[[sympy.Expr], bool]
) -> np.ndarray | None:
    """Return the inverse of a square array by its cofactors; None if its determinant is
    0."""
    size, minors = len(matrix), {}
    if is_zero(whole := _minor(matrix, tuple(range(size)), minors)):
        return None
    found = np.empty_like(matrix)
    for row in range(size):
        others = np.delete(matrix, row, axis=0)
        below: dict[tuple[int, ...], sympy.Expr] = {}
        for column in range(size):
            rest = tuple(k for k in range(size) if k != column)
            found[column, row] = (-1) ** (row + column) * (
                _minor(others, rest, below) / whole
            )
    return found


def _minor(
    matrix: np.ndarray,
    columns: tuple[int, ...],
    known: dict[tuple[int, ...], sympy.Expr],
) -> sympy.Expr:
    """Return the determinant of the last rows of an array at some of its columns."""
    if not columns:
        return sympy.S.One
    if columns not in known:
        row = len(matrix) - len(columns)
        known[columns] = sympy.Add(
            *(
                (-1) ** k
                * matrix[row, column]
                * _minor(matrix, columns[:k] + columns[k + 1 :], known)
                for k, column in enumerate(columns)
            )
        )
    return known[columns]
