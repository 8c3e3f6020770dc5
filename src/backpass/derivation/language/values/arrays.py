"""Arithmetic of numbers and arrays alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable

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
