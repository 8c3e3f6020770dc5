"""Assumptions in prose on the signs of names: “Let x > 0”, and “where x is positive”.

A line that differs without such an assumption is compared again with it. “Let” holds to
the end of a section, and “for” holds for the display below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from backpass.derivation.equality.comparing import Refused
from backpass.derivation.language.parse import Part, Unreadable
from backpass.derivation.text.imposed import paragraph_above
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.members import Equation, equality
from backpass.derivation.text.passages import Text
from backpass.derivation.text.signs import without_signs
from backpass.derivation.text.verdict import Verdict, unread, verdict_on

_ABOVE, _BELOW = (
    r"(?:>|\\(?:geq?|geqslant|gt)(?![a-zA-Z]))",
    r"(?:<|\\(?:leq?|leqslant|lt)(?![a-zA-Z]))",
)
_NAMES = r"[^<>=\d][^<>=]*?"
_COMPARED = re.compile(
    rf"\s*(?P<names>{_NAMES})\s*(?P<sign>{_ABOVE}|{_BELOW})\s*(?P<number>\d+)\s*"
    rf"|\s*(?P<first>\d+)\s*{_BELOW}\s*(?P<last>{_NAMES})\s*"
)
_FORMULA = r"\$(?P<{0}>[^$]{{1,60}})\$"
_ASSUMES = re.compile(
    rf"{_FORMULA.format('names')}\s+(?:is|are|be|being)\s+(?:(?:an?|all|both|strictly|real)\s+)*"
    r"(?P<kind>(?:not |non-?)?(?:positive|negative))\b"
    r"|\b(?:(?P<long>let|assum\w+|suppos\w+|where|with|given|provided|since)|for|if|when|whenever)"
    rf"\b[^.$]{{0,30}}{_FORMULA.format('formula')}(?!\s+(?:is|are|be|being)\b)",
    re.I,
)


def assumed(known: Knowledge, start: int) -> dict[str, tuple[str, str]]:
    """Return the names whose sign the prose of a section above a place states, each
    with its condition and the words that state it."""
    prose = known.prose_above(start)
    near = len(prose) - len(paragraph_above(prose))
    found: dict[str, tuple[str, str]] = {}
    for match in _ASSUMES.finditer(prose):
        if match["long"] or match["kind"] or match.start() >= near:
            for name, condition in _conditions(match):
                found[name] = condition, " ".join(match[0].split())
    return found


def _conditions(match: re.Match[str]) -> Iterator[tuple[str, str]]:
    if match["kind"]:
        kind = match["kind"].lower()
        sign = ">" if kind.startswith("no") == kind.endswith("negative") else "<"
        for name in match["names"].split(","):
            yield name.strip(), f"{name.strip()} {sign} 0"
        return
    compared = _COMPARED.fullmatch(match["formula"])
    if compared is None:
        return
    names, number = compared["names"] or compared["last"], compared["number"]
    sign = ">" if compared["last"] or re.fullmatch(_ABOVE, compared["sign"]) else "<"
    for name in names.split(","):
        yield name.strip(), f"{name.strip()} {sign} {number or compared['first']}"


def with_assumptions(
    known: Knowledge, equation: Equation, member: Text, part: Part, used: set[str]
) -> Verdict | None:
    """Return the verdict on members that differ, if the prose restricts the signs of
    their names: "equal" if they are equal so; None if they differ, too."""
    document, beside = known.document, equation.beside
    stated = [one for name, one in assumed(known, part.start).items() if name in used]
    if beside.condition or beside.positive or beside.instead or not stated:
        return None
    condition = ", ".join(one for one, _ in stated)
    text = Text(condition, (part.start,) * len(condition))
    left, positive, instead = without_signs(known, text, ())
    line, words = document.line(equation.anchor.start), [one for _, one in stated]
    if left.characters:
        return None
    now = replace(beside, positive=positive, instead=instead)
    try:
        basis = equality(known, equation.first, equation.anchor, part, now)
    except Refused:
        return None
    except Unreadable as error:
        return unread(document, member, error, line)
    equal = verdict_on(
        document, "equal", member, line, basis=replace(basis, condition=condition)
    )
    said = dict.fromkeys(words)
    return replace(equal, inferred=tuple(f"“{one}”" for one in said))
