"""Write brackets round what a gradient is taken of: \\nabla_x \\frac12 x^\\top A x.

Only a number has a gradient. So a gradient that begins at a row, or at a fraction of
numbers before other factors, is that of the whole term.
"""

from __future__ import annotations

import re

from backpass.derivation.language.brackets import outside
from backpass.derivation.language.names import Scope
from backpass.derivation.language.parse import Part, Unreadable, parse
from backpass.derivation.text.passages import Text

_BRACED = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_GRADIENT = re.compile(
    rf"\\nabla\s*(?:\^\s*(?:2|\{{\s*2\s*\}}))?\s*_\s*{_BRACED}"
    rf"|\\[dt]?frac\s*\{{\s*\\partial\s*\^\s*(?:2|\{{2\}})\s*\}}\s*{_BRACED}"
)
_TOKEN = re.compile(r"\\(?:left|right)\s*(?:\\.|.)|\\[a-zA-Z]+|\\.|.", re.S)
_ENDS = re.compile(
    r"[+\-=<>,;&|]|\\(?:q?quad|text|mbox|nabla|odot|leq?|geq?|neq?|approx|in|\\)"
)
_NUMBER = re.compile(
    r"[0-9]+|\\[dt]?frac\s*(?:[0-9]{2}|\{(?P<above>[^{}]*)\}\s*\{(?P<below>[^{}]*)\})"
)
_NAME = re.compile(
    r"(?:\\[a-zA-Z]+(?:\s*\{[^{}]*\})?|[a-zA-Z])(?:\s*_\s*(?:\w|\{[^{}]*\}))?"
)
_BRACKET = re.compile(r"\\left\s*[(\[]|[(\[]")
_TOP = re.compile(r"\s*\^\s*(?:\\top(?![a-zA-Z])|\{\s*\\top\s*\})\s*")


def with_reach(text: Text, scope: Scope) -> Text:
    """Return a text with brackets round each term that a gradient is certainly of."""
    for match in reversed([*_GRADIENT.finditer(text.characters)]):
        first = match.end()
        term = _term(text.characters[first:])
        if _is_whole(term.strip(), scope):
            last = first + len(term.rstrip())
            origins = text.origins
            characters = (
                text.characters[:first],
                r"\left(",
                text.characters[first:last],
                r"\right)",
                text.characters[last:],
            )
            text = Text(
                "".join(characters),
                (
                    *origins[:first],
                    *[origins[first]] * len(characters[1]),
                    *origins[first:last],
                    *[origins[last - 1]] * len(characters[3]),
                    *origins[last:],
                ),
            )
    return text


def _term(text: str) -> str:
    """Return the term with which a text begins."""
    depth = 0
    for match in _TOKEN.finditer(text):
        sign = match[0]
        opens = sign in ("{", "(", "[", r"\{") or sign.startswith(r"\left")
        closes = sign in ("}", ")", "]", r"\}") or re.match(
            r"\\right(?![a-zA-Z])", sign
        )
        if depth == 0 and (closes or _ENDS.fullmatch(sign)):
            return text[: match.start()]
        depth += bool(opens) - bool(closes)
    return text


def _is_whole(term: str, scope: Scope) -> bool:
    """Whether a gradient of the first factor of a term has no meaning, or is 0."""
    if match := _NUMBER.match(term):
        written = f"{match['above'] or ''} {match['below'] or ''}"
        names = {*re.findall(r"\\?[a-zA-Z]+", written)}
        if not term[match.end() :].strip():
            return match["above"] is not None
        return names <= {*scope.dimensions}
    if match := _BRACKET.match(term):
        ends = [
            match.end() + at
            for at in outside(term[match.end() :])
            if term[match.end() + at : match.end() + at + 1] in (")", "]")
        ]
        top = _TOP.match(term, ends[0] + 1) if ends else None
        return top is not None and top.end() < len(term)
    if (match := _NAME.match(term)) and (top := _TOP.match(term, match.end())):
        return top.end() < len(term) and _is_array(match[0], scope)
    return False


def _is_array(name: str, scope: Scope) -> bool:
    try:
        found = scope.resolve(parse(Part(name, 0, name), "moved"))
    except Unreadable:
        return False
    if found is None or found.kind != "variable" or found.indices:
        return False
    return bool(scope.variables[found.name].shape)
