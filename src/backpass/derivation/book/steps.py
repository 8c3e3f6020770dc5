"""Find the parts of a line that differ from the line above, for marking.

Two lines are compared as trees, from the root down, and only a complete subexpression
is marked: a factor, a term, the content of a bracket. If a part of an exponent, an
index or a bound changed, the expression that has it is marked.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import NamedTuple

from lark import Token, Tree

from backpass.derivation.language.names import Expression
from backpass.derivation.language.parse import span_of

Span = tuple[int, int]  # of a part's text


class Changes(NamedTuple):
    """The spans that a step replaced, and the spans that replaced them."""

    gone: list[Span]
    come: list[Span]


LISTS = ("sum", "product", "hadamard")  # their operands follow one another
BRACED = ("fraction", "root")  # their operands are in braces or beside a slash


def changes(above: Expression, here: Expression) -> Changes:
    """Return what differs between two expressions of equal value.

    A side that differs as a whole has no spans.
    """
    pairs = list(_pairs(above.tree, here.tree, above.part.text, here.part.text))
    gone = {
        span_of(old) for old, _ in pairs if old is not None and old is not above.tree
    }
    come = {
        span_of(new) for _, new in pairs if new is not None and new is not here.tree
    }
    return Changes(sorted(gone), sorted(come))


def _pairs(
    above: Tree, here: Tree, above_text: str, here_text: str
) -> Iterator[tuple[Tree | None, Tree | None]]:
    """Yield pairs of the smallest complete subexpressions that differ.

    None stands for a subexpression that has no counterpart.
    """
    if above == here:
        yield None, None
        return
    olds, news = _operands(above, above_text), _operands(here, here_text)
    if olds and above.data in LISTS and here in olds:  # only one operand is left
        news = [here]
    elif news and here.data in LISTS and above in news:
        olds = [above]
    elif above.data != here.data or olds is None or news is None:
        yield above, here
        return
    elif above.data not in LISTS:
        # Operands correspond by their positions. Everything else, such as a sign or a
        # bound, has to be equal.
        if len(olds) != len(news) or _rest(above, olds) != _rest(here, news):
            yield above, here
            return
        for old, new in zip(olds, news, strict=True):
            yield from _pairs(old, new, above_text, here_text)
        return
    # As text, which is equal for equal trees, unlike their hashes.
    gone, come = ([tree.pretty() for tree in trees] for trees in (olds, news))
    matches = SequenceMatcher(None, gone, come, autojunk=False)
    kept = [code for code in matches.get_opcodes() if code[0] == "equal"]
    if not kept and len(olds) != len(news):
        yield above, here
        return
    for kind, i, j, k, n in matches.get_opcodes():
        if kind == "replace" and j - i == n - k:
            for old, new in zip(olds[i:j], news[k:n], strict=True):
                yield from _pairs(old, new, above_text, here_text)
        elif kind != "equal":
            yield from ((old, None) for old in olds[i:j])
            yield from ((None, new) for new in news[k:n])


def _operands(tree: Tree, text: str) -> list[Tree] | None:
    """Return the subexpressions that can be marked alone; None if there are none."""
    if tree.data in LISTS or tree.data == "bracket":
        return [child for child in tree.children if isinstance(child, Tree)]
    if tree.data in BRACED:
        operands = [child for child in tree.children if isinstance(child, Tree)]
        # Not the 1 of \frac12, which is an argument because it is one digit.
        return operands if all(_delimited(child, text) for child in operands) else None
    if tree.data == "power" and tree.children[0].data == "bracket":
        return tree.children[:1]  # a mark around a letter would move its exponent
    if tree.data in ("big", "apply", "differentiate"):
        return tree.children[-1:]
    return None


def _delimited(tree: Tree, text: str) -> bool:
    start, end = span_of(tree)
    before, after = text[:start].rstrip(), text[end:].lstrip()
    return before.endswith(("{", "/")) or after.startswith("/")


def _rest(tree: Tree, operands: list[Tree]) -> list[Tree | Token]:
    ids = {id(operand) for operand in operands}
    return [child for child in tree.children if id(child) not in ids]
