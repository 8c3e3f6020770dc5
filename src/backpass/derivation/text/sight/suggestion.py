"""The comment that would declare what a text leaves out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from backpass.derivation.language.parse import Unreadable
from backpass.derivation.text.contents import Document, Heading
from backpass.derivation.text.directives import follow
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.passages import Text
from backpass.derivation.text.sight.first import Sight
from backpass.derivation.text.verdict import Verdict

# The order in which directives are read.
ROUNDS = 6
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


class Place(NamedTuple):
    """A line of a text, and its two sides."""

    line: int
    text: str


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
    for count in range(ROUNDS + 1):
        wanted = _valid(wanted, document)
        found = again("\n".join(wanted))
        wrong = [
            verdict
            for verdict in _wrong(found)
            if (verdict.line, verdict.latex) not in before
        ]
        doubtful = {one for one in wanted if _is_doubtful(one, wrong, right)}
        if lost := _right(verdicts) - _right(found):
            last = count >= ROUNDS - 1
            doubtful |= {*wanted} if last else _costly(wanted, lost, _right(found))
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


def _costly(wanted: list[str], lost: set[Place], kept: set[Place]) -> set[str]:
    """Return the directives that may be why lines are not right any more: "partial
    direct", or those whose names are in at least as many such lines as in right ones,
    or else the one with the largest share of such lines."""
    if "partial direct" in wanted:
        return {"partial direct"}
    shares = {one: _share(one, lost, kept) for one in wanted}
    most = max(shares.values(), default=0.0)
    return {one for one, share in shares.items() if share >= min(most, 0.5)}


def _share(directive: str, lost: set[Place], kept: set[Place]) -> float:
    """Return the share of the lines with the name of a directive that are lost."""
    name = _declared(directive).partition("_")[0]
    if not name:
        return 0.0 if directive == "keep definitions" else 1.0
    has_name = re.compile(rf"(?<![a-zA-Z\\]){re.escape(name)}(?![a-zA-Z])")
    counts = [
        sum(has_name.search(one.text) is not None for one in places)
        for places in (lost, kept)
    ]
    return counts[0] / max(sum(counts), 1)


def _right(verdicts: list[Verdict]) -> set[Place]:
    """Return the lines that are equal, or definitions."""
    return {
        Place(verdict.line, f"{verdict.left} = {verdict.latex}")
        for verdict in verdicts
        if verdict.kind in ("equal", "definition")
    }


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
