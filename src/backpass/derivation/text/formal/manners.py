"""How a text writes: its functions, its labels above names, and its words."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from backpass.derivation.text.formal.counts import counted, is_an_array
from backpass.derivation.text.formal.kinds import is_identity
from backpass.derivation.text.formal.reader import read_formula
from backpass.derivation.text.formal.reading import Manner
from backpass.derivation.text.formal.tokens import operands_of
from backpass.derivation.text.formal.trees import Node, Unclear, number

_USUAL = (
    r"[fgFGpqPQ]|\\(?:sigma|phi|varphi|psi|ell|pi)|\\mathcal\{[LNJ]\}|\\(?:hat|tilde)\{[fgpq]\}"
    r"|\\mathbf\{[fg]\}|\\mathbb\{[PV]\}|\\boldsymbol\{[fg]\}|\\text\{.*\}"
)
_FUNCTION = re.compile(_USUAL)


@dataclass
class _Uses:
    """How often a name is used alone, and the arguments that it has."""

    bare: int = 0
    arguments: list[tuple[Node, ...]] = field(default_factory=list)
    several: bool = False


def manner_of(formulas: list[str], expects: bool = False, source: str = "") -> Manner:
    """Find how a text writes: its functions, its labels above names, and its numbers
    of things."""
    words, operands = words_of(formulas, source), operands_of(formulas)
    first = Manner(words=words, operands=operands)
    trees = [tree for one in formulas if (tree := tree_of(one, first)) is not None]
    uses: dict[str, _Uses] = defaultdict(_Uses)
    above: dict[str, set[str]] = defaultdict(set)
    bare: Counter[str] = Counter()
    for tree in trees:
        _note(tree, uses, above, bare)
    functions = {name for name, use in uses.items() if _is_function(name, use)}
    primed = {n.value for tree in trees for n in tree.walk() if "'" in n.sups}
    plain = {
        name
        for name in functions - primed
        if uses[name].bare and _is_same(uses[name].arguments)
    }
    labels = {
        letter
        for letter, bases in above.items()
        if len(bases) > 1
        and (not bare[letter] or letter in _LAYERS)
        and any(re.search("[A-Z]|mathbf|boldsymbol", one) for one in bases)
    }
    labels |= {letter for letter in _above_variables(trees) if not bare[letter]}
    expects &= not uses["E"].bare
    kinds = functions.__contains__, frozenset(labels), frozenset(plain)
    return Manner(
        *kinds,
        expects,
        counted(source) | _numbers(trees, source),
        _sequences(trees),
        _signals(formulas),
        words,
        operands,
    )


# A left side that is a word, with its subscript or arguments.
_LEFT = re.compile(
    r"\s*([A-Z]{2,6}|[a-z]{4,10})(?:\s*_\s*(?:\w|\{[^{}]*\})|\([^()]*\))?\s*"
)
_INLINE = re.compile(r"\$([^$]{1,300})\$")
_ALONE = re.compile(r"(?<![a-zA-Z\\{])[a-zA-Z](?![a-zA-Z])|(?<=\{)[a-zA-Z](?![a-zA-Z])")


def words_of(formulas: list[str], source: str) -> frozenset[str]:
    """Return the left sides such as RSS that are words, and not products: the text has
    none of their letters alone."""
    lefts = {match[1] for one in formulas if (match := _LEFT.fullmatch(one))}
    if not lefts:
        return frozenset()
    plain = [
        re.sub(r"\\[a-zA-Z]+\s*\{[\w\s-]*\}|\\[a-zA-Z]+", " ", one)
        for one in (*formulas, *_INLINE.findall(source))
    ]
    alone = {letter for one in plain for letter in _ALONE.findall(one)}
    return frozenset(word for word in lefts if alone.isdisjoint(word))


_INDEX = re.compile(r"\s*[a-z]?\s*(?:[+-]?\s*(?:\d+|[a-z]))?\s*")


def _signals(formulas: list[str]) -> frozenset[str]:
    """Return the names that have an index in square brackets wherever one follows."""
    found: dict[str, list[str]] = defaultdict(list)
    for one in formulas:
        for name, inside in re.findall(
            r"(?<![\\a-zA-Z{])(\\?[a-zA-Z]+)\s*\[([^\[\]]*)\]", one
        ):
            found[name].append(inside)
    return frozenset(
        name
        for name, insides in found.items()
        if re.fullmatch(r"[a-zDF-Z]|\\(?:delta|phi|psi|theta)", name)
        and all(one.strip() and _INDEX.fullmatch(one) for one in insides)
        and any(re.fullmatch(r"\s*[ijkmnt]\s*", one) for one in insides)
    )


_GREEK = re.compile(r"\\(?:sigma|lambda|alpha|beta|gamma|tau|rho|nu|epsilon|eta)")


def _numbers(trees: list[Node], source: str) -> frozenset[str]:
    """Return the capital letters by which the text divides, or that are exponents, and
    that it never uses as arrays."""
    found: set[str] = set()
    arrays: set[str] = set()
    turned: set[str] = set()
    scales: set[str] = set()  # \\sigma in \\sigma^2 I
    for node in (node for tree in trees for node in tree.walk()):
        if node.kind == "quotient":
            found |= {one.value for one in _factors(node.parts[1])}
        if node.kind == "product" and any(map(is_identity, node.parts)):
            scales |= {
                one.value for one in _factors(node) if _GREEK.fullmatch(one.value)
            }
        if node.kind == "power" and node.parts[0] != Node("name", "e"):
            below, above = node.parts
            if below.kind in ("sum", "number"):
                found |= {one.value for one in _factors(above)}
            if above.kind == "minus":
                arrays |= {one.value for one in below.walk()}
        if node.kind in ("top", "hadamard"):
            turned |= {one.value for one in node.parts}
        if node.kind in ("top", "hadamard", "call") and node.value not in (
            "log",
            "exp",
        ):
            arrays |= {one.value for one in node.walk()}
        if node.kind == "other" and not node.value.startswith("event"):
            arrays |= {one.value for one in node.walk()}
    capitals = {
        one
        for one in found - arrays - {"I", "E"}
        if re.fullmatch("[A-Z]", one) and not is_an_array(one, source)
    }
    return frozenset(capitals | (scales - turned))


def _factors(node: Node) -> list[Node]:
    """Return the names that are factors of a formula, with or without a power."""
    if node.kind in ("product", "minus"):
        return [one for part in node.parts for one in _factors(part)]
    if node.kind == "power":
        return _factors(node.parts[0])
    return [node] if node.kind == "name" else []


def _sequences(trees: list[Node]) -> frozenset[str]:
    """Return the names that always have an index above them, one of them on the left
    of an equation, such as x^{t+1}."""
    shown: dict[str, set[Node]] = defaultdict(set)

    def note(tree: Node) -> None:
        if tree.kind == "power" and tree.parts[0].kind == "name":
            base, exponent = tree.parts
            shown[base.value].add(exponent)
            note(exponent)
            return
        if tree.kind == "name":
            shown[tree.value].add(tree)
        for part in tree.parts:
            note(part)

    for tree in trees:
        note(tree)
    return frozenset(
        name
        for name, above in shown.items()
        if any(one.kind == "sum" for one in above)
        and all(map(_is_place, above))
        and len({n.value for one in above for n in one.walk() if n.kind == "name"}) == 1
        and name != "e"
    )


def _is_place(above: Node) -> bool:
    """Whether an exponent is like that of x^t, x^{t+1}, or x^0."""
    if above.kind == "sum":
        first, second = above.parts[0], above.parts[-1]
        second = second.parts[0] if second.kind == "minus" else second
        return len(above.parts) == 2 and _is_place(first) and second == number(1)
    if above.kind == "number":
        return above.value in ("0", "1")
    return above.kind == "name" and not above.subs and above.value in "ijklmnst"


_LAYERS = ("l", "L", r"\ell")


def _above_variables(trees: list[Node]) -> set[str]:
    """Return the letters above names by which formulas are differentiated."""
    return {
        label
        for tree in trees
        for node in tree.walk()
        if node.kind == "slope" and node.parts[1].kind == "name"
        for label in node.parts[1].sups
        if re.fullmatch("[a-z]", label)
    }


def _note(
    tree: Node,
    uses: dict[str, _Uses],
    above: dict[str, set[str]],
    bare: Counter[str],
    alone: bool = True,
) -> None:
    if tree.kind == "name":
        bare[tree.value] += 1
        uses[tree.value].bare += alone
        return
    if tree.kind == "apply":
        name, *arguments = tree.parts
        use = uses[name.value]
        use.arguments.append(tuple(arguments))
        use.several |= bool(tree.value)
        for one in arguments:
            _note(one, uses, above, bare)
        return
    if tree.kind == "power" and tree.parts[0].kind == "name":
        letters = [one for one in tree.parts[1].walk() if one.kind == "name"]
        simple = all(
            one.kind in ("name", "sum", "minus", "number")
            for one in tree.parts[1].walk()
        )
        if len(letters) == 1 and not letters[0].subs and simple:
            above[letters[0].value].add(tree.parts[0].value)
            _note(tree.parts[0], uses, above, bare)
            return
    of_slope = tree.kind == "slope"
    for part in tree.parts:
        _note(part, uses, above, bare, not of_slope)


def _is_function(name: str, use: _Uses) -> bool:
    if not use.arguments:
        return False
    single = [one for one in use.arguments if len(one) == 1 and one[0].kind == "name"]
    if use.several or (single and _FUNCTION.fullmatch(name)):
        return True
    if not use.bare:
        return True
    if len(single) == len(use.arguments):
        return True
    return bool(_FUNCTION.fullmatch(name)) and len(use.arguments) > use.bare


def _is_same(arguments: list[tuple[Node, ...]]) -> bool:
    first = arguments[0]
    return all(one == first for one in arguments) and all(
        one.kind == "name" for one in first
    )


def tree_of(text: str, manner: Manner) -> Node | None:
    try:
        return read_formula(text, manner)
    except (Unclear, RecursionError, ValueError, KeyError):
        return None
