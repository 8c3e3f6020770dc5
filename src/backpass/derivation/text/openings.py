"""The words with which a row opens, and the reason that it gives behind \\because."""

from __future__ import annotations

import re

from backpass.derivation.language.brackets import outside
from backpass.derivation.text.passages import Text

_TEXT = r"\s*\\(?:text(?:rm|bf|it|normal)?|mbox)\s*"
_AFTER = r"\s*[:,.]?\s*\}(?:\s|~|\\[,;: ]|\\q?quad(?![a-zA-Z]))*"
_INTRODUCES = re.compile(
    rf"\A{_TEXT}\{{\s*(?i:let(?: us)?|(?:we )?define|denote|note(?: that)?|recall(?: that)?"
    rf"|and|also|proof(?: of)?|here|now|similarly|likewise){_AFTER}"
)
_CONCLUDES = re.compile(
    rf"\A{_TEXT}\{{\s*(?i:(?:and )?(?:then|hence|thus|so(?: that)?|therefore|consequently"
    r"|it follows(?: that)?|(?:this|which) (?:gives|yields|implies|means)"
    rf"|(?:then )?we (?:get|have|obtain|find))){_AFTER}"
)
_BECAUSE = re.compile(r"\\because(?![a-zA-Z])")
ONLY_WORDS = re.compile(rf"{_TEXT}\{{[^{{}}$]*\}}\s*")


def without_opening(row: Text) -> Text:
    """Return a row without the words that introduce it; an arrow is in place of words
    that conclude it from the rows above."""
    return row.replaced(_INTRODUCES).replaced(_CONCLUDES, r"\\Rightarrow ")


def split_reasons(row: Text) -> tuple[Text, list[Text]]:
    """Split a row into what stands before \\because, and the equations behind it."""
    places = [
        at for at in outside(row.characters) if _BECAUSE.match(row.characters, at)
    ]
    if not places:
        return row, []
    ends = [*places[1:], len(row.characters)]
    reasons = [
        piece.strip()
        for at, end in zip(places, ends, strict=True)
        for piece in _equations(row[at + len(r"\because") : end])
    ]
    return row[: places[0]].strip(), [one for one in reasons if one.characters]


def _equations(text: Text) -> list[Text]:
    """Split a list of equations at its commas."""
    commas = [
        at for at in outside(text.characters) if text.characters[at : at + 1] == ","
    ]
    starts = [0, *(at + 1 for at in commas)]
    ends = [*commas, len(text.characters)]
    pieces = [text[a:b] for a, b in zip(starts, ends, strict=True)]
    if all("=" in piece.characters for piece in pieces):
        return pieces
    return [text]
