"""Write a FLOP formula as a short product of sums, for a reader and in LaTeX.

The modules write their formulas as the work happens, one product after another. Who
compares operations wants the total.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sympy


def shorter(formula: sympy.Expr) -> sympy.Expr:
    """Return an equal formula with as few characters as the ways tried here give.

    They are: as it is, multiplied out, as a product, and grouped by what terms share. A
    product may be a character longer.
    """
    import sympy

    if not isinstance(formula, sympy.Expr):
        return formula
    expanded = sympy.expand(formula)
    ways = [sympy.factor(formula), _grouped(expanded), expanded, formula]
    return min(ways, key=lambda way: _length(way) - isinstance(way, sympy.Mul))


def _length(formula: sympy.Expr) -> int:
    """Return how many characters a reader sees."""
    return len(re.sub(r"\\\w+|[{}_^ ]", "", to_latex(formula)))


def _grouped(formula: sympy.Expr) -> sympy.Expr:
    """Take out of the terms what they share, then the symbol that most of them share,
    and so on in what is left."""
    import sympy

    if not isinstance(formula, sympy.Add):
        return formula
    shared = sympy.gcd_terms(formula, clear=False)
    common, inside = (
        (sympy.Mul(*shared.args[:-1]), shared.args[-1])
        if isinstance(shared, sympy.Mul) and isinstance(shared.args[-1], sympy.Add)
        else (sympy.Integer(1), formula)
    )
    terms = sympy.Add.make_args(sympy.expand(inside))
    symbols = sorted(inside.free_symbols, key=str)
    count = {symbol: sum(term.has(symbol) for term in terms) for symbol in symbols}
    best = max(symbols, key=count.__getitem__, default=None)
    if best is None or count[best] < 2:
        return common * sympy.Add(*terms)
    having = sympy.Add(*(term for term in terms if term.has(best)))
    rest = sympy.Add(*(term for term in terms if not term.has(best)))
    group = _grouped(having) if rest else sympy.factor_terms(having)
    inside = sympy.Add(group, _grouped(rest))
    return inside if common == 1 else sympy.Mul(common, inside, evaluate=False)


def to_latex(formula: sympy.Expr) -> str:
    """Return the formula in LaTeX. Words are upright, and the positive terms of a sum
    come first."""
    import sympy
    from sympy.printing.latex import LatexPrinter

    class Printer(LatexPrinter):
        def _print_Add(self, expr: sympy.Add, order: str | None = None) -> str:
            terms = self._as_ordered_terms(expr, order=order)
            terms.sort(key=lambda term: term.could_extract_minus_sign())
            return super()._print_Add(sympy.Add(*terms, evaluate=False), order="none")

        def _print_Symbol(self, expr: sympy.Symbol, style: str = "plain") -> str:
            return "_".join(
                rf"{{\text{{{part}}}}}" if re.fullmatch(r"[a-z]{3,}", part) else part
                for part in super()._print_Symbol(expr, style).split("_")
            ).replace("{bias}", r"{\text{bias}}")

    return Printer().doprint(formula)
