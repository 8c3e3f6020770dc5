"""Equations that restrict a name, so that an equation below may be their solution.

After 2 w - 6 = 0, the row w = 4 is a claim. An equation defines the name on its left,
unless an equation above has the name and is neither an identity nor a definition: then
the text has to say that it defines the name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from backpass.derivation.text.contents import Document, Heading
from backpass.derivation.text.displays import Display
from backpass.derivation.text.greek import LOWER
from backpass.derivation.text.imposed import (
    CONCLUDES,
    ZERO,
    is_result,
    is_signed,
    paragraph_above,
)
from backpass.derivation.text.passages import Text

Members = tuple[Text, ...]
_RIGHT = ("equal", "definition")
_WORDS = re.compile(
    r"\\(?:text[a-z]*|mbox|mathrm|operatorname|mathbb|begin|end)\s*\{[^{}]*\}"
)
_NAME = re.compile(
    r"(?:\\(?:(?P<accent>(?:wide)?(?:hat|tilde)|bar|overline|mean)|math[a-z]+|boldsymbol|bm|vec)"
    r"(?![a-zA-Z])\s*\{?\s*)?(?P<letter>\\[a-zA-Z]+|[a-zA-Z])\s*\}?"
    r"(?:\s*_\s*(?:(?P<one>\w)|\{(?P<more>(?:[^{}]|\{[^{}]*\})*)\}))?"
)
_GREEK = re.compile(
    rf"\\(?:(?:var)?(?:{LOWER})|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma"
    r"|Upsilon|Phi|Psi|Omega|ell)"
)
_STAR = r"\^\s*(?:\\star|\\ast|\*|\{\s*(?:\\star|\\ast|\*)\s*\})"
_HEAD = re.compile(
    rf"(?P<name>{_NAME.pattern})\s*(?P<mark>{_STAR}|'+)?\s*"
    r"(?P<power>\^\s*(?:\d|\{\s*\d\s*\}))?\s*(?P<arguments>\(.*\))?\s*",
    re.S,
)
_DERIVATIVE = re.compile(
    r"\\(?:partial|nabla)(?![a-zA-Z])|\\frac\s*\{\s*\\?d(?![a-z])|'"
)
# The derivative of a name, alone on a left side.
_SLOPE = re.compile(
    r"\\frac\s*\{\s*(?:\\partial(?![a-zA-Z])|\\?d(?![a-z]{2})|\\mathrm\s*\{d\})(?P<of>[^{}]*)\}"
    r"|(?P<name>\\?[a-zA-Z]+)'"
)
_BELOW = re.compile(r"\s*\{[^{}]*\}")
_NUMBER = re.compile(rf"[\s\d.&-]+|{ZERO.pattern}")
_INTRODUCES = re.compile(
    r"\b(?:[wW]here|[lL]et|[dD]efin\w+|[dD]enot\w+|[cC]all(?:ed)?|[sS]uppos\w+|[aA]ssum\w+"
    r"|[tT]ak(?:e|ing)|[cC]hoos\w+|[pP]ick|[eE]xample|[cC]onsider|e\.g\.|with|[iI]nstance)\b"
    r"|\b(?:[fF]or|[iI]f|[wW]hen|[aA]t)\W*\Z"
)


Names = set[tuple[str, str, str]]  # the letter, its label, and its accent


def names_of(text: str) -> Names:
    """Return the names in a formula."""
    found = set()
    for match in _NAME.finditer(_WORDS.sub(" ", text)):
        letter = match["letter"]
        if len(letter) == 1 or _GREEK.fullmatch(letter):
            label = (match["one"] or match["more"] or "").strip()
            is_index = len(label) == 1 and label.isalpha()
            found.add((letter, "" if is_index else label, match["accent"] or ""))
    return found


@dataclass
class _Equation:
    members: Members
    section: int
    kinds: tuple[str, ...]
    line: int

    @property
    def is_right(self) -> bool:
        return bool(self.kinds) and all(kind in _RIGHT for kind in self.kinds)

    def is_repeated(self, members: Members) -> bool:
        """Whether a sentence has an equation whose left side a display gives a value
        that is not a number."""
        return (
            self.kinds[:1] == ("",)
            and _left(members) == self.members[0].characters.strip()
            and bool(names_of(members[1].characters))
        )

    @property
    def text(self) -> str:
        return " ".join(member.characters for member in self.members)

    @property
    def left(self) -> str:
        return " ".join(_left(self.members).split())

    @property
    def defined(self) -> Names:
        """The name that the equation defines, on its left or else on its right."""
        if self.kinds[:1] != ("definition",):
            return set()
        for side in self.members[:2]:
            head = _HEAD.fullmatch(side.characters.strip(" &"))
            if head and not head["power"]:
                return names_of(head["name"])
        return set()


class Restrictions:
    """The equations of a text so far, and the claims about names that they restrict."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._above: list[_Equation] = []
        # Equations that define no name, because those above restrict theirs.
        self.held: dict[Members, tuple[Members, ...]] = {}
        self._allowed: set[Members] = set()

    def note(self, members: Members, kinds: Sequence[str]) -> None:
        """Note the verdicts on an equation."""
        start = _start(members)
        if start >= 0 and len(members) > 1 and len(kinds) == len(members) - 1:
            line = self._document.line(start)
            section = self._section(start)
            self._above.append(_Equation(members, section, tuple(kinds), line))

    def restart(self) -> None:
        """Forget the equations above: names have no meaning any more."""
        self._above.clear()

    def allow(self, members: Members) -> None:
        """Let an equation define a name: those that restrict the name hold with it."""
        self._allowed.add(members)
        self.held.pop(members, None)

    def against(self, members: Members) -> str:
        """Return why an equation defines no name: those above restrict the name, or one
        in another section defines it differently; "" if neither."""
        document = self._document
        if above := self.on(members):
            lines = dict.fromkeys(document.line(_start(sides)) for sides in above)
            places = " and ".join(map(document.where, lines))
            return (
                f"{places} may restrict the name on its left, and this may be a "
                "solution: if it defines the name, write := in place of =, or define it "
                "in a comment, with let"
            )
        if line := self._other_definition(members):
            self.held[members] = ()
            name = _left(members).partition("(")[0]
            return (
                f"{document.where(line)} defined {name} differently. For a new {name}, "
                f"write restart before it. If it is a claim, define {name} in a comment: "
                "let"
            )
        return ""

    def _other_definition(self, members: Members) -> int:
        """Return the line of a definition in another section of the same left side, if
        an equation has mostly its names, and may be a claim: the left side is the value
        of a function, or the sentence above concludes. Otherwise 0."""
        head = _HEAD.fullmatch(_left(members))
        start, source = _start(members), self._document.source
        if start < 0 or head is None or head["power"]:
            return 0
        if is_signed(source, members) or self._is_introduced(start):
            return 0
        if not (head["arguments"] or CONCLUDES.search(self._sentence(start)[0])):
            return 0
        left, right = ("".join(one.characters.split()) for one in members[:2])
        given, section = names_of(head["arguments"] or ""), self._section(start)
        names = names_of(right) - given
        others = [
            one
            for one in self._above
            if one.section != section
            and one.kinds[:1] == ("definition",)
            and "".join(one.left.split()) == left.lstrip("&")
        ]
        if any("".join(one.members[1].characters.split()) == right for one in others):
            return 0
        return next(
            (
                one.line
                for one in others
                if 2 * len(names & names_of(one.members[1].characters)) > len(names)
            ),
            0,
        )

    def on(self, members: Members) -> tuple[Members, ...]:
        """Return the equations above that restrict the name on the left of an equation,
        if this one may be their solution; record it as held."""
        if (
            members in self._allowed
            or (head := _HEAD.fullmatch(_left(members))) is None
        ):
            return ()
        start, source = _start(members), self._document.source
        names = names_of(head["name"])
        right = names_of(members[1].characters)
        if start < 0 or not names or names & right or (head["arguments"] and right):
            return ()
        if is_signed(source, members) or self._is_introduced(start):
            return ()
        section = self._section(start)
        above = [
            one
            for one in sorted(self._above, key=lambda one: _start(one.members))
            if one.section == section and _start(one.members) < start
        ]
        found = tuple(
            sides
            for one in above
            if not one.is_repeated(members)
            and (sides := self._restricting(one, above, names))
            and is_result(source, one.members, members)
            and right <= self._reached(sides, above)
        )
        found += tuple(
            one.members for one in above if self._contradicts(one, above, members)
        )
        if found:
            self.held[members] = found
        return found

    def _contradicts(
        self, one: _Equation, above: list[_Equation], members: Members
    ) -> bool:
        """Whether a definition above gives the left side of an equation another value,
        or has this left side in the value of a name on the right."""
        names, right = names_of(_left(members)), names_of(members[1].characters)
        if one.left == " ".join(_left(members).split()):
            is_same = one.members[1].characters.split() == members[1].characters.split()
            is_defined = one.kinds[:1] == ("definition",) and not is_same
            return is_defined and right <= self._reached(one.members, above)
        inside = names_of(one.text) - one.defined
        reached = self._reached(members[1:2], above)
        return bool(one.defined & reached and names & inside)

    def _restricting(
        self, one: _Equation, above: list[_Equation], names: Names
    ) -> Members:
        """Return the sides that an equation sets equal, with those to which its left
        side is equal above, if it restricts one of some names; otherwise ()."""
        head = _HEAD.fullmatch(one.left)
        squared = head is not None and head["power"] and names & names_of(one.left)
        if one.is_right and not squared:
            return ()
        same = [other for other in above if other.left == one.left]
        if same[0] is one and not squared and self._may_define(one, names):
            return ()
        more = (m for other in same if other.is_right for m in other.members[1:])
        sides = (*dict.fromkeys((*one.members, *more)),)
        numbers = [side for side in sides if _NUMBER.fullmatch(side.characters)]
        if has_derivative(one.text) and not numbers:
            slope = _SLOPE.match(one.left)
            if slope is None or not names & names_of(_differentiated(slope)):
                return ()
        reached = self._reached(sides, above)
        if any(ZERO.fullmatch(side.characters) for side in numbers):
            # \hat{w} may solve an equation for w.
            names = names | {(letter, "", "") for letter, _, accent in names if accent}
        return sides if names & reached else ()

    def _may_define(self, one: _Equation, names: Names) -> bool:
        """Whether an equation may define another name, or a function."""
        head = _HEAD.fullmatch(one.left)
        if head is None or head["power"] or has_derivative(one.left):
            return False
        if one.kinds[:1] == ("definition",):
            return False  # another side is a claim
        if head["arguments"]:
            return re.search(r"[+\-\d]", head["arguments"]) is None
        return not names & names_of(head["name"])

    def _reached(self, sides: Members, above: list[_Equation]) -> Names:
        """Return the names in formulas, and in the definitions of these names."""
        found = names_of(" ".join(side.characters for side in sides))
        for one in reversed(above):
            if one.defined & found:
                found |= names_of(one.text)
        return found

    def _section(self, start: int) -> int:
        return sum(
            isinstance(one, Heading) and one.start < start
            for one in self._document.items
        )

    def _is_introduced(self, start: int) -> bool:
        """Whether the words before an equation say that it defines or assumes."""
        sentence, words = self._sentence(start)
        return any(_INTRODUCES.search(one) for one in (sentence, *words))

    def _sentence(self, start: int) -> tuple[str, list[str]]:
        """Return the unfinished sentence above an equation, and the words before it in
        its display."""
        displays = [one for one in self._document.items if isinstance(one, Display)]
        ends = [0, *(one.end for one in displays if one.end <= start)]
        opening = next(
            (one.start for one in displays if one.start <= start < one.end), start
        )
        prose = self._document.source[max(ends[-1], opening - 400) : opening]
        if prose.rstrip().endswith("."):
            prose = ""  # the sentence is complete
        sentence = re.split(r"(?<=[.!?:])\s+(?=[A-Z])", paragraph_above(prose).strip())[
            -1
        ]
        inside = self._document.source[opening:start]
        words = re.findall(r"\\(?:text[a-z]*|mbox|mathrm)\s*\{([^{}]*)\}\s*\Z", inside)
        return sentence, words


