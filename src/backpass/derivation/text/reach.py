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
    r"(?:\\[a-zA-Z]+(?:\s*\{[^{}]*\})?|[a-zA-Z])(?:\s*_\s*(?:\w|\\[a-zA-Z]+|\{[^{}]*\}))?"
)
_BRACKET = re.compile(r"\\left\s*[(\[]|[(\[]")
# A function without brackets ends its product.
_FUNCTION = re.compile(
    r"\\(?:log|ln|exp|tanh|sin|cos)(?![a-zA-Z])\s*(?!\\left|[\s([^_])"
)
_VALUE = re.compile(r"\\(?:log|ln|exp|tanh|sin|cos|det)\s*(?:\\left\s*)?\(")
_NORM = re.compile(
    r"\\lVert((?!\\[lr]Vert).)*\\rVert(?:\s*_\s*(?:\w|\{\w\}))?(?:\s*\^\s*(?:\d|\{\d\}))?"
)
_LOGARITHM = re.compile(rf"\s*\\(?:log|ln)\s*{_NAME.pattern}\s*(?:\\left\s*)?\(")
_TOP = re.compile(r"\s*\^\s*(?:\\top(?![a-zA-Z])|\{\s*\\top\s*\})\s*")


def with_reach(text: Text, scope: Scope) -> Text:
    """Return a text with brackets round each term that a gradient is certainly of, and
    round the logarithm of a function's value."""
    for match in reversed([*_GRADIENT.finditer(text.characters)]):
        first = match.end()
        term = _term(text.characters[first:])
        last = 0
        if _is_whole(term.strip(), scope):
            last = first + len(term.rstrip())
        elif value := _LOGARITHM.match(term):
            ends = _end_of_bracket(term, value.end())
            if term[ends:].strip() and not re.match(r"\s*[_^']", term[ends:]):
                last = first + ends
        if last:
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
        opens = sign in ("{", "(", "[", r"\{", r"\lVert") or sign.startswith(r"\left")
        closes = sign in ("}", ")", "]", r"\}", r"\rVert") or re.match(
            r"\\right(?![a-zA-Z])", sign
        )
        if depth == 0 and (closes or _ENDS.fullmatch(sign)):
            return text[: match.start()]
        depth += bool(opens) - bool(closes)
    return text


def _is_whole(term: str, scope: Scope) -> bool:
    """Whether a gradient of the first factor of a term has no meaning, or is 0, or the
    term is a function that has no brackets or nothing behind them."""
    if _FUNCTION.match(term) and not _LOGARITHM.match(term):
        return True
    if (match := _VALUE.match(term)) and (
        not term[_end_of_bracket(term, match.end()) :].strip()
    ):
        return True
    if match := _NORM.match(term):
        return not term[match.end() :].strip()
    if match := _NUMBER.match(term):
        written = f"{match['above'] or ''} {match['below'] or ''}"
        names = {*re.findall(r"\\?[a-zA-Z]+", written)}
        if not term[match.end() :].strip():
            return match["above"] is not None
        return names <= {*scope.dimensions}
    if match := _BRACKET.match(term):
        top = _TOP.match(term, _end_of_bracket(term, match.end()))
        return top is not None and top.end() < len(term)
    if (match := _NAME.match(term)) and (top := _TOP.match(term, match.end())):
        return top.end() < len(term) and _is_array(match[0], scope)
    return False


def _end_of_bracket(text: str, start: int) -> int:
    """Return where the bracket ends whose inside begins at a place; the end of the text
    if it has none."""
    inside = text[start:]
    places = (at for at in outside(inside) if inside[at : at + 1] in (")", "]"))
    return start + next(places, len(inside) - 1) + 1


def _is_array(name: str, scope: Scope) -> bool:
    try:
        found = scope.resolve(parse(Part(name, 0, name), "moved"))
    except Unreadable:
        return False
    if found is None or found.kind != "variable" or found.indices:
        return False
    return bool(scope.variables[found.name].shape)
