"""The values of numbers, sums, products, and matrices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import sympy
from lark import Token, Tree

from backpass.derivation.language.calculus import Value
from backpass.derivation.language.names import (
    Shape,
)
from backpass.derivation.language.parse import tokens_of
from backpass.derivation.language.values.arrays import (
    added,
    inverse,
    multiplied,
    raised,
)
from backpass.derivation.language.values.cases import RELATIONS
from backpass.derivation.language.values.names import Names
from backpass.derivation.language.written import (
    canonical,
)


class Products(Names):
    """Numbers, powers, sums, products, and matrices."""

    def number(self, tree: Tree) -> Value:
        return sympy.Rational(str(tree.children[0]))

    def fraction(self, tree: Tree) -> Value:
        above, below = map(self.visit, tree.children)
        if below == 0:
            self.undefined("this divides by 0", tree)
        return above / below

    def power(self, tree: Tree) -> Value:
        base, exponent = tree.children
        if id(tree) in self.current.references:
            value = self.reference(tree)
            is_transposed = exponent.data in ("letter_and_top", "power")
            return value.T if is_transposed else value
        if exponent.data == "top":
            value = self.visit(base)
            return value.T if isinstance(value, np.ndarray) else value
        if exponent.data == "each":  # a power of each element
            return self.visit(base) ** sympy.Rational("".join(tokens_of(exponent)))
        value = self.visit(base)
        if isinstance(value, np.ndarray) and exponent.data == "number":
            return raised(value, int(str(exponent.children[0])))
        if isinstance(value, np.ndarray):
            found = inverse(value, self.is_zero)
            if found is None:
                self.undefined("this matrix has no inverse", tree)
            return found.T if exponent.data == "inverse_top" else found
        return self.defined(value ** self.visit(exponent), tree)

    def root(self, tree: Tree) -> Value:
        return sympy.sqrt(self.visit(tree.children[0]))

    def bracket(self, tree: Tree) -> Value:
        return self.visit(tree.children[0])

    def sum(self, tree: Tree) -> Value:
        if (found := self.current.sums.get(id(tree))) is not None:
            size = self.calculus.size(found.side)
            return added(
                [self.where(found.terms[0], {found.letter: k}) for k in range(size)]
            )
        terms, sign = [], 1
        for child in tree.children:
            if isinstance(child, Token):
                sign = -1 if child == "-" else 1
            else:
                value = self.visit(child)
                value = value.T if id(child) in self.current.spread else value
                terms.append(sign * value)
        return added(terms)

    def matrix(self, tree: Tree) -> Value:
        found = self.current.matrices[id(tree)]
        sizes = [self.calculus.size(one.length) for one in (found.rows, found.columns)]
        values = np.empty(sizes, dtype=object)
        for row, column in np.ndindex(*sizes):
            where = {found.rows.letter: row, found.columns.letter: column}
            values[row, column] = self.where(found.entry(row, column), where)
        return values[0, 0] if sizes == [1, 1] else values

    def largest(self, tree: Tree) -> Value:
        return self.calculus.maximum(tuple(np.ravel(self.visit(tree.children[1]))))

    def product(self, tree: Tree) -> Value:
        first, *rest = map(self.visit, tree.children)
        for factor in rest:
            first = multiplied(first, factor)
        return first

    def hadamard(self, tree: Tree) -> Value:
        first, *rest = map(self.visit, tree.children)
        for factor in rest:
            first = first * factor
        return first

    def outer(self, tree: Tree) -> Value:
        first, second = map(self.visit, tree.children)
        return first @ second.T

    def inner(self, tree: Tree) -> Value:
        first, second = map(self.visit, tree.children)
        return sympy.Add(*np.ravel(first * second))

    def big(self, tree: Tree) -> Value:
        sign, limits, *_, body = tree.children
        assert isinstance(sign, Token) and isinstance(limits, Tree)
        values = [
            self.where(body, indices) for indices in list(self._ranges(tree, limits))
        ]
        shape = self.current.shapes[id(tree)]
        if not values and (sign == r"\max" or not _is_known(shape)):
            self.reject(f"this {sign[1:]} has no terms here", tree)
        if shape and not values:
            of = sympy.Integer(sign != r"\sum")
            return np.full([self.calculus.size(side) for side in shape], of, object)
        if sign == r"\sum":
            return added(values)
        if sign == r"\prod":
            return sympy.Mul(*values)
        if sign == r"\bigodot":
            return math.prod(values[1:], start=values[0])
        return self.calculus.maximum(tuple(values))

    def _ranges(self, tree: Tree, limits: Tree) -> Iterator[dict[str, int]]:
        letters, sides = zip(*self.current.ranges[id(tree)], strict=True)
        tokens = tokens_of(limits)
        relation = next((t for t in tokens if t.type == "RELATION"), None)
        ranges = [self._range(tree, limits, side) for side in sides]
        for values in itertools.product(*ranges):
            if relation is None or RELATIONS[relation](values[0], self.at(tokens[-1])):
                yield dict(zip(letters, values, strict=True))

    def _range(self, tree: Tree, limits: Tree, side: str) -> range:
        """Return the values (zero-based) of an index of a sum over a dimension."""
        lower, first, end = limits.children[-1], 0, self.calculus.size(side)
        if isinstance(lower, Tree):
            first = self.at(*tokens_of(lower))
        for upper in tree.children[2:-1]:
            letter = canonical(upper.children[0])
            if letter in self.frame.indices:
                end = self.frame.indices[letter] + 1
            end += int("".join(tokens_of(upper)) or 0)
        return range(first, end)


def _is_known(shape: Shape) -> bool:
    return not any(side.startswith("?") for side in shape)
