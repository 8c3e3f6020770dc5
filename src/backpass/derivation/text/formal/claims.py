"""Whether an equation defines a name, and what may differ between its sides."""

from __future__ import annotations

import re
from dataclasses import replace

from backpass.derivation.text.formal.heads import head_of_left
from backpass.derivation.text.formal.layers import is_loss
from backpass.derivation.text.formal.meanings import Meanings
from backpass.derivation.text.formal.slopes import base, names
from backpass.derivation.text.formal.trees import Node
from backpass.derivation.text.verdict import Verdict

DIFFERS = re.compile("it is not equal|it does not hold")
_BLAMED = ("refused", "ill-formed", "follows")
_ACCENT = re.compile(r"\\(?:bar|overline|dot)\{")


def is_derived(meanings: Meanings, left: Node, right: Node | None) -> bool:
    """Whether a left side may be a derivative: a primed name that has a meaning
    without the prime, or a name with a bar or a dot like one on the right."""
    head = head_of_left(left)
    if head is None or right is None:
        return False
    if "'" in head.sups:
        return head.value in meanings.heads | meanings.applied
    accent = _ACCENT.match(head.value)
    return accent is not None and any(
        one.kind == "name" and one.value.startswith(accent[0]) for one in right.walk()
    )


def is_update(left: Node, right: Node) -> bool:
    """Whether a formula gives the next value of a name, or the value of a function."""
    if left.kind == "apply":
        return right.kind != "number" and "{0}" not in right.value
    return left.kind == "name" and base(left) in names(right)


def is_aim(left: Node, right: Node) -> bool:
    """Whether a formula says what is minimised, or maximised, and is not a solution: it
    is a loss, or a place where a formula is smallest."""
    head = head_of_left(left)
    if head is not None and is_loss(replace(head, subs=(), sups=())):
        return right.kind != "number"
    return right.kind == "big" and right.value in ("argmin", "argmax")


def losses_in(trees: tuple[Node, ...]) -> frozenset[str] | None:
    """Return the losses of which formulas have a derivative by an array; None if there
    are none."""
    found = {
        node.parts[0].value
        for tree in trees
        for node in tree.walk()
        if node.kind == "slope" and is_loss(node.parts[0])
    }
    return frozenset(found) or None


def has_names_of(first: Node, second: Node) -> bool:
    """Whether a step between two formulas may only rearrange the first, so that they
    differ if they are not shown to be equal."""
    if any(node.kind == "slope" for tree in (first, second) for node in tree.walk()):
        return False
    return names(second) <= names(first)


def holds_above(verdict: Verdict, number: int, a: Node, b: Node, imposed: bool) -> bool:
    """Whether an equation is right, or imposed, or one to be solved: it then has names
    of its own on both sides, and is not a step of a calculation."""
    if verdict.kind != "not readable":
        return verdict.kind not in _BLAMED
    if imposed:
        return True
    is_step = number > 0 or has_names_of(a, b) or has_names_of(b, a)
    return may_stand(verdict) and not is_step


def is_next(a: Node, b: Node) -> bool:
    """Whether an equation may give a name its next value, as in w = w - g."""
    return a.kind == "name" and base(a) in names(b)


def may_stand(verdict: Verdict) -> bool:
    """Whether a line may be right, as far as is known."""
    is_blamed = verdict.kind in _BLAMED or verdict.differs
    return not is_blamed and not DIFFERS.search(verdict.message)
