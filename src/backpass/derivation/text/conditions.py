"""Conditions and ranges of indices that stand beside a formula, in the usual forms.

They follow a wide space, a comma, or a word, or are in brackets: `, \\quad i \\ne j`,
`(i < j)`, `\\text{for $i \\ne j$}`, `\\forall i`, `i = 1, \\dots, n`. Before the
formula they end with a colon or a comma. Only text that is a condition as a whole is
taken for one.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from backpass.derivation.language.brackets import outside
from backpass.derivation.text.passages import Text


@dataclass(frozen=True)
class Condition:
    """What stands beside the formula of a row.

    `comparisons` are written in one form, such as i \\ne j, and `ranges` are those of
    indices, such as i = 1, \\dots, n. `place` is where the row begins and ends in the
    source.
    """

    comparisons: tuple[str, ...]
    ranges: tuple[str, ...]
    place: tuple[int, int]
    origin: int

    @property
    def pieces(self) -> tuple[Text, ...]:
        """The comparisons as one text, and each range."""
        texts = (", ".join(self.comparisons), *self.ranges)
        return tuple(Text(one, (self.origin,) * len(one)) for one in texts if one)


_BLOCK = re.compile(
    r"\\(?:text(?:rm|bf|it|sf|normal)?|mbox|mathrm)\s*\{((?:[^{}$]|\$[^$]*\$)*)\}"
)
_LEAD = (
    r"«[\s(]*(?:(?:for|if|when|whenever|where|with|provided|assuming|given|[Ff]or|If|When)"
    r"(?: (?:that|all|every|each|any|some fixed|fixed|indices))?)?[\s:]*»|\\forall(?![a-zA-Z])"
)
_DEFINING = r"«[\s(]*(?:where|with|given)"  # where u = 2 x
_SPACE = r"(?:\s|~|\\[,;:! ]|\\q?quad(?![a-zA-Z])|\\hspace\*?\s*\{[^{}]*\})"
_INDEX = r"(?:[a-zA-Z]|\\(?:alpha|beta|gamma|ell|mu|nu)(?![a-zA-Z]))"
_ATOM = (
    rf"(?:{_INDEX}\s*[+-]\s*[0-9]+|[0-9]+"
    r"|(?:\\[a-zA-Z]+(?:\s*\{[a-zA-Z]\})?|[a-zA-Z])(?:\s*_\s*(?:\w|\{\w+\}))?)"
)
_RELATION = (
    r"(?:\\(?:neq?|leq?|geq?|leqslant|geqslant|lt|gt)(?![a-zA-Z])|\\not\s*=|[<>=])"
)
_COMPARISON = re.compile(rf"\s*({_ATOM}(?:\s*{_RELATION}\s*{_ATOM})+)\s*")
_PART = re.compile(rf"{_RELATION}|{_ATOM}")
_LETTERS = rf"({_INDEX}(?:\s*,\s*{_INDEX})*)"
_DOTS = r"(?:\\[cl]?dots(?:c|b)?(?![a-zA-Z])|\.\.\.)"
_END = r"([a-zA-Z](?:_(?:\w|\{\w+\}))?)\s*(-\s*[0-9]+)?"
_RANGE = re.compile(
    rf"\s*{_LETTERS}\s*(?:=\s*([0-9])\s*,\s*(?:[0-9]\s*,\s*)?{_DOTS}\s*,?\s*{_END}"
    rf"|\\in\s*\\\{{\s*([0-9])\s*,\s*(?:[0-9]\s*,\s*)?{_DOTS}\s*,?\s*{_END}\s*\\\}}"
    rf"|\\in\s*\[\s*{_END}\s*\])\s*"
)
_SHAPE = re.compile(  # x, y \\in \\mathbb{R}^n
    rf"\s*{_LETTERS}\s*\\in\s*\\mathbb\s*(?:\{{R\}}|R)(?:_\{{>0\}})?(?:\^(?:\w|\{{[^{{}}]*\}}))?"
)
_JOINT = re.compile(
    rf"(?:{_SPACE}|[,;:]|«[\s,]*(?:and|then|we have|then we have)[\s:,]*»"
    r"|\\(?:land|wedge)(?![a-zA-Z]))+"
)
_SAME = {
    r"\neq": r"\ne", r"\leq": r"\le", r"\leqslant": r"\le", r"\geq": r"\ge",
    r"\geqslant": r"\ge", r"\lt": "<", r"\gt": ">",
}  # fmt: skip
_ENDS = re.compile(rf"(?:{_SPACE}|[.,;:])*")
_OUTER = re.compile(r"\s*(?:\\left\s*)?\((.*)(?:\\right\s*)?\)\s*\Z", re.S)
_SQUARE = re.compile(r"\s*(?:\\left\s*)?\[(.*?)(?:\\right\s*)?\]\s*\Z", re.S)
_WIDE = re.compile(rf"(?:\\q?quad(?![a-zA-Z])|\\hspace\*?\s*\{{|{_SPACE}{_SPACE})")
_SUBSCRIPT = re.compile(r"_\s*(?:\{([^{}]*)\}|(\w))")
_PRINTED = re.compile(r"\\[;: ]|~|\\hspace")  # not in 1(c < 0)
_BY_WORDS = re.compile(r"\\(?:text|mbox|mathrm|forall)(?![a-zA-Z])")


def with_condition(row: Text) -> tuple[Text, Condition | None]:
    """Return a row without what restricts it at its end or its beginning, and that."""
    if not row.characters.strip():
        return row, None
    place = row.origins[0], row.origins[-1]
    rest, before = _without_first(row, place)
    rest, after = _without_last(rest, place)
    if not (before and after):
        return rest, before or after
    return rest, Condition(
        (*before.comparisons, *after.comparisons),
        (*before.ranges, *after.ranges),
        place,
        before.origin,
    )


def _without_last(row: Text, place: tuple[int, int]) -> tuple[Text, Condition | None]:
    text = row.characters
    for at in outside(text):
        if not at or at == len(text):
            continue
        is_wide = _WIDE.match(text, at) is not None
        is_apart = is_wide or text[at] in ",;"
        if not (is_apart or _PRINTED.match(text, at) or _BY_WORDS.match(text, at)):
            continue
        indices = {*"".join(map("".join, _SUBSCRIPT.findall(text[:at])))}
        found = _read(
            text[at:], is_apart, _WIDE.search(text, at) is not None, is_wide, indices
        )
        if found:
            return row[:at], Condition(*found, place, row.origins[at])
    return row, None


def _without_first(row: Text, place: tuple[int, int]) -> tuple[Text, Condition | None]:
    text = row.characters
    longest: tuple[Text, Condition | None] = (row, None)
    for at in outside(text):
        head, end = text[:at], at
        if text[at : at + 1] == ":" and text[at : at + 2] != ":=":
            end += 1
        elif not _ends_head(head, text[at:]):
            continue
        found = _read(head, True, True)
        if found and text[end:].strip(" ,~"):
            rest = row[end:]
            start = _ENDS.match(rest.characters)
            rest = rest[start.end() if start else 0 :]
            longest = rest, Condition(*found, place, row.origins[0])
    return longest


def _ends_head(head: str, rest: str) -> bool:
    """Whether what begins a row with words or a bracket may end here."""
    if re.search(r"(?::|then|have)[\s:,]*\}\s*\Z", head):
        return True
    begins = re.match(r"\s*(?:\\(?:text|mbox|mathrm|forall)(?![a-zA-Z])|\()", head)
    return bool(begins and (_WIDE.match(rest) or rest.startswith(",")))


def _read(
    text: str,
    is_apart: bool,
    is_wide: bool,
    is_spaced: bool = False,
    indices: Collection[str] = (),
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return the comparisons and the ranges of a condition; None if a text is none.

    `indices` are the letters in subscripts of the formula. Without a word or brackets
    the text has to be apart from the formula; so it has in square
    brackets, which are a factor elsewhere.
    """
    text = _BLOCK.sub(_with_marks, text)
    text = text[_end_of(_ENDS, text, 0) :]
    text = re.sub(rf"(?:{_SPACE}|[.,;:])+\Z", "", text)
    is_led = re.match(_LEAD, text) is not None
    defines = re.match(_DEFINING, text) is not None
    bracketed = _OUTER.match(text) or (_SQUARE.match(text) if is_spaced else None)
    if bracketed:
        text = bracketed[1]
    if not (is_led or bracketed or is_apart):
        return None
    comparisons: list[str] = []
    ranges: list[str] = []
    at, for_all = 0, False
    while at < len(text):
        if (end := _end_of(_JOINT, text, at)) > at:
            at = end
        elif lead := re.compile(_LEAD).match(text, at):
            for_all = (
                for_all
                or "all" in lead[0]
                or "ever" in lead[0]
                or "each" in lead[0]
                or "any" in lead[0]
            )
            at = lead.end()
        elif text[at] in "()":
            return None
        elif match := _RANGE.match(text, at):
            _add_range(match, comparisons, ranges)
            at = match.end()
        elif match := _COMPARISON.match(text, at):
            new = _compared(match[1])
            if any(" = " in one for one in new) and (
                defines
                or (
                    not (is_led or bracketed or (is_wide and _is_pair(new)))
                    and not _is_of(new, indices)
                )
            ):
                return None
            comparisons += new
            at = match.end()
        elif match := _SHAPE.match(text, at):
            ranges.append(match[0].strip())
            at = match.end()
        elif for_all and (match := re.compile(_LETTERS).match(text, at)):
            ranges.append(rf"\forall {match[1]}")
            at = match.end()
        else:
            return None
    return (tuple(comparisons), tuple(ranges)) if comparisons or ranges else None


