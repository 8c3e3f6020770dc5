"""Which names are positive, so that the root of a square is the name itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction

from backpass.derivation.text.formal.declared import Declared
from backpass.derivation.text.formal.kinds import is_array
from backpass.derivation.text.formal.trees import Node, Unclear, number, power, product
from backpass.derivation.text.sight.prose import Prose

Powers = dict[Node, Fraction]
_USUAL = re.compile(r"\\(?:pi|sigma|tau|epsilon|varepsilon)|[nmdNMD]")
_ONLY = "positive"  # why a name is positive that stands alone below a root


def positive_in(
    trees: Iterable[Node], declared: Declared, prose: Prose
) -> Callable[[Node], str]:
    """Return what says of a piece of formulas why it is positive; "" if it may be
    negative. A piece that stands alone below a root or a logarithm is positive."""
    alone = {one for tree in trees for node in tree.walk() for one in _below(node)}
    stated = {one.name: one.positive for one in prose.stated if not one.rank}

    def why(node: Node) -> str:
        if node in alone or stated.get(node.value):
            return _ONLY
        if node.kind != "name" or node.value in stated:
            return ""
        if (said := declared.sign(node)) is not None:
            return said
        return f"{node.value} is positive" if _USUAL.fullmatch(node.value) else ""

    return why


def _below(node: Node) -> Iterator[Node]:
    """Yield what stands alone below a root or a logarithm."""
    inside = node.parts[:1] if node.kind == "call" else ()
    if node.kind == "power" and node.parts[1].kind == "number":
        inside = node.parts[:1] if _is_root(Fraction(node.parts[1].value)) else ()
    elif node.value not in ("sqrt", "log"):
        inside = ()
    yield from (one for one in inside if one.kind in ("name", "apply"))


def _is_root(count: Fraction) -> bool:
    return count.denominator % 2 == 0


def rooted(
    core: Powers, count: Fraction, is_positive: Callable[[Node], bool]
) -> Powers:
    """Return a power of a product. The root of a square is an absolute value, and what
    may be negative stays below one root. Raises `Unclear`."""
    if not _is_root(count):
        return {atom: one * count for atom, one in core.items()}
    found: Powers = {}
    odd: list[tuple[Node, Fraction]] = []
    for atom, one in core.items():
        if _is_root(one) or is_positive(atom):
            found[atom] = one * count
        elif one.numerator % 2 == 0:
            if is_array(atom):
                raise Unclear("a root of a matrix")
            size = absolute(atom)
            found[size] = found.get(size, Fraction(0)) + one * count
        else:
            odd.append((atom, one))
    if len(odd) > 1:
        inside = [a if one == 1 else power(a, number(one)) for a, one in odd]
        found[product(*inside)] = count
    else:
        found |= {atom: one * count for atom, one in odd}
    return simplified(found)


def absolute(atom: Node) -> Node:
    return Node("other", "absolute", (atom,))


def simplified(powers: Powers) -> Powers:
    """Return the powers: an even power of an absolute value without its bars, and a
    product without a root around it written out."""
    found: Powers = {}
    for atom, count in powers.items():
        pieces = [(atom, Fraction(1))]
        if atom.kind == "product" and count.denominator == 1:
            pieces = [_split(one) for one in atom.parts]
        elif atom.kind == "other" and atom.value == "absolute" and count % 2 == 0:
            if atom.parts[0].kind in ("name", "apply"):
                pieces = [(atom.parts[0], Fraction(1))]
        for piece, times in pieces:
            found[piece] = found.get(piece, Fraction(0)) + times * count
    return found


def _split(node: Node) -> tuple[Node, Fraction]:
    if node.kind == "power" and node.parts[1].kind == "number":
        return node.parts[0], Fraction(node.parts[1].value)
    return node, Fraction(1)
