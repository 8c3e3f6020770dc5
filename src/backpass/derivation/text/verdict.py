"""The verdict on one line of a text, and its basis."""

from __future__ import annotations

from dataclasses import dataclass

from backpass.derivation.equality.check import Sizes
from backpass.derivation.language.parse import Unreadable
from backpass.derivation.text.contents import Document
from backpass.derivation.text.passages import Text

KINDS = (
    "equal", "refused", "ill-formed", "follows", "definition", "not readable",
    "nothing claimed",
)  # fmt: skip


@dataclass(frozen=True)
class Basis:
    """What a verdict rests on.

    `definitions` are the names used, each with the line that declares or defines it, or
    0 for the file of definitions. `points` is the number of random points around which
    two sides were compared, or 0 if they were compared as functions.
    """

    definitions: tuple[tuple[str, int], ...]
    sizes: tuple[Sizes, ...]
    points: int
    condition: str = ""


@dataclass(frozen=True)
class Counterexample:
    """Where two lines differ: the sizes, the indices, and the two values."""

    where: tuple[str, ...]
    expected: str
    found: str


@dataclass(frozen=True)
class Verdict:
    """The verdict on one line.

    `kind` is one of `KINDS`: a line that `follows` equals a refused line, and is not
    blamed; a formula without a relation, an assignment, or an equation
    that is imposed has `nothing claimed`. `message` says what is
    wrong, or what would help. A refused line has a counterexample; an `ill-formed` one
    has no value. `against` is the line with which it was compared, and `compared` the
    side there, which is the left one if `to_left`. `inferred` says in words what it
    takes from the text without a declaration, and `waits` are the names that an unread
    line needs. `certain` says why no other shape or layout of inferred names makes a
    line right: "numbers" if it is wrong where all lengths are 1, "indices" if its
    arrays have all their indices. `differs` says whether an unread line is wrong if its
    names are meant as declared and nothing else restricts it.
    """

    kind: str
    line: int
    latex: str
    against: int = 0
    message: str = ""
    basis: Basis | None = None
    counterexample: Counterexample | None = None
    compared: str = ""
    to_left: bool = False
    display: int = 0  # where its display begins in the source; −1 for a comment
    left: str = ""  # the left side of its equation
    inferred: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    differs: bool = False
    certain: str = ""


def verdict_on(
    document: Document,
    kind: str,
    member: Text,
    against: int = 0,
    message: str | Unreadable = "",
    basis: Basis | None = None,
    example: Counterexample | None = None,
) -> Verdict:
    """Return the verdict on a member of an equation in a document."""
    if isinstance(message, Unreadable):
        message = document.explained(message)
    latex = " ".join(member.characters.split())
    line = document.line_of(member)
    return Verdict(kind, line, latex, against, message, basis, example)


def unread(
    document: Document, member: Text, why: str | Unreadable, against: int = 0
) -> Verdict:
    """Return the verdict on a member that is not readable."""
    return verdict_on(document, "not readable", member, against, why)
