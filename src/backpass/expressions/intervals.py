"""Show that two SymPy expressions differ, by interval arithmetic at a point.

An expression is enclosed at a point of rational numbers: each operation is rounded
outwards, so the enclosure contains the exact value. If the enclosures of two
expressions are disjoint, the expressions differ there. Nothing follows if they overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sympy
from mpmath.ctx_iv import MPIntervalContext
from sympy.functions.elementary.hyperbolic import HyperbolicFunction

PRECISION = 160  # binary digits
# Enclosures must be apart by this part of the values: far more than their widths.
APART = sympy.Rational(1, 2**40)
LARGEST = 2**12  # of an exponent
_TERMS = 400  # of the series of erf

_iv = MPIntervalContext()
_iv.prec = PRECISION


class NotEnclosed(Exception):
    """Raised for an expression that has no value at the point, or none that is
    known."""


def point_of_difference(a, b, points: Iterable[Mapping]) -> Mapping | None:
    """Return the first point at which two expressions certainly differ; None if there
    is none. A point has a rational number for each symbol."""
    for point in points:
        try:
            one, other = enclosed(a, point), enclosed(b, point)
        except NotEnclosed:
            continue
        apart = _iv.mpf(APART.p) / APART.q * (1 + abs(one) + abs(other))
        if abs(one - other).a > apart.b:
            return point
    return None


def is_enclosed(expr, points: Iterable[Mapping]) -> bool:
    """Whether an expression has an enclosure at one of some points."""
    for point in points:
        try:
            enclosed(expr, point)
        except NotEnclosed:
            continue
        return True
    return False


def enclosed(expr, point: Mapping):
    """Return an interval that contains the value of an expression at a point.

    Raises `NotEnclosed`.
    """
    known: dict = {}

    def of(expr):
        if expr not in known:
            known[expr] = _enclosed(expr, point, of)
        return known[expr]

    return of(sympy.sympify(expr))


def _enclosed(expr, point: Mapping, of):
    if expr.is_Symbol:
        try:
            expr = point[expr]
        except KeyError:
            raise NotEnclosed from None
    if expr.is_Rational:
        return _iv.mpf(int(expr.p)) / int(expr.q)
    if expr is sympy.pi:
        return _iv.pi
    if expr is sympy.E:
        return _iv.exp(_iv.mpf(1))
    if expr.is_Add:
        return sum(map(of, expr.args), _iv.mpf(0))
    if expr.is_Mul:
        product = _iv.mpf(1)
        for factor in expr.args:
            product = product * of(factor)
        return product
    if isinstance(expr, sympy.exp):
        return _exp(of(expr.args[0]))
    if expr.is_Pow:
        return _power(expr.base, expr.exp, of)
    if len(expr.args) == 1:
        return _of_function(expr, of(expr.args[0]), of)
    raise NotEnclosed


def _of_function(expr, argument, of):
    if isinstance(expr, sympy.log):
        return _log(argument)
    if isinstance(expr, sympy.sin):
        return _iv.sin(argument)
    if isinstance(expr, sympy.cos):
        return _iv.cos(argument)
    if isinstance(expr, HyperbolicFunction):
        return of(expr.rewrite(sympy.exp))
    if isinstance(expr, sympy.Abs):
        return abs(argument)
    if isinstance(expr, sympy.sign) and 0 not in argument:
        return _iv.mpf(1 if argument.a > 0 else -1)
    if isinstance(expr, sympy.erf):
        ends = _erf(_iv.mpf(argument.a)), _erf(_iv.mpf(argument.b))
        return _iv.mpf([ends[0].a, ends[1].b])
    raise NotEnclosed


def _power(base, exponent, of):
    value = of(base)
    if exponent.is_Integer:
        power = value ** abs(int(exponent))
        if exponent >= 0:
            return power
        if 0 in power:
            raise NotEnclosed
        return 1 / power
    return _exp(of(exponent) * _log(value))


def _exp(value):
    if not abs(value).b < LARGEST:
        raise NotEnclosed
    return _iv.exp(value)


def _log(value):
    if not value.a > 0:
        raise NotEnclosed
    return _iv.log(value)


def _erf(value):
    """Return an interval that contains erf, by its series at an exact number."""
    if abs(value).b > 6:
        raise NotEnclosed
    square = value * value
    power, total = value, _iv.mpf(0)
    for number in range(_TERMS):
        term = power / (2 * number + 1)
        total += term
        power = -power * square / (number + 1)
        # The terms alternate, and from here on they decrease.
        if number > 2 * square.b and abs(term).b < _iv.mpf(2) ** -PRECISION:
            return (total + _iv.mpf([-1, 1]) * abs(term)) * 2 / _iv.sqrt(_iv.pi)
    raise NotEnclosed
