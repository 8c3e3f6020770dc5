"""The chain rule: a derivative is a product of derivatives, one for each step."""

from __future__ import annotations

from backpass.derivation.text.formal.kinds import is_array
from backpass.derivation.text.formal.slopes import base
from backpass.derivation.text.formal.trees import Node

Name = tuple[str, tuple[str, ...]]


def steps(left: Node, right: Node) -> list[list[Node]] | None:
    """Return through which names each term of the chain rule goes; None if this is
    not the chain rule.

    Indices of these names that the two ends do not have are summed over.
    """
    if left.kind != "slope" or not all(map(_is_name, left.parts)):
        return None
    terms = right.parts if right.kind == "sum" else (right,)
    found = [_of_term(left, term) for term in terms]
    paths = [one for one in found if one is not None]
    if len(paths) < len(terms):
        return None
    inner = [node for path in paths for node in path]
    ends = {base(_plain(one)) for one in left.parts}
    bases = [base(_plain(one)) for one in inner]
    if len({*bases}) < len(bases) or ends & {*bases}:
        return None  # a recurrence, or a step taken twice
    return paths


def order_of(left: Node, right: Node) -> str:
    """Return in which order a chain rule with arrays has its factors; "" if it is none,
    or if its factors are numbers."""
    if steps(left, right) is None:
        return ""
    term = right.parts[0] if right.kind == "sum" else right
    while term.kind == "big":
        term = term.parts[0]
    factors = [*_factors(term)]
    ends = [_plain(one) for factor in factors for one in factor.parts]
    if sum(one.kind == "name" and is_array(one) for one in ends) < 2:
        return ""
    if factors[0].parts[0] == left.parts[0] and factors[-1].parts[1] == left.parts[1]:
        return "forward"
    return "backward"


def _of_term(left: Node, term: Node) -> list[Node] | None:
    summed: list[str] = []
    while term.kind == "big" and term.value == "sum" and term.subs:
        summed += [letter for (letter,) in term.subs]
        term = term.parts[0]
    factors = [*_factors(term)]
    if len(factors) < 2 or not all(
        one.kind == "slope" and all(map(_is_name, one.parts)) for one in factors
    ):
        return None
    start, end = left.parts
    path: list[Node] = []
    at = start
    while factors:
        following = [one for one in factors if one.parts[0] == at]
        if len(following) != 1:
            return None
        factors.remove(following[0])
        at = following[0].parts[1]
        path.append(at)
    if path.pop() != end:
        return None
    free = start.tokens | end.tokens
    inner = {t for one in path for t in _indices(one)} - free
    if inner != {*summed} or {*summed} & free or len({*summed}) < len(summed):
        return None
    return path


def _factors(node: Node) -> list[Node]:
    if node.kind == "product":
        return [one for part in node.parts for one in _factors(part)]
    return [node]


def _is_name(node: Node) -> bool:
    return node.kind == "name" or (
        node.kind == "apply" and all(one.kind == "name" for one in node.parts)
    )


def _plain(node: Node) -> Node:
    return node.parts[0] if node.kind == "apply" else node


def _indices(node: Node) -> set[str]:
    """Return the letters that may be indices of a name, and not labels."""
    found = set()
    for group in node.subs:
        if any(len(token) > 1 and token.isalpha() for token in group):
            continue
        found |= {token for token in group if token.isalpha()}
    return found
