"""Derivatives that are written as limits of difference quotients."""

from __future__ import annotations

import re

from backpass.derivation.text.formal.reader import read_formula
from backpass.derivation.text.formal.reading import Manner
from backpass.derivation.text.formal.trees import Node, Unclear, number

LIMIT = "a derivative is the limit of its difference quotients"
_FACE = re.compile(r"\\(?:mathbf|boldsymbol|bm|vec|pmb)\{(.*)\}")


def is_limit(whole: Node, limit: Node, manner: Manner) -> bool:
    """Whether a derivative is the limit of its difference quotients."""
    if (goal := _goal(limit, manner)) is None:
        return False
    above, below = limit.parts[0].parts
    if above.kind != "sum" or len(above.parts) != 2 or above.parts[1].kind != "minus":
        return False
    ends = above.parts[0], above.parts[1].parts[0]
    if any(one.kind != "apply" for one in ends):
        return False
    (name, *first), (other, *second) = (one.parts for one in ends)
    if name != other or ends[0].value != ends[1].value or len(first) != len(second):
        return False
    changed = [
        k
        for k, pair in enumerate(zip(first, second, strict=True))
        if pair[0] != pair[1]
    ]
    if len(changed) != 1:
        return False
    (k,) = changed
    at, index = _place(first[k], second[k], below, *goal)
    if at is None or any(
        goal[0] in one.walk() for one in (name, *second[:k], *second[k + 1 :])
    ):
        return False
    return _is_derivative(whole, name, [*second[:k], at, *second[k + 1 :]], k, index)


def _goal(limit: Node, manner: Manner) -> tuple[Node, Node] | None:
    """Return what changes in a limit of a quotient, and its limit."""
    if limit.kind != "big" or limit.value != "lim" or len(limit.sups) != 1:
        return None
    sides = re.split(r"\\(?:to|rightarrow)(?![a-zA-Z])", limit.sups[0])
    if limit.parts[0].kind != "quotient" or len(sides) != 2:
        return None
    try:
        first, second = (read_formula(one, manner) for one in sides)
    except Unclear:
        return None
    return (first, second) if first.kind == "name" else None


def _place(
    first: Node, second: Node, below: Node, moving: Node, goal: Node
) -> tuple[Node | None, Node | None]:
    """Return where a difference quotient is taken, and the unit vector along which;
    None if it is not one."""
    if first == moving:
        gap = Node("sum", "", (moving, Node("minus", "", (goal,))))
        is_one = second == goal and below == gap and moving not in goal.walk()
        return (goal if is_one else None), None
    if first.kind != "sum" or goal != number(0):
        return None, None
    step = moving
    if below == Node("product", "", (number(2), moving)):  # on both sides
        back = second.parts[1:] if second.kind == "sum" else ()
        if len(first.parts) != 2 or back != (Node("minus", "", (first.parts[1],)),):
            return None, None
        if second.parts[0] != first.parts[0]:
            return None, None
        second = first.parts[0]
    elif below != moving:
        return None, None
    rest = [one for one in first.parts if one != second]
    if len(first.parts) != 2 or len(rest) != 1 or moving in second.walk():
        return None, None
    if rest[0] == step:
        return second, None
    unit = rest[0].parts[1:] if rest[0].kind == "product" else ()
    if rest[0].parts[:1] == (step,) and len(unit) == 1 and _is_unit(unit[0]):
        return second, unit[0]
    return None, None


def _is_unit(node: Node) -> bool:
    return node.kind == "name" and _plain(node) == "e" and len(node.subs) == 1


def _plain(node: Node) -> str:
    match = _FACE.fullmatch(node.value)
    return match[1] if match else node.value


def _is_derivative(
    whole: Node, name: Node, places: list[Node], k: int, unit: Node | None
) -> bool:
    """Whether a formula is the derivative of a function by one of its arguments, or by
    the element of it that a unit vector names."""
    if whole.kind == "apply" and unit is None and len(places) == 1:
        primed = Node("name", name.value, (), name.subs, (*name.sups, "'"), name.counts)
        return whole.parts == (primed, *places)
    if whole.kind != "slope":
        return False
    of, by = whole.parts
    if of != name and not (of.kind == "apply" and of.parts == (name, *places)):
        return False
    if unit is None:
        return by == places[k]
    element = by.kind == "name" and by.subs == unit.subs and places[k].kind == "name"
    return element and _plain(by) == _plain(places[k]) and not places[k].subs
