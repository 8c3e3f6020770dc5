"""Differentials that a text writes with a d, under the words `d differential`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from backpass.derivation.language.names import LOSS, Scope
from backpass.derivation.language.parse import Part, Unreadable, parse
from backpass.derivation.text.passages import Text

_LETTER = (
    r"(?:\\(?:mathbf|boldsymbol|mathcal)\s*\{\s*[a-zA-Z]\s*\}|\\[a-zA-Z]+|[a-zA-Z])"
)
_NAME = rf"(?:\\(?:hat|tilde|widehat)\s*(?:\{{\s*{_LETTER}\s*\}}|[a-zA-Z](?![a-zA-Z]))|{_LETTER})"
_DIFFERENTIAL = re.compile(
    r"(?:(?<![a-zA-Z\\])d(?![a-zA-Z]*\{)|\\(?:mathrm|text|operatorname)\s*\{\s*d\s*\})"
    rf"\s*(?:\\,\s*)?({_NAME})(\s*_\s*(?:[0-9a-zA-Z]|\{{[^{{}}]*\}})|\s*\^\s*\{{\(\w\)\}})?"
)


# d c^2 may be the square of d c or the differential of c^2, but a transpose is both.
_POWER = re.compile(
    r"\s*\^\s*(?!\{?\s*(?:\\(?:top|intercal|mathrm|mathsf|text)|T(?![a-zA-Z])|\())"
)


def with_dots(text: Text, scope: Scope, losses: Iterable[str]) -> Text:
    """Return a text with \\dot{X} for d X, where X is a known name."""
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
