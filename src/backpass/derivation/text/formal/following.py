"""Equations that follow from another one: multiplied, divided, or rearranged."""

from __future__ import annotations

from fractions import Fraction

from backpass.derivation.text.formal.algebra import Algebra, Form, Powers
from backpass.derivation.text.formal.inverses import inverted
from backpass.derivation.text.formal.trees import Node, product

Sides = tuple[Node, Node]
DIVIDED = "what an equation is divided by is not 0"


def follows(algebra: Algebra, above: Sides, here: Sides) -> str | None:
    """Return in words on what it rests that an equation follows from another one: ""
    if on nothing; None if it is not shown to follow. Raises `Unclear`."""
    sides = [[algebra.form(side) for side in pair] for pair in (above, here)]
    if sides[1] in (sides[0], sides[0][::-1]):
        return None  # the same equation
    minus = Fraction(-1)
    first, second = (algebra.added(left, right, minus) for left, right in sides)
    if not first or not second:
        return None  # an identity
    if len(first) < 2:
        return None  # a product that is 0, by whose factors nothing may be divided
    for one in _variants(algebra, second):
        factor = _ratio(_cleared(algebra, first), _cleared(algebra, one))
        if factor is not None:
            return DIVIDED if factor or one is not second else ""
    return None


def _variants(algebra: Algebra, form: Form) -> list[Form]:
    """Return an equation, and the same multiplied by what it was divided by."""
    found = [form]
    for side in (0, -1):
        ends = {
            inverted(sequence[side]): None for _, sequence in form if len(sequence) > 0
        }
        for factors in ends:
            if factors:
                by = algebra.form(product(*factors))
                pair = (by, form) if side == 0 else (form, by)
                found.append(algebra.times(*pair))
    return found


def _cleared(algebra: Algebra, form: Form) -> Form:
    """Return an equation without divisors that are sums."""
    for _ in range(4):
        cores = sorted(
            {
                atom
                for powers, _ in form
                for atom, count in powers
                if atom.kind == "sum" and count < 0
            },
            key=repr,
        )
        if not cores:
            break
        form = algebra.without(cores[0], form)
    return form


def _ratio(first: Form, second: Form) -> Powers | None:
    """Return by which names one form is the other multiplied, apart from a number;
    None if it is not a multiple of it."""
    if len(first) != len(second):
        return None
    (powers, sequence), count = min(first.items(), key=repr)
    for (others, after), times in second.items():
        if after != sequence:
            continue
        factor = dict(others)
        for atom, one in powers:
            factor[atom] = factor.get(atom, Fraction(0)) - one
        wanted = {
            (_multiplied(term[0], factor), term[1]): one * times / count
            for term, one in first.items()
        }
        if wanted == second:
            return tuple((atom, one) for atom, one in factor.items() if one)
    return None


def _multiplied(powers: Powers, factor: dict[Node, Fraction]) -> Powers:
    found = dict(powers)
    for atom, one in factor.items():
        found[atom] = found.get(atom, Fraction(0)) + one
    return tuple(sorted(((a, c) for a, c in found.items() if c), key=repr))
