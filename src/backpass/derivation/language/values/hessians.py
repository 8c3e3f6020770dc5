"""The values of second derivatives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import sympy
from lark import Tree

from backpass.derivation.language.calculus import Value
from backpass.derivation.language.names import LOSS
from backpass.derivation.language.values.arrays import each_in_turn
from backpass.derivation.language.values.expectations import Expectations


class Hessians(Expectations):
    """Second derivatives of numbers by numbers and columns."""

    def second(self, tree: Tree) -> Value:
        above, *below = tree.children
        return self._by_two(above, below)

    def second_of(self, tree: Tree) -> Value:
        *below, above = tree.children
        return self._by_two(above, below)

    def _by_two(self, above: Tree, below: list[Tree]) -> Value:
        if len(below) == 1:
            below = [below[0].children[0]] * 2
        names = [one.children[0] if one.data == "transposed" else one for one in below]
        return self._second(above, *names)

    def nabla_second(self, tree: Tree) -> Value:
        *below, above = tree.children
        by = below[0] if below else above.children[1]
        return self._second(above, by, by)

    def _second(self, above: Tree, first: Tree, last: Tree) -> Value:
        """Return the derivatives of a number by the elements of two names, with the
        rows of the first."""
        rows = self.visit(first)
        slopes = self._slopes_of(above, first, np.ravel(rows))
        columns = np.ravel(self.visit(last))
        found = np.empty((len(slopes), len(columns)), dtype=object)
        for i, j in np.ndindex(*found.shape):
            found[i, j] = self.derivative(slopes[i], columns[j])
        return found if isinstance(rows, np.ndarray) else found[0, 0]

    def _slopes_of(
        self, above: Tree, by: Tree, symbols: np.ndarray
    ) -> list[sympy.Expr]:
        found = self.current.references.get(id(above))
        if found is not None and found.name == LOSS:
            variable = replace(self.current.references[id(by)], accent="bar")
            return [*np.ravel(self._variable(variable))]
        value = self.visit(above)
        return [self.derivative(value, symbol) for symbol in symbols]

    def second_slope(self, tree: Tree) -> Value:
        """Return d²/dε² f(x + ε) at ε = 0, of each element."""
        (call,) = self.current.calls[id(tree)]

        def of_one(value: sympy.Expr, number: int) -> Value:
            def slope(moved: Value) -> Value:
                return self._moved(moved, lambda one: self.called(call, [one], number))

            return self._moved(value, slope)

        return each_in_turn(self.visit(tree.children[-1]), of_one)
