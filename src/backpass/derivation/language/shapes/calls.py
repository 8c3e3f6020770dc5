"""The shapes of the values of functions."""

from __future__ import annotations

import itertools
from dataclasses import replace

from lark import Tree

from backpass.derivation.language.names import (
    Call,
    Expression,
    Function,
    Shape,
    axes_of,
    differ,
    in_words,
)
from backpass.derivation.language.parse import Unreadable
from backpass.derivation.language.shapes.visitor import Visitor


class _Unclear(Unreadable):
    """Raised where a function has a meaning for an array and for its elements."""


class Calls(Visitor):
    """The values of functions, defined or built in."""

    def applied(self, tree: Tree) -> Shape:
        name = self.part.written(tree.children[0])
        self.reject(
            f"{name} is not a function: define it with let {name}(…) = …, or write a "
            r"product as \left( … \right)",
            tree,
        )

    def arguments(self, tree: Tree) -> Shape:
        self.reject("these are several arguments, without a function before them", tree)

    def call(self, tree: Tree) -> Shape:
        name, *arguments = tree.children
        written = self.part.written(tree)
        function, shapes = self.find(name), [self.visit(one) for one in arguments]
        assert function is not None
        for side in itertools.chain(*shapes):
            if side in self.unsized:
                self.reject_unsized(side)
        if len(shapes) != len(function.parameters):
            count = len(function.parameters)
            plural = "" if count == 1 else "s"
            self.reject(f"{function.name} takes {count} argument{plural}", tree)
        try:
            calls = self._readings(function, shapes, tree)
        except Unreadable as error:
            self.reject(f"in {written}: {error.message}", tree)
        self.expression.calls[id(tree)] = calls
        return shapes[0] if calls[0].elementwise else calls[0].shape

    def apply(self, tree: Tree) -> Shape:
        function, argument = tree.children
        name, shape = str(function.children[0]), self.visit(argument)
        if name.endswith("{tr}"):
            if shape and (len(shape) != 2 or shape[0] != shape[1]):
                message = f"a trace needs a square matrix; this is {in_words(shape)}"
                if len(shape) == 2 and differ(*shape):
                    self.misfit(message, argument)
                self.reject(message, argument)
            return ()
        if name in (r"\det", r"\operatorname{det}"):
            if shape and (len(shape) != 2 or shape[0] != shape[1]):
                self.reject(
                    f"a determinant needs a square matrix; this is {in_words(shape)}",
                    argument,
                )
            return ()
        if name.endswith("{diag}"):
            if len(shape) != 2 or shape[1] != "1":
                self.reject(f"diag needs a column; this is {in_words(shape)}", argument)
            return (shape[0], shape[0])
        # The exponential of a matrix is not that of its elements.
        if len(axes_of(shape)) > 1 and self.scope.spreads != "all":
            self.reject(
                "functions take a number, a column, or a row; "
                "write the matrix by its elements",
                argument,
            )
        return shape

    def _readings(
        self, function: Function, shapes: list[Shape], tree: Tree
    ) -> tuple[Call, ...]:
        """Return the possible meanings of a function's value: its definition for the
        whole array, or for each element. Raises `Unreadable`."""
        if self._is_by_rows(function, shapes):
            rows, side = shapes[0]
            call = self._call(function, [("1", side)], tree)
            if not call.is_row:
                raise Unreadable("a function of each row must have the row's length")
            return (replace(call, rows=rows),)
        of_numbers = len(shapes) == 1 and bool(shapes[0]) and not function.letters
        try:
            whole = self._call(function, shapes, tree)
        except Unreadable as error:
            if not of_numbers:
                raise
            try:
                return (self.of_elements(function, shapes[0], tree),)
            except _Unclear:
                raise
            except Unreadable:
                raise error from None
        if of_numbers and whole.shape == shapes[0] and not _is_of_arrays(whole.body):
            try:
                return whole, self._call(function, [()], tree, elementwise=True)
            except Unreadable:
                pass
        return (whole,)

    def _is_by_rows(self, function: Function, shapes: list[Shape]) -> bool:
        """Whether a function of a vector is applied to each row of a matrix."""
        return (
            self.scope.spreads == "all"
            and len(function.letters) == len(shapes) == 1
            and len(axes_of(shapes[0])) == 2
        )

    def of_elements(self, function: Function, shape: Shape, tree: Tree) -> Call:
        """Return a call for each element of an array. Raises `Unreadable`."""
        call = self._call(function, [()], tree, elementwise=bool(shape))
        if len(shape) == 2 and shape[0] == shape[1] != "1":
            raise _Unclear(
                "a function of this matrix, or of each of its elements? Write its value "
                "by indices"
            )
        return call

    def _call(
        self,
        function: Function,
        shapes: list[Shape],
        tree: Tree,
        elementwise: bool = False,
    ) -> Call:
        parameters = dict(zip(function.parameters, shapes, strict=True))
        analysis = type(self)(self.scope, parameters)
        (body,) = analysis.run([function.body])
        if body.shape and (function.letters or elementwise):
            raise Unreadable("its definition is a matrix, but must be a number")
        sides = []
        for letter in function.letters:
            index = analysis.free.get(letter)
            if index is None or index.dimension is None:
                raise Unreadable(f"what does {letter} run over?")
            sides.append(index.dimension)
        if more := sorted(body.free - set(function.letters)):
            raise Unreadable(f"the index {more[0]} occurs only in its definition")
        is_row = len(shapes) == 1 and shapes[0] == ("1", *sides)
        place = self.part, tree.meta.start_pos or 0
        return Call(place, function, body, tuple(sides), elementwise, is_row)


def _is_of_arrays(body: Expression) -> bool:
    """Whether a function's definition has signs that only arrays need."""
    nodes = body.tree.iter_subtrees()
    return any(
        node.data in ("top", "hadamard", "inner", "element") for node in nodes
    ) or (any(r.kind == "parameter" and r.indices for r in body.references.values()))
