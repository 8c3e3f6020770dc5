"""Reasons beside an equation, and signs over its =, that do not restrict it.

Only a closed list of reasons is read, such as "by the chain rule". Other words may say
where an equation holds.
"""

from __future__ import annotations

import re

from backpass.derivation.text.passages import Text

_OF = (
    r"(?: of (?:the )?(?:derivatives?|differentiation|gradients?|expectations?|traces?|sums?"
    r"|summation|inner product|transpose))?"
)
_NAMED = (
    r"(?:(?:multivaria(?:te|ble)|vector|scalar) )?"
    r"(?:chain|product|quotient|sum|difference|power|leibniz) rule",
    rf"linearity{_OF}",
    r"distributiv(?:ity|e law|e property)",
    r"associativity",
    rf"cyclic(?:ity| property| invariance){_OF}",
    r"definition(?: of (?:the )?[a-zA-Z-]+)?",
    r"algebra",
)
_DONE = (
    r"simplif(?:y|ying|ied|ication)",
    r"rearrang(?:e|ing)(?: (?:the )?terms)?",
    r"expand(?:ing)?(?: the (?:squares?|products?|brackets?|sums?))?",
    r"factor(?:ing)?(?: out)?",
    r"(?:collect|group)(?:ing)?(?: (?:like )?terms)?",
    r"cancel(?:l?ing)?(?: (?:like )?terms)?",
    r"substitut(?:e|ing|ion)",
    r"differentiat(?:e|ing|ion)",
)
_LEAD = r"(?:(?:by|using|use|via|from|apply|applying)(?: the)? |the )?"
_ONE = rf"{_LEAD}(?:{'|'.join(_NAMED + _DONE)})"
_WORDS = rf"(?i:{_ONE}(?:(?:, | and |, and ){_ONE})*)"
_LABEL = r"\((?:[0-9]+(?:\.[0-9]+)*[a-z]?|[a-z]|[ivx]+)\)"
_TEXT = r"\\(?:text(?:rm|bf|it|sf|normal)?|mbox|mathrm)\s*"
_SPACES = r"(?:\s|~|\\[,;:! ]|\\q?quad(?![a-zA-Z])|\\hfill(?![a-zA-Z])|\\hspace\s*\{[^{}]*\})*"
_NAME = r"(?:\\[a-zA-Z]+(?:\s*\{[a-zA-Z]\})?|[a-zA-Z])(?:_(?:\w|\{\w+\}))?"
_REASON = (
    rf"\(\s*{_TEXT}\{{\s*{_WORDS}\s*\}}\s*\)"
    rf"|{_TEXT}\{{\s*(?:{_WORDS}|\(\s*{_WORDS}\s*\)|\[\s*{_WORDS}\s*\]|{_LABEL})[.,;]?\s*\}}"
    rf"|{_TEXT}\{{\s*\(?(?i:{_LEAD}definition of(?: the)?)\s*\}}\s*{_NAME}"
)
# At the end of a row.
_BESIDE = re.compile(
    rf"[.,;]?{_SPACES}(?:{_REASON})[\s.,;]*\Z"
    rf"|[.,;]?\\q?quad(?![a-zA-Z]){_SPACES}\([0-9]+(?:\.[0-9]+)*[a-z]?'?\)[\s.,;]*\Z"
)
_DEFINES = r"(?i:def(?:inition)?\.?)"
_ABOVE = (
    rf"(?:{_TEXT}\{{\s*(?:{_WORDS}|{_LABEL}|[0-9]+|{_DEFINES})\s*\}}|{_LABEL}|[0-9]+"
    rf"|\\(?:operatorname|mathrm)\s*\{{\s*{_DEFINES}\s*\}}|\\(?:triangle|Delta))"
)
_OVER_EQUAL = re.compile(
    rf"\\(?:overset|stackrel|underset)\s*\{{\s*{_ABOVE}\s*\}}\s*(?:\{{\s*=\s*\}}|=)"
    r"|\\(?:triangleq|eqdef)(?![a-zA-Z])"
)
OTHER_OVER_EQUAL = re.compile(
    r"\\(?:overset|stackrel|underset)\s*\{[^=]*\}\s*(?:\{\s*=\s*\}|=)"
)


def with_plain_equals(text: Text) -> Text:
    """Return a text with = in place of = below a label or a reason."""
    return text.replaced(_OVER_EQUAL, "=")


def without_reason(row: Text) -> Text:
    """Return a row without a reason at its end that does not restrict it."""
    match = _BESIDE.search(row.characters)
    return row[: match.start()] if match else row
