"""Rewrite the matrices of a text in the notation of derivations.

A matrix or an array in brackets is a bmatrix or a pmatrix, and between bars it is its
determinant.
"""

from __future__ import annotations

import re

from backpass.derivation.text.passages import Text

_LEFT, _RIGHT = r"(?:\\(?:left|[bB]igg?l?)\s*)?", r"(?:\\(?:right|[bB]igg?r?)\s*)?"
_INSIDE = r"(?:(?!\\(?:begin|end)(?![a-zA-Z])).)*?"
_IN_BRACKETS = re.compile(
    rf"(?P<open>{_LEFT}(?P<sign>\[|\\lbrack(?![a-zA-Z])|\(|(?<=left)\||\\lvert(?![a-zA-Z])"
    r"|(?<=left)\\vert(?![a-zA-Z]))\s*"
    r"\\begin\s*\{\s*(?P<kind>matrix|smallmatrix|array)\s*\}(?:\s*\{[\s|rlc]*\})?)"
    rf"(?P<inside>{_INSIDE})"
    r"(?P<close>\\end\s*\{\s*(?P=kind)\s*\}\s*"
    rf"{_RIGHT}(?P<end>\]|\\rbrack(?![a-zA-Z])|\)|\||\\rvert(?![a-zA-Z])|\\vert(?![a-zA-Z])))",
    re.S,
)
_BETWEEN_BARS = re.compile(
    rf"(?P<open>\\begin\s*\{{\s*vmatrix\s*\}}){_INSIDE}(?P<close>\\end\s*\{{\s*vmatrix\s*\}})",
    re.S,
)
_CHOICE = re.compile(r"[^&]*?\\\\[^&]*?(?<!\\)", re.S)  # may be n over k
_SIGNS = {"[": "b", r"\lbrack": "b", "(": "p"}
_ENDS = {"[": "]", r"\lbrack": r"\rbrack", "(": ")"}


def with_matrices(text: Text) -> Text:
    """Return a text with a bmatrix, a pmatrix, or a determinant for such matrices."""
    for pattern in (_IN_BRACKETS, _BETWEEN_BARS):
        edits: list[tuple[tuple[int, int], str]] = []
        for match in pattern.finditer(text.characters):
            groups = match.groupdict()
            sign, end = groups.get("sign", "|"), groups.get("end", "|")
            is_bar = sign not in _SIGNS
            if (is_bar and end in _ENDS.values()) or end != _ENDS.get(sign, end):
                continue
            if sign == "(" and _CHOICE.fullmatch(match["inside"]):
                continue
            kind = _SIGNS.get(sign, "b")
            opening, closing = rf"\begin{{{kind}matrix}}", rf"\end{{{kind}matrix}}"
            if is_bar:
                opening, closing = rf"\det \left( {opening}", rf"{closing} \right)"
            edits += [(match.span("open"), opening), (match.span("close"), closing)]
        text = text.edited(edits)
    return text


_ESCAPED_ROW = re.compile(r"\\\\\\\\")
_ESCAPED_BRACE = re.compile(r"\\\\(?=[{}])")
_ESCAPED_INDEX = re.compile(r"\\_(?=[\s\\{\w])")


def without_escapes(text: Text) -> Text:
    """Return the text of a Markdown file without the escapes that some of its readers
    need in formulas: x\\_i for x_i, and four signs for two at the end of a row."""
    if _ESCAPED_ROW.search(text.characters):
        text = text.replaced(_ESCAPED_BRACE, r"\\")
        text = text.replaced(_ESCAPED_ROW, r"\\\\")
    return text.replaced(_ESCAPED_INDEX, "_")
