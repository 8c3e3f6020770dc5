"""Indices of a formula over which nothing in it runs."""

from __future__ import annotations

from backpass.derivation.text.formal.trees import Node


def free_indices(tree: Node, bound: frozenset[str] = frozenset()) -> set[str]:
    """Return the single letters that are indices of names, and not summed over.

    A sum without limits runs over all indices in it. After dots, a letter is the last
    value of an index.
    """
    if tree.kind == "big":
        bound |= {token for group in tree.subs for token in group}
        bound |= {token for limit in tree.sups for token in limit.split()}
    if tree.value in ("sum", "prod") and not (tree.subs or tree.sups):
        return set()
    found = {
        letter
        for group in tree.subs
        if tree.kind == "name" and all(len(of) == 1 and of.isalpha() for of in group)
        for letter in group
    }
    for number, part in enumerate(tree.parts):
        inside = free_indices(part, bound)
        if number and _is_dots(tree.parts[number - 1]):
            inside -= _indices_of(part)
        found |= inside
    return found - bound


def _is_dots(tree: Node) -> bool:
    return tree.kind == "other" and tree.value == "dots"


def _indices_of(tree: Node) -> set[str]:
    """Return the letters that are the only index of some name."""
    return {
        one.subs[0][0]
        for one in tree.walk()
        if one.kind == "name" and len(one.subs) == 1 and len(one.subs[0]) == 1
    }
