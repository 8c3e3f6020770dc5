r"""Show a derivation: as a grid in HTML, as plain LaTeX in a terminal.

A row has the left side, "= right side" with the reason beside it, and the number. A
reason that does not fit is placed below its line, and a line too wide for the page
scrolls by itself. The author's LaTeX is shown as written, in `\(\displaystyle …\)`,
which the build of the book typesets, and MathJax in Jupyter. The styles that the grid
needs are inline, so that it works without a stylesheet; `_static/derivation.css` adds
colour and the layout of a narrow page. A wrong line has a ✗ before its number.

A step names the line that it follows from, and the parts that changed between the two
have a class in both lines. On a page, `_static/derivation.js` shows both for the line
that the reader points at.
"""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

from backpass.derivation.language.parse import Line

if TYPE_CHECKING:
    from backpass.derivation.book.derivation import Derivation

_COLUMNS = "var(--derivation-columns, max-content minmax(0, 1fr) max-content)"
_GRID = f"display:grid;grid-template-columns:{_COLUMNS};column-gap:.75em;row-gap:.25em;text-align:left"
_ROW = (
    "display:grid;grid-column:1/-1;grid-template-columns:subgrid;align-items:baseline"
)
_BODY = "display:flex;flex-wrap:wrap;align-items:baseline;column-gap:1.5em;min-width:0"
_RIGHT = "max-width:100%;overflow-x:auto;overflow-y:hidden;padding-block:.25em"
_BESIDE_A_REASON = ";min-width:min(100%, 18em)"  # so that reasons form a column
_REASON = "flex:1 1 9em"
_WRONG = '<span class="derivation-wrong" style="color:var(--pst-color-danger, firebrick)">✗</span> '


def html(derivation: Derivation) -> str:
    """Return the derivation's own lines as one grid.

    Each numbered line has the anchor `name-number`.
    """
    first = len(derivation.all_lines) - len(derivation.lines)
    rows = [
        _row(derivation, at, line) if line.numbered else _unnumbered(line)
        for at, line in enumerate(derivation.lines, start=first)
    ]
    return (
        '<div class="derivation tex2jax_process mathjax_process" role="group"'
        f' aria-label="Derivation: {escape(derivation.name)}">\n'
        f'<div class="derivation-lines" style="{_GRID}">\n'
        + "\n".join(rows)
        + "\n</div>\n</div>"
    )


def _marked(derivation: Derivation, at: int, line: Line) -> str:
    """Return the right side, with a class on the parts that are new in it and on the
    parts that the next step replaces."""
    spans = []
    if at in derivation.steps:
        spans += [(span, "come") for span in derivation.steps[at][1].come]
    for above, changes in derivation.steps.values():
        spans += [(span, "gone") for span in changes.gone] if above == at else []
    assert line.right is not None  # the line is not a note
    text = line.right.text
    # Spans are disjoint, or one lies within another. Insert from the right, so that
    # earlier positions stay valid.
    inserted = [(end, 0, 0, "}") for (_, end), _ in spans]
    inserted += [
        (start, 1, -end, rf"\class{{derivation-{kind}}}{{")
        for (start, end), kind in spans
    ]
    for place, *_, latex in sorted(inserted, reverse=True):
        text = text[:place] + latex + text[place:]
    return text


_WORD = {"let": "let", "function": "let", "assume": "assume"}  # before a left side


def _row(derivation: Derivation, at: int, line: Line) -> str:
    place, wrong = derivation.places[at], line.right in derivation.wrong
    anchor, number = _anchor(place), place[1]
    left = _maths(line.left.text) if line.left else ""
    if word := _WORD.get(line.kind):
        left = f'<span class="derivation-word">{word}</span> {left}'
    right = "{} = " + _marked(derivation, at, line)
    if line.conditions:
        right += rf" \qquad ({line.conditions.text})"
    begins = "" if line.kind == "step" else " derivation-begins"
    style, reason, follows, label = _RIGHT, "", "", f"line {number}"
    if line.reason:
        style += _BESIDE_A_REASON
        words = _words(line.reason)
        reason = f'<div class="derivation-reason" style="{_REASON}">{words}</div>'
    if at in derivation.steps:
        above = derivation.places[derivation.steps[at][0]]
        follows = f' data-above="{_anchor(above)}"'
        label += f", from line {above[1]}"
    label += ", wrong" * wrong
    return (
        f'<div class="derivation-line{begins}" id="{anchor}"{follows} style="{_ROW}">'
        f'<div class="derivation-left" style="text-align:right">{left}</div>'
        f'<div class="derivation-body" style="{_BODY}">'
        f'<div class="derivation-right" style="{style}" tabindex="0">{_maths(right)}</div>{reason}</div>'
        f'<a class="derivation-number" href="#{anchor}" aria-label="{label}">'
        f"{_WRONG * wrong}({number})</a></div>"
    )


def _anchor(place: tuple[str, int]) -> str:
    return f"{escape(place[0])}-{place[1]}"


def _unnumbered(line: Line) -> str:
    if line.kind == "note":
        words = _words(line.reason)
    else:
        assert line.right is not None
        declared = ", ".join(map(_maths, _declarations(line.right.text)))
        if line.kind == "layout":
            declared = escape(line.right.text)
        words = f'<span class="derivation-word">{line.kind}</span> {declared}'
        if line.reason:
            words += f' <span class="derivation-reason">{_words(line.reason)}</span>'
    return f'<div class="derivation-{line.kind}" style="grid-column:1/-1">{words}</div>'


def _declarations(latex: str) -> list[str]:
    """Split ``x, y \\in A, z \\in B`` after each set, where a line may break."""
    pieces: list[str] = []
    for piece in latex.split(", "):
        if pieces and r"\in" not in pieces[-1]:
            pieces[-1] += f", {piece}"
        else:
            pieces.append(piece)
    return pieces


def _maths(latex: str) -> str:
    return rf"\(\displaystyle {escape(' '.join(latex.split()), quote=False)}\)"


def _words(prose: str) -> str:
    """Return prose as HTML. In it, $…$ is mathematics."""
    return re.sub(r"\$([^$]+)\$", r"\\(\1\\)", escape(prose, quote=False))


def text(derivation: Derivation) -> str:
    """Return the derivation's own lines for a terminal: LaTeX aligned on "=", with the
    reasons beside it."""
    rows = []
    places = derivation.places[len(derivation.all_lines) - len(derivation.lines) :]
    for line, (_, number) in zip(derivation.lines, places, strict=True):
        if line.kind == "note":
            rows.append(("", line.reason, "", ""))
            continue
        if not line.numbered:
            rows.append(("", f"{line.kind} {line.latex}", "", line.reason))
            continue
        left = " ".join(line.left.text.split()) if line.left else ""
        right = line.latex[len(f"{left} = ".lstrip()) :]
        left = f"{_WORD[line.kind]} {left}" if line.kind in _WORD else left
        mark = "✗ " * (line.right in derivation.wrong)
        rows.append((f"{mark}({number})", left, right, line.reason))
    numbers = max((len(row[0]) for row in rows), default=0)
    width = max((len(row[1]) for row in rows if row[0]), default=0)
    return "\n".join(_text_row(row, numbers, width) for row in rows)


def _text_row(row: tuple[str, str, str, str], numbers: int, width: int) -> str:
    number, left, right, reason = row
    shown = (
        f"{number:>{numbers}}  {left:>{width}} = {right}"
        if number
        else f"{'':{numbers}}  {left}"
    )
    return f"{shown}    | {reason}" if reason else shown
