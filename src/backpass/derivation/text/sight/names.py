"""Which nodes of a tree are names, and with which indices."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lark import Token, Tree

from backpass.derivation.language.names import is_special
from backpass.derivation.language.written import (
    accent_and_name,
    subscripts_of,
    with_label,
)

_CAPITAL = re.compile(
    r"[A-Z]|\\(?:Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Upsilon|Phi|Psi|Omega)"
)
_OUTER = re.compile(r"\\[a-zA-Z]+\{(.*)\}")  # an accent, or a face


def name_of(tree: Tree | Token) -> tuple[str, list[Token]] | None:
    """Return the name that a node is, and its indices; None if it is not a name.

    Words and capital letters below a name are part of it.
    """
    if not isinstance(tree, Tree):
        return None
    if tree.data in ("power", "power_of_name"):
        base, exponent = tree.children
        layered = isinstance(exponent, Tree) and exponent.data == "layer"
        if not layered or not isinstance(base, Tree) or base.data != "reference":
            return None
    elif tree.data not in ("reference", "scalar"):
        return None
    _, name = accent_and_name(tree)
    tokens = subscripts_of(tree)
    if is_special(name):
        return None
    if any(one.type not in ("INDEX", "SHIFTED") for one in tokens):
        return labelled(name, tokens), []
    return name, tokens


def labelled(name: str, tokens: list[Token]) -> str:
    """Return a name with a subscript label, before the number of its layer."""
    base, sign, layer = name.partition("^")
    return f"{with_label(base, tokens)}{sign}{layer}"


def names_in(tree: Tree) -> Iterator[tuple[str, list[Token], Tree]]:
    """Yield the names in a tree, with their indices and nodes."""
    found = name_of(tree)
    if found is not None:
        yield *found, tree
        return
    for child in tree.children:
        if isinstance(child, Tree):
            yield from names_in(child)


def is_capital(name: str) -> bool:
    """Whether a name is a capital letter, which may stand for a matrix, with any
    accent, face, and label."""
    letter = name.partition("^")[0].partition("_")[0]
    while match := _OUTER.fullmatch(letter):
        letter = match[1]
    return _CAPITAL.fullmatch(letter.rstrip("'")) is not None


def is_bold(name: str) -> bool:
    """Whether a name is a bold letter, or one with an arrow."""
    return (
        re.match(
            r"(?:\\(?:hat|tilde|bar|mean)\{)?\\(?:mathbf|boldsymbol|vec|underline)\{",
            name,
        )
        is not None
    )
