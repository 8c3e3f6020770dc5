"""Find shapes of names from their uses: products, sums, equations, and indices."""

from __future__ import annotations

import re
from collections.abc import Callable

from lark import Token, Tree

from backpass.derivation.language.functions import BUILT_IN
from backpass.derivation.language.indices import letter_of
from backpass.derivation.language.parse import tokens_of
from backpass.derivation.language.written import canonical
from backpass.derivation.text.sight.sides import (
    Found,
    Shape,
    Side,
    is_number,
    number,
    one,
)

_SAME = ("bracket", "absolute")
_VECTOR = re.compile(
    r"[a-z](?:_\{.*\})?|\\(?:hat|tilde|vec)\{\\?[a-z]+\}"
    r"|\\(?:beta|theta|omega)|(?:[a-z]|\\[a-z]+)(?:_\{\\text\{\w+\}\})?(?:\^\{\(.\)\})"
    r"|\\[a-z]+_\{\\text\{\w+\}\}"
)
_OF_VECTOR = ("softmax", "logsoftmax", "logsumexp", "mean")


class Shapes:
    """Visits the trees of a text, and records which sides are equal.

    `find` returns the shape of a name, `name_of` the name that a node is with its
    indices. `fresh` says whether names of unknown rank
    may be vectors where a product or a sum needs one.
    """

    def __init__(
        self,
        find: Callable[[str], Found | None],
        name_of: Callable[[Tree | Token], tuple[str, list[Token]] | None],
    ) -> None:
        self.find, self.name_of = find, name_of
        self.fresh = False
        self.line = 0
        self.letters: dict[str, Side] = {}
        self.labels: set[str] = set()  # of lengths that occur as limits of sums
        self.axes: dict[str, list[Side]] = {}  # the axes that each letter has run over

    def equation(self, members: list[Tree], line: int) -> None:
        """Record the equality of all members of an equation."""
        self.line, self.letters = line, {}
        shape: Shape | None = None
        for tree in members + members[:1]:
            found = self.visit(tree, shape)
            if shape and found:
                self._equal(shape, found)
            shape = shape or found

    def visit(self, tree: Tree | Token, want: Shape | None = None) -> Shape | None:
        """Return the shape of a tree, or None if it is unknown."""
        if isinstance(tree, Token):
            return None
        if (named := self.name_of(tree)) is not None:
            return self._name(*named, want)
        method = getattr(self, f"of_{tree.data}", None)
        if method is not None:
            found: Shape | None = method(tree, want)
            return found
        if tree.data in _SAME:
            return self.visit(tree.children[-1], want)
        for child in tree.children:
            self.visit(child)
        return None

    def _equal(self, a: Shape, b: Shape) -> None:
        for one_side, other in zip(a, b, strict=True):
            one_side.equals(other)

    # ---- names -----------------------------------------------------------------------

    def _name(
        self, name: str, indices: list[Token], want: Shape | None
    ) -> Shape | None:
        found = self.find(name)
        if found is None:
            return None
        if found.rank is None:
            if self.fresh and not indices and want:
                self._take(found, want)
            return found.shape()
        for token, axis in zip(indices, found.axes, strict=False):
            if not token.isdigit() and token.type == "INDEX":
                self._letter(str(token)).equals(axis)
                self.axes.setdefault(str(token), []).append(axis)
        if indices and len(indices) == len(found.axes):
            return number()
        if (found.listed or found.sliced) and len(indices) == 1:
            return found.axes[1], one()
        return found.shape() if not indices else None

    def _take(self, found: Found, want: Shape) -> None:
        """Let a name have the shape that its place needs."""
        if is_number(want):
            found.be(0, "its place among numbers", self.line)
        if not _VECTOR.fullmatch(found.name) or want[0].is_one == want[1].is_one:
            return
        found.be(1, "its place in a sum or a product", self.line)
        found.row = want[0].is_one
        found.axes = [want[1] if found.row else want[0]]

    def _letter(self, letter: str) -> Side:
        return self.letters.setdefault(letter, Side())

    def of_number(self, tree: Tree, want: Shape | None) -> Shape:
        return number()

    # ---- sums and products -----------------------------------------------------------

    def of_sum(self, tree: Tree, want: Shape | None) -> Shape | None:
        terms = [child for child in tree.children if isinstance(child, Tree)]
        shape = want
        for again in range(2):
            for term in terms:
                found = self.visit(term, shape)
                if found is None or is_number(found):
                    continue
                if shape is None or is_number(shape):
                    shape = found
                elif again:
                    self._equal(shape, found)
        shapes = [self.visit(term) for term in terms]
        if all(map(is_number, shapes)):
            return number()
        return next((one for one in shapes if one and not is_number(one)), None)

    def of_hadamard(self, tree: Tree, want: Shape | None) -> Shape | None:
        return self.of_sum(tree, want)

    of_extreme = of_sum

    def of_product(self, tree: Tree, want: Shape | None) -> Shape | None:
        current: Shape | None = number()
        factors = [child for child in tree.children if isinstance(child, Tree)]
        for factor in factors:
            need = None
            if current and not current[1].is_one:
                need = (current[1], one())
            elif len(factors) == 1:
                need = want
            found = self.visit(factor, need)
            if current is None:
                continue
            if found is None:
                known = self.name_of(factor)
                if known is None or not is_number(current):
                    current = None
            elif is_number(current):
                current = found
            elif not is_number(found):
                current[1].equals(found[0])
                current = current[0], found[1]
        return current

    def of_call(self, tree: Tree, want: Shape | None) -> Shape | None:
        name, *arguments = tree.children
        word = canonical(name).removeprefix(r"\text{").rstrip("}").lower()
        if word not in _OF_VECTOR:
            shapes = [self.visit(one, want) for one in arguments]
            return shapes[0] if len(shapes) == 1 and word in BUILT_IN else None
        named = self.name_of(arguments[0])
        known = self.find(named[0]) if named and not named[1] else None
        if known and known.rank is None and _VECTOR.fullmatch(known.name):
            known.be(1, f"its {word}", self.line)
        found = self.visit(arguments[0])
        return found if "softmax" in word else number()

    def of_fraction(self, tree: Tree, want: Shape | None) -> Shape | None:
        above, below = tree.children
        self.visit(below)
        return self.visit(above, want)

    def of_power(self, tree: Tree, want: Shape | None) -> Shape | None:
        base, exponent = tree.children
        kind = exponent.data if isinstance(exponent, Tree) else ""
        if kind == "top":
            turned = (want[1], want[0]) if want else None
            found = self.visit(base, turned)
            if found is None and (named := self.name_of(base)) and not named[1]:
                name = self.find(named[0])
                if name and name.rank is None and _VECTOR.fullmatch(name.name):
                    name.be(1, rf"{name.name}^\top", self.line)
                    found = name.shape()
            return (found[1], found[0]) if found else None
        if kind in ("each", "number", "sum", "inverse_top"):
            found = self.visit(base)
            if found and not is_number(found) and kind in ("sum", "inverse_top"):
                found[0].equals(found[1])
            return found
        self.visit(exponent)
        self.visit(base)
        return number()

    # ---- sums over indices, and functions --------------------------------------------

    def of_big(self, tree: Tree, want: Shape | None) -> Shape | None:
        limits, body = tree.children[1], tree.children[-1]
        letters = [t for t in tokens_of(limits) if t.type == "INDEX" and t.isalpha()]
        outer = {str(t): self.letters.pop(str(t), None) for t in letters}
        upper = tree.children[2] if len(tree.children) == 4 else None
        if isinstance(upper, Tree) and letters and len(upper.children) == 1:
            label = canonical(upper)
            self.labels.add(label)
            limit = self._letter(letter_of(str(letters[0])))
            if not limit.label:
                limit.label = label
        found = self.visit(body, want)
        for letter, side in outer.items():
            self.letters.pop(letter, None)
            if side is not None:
                self.letters[letter] = side
        return found

    def of_apply(self, tree: Tree, want: Shape | None) -> Shape | None:
        function, argument = tree.children[0], tree.children[-1]
        name = "".join(map(str, function.scan_values(lambda token: True)))
        if re.search("tr|det", name) and "tanh" not in name:
            if (found := self.visit(argument)) and not is_number(found):
                found[0].equals(found[1])
            return number()
        if "diag" in name:
            found = self.visit(argument)
            return (found[0], found[0]) if found else None
        return self.visit(argument, want)

    def of_norm(self, tree: Tree, want: Shape | None) -> Shape:
        inside = tree.children[0]
        named = self.name_of(inside)
        found = self.find(named[0]) if named and not named[1] else None
        if found and found.rank is None and _VECTOR.fullmatch(found.name):
            found.be(1, "its norm", self.line)
        self.visit(inside)
        return number()

    def of_inner(self, tree: Tree, want: Shape | None) -> Shape:
        self.of_sum(tree, None)
        return number()

    def of_element(self, tree: Tree, want: Shape | None) -> Shape:
        inner, subscript = tree.children
        shape = self.visit(inner)
        axes = [side for side in shape or () if not side.is_one]
        for token, side in zip(tokens_of(subscript), axes, strict=False):
            if token.type == "INDEX" and not token.isdigit():
                self._letter(str(token)).equals(side)
        return number()

    def of_indicator(self, tree: Tree, want: Shape | None) -> Shape | None:
        return self.of_sum(tree, want)

    def of_root(self, tree: Tree, want: Shape | None) -> Shape | None:
        return self.visit(tree.children[0], want)

    def of_slope(self, tree: Tree, want: Shape | None) -> Shape | None:
        return self.visit(tree.children[-1], want)

    # ---- derivatives -----------------------------------------------------------------

    def of_partial(self, tree: Tree, want: Shape | None) -> Shape | None:
        above, below = tree.children
        of, by = self.visit(above), self.visit(below)
        if by is None and want and self.fresh and self.name_of(below):
            by = self.visit(below, want)
        if of is None and self.name_of(above) is None:
            return None
        if of is None or is_number(of):
            return by
        return of if is_number(by) else None

    def of_differentiate(self, tree: Tree, want: Shape | None) -> Shape | None:
        operator, argument = tree.children
        by, of = self.visit(operator.children[0]), self.visit(argument)
        return by if is_number(of) else None

    def of_nabla_of(self, tree: Tree, want: Shape | None) -> Shape | None:
        below, above = tree.children
        self.visit(above)
        return self.visit(below, want)
