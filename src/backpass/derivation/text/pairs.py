"""Sums over pairs: \\sum_{i<j} x_i x_j runs over both letters.

It prints like a sum over i for a fixed j, which is what it means where j has a value:
y_j = \\sum_{i<j} x_i. If j occurs in no other place of the equation, it has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from lark import Token, Tree

from backpass.derivation.language.indices import letter_of
from backpass.derivation.language.parse import (
    Part,
    Unreadable,
    parse,
    span_of,
    tokens_of,
)

Letters = frozenset[str]
NONE: Letters = frozenset()


def letters_of_pairs(sides: list[Part]) -> tuple[Letters, Letters]:
    """Return the second letters of the sums over pairs in an equation, such as j: those
    that can have no value, because a side is without them, and those that may have
    one."""
    trees = []
    for side in sides:
        try:
            trees.append(parse(side))
        except Unreadable:
            return NONE, NONE
    each = [{second for second, _ in _sums(tree)} for tree in trees]
    alone = {
        letter
        for letter in set().union(*each)
        if not any(_occurs(tree, letter) for tree in trees)
    }
    certain = frozenset(one for one in alone if any(one not in here for here in each))
    return certain, frozenset(alone) - certain


def with_pairs(side: Part, letters: Letters) -> Part:
    """Return a side with a sum over j before each sum over i < j."""
    if not letters:
        return side
    text = side.text
    found = [
        (span_of(node)[0], second)
        for second, node in _sums(parse(side))
        if second in letters
    ]
    for at, letter in sorted(found, reverse=True):
        text = rf"{text[:at]}\sum_{{{letter}}} {text[at:]}"
    return replace(side, text=text) if found else side


# A sum over j before one over i < j, as `with_pairs` writes it.
_OF_PAIRS = re.compile(r"\\sum_\{(\w)\} (?=\\sum\s*_\s*\{[^{}]*\1\s*\})")


def without_pairs(sides: Sequence[Part]) -> tuple[str, list[Part]]:
    """Return the letter of the sums that `with_pairs` wrote, or "", and the sides
    without them: there the letter has a value, as it prints."""
    found = filter(None, (_OF_PAIRS.search(one.text) for one in sides))
    letter = next((match[1] for match in found), "")
    return letter, [replace(one, text=_OF_PAIRS.sub("", one.text)) for one in sides]


def _sums(tree: Tree, bound: Letters = NONE) -> Iterator[tuple[str, Tree]]:
    """Yield each sum over a letter and a relation to another that has no sum: the
    other letter, and the sum."""
    if tree.data == "big":
        tokens = tokens_of(tree.children[1])
        if len(tokens) == 3 and tokens[1].type == "RELATION":
            second = str(tokens[2])
            is_free = second.isalpha() and second not in {*bound, tokens[0]}
            if tree.children[0] == r"\sum" and is_free:
                yield second, tree
        bound |= _own(tree)
    for child in tree.children:
        if isinstance(child, Tree):
            yield from _sums(child, bound)


def _own(tree: Tree) -> Letters:
    """Return the letters of a sum."""
    tokens = tokens_of(tree.children[1])
    if any(token.type == "RELATION" for token in tokens):
        tokens = tokens[:1]
    return frozenset(str(token) for token in tokens if token.type == "INDEX")


def _occurs(tree: Tree, letter: str) -> bool:
    """Whether a letter occurs outside the sums over it, and over pairs with it."""
    if tree.data == "big":
        own = {second for second, node in _sums(tree) if node is tree}
        if letter in _own(tree) | own:
            return False
    return any(
        _occurs(child, letter)
        if isinstance(child, Tree)
        else isinstance(child, Token) and letter_of(child) == letter
        for child in tree.children
    )
