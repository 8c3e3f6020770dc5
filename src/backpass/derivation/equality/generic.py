r"""Equality beyond the field of `exact`: powers such as p^a, and absolute values.

A positive number to the power a + 2 b is p^a (p^b)^2, where p^a and p^b become symbols
of their own. So does |u|, unless the sign of u is known. Expressions that are equal for
all values of these symbols are equal; nothing is known of others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import sympy

from backpass.expressions import exact

LONGEST = 300  # operations of an expression that is rewritten


def are_equal(
    one: sympy.Expr,
    other: sympy.Expr,
    expand: Callable[[sympy.Expr], sympy.Expr],
    signs: Mapping[sympy.Expr, int] = MappingProxyType({}),
) -> bool:
    """Whether two expressions are certainly equal wherever both are defined; where
    `signs` gives the signs of some expressions, wherever these have those signs."""
    symbols: dict[tuple[sympy.Expr, sympy.Expr], sympy.Symbol] = {}
    pair = [expand(side) for side in (one, other)]
    if any(sympy.count_ops(side) > LONGEST for side in pair):
        return False
    rewrite = partial(_rewritten, symbols, signs)
    pair = [side.replace(_is_rewritten, rewrite) for side in pair]
    try:
        return exact.equal(*pair)
    except exact.NotRepresentable:
        return False


def _is_rewritten(expr: sympy.Expr) -> bool:
    if isinstance(expr, sympy.Abs | sympy.exp):
        return True
    return bool(expr.is_Pow and expr.base.is_positive and not expr.exp.is_Rational)


def _rewritten(
    symbols: dict[tuple[sympy.Expr, sympy.Expr], sympy.Symbol],
    signs: Mapping[sympy.Expr, int],
    expr: sympy.Expr,
) -> sympy.Expr:
    new = sympy.Dummy(positive=True)
    if isinstance(expr, sympy.Abs):
        for sign in (1, -1):
            inner = sympy.expand(sign * expr.args[0])
            if inner in signs:
                return signs[inner] * inner
        key = min(inner, sympy.expand(-inner), key=sympy.default_sort_key)
        return symbols.setdefault((key, sympy.S.Zero), new)
    found = []
    for term in sympy.Add.make_args(sympy.expand(expr.exp)):
        count, rest = term.as_coeff_Mul()
        base = expr.base
        if isinstance(expr, sympy.exp):
            base, rest = _of_logarithm(rest)
        if not count.is_Rational or (base == sympy.E and rest != 1):
            found.append(sympy.exp(term))
        elif rest == 1:
            found.append(base**count)
        else:
            for factor, times in _factors(base):
                new = sympy.Dummy(positive=True)
                new = symbols.setdefault((factor, rest), new)
                found.append(new ** (times * count))
    return sympy.Mul(*found)


def _factors(base: sympy.Expr) -> list[tuple[sympy.Expr, sympy.Expr]]:
    """Return positive factors of a positive number, each with its rational exponent."""
    if base.is_Rational:
        primes = sympy.factorrat(base, limit=1000)
        return [(sympy.Integer(one), sympy.Integer(k)) for one, k in primes.items()]
    powers = [factor.as_base_exp() for factor in sympy.Mul.make_args(base)]
    if not all(one.is_positive and k.is_Rational for one, k in powers):
        return [(base, sympy.S.One)]
    found = []
    for one, k in powers:
        more = _factors(one) if one.is_Rational else [(one, sympy.S.One)]
        found += [(factor, times * k) for factor, times in more]
    return found


def _of_logarithm(term: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """Return p and a for the exponent a log p of e, where p is positive; else e and the
    exponent."""
    for factor in sympy.Mul.make_args(term):
        if isinstance(factor, sympy.log) and factor.args[0].is_positive:
            return factor.args[0], term / factor
    return sympy.E, term
