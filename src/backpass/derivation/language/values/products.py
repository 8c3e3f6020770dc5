"""The values of numbers, sums, products, and matrices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import sympy
from lark import Token, Tree

from backpass.derivation.language.calculus import Value
from backpass.derivation.language.parse import tokens_of
from backpass.derivation.language.values.arrays import added, multiplied
from backpass.derivation.language.values.cases import RELATIONS
from backpass.derivation.language.values.names import Names


class Products(Names):
    """Numbers, powers, sums, products, and matrices."""

    def number(self, tree: Tree) -> Value:
        return sympy.Rational(str(tree.children[0]))

    def fraction(self, tree: Tree) -> Value:
        above, below = map(self.visit, tree.children)
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
        return self.visit(base) ** self.visit(exponent)

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

    def inner(self, tree: Tree) -> Value:
        first, second = map(self.visit, tree.children)
        return sympy.Add(*np.ravel(first * second))

    def big(self, tree: Tree) -> Value:
        sign, limits, *_, body = tree.children
        values = [
            self.where(body, indices) for indices in list(self._ranges(tree, limits))
        ]
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
        for values in itertools.product(
            *(range(self.calculus.size(side)) for side in sides)
        ):
            if relation is None or RELATIONS[relation](values[0], self.at(tokens[-1])):
                yield dict(zip(letters, values, strict=True))
