"""Leave out what stands beside its own inverse in a product."""

from __future__ import annotations

from backpass.derivation.text.formal.trees import Node, number

IDENTITY = Node("name", "I")
_MINUS = number(-1)


def inverted(node: Node) -> tuple[Node, ...]:
    """Return the factors whose inverse a node is; none if it is not an inverse."""
    if node.kind != "power" or node.parts[1] != _MINUS:
        return ()
    base = node.parts[0]
    return base.parts if base.kind == "product" else (base,)


def without_inverses(sequence: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return a product of arrays without A A^{-1}; the identity if nothing is left."""
    for at, node in enumerate(sequence):
        factors = inverted(node)
        size = len(factors)
        if not size:
            continue
        for start, end in ((at - size, at), (at + 1, at + 1 + size)):
            if start >= 0 and sequence[start:end] == factors:
                rest = sequence[: min(at, start)] + sequence[max(at + 1, end) :]
                return without_inverses(rest) if rest else (IDENTITY,)
    return sequence
