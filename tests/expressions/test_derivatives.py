"""Derivatives in one pass: those of SymPy's diff, and each sub-expression visited once."""

import pytest
import sympy

from backpass.expressions import exact
from backpass.expressions.derivatives import derivatives

x, y, z = sympy.symbols("x y z", real=True)
p = sympy.Symbol("p", positive=True)


@pytest.mark.parametrize(
    "expression",
    [
        x,
        x * y + 3 * z,
        x**3 / (y + 2) - x,
        sympy.sqrt(x * y + p),
        p ** sympy.Rational(-3, 2) * x,
        sympy.exp(x * y) / (sympy.exp(x) + sympy.exp(y)),
        sympy.log(sympy.exp(x) + p * sympy.exp(z)),
        sympy.tanh(x * y) ** 2 + sympy.erf(x / sympy.sqrt(2)),
        sympy.sin(x) * sympy.cos(x * z),
        sympy.exp(-(x**2) / 2) / sympy.sqrt(2 * sympy.pi),
        sympy.Mul(x, x, y, evaluate=False),
        sympy.Integer(3),
    ],
    ids=str,
)
def test_they_are_those_of_sympy(expression):
    symbols = [x, y, z, p]
    for symbol, found in zip(symbols, derivatives(expression, symbols), strict=True):
        assert exact.equal(found, expression.diff(symbol))


def test_a_wrong_derivative_would_be_seen():
    (found,) = derivatives(sympy.tanh(x * y), [x])
    assert not exact.equal(found, -sympy.tanh(x * y).diff(x))


def test_each_sub_expression_is_visited_once():
    nested = x
    for _ in range(40):  # as a tree it would have 2^40 leaves
        nested = sympy.Mul(nested, sympy.Add(nested, y, evaluate=False), evaluate=False)
    found = derivatives(nested, [x, y])
    assert not any(map(exact.is_zero, found))