def has_derivative(formula: str) -> bool:
    return _DERIVATIVE.search(formula) is not None


def gives_number(members: Members, names: Names) -> bool:
    """Whether an equation gives one of some names a number as its value."""
    head = _HEAD.fullmatch(_left(members))
    return (
        len(members) == 2
        and head is not None
        and not (head["power"] or head["arguments"] or head["mark"])
        and names_of(head["name"]) <= names
        and not names_of(members[1].characters)
    )


def name_in(members: Members, sides: Members) -> str:
    """Return the name on the left of an equation as other formulas write it: also w for
    \\hat{w}, \\hat{w}_{\\text{ML}} or w^*, if the formulas have only w. It is "" for a
    power, and for the value of a function."""
    left = _left(members)
    head = _HEAD.fullmatch(left)
    if head is None or head["power"] or head["arguments"]:
        return ""
    inside = names_of(" ".join(side.characters for side in sides))
    if head["mark"] or not names_of(head["name"]) & inside:
        label = head["one"] or head["more"]
        if label and (head["letter"], "", "") not in inside:
            return f"{head['letter']}_{{{label}}}"
        return head["letter"]
    return left


def _left(members: Members) -> str:
    return members[0].characters.strip().lstrip("&")


def _start(members: Members) -> int:
    return next((one.origins[0] for one in members if one.origins), -1)


def _differentiated(slope: re.Match[str]) -> str:
    """Return what a derivative is of: above the line, before a dash, or behind it."""
    behind = _BELOW.sub("", slope.string[slope.end() :], count=1)
    return slope["name"] or slope["of"].strip() or behind
