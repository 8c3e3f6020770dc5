"""Numbers that a text gives its names, for the steps in which it puts them in."""

from __future__ import annotations

from collections.abc import Callable

from backpass.derivation.text.formal.trees import Node, Unclear

_CONSTANTS = (Node("name", "e"), Node("name", r"\pi"))
_DEPTH = 6


def is_number(tree: Node | None) -> bool:
    """Whether a formula is one of numbers alone."""
    return tree is not None and all(
        one.kind in ("number", "sum", "minus", "product", "quotient", "power", "call")
        or one in _CONSTANTS
        for one in tree.walk()
    )


def with_numbers(
    tree: Node,
    value: Callable[[Node], Node | None],
    meaning: Callable[[Node], Node | None],
    depth: int = 0,
) -> Node:
    """Return a formula with the number for each name, or with the formula that defines
    it. Raises `Unclear` if a name has neither."""
    if tree.kind in ("name", "apply") and tree not in _CONSTANTS:
        if (found := value(tree)) is not None:
            return found
        found = meaning(tree)
        if found is None or depth > _DEPTH:
            raise Unclear("a name without a number")
        return with_numbers(found, value, meaning, depth + 1)
    if tree.kind in ("big", "slope", "other", "top", "hadamard"):
        raise Unclear("more than numbers")
    return tree.mapped(lambda part: with_numbers(part, value, meaning, depth))
