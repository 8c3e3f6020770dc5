"""Gradients through layers: of a number by an array that one definition contains.

If Z = A X B, and a loss depends on X only through Z, the gradient by X is A^\\top G
B^\\top, where G is that by Z, in the shape of Z.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from backpass.derivation.text.formal.kinds import is_array, is_vector
from backpass.derivation.text.formal.trees import Node, Unclear, number, power, product
from backpass.derivation.text.formal.turns import turned_of

_LOSS = re.compile(
    r"[LJCE]|\\(?:ell|xi)|\\mathcal\{[LJCE]\}|\\text\{[lL]oss\}|\\text\{[cC]ost\}"
)
# Functions that may act on whole arrays.
_WHOLE = re.compile(
    r"\\text\{(?:[sS]oft\w*|[lL]ayer\w*|[bB]atch\w*|.*[nN]orm\w*)\}|[FGpPqQ]"
)
Term = tuple[tuple[tuple[Node, object], ...], tuple[Node, ...]]


def is_loss(node: Node) -> bool:
    """Whether a name is usually that of a loss, which is a number."""
    return node.kind == "name" and _LOSS.fullmatch(node.value) is not None


def gradient(loss: Node, of: Node, by: Node, terms: Iterable[Term]) -> Node:
    """Return the gradient of a loss by a name, where `of` is the only name that is
    computed from it, as the sum of some terms. Raises `Unclear`."""
    found: list[Node] = []
    outer = Node("slope", "", (loss, of))
    for powers, sequence in terms:
        if any(_has(atom, by) for atom, _ in powers):
            raise Unclear("a layer that is not linear")
        at = [k for k, node in enumerate(sequence) if _has(node, by)]
        if not at:
            continue
        if len(at) > 1:
            raise Unclear("a layer that is not linear")
        scale = [power(atom, number(count)) for atom, count in powers]  # type: ignore[arg-type]
        before, node, after = sequence[: at[0]], sequence[at[0]], sequence[at[0] + 1 :]
        found.append(product(*scale, _through(outer, of, by, before, node, after)))
    if not found:
        raise Unclear("nothing depends on it")
    return found[0] if len(found) == 1 else Node("sum", "", tuple(found))


def _through(
    outer: Node,
    of: Node,
    by: Node,
    before: tuple[Node, ...],
    node: Node,
    after: tuple[Node, ...],
) -> Node:
    if node == Node("top", "", (by,)):
        return product(*after, Node("top", "", (outer,)), *before)
    if node == by:
        if not before and not after and not _same_shape(of, by):
            raise Unclear("a sum that may repeat one term")
        first, last = ([turned_of(one) for one in reversed(s)] for s in (before, after))
        return product(*first, outer, *last)
    if before or after or not _same_shape(of, by):
        raise Unclear("a layer that is not linear")
    if node.kind == "hadamard" and by in node.parts:
        others = [one for one in node.parts if one != by]
        if len(others) < len(node.parts) - 1 or any(_has(one, by) for one in others):
            raise Unclear("a layer that is not linear")
        return _each(*others, outer)
    if node.kind == "apply" and len(node.parts) == 2 and node.parts[1] == by:
        name = node.parts[0]
        if _WHOLE.fullmatch(name.value) or name.subs:
            raise Unclear("a function of a whole array")
        primed = Node("name", name.value, (), (), (*name.sups, "'"))
        return _each(outer, Node("apply", "", (primed, by)))
    if node.kind == "call" and node.value == "tanh" and node.parts == (by,):
        square = Node("minus", "", (power(node, number(2)),))
        return _each(outer, Node("sum", "", (number(1), square)))
    raise Unclear("a layer that is not linear")


def _each(*factors: Node) -> Node:
    found = factors[0]
    for one in factors[1:]:
        found = Node("hadamard", "", (found, one))
    return found


def _has(node: Node, name: Node) -> bool:
    return any(
        one.kind == "name" and (one.value, one.sups) == (name.value, name.sups)
        for one in node.walk()
    )


def _same_shape(first: Node, second: Node) -> bool:
    """Whether two names look alike: both are columns, or both are matrices."""
    return is_vector(first) == is_vector(second) and (
        is_vector(first) or (is_array(first) and is_array(second))
    )
