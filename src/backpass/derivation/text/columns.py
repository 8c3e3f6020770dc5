"""A vector printed as the list of its entries: u = (u_1, …, u_n)^⊤."""

from __future__ import annotations

import re

from backpass.derivation.language.parse import Part
from backpass.derivation.text.passages import Text

_DOTS = r"\\(?:[cdlv]?dots)(?![a-zA-Z])|\.\.\."
_ENTRY = r"[^,;&()\[\]\\]*(?:\\(?!right)[a-zA-Z]+(?![a-zA-Z])[^,;&()\[\]\\]*)*"
_LIST = re.compile(  # in brackets, with dots, transposed
    r"\s*(?P<open>(?:\\left\s*)?[(\[])"
    rf"(?P<entries>{_ENTRY}(?:,{_ENTRY})*,\s*(?:{_DOTS})\s*,{_ENTRY})"
    r"(?P<close>(?:\\right\s*)?[)\]])\s*\^\s*(?:\\top|\{\s*\\top\s*\})\s*"
)
_MATRIX = re.compile(
    r"\s*\\begin\{[bp]?matrix\}(?P<entries>.*)\\end\{[bp]?matrix\}(?P<top>.*)", re.S
)
_TUPLE = re.compile(
    r"\s*(?:\\left\s*)?[(\[](?P<entries>.*?)(?:\\right\s*)?[)\]](?P<top>.*)", re.S
)
_TOP = re.compile(r"\s*(?:\^\s*(?:\\top|\{\s*\\top\s*\})\s*)?")
_STYLE = re.compile(
    r"\\(?:mathbf|boldsymbol|bm|mathrm|vec|underline)(?![a-zA-Z])|[\s{}]"
)
_OF_LETTER = re.compile(r"(\\?[a-zA-Z]+)_\w+")


def as_row(text: Text) -> Text:
    """Return (u_1, …, u_n)^⊤ as a matrix of one row, transposed."""
    match = _LIST.fullmatch(text.characters)
    if not match:
        return text

    def made(new: str, at: int) -> Text:
        return Text(new, (text.origins[at],) * len(new))

    first, last = match.span("entries")
    opening = made(r"\begin{bmatrix} ", match.start("open"))
    closing = made(r" \end{bmatrix}", match.start("close"))
    entries = text[first:last].replaced(re.compile(","), " & ")
    return opening + entries + closing + text[match.end("close") :]


def lists_its_entries(head: Part, part: Part) -> bool:
    """Whether an equation only names the entries of its left side: u = (u_1, …, u_n)
    defines nothing of a vector u that is declared."""
    match = _MATRIX.fullmatch(part.text) or _TUPLE.fullmatch(part.text)
    if not match or not _TOP.fullmatch(match["top"]):
        return False
    written = re.split(r",|;|&|\\\\", match["entries"])
    entries = [_STYLE.sub("", one) for one in written]
    named = [one for one in entries if one and not re.fullmatch(_DOTS, one)]
    letters = [found[1] for one in named if (found := _OF_LETTER.fullmatch(one))]
    return len(letters) == len(named) > 1 and {*letters} == {_STYLE.sub("", head.text)}
