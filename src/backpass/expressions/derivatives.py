"""Differentiate a SymPy expression with respect to all symbols in one backward pass.

SymPy's ``diff`` walks the whole expression once for each symbol and simplifies as it
goes. Here each sub-expression is visited once: the derivative with respect to it is
multiplied by its own derivatives with respect to its arguments, which are SymPy's, and
added to theirs. Results are not simplified. They share sub-expressions, which ``exact``
evaluates once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import sympy


def derivatives(
    expression: sympy.Expr, symbols: Sequence[sympy.Symbol]
) -> list[sympy.Expr]:
    """Return the derivative of an expression with respect to each symbol."""
    nodes = arguments_first(expression)
    moving = set(symbols)
    terms: dict[sympy.Symbol, list[sympy.Expr]] = {symbol: [] for symbol in symbols}
    depends = set()  # the ids of the nodes that depend on one of the symbols
    for node in nodes:
        if node in moving or any(id(argument) in depends for argument in node.args):
            depends.add(id(node))
    above: dict[int, list[sympy.Expr]] = {id(expression): [sympy.S.One]}
    for node in reversed(nodes):
        if id(node) not in depends:
            continue
        total = _sum(above.pop(id(node)))
        if node in moving:
            terms[node].append(total)
        for k, argument in enumerate(node.args):
            if id(argument) in depends:
                above.setdefault(id(argument), []).append(
                    _product(total, *_own(node, k))
                )
    return [_sum(terms[symbol]) for symbol in symbols]


def arguments_first(expression: sympy.Expr) -> list[sympy.Expr]:
    """Return the sub-expressions, each object once, after its arguments."""
    ordered, seen = [], set()
    waiting = [(expression, False)]
    while waiting:
        node, has_its_arguments = waiting.pop()
        if has_its_arguments:
            ordered.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            waiting += [(node, True), *((argument, False) for argument in node.args)]
    return ordered


def _own(node: sympy.Expr, k: int) -> Iterator[sympy.Expr]:
    """Yield the factors of a node's derivative with respect to one of its arguments."""
    if node.is_Mul:
        yield from (argument for at, argument in enumerate(node.args) if at != k)
    elif not node.is_Add:
        numbers = tuple(
            argument if argument.is_Number else None for argument in node.args
        )
        places, derivative = _template(node.func, numbers, k)
        yield derivative.xreplace(dict(zip(places, node.args, strict=True)))


@lru_cache(maxsize=1024)
def _template(
    function: type[sympy.Expr], numbers: tuple[sympy.Expr | None, ...], k: int
) -> tuple[tuple[sympy.Expr, ...], sympy.Expr]:
    """Return SymPy's derivative of a function with respect to one argument, and the
    placeholders of the arguments in it."""
    places = tuple(
        sympy.Dummy(real=True) if number is None else number for number in numbers
    )
    return places, function(*places).diff(places[k])


def _sum(terms: list[sympy.Expr]) -> sympy.Expr:
    return terms[0] if len(terms) == 1 else sympy.Add(*terms, evaluate=False)


def _product(*factors: sympy.Expr) -> sympy.Expr:
    factors = tuple(factor for factor in factors if factor is not sympy.S.One)
    return factors[0] if len(factors) == 1 else sympy.Mul(*factors, evaluate=False)
