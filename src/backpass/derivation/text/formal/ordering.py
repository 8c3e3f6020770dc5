"""Inequalities that hold for all numbers, and those between numbers."""

from __future__ import annotations

import re
from fractions import Fraction

from backpass.derivation.text.formal.algebra import Algebra, E, Form
from backpass.derivation.text.formal.kinds import is_array
from backpass.derivation.text.formal.trees import Node, number
from backpass.derivation.text.relations import LESS, STRICT

SQUARES = "squares are not negative"
DIVERGENCE = "a divergence and a variance are not negative"
CONCAVE = "a logarithm is concave"
_NOT_NEGATIVE = re.compile(r"\\text\{(?:KL|Var|MSE)\}")


def holds(algebra: Algebra, sign: str, left: Node, right: Node) -> str | None:
    """Return in words on what an inequality rests: "" if on nothing; None if it is not
    shown. Raises `Unclear`."""
    small, large = (left, right) if sign in LESS else (right, left)
    if sign not in STRICT and _is_jensen(algebra, small, large):
        return CONCAVE
    if sign not in STRICT and _is_triangle(small, large):
        return "the triangle inequality"
    if sign not in STRICT and small == number(0) and _is_square(large):
        return SQUARES
    gap = algebra.added(algebra.form(large), algebra.form(small), Fraction(-1))
    reasons = _reasons(gap)
    if reasons is None or (sign in STRICT and not _is_positive(gap)):
        return None
    return " and ".join(sorted(reasons))


def is_false(algebra: Algebra, sign: str, left: Node, right: Node) -> bool:
    """Whether an inequality between fractions is wrong. Raises `Unclear`."""
    small, large = (left, right) if sign in LESS else (right, left)
    gap = algebra.added(algebra.form(large), algebra.form(small), Fraction(-1))
    if any(term != ((), ()) for term in gap):
        return False
    value = gap.get(((), ()), Fraction(0))
    return value < 0 or (sign in STRICT and not value)


def _is_square(node: Node) -> bool:
    """Whether a formula is an even power of a number, or a sum of such powers."""
    if node.kind in ("sum", "big") and node.value in ("", "sum", "E"):
        return all(map(_is_square, node.parts))
    if node.kind != "power" or node.parts[1].kind != "number":
        return False
    return Fraction(node.parts[1].value) % 2 == 0 and not _has_array(node)


def _has_array(node: Node) -> bool:
    """Whether a formula has a name that may be a matrix, so that bars may be its
    determinant."""
    return any(one.kind == "name" and is_array(one) for one in node.walk())


def _reasons(gap: Form) -> set[str] | None:
    """Return why no term of a form is negative; None if one may be."""
    found: set[str] = set()
    for (powers, sequence), count in gap.items():
        if count < 0:
            return None
        if sequence:
            first, *rest = sequence
            if first.kind != "top" or rest != [first.parts[0]]:
                return None
            found.add(SQUARES)
        for atom, exponent in powers:
            if (why := _why(atom, exponent)) is None:
                return None
            found |= {why} - {""}
    return found


def _why(atom: Node, exponent: Fraction) -> str | None:
    """Return why a power is not negative; None if it may be."""
    if atom.kind == "other" and atom.value == "norm":
        return ""
    if atom.kind == "apply" and exponent == 1:
        return _of_function(atom.parts[0])
    if _has_array(atom):
        return None
    if exponent.denominator == 1 and exponent % 2 == 0:
        return SQUARES
    if atom.kind == "other" and atom.value == "absolute":
        return ""
    if atom == E or (atom.kind == "power" and atom.parts[0] == E):
        return ""
    return None


def _of_function(name: Node) -> str | None:
    """Return why a function's values are not negative."""
    divergences = (("KL",),), ((r"\text{KL}",),)
    is_divergence = name.value == "D" and name.subs in divergences
    return DIVERGENCE if is_divergence or _NOT_NEGATIVE.fullmatch(name.value) else None


def _is_positive(gap: Form) -> bool:
    """Whether a form without negative terms has one that is positive."""
    return any(
        not sequence and all(atom == E for atom, _ in powers)
        for powers, sequence in gap
    )


def _is_jensen(algebra: Algebra, small: Node, large: Node) -> bool:
    """Whether formulas are E[log x] and log E[x]."""
    if (
        large.kind != "call"
        or large.value != "log"
        or large.sups
        or small.kind != "big"
    ):
        return False
    mean, inner = large.parts[0], small.parts[0]
    if (
        mean.kind != "big"
        or (mean.value, small.value) != ("E", "E")
        or inner.kind != "call"
    ):
        return False
    if inner.value != "log" or inner.sups or mean.sups != small.sups:
        return False
    first, second = algebra.form(mean.parts[0]), algebra.form(inner.parts[0])
    return not algebra.added(first, second, Fraction(-1))


def _is_triangle(small: Node, large: Node) -> bool:
    """Whether formulas are |x + y| and |x| + |y|, for numbers or for one norm."""
    if small.kind != "other" or small.value not in ("absolute", "norm"):
        return False
    inside = small.parts[0]
    if inside.kind != "sum" or large.kind != "sum":
        return False
    if small.value == "absolute" and _has_array(inside):
        return False
    parts = [one.parts[0] if one.kind == "minus" else one for one in inside.parts]
    return [Node("other", small.value, (one,)) for one in parts] == [*large.parts]
