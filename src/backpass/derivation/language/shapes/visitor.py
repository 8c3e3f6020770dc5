"""Visit an expression, and record what its evaluation needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn

from lark import Token, Tree
from lark.visitors import Interpreter

from backpass.derivation.language.functions import called, find
from backpass.derivation.language.indices import LARGEST, Index, letter_of
from backpass.derivation.language.names import (
    Expression,
    Function,
    Scope,
    Shape,
    differ,
    in_words,
)
from backpass.derivation.language.parse import (
    Misfit,
    NotANumber,
    Part,
    Unbound,
    Unreadable,
    parse,
    span_of,
)

UNKNOWN = "?"  # begins the name of the unknown size of an I or a 1


class Visitor(Interpreter):
    """Visits expressions that share free indices. A visit returns a shape.

    Each rule of the grammar has a method of the same name, in a class below.
    """

    def __init__(
        self, scope: Scope, parameters: dict[str, Shape] | None = None
    ) -> None:
        self.scope = scope
        self.parameters = parameters or {}
        self.free: dict[str, Index] = {}
        self.bound: list[tuple[str, Index]] = []
        # Each free letter at which a sum begins or ends, until it is met as an index.
        self.ends: dict[str, tuple[Expression, Tree | Token]] = {}
        # The axes of what (…)_{ij} is an element of.
        self.elements: dict[int, Shape] = {}
        # Of a definition: the dimension of each name that is defined below.
        self.is_definition = False
        self.promised: dict[str, Index] = {}
        # Each I and 1 whose size is not known yet, by a name for the size.
        self.unsized: dict[str, list[Tree]] = {}
        self.laws: dict[str, str] = {}  # the distributions that are written

    def begin(self, part: Part, tree: Tree) -> Expression:
        """Begin an expression, to which the following visits belong, and return it."""
        self.part, self.expression = part, Expression(part, tree)
        return self.expression

    def run(
        self, parts: list[Part], conditions: Part | None = None
    ) -> list[Expression]:
        """Analyse the parts; return the expressions, with that of the conditions, if
        any, first. Raises `Unreadable`."""
        expressions = []
        self.ranges: list[tuple[Expression, Tree, list[tuple[str, Index]]]] = []
        if conditions:
            expressions.append(self.begin(conditions, parse(conditions, "conditions")))
            self.visit(self.expression.tree)
        for part in parts:
            tree = called(parse(part), part.text, self.scope, self.parameters)
            expressions.append(self.begin(part, tree))
            self.expression.shape = self.visit(self.expression.tree)
            if self.unsized and len(expressions) > 1 + bool(conditions):
                self._size_as(expressions[-2].shape)
            for side in [*self.unsized]:
                self.reject_unsized(side)
        # Every occurrence of every letter has been seen by now.
        for letter, (expression, where) in self.ends.items():
            raise Unreadable(
                f"{letter} is neither a dimension nor an index of a name",
                expression.part,
                span_of(where)[0],
            )
        for expression, tree, letters in self.ranges:
            found: list[tuple[str, str]] = []
            for letter, index in letters:
                if index.dimension is None:
                    self.part = expression.part
                    raise self.unbound(f"what does {letter} run over?", tree, letter)
                found.append((letter, index.dimension))
            expression.ranges[id(tree)] = tuple(found)
        return expressions

    def dimensions_of(self, expression: Expression) -> dict[str, str]:
        """Return the dimension of each free index of an analysed expression. Raises
        `Unreadable` for an index whose dimension is not known."""
        found: dict[str, str] = {}
        for letter in sorted(expression.free):
            dimension = self.free[letter].dimension
            if dimension is None and self.scope.dimensions:
                # It is only compared with other letters, so any dimension will do.
                self.free[letter].runs_over(self.scope.dimensions[0])
                dimension = self.scope.dimensions[0]
            if dimension is None:
                raise Unreadable(f"what does {letter} run over?", expression.part)
            found[letter] = dimension
        return found

    def visit(self, tree: Tree) -> Shape:
        before = {*self.unsized}
        shape = super().visit(tree)
        if lost := [side for side in self.unsized if side not in {*before, *shape}]:
            self.reject_unsized(lost[0])
        return shape

    def visit_number(self, tree: Tree, why: str) -> None:
        """Visit what must be a number, for a reason."""
        if shape := self.visit(tree):
            self.not_a_number(f"{why}; this is {in_words(shape)}", tree)

    def find(self, tree: Tree) -> Function | None:
        """Return the function that a name means here; None if it does not mean one."""
        found = find(self.scope, tree, self.parameters)
        return found[0] if found else None

    def reject(self, message: str, where: Tree | Token) -> NoReturn:
        raise Unreadable(message, self.part, span_of(where)[0])

    def misfit(self, message: str, where: Tree | Token) -> NoReturn:
        for side in self.unsized:
            if side in message:
                self.reject_unsized(side)
        raise Misfit(message, self.part, span_of(where)[0])

    def not_a_number(self, message: str, where: Tree | Token) -> None:
        raise NotANumber(message, self.part, span_of(where)[0])

    def unbound(
        self, message: str, tree: Tree, letter: str, reused: bool = False
    ) -> Unbound:
        """Return an error for a sum over a letter."""
        start = span_of(letter if isinstance(letter, Token) else tree)[0]
        error = Unbound(message, self.part, start)
        error.letter, error.reused = str(letter), reused
        sign, body = tree.children[0], tree.children[-1]
        error.body = span_of(body)
        error.limits = span_of(sign)[1], error.body[0]
        return error

    # ---- indices ---------------------------------------------------------------------

    def index(self, token: Token, is_end: bool = False) -> Index:
        """Return the index of a letter here, that of the innermost sum or a free one;
        of t-1, that of t. A letter at the end of a sum (`is_end`) has to occur as an
        index elsewhere."""
        letter = letter_of(token)
        if meaning := self.scope.other_meaning(letter):
            self.reject(f"{letter} {meaning}, so it cannot be an index", token)
        for name, index in reversed(self.bound):
            if name == letter:
                return index
        self.expression.free.add(letter)
        if letter not in self.free and is_end:
            self.ends[letter] = self.expression, token
        elif not is_end:
            self.ends.pop(letter, None)
        return self.free.setdefault(letter, self.new_index(letter))

    def new_index(self, letter: str) -> Index:
        """Return a new index, over the dimension that a range of the letter names."""
        index = Index()
        if side := self.scope.times.get(letter):
            index.runs_over(side)
        return index

    def is_last(self, token: Token) -> bool:
        """Whether an index is that of the last element, such as n or n-1: a dimension,
        perhaps with a number."""
        return letter_of(token) in self.scope.dimensions

    def run_together(self, first: Token, second: Token) -> None:
        for token in (first, second):
            if token.isdigit() and not 1 <= int(token) < LARGEST:
                self.reject(
                    f"an index is compared with a number from 1 to {LARGEST - 1}, because "
                    f"sizes up to {LARGEST} are tried",
                    token,
                )
        letters = [
            self.index(token)
            for token in (first, second)
            if not (token.isdigit() or self.is_last(token))
        ]
        ends = [letter_of(token) for token in (first, second) if self.is_last(token)]
        message = f"{first} and {second} run over different dimensions"
        if len(letters) == 2 and not letters[0].runs_with(letters[1]):
            if not differ(*(letter.dimension or "1" for letter in letters)):
                self.reject(message, first)
            self.unlike_together(message, first)
        if not all(index.runs_over(side) for index in letters for side in ends):
            self.reject(message, first)

    def unlike_together(self, message: str, where: Token) -> None:
        """Reject two indices that are compared, and run over different dimensions."""
        raise Misfit(message, self.part, span_of(where)[0], True, diagonal=True)

    @contextmanager
    def letters(self, *letters: tuple[str, str]) -> Iterator[None]:
        """Bind the letters of dots, each with its dimension."""
        for letter, side in letters:
            index = Index()
            index.runs_over(side)
            self.bound.append((letter, index))
        yield
        del self.bound[len(self.bound) - len(letters) :]

    # ---- the sizes of I and 1 --------------------------------------------------------

    def unknown(self, tree: Tree) -> str:
        """Return a name for the size of an I or a 1, which is not known yet."""
        side = f"{UNKNOWN}{id(tree)}"
        self.unsized[side] = [tree]
        return side

    def sized(self, unknown: str, side: str, shape: Shape) -> Shape:
        """Record the size of an I or a 1, which a factor or a term beside it
        determines, and return a shape with it."""
        references = self.expression.references
        if side in self.unsized:  # the same unknown size
            self.unsized[side] += self.unsized.pop(unknown)
            return tuple(side if one == unknown else one for one in shape)
        if any(
            references[id(tree)].kind == "ones" for tree in self.unsized[unknown]
        ) and (side not in self.scope.dimensions):
            self.reject_unsized(unknown)
        for tree in self.unsized.pop(unknown):
            indices = (Token("WORD", side),)
            references[id(tree)] = replace(references[id(tree)], indices=indices)
        return tuple(side if one == unknown else one for one in shape)

    def _size_as(self, shape: Shape) -> None:
        """Give an I or a 1 that is a whole side the size of the side before it."""
        mine, tree = self.expression.shape, self.expression.tree
        found = self.expression.references.get(id(tree))
        if found is None or found.kind not in ("identity", "ones") or len(shape) != 2:
            return
        if found.kind == "ones" and shape[1] != "1":
            return
        for one, side in zip(mine, shape, strict=True):
            if one in self.unsized:
                mine = self.sized(one, side, mine)
        self.expression.shape = mine

    def reject_unsized(self, side: str) -> NoReturn:
        tree = self.unsized[side][0]
        found = self.expression.references[id(tree)]
        self.reject(
            f"what is the size of {found.name}? Write it as a subscript, one of "
            f"{', '.join(self.scope.dimensions)}",
            tree,
        )

    # ---- how far an operator reaches -------------------------------------------------

    def may_reach(self, tree: Tree) -> bool:
        """Whether a derivative of a number may also apply to what follows."""
        if tree.data == "jacobian" and tree.children[0].data == "call":
            call = self.expression.calls[id(tree.children[0])][0]
            return not (call.shape or call.elementwise)
        return tree.data in ("nabla", "nabla_of")

    def is_still(self, factor: Tree, gradient: Tree) -> bool:
        """Whether a factor behind a gradient by a name does not depend on the name, so
        that the gradient may be that of the product or not."""
        references = self.expression.references
        if gradient.data != "nabla_of":
            return False
        by = references[id(gradient.children[0])].name
        for node in factor.iter_subtrees():
            found = references.get(id(node))
            if node.data == "call" or (
                found and (found.kind == "loss" or found.accent)
            ):
                return False
            if found is not None and found.kind == "variable":
                if by in self.scope.upstream([self.scope.variables[found.name]]):
                    return False
        return True

    def reject_reach(self, tree: Tree) -> NoReturn:
        self.reject("how far does this derivative reach? Write brackets round it", tree)

    def is_product(self, tree: Tree) -> bool:
        """Whether a tree is factors side by side, or a division by a slash."""
        if tree.data == "fraction":
            above, below = tree.children
            return "/" in self.part.between(above, below)
        return tree.data in ("product", "hadamard")
