"""Formulas as trees, in which a name needs no declaration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

Groups = tuple[tuple[str, ...], ...]


class Unclear(Exception):
    """A formula, or a step, of which nothing can be said."""


@dataclass(frozen=True)
class Node:
    """A piece of a formula.

    `kind` is one of:

    - number, name (`subs` are its indices, `sups` its labels);
    - apply (a function's name, and its arguments; `value` separates them), call (a
      built-in function), big (an operator such as a sum; `subs` are the indices
      over which it runs, `sups` its limits as written);
    - sum, minus, product, hadamard, quotient, power, top (a transpose);
    - slope (a derivative: of what, by what), other (`value` says which).

    `counts` says whether the text uses a name as a number of things.
    """

    kind: str
    value: str = ""
    parts: tuple[Node, ...] = ()
    subs: Groups = ()
    sups: tuple[str, ...] = ()
    counts: bool = False

    def walk(self) -> Iterator[Node]:
        yield self
        for part in self.parts:
            yield from part.walk()

    def mapped(self, change: Callable[[Node], Node]) -> Node:
        """Return the node with each of its parts changed."""
        if not self.parts:
            return self
        return replace(self, parts=tuple(change(part) for part in self.parts))

    @property
    def tokens(self) -> frozenset[str]:
        """The letters that occur as indices in the node."""
        found: set[str] = set()
        for node in self.walk():
            for group in node.subs:
                found.update(group)
            found.update(*(one.split() for one in node.sups)) if node.sups else None
        return frozenset(found)


def number(value: int | Fraction) -> Node:
    return Node("number", str(Fraction(value)))


def product(*factors: Node) -> Node:
    return factors[0] if len(factors) == 1 else Node("product", "", factors)


def power(base: Node, exponent: Node) -> Node:
    return Node("power", "", (base, exponent))


def renamed(node: Node, old: str, new: str) -> Node:
    """Return a node with another letter for an index. Raises `Unclear` if an operator
    inside runs over one of the two."""
    if node.kind == "big" and any(one in ((old,), (new,)) for one in node.subs):
        raise Unclear("an index has two meanings")
    if node.kind == "name" and not node.subs and not node.sups and node.value == old:
        return replace(node, value=new)
    swap = {old: new}
    return replace(
        node,
        subs=tuple(tuple(swap.get(t, t) for t in group) for group in node.subs),
        sups=tuple(" ".join(swap.get(t, t) for t in s.split()) for s in node.sups),
        parts=tuple(renamed(part, old, new) for part in node.parts),
    )
