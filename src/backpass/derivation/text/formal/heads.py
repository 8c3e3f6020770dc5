"""What an equation defines: the name that its left side gives a value."""

from __future__ import annotations

import re

from backpass.derivation.text.formal.slopes import base, names
from backpass.derivation.text.formal.trees import Node

_GRADIENT = re.compile(r"\\\w+\{(?:d[A-Z]\w*|d[a-z]|grad\w*|d_\w+)\}")  # \mathbf{dZ}
Key = tuple[str, tuple[str, ...], tuple[str, ...]]


def key_of(node: Node) -> Key:
    """Return what tells a name apart: its letter, its labels, and subscripts other
    than indices; for a function's value, also its kind of arguments; and an
    exponent."""
    if node.kind == "power":
        value, sups, fixed = key_of(node.parts[0])
        return value, sups, (*fixed, f"^{node.parts[1].value}")
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
    return node.value, node.sups, fixed


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
    if tree.kind == "name":
        return None if _GRADIENT.fullmatch(tree.value) else tree
    if tree.kind == "apply":
        name, *arguments = tree.parts
        if "‖" in tree.value and len({*arguments}) == len(arguments):
            return name  # KL(p ‖ q)
        if ";" in tree.value:  # L(w; data)
            arguments = arguments[: tree.value.index(";") + 1]
        if len({*arguments}) == len(arguments) and all(
            one.kind == "name" for one in arguments
        ):
            return name
    return None


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
