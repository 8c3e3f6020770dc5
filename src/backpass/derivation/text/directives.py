"""Follow the directives in comments, which declare what a text leaves out."""

from __future__ import annotations

from dataclasses import replace

from backpass.derivation.language.parse import DECLARING, Line, Part, Unreadable, read
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.notation import notation
from backpass.derivation.text.passages import Text, relocated


def follow(known: Knowledge, text: Text, source: str, line_number: int) -> None:
    """Follow one directive. Raises `Unreadable`."""
    word, _, rest = text.characters.partition(" ")
    rest = rest.strip()
    now = known.now
    if word == "restart" and not rest:
        known.now = known.at_start
    elif word == "loss" and rest:
        if rest in known.scope.variables:
            raise Unreadable(
                f"{rest} is defined above: say loss {rest} before its definition",
                text.part(source),
            )
        known.now = replace(now, losses=now.losses | {rest})
    elif (word, rest) in (("bar", "gradient"), ("dot", "differential")):
        known.now = replace(now, accents=now.accents | {word})
    elif (word, rest) == ("d", "differential"):
        if {"d"} & {*known.scope.variables, *known.scope.dimensions}:
            raise Unreadable("d is a name here", text.part(source))
        known.now = replace(now, accents=now.accents | {"dot", "d"})
    elif (word, rest) == ("keep", "definitions"):
        known.now = replace(now, kept=True)
    elif (word, rest) == ("partial", "total"):
        known.now = replace(now, total=True)
    elif (word, rest) == ("partial", "applied"):
        known.add(Line("applied", right=text.part(source)), line_number)
    elif word == "broadcast" and not rest:
        known.add(Line("broadcast"), line_number)
    elif word == "when" and rest:
        known.condition = text[text.characters.index(rest) :]
    elif word == "read" and rest:
        found = notation(text[text.characters.index(rest) :], source)
        known.now = replace(now, notations=(*now.notations, found))
    elif word in DECLARING:
        text = known.defining(text, source)
        try:
            (line,) = read(text.characters)
        except Unreadable as error:
            raise relocated(error, text, source) from None
        line = _placed(line, text, source)
        if line.kind == "function" and line.left is not None:
            head = known.without_arguments(line.left)
            line = line if head == line.left else replace(line, kind="let", left=head)
        known.add(line, line_number)
        accents = {w for w in ("bar", "dot") if f"\\{w}" in text.characters}
        known.now = replace(known.now, accents=known.now.accents | accents)
    else:
        raise Unreadable(
            "expected given, constant, let, assume, slice, factor, layout, range, random, "
            "independent, identical, mean, variance, read, loss, when, restart, broadcast, keep definitions, bar gradient, dot "
            "differential, d differential, partial total or partial applied",
            text.part(source),
        )


def _placed(line: Line, text: Text, source: str) -> Line:
    """Return a line that was read from a text, at its places in the source."""

    def placed(part: Part | None) -> Part | None:
        if part is None:
            return None
        return text[part.start : part.start + len(part.text)].part(source)

    return replace(
        line,
        left=placed(line.left),
        right=placed(line.right),
        conditions=placed(line.conditions),
    )
