"""Read displays: the rows of each, without what prints nothing or a number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from backpass.derivation.text.decorations import BRACED, decorations, framed
from backpass.derivation.text.passages import Text

ENVIRONMENTS = (
    r"equation|align|gather|multline|eqnarray|flalign|alignat|displaymath|math"
)
PERCENT = r"(?:(?<!\\)|(?<=(?<!\\)\\\\))%"  # a comment starts at % and \\%, not at \%
IMPLIES = re.compile(r"\\(?:implies|Rightarrow|Longrightarrow)(?![a-zA-Z])")
# Spaces, also those as wide as a formula, and an empty group, which prints nothing.
_INDENT = re.compile(
    rf"\A(?:\s|~|\\[,;: ]|\\q?quad(?![a-zA-Z])|\\h?phantom\s*{BRACED}|\{{\}})+"
)
_EMPTY = re.compile(r"(?<=[=+\-&])\s*\{\}")
_COMMENT = re.compile(rf"{PERCENT}[^\n]*")
_NOTHING = re.compile(
    rf"\\(?:label|tag\*?|vphantom)\s*{BRACED}"
    r"|\\definecolor\s*\{[^{}]*\}\s*\{[^{}]*\}\s*\{[^{}]*\}"
    r"|\\(?:nonumber|notag|(?:display|text|script|scriptscript)style|allowbreak|nobreak"
    r"|limits|nolimits|displaylimits|mathstrut|strut)(?![a-zA-Z])|\\!"
)
# Also the environments that LaTeX does not allow within $$, as MathJax does.
_INNER = rf"(?:aligned|split|gathered|alignedat|multlined|(?:{ENVIRONMENTS})\*?)"
_OPENS = re.compile(rf"\\begin\{{{_INNER}\}}(?:\[[tbc]\])?(?:\{{\d\}})?")
_CLOSES = re.compile(rf"\\end\{{{_INNER}\}}")
_ASIDE = re.compile(rf"\\(?:short)?intertext\s*{BRACED}")
_BREAK = re.compile(r"\\\\\*?(?:\[\s*-?[\d.]+\s*[a-z]+\s*\])?")


@dataclass(frozen=True)
class Display:
    """A display: its rows as written, without commands that print nothing or a number.

    `starts` says for each row whether it begins with an alignment.
    """

    rows: tuple[Text, ...]
    starts: tuple[bool, ...]
    joined: bool  # whether all rows are one formula, as in multline
    start: int
    end: int


def display_of(body: Text, kind: str, is_latex: bool, start: int, end: int) -> Display:
    """Return the display with this body; `kind` is its environment, or "" if none."""
    if is_latex:
        body = body.replaced(_COMMENT)
    if kind.startswith("alignat"):
        body = body.replaced(re.compile(r"\A\s*\{\d\}"))
    joined = kind.startswith("multline") or r"\begin{multlined}" in body.characters
    body = body.replaced(_NOTHING).replaced(_EMPTY)
    body = body.blanked(framed(body.characters))
    body = body.blanked(decorations(body.characters)).replaced(_OPENS)
    body = body.replaced(_CLOSES, r"\\\\").replaced(_ASIDE, r"\\\\")
    if kind.startswith("eqnarray"):
        body = body.replaced(re.compile("&(?=[^&]*=[^&]*&)"))
    rows, starts = [], []
    for row in _rows(body):
        begins = row.characters.lstrip().startswith("&")
        row = _unaligned(row).replaced(_INDENT).strip()
        if row.characters.replace("~", "").strip():
            rows.append(row)
            starts.append(begins)
    return Display(tuple(rows), tuple(starts), joined, start, end)


def _rows(body: Text) -> Iterator[Text]:
    """Split a display at \\\\, but not a matrix within it."""
    depth, first, at, text = 0, 0, 0, body.characters
    while at < len(text):
        if text.startswith(r"\begin", at):
            depth += 1
        elif text.startswith(r"\end", at):
            depth -= 1
        elif depth == 0 and (match := _BREAK.match(text, at)):
            yield body[first:at]
            first = at = match.end()
            continue
        at += 2 if text[at] == "\\" else 1
    yield body[first:]


def _unaligned(row: Text) -> Text:
    """Remove the signs of alignment, but not those within a matrix."""
    depth, at, found = 0, 0, row.characters
    while at < len(found):
        depth += found.startswith(r"\begin", at) - found.startswith(r"\end", at)
        if found[at] == "&" and depth == 0:
            found = f"{found[:at]} {found[at + 1 :]}"
        at += 2 if found[at] == "\\" else 1
    return Text(found, row.origins)