def _is_pair(comparisons: list[str]) -> bool:
    """Whether two indices are compared."""
    a, _, b = comparisons[0].split(" ")
    return len(comparisons) == 1 and all(re.fullmatch(_INDEX, one) for one in (a, b))


def _is_of(comparisons: list[str], indices: Collection[str]) -> bool:
    """Whether an index is compared with another one, or with a number."""
    a, _, b = comparisons[0].split(" ")
    return len(comparisons) == 1 and a in indices and (b in indices or b.isdigit())


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _with_marks(match: re.Match[str]) -> str:
    """Return a block of text with « » round its words, but not its mathematics."""
    pieces = match[1].split("$")
    return "".join(
        piece if number % 2 else (f"«{piece}»" if piece.strip(" ()") else "")
        for number, piece in enumerate(pieces)
    )


def _compared(text: str) -> list[str]:
    """Return a chain of comparisons as single ones."""
    tokens = ["".join(match[0].split()) for match in _PART.finditer(text)]
    tokens = [_SAME.get(t, r"\ne" if t.startswith(r"\not") else t) for t in tokens]
    return [
        " ".join(tokens[at : at + 3]) for at in range(0, len(tokens) - 2, 2)
    ]  # fmt: skip


def _add_range(match: re.Match[str], comparisons: list[str], ranges: list[str]) -> None:
    """Add the whole range of each letter, and where only a part of it is meant."""
    letters, *rest = match.groups()
    first = rest[0] or rest[3] or "1"
    side, less = next(
        (rest[at], rest[at + 1]) for at in (1, 4, 6) if rest[at] is not None
    )
    for letter in re.split(r"\s*,\s*", letters):
        ranges.append(rf"{letter} = 1, \dots, {side}")
        if first != "1":
            comparisons.append(rf"{letter} \ge {first}")
        if less:
            comparisons.append(rf"{letter} \le {side}{''.join(less.split())}")


