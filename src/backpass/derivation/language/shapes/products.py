"""The shapes of sums, products, and matrices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from lark import Token, Tree

from backpass.derivation.language.names import (
    Scope,
    Shape,
    axes_of,
    canonical,
    differ,
    in_words,
    never_equal,
    subscripts_of,
)
from backpass.derivation.language.parse import Unreadable, tokens_of
from backpass.derivation.language.patterns import Axis, axis, grid
from backpass.derivation.language.shapes.ranges import Ranges

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
        return self._same_shape(terms, "added to")

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
        return self._same_shape(tree.children, r"multiplied (\odot) by")

    def inner(self, tree: Tree) -> Shape:
        self._same_shape(tree.children, "paired with")
        return ()

    def _same_shape(self, trees: list[Tree], verb: str) -> Shape:
        shapes = [self.visit(tree) for tree in trees]
        known = (shape for shape in shapes if not {*shape} & self.unsized.keys())
        sized = next(known, shapes[0])
        for tree, shape in zip(trees, shapes, strict=True):
            if len(shape) == len(sized):
                for one, side in zip(shape, sized, strict=True):
                    if one in self.unsized and one != side:
                        shape = self.sized(one, side, shape)
            if shape != sized:
                message = f"{in_words(sized)} cannot be {verb} {in_words(shape)}"
                self.misfit(message, tree, never_equal(sized, shape))
        return sized

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
            if not _APART.search(between) and _reads_as_function(
                before, factor, self.scope
            ):
                name = self.part.written(before)
                if before.data == "power" and self.find(before.children[0]):
                    self.reject(
                        "write its value, with the power after the bracket", before
                    )
                self.reject(
                    f"{name}(…) prints like a function of what is in the bracket. Write "
                    rf"the product as {name} \, (…) or {name} \cdot (…); define a "
                    f"function as let {name}(…) = …",
                    before,
                )
        shape = self.visit(tree.children[0])
        for before, factor in pairwise(tree.children):
            other = self.visit(factor)
            between = self.part.between(before, factor)
            if not other and not _TIMES.search(between) and self.may_reach(before):
                self.reject_reach(before)
            if shape and other:
                if shape[-1] in self.unsized and shape[-1] != other[0]:
                    shape = self.sized(shape[-1], other[0], shape)
                elif other[0] in self.unsized and shape[-1] != other[0]:
                    other = self.sized(other[0], shape[-1], other)
                if len(shape) != 2 or len(other) != 2 or shape[1] != other[0]:
                    self.misfit(
                        f"{in_words(shape)} cannot be multiplied by {in_words(other)}",
                        factor,
                        # Texts also write products of elements like this, and
                        # products of arrays with more axes.
                        len(shape) == len(other) == 2
                        and shape != other
                        and differ(shape[-1], other[0]),
                    )
                shape = (shape[0], other[1])
                shape = () if shape == ("1", "1") else shape
            else:
                shape = shape or other
        return shape

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
                self.reject(f"{token} is also used outside this {sign[1:]}", token)
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
