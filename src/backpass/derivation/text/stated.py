"""Where the prose of a text states a condition under which a line holds.

Prose may restrict a line. A line that holds under such a condition is not refused, but
asked about.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from backpass.derivation.language.parse import Part
from backpass.derivation.text.knowledge import Knowledge

_RELATION = r"(?:\\neq?|≠|\\not\s*=|!=|=|\\eq)"
_PAIR = re.compile(
    rf"(?<![a-zA-Z\\])([a-zA-Z])\s*({_RELATION})\s*([a-zA-Z])(?![a-zA-Z])"
)
SUMS_TO_ONE = re.compile(
    r"\bone[- ]hot\b|\bsums? (?:up )?to (?:one|1|\$1\$)|\b1-of-\$?K|\bprobabilit(?:y|ies)\b"
    r"|\bdistribution\b|\bindicator vector|\b(?:is|are) normali[sz]ed\b",
    re.I,
)
_POSITIVE = re.compile(r"\bpositive\b|>\s*0(?![.\d])|\\mathbb\{R\}[_^]\{?\+", re.I)


class Hint(NamedTuple):
    """What would make two members equal: in words, the condition alone, what to write
    to declare it, and what its words look like in prose; None for two indices."""

    words: str = ""
    condition: str = ""
    declared: str = ""
    pattern: re.Pattern[str] | None = None


def of_sum(name: str) -> Hint:
    """Return the hint that the elements of a name sum to 1."""
    equation = rf"\sum_i {name}_i = 1"
    declared = f"declare constant {name} and say: assume {equation}"
    words = f"it holds if {equation}; if that is meant, {declared}"
    return Hint(words, equation, declared, SUMS_TO_ONE)


def of_signs() -> Hint:
    """Return the hint that letters are positive."""
    return Hint(
        "no difference was found where its letters are positive; if they are, "
        r"declare them in \mathbb{R}_{>0}",
        "its letters are positive",
        r"declare them in \mathbb{R}_{>0}",
        _POSITIVE,
    )


def of_indices(a: str, b: str, equal: bool) -> Hint:
    """Return the hint that two indices are equal, or differ."""
    sign = "=" if equal else r"\ne"
    condition = f"{a} {sign} {b}"
    declared = rf"write \quad ({condition}) beside it, or say: when {condition}"
    extra = "" if equal else f"; if that is meant, {declared}"
    return Hint(f"it holds where {condition}{extra}", condition, declared)


def asked(known: Knowledge, hint: Hint, part: Part) -> str:
    """Return what to ask if the prose states the condition of a hint: the section of a
    member above it, or for a property of letters the text; otherwise ""."""
    stated = ""
    if hint.pattern is not None:
        found = hint.pattern.search(known.prose)
        stated = found[0] if found else ""
    elif hint.condition:
        equal = " = " in hint.condition
        for match in _PAIR.finditer(known.prose_above(part.start)):
            if (match[2] in ("=", r"\eq")) is equal:
                stated = " ".join(match[0].split())
                break
    if not stated:
        return ""
    return (
        f"it holds if {hint.condition}: does “{stated}” in the text say so? If it does, "
        f"{hint.declared}"
    )


def asked_of_interval(known: Knowledge, names: Collection[str]) -> str:
    """Return what to ask if the text says that one of some names lies in an interval;
    otherwise ""."""
    for name in sorted(names):
        if known.scope.variables[name].shape:
            continue
        inside = rf"(?<![a-zA-Z\\]){re.escape(name)}\s*\\in\s*(?:\\left\s*)?[(\[]"
        if found := re.search(inside, known.source):
            where = known.document.where(known.document.line(found.start()))
            return (
                f"it does not hold for every {name}, and {where} says in which interval "
                f"{name} lies; this cannot be declared"
            )
    return ""
