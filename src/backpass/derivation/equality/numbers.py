"""Numbers that keep a line from being refused where inequality is not certain.

The field knows no identities of a logarithm of a sum, nor of a tanh inside another, and
takes the root of a square with either sign. Two
values that differ in the field, and contain one of these, are compared as numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import sympy

from backpass.derivation.language.evaluate import Evaluator
from backpass.derivation.language.values.points import DRAWS, Point

AGREEING = 2  # points at which numbers have to agree
TOLERANCE = sympy.Rational(1, 10**20)


def may_be_equal(a: sympy.Expr, b: sympy.Expr, evaluator: Evaluator) -> bool:
    """Whether two numbers that differ in the field may be equal: that is not certain
    there, and they agree to 20 digits at random points."""
    calculus = evaluator.calculus
    if not any(map(calculus.definitions.is_unsure, (a, b))):
        return False
    agreed = 0
    for point in _points(evaluator):
        one, other = (calculus.at(value, point) for value in (a, b))
        if not (one.is_real and other.is_real):
            continue  # outside the domain of a logarithm
        if abs(one - other) > TOLERANCE * max(1, abs(one)):
            return False
        agreed += 1
        if agreed == AGREEING:
            return True
    return agreed > 0


def _points(evaluator: Evaluator) -> Iterator[Point]:
    if evaluator.point is None:
        for draw in range(DRAWS):
            yield Point(draw, evaluator.sizes)
    else:
        there = Point(evaluator.point.draw, evaluator.sizes)
        there.update(evaluator.point)
        yield there
