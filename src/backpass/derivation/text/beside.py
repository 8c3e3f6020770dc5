"""What stands beside an equation: a condition, the ranges of indices, or words."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field

from backpass.derivation.language.names import (
    shape_of,
)
from backpass.derivation.language.parse import Part, Unreadable, parse, tokens_of
from backpass.derivation.language.written import (
    canonical,
)
from backpass.derivation.text.conditions import Condition
from backpass.derivation.text.imposed import ZERO
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
from backpass.derivation.text.signs import without_signs
from backpass.derivation.text.statements import Statement


@dataclass
class Beside:
    """A condition on the indices of an equation, the ranges of these indices, the names
    that are positive, and what is in place of names that are then positive."""

    condition: Part | None = None
    ranges: dict[str, str] = field(default_factory=dict)
    positive: tuple[str, ...] = ()
    instead: dict[str, str] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Where the equation is claimed; "" if everywhere."""
        signs = [f"{name} > 0" for name in self.positive]
        for name, new in self.instead.items():
            signs.append(f"{name} > 0 and {new} in place of {name}")
        return ", ".join([*signs, *([self.condition.text] if self.condition else [])])


def besides_of(known: Knowledge, statement: Statement) -> list[Beside]:
    """Return what stands beside each member of a statement. Raises `Unreadable`."""
    found: dict[Condition | None, Beside] = {}
    conditions = statement.conditions or (None,) * len(statement.members)
    for one in conditions:
        if one not in found:
            found[one] = _beside(known, statement, one)
    return [found[one] for one in conditions]


def _beside(
    known: Knowledge, statement: Statement, condition: Condition | None
) -> Beside:
    beside = Beside()
    pieces = (*statement.beside, *(condition.pieces if condition else ()))
    found = [one for one in pieces if not _is_known(known, one, beside.ranges)]
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
    texts = [_in_brackets(one) for one in found]
    for number, text in enumerate(texts):
        texts[number], positive, instead = without_signs(known, text, statement.members)
        beside.positive += positive
        beside.instead |= instead
    texts = [text for text in texts if text.characters.strip()]
    if texts:
        part: Part = texts[0].part(known.source)
        if len(texts) > 1:
            part = Part(part.source, part.start, ", ".join(t.characters for t in texts))
        beside.condition = part
        try:
            tree = parse(part, "conditions")
        except Unreadable:
            raise Unreadable(
                r"what stands beside the equation is not a condition such as j \ne i: write "
                "it in symbols, or in the prose",
                part,
            ) from None
        compared = itertools.chain(*map(tokens_of, tree.find_data("condition")))
        for token in sorted({*compared} & {*known.scope.variables}):
            message = (
                f"a condition on a name is read in the form {token} > 0; others are on "
                r"indices, such as j \ne i"
            )
            if "=" in part.text:
                message += ". A second equation needs a display of its own"
            raise Unreadable(message, part)
    return beside


def _in_brackets(piece: Text) -> Text:
    """Return a condition without its words and the brackets round it."""
    text = piece.replaced(CONDITION_WORDS).strip()
    if text.characters.startswith("(") and text.characters.endswith(")"):
        text = text.replaced(ROUND)
    return text.strip()


_DERIVATIVE = re.compile(r"\\(?:partial|nabla|dot)(?![a-zA-Z])")


def doubt_of(known: Knowledge, statement: Statement) -> str:
    """Return why an equation may be right although its sides differ: words beside it,
    or an arrow, may restrict it; "" if nothing does.

    A derivative that is concluded from identities is not restricted by them.
    """
    is_labelled = LABEL.match(statement.members[0].characters)
    if is_labelled or any(PROSE.fullmatch(one.characters) for one in statement.beside):
        return (
            "this line is wrong unless the words beside it restrict it: write the "
            r"condition in symbols, such as j \ne i"
        )
    if (
        statement.concludes
        and known.follows_from_identities
        and _DERIVATIVE.search(statement.members[0].characters)
        and not any(ZERO.fullmatch(one.characters) for one in statement.members)
    ):
        return ""
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
    return is_declared(known, part)


def is_declared(known: Knowledge, part: Part) -> bool:
    """Whether a text states shapes that are already declared."""
    scope = known.scope
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
