"""Displays within sentences that state a condition, such as “if $$a = b$$”.

Such a display claims nothing. Where a sentence begins with a condition, its equations
may hold only under this one, so they define no name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from backpass.derivation.text.contents import Aside, Item
from backpass.derivation.text.displays import Display
from backpass.derivation.text.imposed import only_defines, paragraph_above

_MATHEMATICS = re.compile(r"\$\$.*?\$\$|\$[^$]*\$", re.S)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z$])")
# Words directly before an equation which say that it is a condition, or to be solved.
_CONDITION = re.compile(
    r"\b(?:if|iff|when|whenever|unless|until|while|solv(?:e|es|ed|ing))"
    r"(?:\s+(?:for|the|a|an|this|linear|system|equations?|problem|of)\b)*[\s:]*\Z",
    re.I,
)
_CASE = re.compile(
    r"\b(?:for|at|case|setting)(?:\s+(?:all|any|each|every|some))?[\s:]*\Z", re.I
)
# Words that make the rest of a sentence conditional, or find what it says.
_CONDITIONAL = re.compile(
    r"\b(?:if|when|whenever|unless|provided|as long as|in case)\b", re.I
)
# Words directly behind an equation which say that it holds under a condition.
_BEHIND = re.compile(
    r"\s*(?:\$\$)?[\s,.]*(?:(?:if|when|whenever|unless|provided|iff)\b"
    r"|(?:only|exactly|precisely)\s+(?:if|when)\b|as long as\b)"
)
_FOUND = re.compile(r"\b(?:expect(?:s|ed)?|(?:can|could|may|might)\s+(?:\w+\s+)?\w+)\b")
_NAME = re.compile(r"((?:\\[a-zA-Z]+\s*\{\s*)?\\?[a-zA-Z]+(?:\s*\})?)\s*=")
_MEMBER = re.compile(r"\\in(?![a-zA-Z])")


def states_condition(prose: str) -> bool:
    """Whether the words before an equation in a sentence say that it is a condition."""
    return bool(_CONDITION.search(prose) or _CASE.search(prose))


def is_conditional(prose: str) -> bool:
    """Whether the sentence at the end of some prose states a condition, or finds what
    follows it, so that this is a claim."""
    sentence = _MATHEMATICS.sub(" ", _sentence(prose))
    return bool(_CONDITIONAL.search(sentence) or _FOUND.search(sentence))


def _sentence(prose: str) -> str:
    return _SENTENCE.split(paragraph_above(prose).lstrip())[-1]


def in_sentences(items: Iterable[Item], source: str) -> Iterator[Item]:
    """Yield the items of a text; a display that states a condition is an aside."""
    for item in items:
        if not isinstance(item, Display) or _MEMBER.search(
            source, item.start, item.end
        ):
            yield item
            continue
        prose = source[max(0, item.start - 400) : item.start]
        inside = _is_inside(item, source)
        if _CONDITION.search(prose) or (inside and _CASE.search(prose)):
            yield Aside(item)
        elif _BEHIND.match(source, item.end):
            yield replace(item, conditional=True)
        elif is_conditional(prose) if inside else _is_claim(item, source):
            yield replace(item, conditional=True)
        else:
            yield item


def _is_claim(display: Display, source: str) -> bool:
    """Whether a sentence with a condition gives a value to a name that formulas above
    the sentence have, and does not say that it defines this."""
    name = _NAME.match(display.rows[0].characters) if display.rows else None
    start = max(source.rfind("\n#", 0, display.start), 0)
    prose = source[start : display.start]
    sentence = _MATHEMATICS.sub(" ", _sentence(prose))
    if name is None or not _CONDITIONAL.search(sentence) or only_defines(prose):
        return False
    above = prose[: len(prose) - len(_sentence(prose))]
    used = re.compile(rf"(?<![a-zA-Z\\]){re.escape(name[1])}(?![a-zA-Z])")
    return any(used.search(one[0]) for one in _MATHEMATICS.finditer(above))


def _is_inside(display: Display, source: str) -> bool:
    """Whether words stand beside a display in its line."""
    if not source.startswith("$$", display.start):
        return False
    before = source[source.rfind("\n", 0, display.start) + 1 : display.start]
    after = source[display.end :].partition("\n")[0]
    return re.search("[a-zA-Z]", _MATHEMATICS.sub("", before + after)) is not None
