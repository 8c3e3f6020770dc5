"""The values of derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import sympy
from lark import Tree

from backpass.derivation.language.calculus import Value
from backpass.derivation.language.names import LOSS
from backpass.derivation.language.values.arrays import each, each_in_turn, units
from backpass.derivation.language.values.calls import Calls
from backpass.derivation.language.values.names import Names


class Derivatives(Names, Calls):
    """Derivatives of names and of functions, and norms."""

    def partial(self, tree: Tree) -> Value:
        above, below = tree.children
        loss = self.current.references.get(id(above))
        if loss is not None and loss.name == LOSS:
            variable = self.current.references[id(below)]
            gradient = self._variable(replace(variable, accent="bar"))
            return self._laid_out(gradient)
        return self._by(self.visit(above), self.visit(below))

    def _by(self, values: Value, symbols: Value) -> Value:
        """Return the derivatives of a value by a name, in the declared layout."""
        if isinstance(values, np.ndarray):
            return self._jacobian(np.ravel(values), np.ravel(symbols))
        slopes = each(symbols, lambda symbol: self.derivative(values, symbol))
        return self._laid_out(slopes)

    def _laid_out(self, slopes: Value) -> Value:
        """Return the derivatives of a number by an array in the declared layout."""
        is_row = self.scope.layout == "numerator" and isinstance(slopes, np.ndarray)
        return slopes.T if is_row else slopes

    def derivative(self, value: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr:
        """Differentiate a number with respect to an element."""
        if self.scope.direct:
            return self.calculus.direct(value, symbol)
        return self.calculus.derivative(value, symbol)

    def _jacobian(self, values: np.ndarray, symbols: np.ndarray) -> Value:
        """Return the derivatives of a column by a column, in the declared layout."""
        rows = [[self.derivative(v, s) for s in symbols] for v in values]
        jacobian = np.array(rows, dtype=object)
        return jacobian.T if self.scope.layout == "denominator" else jacobian

    def differentiate(self, tree: Tree) -> Value:
        operator, argument = tree.children
        return self._by(self.visit(argument), self.visit(operator.children[0]))

    def differential(self, tree: Tree) -> Value:
        """Return d/dε f(x + ε v) at ε = 0."""
        call, direction = tree.children
        return self._along(call, self.visit(call.children[1]), self.visit(direction))

    def _along(self, call: Tree, argument: Value, direction: Value) -> Value:
        """Return the derivative of a function at an argument in a direction."""

        def function(moved: Value) -> Value:
            if call.data == "apply":
                return self.applied_to(call.children[0], moved)
            return self.value_of(call, [moved])

        return self._moved(argument, function, direction)

    def change(self, tree: Tree) -> Value:
        value, still = self.visit(tree.children[0]), self.frame.still
        return each(value, lambda one: self.calculus.change(one, still))

    def jacobian(self, tree: Tree) -> Value:
        """Return the derivatives of f(x) by x, in the declared layout."""
        argument, slopes = self._slopes(tree)
        if not any(isinstance(one, np.ndarray) for one in (argument, slopes[0])):
            return slopes[0]
        by_columns = np.array([np.ravel(slope) for slope in slopes], dtype=object)
        return by_columns if self.scope.layout == "denominator" else by_columns.T

    def nabla(self, tree: Tree) -> Value:
        """Return the derivatives of f(x) by the elements of x, in the shape of x."""
        argument, slopes = self._slopes(tree)
        if not isinstance(argument, np.ndarray):
            return slopes[0]
        return np.array(slopes, dtype=object).reshape(argument.shape)

    def _slopes(self, tree: Tree) -> tuple[Value, list[Value]]:
        """Return x, and the derivatives of f(x) by each of its elements."""
        (call,) = tree.children
        argument = self.visit(call.children[1])
        return argument, [self._along(call, argument, one) for one in units(argument)]

    def nabla_of(self, tree: Tree) -> Value:
        below, above = tree.children
        value = self.visit(above)
        return each(self.visit(below), lambda symbol: self.derivative(value, symbol))

    def _moved(
        self,
        argument: Value,
        function: Callable[[Value], Value],
        along: Value = sympy.S.One,
    ) -> Value:
        """Return d/dε function(argument + ε · along) at ε = 0."""
        epsilon = sympy.Symbol(f"ε{len(self.moving)}", real=True)
        self.moving.append(epsilon)
        if self.point is not None:
            self.point[epsilon] = sympy.S.Zero
        try:
            value = function(argument + epsilon * along)
        finally:
            if self.point is not None:
                del self.point[epsilon]
            self.moving.pop()
        return each(value, lambda v: self.calculus.derivative_at_zero(v, epsilon))

    def at_point(self, tree: Tree) -> Value:
        """Return a value where inputs have given values."""
        above, *places = tree.children
        if self.point is not None:
            self.reject("a value at a point is not read beside comparisons", tree)
        calculus = self.calculus
        value = self.visit(above)
        there: dict[sympy.Symbol, sympy.Expr] = {}
        for name, given in zip(places[::2], places[1::2], strict=True):
            symbols = np.ravel(self.visit(name))
            values = np.broadcast_to(np.ravel(self.visit(given)), symbols.shape)
            there |= dict(zip(symbols, map(calculus.expand, values), strict=True))
        if any(s.is_positive and not v.is_positive for s, v in there.items()):
            self.reject("a positive name is positive at each point", tree)

        def of_one(one: sympy.Expr) -> sympy.Expr:
            one = calculus.expand(one)
            if one.free_symbols & calculus.maxima:
                self.reject("a maximum is not read at a point", tree)
            found = one.xreplace(there)
            if found.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo):
                self.undefined("this has no value at that point", tree)
            return found

        return each(value, of_one)

    def slope(self, tree: Tree) -> Value:
        """Return d/dε f(x + ε) at ε = 0, of each element."""
        (call,) = self.current.calls[id(tree)]

        def of_one(value: sympy.Expr, number: int) -> Value:
            return self._moved(value, lambda moved: self.called(call, [moved], number))

        return each_in_turn(self.visit(tree.children[-1]), of_one)

    def directional(self, tree: Tree) -> Value:
        above, below, direction = tree.children
        along = np.ravel(self.visit(direction))
        variable = self.current.references[id(below)]
        found = self.current.references.get(id(above))
        if found is not None and found.kind == "loss":
            gradient = self._variable(replace(variable, accent="bar"))
            return sympy.Add(*(np.ravel(gradient) * along))
        symbols = np.ravel(self.visit(below))

        def moved(value: sympy.Expr) -> sympy.Expr:
            slopes = [self.derivative(value, symbol) for symbol in symbols]
            return sympy.Add(*(np.array(slopes, dtype=object) * along))

        return each(self.visit(above), moved)
