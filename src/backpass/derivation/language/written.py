"""Names as a text writes them, and as this package writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lark import Token, Tree

from backpass.derivation.language.parse import tokens_of

_SAME_ACCENT = {
    r"\overline": r"\bar",
    r"\widehat": r"\hat",
    r"\widetilde": r"\tilde",
}


def canonical(node: Tree | Token) -> str:
    """Return a name as this package writes it: \\bar{x} for \\bar x, \\mathbf{1} for
    \\mathbf 1, n_{h} for n_h."""
    if isinstance(node, Token):
        text = str(node)
        if node.type == "UPRIGHT":
            words = re.match(r"\\(?:text|operatorname|mathrm)", text)
            text = re.sub(r"\s+", " " if words else "", text)
            text = re.sub(r"^\\(?:operatorname|mathrm)", r"\\text", text)
            return text if text.endswith("}") else f"{text[:-1]}{{{text[-1]}}}"
        return text
    if node.data == "accented":
        accent = str(node.children[0])
        accent = _SAME_ACCENT.get(accent, accent)
        return f"{accent}{{{canonical(node.children[1])}}}"
    if node.data in ("power_of_letter", "power_of_name", "power"):
        base, exponent = node.children
        return canonical(base) + _power(exponent)
    if node.data == "layer":
        return f"{{({node.children[0]})}}"
    if node.data == "shifted":
        return f"{{{node.children[0]}}}"
    if node.data == "bracket":
        return f"({canonical(node.children[0])})"
    if node.data == "subscript":
        return f"_{{{''.join(tokens_of(node))}}}"
    return "".join(canonical(child) for child in node.children)


def accent_and_name(tree: Tree) -> tuple[str, str]:
    """Return a reference's accent ("bar", "dot" or "") and the name below it.

    A power is part of the name. If the name has a bar or a dot, a letter above is so
    too, and a number is not: the gradient of W^Q is written \\bar{W}^Q or \\bar{W^Q},
    that of \\sigma^2 only \\bar{\\sigma^2}.
    """
    reference, power = _without_power(tree)
    head = reference.children[0]
    if isinstance(head, Tree) and head.data == "accented":
        accent = canonical(head).partition("{")[0]
        if accent in (r"\bar", r"\dot") and not power[1:].isdigit():
            return accent[1:], canonical(head.children[1]) + power
    return "", canonical(head) + power


def with_label(name: str, subscripts: Sequence[Token]) -> str:
    """Return a name with its subscripts as a label."""
    return f"{name}_{{{''.join(subscripts)}}}" if subscripts else name


def subscripts_of(tree: Tree) -> list[Token]:
    """Return the tokens of a reference's subscript, which are indices or a label."""
    last = _without_power(tree)[0].children[-1]
    return (
        tokens_of(last) if isinstance(last, Tree) and last.data == "subscript" else []
    )


def _without_power(tree: Tree) -> tuple[Tree, str]:
    """Return the `reference` in a node that may have a power, and the power: "^2" in
    σ_i^2."""
    if tree.data in ("power_of_name", "power"):
        return tree.children[0], _power(tree.children[1])
    return tree, ""


def _power(exponent: Tree | Token) -> str:
    """Return the superscript of a name with its sign, such as "^2" or "^{l-1}"."""
    above = canonical(exponent)
    if isinstance(exponent, Tree) and exponent.data in ("sum", "bracket"):
        above = f"{{{above}}}"
    return f"^{above}"


def base_of(name: str) -> str:
    """Return a name without its power: \\sigma for \\sigma^2."""
    return re.sub(r"\^\d$", "", name)


def label_of(name: str) -> str:
    """Return the subscript that is part of a name, unless it is a word."""
    label = name.rpartition("_{")[2] if "_{" in name else ""
    return "" if label.startswith("\\") else label.rstrip("}")
