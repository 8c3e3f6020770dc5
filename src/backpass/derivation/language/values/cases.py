"""The values of what depends on a comparison."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import sympy
from lark import Token, Tree

from backpass.derivation.language.calculus import Value
from backpass.derivation.language.values.arrays import each_in_turn
from backpass.derivation.language.values.visitor import Visitor
from backpass.expressions import exact
from backpass.interpreters.symbolic import sign_at

RELATIONS = {
    "=": operator.eq,
    r"\ne": operator.ne, r"\neq": operator.ne, "<": operator.lt, ">": operator.gt,
    r"\le": operator.le, r"\leq": operator.le, r"\ge": operator.ge, r"\geq": operator.ge,
}  # fmt: skip


class Cases(Visitor):
    """Maxima, indicators, and cases."""

    def extreme(self, tree: Tree) -> Value:
        """Return the larger or the smaller of two values."""
        first, second = map(self.visit, tree.children[1:])
        wanted = -1 if tree.children[0] == r"\min" else 1
        is_first = self._signs(tree, first - second, lambda sign: sign == wanted)
        return is_first * first + (1 - is_first) * second

    def absolute(self, tree: Tree) -> Value:
        value = self.visit(tree.children[0])
        return value * self._sign(tree, value)

    def norm(self, tree: Tree) -> Value:
        """Return a norm: the root of the sum of squares, or the sum of the absolute
        values."""
        array, *kind = tree.children
        values = np.ravel(self.visit(array))
        if kind != ["1"]:
            return sympy.sqrt(sympy.Add(*values**2))
        found = []
        for number, value in enumerate(values):
            with self.indexed({" ": number}):
                found.append(value * self._sign(tree, value))
        return sympy.Add(*found)

    def indicator(self, tree: Tree) -> Value:
        first, relation, second = tree.children
        assert isinstance(relation, Token)
        holds = RELATIONS[relation]
        difference = self.visit(first) - self.visit(second)
        return self._signs(tree, difference, lambda sign: holds(sign, 0))

    def _signs(
        self, tree: Tree, difference: Value, holds: Callable[[int], bool]
    ) -> Value:
        """Return 1 where a difference's sign around the point meets a condition, and 0
        elsewhere, for a number or for each element."""
        if not isinstance(difference, np.ndarray):
            return sympy.Integer(holds(self._sign(tree, difference)))

        def of_one(one: sympy.Expr, number: int) -> sympy.Expr:
            with self.indexed({" ": number}):
                return sympy.Integer(holds(self._sign(tree, one)))

        return each_in_turn(difference, of_one)

    def cases(self, tree: Tree) -> Value:
        found = [
            case
            for case in tree.children
            if all([self._applies(one) for one in case.children[1:]])  # each is met
        ]
        if len(found) > 1 and isinstance(found[-1].children[1].children[0], Token):
            found.pop()  # otherwise
        if len(found) != 1:
            self.reject(
                "more than one case applies here" if found else "no case applies here",
                tree,
            )
        return self.visit(found[0].children[0])

    def _applies(self, comparison: Tree) -> bool:
        first, *rest = comparison.children
        if not rest:
            return True  # otherwise
        holds = []
        for relation, second in zip(rest[::2], rest[1::2], strict=True):
            sign = str(relation.children[0])
            if any(one is relation for one in self.current.comparisons):
                value = self.visit(first) - self.visit(second)
                holds.append(RELATIONS[sign](self._sign(relation, value), 0))
            else:
                letters = (next(side.scan_values(bool)) for side in (first, second))
                holds.append(RELATIONS[sign](*map(self.at, letters)))
            first = second
        return all(holds)

    def _sign(self, tree: Tree, difference: sympy.Expr) -> int:
        """Return a difference's sign around the point; 0 if it is identically 0."""
        difference = self.calculus.expand(difference)
        if difference.free_symbols & self.calculus.maxima:
            self.reject("this comparison depends on a maximum", tree)
        assert self.point is not None  # what compares is evaluated around a point
        sign = sign_at(difference, self.point)
        place = self.current.part, tree.meta.start_pos or 0
        path = *self.frame.path, place
        where = (*self.frame.outside, self.frame.place)
        self.signs.setdefault(path, {}).setdefault(where, set()).add(sign)
        differences = self.differences.setdefault(path, {})
        differences.setdefault(where, set()).add(difference)
        if sign == 0 and not self._is_zero(difference):
            self.reject("the sign of this is not known", tree)
        return sign

    def _is_zero(self, difference: sympy.Expr) -> bool:
        try:
            return exact.is_zero(difference)
        except exact.NotRepresentable:
            return False
