"""Differentiate expressions, each part of them once.

`sympy.diff` gives the same results, but differentiates a part again wherever it occurs,
which is slow for the second derivatives of layers.
"""

from __future__ import annotations

import sympy

_FUNCTIONS = (
    sympy.exp, sympy.log, sympy.tanh, sympy.sinh, sympy.cosh, sympy.sin, sympy.cos,
    sympy.tan, sympy.erf,
)  # fmt: skip


class Slopes:
    """The derivatives of expressions with respect to one symbol."""

    def __init__(self, symbol: sympy.Symbol) -> None:
        self._symbol = symbol
        self._known: dict[sympy.Expr, sympy.Expr] = {symbol: sympy.S.One}

    def of(self, value: sympy.Expr) -> sympy.Expr:
        """Return the derivative of an expression."""
        if value not in self._known:
            self._known[value] = self._new(value)
        return self._known[value]

    def _new(self, value: sympy.Expr) -> sympy.Expr:
        if not value.args:
            return sympy.S.Zero
        if value.is_Add:
            return sympy.Add(*map(self.of, value.args))
        if value.is_Mul:
            terms = []
            for number, factor in enumerate(value.args):
                if (slope := self.of(factor)) != 0:
                    others = value.args[:number] + value.args[number + 1 :]
                    terms.append(sympy.Mul(slope, *others))
            return sympy.Add(*terms)
        if value.is_Pow and self.of(value.exp) == 0:
            if (slope := self.of(value.base)) == 0:
                return sympy.S.Zero
            return value.exp * value.base ** (value.exp - 1) * slope
        if isinstance(value, _FUNCTIONS):
            slope = self.of(value.args[0])
            return value.fdiff(1) * slope if slope != 0 else sympy.S.Zero
        return sympy.diff(value, self._symbol)
