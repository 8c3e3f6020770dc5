"""Compare two members where every dimension has length 1.

There, each array is a number. All layouts, products of matrices and of elements, sums
that are written or not, and shapes that a name may have agree. So a difference refutes
an equation in each of these readings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import sympy
from lark import Token, Tree

from backpass.derivation.equality.check import Chain
from backpass.derivation.equality.comparing import Holding
from backpass.derivation.language.analysis import Analysis
from backpass.derivation.language.calculus import Value
from backpass.derivation.language.names import Scope, Shape
from backpass.derivation.language.parse import Part
from backpass.derivation.language.values.points import Point
from backpass.expressions import intervals

DRAWS = 4


class _Numbers(Analysis):
    """Analyses expressions whose arrays all have one element."""

    def unlike(self, one: Shape, other: Shape, tree: Tree, verb: str) -> Shape:
        return one or other

    def unmultiplied(self, one: Shape, other: Shape, tree: Tree) -> Shape:
        return one

    def not_a_number(self, message: str, where: Tree | Token) -> None:
        pass

    def unlike_ranges(self, token: Token, side: str, diagonal: bool) -> None:
        pass

    def unlike_together(self, message: str, where: Token) -> None:
        pass

    def partial(self, tree: Tree) -> Shape:
        if self.scope.chances.random:
            return super().partial(tree)
        above, below = tree.children
        of = () if self._is_loss(above) else self.visit(above)
        return of or self._with_respect_to(below)

    def differentiate(self, tree: Tree) -> Shape:
        operator, argument = tree.children
        by = self._with_respect_to(operator.children[0])
        return self.visit(argument) or by


class _Evaluator(Holding):
    """Evaluates expressions whose arrays all have one element."""

    def fraction(self, tree: Tree) -> Value:
        above, below = map(self.visit, tree.children)
        return self.defined(above / _number(below), tree)

    def root(self, tree: Tree) -> Value:
        return sympy.sqrt(_number(self.visit(tree.children[0])))

    def _element(self, name: str, value: Value, indices: Sequence[Token]) -> Value:
        if any(map(self.at, indices)):
            raise LookupError(name)
        return _number(value)

    def derivative(self, value: Value, symbol: sympy.Symbol) -> sympy.Expr:
        return super().derivative(_number(value), symbol)


def _number(value: Value) -> sympy.Expr:
    """Return the element of an array, or a number itself."""
    return value.item() if isinstance(value, np.ndarray) else value


def single_chain(
    scope: Scope, parts: tuple[Part, ...], condition: Part | None
) -> Chain:
    """Return two members, the last of several parts, as a chain whose arrays have one
    element. Raises `Unreadable` for members without a meaning there."""
    analysis = _Numbers(scope)
    expressions = analysis.run([*dict.fromkeys(parts)], condition)
    conditions = expressions.pop(0) if condition else None
    free: dict[str, str] = {}
    for expression in expressions:
        free |= analysis.dimensions_of(expression)
    return Chain(tuple(expressions[-2:]), (0,), conditions, free)


def differ_as_numbers(
    chain: Chain, scope: Scope, held: frozenset[int], names: frozenset[str]
) -> bool:
    """Whether two members differ where every dimension has length 1.

    The partial derivatives in `held` hold other names constant: the `names`, or without
    any the names in the definition that is differentiated.
    """
    compared = any(one.compared for one in (*scope.definitions, *chain.expressions))
    sizes = dict.fromkeys(scope.dimensions, 1)
    for draw in range(DRAWS if compared else 1):
        evaluator = _Evaluator(scope, sizes, draw if compared else None, held, names)
        expand = evaluator.calculus.expand
        for indices in chain.cases(evaluator):
            above, here = (
                expand(_number(evaluator.value(one, indices, chain.still)))
                for one in chain.expressions
            )
            symbols = above.free_symbols | here.free_symbols
            if symbols & evaluator.calculus.maxima:
                return False
            points: list[Mapping] = [
                {symbol: abs(value[symbol]) for symbol in symbols}
                for value in (Point(one, sizes) for one in range(DRAWS))
            ]
            if evaluator.point is not None:
                points = [evaluator.point]
            if intervals.point_of_difference(above, here, points) is not None:
                return True
    return False
