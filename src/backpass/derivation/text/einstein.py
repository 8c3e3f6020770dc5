"""Sums that a text leaves out because it states the summation convention.

An index that occurs twice in a product is then summed over, unless it is free on the
left side or has a sum of its own.
"""

from __future__ import annotations

import re

from lark import Token, Tree

from backpass.derivation.language.indices import letter_of
from backpass.derivation.language.parse import (
    Part,
    Unreadable,
    parse,
    span_of,
    tokens_of,
)
from backpass.derivation.language.written import subscripts_of

DECLARED = re.compile(
    r"Einstein|summation convention|(?:implicit|implied) sum"
    r"|repeated (?:ind(?:ex|ices)|subscripts?|letters?)"
    r"|\bsum(?:s|mation)?\b[^.\n]{0,60}\b(?:is|are) (?:implied|implicit|understood|suppressed"
    r"|omitted)",
    re.I,
)
# The same, without doubt.
_STATED = re.compile(
    r"Einstein\W+(?:\w+\W+){0,2}(?:convention|notation|summation)|summation convention"
    r"|(?:implicit|implied) sum|sum\w*\s+over\s+repeated|repeated\s+ind(?:ex|ices)[^.]{0,40}\bsum",
    re.I,
)
_DENIED = re.compile(
    r"\b(?:no|not|never|without|instead of|avoid\w*|drop\w*|suspend\w*)\b", re.I
)

# Signs of sums that are not written.
LEAVES_OUT = re.compile(
    r"\b(?:omit|drop|suppress|skip|leav|without|no|not|implicit|implied|understood)\w*\b"
    r"[^.\n]{0,60}\bsum|\bsum[^.\n]{0,60}\b(?:omit|drop|suppress|left out|implicit|implied"
    r"|understood)",
    re.I,
)


def is_declared(source: str) -> bool:
    """Whether a text states the summation convention, and no sentence denies it."""
    found = [*_STATED.finditer(source)]
    return bool(found) and not any(_is_denied(source, match) for match in found)


def is_denied(source: str) -> bool:
    """Whether a text says that repeated indices are not summed over."""
    return any(_is_denied(source, match) for match in DECLARED.finditer(source))


def writes_sums_over(letter: str, others: str, near: str) -> bool:
    """Whether a text writes a sum over a letter more than once, beside the display that
    is judged: in the `others`. No word of the text may leave sums out, and none `near`
    the display may speak of a sum, of a notation, or of one index."""
    written = re.findall(
        rf"\\sum\s*(?:\\limits\s*)?_\s*\{{?\s*{letter}(?![a-zA-Z])", others
    )
    words = DECLARED.search(others) or LEAVES_OUT.search(others) or _NEAR.search(near)
    return len(written) > 1 and not words


_NEAR = re.compile(
    r"\bsum(?!\s+of\b)|\\sum|\bcontract|\beinsum|\bnotation|\bdumm|\btacit|\bdoubled|\btwice\b(?! as)"
    r"|\bimpli|\bwriting\b|\bindex|\bindices|\bclass|\blabel|\btarget|\bhot\b|\bentr(?:y|ies)\b"
    r"|\belements?\b|\bcomponents?\b|\bpick|\bselect|\btrue\b|\bcorrect\b|\blargest\b|\bactive\b",
    re.I,
)


def _is_denied(source: str, match: re.Match[str]) -> bool:
    sentence = re.split(r"[.!?]\s", source[match.start() - 120 : match.end() + 120])[0]
    near = source[max(0, match.start() - 40) : match.end() + 40]
    return _DENIED.search(sentence) is not None or _DENIED.search(near) is not None


def with_sums(first: Part, anchor: Part, part: Part) -> tuple[Part, Part, Part]:
    """Return the first side of an equation, and two others, with the sums that the
    convention leaves out.

    An index of the first side that is alone on another one is free.
    """
    new = _summed(first, _alone((anchor, part)))
    free = _free(new)
    above, here = (
        new if one == first else _summed(one, free) for one in (anchor, part)
    )
    return new, above, here


def with_sums_beside(first: Part, part: Part) -> Part:
    """Return a side with the sums that the convention leaves out, beside a first side
    that has its own."""
    return _summed(part, _free(first))


def _alone(parts: tuple[Part, ...]) -> frozenset[str]:
    """Return the letters that occur alone in one of several sides."""
    return frozenset(
        letter
        for part in parts
        for letter in letters_in(part) - _bound_in(part)
        if not sums_over(parse(part), letter)
    )


def _bound_in(part: Part) -> frozenset[str]:
    try:
        return _bound(parse(part))
    except Unreadable:
        return frozenset()


def _free(part: Part) -> frozenset[str]:
    """Return the letters of a side but those of its sums."""
    letters = frozenset(letters_in(part))
    return letters - _bound(parse(part)) if letters else letters


def letters_in(part: Part) -> set[str]:
    """Return the letters of a side that may be indices."""
    try:
        tree = parse(part)
    except Unreadable:
        return set()
    return {letter_of(one) for one in tree.scan_values(_is_index)}


def _summed(part: Part, free: frozenset[str]) -> Part:
    for letter in sorted(letters_in(part) - free):
        tree = parse(part)
        if letter in _bound(tree):
            continue
        for start, end in sorted({*sums_over(tree, letter)}, reverse=True):
            inside = rf"\left( \sum_{{{letter}}} {part.text[start:end]} \right)"
            text = part.text[:start] + inside + part.text[end:]
            part = Part(part.source, part.start, text)
    return part


def _bound(tree: Tree) -> frozenset[str]:
    return frozenset(
        letter_of(token)
        for node in tree.find_data("limits")
        for token in tokens_of(node)
        if token.type in ("INDEX", "SHIFTED")
    )


def _is_index(one: object) -> bool:
    return (
        isinstance(one, Token)
        and one.type in ("INDEX", "SHIFTED")
        and not letter_of(one).isdigit()
    )


def sums_over(tree: Tree, letter: str) -> list[tuple[int, int]]:
    """Return where the products are in which a letter occurs twice, and over which it
    would be summed if a sum were understood; [] if it also occurs alone."""
    spans: list[tuple[int, int]] = []

    def found_in(node: Tree) -> bool:
        inner = [one for one in node.children if isinstance(one, Tree)]
        mine = [one for one in inner if _has(one, letter)]
        if node.data == "sum":
            return all(map(found_in, mine))
        if node.data in ("reference", "scalar"):
            if [*map(letter_of, subscripts_of(node))].count(letter) < 2:
                return False
            spans.append(span_of(node))
            return True
        if node.data in ("power", "power_of_name") and _is_square(node):
            spans.append(span_of(node))
            return True
        if len(mine) == 1:
            return found_in(mine[0])
        spans.append(span_of(node))
        return bool(mine)

    return spans if found_in(tree) else []


def _is_square(power: Tree) -> bool:
    base, exponent = power.children
    written = exponent if isinstance(exponent, Token) else "".join(tokens_of(exponent))
    return base.data == "reference" and written == "2"


def _has(tree: Tree, letter: str) -> bool:
    return any(tree.scan_values(lambda one: is_letter(one, letter)))


def is_letter(one: Token | Tree, letter: str) -> bool:
    """Whether a token is a letter, also with a number, as t in t-1."""
    return isinstance(one, Token) and letter_of(one) == letter
