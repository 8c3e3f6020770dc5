"""Derivatives through equalities that a text has shown.

With v = \\sum_i x_i^2 and r = 2 x, a text may show v = \\frac{1}{4} \\sum_i r_i^2. The
derivative by r of what uses v then goes through this equality, or holds v constant.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from backpass.derivation.equality.check import Chain, scope_of
from backpass.derivation.equality.comparing import HOLDING, Refused
from backpass.derivation.language.analysis import Analysis
from backpass.derivation.language.names import Scope
from backpass.derivation.language.parse import Line, Part, Unreadable, parse
from backpass.derivation.text.beside import Beside
from backpass.derivation.text.held import other_partials
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.members import Equation, agree, equality

TRIES = 12  # at most so many choices of equalities
_DERIVATIVES = (*HOLDING, "nabla", "jacobian", "slope", "second_slope")
_INPUTS = ("given", "constant", "range", "random")


def through_equalities(
    known: Knowledge, equation: Equation, part: Part, chain: Chain
) -> str:
    """Return what to ask if the members are equal where derivatives go through
    equalities that the text has shown; otherwise ""."""
    if not _has_derivative(chain):
        return ""
    used, before = known.used(chain.expressions), known.now
    lines = [line for name, line in _shown(known) if name in used]
    choices = itertools.chain(
        itertools.combinations(lines, 1), itertools.combinations(lines, 2)
    )
    for chosen in itertools.islice(choices, TRIES):
        try:
            now = before.lines
            for line in chosen:
                now = _with(now, line)
            known.now = replace(before, lines=now)
            if _holds(known, equation, part):
                known.now = before
                return _asks(known, chosen)
        except Unreadable:
            continue
        finally:
            known.now = before
    return ""


def _has_derivative(chain: Chain) -> bool:
    return any(
        tree.data in _DERIVATIVES
        for expression in chain.expressions
        for one in expression.parts
        for tree in one.tree.iter_subtrees()
    ) or any(one.accent for expression in chain.expressions for one in expression.used)


def _holds(known: Knowledge, equation: Equation, part: Part) -> bool:
    """Whether the members are equal, perhaps with other names held constant."""
    try:
        equality(known, equation.first, equation.anchor, part, equation.beside)
    except Refused as refused:
        return bool(other_partials(known, refused.chain))
    return True


def _shown(known: Knowledge) -> Iterator[tuple[str, Line]]:
    """Yield the equalities that still hold and have a defined name on one side, as
    definitions of the name."""
    for first, second in reversed(known.shown):
        for head, part in ((first, second), (second, first)):
            name = _defined_name(known.scope, head)
            if name and agree(known, head, head, part, Beside()):
                yield name, Line("let", head, part)


def _defined_name(scope: Scope, head: Part) -> str:
    try:
        found = scope.resolve(parse(head, "moved"))
    except Unreadable:
        return ""
    if found is None or found.kind != "variable" or found.accent:
        return ""
    return found.name if scope.variables[found.name].kind == "defined" else ""


def _with(lines: tuple[Line, ...], new: Line) -> tuple[Line, ...]:
    """Return lines with a definition in place of that of the same name, below what it
    uses. Raises `Unreadable` if that is not possible."""
    assert new.left is not None and new.right is not None
    scope = scope_of(lines)
    name = _defined_name(scope, new.left)
    analysis = Analysis(scope)
    (expression,) = analysis.run([new.right])
    direct = {one.name for one in expression.used if one.kind == "variable"}
    above = scope.upstream([scope.variables[one] for one in direct])
    if name in above:
        raise Unreadable(f"{name} would be defined by itself", new.right)
    at = next(number for number, line in enumerate(lines) if _names(scope, line, name))
    below = lines[at + 1 :]
    moved = [
        line
        for line in below
        if line.kind in _INPUTS or any(_names(scope, line, one) for one in above)
    ]
    rest = [line for line in below if line not in moved]
    found = (*lines[:at], *moved, new, *rest)
    scope_of(found)
    return found


def _names(scope: Scope, line: Line, name: str) -> bool:
    """Whether a line defines a name."""
    return (
        line.kind == "let"
        and line.left is not None
        and _defined_name(scope, line.left) == name
    )


def _asks(known: Knowledge, lines: tuple[Line, ...]) -> str:
    pieces = []
    for line in lines:
        assert line.left is not None
        name = _defined_name(known.scope, line.left)
        where = known.document.where(known.document.line(line.left.start))
        pieces.append(f"{name} is as {where} writes it")
    return (
        f"it is right if {' and '.join(pieces)}, but wrong with the definition above, because "
        "the derivative then goes through other names. If the first is meant, define "
        "the name so"
    )
