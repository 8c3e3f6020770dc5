"""What an equation defines: the name that its left side gives a value."""

from __future__ import annotations

import re
from itertools import pairwise

from backpass.derivation.text.formal.slopes import base, names
from backpass.derivation.text.formal.trees import Node

_MARKS = ("d", r"\text{d}")
_GRADIENT = re.compile(r"\\\w+\{(?:d[A-Z]\w*|d[a-z]|grad\w*|d_\w+)\}")  # \mathbf{dZ}
Key = tuple[str, tuple[str, ...], tuple[str, ...]]


def key_of(node: Node) -> Key:
    """Return what tells a name apart: its letter, its labels, and subscripts other
    than indices; for a function's value, also its kind of arguments; and an
    exponent."""
    if node.kind == "power":
        value, sups, fixed = key_of(node.parts[0])
        return value, sups, (*fixed, f"^{node.parts[1].value}")
    if node.kind == "other" and node.parts:  # an element of a value
        value, sups, fixed = key_of(node.parts[0])
        return value, sups, (*fixed, "element")
    if node.kind == "product":  # a differential
        value, sups, fixed = key_of(node.parts[1])
        return f"d {value}", sups, fixed
    if node.kind == "apply":
        name, *arguments = node.parts
        value, sups, fixed = key_of(name)
        shown = f"({len(arguments)}{node.value})"
        if "|" in node.value or "‖" in node.value:
            shown += " ".join(one.value for one in arguments)
        return value, sups, (*fixed, shown)
    fixed = tuple(
        " ".join(group)
        for group in node.subs
        if any(
            token.isdigit() or (len(token) > 1 and token.isalpha()) for token in group
        )
        and len(group) == 1
    )
    if node.value.startswith(r"\text{") and not all(map(_is_index, node.subs)):
        fixed = tuple(" ".join(group) for group in node.subs)  # SS_{x y}
    return node.value, node.sups, fixed


def _is_index(group: tuple[str, ...]) -> bool:
    return len(group) == 1 and group[0] in "ijklmnst"


def squared(tree: Node) -> bool:
    """Whether a formula is a name, or a function's value, to a whole power."""
    if tree.kind != "power" or tree.parts[0].kind not in ("name", "apply"):
        return False
    exponent = tree.parts[1]
    return exponent.kind == "number" and exponent.value.isdigit()


def head_of_left(tree: Node | None) -> Node | None:
    """Return the name that a left side gives a value; None if it gives none."""
    if tree is None:
        return None
    if squared(tree):
        tree = tree.parts[0]
    if is_differential(tree):
        tree = tree.parts[1]
    if tree.kind == "other" and tree.value == "element":  # softmax(z)_i
        (value,) = tree.parts
        if value.kind == "apply" and len(value.parts) == 2:
            return head_of_left(value)
    if tree.kind == "name":
        return None if _GRADIENT.fullmatch(tree.value) else tree
    if tree.kind == "apply":
        name, *arguments = tree.parts
        if "‖" in tree.value and len({*arguments}) == len(arguments):
            return name  # KL(p ‖ q)
        if ";" in tree.value:  # L(w; data)
            arguments = arguments[: tree.value.index(";") + 1]
        arguments = [_variable(one) for one in arguments]
        if len({*arguments}) == len(arguments) and all(
            one.kind == "name" for one in arguments
        ):
            return name
    return None


def _variable(argument: Node) -> Node:
    """Return the name of an event such as Y = 1; other arguments as they are."""
    if argument.value in ("event =", r"event \succ") and argument.parts[1].kind in (
        "name",
        "number",
    ):
        return argument.parts[0]
    return argument


def is_differential(tree: Node) -> bool:
    """Whether a formula is dX, where X is a name."""
    if tree.kind != "product" or len(tree.parts) != 2:
        return False
    return tree.parts[0].value in _MARKS and tree.parts[1].kind == "name"


def is_equation_of_motion(left: Node, right: Node) -> bool:
    """Whether dX equals a formula with dt, and not a derivative of X: X is the process
    that solves the equation."""
    if not is_differential(left):
        return False
    solved = base(left.parts[1])
    slopes = [node.parts[0] for node in right.walk() if node.kind == "slope"]
    heads = [one.parts[0] if one.kind == "apply" else one for one in slopes]
    if solved in map(base, heads):
        return False
    steps = {
        (first.value, second.value)
        for node in right.walk()
        if node.kind == "product"
        for first, second in pairwise(node.parts)
    }
    return any((mark, "t") in steps for mark in _MARKS)


def names_itself(head: Node, right: Node) -> bool:
    """Whether a right side only writes the name on the left in another way."""
    return right.kind in ("name", "apply") and base(head) in {
        base(one) for one in (right, *right.parts[:1]) if one.kind == "name"
    }


def is_closed_form(left: Node | None, right: Node) -> bool:
    """Whether a left side is a divergence of distributions, such as KL(p ‖ q), and the
    right side names neither: it gives a value, and no meaning."""
    if left is None or left.kind != "apply" or "‖" not in left.value:
        return False
    laws = {base(n) for one in left.parts[1:] for n in (one, *one.parts[:1])}
    return not laws & names(right)


def is_claim(left: Node, right: Node, is_known: bool) -> bool:
    """Whether a differential, or a probability, has its value from what the text says
    already; `is_known` says whether a name has a value above."""
    if is_differential(left):
        return is_known or not is_equation_of_motion(left, right)
    if left.kind == "apply" and any(one != _variable(one) for one in left.parts):
        return base(left.parts[0]) in names(right)
    return _is_bayes(left, right)


def _is_bayes(left: Node, right: Node) -> bool:
    """Whether a conditional probability is a quotient by another value of the same
    function."""
    if left.kind != "apply" or "|" not in left.value or right.kind != "quotient":
        return False
    below = [one for one in right.parts[1].walk() if one.kind == "apply"]
    return any(base(one.parts[0]) == base(left.parts[0]) for one in below)


_CONSTANT = re.compile(
    r"[eidI]|\\(?:pi|infty|emptyset|hbar|imath|nabla|partial|(?:mathbb|text)\{.*\})"
)


def is_named_last(left: Node, right: Node, above: str) -> bool:
    """Whether an equation gives a formula on its left a name on its right, which does
    not occur in the text above."""
    if head_of_left(left) is not None or right.kind != "name":
        return False
    if _CONSTANT.fullmatch(right.value) or base(right) in names(left):
        return False
    letter = re.findall(r"[a-zA-Z]+", right.value)[-1]
    return re.search(rf"(?<![a-zA-Z]){letter}(?![a-zA-Z])", above) is None
