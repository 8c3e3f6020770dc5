"""What stands beside an equation: a condition, the ranges of indices, or words."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from backpass.derivation.language.names import (
    shape_of,
)
from backpass.derivation.language.parse import Part, Unreadable, parse
from backpass.derivation.language.written import (
    canonical,
)
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.passages import Text
from backpass.derivation.text.rewriting import (
    CONDITION_WORDS,
    FOR_ALL,
    INDEX_RANGE,
    LABEL,
    PROSE,
    ROUND,
)
from backpass.derivation.text.statements import Statement


@dataclass
class Beside:
    """A condition on the indices of an equation, and the ranges of these indices."""

    condition: Part | None = None
    ranges: dict[str, str] = field(default_factory=dict)


def beside_of(known: Knowledge, statement: Statement) -> Beside:
    """Return what stands beside a statement. Raises `Unreadable`."""
    ranges: dict[str, str] = {}
    found = [one for one in statement.beside if not _is_known(known, one, ranges)]
    # A condition for the whole display applies to statements with all its indices, and
    # one of a differential to each.
    if known.condition is not None:
        letters = re.findall(
            r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])", known.condition.characters
        )
        left = statement.members[0].characters
        if r"\dot" in known.condition.characters or all(
            re.search(rf"(?<![a-zA-Z\\]){a}(?![a-zA-Z])", left) for a in letters
        ):
            found.append(known.condition)
    if not found:
        return Beside(None, ranges)
    if len(found) > 1:
        raise Unreadable(
            "several conditions: join them by commas", found[1].part(known.source)
        )
    part = found[0].replaced(CONDITION_WORDS).part(known.source)
    if part.text.startswith("(") and part.text.endswith(")"):
        part = found[0].replaced(CONDITION_WORDS).replaced(ROUND).part(known.source)
    try:
        parse(part, "conditions")
    except Unreadable:
        raise Unreadable(
            r"what stands beside the equation is not a condition such as j \ne i", part
        ) from None
    return Beside(part, ranges)


def doubt_of(statement: Statement) -> str:
    """Return why an equation may be right although its sides differ: words beside it,
    or an arrow, may restrict it; "" if nothing does."""
    is_labelled = LABEL.match(statement.members[0].characters)
    if is_labelled or any(PROSE.fullmatch(one.characters) for one in statement.beside):
        return (
            "this line is wrong unless the words beside it restrict it: write the "
            r"condition in symbols, such as j \ne i"
        )
    if statement.conditional:
        return "this line is wrong unless a premise restricts it: write it without the arrow"
    return ""


def _is_known(known: Knowledge, piece: Text, ranges: dict[str, str]) -> bool:
    """Whether what stands beside an equation is prose, the range of an index, which is
    added to `ranges`, or a shape that is already declared."""
    if PROSE.fullmatch(piece.characters):
        return True
    part, scope = known.part(piece), known.scope
    if match := INDEX_RANGE.fullmatch(part.text):
        ranges[match[1]] = match[2].strip()
        return match[2].strip() in scope.dimensions
    if FOR_ALL.fullmatch(part.text):
        return True
    try:
        declarations = parse(part, "declarations").children
    except Unreadable:
        return False
    for declaration in declarations:
        *names, reals, space = declaration.children
        stated = shape_of(space), str(reals).endswith(r"_{>0}")
        for name in names:
            variable = scope.variables.get(canonical(name))
            if variable is None or (variable.shape, variable.positive) != stated:
                return False
    return True
