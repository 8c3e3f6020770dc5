"""Names that a comment declares, and that an equation of the text may define.

After `given z`, the display z = w x + b neither defines z nor follows from anything. If
it is meant as a definition, lines below it may be right although their sides differ as
functions of z. Such a line is refused only if it is wrong with the definition, too.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from backpass.derivation.equality.check import Chain, scope_of
from backpass.derivation.equality.comparing import Refused
from backpass.derivation.language.analysis import Analysis
from backpass.derivation.language.parse import Line, Part, Unreadable, parse
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.members import Equation, equality
from backpass.derivation.text.shown import INPUTS, defines, without


def contest(known: Knowledge, head: Part, part: Part) -> None:
    """Note that an equation may define a name that a comment declares."""
    if name := is_input(known, head):
        known.contested.setdefault(name, Line("let", head, part))


def is_input(known: Knowledge, head: Part) -> str:
    """Return the name on a left side, if it is declared and not defined; otherwise
    ""."""
    try:
        found = known.scope.resolve(parse(head, "moved"))
    except Unreadable:
        return ""
    if found is None or found.kind != "variable" or found.accent:
        return ""
    return found.name if known.scope.variables[found.name].kind != "defined" else ""


def doubted(known: Knowledge, equation: Equation, part: Part, chain: Chain) -> str:
    """Return why members that differ may be equal, if they use declared names that
    equations above may define; "" if they differ with these definitions, too."""
    variables = known.scope.variables
    declared = {name for name, one in variables.items() if one.kind != "defined"}
    used = known.used(chain.expressions) & known.contested.keys() & declared
    names = sorted(used - known.inferred_names)
    if not names:
        return ""
    before = known.now
    lines = before.lines
    with suppress(Unreadable):
        for name in names:
            lines = _redeclared(lines, name, known.contested[name])
        try:
            known.now = replace(before, lines=lines)
            first, anchor = equation.first, equation.anchor
            equality(known, first, anchor, part, equation.beside)
        except Refused:
            return ""
        finally:
            known.now = before
    (name, *_) = names
    where = known.document.where(known.document.line(_start(known, name)))
    return (
        f"{name} is declared, and {where} may define it: leave {name} out of the "
        "declarations if it does"
    )


def _start(known: Knowledge, name: str) -> int:
    line = known.contested[name]
    assert line.left is not None
    return line.left.start


def _redeclared(lines: tuple[Line, ...], name: str, new: Line) -> tuple[Line, ...]:
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
    inputs: list[Line] = []
    first: list[Line] = []
    rest: list[Line] = []
    for line in lines:
        if line.kind in ("given", "constant"):
            inputs += without(line, scope, name)
        elif line.kind in INPUTS:
            inputs.append(line)
        elif any(defines(scope, line, one) for one in above):
            first.append(line)
        else:
            rest.append(line)
    changed = (*inputs, *first, new, *rest)
    scope_of(changed)
    return changed
