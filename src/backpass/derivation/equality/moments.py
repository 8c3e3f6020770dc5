"""Whether an equation of expectations that does not follow may be meant.

A text does not always say that names are independent, or have the mean 0, and it names
moments: \\mu for a mean. If such a fact, which is not declared, would make an equation
right, or if it depends on more than means and variances, the equation is not refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from random import Random

import sympy

from backpass.derivation.equality.check import Chain, Evaluators, first_mistake
from backpass.derivation.equality.comparing import Refused, compare, evaluators_of
from backpass.derivation.language.evaluate import Evaluator
from backpass.derivation.language.names import Expression, Scope
from backpass.derivation.language.parse import Unreadable
from backpass.expressions import exact

_WORDS = {
    "independent": "the random names and their elements are independent",
    "identical": "the random names have the same distribution",
    "centred": "the random names have the mean 0",
    "binary": "the random names are 0 or 1",
}
_SAY = "if that is meant, declare it by independent, identical, mean, or variance"


class Supposing(Evaluator):
    """An evaluator that supposes what is not declared of random names."""

    def __init__(
        self,
        scope: Scope,
        sizes: dict[str, int],
        draw: int | None,
        supposed: frozenset[str],
    ) -> None:
        super().__init__(scope, sizes, draw)
        self.supposed = supposed


def undeclared_fact(created: Evaluators, chain: Chain) -> str:
    """Return what a text may mean by an equation of expectations that differs; "" if it
    is wrong whatever is known of its names."""
    scope = created.scope
    if not scope.chances.random or not _averages(scope, chain):
        return ""
    difference, evaluator, sides = _difference(scope, chain)
    outcomes = evaluator.outcomes.symbols
    if not _depends(difference, outcomes, evaluator):
        return ""
    if not all(_depends(side, outcomes, evaluator) for side in sides):
        return f"it states the value of a moment that is not declared; {_SAY}"
    for supposed in _suppositions(scope, chain):
        suppose = partial(Supposing, supposed=supposed)
        try:
            compare(chain, evaluators_of(Evaluators(scope, suppose), chain))
        except (Refused, Unreadable):
            continue
        words = (
            _WORDS[one] for one in _WORDS if any(s.startswith(one) for s in supposed)
        )
        return f"it holds if {', and '.join(words)}; {_SAY}"
    if evaluator.outcomes.beyond:
        return "whether it holds depends on the distribution of its random names"
    if symbol := _moment_in(difference, outcomes, evaluator):
        return f"it may hold if {symbol} is a moment; {_SAY}"
    return ""


def _averages(scope: Scope, chain: Chain) -> bool:
    names = {r.name for e in chain.expressions for r in e.used if r.kind == "variable"}
    used = scope.upstream([scope.variables[name] for name in names])
    if any(r.kind == "loss" or r.accent for e in chain.expressions for r in e.used):
        used |= scope.upstream(scope.outputs())
    definitions = (scope.variables[name].definition for name in used)
    expressions: Iterator[Expression] = itertools.chain(
        chain.expressions, (one for one in definitions if one is not None)
    )
    return any(part.averages for one in expressions for part in one.parts)


def _difference(
    scope: Scope, chain: Chain
) -> tuple[sympy.Expr, Evaluator, tuple[sympy.Expr, sympy.Expr]]:
    """Return the difference of two members, an evaluator that evaluated only these, and
    their values."""
    for evaluator in evaluators_of(Evaluators(scope), chain):
        mistake = first_mistake(chain, evaluator)
        if mistake is not None:
            pair = mistake.above, mistake.here
            if mistake.place:
                pair = tuple(value[mistake.place] for value in pair)
            above, here = map(evaluator.calculus.expand, pair)
            return above - here, evaluator, (above, here)
    raise AssertionError("the members do not differ")


def _depends(
    value: sympy.Expr, outcomes: set[sympy.Symbol], evaluator: Evaluator
) -> bool:
    """Whether a number depends on the distributions of random names."""
    for symbol in sorted(value.free_symbols & outcomes, key=str):
        try:
            if not exact.is_zero(sympy.diff(value, symbol)):
                return True
        except exact.NotRepresentable:
            return True
    return False


def _suppositions(scope: Scope, chain: Chain) -> Iterator[frozenset[str]]:
    """Yield what may be supposed together. A name has the mean 0 only where no side
    writes its mean, and names are independent only where none writes a covariance."""
    nodes = [node for one in chain.expressions for node in one.tree.iter_subtrees()]
    dependent = any(node.data == "covariance" for node in nodes)
    written = {
        one.references[id(node.children[-1].children[0])].name
        for one in chain.expressions
        for node in one.tree.iter_subtrees()
        if node.data == "expectation"
        and id(node.children[-1].children[0]) in one.references
    }
    centred = frozenset(f"centred {name}" for name in scope.chances.random - written)
    some: tuple[frozenset[str], ...] = (frozenset(), centred, frozenset({"binary"}))
    for values in some:
        for more in ((), ("independent",), ("independent", "identical")):
            supposed = values | {*more}
            if supposed and not (more and dependent):
                yield supposed


def _moment_in(
    difference: sympy.Expr, outcomes: set[sympy.Symbol], evaluator: Evaluator
) -> str:
    """Return a constant for which the equation could be solved by a moment; "" if there
    is none."""
    chances = evaluator.scope.chances
    facts = (*chances.means, *chances.variances, *chances.covariances)
    stated = {r.name for _, right, _ in facts for r in right.used}
    symbols = sorted(difference.free_symbols, key=str)
    for symbol in symbols:
        variable, _ = evaluator.calculus.place_of(symbol)
        if variable is None or symbol in outcomes or variable.name in stated:
            continue
        if variable.name in chances.random:
            continue
        polynomials = []
        for draw in range(2):
            point = {
                other: sympy.Rational(
                    Random(f"{other} {draw * (other in outcomes)}").randint(1, 99), 7
                )
                for other in symbols
                if other != symbol
            }
            there = difference.xreplace(point)
            if not there.is_polynomial(symbol):
                return variable.name
            polynomials.append(sympy.Poly(there, symbol))
        one, other = polynomials
        if one.degree() > sympy.gcd(one, other).degree():
            return variable.name
    return ""
