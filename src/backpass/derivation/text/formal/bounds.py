"""Operators that run over an index: what depends on it, and how they are written."""

from __future__ import annotations

import re
from dataclasses import replace

from backpass.derivation.text.formal.trees import Node, renamed


def letters_of(node: Node) -> frozenset[str]:
    """Return the letters on which a node depends: its indices, and names without
    any."""
    names = {one.value for one in node.walk() if one.kind == "name"}
    return node.tokens | frozenset(names)


def is_mean(atom: Node, node: Node) -> bool:
    """Whether an atom is an expectation under the law of another, so that it is
    constant there."""
    if atom.kind == "top":
        return is_mean(atom.parts[0], node)
    return atom.kind == "big" and atom.value == "E" and atom.sups == node.sups


def apart(
    node: Node, sequence: tuple[Node, ...]
) -> tuple[tuple[Node, ...], tuple[Node, ...], tuple[Node, ...]]:
    """Split the factors that are constant under an expectation, or that do not depend
    on the index of a sum, off the ends of a product."""
    letters = {group[0] for group in node.subs}

    def is_constant(factor: Node) -> bool:
        if node.value == "E":
            return is_mean(factor, node)
        return (
            node.value == "sum" and bool(letters) and not letters & letters_of(factor)
        )

    start, end = 0, len(sequence)
    while start < end and is_constant(sequence[start]):
        start += 1
    while start < end and is_constant(sequence[end - 1]):
        end -= 1
    return sequence[:start], sequence[start:end], sequence[end:]


def is_whole(node: Node) -> bool:
    """Whether a sum runs over all values of its letter, as far as its limits say."""
    (letter,) = node.subs[0]
    first = node.sups[0] if node.sups else letter
    return first in (letter, f"{letter} = 1", f"{letter} = 0") or bool(
        re.fullmatch(r"\w(?: , \w)*", first)
    )


def closed(node: Node, body: Node) -> Node:
    """Return an operator on a body, with a number in place of the letter over which it
    runs."""
    if not node.subs:
        return replace(node, parts=(body,))
    (letter,) = node.subs[0]
    new = f"#{depth(body)}"
    sups = tuple(
        " ".join(new if token == letter else token for token in limit.split())
        for limit in node.sups
    )
    parts = (renamed(body, letter, new),)
    return replace(node, subs=((new,),), sups=sups, parts=parts)


def depth(node: Node) -> int:
    """Return how deep operators over indices are nested in a formula."""
    inner = max((depth(part) for part in node.parts), default=0)
    return inner + (node.kind == "big" and bool(node.subs))