def in_force(
    conditions: tuple[Condition, ...], members: list[Text]
) -> tuple[list[Condition | None], str]:
    """Return the condition under which each member of a chain is claimed, and why that
    is not certain, or "".

    A condition on the first row, or on the last one alone, holds for the whole chain.
    One on a row between holds from there on. Conditions that exclude each other are
    cases, each of which is compared with the left side.
    """
    own = [_own(conditions, member) for member in members]
    stated = [number for number, one in enumerate(own) if one is not None]
    if not stated:
        return own, ""
    first = own[stated[0]]
    is_one = len({_key(own[number]) for number in stated}) == 1
    if is_one and (stated[0] <= 1 or _row_of_last(own) == stated):
        return [first] * len(own), ""
    fault, held = "", None if stated[0] > 1 else first
    hold: list[Condition | None] = []
    for one in own:
        if one is not None and held is not None and _key(one) != _key(held):
            if not _exclude_each_other(one, held):
                fault = _SEVERAL
        held = one or held
        hold.append(held)
    return hold, fault


_SEVERAL = (
    "the rows of this chain have different conditions: does each hold alone, or with those "
    "above it? Write one display for each condition"
)


def _own(conditions: tuple[Condition, ...], member: Text) -> Condition | None:
    """Return the condition on the row in which a member ends."""
    at = member.origins[-1] if member.origins else -1
    return next((c for c in conditions if c.place[0] <= at <= c.place[1]), None)


def _key(one: Condition | None) -> frozenset[str] | None:
    return frozenset((*one.comparisons, *one.ranges)) if one else None


def _row_of_last(own: list[Condition | None]) -> list[int]:
    """Return the members on the last row, if that has a condition."""
    return [number for number, one in enumerate(own) if one and one is own[-1]]


def _exclude_each_other(one: Condition, other: Condition) -> bool:
    """Whether a comparison of one condition contradicts one of the other."""
    for a, sign, b in (comparison.split(" ") for comparison in one.comparisons):
        for c, other_sign, d in (each.split(" ") for each in other.comparisons):
            if (c, d) == (b, a):
                c, other_sign, d = a, _TURNED[other_sign], b
            if (c, d) == (a, b) and {sign, other_sign} in _CONTRARY:
                return True
    return False


_TURNED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", "=": "=", r"\ne": r"\ne"}
_CONTRARY = (
    {"=", r"\ne"}, {"=", "<"}, {"=", ">"}, {"<", ">"}, {"<", r"\ge"}, {">", r"\le"},
)  # fmt: skip
