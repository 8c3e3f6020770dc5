"""Whether a text says that a name is a label, whose elements sum to 1."""

from __future__ import annotations

import re

_LABELS = (
    r"\b(?:one-?hot|labels?|targets?|distributions?|probabilit(?:y|ies)"
    r"|sums? to (?:1|one))\b"
)
_ONE_HOT = re.compile(
    r"\b(?:labels?|targets?) (?:is|are) one-?hot|\bone-?hot (?:labels?|targets?)", re.I
)
_DENIES = re.compile(
    r"\b(?:no|not|nor|never|neither|cannot|without|arbitrary|any|unnormali[sz]ed|unrestricted"
    r"|unconstrained|regression|real|rather\s+than|instead\s+of|may\s+(?:be|have))\b|n't\b",
    re.I,
)
_ENDS = re.compile(r"[.;:!?](?=\s)|\n[ \t]*\n|\$\$")


def is_label(name: str, source: str) -> bool:
    """Whether a word such as *label* stands beside a name in a text, in the same
    clause; or whether labels are one-hot, and it is a usual name of them. No sentence
    with such a word and the name may deny it."""
    formula = re.compile(rf"\$[^$]{{0,9}}{re.escape(name)}(?![a-zA-Z])[^$]*\$")
    usual = re.sub(r"\\[a-z]+|[{}]", "", name) in ("y", "t")
    found = False
    for sentence in _ENDS.split(source):
        if not re.search(_LABELS, sentence, re.I):
            continue
        is_named = formula.search(sentence) is not None
        others = not is_named and "$" in sentence
        if _DENIES.search(sentence) and not others:
            return False
        found |= usual and _ONE_HOT.search(sentence) is not None
        found |= is_named and _is_beside(formula.pattern, sentence)
    return found


def _is_beside(formula: str, sentence: str) -> bool:
    near = r"[^.;:$\n]{0,40}"
    pattern = rf"{_LABELS}{near}{formula}|{formula}{near}{_LABELS}"
    return re.search(pattern, sentence, re.I) is not None
