"""Sequences: names with an index of time, and what stands before and after them.

`range t = 1, \\dots, T` says that t is an index of time. `given x_t \\in \\mathbb{R}^m`
then declares x_1 to x_T, the rows of an array. `let h_t = …` may use h itself at other
times, and names that are defined below, if an element beside the sequence, such as h_0,
is declared. Nothing outside a sequence is 0 unless an assumption says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import sympy
from lark import Tree

from backpass.derivation.language.calculus import Calculus
from backpass.derivation.language.indices import letter_of, shift_of
from backpass.derivation.language.names import (
    LOSS,
    Scope,
    Shape,
    Variable,
    axes_of,
)
from backpass.derivation.language.parse import Line, Part, Unreadable, parse
from backpass.derivation.language.written import (
    accent_and_name,
    canonical,
    subscripts_of,
)

_RANGE = re.compile(
    r"(?P<letter>[a-zA-Z])\s*=\s*1\s*,\s*(?:2\s*,\s*)?(?:\\[cl]?dots|\.\.\.)\s*,?\s*"
    r"(?P<side>[a-zA-Z](?:_(?:\w|\{\w+\}))?)"
)


def declare_range(scope: Scope, line: Line) -> None:
    """Let a letter run over a dimension wherever it is an index. Raises
    `Unreadable`."""
    assert line.right is not None
    match = _RANGE.fullmatch(line.right.text)
    if match is None:
        raise Unreadable(r"expected a range such as t = 1, \dots, T", line.right)
    letter = match["letter"]
    side = canonical(parse(Part(match["side"], 0, match["side"]), "moved"))
    for name in (letter, side):
        if name in scope.variables or (name == letter and name in scope.dimensions):
            raise Unreadable(f"{name} is already declared", line.right)
    if scope.times.setdefault(letter, side) != side:
        raise Unreadable(f"{letter} already runs to {scope.times[letter]}", line.right)
    if side not in scope.dimensions:
        scope.dimensions.append(side)


def promise(scope: Scope, part: Part) -> None:
    """Add each name of a definition that is defined below, if an element beside it is
    declared: h in the gates of a cell, if h_0 is given."""
    for node in parse(part).iter_subtrees():
        if node.data == "reference" and scope.resolve(node) is None:
            accent, name = accent_and_name(node)
            if not accent and subscripts_of(node):
                promise_name(scope, name)


def promise_name(scope: Scope, name: str) -> None:
    """Add a sequence without its definition, if an element beside it is declared."""
    beside = next(scope.beside(name), None)
    if beside is not None and name not in scope.variables:
        shape = beside.shape
        scope.variables[name] = Variable(
            name, ("", *(axes_of(shape) or "1")), "promised"
        )
        if shape:
            scope.slices[name, "i"] = shape


def assume_zero(scope: Scope, line: Line) -> bool:
    """Note what an assumption sets to 0 behind the end of a sequence, such as
    \\bar{h}_{T+1}; return whether the line is one."""
    assert line.left is not None and line.right is not None
    tree = parse(line.left)
    if tree.data == "partial":
        above, tree = tree.children
        loss = scope.resolve(above) if above.data == "reference" else None
        if loss is None or loss.name != LOSS:
            return False
        accent, name = "bar", _name_of(tree)
    elif tree.data == "reference":
        accent, name = accent_and_name(tree)
    else:
        return False
    tokens = subscripts_of(tree)
    if len(tokens) != 1 or letter_of(tokens[0]) not in scope.dimensions:
        return False
    if shift_of(tokens[0]) != 1 or line.right.text != "0":
        raise Unreadable(
            "an assumption about what is behind a sequence sets its element T+1 to 0",
            line.left,
        )
    scope.zeros.add((accent, name, letter_of(tokens[0])))
    return True


def _name_of(tree: Tree) -> str:
    return accent_and_name(tree)[1]


def check_recurrence(scope: Scope, variable: Variable, calculus: Calculus) -> None:
    """Raise `Unreadable` if an element of a sequence is defined by itself."""
    known: set[sympy.Symbol] = set()
    names = scope.upstream([variable])
    if any(scope.variables[name].kind == "promised" for name in names):
        return
    elements = (calculus.element(variable, at) for at in calculus.positions(variable))
    _visit(elements, calculus, known, frozenset(), variable)


def _visit(
    symbols: Iterable[sympy.Symbol],
    calculus: Calculus,
    known: set[sympy.Symbol],
    above: frozenset[sympy.Symbol],
    variable: Variable,
) -> None:
    for symbol in symbols:
        if symbol in above:
            assert variable.definition is not None
            raise Unreadable(
                f"an element of {variable.name} is defined by itself",
                variable.definition.part,
            )
        if symbol in known:
            continue
        definition = calculus.definition(symbol)
        if definition is not None:
            used = sorted(definition.free_symbols, key=str)
            _visit(used, calculus, known, above | {symbol}, variable)
        known.add(symbol)


def shape_of_sequence(sides: Shape, shape: Shape) -> Shape:
    """Return the shape of an array of numbers or of arrays, given their shape."""
    axes = (*sides, *axes_of(shape))
    return (*axes, "1") if len(axes) == 1 else axes
