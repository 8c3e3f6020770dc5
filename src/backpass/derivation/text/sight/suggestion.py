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
_ORDER = (
    "keep",
    "given",
    "constant",
    "slice",
    "assume",
    "let",
    "read",
    "loss",
    "layout",
)


@dataclass(frozen=True)
class Suggestion:
    """Directives for a comment, and names that an author has to declare.

    `wrong` are the lines that are wrong with the comment, and are not judged without.
    """

    directives: tuple[str, ...]
    missing: tuple[str, ...]
    wrong: tuple[Verdict, ...] = ()

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
    """Return what a comment would declare. It is valid as it stands.

    `verdicts` are those without it, and `again` judges the text with some definitions.
    """
    before = {(verdict.line, verdict.latex) for verdict in _wrong(verdicts)}
    right = {
        name
        for verdict in verdicts
        if verdict.kind in ("equal", "definition") and verdict.basis
        for name, _ in verdict.basis.definitions
    }
    wanted = sorted(sight.suggested, key=_place)
    if any(isinstance(item, Heading) for item in document.items) and wanted:
        wanted.insert(0, "keep definitions")
    dropped: dict[str, None] = {}
    wrong: list[Verdict] = []
    for _ in range(ROUNDS):
        wanted = _valid(wanted, document)
        wrong = [
            verdict
            for verdict in _wrong(again("\n".join(wanted)))
            if (verdict.line, verdict.latex) not in before
        ]
        doubtful = {one for one in wanted if _is_doubtful(one, wrong, right)}
        if not doubtful:
            break
        dropped.update(
            (name, None)
            for one in wanted
            if one in doubtful and (name := _declared(one))
        )
        wanted = [one for one in wanted if one not in doubtful]
    declared = {_declared(one) for one in wanted}
    missing = dict.fromkeys([*dropped, *sight.missing])
    return Suggestion(
        tuple(wanted),
        tuple(name for name in missing if name not in declared),
        tuple(wrong),
    )


def _is_doubtful(directive: str, wrong: list[Verdict], right: set[str]) -> bool:
    """Whether a directive may be why lines are wrong: it declares a name that no right
    line uses, or one that such a line may restrict, or it says what d means."""
    for verdict in wrong:
        name = _declared(directive)
        names = (
            {name for name, _ in verdict.basis.definitions} if verdict.basis else set()
        )
        restricts = verdict.to_left and not re.search(
            r"\\(?:partial|nabla)", verdict.left
        )
        if name in names and (restricts or name not in right):
            return True
        text = f"{verdict.left} {verdict.latex}"
        if directive == "d differential" and re.search(
            r"(?<![a-zA-Z\\])d\s*[a-zA-Z\\]", text
        ):
            return True
    return False


def _valid(wanted: list[str], document: Document) -> list[str]:
    known, kept = Knowledge(document), []
    for one in wanted:
        try:
            follow(known, Text(one, (0,) * len(one)), one, 0)
        except Unreadable:
            continue
        kept.append(one)
    return kept


def _wrong(verdicts: list[Verdict]) -> list[Verdict]:
    return [
        verdict for verdict in verdicts if verdict.kind in ("refused", "ill-formed")
    ]


def _declared(directive: str) -> str:
    """Return the name that a directive declares; "" if it declares none."""
    match = re.match(r"(?:given|constant|let|slice) ([^ (]+)", directive)
    return match[1] if match else ""


def _place(directive: str) -> int:
    word = directive.partition(" ")[0]
    return _ORDER.index(word) if word in _ORDER else len(_ORDER)
