"""Products of arrays: transposes, those that are numbers, and traces."""

from __future__ import annotations

from backpass.derivation.text.formal.kinds import is_identity, is_vector
from backpass.derivation.text.formal.trees import Node

Sequence = tuple[Node, ...]


def scalars(sequence: tuple[Node, ...]) -> tuple[tuple[Node, ...], ...] | None:
    """Split a sequence into pieces such as x^\\top A y, each of which is a number;
    None if something is left over."""
    found: list[tuple[Node, ...]] = []
    current: list[Node] = []
    for node in sequence:
        current.append(node)
        first = current[0]
        if first.kind != "top" or not is_vector(first.parts[0]):
            return None
        if len(current) > 1 and is_vector(node):
            found.append(tuple(current))
            current = []
    return None if current or not found else tuple(found)


def turned_of(node: Node) -> Node:
    if is_identity(node):
        return node
    return node.parts[0] if node.kind == "top" else Node("top", "", (node,))


def turned_in_trace(sequence: Sequence, columns: bool) -> tuple[Sequence, bool]:
    """Return a product that has the same trace, alike for all such products, and
    whether it is a number by itself."""
    back = tuple(turned_of(one) for one in reversed(sequence))
    found = [
        one[at:] + one[:at] for one in (sequence, back) for at in range(len(sequence))
    ]
    if columns:
        numbers = [one for one in found if scalars(one) is not None]
        if numbers:
            return min(numbers, key=repr), True
    return (min(found, key=repr) if found else ()), False
