"""A sum that may be meant to reach beyond its product: \\sum_i v_i - w_i.

As it prints, it ends before the minus sign. If its letter also occurs behind that, the
text may mean \\sum_i (v_i - w_i), although it has no brackets.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from lark import Token, Tree

from backpass.derivation.language.indices import letter_of
from backpass.derivation.language.parse import (
    Part,
    Unreadable,
    parse,
    span_of,
    tokens_of,
)
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.members import Equation, agree

READINGS = 8  # at most so many are tried


def reaching_further(known: Knowledge, equation: Equation, part: Part) -> str:
    """Return which brackets are missing if members are equal with a sum that reaches
    beyond its product; otherwise ""."""
    first, anchor = equation.first, equation.anchor
    sides = [*dict.fromkeys((first, anchor, part))]
    choices = [[side, *_widened(side)] for side in sides]
    if all(len(choice) == 1 for choice in choices):
        return ""
    readings = itertools.islice(itertools.product(*choices), 1, READINGS + 1)
    for reading in readings:
        there = dict(zip(sides, reading, strict=True))
        if agree(known, there[first], there[anchor], there[part], equation.beside):
            changed = next(there[side] for side in sides if there[side] != side)
            text = changed.text.replace(r"\left(", "(").replace(r"\right)", ")")
            return (
                "a sum ends before + and -; if it is meant to reach further, write the "
                f"brackets: {' '.join(text.split())}"
            )
    return ""


def _widened(side: Part) -> Iterator[Part]:
    """Yield a side with one sum that reaches to the last term with its letter, and to
    the end."""
    try:
        tree = parse(side)
    except Unreadable:
        return
    for node in tree.iter_subtrees_topdown():
        if node.data != "sum":
            continue
        terms = [child for child in node.children if isinstance(child, Tree)]
        for number, term in enumerate(terms):
            big = _at_end(term)
            if big is None:
                continue
            letter = str(tokens_of(big.children[1])[0])
            with_letter = [one for one in terms[number + 1 :] if _has_free(one, letter)]
            if not with_letter:
                continue
            start = span_of(big.children[-1])[0]
            for end in dict.fromkeys(
                span_of(one)[1] for one in (with_letter[-1], terms[-1])
            ):
                text = side.text
                written = rf"{text[:start]}\left( {text[start:end]} \right){text[end:]}"
                yield Part(side.source, side.start, written)


def _at_end(term: Tree) -> Tree | None:
    """Return the sum that is the last factor of a term."""
    while isinstance(term, Tree) and term.data in ("product", "hadamard"):
        term = term.children[-1]
    is_sum = (
        isinstance(term, Tree) and term.data == "big" and term.children[0] == r"\sum"
    )
    return term if is_sum and isinstance(term.children[1], Tree) else None


def _has_free(tree: Tree, letter: str) -> bool:
    """Whether a letter occurs in a tree, outside the sums over it."""
    if tree.data == "big" and letter in map(str, tokens_of(tree.children[1])):
        return False
    return any(
        _has_free(child, letter)
        if isinstance(child, Tree)
        else isinstance(child, Token) and letter_of(child) == letter
        for child in tree.children
    )
