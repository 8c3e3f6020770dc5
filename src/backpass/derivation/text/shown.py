"""Derivatives through equalities that a text has shown.

With v = \\sum_i x_i^2 and r = 2 x, a text may show v = \\frac{1}{4} \\sum_i r_i^2. A
derivative by r of an expression with v then goes through this equality, or holds v
constant.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from lark import Tree

from backpass.derivation.equality.check import Chain, scope_of
from backpass.derivation.equality.comparing import HOLDING, Refused
from backpass.derivation.language.analysis import Analysis
from backpass.derivation.language.names import Scope
from backpass.derivation.language.parse import Line, Part, Unreadable, parse
from backpass.derivation.language.written import canonical
from backpass.derivation.text.beside import Beside
from backpass.derivation.text.held import other_partials
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.members import Equation, agree, equality

TRIES = 40  # the most choices of equalities that are tried
_DERIVATIVES = (*HOLDING, "nabla", "jacobian", "slope", "second_slope")
Lines = tuple[Line, ...]
_INPUTS = ("given", "constant", "range", "random")


def through_equalities(
    known: Knowledge, equation: Equation, part: Part, chain: Chain
) -> str:
    """Return a question if the members are equal when derivatives go through equalities
    that the text has shown; otherwise ""."""
    if not _has_derivative(chain):
        return ""
    before = known.now
    for lines, chosen in itertools.islice(_readings(known, chain), TRIES):
        known.now = replace(before, lines=lines)
        try:
            holds = _holds(known, equation, part)
        except Unreadable:
            continue
        finally:
            known.now = before
        if holds and all(_still_holds(known, line) for line in chosen):
            return _asks(known, chosen)
    return _asks_for_variables(known, chain)


def _asks_for_variables(known: Knowledge, chain: Chain) -> str:
    """Return a question if an equality above writes a declared name by several names
    that depend on it, as x = (r + d) / 2 for r = x + y and d = x - y; otherwise ""."""
    scope, used = known.scope, known.used(chain.expressions)
    for name, head, part in _shown(known, used):
        if scope.variables[name].kind == "defined":
            continue
        with suppress(Unreadable):
            (expression,) = Analysis(scope).run([part])
            direct = {one.name for one in expression.used if one.kind == "variable"}
            if len(_that_use(scope, name, direct)) > 1:
                where = known.document.where(known.document.line(head.start))
                return (
                    f"it is wrong with the definitions above, but {where} writes {name} by "
                    "names that depend on it: if these are the variables, declare them, and "
                    f"define {name}"
                )
    return ""


def _that_use(scope: Scope, name: str, direct: set[str]) -> list[str]:
    """Return the names that depend on a name."""
    return [
        one for one in direct if name in scope.upstream([scope.variables[one]]) - {one}
    ]


def _readings(known: Knowledge, chain: Chain) -> Iterator[tuple[Lines, Lines]]:
    """Yield the lines with one or two of the equalities as definitions, and these
    definitions."""
    now, used = known.now.lines, known.used(chain.expressions)
    shown = [
        (name, Line("let", head, part)) for name, head, part in _shown(known, used)
    ]
    for count in (1, 2):
        for chosen in itertools.combinations(shown, count):
            lines = now
            with suppress(Unreadable):
                for name, line in chosen:
                    lines = redefined(lines, name, line)
                yield lines, tuple(line for _, line in chosen)


def _has_derivative(chain: Chain) -> bool:
    return any(
        _differentiates(one.tree)
        for expression in chain.expressions
        for one in expression.parts
    ) or any(one.accent for expression in chain.expressions for one in expression.used)


def _differentiates(tree: Tree) -> bool:
    return any(one.data in _DERIVATIVES for one in tree.iter_subtrees())


def _holds(known: Knowledge, equation: Equation, part: Part) -> bool:
    """Whether the members are equal, perhaps with other names held constant."""
    try:
        equality(known, equation.first, equation.anchor, part, equation.beside)
    except Refused as refused:
        return bool(other_partials(known, refused.chain))
    return True


def _still_holds(known: Knowledge, line: Line) -> bool:
    """Whether an equality from above holds with the definitions here."""
    assert line.left is not None and line.right is not None
    return agree(known, line.left, line.left, line.right, Beside())


def _shown(known: Knowledge, used: set[str]) -> Iterator[tuple[str, Part, Part]]:
    """Yield the equalities above that have a used name on one side: the name, this
    side, and the other side."""
    for first, second in reversed(known.shown):
        for head, part in ((first, second), (second, first)):
            name = _name(known.scope, head)
            if name in used and not _differentiates(parse(part)):
                yield name, head, part


def _name(scope: Scope, head: Part) -> str:
    """Return the variable that a side consists of, or ""."""
    try:
        found = scope.resolve(parse(head, "moved"))
    except Unreadable:
        return ""
    is_name = found is not None and found.kind == "variable" and not found.accent
    return found.name if found is not None and is_name else ""


def redefined(lines: Lines, name: str, new: Line) -> Lines:
    """Return lines in which a definition replaces that of the same name, below what it
    uses. Raises `Unreadable` if that is not possible."""
    assert new.right is not None
    scope = scope_of(lines)
    if name not in scope.variables:
        raise Unreadable(f"{name} is not a variable", new.right)
    (expression,) = Analysis(scope).run([new.right])
    direct = {one.name for one in expression.used if one.kind == "variable"}
    if scope.variables[name].kind != "defined":
        return _inverted(lines, scope, name, new, direct)
    above = scope.upstream([scope.variables[one] for one in direct])
    if name in above:
        raise Unreadable(f"{name} would be defined by itself", new.right)
    places = [at for at, line in enumerate(lines) if defines(scope, line, name)]
    if not places:
        raise Unreadable(f"{name} has no definition of its own", new.right)
    (at, *_) = places
    below = lines[at + 1 :]
    moved = [
        line
        for line in below
        if line.kind in _INPUTS or any(defines(scope, line, one) for one in above)
    ]
    rest = [line for line in below if line not in moved]
    found = (*lines[:at], *moved, new, *rest)
    scope_of(found)
    return found


def _inverted(
    lines: Lines, scope: Scope, name: str, new: Line, direct: set[str]
) -> Lines:
    """Return lines in which a declared name is defined by a name that it defined, as in
    x = r / 2 for r = 2 x. Raises `Unreadable` unless there is one such name."""
    by = _that_use(scope, name, direct)
    if len(by) != 1:
        raise Unreadable(f"{name} is declared", new.right)
    inputs, others = _split(lines, scope, name)
    rest = [line for line in others if not defines(scope, line, by[0])]
    found = (*inputs, _declared(scope, "given", by[0]), new, *rest)
    scope_of(found)
    return found


def redeclared(lines: Lines, name: str, new: Line) -> Lines:
    """Return lines with a definition of a name in place of its declaration. Raises
    `Unreadable` if it uses names that depend on the name."""
    assert new.left is not None and new.right is not None
    scope = scope_of(lines)
    found = scope.resolve(parse(new.left, "moved"))
    if found is None or any(not token.isalpha() for token in found.indices):
        raise Unreadable("this is one element", new.left)
    (expression,) = Analysis(scope).run([new.right])
    direct = {one.name for one in expression.used if one.kind == "variable"}
    above = scope.upstream([scope.variables[one] for one in direct])
    if name in above:
        raise Unreadable(f"{name} would be defined by itself", new.right)
    inputs, others = _split(lines, scope, name)
    first = [one for one in others if any(defines(scope, one, n) for n in above)]
    rest = [one for one in others if one not in first]
    changed = (*inputs, *first, new, *rest)
    scope_of(changed)
    return changed


def with_value(lines: Lines, new: Line) -> Lines:
    """Return lines in which a name without a definition has one. Raises
    `Unreadable`."""
    assert new.left is not None
    found = scope_of(lines).resolve(parse(new.left, "moved"))
    if found is not None and found.kind == "variable" and not found.accent:
        return redeclared(lines, found.name, new)
    scope_of((*lines, new))
    return (*lines, new)


def _split(lines: Lines, scope: Scope, name: str) -> tuple[list[Line], list[Line]]:
    """Return the declarations in lines, without that of a name, and the other lines."""
    inputs: list[Line] = []
    others: list[Line] = []
    for line in lines:
        if line.kind in ("given", "constant"):
            inputs += _without(line, scope, name)
        else:
            (inputs if line.kind in _INPUTS else others).append(line)
    return inputs, others


def _without(line: Line, scope: Scope, name: str) -> list[Line]:
    """Return a declaration without one of its names."""
    assert line.right is not None
    names = [
        canonical(tree)
        for declaration in parse(line.right, "declarations").children
        for tree in declaration.children[:-2]
    ]
    if name not in names:
        return [line]
    return [_declared(scope, line.kind, one) for one in names if one != name]


def _declared(scope: Scope, kind: str, name: str) -> Line:
    """Return the declaration of a name with its shape in a scope."""
    if name not in scope.variables:
        raise Unreadable(f"{name} is a sequence")
    variable = scope.variables[name]
    sides = variable.shape[:1] if variable.shape[1:] == ("1",) else variable.shape
    sign = "_{>0}" if variable.positive else ""
    power = r" \times ".join(sides)
    text = rf"{name} \in \mathbb{{R}}{sign}" + (f"^{{{power}}}" if power else "")
    return Line(kind, right=Part(text, 0, text))


def defines(scope: Scope, line: Line, name: str) -> bool:
    """Whether a line defines a name."""
    return (
        line.kind == "let"
        and line.left is not None
        and (_name(scope, line.left) == name)
    )


def _asks(known: Knowledge, lines: Lines) -> str:
    pieces = []
    for line in lines:
        assert line.left is not None
        name = _name(known.scope, line.left)
        where = known.document.where(known.document.line(line.left.start))
        pieces.append(f"{name} is as {where} writes it")
    return (
        f"it is right if {' and '.join(pieces)}, but wrong with the definition above, because "
        "the derivative then goes through other names. If the first is meant, define "
        "the name so"
    )
