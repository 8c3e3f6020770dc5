"""Differentials that a text writes with a d, under the words `d differential`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from backpass.derivation.language.brackets import outside
from backpass.derivation.language.names import LOSS, Scope
from backpass.derivation.language.parse import Part, Unreadable, parse
from backpass.derivation.text.passages import Text

_LETTER = (
    r"(?:\\(?:mathbf|boldsymbol|mathcal)\s*\{\s*[a-zA-Z]\s*\}|\\[a-zA-Z]+|[a-zA-Z])"
)
_NAME = rf"(?:\\(?:hat|tilde|widehat|mean)\s*(?:\{{\s*{_LETTER}\s*\}}|[a-zA-Z](?![a-zA-Z]))|{_LETTER})"
_DIFFERENTIAL = re.compile(
    r"(?:(?<![a-zA-Z\\])d(?![a-zA-Z]*\{)|\\(?:mathrm|text|operatorname)\s*\{\s*d\s*\})"
    rf"\s*(?:\\,\s*)?({_NAME})(\s*_\s*(?:[0-9a-zA-Z]|\{{[^{{}}]*\}})|\s*\^\s*\{{\(\w\)\}})?"
)


# d c^2 may be the square of d c or the differential of c^2, but a transpose is both.
_POWER = re.compile(
    r"\s*\^\s*(?!\{?\s*(?:\\(?:top|intercal|mathrm|mathsf|text)|T(?![a-zA-Z])|\())"
)


# d(A B), d \\log\\det A, d\\operatorname{tr}(A), and d\\lVert x \\rVert^2.
_FUNCTIONS = re.compile(
    r"(?:\s*(?:\\(?:log|ln|exp|det|tanh|sin|cos)|\\operatorname\{(?:tr|diag|det)\})(?![a-zA-Z]))*\s*"
)
_NORM = re.compile(
    r"(?:\\lVert|\\left\s*\\\|)(?:(?!\\[lr]Vert).)*?(?:\\rVert|\\right\s*\\\|)"
    r"(?:\s*_\s*\{?[2F]\}?)?(?:\s*\^\s*(?:2|\{\s*2\s*\}))?",
    re.S,
)
_ARGUMENT = re.compile(rf"{_NAME}(?:\s*_\s*(?:[0-9a-zA-Z]|\{{[^{{}}]*\}}))?")
_D = re.compile(
    r"(?:(?<![a-zA-Z\\{])d|\\(?:mathrm|text|operatorname)\s*\{\s*d\s*\})(?=\s*(?:\\,\s*)?"
    r"(?:[(\[]|\\(?:left|[bB]igg?l?)\s*[(\[]|\\(?:log|ln|exp|det|tanh|sin|cos|lVert)(?![a-zA-Z])"
    r"|\\left\s*\\\||\\operatorname\{(?:tr|diag|det)\}))\s*(?:\\,\s*)?"
)
_TOP = re.compile(r"\s*\^\s*(?:\\top(?![a-zA-Z])|\{\s*\\top\s*\})")


def _with_changes(text: Text) -> Text:
    """Return a text with \\differential\\left( A B \\right) for d(A B)."""
    for match in reversed([*_D.finditer(text.characters)]):
        characters, begins = text.characters, match.end()
        functions = _FUNCTIONS.match(characters, begins)
        at = functions.end() if functions else begins
        has_function = functions is not None and bool(functions[0].strip())
        argument = _NORM.match(characters, at)
        if has_function and argument is None:
            argument = _ARGUMENT.match(characters, at)
        ends = argument.end() if argument else _end_of_bracket(characters, at)
        power = _POWER.match(characters, ends)
        if ends <= at or power or (has_function and _TOP.match(characters, ends)):
            continue
        for place, sign in ((ends, r"\right)"), (begins, r"\left(")):
            text = _inserted(text, place, sign)
        made = Text(r"\differential", (text.origins[match.start()],) * 13)
        text = _put(text, match.start(), begins, made)
    return text


def _end_of_bracket(text: str, start: int) -> int:
    """Return where a bracket or a name ends that begins at a place; 0 if none does."""
    opening = re.compile(r"(?:\\left\s*|\\[bB]igg?l?\s*)?[(\[]").match(text, start)
    if opening is None:
        return 0
    inside = text[opening.end() :]
    for at in outside(inside):
        if inside[at : at + 1] in (")", "]"):
            return opening.end() + at + 1
    return 0


def _inserted(text: Text, place: int, sign: str) -> Text:
    origin = text.origins[min(place, len(text.origins) - 1)]
    return _put(text, place, place, Text(sign, (origin,) * len(sign)))


def _put(text: Text, first: int, last: int, made: Text) -> Text:
    return text[:first] + made + text[last:]


def with_dots(text: Text, scope: Scope, losses: Iterable[str]) -> Text:
    """Return a text with \\dot{X} for d X, where X is a known name, and with the
    differentials of expressions."""
    text = _with_changes(text)
    for match in reversed([*_DIFFERENTIAL.finditer(text.characters)]):
        name, script = match[1], (match[2] or "").strip()
        if name in losses:
            name = LOSS
        power = _POWER.match(text.characters, match.end())
        if power or not _is_known(name + script, scope):
            continue
        new = rf"\dot{{{name}}}{script}"
        if script.startswith("^"):
            new = rf"\dot{{{name}{script}}}"
        first, last = match.span()
        made = Text(new, (text.origins[first],) * len(new))
        text = text[:first] + made + text[last:]
    return text


def _is_known(name: str, scope: Scope) -> bool:
    try:
        found = scope.resolve(parse(Part(name, 0, name), "moved"))
    except Unreadable:
        return False
    return found is not None and found.kind in ("variable", "loss")
