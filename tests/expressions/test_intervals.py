"""Enclosures contain the value, and disjoint ones show a difference; overlapping ones show nothing."""

import math
from fractions import Fraction
from random import Random

import mpmath
import pytest
import sympy

from backpass.expressions.intervals import NotEnclosed, enclosed, point_of_difference

x, y = sympy.symbols("x y", real=True)
EXPRESSIONS = (
    x**3 / y - sympy.pi,
    sympy.exp(sympy.exp(x)) * sympy.log(1 + y**2),
    sympy.sin(x * y) ** 2 + sympy.cos(sympy.E * x),
    sympy.tanh(x) / (1 + sympy.Abs(y)),
    sympy.erf(x) - sympy.sign(y),
    (1 + x**2) ** sympy.Rational(-2, 3),
    (2 + x**2) ** y,
    sympy.sqrt(x**2) + sympy.sinh(y),
)


def points(count):
    random = Random(39)
    for _ in range(count):
        yield {s: sympy.Rational(random.randint(-200, 200), random.randint(50, 99)) for s in (x, y)}


@pytest.mark.parametrize("expr", EXPRESSIONS, ids=str)
def test_the_enclosure_contains_the_value_and_is_narrow(expr):
    for point in points(20):
        if point[y] == 0:
            continue
        found = enclosed(expr, point)
        with mpmath.workdps(80):
            value = mpmath.mpf(expr.subs(point).evalf(80))
            assert mpmath.mpf(found.a) <= value <= mpmath.mpf(found.b)
            assert mpmath.mpf(found.delta) < mpmath.mpf(10) ** -30 * (1 + abs(value))


@pytest.mark.parametrize(
    "expr", (1 / x, sympy.log(x), sympy.sqrt(x - 1), x**y, sympy.exp(sympy.exp(1000 + x)), sympy.gamma(1 + y))
)
def test_where_nothing_is_known_there_is_no_enclosure(expr):
    with pytest.raises(NotEnclosed):
        enclosed(expr, {x: sympy.S.Zero, y: sympy.Rational(1, 2)})


def test_a_difference_is_found_at_a_point_where_both_sides_are_defined():
    assert point_of_difference(sympy.Abs(x), x, [{x: sympy.Integer(2)}]) is None
    both = [{x: sympy.Integer(2)}, {x: sympy.Integer(-2)}]
    assert point_of_difference(sympy.Abs(x), x, both) == both[1]
    # log x is not defined at -2.
    assert point_of_difference(sympy.log(x**2), 2 * sympy.log(x), both) is None


def test_equal_values_are_not_different():
    one, other = sympy.exp(sympy.exp(x) * sympy.exp(y)), sympy.exp(sympy.exp(x + y))
    assert point_of_difference(one, other, points(20)) is None
    assert point_of_difference(one, other * (1 + sympy.Rational(1, 10**9)), points(1)) is not None


def test_erf_agrees_with_the_float():
    for value in (Fraction(1, 3), Fraction(-5, 2), Fraction(4)):
        found = enclosed(sympy.erf(x), {x: sympy.Rational(value.numerator, value.denominator)})
        assert float(found.mid) == pytest.approx(math.erf(value), rel=1e-15)
