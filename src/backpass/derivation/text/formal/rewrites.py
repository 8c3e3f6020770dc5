"""Write sums without one index, and expectations, in forms that can be compared."""

from __future__ import annotations

import re
from dataclasses import replace

from backpass.derivation.text.formal.reader import read_formula
from backpass.derivation.text.formal.reading import Manner
from backpass.derivation.text.formal.trees import Node, Unclear, product, renamed

_EXCEPT = re.compile(r"(\\?[a-zA-Z]+) \\(?:neq?) (\\?[a-zA-Z]+)")
_WHOLE = re.compile(r"(\\?[a-zA-Z]+)(?: = [01])?")


def with_whole_sums(trees: list[Node]) -> list[Node]:
    """Return formulas with \\sum_j x_j - x_i for \\sum_{j \\ne i} x_j, with the limits
    that all other sums have. Raises `Unclear` if these differ."""
    limits = {_limits(node) for tree in trees for node in tree.walk() if _is_sum(node)}
    apart = {one for one in limits if one[0] == "except"}
    if not apart:
        return trees
    others = {one[1:] for one in limits if one[0] == "whole"}
    uppers = {one[1:] for one in apart if any(one[1:])}
    if len(others) > 1 or (uppers and any(one[1:] not in others for one in apart)):
        raise Unclear("sums with other limits")
    lower, upper = next(iter(others or uppers), ("", ""))

    def changed(node: Node) -> Node:
        node = node.mapped(changed)
        if not _is_sum(node) or _limits(node)[0] != "except":
            return node
        match = _EXCEPT.fullmatch(node.sups[0])
        assert match is not None
        letter, left_out = match.groups()
        (body,) = node.parts
        first = f"{letter}{lower}"
        sups = (first, upper) if upper else (first,)
        if node.subs != ((letter,),):
            raise Unclear("over what does the sum run?")
        whole = replace(node, sups=sups)
        one = renamed(body, letter, left_out)
        return Node("sum", "", (whole, Node("minus", "", (one,))))

    return [changed(tree) for tree in trees]


def _is_sum(node: Node) -> bool:
    return node.kind == "big" and node.value == "sum" and bool(node.sups)


def _limits(node: Node) -> tuple[str, str, str]:
    """Return the kind of a sum's limits, what follows its letter below, and the upper
    limit."""
    upper = node.sups[1] if len(node.sups) > 1 else ""
    if _EXCEPT.fullmatch(node.sups[0]):
        return "except", " = 1" if upper else "", upper
    if match := _WHOLE.fullmatch(node.sups[0]):
        return "whole", node.sups[0][match.end(1) :], upper
    return "other", "", ""


_MARKS = ("d", r"\text{d}")


def with_integrals(trees: list[Node], manner: Manner) -> list[Node] | None:
    """Return formulas with \\int f(x) p(x) dx, or a sum, for an expectation of f(x), as
    another of the formulas has it; None if none has. Raises `Unclear`."""
    nodes = [node for tree in trees for node in tree.walk() if node.kind == "big"]
    like = {found: None for node in nodes if (found := _like(node)) is not None}
    if not like or all(node.value != "E" for node in nodes):
        return None
    if len(like) > 1:
        raise Unclear("several integrals")
    ((variable, shape),) = like

    def changed(node: Node) -> Node:
        node = node.mapped(changed)
        if node.kind != "big" or node.value != "E":
            return node
        density = _density(node, variable, manner)
        if shape.value == "int":
            mark = shape.parts[0]
            inside = product(density, node.parts[0], mark, variable)
        else:
            inside = product(density, node.parts[0])
        return replace(shape, parts=(inside,))

    return [changed(tree) for tree in trees]


def differential_of(integral: Node) -> tuple[Node, Node, Node] | None:
    """Split the body of an integral into what is integrated, the d, and the variable;
    None if it does not end with these."""
    (body,) = integral.parts
    factors = [*_factors(body)]
    if len(factors) < 3 or factors[-1].kind != "name" or factors[-2].subs:
        return None
    *rest, mark, variable = factors
    if mark.kind != "name" or mark.value not in _MARKS:
        return None
    return product(*rest), mark, variable


def _factors(node: Node) -> list[Node]:
    if node.kind == "product":
        return [one for part in node.parts for one in _factors(part)]
    return [node]


def _like(node: Node) -> tuple[Node, Node] | None:
    """Return the variable over which an integral or a sum runs, and the operator; an
    integral's operator has the d as its part."""
    if node.value == "int" and (found := differential_of(node)) is not None:
        _, mark, variable = found
        return variable, replace(node, parts=(mark,))
    if node.value == "sum" and len(node.subs) == 1 and len(node.sups) == 1:
        letter = node.subs[0][0]
        if letter not in "ijklmnt":
            return Node("name", letter), replace(node, parts=())
    return None


def _density(node: Node, variable: Node, manner: Manner) -> Node:
    """Return the density under which an expectation is taken."""
    if len(node.sups) != 1 or "|" in node.sups[0][:1]:
        raise Unclear("an expectation under which law?")
    before, sign, law = node.sups[0].rpartition(r"\sim")
    if sign and read_formula(before, manner) != variable:
        raise Unclear("an expectation over another variable")
    found = read_formula(law, manner)
    if found.kind == "name" and found != variable:
        return Node("apply", "", (found, variable))
    if found.kind != "apply" or found.parts[1] != variable:
        raise Unclear("an expectation under which law?")
    return found
