"""Find the equations of a text, displayed and in sentences."""

from __future__ import annotations

import re
from bisect import bisect_right

from backpass.derivation.text.contents import Heading
from backpass.derivation.text.displays import Display
from backpass.derivation.text.formal.meanings import Read
from backpass.derivation.text.imposed import (
    is_signed,
    only_defines,
    only_introduces,
    paragraph_above,
)
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.relations import declares
from backpass.derivation.text.sight.prose import Prose
from backpass.derivation.text.statements import statements

_ONLY_WORDS = re.compile(r"\s*\\(?:text[a-z]*|mbox|mathrm)\s*\{[^{}$=]*\}[\s.,;]*")
# A range of indices, with or without words.
_RANGE = re.compile(
    r"(?:\\text[a-z]*\s*\{[^{}$=]*\}|\\forall|\\(?:quad|qquad|[,;: ])|[\s(),.~]"
    r"|(?:\d+\s*\\leq?\s*)?[a-z](?:\s*,\s*[a-z])*\s*(?:=|\\in|\\leq?(?:slant)?|\\geq?|<|>)\s*"
    r"(?:\\\{)?[\w\s,+-]*(?:\\(?:l|c)?dots[\s,\w+-]*)?(?:\\\})?)*"
)


def displayed(known: Knowledge) -> list[Read]:
    """Return the equations of the displays."""
    found, section, end = [], 0, 0
    line_of = known.document.line_of
    for item in known.document.items:
        section += isinstance(item, Heading)
        if not isinstance(item, Display):
            continue
        above = known.source[max(end, item.start - 400) : item.start]
        prose = paragraph_above(above)
        introduced, end = only_introduces(prose), item.end
        called = only_defines(prose)
        for one in statements(item, known.brackets):
            sure = not (one.fault or one.relation or one.conditional)
            words = [text.characters for text in one.beside]
            words += [text.characters for c in one.conditions if c for text in c.pieces]
            ranged = all(map(_RANGE.fullmatch, words))
            stands = ranged and not (one.fault or one.relation)
            # A distribution restricts no equation.
            certain = sure and all(_RANGE.fullmatch(w) or declares(w) for w in words)
            usable = sure and all(map(_ONLY_WORDS.fullmatch, words))
            begins = next((m for m in one.members if m.origins), one.members[0])
            line = line_of(begins)
            either = certain or usable
            found.append(
                Read(
                    one.members,
                    [],
                    section,
                    line,
                    True,
                    either,
                    stands,
                    usable,
                    introduced,
                    called,
                    item.start,
                    is_signed(known.source, one.members),
                )
            )
    return found


def in_prose(known: Knowledge, prose: Prose) -> list[Read]:
    """Return the equations of the sentences."""
    document = known.document
    starts = [one.start for one in document.items if isinstance(one, Heading)]
    found = []
    for text in prose.equations:
        members = tuple(side.strip() for side in text.split("="))
        if len(members) > 1 and all(one.characters for one in members):
            section = bisect_right(starts, text.origins[0])
            line = document.line_of(text)
            found.append(Read(members, [], section, line, False))
    return found
