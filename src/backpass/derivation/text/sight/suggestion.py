"""The comment that would declare what a text leaves out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from backpass.derivation.language.parse import Unreadable
from backpass.derivation.text.contents import Document, Heading
from backpass.derivation.text.directives import follow
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.passages import Text
from backpass.derivation.text.sight.first import Sight
from backpass.derivation.text.verdict import Verdict

# The order in which directives are read.
ROUNDS = 4
_ORDER = ("keep", "given", "constant", "slice", "assume", "let", "read", "loss", "layout")


@dataclass(frozen=True)
class Suggestion:
    """Directives that a comment may contain, and names that an author has to declare."""

    directives: tuple[str, ...]
    missing: tuple[str, ...]

    def lines(self, form: str) -> list[str]:
        """Return the lines of the comment in a text of a form."""
        if not self.directives:
            return []
        if form == "latex":
            return [f"% derive: {one}" for one in self.directives]
        if form == "rst":
            return [f".. derive: {one}" for one in self.directives]
        return ["<!-- derive:", *self.directives, "-->"]


def suggestion_of(
    sight: Sight,
    document: Document,
    verdicts: list[Verdict],
    again: Callable[[str], list[Verdict]],
) -> Suggestion:
    """Return what a comment would declare. It is valid as it stands, and no line is
    wrong by it.

    `verdicts` are those without it, and `again` judges the text with some definitions.
    """
    before = _wrong(verdicts)
    wanted = sorted(sight.suggested, key=_place)
    if any(isinstance(item, Heading) for item in document.items) and wanted:
        wanted.insert(0, "keep definitions")
    dropped: dict[str, None] = {}
    for _ in range(ROUNDS):
        wanted = _valid(wanted, document)
        names = _wrong(again("\n".join(wanted))) - before
        wrong = {one for one in wanted if _declared(one) in names}
        if not wrong:
            break
        dropped.update((_declared(one), None) for one in wanted if one in wrong)
        wanted = [one for one in wanted if one not in wrong]
    else:
        wanted = []
    missing = [name for name in sight.missing if name not in map(_declared, wanted)]
    return Suggestion(tuple(wanted), tuple(dict.fromkeys([*dropped, *missing])))


def _valid(wanted: list[str], document: Document) -> list[str]:
    known, kept = Knowledge(document), []
    for one in wanted:
        try:
            follow(known, Text(one, (0,) * len(one)), one, 0)
        except Unreadable:
            continue
        kept.append(one)
    return kept


def _wrong(verdicts: list[Verdict]) -> set[str]:
    """Return the names that wrong lines use."""
    return {
        name
        for verdict in verdicts
        if verdict.kind in ("refused", "ill-formed") and verdict.basis
        for name, _ in verdict.basis.definitions
    }


def _declared(directive: str) -> str:
    """Return the name that a directive declares; "" if it declares none."""
    match = re.match(r"(?:given|constant|let|slice) ([^ (]+)", directive)
    return match[1] if match else ""


def _place(directive: str) -> int:
    word = directive.partition(" ")[0]
    return _ORDER.index(word) if word in _ORDER else len(_ORDER)
