"""Relations between the terms of a row: in a = b < c = d, only = claims equality.

A relation other than = ends the equality before it and begins a new one, so no term on
its left is compared with one on its right.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from backpass.derivation.language.brackets import outside
from backpass.derivation.text.imposed import IMPOSED
from backpass.derivation.text.passages import Text

LESS = {"<", r"\lt", r"\le", r"\leq", r"\leqslant", r"\leqq"}
GREATER = {">", r"\gt", r"\ge", r"\geq", r"\geqslant", r"\geqq"}
STRICT = {"<", r"\lt", ">", r"\gt"}
_SIGNS = (
    r"<|>|\\(?:leq?|geq?|lt|gt|leqslant|geqslant|leqq|geqq|lesssim|gtrsim|ll|gg|neq?"
    r"|approx|approxeq|simeq|sim|cong|equiv|propto|asymp|doteq|prec|preceq|succ|succeq"
    r"|in|ni|notin|subset|subseteq|supset|supseteq|to|rightarrow|longrightarrow|mapsto"
    r"|longmapsto|leftarrow|longleftarrow|gets|leadsto|rightsquigarrow|perp|parallel"
    r"|x(?:right|left)arrow\s*\{[^{}]*\})(?![a-zA-Z])"
)
# Also below words, and = below words that are neither a label nor a reason.
_BELOW_WORDS = (
    r"\\(?:overset|stackrel|underset)\s*\{(?:[^{}]|\{[^{}]*\})*\}\s*"
    rf"(?:\{{\s*(?:{_SIGNS}|=)\s*\}}|{_SIGNS}|=)"
)
RELATION = re.compile(
    rf"(?:\\not\s*)?(?:{_SIGNS})|\\not\s*=|{IMPOSED}|{_BELOW_WORDS}"
    rf"|\\math(?:rel|bin)\s*\{{\s*(?:{_SIGNS})\s*\}}"
)
# An assignment, the rule of a function, or what is imposed: it claims nothing.
_ASSIGNS = re.compile(
    rf"\\(?:leftarrow|longleftarrow|gets|mapsto|longmapsto)\Z|{IMPOSED}"
)
# What a name is an element of, and how it is distributed: it declares a name.
_BELOW = r"(?:_(?:\w|\\[a-zA-Z]+|\{[^{}]*\}))"
_LAW = (
    r"\\(?:mathcal|mathbb|text[a-z]*|mathrm|operatorname)(?![a-zA-Z])"
    rf"|[a-zA-Z]{_BELOW}?\s*(?:\\left\s*)?\(|p_|[A-Z]{_BELOW}"
)
# Sampled one by one: \overset{\text{iid}}{\sim}.
_SAMPLED = (
    r"\\(?:overset|stackrel)\s*\{[^{}]*(?:\{[^{}]*)?(?:iid|i\.i\.d|ind)[^{}]*\}*\s*"
    r"\{\s*\\sim\s*\}"
)
_DECLARES = re.compile(
    r"(?!\s*\\(?:in|sim)(?![a-zA-Z]))(?=\s*\{?\s*\\?[a-zA-Z])(?:[\\\sa-zA-Z{}_^,()0-9']*?"
    r"(?:\\in(?![a-zA-Z])\s*(?=\\\{|\\math|[a-zA-Z])|\\sim(?![a-zA-Z])\s*(?:"
    rf"{_LAW}))|[\\\sa-zA-Z{{}}_^,()0-9'|]*?{_SAMPLED})[^=]*\Z"
)
_SIZED = re.compile(r"\\(?:left|right|middle|[bB]igg?[lrm]?)\s*\Z")
# In <x, y>, the signs are brackets.
_ANGLES = re.compile(r"<[^<>=]*,[^<>=]*>")
_MEMBERSHIP = re.compile(r"\\in\s*\\mathbb\s*(?:\{R\}|R)(?![a-zA-Z])")


class Link(NamedTuple):
    """A term of a chain, and the sign before it: "=", a relation, or "" for the first
    term. `whole` is the term with that sign."""

    sign: str
    term: Text
    whole: Text


def chain(row: Text, brackets: frozenset[str] = frozenset()) -> list[Link]:
    """Split a row at its relations; `brackets` are signs that are none in this text."""
    places = [(0, 0), *_places(row.characters, brackets)]
    ends = [start for start, _ in places[1:]] + [len(row.characters)]
    return [
        Link(
            " ".join(row.characters[start:end].split()),
            row[end:stop].strip(),
            row[start:stop].strip(),
        )
        for (start, end), stop in zip(places, ends, strict=True)
    ]


def _places(text: str, brackets: frozenset[str] = frozenset()) -> list[tuple[int, int]]:
    """Return where the relations of a formula begin and end, = among them."""
    if not brackets.isdisjoint("<>"):
        brackets |= {"<", ">"}
    angles = [at for m in _ANGLES.finditer(text) for at in (m.start(), m.end() - 1)]
    found: list[tuple[int, int]] = []
    for at in outside(text):
        if found and at < found[-1][1]:
            continue
        if text.startswith("=", at):
            found.append((at, at + 1))
        elif (
            (match := RELATION.match(text, at))
            and match[0] not in brackets
            and at not in angles
            and not _SIZED.search(text, 0, at)
            and not _MEMBERSHIP.match(text, at)
        ):
            found.append(match.span())
    return found


def has_relation(text: str) -> bool:
    """Whether a formula has a relation, other than a membership in real numbers."""
    return bool(_places(text))


def begins_with_relation(text: str) -> bool:
    """Whether a row goes on with a relation to the term above it."""
    places = _places(text)
    return bool(places) and not text[: places[0][0]].strip()


def ends_with_relation(text: str) -> bool:
    """Whether the right side of a relation is in the row below."""
    places = _places(text)
    return bool(places) and not text[places[-1][1] :].strip()


def imposes(sign: str) -> bool:
    """Whether a sign marks an equation that is imposed."""
    return re.match(IMPOSED, sign) is not None


def declares(text: str) -> bool:
    """Whether the relations of a formula only say what a name is: an element of a set,
    or drawn from a distribution."""
    signs = {text[start:end] for start, end in _places(text)}
    return (
        bool(signs)
        and all(re.fullmatch(rf"\\(?:in|sim)|{_SAMPLED}", one) for one in signs)
        and _DECLARES.match(text) is not None
    )


def assigns(text: str) -> bool:
    """Whether all relations of a formula claim nothing, as that of x \\gets 2 x."""
    signs = [text[start:end] for start, end in _places(text)]
    return bool(signs) and all(_ASSIGNS.match(sign) for sign in signs)
