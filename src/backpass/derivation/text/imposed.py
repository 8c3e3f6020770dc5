"""Equations that a text imposes and does not claim: the gradient is set to 0.

They are marked by a sign over =, or by the sentence before the display. An equation
that follows from an imposed one need not hold everywhere either.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from backpass.derivation.text.passages import Text

_SET = r"(?:[sS]et(?:s|ting)?|[eE]quat(?:e|es|ing)|[pP]ut(?:s|ting)?|[rR]equir(?:e|es|ing))"
_POINT = (
    r"(?:optim(?:um|a)|minim(?:um|a|i[sz]ers?)|maxim(?:um|a|i[sz]ers?)|extrem(?:um|a)"
    r"|solution|(?:stationary|critical|saddle|fixed|optimal) points?)"
)
_IMPOSES = re.compile(
    rf"\b{_SET}\b[^.]*\b(?:zero|vanish\w*|equal)\b|\b{_SET}\b[^.]*(?<![\w.])0(?![\w.])"
    rf"|\b{_SET}\W*\Z|\b[iI]mpos(?:e|es|ing)\b"
    rf"|\b[aA]t (?:the|a|an|any|each|every|this|its) (?:\w+ )?{_POINT}\b"
    r"|\b(?:must|should|has to|have to) (?:vanish|be (?:zero|equal|0))"
    r"|\b(?:first[- ]order|optimality|stationarity) conditions?\b|\bvanish(?:es|ing)?\b"
    r"|\b(?:[nN]ormal|[sS]core|[lL]ikelihood|[eE]stimating) equations?\b"
    r"|\b[tT]here (?:exists?|(?:is|are) (?:some|at least))\b|\bfor some\b"
    r"|\b[aA]t (?:the )?points? (?:\$|\\\()|\b[eE]valuated at\b"
)
# Words near which a side that is 0 is often imposed.
_MAY_IMPOSE = re.compile(
    r"\b(?:optim|minim|maxim|stationar|critical|satisf|fulfil|solv|root|constrain|subject to"
    r"|requir|equilibri|necessary|sufficient|condition|such that|look(?:s|ing)? for|point where"
    r"|best\b|find\b|needs?\b|wants?\b)"
    r"|\b(?:to|must|should|we|now|then|and|can) (?:set|put|let|force|make)\b",
    re.I,
)
CONCLUDES = re.compile(
    r"\b(?:[hH]ence|[sS]o|[tT]hus|[tT]herefore|[tT]hen|[gG]iv(?:es|ing)|[yY]ields?|[sS]olv(?:e|es|ing)"
    r"|[iI]mpl(?:y|ies|ying)|[oO]btain(?:s|ed|ing)?|[rR]earrang\w+|[fF]ollows?|[gG]et|[mM]eans"
    r"|[lL]eads?|[fF]ind|[sS]olution|[oO]r|i\.e\.)\b"
)
_DERIVES = re.compile(
    r"\b(?:deriv|differentiat|gradient|equivalent|rewrit|simplif|substitut|becomes?|prove|proof|show)",
    re.I,
)
_DEFINES = re.compile(
    r"\b(?:where|let|defin(?:e|es|ed|ing|ition)|denot(?:e|es|ed|ing)|call(?:ed)?|introduce"
    r"|given by|known as)\b"
    r"|\b(?:(?:assum(?:e|es|ed)|suppose)(?: that)?|take|choose|(?:model|choice)[\w\s]* is)\W*\Z",
    re.I,
)
_SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z])")
ZERO = re.compile(
    r"\s*(?:0|\\(?:mathbf|boldsymbol|vec|mathbb|underline)\s*(?:\{\s*0\s*\}|0)"
    r"(?:_(?:\w|\{[^{}]*\}))?)\s*"
)
# \frac{\partial q}{\partial x} := 0, with a formula on the left.
_ASSIGNED = re.compile(
    r"(?:\\coloneqq?(?![a-zA-Z])|:=)(?=\s*(?:0|\\(?:mathbf|boldsymbol|vec)\s*\{0\})[\s.,;]*\Z)"
)
IMPOSED = (
    r"\\(?:overset|stackrel|underset)\s*(?:\{\s*(?:!|\\text[a-z]*\s*\{\s*(?:!|set|require"
    r"|want)\s*\}|\\mathrm\s*\{\s*(?:set|require|want)\s*\})\s*\}|!)\s*(?:\{\s*=\s*\}|=)"
)
ASKS = "it does not hold everywhere: is it imposed? If it is, write \\overset{!}{=} in place of ="
HINT = r"if this equation is imposed rather than claimed, write \overset{!}{=} in place of ="


def paragraph_above(prose: str) -> str:
    """Return the last paragraph of some prose."""
    return re.split(r"\n[ \t>]*\n(?=\s*\S)|-->|\n#", prose)[-1]


def only_introduces(prose: str) -> bool:
    """Whether nothing in the last sentence of some prose says that what follows it is
    imposed, solves something, or is concluded."""
    sentence = _SENTENCE.split(prose.strip())[-1]
    return not any(
        one.search(sentence) for one in (_IMPOSES, _MAY_IMPOSE, CONCLUDES, _DERIVES)
    )


def may_impose(prose: str) -> bool:
    """Whether some prose sets something to 0, or may do so."""
    return any(pattern.search(prose) for pattern in (_IMPOSES, _MAY_IMPOSE))


def only_defines(prose: str) -> bool:
    """Whether the last sentence of some prose introduces a name by its words."""
    return _DEFINES.search(_SENTENCE.split(prose.strip())[-1]) is not None


_THEN = re.compile(
    r"(?:[=-]>|\\(?:Rightarrow|Longrightarrow|implies|iff|Leftrightarrow|therefore)(?![a-zA-Z]))"
    r"(?:[\s&{}]|\\[,;: ]|\\q?quad(?![a-zA-Z]))*$"
)


_INTRODUCES = re.compile(
    r"\b(?:where|with|let|here|denot\w*|defin\w*|set|call\w*|recall|put)\b"
    r"|:\s*=|\\(?:triangleq|coloneqq)",
    re.I,
)


def is_result(source: str, above: Sequence[Text], members: Sequence[Text]) -> bool:
    """Whether an equation below another one, all of whose names that one has, may be
    what a calculation has found for a name: an arrow, or a sign such as \\therefore,
    stands before it, its right side is a number, or no word between the two introduces
    a name that is not a function."""
    begin, start = (
        next((one.origins[0] for one in of if one.origins), 0)
        for of in (above, members)
    )
    if _THEN.search(source[max(0, start - 60) : start]):
        return True
    if not re.search("[a-zA-Z]", members[-1].characters):
        return True
    return "(" not in members[0].characters and not _INTRODUCES.search(
        source[begin : start + len(members[0].characters) + 20]
    )


_DEFINING = re.compile(
    r":\s*=|\\(?:coloneqq?|triangleq|equiv)(?![a-zA-Z])"
    r"|\{\s*(?:\\(?:text|mathrm)[a-z]*\s*\{)?\s*(?:def|\\(?:Delta|triangle))\W"
)


def is_signed(source: str, members: Sequence[Text]) -> bool:
    """Whether the sign behind the first member says that it is defined."""
    if len(members) < 2 or not all(one.origins for one in members[:2]):
        return False
    start, end = members[0].origins[-1] + 1, members[1].origins[0]
    return _DEFINING.search(source[start:end]) is not None


@dataclass
class Imposed:
    """Whether the sentence before a display imposes an equation, or may do so, whether
    the display does, and whether its equations may follow from one that is imposed
    `above`."""

    by_sentence: bool = False
    perhaps: bool = False
    above: bool = False
    here: bool = False

    def enter(self, prose: str, has_zero: bool) -> None:
        """Begin a display after some prose; `has_zero` says whether it has a side
        that is 0."""
        sentence = _SENTENCE.split(prose.strip())[-1]
        follows = self.by_sentence or self.here or self.above
        self.above = follows and (
            not prose.strip(" .,;\n") or CONCLUDES.search(sentence) is not None
        )
        self.by_sentence = _IMPOSES.search(sentence) is not None
        self.perhaps = _MAY_IMPOSE.search(sentence) is not None
        self.here = self.by_sentence and not has_zero

    def holds(self) -> None:
        """Note that every row of the display holds everywhere: one that seemed imposed
        before it was read is not."""
        self.here = self.here and self.by_sentence

    @property
    def follows(self) -> bool:
        """Whether an equation may follow from an imposed one."""
        return self.above or self.here


FOLLOWS = (
    "it does not hold everywhere, but it may follow from an imposed equation, in this "
    "display or above it"
)


def with_marks(row: Text) -> Text:
    """Return a row with the mark of an imposed equation in place of := before 0, if the
    left side is a formula and not a name."""
    match = _ASSIGNED.search(row.characters)
    if match and re.search(
        r"\\(?:partial|nabla)|[+\-]|\\frac", row.characters[: match.start()]
    ):
        return row.replaced(_ASSIGNED, r"\\overset{!}{=}")
    return row
