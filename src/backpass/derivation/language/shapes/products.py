"""The shapes of sums, products, and matrices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NoReturn

from lark import Token, Tree

from backpass.derivation.language.functions import NAMES_OF_MOMENTS
from backpass.derivation.language.names import (
    Scope,
    Shape,
    axes_of,
    in_words,
)
from backpass.derivation.language.parse import Unreadable, tokens_of
from backpass.derivation.language.patterns import Axis, axis, grid
from backpass.derivation.language.shapes.ranges import Ranges
from backpass.derivation.language.written import (
    canonical,
    subscripts_of,
)

_TIMES = re.compile(r"\\(?:cdot|times)")
# Signs and spaces that show that a name and a bracket are two factors.
_APART = re.compile(r"\\(?:cdot|times|q?quad|[,;: ])|~")


class Products(Ranges):
    """Sums, products, and matrices."""

    def bracket(self, tree: Tree) -> Shape:
        return self.visit(tree.children[0])

    def sum(self, tree: Tree) -> Shape:
        terms = [child for child in tree.children if isinstance(child, Tree)]
        if any(term.data == "dots" for term in terms):
            return self._sum_with_dots(tree, terms)
        return self._same_shape(terms, "added to", self._spread)

    def _sum_with_dots(self, tree: Tree, terms: list[Tree]) -> Shape:
        if any(sign != "+" for sign in tokens_of(tree)):
            self.reject("a sum with dots can have only the sign +", tree)
        found = self._axis(tree, terms, f"#{len(self.bound)}")
        self.expression.sums[id(tree)] = found
        with self.letters((found.letter, found.side)):
            return self.visit(found.terms[0])

    def _axis(self, tree: Tree, terms: list[Tree], letter: str) -> Axis:
        try:
            found = axis(terms, letter)
        except Unreadable as error:
            self.reject(error.message, tree)
        self._check_side(found, tree)
        return found

    def _check_side(self, found: Axis, tree: Tree) -> None:
        if found.letter and found.side not in self.scope.dimensions:
            self.reject(f"{found.side}, where the dots end, is not a dimension", tree)

    def matrix(self, tree: Tree) -> Shape:
        letters = f"#{len(self.bound)}", f"#{len(self.bound) + 1}"
        try:
            found = grid(tree.children, letters)
        except Unreadable as error:
            self.reject(error.message, tree)
        axes = found.rows, found.columns
        for one in axes:
            self._check_side(one, tree)
        self.expression.matrices[id(tree)] = found
        with self.letters(*((one.letter, one.side) for one in axes if one.letter)):
            for row in found.rows.terms:
                for entry in row.children:
                    self.visit_number(entry, "an entry must be a number")
        lengths = tuple(one.length for one in axes)
        return () if lengths == ("1", "1") else lengths

    def largest(self, tree: Tree) -> Shape:
        shape = self.visit(tree.children[1])
        if len(axes_of(shape)) != 1:
            self.reject(
                rf"\max takes a column or a row; this is {in_words(shape)}", tree
            )
        return ()

    def hadamard(self, tree: Tree) -> Shape:
        shape = self._same_shape(tree.children, r"multiplied (\odot) by")
        for before, factor in pairwise(tree.children):
            if r"\circ" in self.part.between(before, factor) and (
                not shape or shape[0] == shape[1]
            ):
                self.reject(
                    r"is \circ the product of the elements? Then say: read \circ as \odot",
                    factor,
                )
        return shape

    def outer(self, tree: Tree) -> Shape:
        """Return the shape of x \\otimes y, which is x y^T."""
        shapes = [self.visit(factor) for factor in tree.children]
        if any(len(shape) != 2 or shape[1] != "1" for shape in shapes):
            self.reject(r"\otimes is read between two columns, as x y^\top", tree)
        return shapes[0][0], shapes[1][0]

    def inner(self, tree: Tree) -> Shape:
        self._same_shape(tree.children, "paired with")
        return ()

    def _spread(self, trees: list[Tree], shapes: list[Shape]) -> list[Shape]:
        """Return the shapes of terms, with that of an array for what is added to each
        of its elements or rows."""
        arrays = [shape for shape in shapes if len(axes_of(shape)) == 2]
        whole = next(iter(arrays or filter(None, shapes)), ())
        is_all = self.scope.spreads == "all"
        is_square = len(whole) == 2 and whole[0] == whole[1]
        if not (whole and self.scope.spreads) or {*whole} & self.unsized.keys():
            return shapes
        if is_square and not is_all:
            return shapes  # 1 may be I
        found = []
        for tree, shape in zip(trees, shapes, strict=True):
            is_row = is_all and arrays and shape in (("1", whole[1]), (whole[1], "1"))
            if is_row and shape[1] == "1":
                self.expression.spread.add(id(tree))
            is_number = not shape and (is_all or _is_written_out(tree))
            found.append(whole if is_row or is_number else shape)
        return found

    def _same_shape(
        self,
        trees: list[Tree],
        verb: str,
        spread: Callable[[list[Tree], list[Shape]], list[Shape]] | None = None,
    ) -> Shape:
        shapes = [self.visit(tree) for tree in trees]
        shapes = spread(trees, shapes) if spread else shapes
        known = (shape for shape in shapes if not {*shape} & self.unsized.keys())
        sized = next(known, shapes[0])
        for tree, shape in zip(trees, shapes, strict=True):
            if len(shape) == len(sized):
                for one, side in zip(shape, sized, strict=True):
                    if one in self.unsized and one != side:
                        shape = self.sized(one, side, shape)
            if shape != sized:
                sized = self.unlike(sized, shape, tree, verb)
        return sized

    def unlike(self, one: Shape, other: Shape, tree: Tree, verb: str) -> Shape:
        """Return the shape of a sum of two unlike shapes, where a reading has one."""
        self.misfit(f"{in_words(one)} cannot be {verb} {in_words(other)}", tree)

    def product(self, tree: Tree) -> Shape:
        for before, factor in pairwise(tree.children):
            between = self.part.between(before, factor)
            if not _TIMES.search(between) and _joins(before, factor):
                self.reject(
                    "this prints as a part of what comes before it: write \\cdot between "
                    "them",
                    factor,
                )
            if before.data == "differentiate":
                self.reject_reach(before)
            if self._reads_as_function(before, factor) and not (
                self._is_matrix(before) and _is_composed(factor)
            ):
                self._reject_function(before)
        shape = self.visit(tree.children[0])
        for before, factor in pairwise(tree.children):
            other = self.visit(factor)
            if not other and self._reads_as_function(before, factor):
                self._reject_function(before)
            between = self.part.between(before, factor)
            if not other and not _TIMES.search(between) and self.may_reach(before):
                if not self.is_still(factor, before):
                    self.reject_reach(before)
            if shape and other:
                if shape[-1] in self.unsized and shape[-1] != other[0]:
                    shape = self.sized(shape[-1], other[0], shape)
                elif other[0] in self.unsized and shape[-1] != other[0]:
                    other = self.sized(other[0], shape[-1], other)
                if len(shape) != 2 or len(other) != 2 or shape[1] != other[0]:
                    shape = self.unmultiplied(shape, other, factor)
                else:
                    shape = (shape[0], other[1])
                    shape = () if shape == ("1", "1") else shape
            else:
                shape = shape or other
        return shape

    def _reads_as_function(self, before: Tree, factor: Tree) -> bool:
        between = self.part.between(before, factor)
        return not _APART.search(between) and _reads_as_function(
            before, factor, self.scope
        )

    def _is_matrix(self, tree: Tree) -> bool:
        """Whether a name is a matrix, perhaps with an exponent, so that an array after
        it is a factor."""
        if tree.data == "power" and self.scope.resolve(tree) is None:
            tree = tree.children[0]
        found = self.scope.resolve(tree) if tree.data == "reference" else None
        if found is None or found.kind != "variable" or found.indices:
            return False
        return len(axes_of(self.scope.variables[found.name].shape)) == 2

    def _reject_function(self, before: Tree) -> NoReturn:
        name = self.part.written(before)
        if canonical(before).lower() in NAMES_OF_MOMENTS:
            self.reject("which names are random? Say: random x", before)
        if before.data == "power" and self.find(before.children[0]):
            self.reject("write its value, with the power after the bracket", before)
        self.reject(
            f"{name}(…) prints like a function of what is in the bracket. Write "
            rf"the product as {name} \, (…) or {name} \cdot (…); define a "
            f"function as let {name}(…) = …",
            before,
        )

    def unmultiplied(self, one: Shape, other: Shape, tree: Tree) -> Shape:
        """Return the shape of a product that does not fit, where a reading has one."""
        self.misfit(f"{in_words(one)} cannot be multiplied by {in_words(other)}", tree)

    def big(self, tree: Tree) -> Shape:
        sign, limits, *upper, body = tree.children
        assert isinstance(sign, Token)
        relation = any(token.type == "RELATION" for token in tokens_of(limits))
        tokens = [token for token in tokens_of(limits) if token.type == "INDEX"]
        own = tokens[:1] if relation else tokens
        if relation and len(tokens) == 3 and tokens[0] != tokens[1]:
            self.reject(f"write {tokens[0]} first in its condition", tokens[1])
        if relation and tokens[0] == tokens[-1]:
            self.reject(f"{tokens[0]} is compared with itself", tokens[0])
        for token in own:
            if token.isdigit():
                self.reject("a sum must run over a letter", token)
            if meaning := self.scope.other_meaning(token):
                self.reject(f"{token} {meaning}, so it cannot be an index", token)
            if token in self.free or any(token == letter for letter, _ in self.bound):
                message = f"{token} is also used outside this {sign[1:]}"
                raise self.unbound(message, tree, token, reused=True)
        letters = [(str(token), self.new_index(token)) for token in own]
        self.run_between(limits, upper, [index for _, index in letters])
        self.bound += letters
        if relation:
            self.run_together(tokens[0], tokens[-1])
        shape = self.expression.shapes[id(tree)] = self.visit(body)
        del self.bound[len(self.bound) - len(letters) :]
        if sign in (r"\prod", r"\max") and shape:
            self.reject(f"a {sign[1:]} takes numbers", body)
        # A sum of products is the same either way.
        if sign != r"\sum" and self.is_product(body):
            last = body.children[-1]
            matrices = sign == r"\bigodot" and body.data == "product"
            if not (matrices and any(own[0] == token for token in _letters_in(last))):
                self.reject(f"how far does this {sign} reach? Write brackets", body)
        self.ranges.append((self.expression, tree, letters))
        return shape


def _is_composed(tree: Tree) -> bool:
    """Whether a bracket contains more than a name, which may be an argument."""
    while tree.data in ("bracket", "power"):
        tree = tree.children[0]
    return tree.data in ("sum", "product")


def _is_written_out(tree: Tree) -> bool:
    """Whether a tree is a number such as 1 or \\frac12."""
    return tree.data == "number" or (
        tree.data in ("fraction", "bracket")
        and all(map(_is_written_out, tree.children))
    )


def _letters_in(tree: Tree) -> Iterator[Token]:
    return tree.scan_values(lambda one: isinstance(one, Token) and one.type == "INDEX")


def _reads_as_function(before: Tree, factor: Tree, scope: Scope) -> bool:
    """Whether two factors side by side print like a function and its argument: g (x +
    y), f^2 (x), f^{-1} (x).

    An element x_i does not, because its index says that it is a number; nor do e^{…}
    and a transpose.
    """
    argument = factor.children[0] if factor.data == "power" else factor
    if argument.data == "element":
        argument = argument.children[0]
    if argument.data not in ("bracket", "arguments"):
        return False
    if before.data == "power":
        base, exponent = before.children
        if base.data != "reference" or exponent.data == "top":
            return False
        if (found := scope.resolve(before)) is None:  # not itself a name, unlike σ^2
            found, before = scope.resolve(base), base
            if found is not None and found.kind == "euler":
                return False
    elif before.data == "reference":
        found = scope.resolve(before)
    else:
        return False
    if found and found.name in scope.factors:
        return False
    return not (found.indices if found else subscripts_of(before))


def _joins(before: Tree, factor: Tree) -> bool:
    """Whether a factor prints as part of the one before it: 1 2 as 12, 2 \\frac12 as
    2½, a word as its end."""
    factor = factor.children[0] if factor.data == "power" else factor
    if factor.data == "reference":
        return canonical(factor).startswith(r"\text")
    if factor.data == "fraction":
        return before.data == "number" and all(
            part.data == "number" for part in factor.children
        )
    # A number after a fraction or a bracket is a factor.
    return factor.data == "number" and before.data not in ("fraction", "bracket")
