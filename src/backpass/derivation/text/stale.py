"""A formula that a `read` line names, and that a row of the text writes differently.

A notation in a comment that no formula uses has lost its formula: the row was changed
after the comment was written, or the comment has a misprint. If one unread row differs
from it in one place, the two contradict each other, and the row says so.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from backpass.derivation.text.notation import Notation, tokens_in
from backpass.derivation.text.verdict import Verdict

# Symbols that a notation must have to be recognised in another formula: fewer may be a
# name, of which there are several.
_SYMBOLS = 3
_AT_AN_END = 4  # the same if the difference is at an end, where nothing bounds it
_LOST = 6  # tokens that a formula may lack, or have besides
_CHANGED = 2  # tokens that a formula may have in place of others


@dataclass(frozen=True)
class Difference:
    """Tokens of a notation, and what a formula has in their place."""

    expected: str
    found: str

    def __str__(self) -> str:
        if not self.found:
            return f"{self.expected} is missing here"
        if not self.expected:
            return f"{self.found} is only here"
        return f"{self.found} is here in place of {self.expected}"


def with_stale(
    verdicts: list[Verdict],
    notation: Notation,
    line: int,
    until: float = math.inf,
    others: Collection[Notation] = (),
) -> list[Verdict]:
    """Return the verdicts on a text, in which no formula uses the notation of a comment
    in a line: "ill-formed" for the only unread row that differs in one place, if it is
    above the line `until`, and no other notation reads it."""
    below = [one for one in verdicts if one.line > line]
    if any(_occurs(notation, written) for one in below for written in _sides(one)):
        return verdicts  # a read line above it applies first
    found = {
        number: difference
        for number, one in enumerate(verdicts)
        if one.kind == "not readable" and one.display >= 0 and line < one.line < until
        if not any(_occurs(each, side) for each in others for side in _sides(one))
        for difference in [_of_sides(notation, one)]
        if difference
    }
    if len({verdicts[number].line for number in found}) != 1:
        return verdicts
    number, difference = next(iter(found.items()))
    why = (
        f"the comment in line {line} says how to read a formula that the text does not "
        f"contain; this line differs from it: {difference}. Correct one of the two"
    )
    wrong = replace(verdicts[number], kind="ill-formed", message=why, waits=())
    return [*verdicts[:number], wrong, *verdicts[number + 1 :]]


def _sides(verdict: Verdict) -> tuple[str, ...]:
    return verdict.latex, verdict.left


def _occurs(notation: Notation, written: str) -> bool:
    pattern, tokens = notation.pattern, tokens_in(written)
    return any(
        tokens[start : start + len(pattern)] == pattern
        for start in range(len(tokens) - len(pattern) + 1)
    )


def _of_sides(notation: Notation, verdict: Verdict) -> Difference | None:
    return next(filter(None, (_near(notation, one) for one in _sides(verdict))), None)


def _near(notation: Notation, written: str) -> Difference | None:
    """Return where a formula differs from a notation without places; None if it does
    not contain it, except for one place."""
    pattern, tokens = notation.pattern, tokens_in(written)
    if _symbols(pattern) < _SYMBOLS or "#1" in pattern:
        return None
    return min(
        _differences(pattern, tokens),
        key=lambda one: len(one.expected + one.found),
        default=None,
    )


def _symbols(pattern: Sequence[str]) -> int:
    """Return how many letters and commands a notation has outside its scripts."""
    return len(_SYMBOL.findall(_SCRIPT.sub(" ", " ".join(pattern))))


_SCRIPT = re.compile(r"[_^] (?:\{(?:[^{}]|\{[^{}]*\})*\}|\S+)")
_SYMBOL = re.compile(r"\\[a-zA-Z]+|[a-zA-Z]")


def _differences(pattern: Sequence[str], tokens: Sequence[str]) -> Iterator[Difference]:
    length, symbols = len(pattern), _symbols(pattern)
    for start in range(len(tokens)):
        same = _common(pattern, tokens[start:])
        for before in {same, 0}:
            for lost, more in _SIZES:
                after = length - before - lost
                at_end = before == 0 or after == 0
                if after < 0 or 2 * lost > length:
                    continue
                if at_end and (symbols < _AT_AN_END or (lost, more) != (1, 1)):
                    continue
                first = start + before
                rest = tokens[first + more : first + more + after]
                if tuple(rest) == tuple(pattern[length - after :]):
                    expected, found = pattern[before:][:lost], tokens[first:][:more]
                    yield Difference(" ".join(expected), " ".join(found))


# How many tokens a formula lacks, and how many it has in their place.
_SIZES = (
    *((lost, 0) for lost in range(1, _LOST + 1)),
    *((0, more) for more in range(1, _LOST + 1)),
    *itertools.product(range(1, _CHANGED + 1), repeat=2),
)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Return with how many equal items two sequences begin."""
    length = 0
    for first, second in zip(one, other, strict=False):
        if first != second:
            break
        length += 1
    return length
