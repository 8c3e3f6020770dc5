"""Visit expressions at given sizes, each within a frame."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import NoReturn

import numpy as np
import sympy
from lark import Token, Tree
from lark.visitors import Interpreter

from backpass.derivation.language.calculus import Calculus, Value
from backpass.derivation.language.indices import letter_of, shift_of
from backpass.derivation.language.names import Expression, Path, Scope
from backpass.derivation.language.parse import Undefined, Unreadable, span_of
from backpass.derivation.language.values.points import Point
from backpass.expressions import exact

# Nodes whose value is kept for further indices, and those that they may consist of.
_REPEATED = {"partial", "product", "fraction", "big"}
_PURE = {
    *_REPEATED, "reference", "scalar", "number", "power", "bracket", "sum", "root",
    "subscript", "letter_and_top", "top", "limits", "upper", "hadamard", "name",
}  # fmt: skip


@dataclass(frozen=True)
class Frame:
    """The expression that is being evaluated, and what its letters stand for.

    Names in `still` have a differential of 0. In a function's body, `path` are the
    calls that lead to it, and `outside` the indices in each of these calls.
    """

    expression: Expression
    indices: dict[str, int]
    still: frozenset[str] = frozenset()
    parameters: dict[str, Value] = field(default_factory=dict)
    path: Path = ()
    outside: tuple = ()

    @property
    def place(self) -> tuple[tuple[str, int], ...]:
        """The indices, in order."""
        return tuple(sorted(self.indices.items()))


class Visitor(Interpreter):
    """Evaluates the expressions of a scope at one assignment of sizes.

    An expression that depends on a sign is evaluated as it is around a point. Each
    grammar rule has a method of the same name, in a class below. `signs` are those met
    at each comparison, by its part and position.
    """

    def __init__(
        self, scope: Scope, sizes: dict[str, int], draw: int | None = None
    ) -> None:
        self.scope, self.sizes, self.draw = scope, sizes, draw
        self.point = None if draw is None else Point(draw, sizes)
        # The signs met, and what was compared, by the place of a comparison and then
        # by its indices.
        self.signs: dict[Path, dict[tuple, set[int]]] = {}
        self.differences: dict[Path, dict[tuple, set[sympy.Expr]]] = {}
        self.calculus = Calculus(scope, sizes, self.value)
        self.moving: list[sympy.Symbol] = []  # the ε of derivatives being evaluated
        self._known: dict[tuple, Value] = {}  # the numbers that subtrees stand for
        # The index letters of subtrees, and None for those that are not `_PURE`.
        self._letters: dict[tuple, tuple[str, ...] | None] = {}
        self._kept: list[Expression] = []  # so that the identities above stay theirs
        self._frame: Frame | None = None

    @property
    def frame(self) -> Frame:
        """Where the evaluation is."""
        assert self._frame is not None
        return self._frame

    @property
    def current(self) -> Expression:
        """The expression that is being evaluated."""
        return self.frame.expression

    def visit(self, tree: Tree) -> Value:
        """Return the value of a subtree: each number is computed once for the indices
        in it, as a sum over other indices also needs it."""
        if tree.data not in _REPEATED or not self.frame.indices:
            return super().visit(tree)
        frame = self.frame
        if frame.parameters or frame.path or self.moving:
            return super().visit(tree)
        letters = self._letters_in(tree)
        if letters is None:
            return super().visit(tree)
        own = tuple(frame.indices.get(letter) for letter in letters)
        key = (id(frame.expression), id(tree), frame.still, own)
        if key not in self._known:
            value = super().visit(tree)
            if isinstance(value, np.ndarray):
                return value
            self._known[key] = value
        return self._known[key]

    def _letters_in(self, tree: Tree) -> tuple[str, ...] | None:
        """Return the letters on whose indices a subtree may depend; None if its value
        depends on more, or is noted elsewhere when it is computed."""
        expression = self.frame.expression
        key = (id(expression), id(tree))
        if key not in self._letters:
            self._kept.append(expression)
            nodes = [*tree.iter_subtrees()]
            pure = all(
                node.data in _PURE and id(node) not in expression.sums for node in nodes
            )
            tokens = tree.scan_values(lambda one: isinstance(one, Token))
            found = {letter_of(token) for token in tokens} if pure else set()
            self._letters[key] = tuple(sorted(found)) if pure else None
        return self._letters[key]

    def reject(self, message: str, where: Tree | Token) -> NoReturn:
        raise Unreadable(message, self.current.part, span_of(where)[0])

    def undefined(self, message: str, where: Tree | Token) -> NoReturn:
        raise Undefined(message, self.current.part, span_of(where)[0])

    def defined(self, value: Value, tree: Tree) -> Value:
        """Return a number, unless it divides by 0."""
        if value is sympy.zoo:
            self.undefined("this divides by 0", tree)
        return value

    def is_zero(self, value: sympy.Expr) -> bool:
        """Whether a number is 0, as far as that can be decided."""
        try:
            return value == 0 or self.calculus.definitions.is_zero(value)
        except exact.NotRepresentable:
            return False

    def value(
        self,
        expression: Expression,
        indices: dict[str, int] | None = None,
        still: frozenset[str] = frozenset(),
        parameters: dict[str, Value] | None = None,
        path: Path = (),
    ) -> Value:
        """Return the value of an expression, given its free indices (zero-based) and,
        in a function's body, its parameters and the calls that lead to it.

        Defined names stay symbols. Names in `still` have a differential of 0.
        """
        outside = (*self.frame.outside, self.frame.place) if path else ()
        frame = Frame(expression, indices or {}, still, parameters or {}, path, outside)
        try:
            with self.within(frame):
                return self.visit(expression.tree)
        except Unreadable as error:
            raise (
                error if error.part else Unreadable(error.message, expression.part)
            ) from None

    def where(self, tree: Tree, indices: dict[str, int]) -> Value:
        """Return the value of a subtree with further indices set."""
        with self.indexed(indices):
            return self.visit(tree)

    @contextmanager
    def within(self, frame: Frame) -> Iterator[None]:
        """Evaluate in a frame."""
        before, self._frame = self._frame, frame
        try:
            yield
        finally:
            self._frame = before

    def indexed(self, indices: dict[str, int]) -> AbstractContextManager[None]:
        """Evaluate with further indices set."""
        frame = self.frame
        return self.within(replace(frame, indices={**frame.indices, **indices}))

    def at(self, token: str) -> int:
        """Return the zero-based index that t, t-1, a number, or a dimension stands
        for."""
        letter = letter_of(token)
        if letter.isdigit():
            place = int(letter) - 1
        elif letter in self.frame.indices:
            place = self.frame.indices[letter]
        else:  # a dimension: its last index
            place = self.sizes[letter] - 1
        return place + shift_of(token)
