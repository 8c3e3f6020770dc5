"""Analyse expressions before anything is evaluated, once for all sizes.

The analysis ensures that every name is known, every index runs over one dimension, and
every matrix product fits. It records what evaluation needs: what each reference refers
to, and what each bound index ranges over.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import NoReturn

from lark import Token, Tree
from lark.visitors import Interpreter

from backpass.derivation.language.functions import Call, called, find
from backpass.derivation.language.names import (
    LOSS,
    Expression,
    Function,
    Reference,
    Scope,
    Shape,
    Variable,
    accent_and_name,
    axes_of,
    canonical,
    gradient_of,
    in_words,
    sliced,
    subscripts_of,
)
from backpass.derivation.language.parse import (
    Line,
    Misfit,
    Part,
    Unreadable,
    parse,
    span_of,
    tokens_of,
)
from backpass.derivation.language.patterns import Axis, axis, grid


class Index:
    """An index letter in one place, with the dimension it runs over.

    It shares the dimension with the letters that it is compared with.
    """

    def __init__(self) -> None:
        self._same: Index | None = None
        self._dimension: str | None = None

    def _root(self) -> Index:
        return self._same._root() if self._same else self

    @property
    def dimension(self) -> str | None:
        return self._root()._dimension

    def runs_over(self, dimension: str) -> bool:
        """Record the dimension; return False if a different one is already known."""
        root = self._root()
        root._dimension = root._dimension or dimension
        return root._dimension == dimension

    def runs_with(self, other: Index) -> bool:
        """Record that both run over the same dimension; return False if different ones
        are already known."""
        mine, theirs = self._root(), other._root()
        if mine is theirs:
            return True
        if (
            mine._dimension
            and theirs._dimension
            and mine._dimension != theirs._dimension
        ):
            return False
        theirs._dimension = theirs._dimension or mine._dimension
        mine._same = theirs
        return True


def _is_of_arrays(body: Expression) -> bool:
    """Whether a function's definition has signs that only arrays need."""
    nodes = body.tree.iter_subtrees()
    return any(
        node.data in ("top", "hadamard", "inner", "element") for node in nodes
    ) or (any(r.kind == "parameter" and r.indices for r in body.references.values()))


LARGEST = 4  # the largest size that is tried
UNKNOWN = "?"  # begins the name of the unknown size of an I or a 1

_NOT_PARTIAL = (
    "a partial derivative is of a number with respect to a number; "
    "write the matrices by their elements, or declare layout numerator or denominator "
    "for derivatives of columns"
)
_TIMES = re.compile(r"\\(?:cdot|times)")
# Signs and spaces that show that a name and a bracket are two factors.
_APART = re.compile(r"\\(?:cdot|times|q?quad|[,;: ])|~")


class _Unclear(Unreadable):
    """Raised where a function has a meaning for an array and for its elements."""


class Analysis(Interpreter):
    """Visits expressions that share free indices. A visit returns a shape."""

    def __init__(
        self, scope: Scope, parameters: dict[str, Shape] | None = None
    ) -> None:
        self.scope = scope
        self.parameters = parameters or {}
        self.free: dict[str, Index] = {}
        self.elements: dict[
            int, Shape
        ] = {}  # the axes of what (…)_{ij} is an element of
        # Each I and 1 whose size is not known yet, by a name for the size.
        self.unsized: dict[str, list[Tree]] = {}
        self.bound: list[tuple[str, Index]] = []

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
            for side in self.unsized:
                self._reject_unsized(side)
        # Every occurrence of every letter has been seen by now.
        for expression, tree, letters in self.ranges:
            found: list[tuple[str, str]] = []
            for letter, index in letters:
                if index.dimension is None:
                    raise Unreadable(
                        f"what does {letter} run over?",
                        expression.part,
                        tree.meta.start_pos,
                    )
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
            self._reject_unsized(lost[0])
        return shape

    def _reject_unsized(self, side: str) -> NoReturn:
        tree = self.unsized[side][0]
        found = self.expression.references[id(tree)]
        self.reject(
            f"what is the size of {found.name}? Write it as a subscript, one of "
            f"{', '.join(self.scope.dimensions)}",
            tree,
        )

    def reject(self, message: str, where: Tree | Token) -> NoReturn:
        raise Unreadable(message, self.part, span_of(where)[0])

    def misfit(self, message: str, where: Tree, certain: bool) -> NoReturn:
        for side in self.unsized:
            if side in message:
                self._reject_unsized(side)
        error = Misfit if certain else Unreadable
        raise error(message, self.part, span_of(where)[0])

    def index(self, token: Token) -> Index:
        """Return a letter's index here: that of the innermost sum, or a free one."""
        letter = str(token)
        if meaning := self.scope.other_meaning(token):
            self.reject(f"{letter} {meaning}, so it cannot be an index", token)
        for name, index in reversed(self.bound):
            if name == letter:
                return index
        self.expression.free.add(letter)
        return self.free.setdefault(letter, Index())

    def run_together(self, first: Token, second: Token) -> None:
        for token in (first, second):
            if token.isdigit() and not 1 <= int(token) < LARGEST:
                self.reject(
                    f"an index is compared with a number from 1 to {LARGEST - 1}, because "
                    f"sizes up to {LARGEST} are tried",
                    token,
                )
        letters = [
            self.index(token) for token in (first, second) if not token.isdigit()
        ]
        if len(letters) == 2 and not letters[0].runs_with(letters[1]):
            self.reject(f"{first} and {second} run over different dimensions", first)

    # ---- names -----------------------------------------------------------------------

    def reference(self, tree: Tree) -> Shape:
        found = self._parameter(tree) or self.scope.resolve(tree)
        if found is None:
            if find(self.scope, tree, self.parameters):
                name = self.part.text[tree.meta.start_pos : tree.meta.end_pos]
                self.reject(f"{name} is a function: write its value, {name}(…)", tree)
            self.reject(
                f"{self.part.text[tree.meta.start_pos : tree.meta.end_pos]} is not "
                "declared or defined above",
                tree,
            )
        self.expression.references[id(tree)] = found
        return getattr(self, f"_shape_of_{found.kind}")(found, tree)

    scalar = reference

    def power_of_name(self, tree: Tree) -> Shape:
        base, exponent = tree.children
        is_power = (
            isinstance(exponent, Token)
            and exponent.type == "DIGIT"
            and not self.scope.resolve(tree)
            and self.scope.resolve(base)
        )
        if not is_power:
            return self.reference(tree)
        if self.visit(base):
            self.reject("only numbers have powers", tree)
        return ()

    def _parameter(self, tree: Tree) -> Reference | None:
        accent, name = accent_and_name(tree)
        if accent or name not in self.parameters:
            return None
        return Reference("parameter", name, "", tuple(subscripts_of(tree)))

    def _reject_rows(self, indices: tuple[Token, ...] | list[Token]) -> None:
        for token in indices:
            if token.type == "ALL":
                self.reject(
                    "a colon is read only in an index of a declared name", token
                )

    def _shape_of_parameter(self, found: Reference, tree: Tree) -> Shape:
        shape = self.parameters[found.name]
        self._reject_rows(found.indices)
        return self._element(found.name, shape, found.indices, tree)

    def _shape_of_variable(self, found: Reference, tree: Tree) -> Shape:
        variable = self.scope.variables[found.name]
        if found.accent and variable.kind == "constant":
            self.reject(f"{found.name} is a constant", tree)
        whole = self.scope.slice_of(found.name, found.indices)
        return self._element(found.name, variable.shape, found.indices, tree, whole)

    def _element(
        self,
        name: str,
        shape: Shape,
        indices: tuple[Token, ...],
        tree: Tree,
        whole: Shape = (),
    ) -> Shape:
        """Return the shape of an element of an array, or of the whole array without
        indices. `whole` is the declared shape of a slice."""
        if not indices:
            return shape
        axes = axes_of(shape)
        if any(token.type == "ALL" for token in indices) and not whole:
            written = self.part.text[slice(*span_of(tree))]
            self.reject(
                f"is {written} a row or a column? Declare its shape: slice "
                rf"{written} \in \mathbb{{R}}^…",
                tree,
            )
        if whole:
            axes = sliced(axes, indices)[0]
            indices = tuple(token for token in indices if token.type != "ALL")
        if len(indices) != len(axes):
            wanted = (
                ("no index", "one index", "two indices")[rank]
                if (rank := len(axes)) < 3
                else f"{rank} indices"
            )
            self.reject(f"{name} takes {wanted}; got {len(indices)}", tree)
        for token, side in zip(indices, axes, strict=True):
            if not token.isdigit() and not self.index(token).runs_over(side):
                other = self.index(token).dimension
                self.reject(
                    f"{token} runs over {other} elsewhere, but over {side} here", token
                )
        return whole

    def _shape_of_constant(self, found: Reference, tree: Tree) -> Shape:
        if found.indices:
            self.reject(f"{found.name} takes no index", tree)
        return ()

    _shape_of_dimension = _shape_of_euler = _shape_of_pi = _shape_of_constant

    def _shape_of_loss(self, found: Reference, tree: Tree) -> Shape:
        if not found.accent or found.indices:
            self.reject(
                r"\mathcal{L} may occur only in \dot{\mathcal{L}} and "
                r"\frac{\partial \mathcal{L}}{\partial …}",
                tree,
            )
        return ()

    def _shape_of_delta(self, found: Reference, tree: Tree) -> Shape:
        if len(found.indices) != 2:
            self.reject(r"\delta takes two indices", tree)
        self.run_together(*found.indices)
        return ()

    def _shape_of_identity(self, found: Reference, tree: Tree) -> Shape:
        side = self._side(found, tree) if found.indices else self._unknown(tree)
        return (side, side)

    def _unknown(self, tree: Tree) -> str:
        """Return a name for the size of an I or a 1, which is not known yet."""
        side = f"{UNKNOWN}{id(tree)}"
        self.unsized[side] = [tree]
        return side

    def _sized(self, unknown: str, side: str, shape: Shape) -> Shape:
        """Record the size of an I or a 1, which a factor or a term beside it
        determines, and return a shape with it."""
        references = self.expression.references
        if side in self.unsized:  # the same unknown size
            self.unsized[side] += self.unsized.pop(unknown)
            return tuple(side if one == unknown else one for one in shape)
        if any(
            references[id(tree)].kind == "ones" for tree in self.unsized[unknown]
        ) and (side not in self.scope.dimensions):
            self._reject_unsized(unknown)
        for tree in self.unsized.pop(unknown):
            indices = (Token("WORD", side),)
            references[id(tree)] = replace(references[id(tree)], indices=indices)
        return tuple(side if one == unknown else one for one in shape)

    def _shape_of_ones(self, found: Reference, tree: Tree) -> Shape:
        return self._side(found, tree) if found.indices else self._unknown(tree), "1"

    def _side(self, found: Reference, tree: Tree) -> str:
        side = "".join(found.indices)
        if side not in self.scope.dimensions:
            self.reject(
                f"{found.name} needs its size as a subscript, one of "
                f"{', '.join(self.scope.dimensions)}",
                tree,
            )
        return side

    # ---- numbers ---------------------------------------------------------------------

    def number(self, tree: Tree) -> Shape:
        return ()

    def fraction(self, tree: Tree) -> Shape:
        above, below = map(self.visit, tree.children)
        first = tree.children[0]
        if self._is_product(tree) and (
            first.data == "differentiate" or self._may_reach(first)
        ):
            self._reject_reach(tree)
        if below:
            self.reject("a matrix cannot stand below a fraction bar", tree.children[1])
        return above

    def power(self, tree: Tree) -> Shape:
        base, exponent = tree.children
        if self._is_name(tree):
            return self.reference(tree)
        if exponent.data == "letter_and_top":
            letter = Tree("scalar", exponent.children[:1], exponent.meta)
            named = Tree("power", [base, letter], tree.meta)
            shape = self.reference(named)
            references = self.expression.references
            references[id(tree)] = references.pop(id(named))
            return shape[::-1]
        if exponent.data == "layer":
            name = self.part.text[slice(*span_of(tree))]
            self.reject(f"{name} is not declared or defined above", tree)
        shape = self.visit(base)
        if exponent.data != "top" and self._may_reach(base):
            self._reject_reach(base)
        if exponent.data == "each":
            return shape
        if exponent.data == "top":
            if (
                base.data in ("reference", "element")
                and not shape
                and (
                    base.data == "element"
                    or self.expression.references[id(base)].indices
                )
            ):
                self.reject(
                    "this prints like an element of the transpose: swap the indices",
                    base,
                )
            return shape[::-1]
        is_negative = exponent.data == "sum" and exponent.children[0] == "-"
        if is_negative and self._is_of_square(base):
            self.reject(
                "an element of the inverse, or the inverse of the element? Write the "
                r"latter as \frac{1}{…}",
                tree,
            )
        if shape or self.visit(exponent):
            self.reject("only numbers have powers; write a matrix product out", tree)
        return ()

    def _may_reach(self, tree: Tree) -> bool:
        """Whether a derivative of a number may also apply to what follows."""
        if tree.data == "jacobian" and tree.children[0].data == "call":
            call = self.expression.calls[id(tree.children[0])][0]
            return not (call.shape or call.elementwise)
        return tree.data in ("nabla", "nabla_of")

    def _reject_reach(self, tree: Tree) -> NoReturn:
        self.reject("how far does this derivative reach? Write brackets round it", tree)

    def _is_of_square(self, tree: Tree) -> bool:
        """Whether a tree is an element of a matrix that may have an inverse."""
        if tree.data == "element":
            axes = self.elements[id(tree)]
        else:
            found = self.expression.references.get(id(tree))
            if found is None or found.kind != "variable" or not found.indices:
                return False
            axes = self.scope.variables[found.name].axes
        return len(axes) == 2 and axes[0] == axes[1]

    def _is_name(self, tree: Tree) -> bool:
        """Whether a power is itself a name, such as σ^2 after `let \\sigma^2 = …`, or
        W^Q."""
        base, exponent = tree.children
        if base.data != "reference" or exponent.data not in (
            "number",
            "scalar",
            "layer",
        ):
            return False
        found = self.scope.resolve(tree)
        return found is not None and found.kind == "variable"

    def root(self, tree: Tree) -> Shape:
        if self.visit(tree.children[0]):
            self.reject(
                "functions take numbers; write the matrix by its elements", tree
            )
        return ()

    def element(self, tree: Tree) -> Shape:
        array, subscript = tree.children
        name = self.part.text[array.meta.start_pos : array.meta.end_pos]
        indices = tokens_of(subscript)
        if any(token.type == "WORD" for token in indices):
            self.reject("expected indices of an element; got a word", subscript)
        self._reject_rows(indices)
        shape = self.visit(array)
        self.elements[id(tree)] = axes_of(shape)
        return self._element(name, shape, tuple(indices), tree)

    def applied(self, tree: Tree) -> Shape:
        name = self.part.text[slice(*span_of(tree.children[0]))]
        self.reject(
            f"{name} is not a function: define it with let {name}(…) = …, or write a "
            r"product as \left( … \right)",
            tree,
        )

    def arguments(self, tree: Tree) -> Shape:
        self.reject("these are several arguments, without a function before them", tree)

    def call(self, tree: Tree) -> Shape:
        name, *arguments = tree.children
        written = self.part.text[tree.meta.start_pos : tree.meta.end_pos]
        found = find(self.scope, name, self.parameters)
        assert found is not None
        function, shapes = found[0], [self.visit(one) for one in arguments]
        for side in itertools.chain(*shapes):
            if side in self.unsized:
                self._reject_unsized(side)
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

    def _readings(
        self, function: Function, shapes: list[Shape], tree: Tree
    ) -> tuple[Call, ...]:
        """Return the possible meanings of a function's value: its definition for the
        whole array, or for each element. Raises `Unreadable`."""
        of_numbers = len(shapes) == 1 and bool(shapes[0]) and not function.letters
        try:
            whole = self._call(function, shapes, tree)
        except Unreadable as error:
            if not of_numbers:
                raise
            try:
                return (self._of_elements(function, shapes[0], tree),)
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

    def _of_elements(self, function: Function, shape: Shape, tree: Tree) -> Call:
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
        analysis = Analysis(self.scope, parameters)
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

    def apply(self, tree: Tree) -> Shape:
        function, argument = tree.children
        name, shape = str(function.children[0]), self.visit(argument)
        if name.endswith("{tr}"):
            if shape and (len(shape) != 2 or shape[0] != shape[1]):
                self.reject(
                    f"a trace needs a square matrix; this is {in_words(shape)}",
                    argument,
                )
            return ()
        if name.endswith("{diag}"):
            if len(shape) != 2 or shape[1] != "1":
                self.reject(f"diag needs a column; this is {in_words(shape)}", argument)
            return (shape[0], shape[0])
        # The exponential of a matrix is not that of its elements.
        if len(axes_of(shape)) > 1:
            self.reject(
                "functions take a number, a column, or a row; "
                "write the matrix by its elements",
                argument,
            )
        return shape

    # ---- sums and products -----------------------------------------------------------

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
        with self._letters((found.letter, found.side)):
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

    @contextmanager
    def _letters(self, *letters: tuple[str, str]) -> Iterator[None]:
        """Bind the letters of dots, each with its dimension."""
        for letter, side in letters:
            index = Index()
            index.runs_over(side)
            self.bound.append((letter, index))
        yield
        del self.bound[len(self.bound) - len(letters) :]

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
        with self._letters(*((one.letter, one.side) for one in axes if one.letter)):
            for row in found.rows.terms:
                for entry in row.children:
                    if shape := self.visit(entry):
                        words = f"an entry must be a number; this is {in_words(shape)}"
                        self.reject(words, entry)
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
                        shape = self._sized(one, side, shape)
            if shape != sized:
                message = f"{in_words(sized)} cannot be {verb} {in_words(shape)}"
                self.misfit(message, tree, never_equal(sized, shape))
        return sized

    def product(self, tree: Tree) -> Shape:
        for before, factor in pairwise(tree.children):
            between = self.part.text[before.meta.end_pos : factor.meta.start_pos]
            if not _TIMES.search(between) and _joins(before, factor):
                self.reject(
                    "this prints as a part of what comes before it: write \\cdot between "
                    "them",
                    factor,
                )
            if before.data == "differentiate":
                self._reject_reach(before)
            if not _APART.search(between) and reads_as_function(
                before, factor, self.scope
            ):
                name = self.part.text[before.meta.start_pos : before.meta.end_pos]
                if before.data == "power" and find(
                    self.scope, before.children[0], self.parameters
                ):
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
            between = self.part.text[before.meta.end_pos : factor.meta.start_pos]
            if not other and not _TIMES.search(between) and self._may_reach(before):
                self._reject_reach(before)
            if shape and other:
                if shape[-1] in self.unsized and shape[-1] != other[0]:
                    shape = self._sized(shape[-1], other[0], shape)
                elif other[0] in self.unsized and shape[-1] != other[0]:
                    other = self._sized(other[0], shape[-1], other)
                if len(shape) != 2 or len(other) != 2 or shape[1] != other[0]:
                    self.misfit(
                        f"{in_words(shape)} cannot be multiplied by {in_words(other)}",
                        factor,
                        # Texts also write products of elements like this, and
                        # products of arrays with more axes.
                        len(shape) == len(other) == 2
                        and shape != other
                        and _differ(shape[-1], other[0]),
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
        letters = [(str(token), Index()) for token in own]
        self.bound += letters
        if relation:
            self.run_together(tokens[0], tokens[-1])
        for end in upper:
            found = self.scope.resolve(end.children[0])
            if found is None or found.kind != "dimension":
                self.reject("a sum must end at a dimension", end)
            for _, index in letters:
                index.runs_over(found.name)
        shape = self.visit(body)
        del self.bound[len(self.bound) - len(letters) :]
        if sign in (r"\prod", r"\max") and shape:
            self.reject(f"a {sign[1:]} takes numbers", body)
        # A sum of products is the same either way.
        if sign != r"\sum" and self._is_product(body):
            last = body.children[-1]
            matrices = sign == r"\bigodot" and body.data == "product"
            if not (matrices and any(own[0] == token for token in _letters_in(last))):
                self.reject(f"how far does this {sign} reach? Write brackets", body)
        self.ranges.append((self.expression, tree, letters))
        return shape

    def _is_product(self, tree: Tree) -> bool:
        """Whether a tree is factors side by side, or a division by a slash."""
        if tree.data == "fraction":
            above, below = tree.children
            return "/" in self.part.text[above.meta.end_pos : below.meta.start_pos]
        return tree.data in ("product", "hadamard")

    # ---- cases -----------------------------------------------------------------------

    def extreme(self, tree: Tree) -> Shape:
        return self._compared(tree, *tree.children[1:])

    def indicator(self, tree: Tree) -> Shape:
        first, relation, second = tree.children
        assert isinstance(relation, Token)
        if relation.startswith(r"\ne"):
            self.reject(r"an indicator compares with <, >, \le or \ge", relation)
        return self._compared(tree, first, second)

    def cases(self, tree: Tree) -> Shape:
        for case in tree.children:
            value, comparison = case.children
            if shape := self.visit(value):
                self.reject(
                    f"a case must be a number; this is {in_words(shape)}", value
                )
            if isinstance(comparison.children[0], Token):
                if case is not tree.children[-1]:
                    self.reject("this case must be the last one", comparison)
            elif letters := self._indices_compared(comparison):
                self.run_together(*letters)
            else:
                self._compare_numbers(comparison)
        return ()

    def _indices_compared(self, comparison: Tree) -> list[Token]:
        """Return the two indices that a case compares; none if it compares numbers."""
        sides = comparison.children[::2]
        found = [token for side in sides if (token := self._as_index(side))]
        is_pair = len(sides) == len(found) == 2
        return found if is_pair and any(not one.isdigit() for one in found) else []

    def _as_index(self, side: Tree) -> Token | None:
        """Return the letter or the number of a side that may be an index."""
        token = next(side.scan_values(lambda one: True), None)
        if not isinstance(token, Token):
            return None
        if side.data == "number":
            return token if token.isdigit() else None
        is_letter = side.data == "reference" and token.type in ("LETTER", "GREEK")
        known = self._parameter(side) or self.scope.resolve(side) if is_letter else True
        return None if known or subscripts_of(side) else token

    def _compare_numbers(self, comparison: Tree) -> None:
        first, *rest = comparison.children
        for relation, second in zip(rest[::2], rest[1::2], strict=True):
            if str(relation.children[0]).startswith(("=", r"\ne")):
                self.reject(
                    "a case of numbers is checked on both sides of its boundary, not on it: "
                    r"write <, >, \le, or \ge; = and \ne are for indices",
                    relation,
                )
            if shape := self._compared(relation, first, second):
                self.reject(
                    f"a case must compare numbers; this is {in_words(shape)}", second
                )
            first = second

    def _compared(self, tree: Tree, first: Tree, second: Tree) -> Shape:
        """Return the shape of a comparison: that of two arrays, or of an array and a
        number, whose elements are compared."""
        shapes = self.visit(first), self.visit(second)
        if all(shapes) and shapes[0] != shapes[1]:
            self.reject(
                f"{in_words(shapes[0])} cannot be compared with {in_words(shapes[1])}",
                second,
            )
        self.expression.comparisons.append(tree)
        return shapes[0] or shapes[1]

    # ---- derivatives -----------------------------------------------------------------

    def partial(self, tree: Tree) -> Shape:
        above, below = tree.children
        is_name = above.data in ("reference", "power_of_name")
        found = self.scope.resolve(above) if is_name else None
        if (
            found is not None
            and found.name == LOSS
            and not (found.accent or found.indices)
        ):
            self.expression.references[id(above)] = found
            shape = self._with_respect_to(below)
            return shape[::-1] if self.scope.layout == "numerator" else shape
        shapes = self.visit(above), self._with_respect_to(below)
        if not shapes[0]:  # of a number: the shape of its variable
            is_numerator = self.scope.layout == "numerator"
            return shapes[1][::-1] if is_numerator else shapes[1]
        laid_out = None
        if above.data != "bracket":
            laid_out = self.scope.laid_out(*shapes)
        return laid_out or self.reject(_NOT_PARTIAL, tree)

    def differential(self, tree: Tree) -> Shape:
        """Return the shape of ∂f(x)(v), the derivative of f at x in the direction v."""
        call, direction = tree.children
        if call.data != "call" or len(call.children) != 2:
            self.reject(
                r"\partial f(x)(v) needs f to be a function of one argument", tree
            )
        shape = self.visit(call)
        self._has_shape(direction, self.visit(call.children[1]))
        return shape

    def jacobian(self, tree: Tree) -> Shape:
        """Return the shape of ∂f(x), the Jacobian of f at x."""
        shapes = self._function_at(tree, r"\partial f(x)")
        if shapes == ((), ()):
            return ()
        shape = self.scope.laid_out(*shapes)
        return shape or self.reject(
            "the Jacobian of a column at a column needs a layout: say layout numerator or "
            "layout denominator",
            tree,
        )

    def nabla(self, tree: Tree) -> Shape:
        """Return the shape of ∇f(x), the gradient of f at x: that of x."""
        above, below = self._function_at(tree, r"\nabla f(x)")
        if above:
            self.reject(
                f"only a number has a gradient; this is {in_words(above)}", tree
            )
        return below

    def _function_at(self, tree: Tree, written: str) -> tuple[Shape, Shape]:
        """Return the shapes of a function's value and of its argument."""
        (call,) = tree.children
        if call.data == "applied" or len(call.children) != 2:
            self.reject(f"{written} needs f to be a function of one argument", tree)
        return self.visit(call), self.visit(call.children[1])

    def nabla_of(self, tree: Tree) -> Shape:
        """Return the shape of ∇_x y, the gradient of a number by x: that of x."""
        below, above = tree.children
        if shape := self.visit(above):
            self.reject(
                f"only a number has a gradient; this is {in_words(shape)}", above
            )
        return self._with_respect_to(below)

    def slope(self, tree: Tree) -> Shape:
        """Return the shape of f'(x), the derivative of f at x or at its elements."""
        name, *_, bracket = tree.children
        found, shape = find(self.scope, name, self.parameters), self.visit(bracket)
        if found is None or len(found[0].parameters) != 1 or found[0].letters:
            self.reject("a prime is read after a function of a number", tree)
        try:
            call = self._of_elements(found[0], shape, tree)
        except Unreadable as error:
            self.reject(error.message, tree)
        self.expression.calls[id(tree)] = (call,)
        return shape

    def norm(self, tree: Tree) -> Shape:
        array, *kind = tree.children
        rank = len(axes_of(self.visit(array)))
        if rank == 0 or (rank > 1 and kind != ["F"]):
            self.reject(
                r"a norm takes a column or a row; write \lVert A \rVert_F for a matrix",
                tree,
            )
        return ()

    def directional(self, tree: Tree) -> Shape:
        """Return the shape of ∂Y/∂X (V), the derivative of Y in the direction V."""
        above, below, direction = tree.children
        found = self.scope.resolve(above)
        if found is not None and found.kind == "loss" and not found.accent:
            self.expression.references[id(above)] = found
            shape: Shape = ()
        else:
            shape = self.visit(above)
        self._has_shape(direction, self._with_respect_to(below))
        return shape

    def _has_shape(self, direction: Tree, shape: Shape) -> None:
        if (other := self.visit(direction)) != shape:
            self.reject(
                f"a derivative with respect to {in_words(shape)} cannot be applied to "
                f"{in_words(other)}",
                direction,
            )

    def differentiate(self, tree: Tree) -> Shape:
        operator, argument = tree.children
        if self._with_respect_to(operator.children[0]) or self.visit(argument):
            self.reject(_NOT_PARTIAL, tree)
        return ()

    def _with_respect_to(self, tree: Tree) -> Shape:
        shape = self.visit(tree)
        found = self.expression.references.get(id(tree))
        if (
            found is None
            or found.kind != "variable"
            or found.accent
            or self.scope.variables[found.name].kind == "constant"
        ):
            self.reject(
                "a derivative is with respect to an input or a definition", tree
            )
        return shape

    # ---- conditions ------------------------------------------------------------------

    def conditions(self, tree: Tree) -> None:
        self.visit_children(tree)

    def condition(self, tree: Tree) -> None:
        first = tree.children[0]
        if isinstance(first, Token):
            _, _, second = tokens_of(tree)
            self.run_together(first, second)
            return
        self.visit(first)
        found = self.expression.references[id(first)]
        if found.kind != "variable" or found.accent != "dot" or found.indices:
            self.reject(
                r"expected a condition such as j \ne i, or \dot{X} = 0 for a whole X",
                first,
            )


def _letters_in(tree: Tree) -> Iterator[Token]:
    return tree.scan_values(lambda one: isinstance(one, Token) and one.type == "INDEX")


def define(scope: Scope, line: Line) -> None:
    """Add the definition of a `let` line to the scope. Raises `Unreadable`.

    Its left side is a name, or a name with one letter for each index.
    """
    assert line.left is not None and line.right is not None
    left = parse(line.left, "moved")
    accent, name = accent_and_name(left)
    tokens = subscripts_of(left)
    letters = [str(token) for token in tokens]
    if accent:
        raise Unreadable(rf"\{accent} is derived, not defined", line.left)
    if len(set(letters)) < len(letters):
        raise Unreadable("an index occurs twice on the left of a definition", line.left)
    if any(token.isdigit() or token.type in ("WORD", "ALL") for token in tokens):
        raise Unreadable(
            "a definition is for all elements: its indices must be letters", line.left
        )
    if line.conditions:
        raise Unreadable("a definition cannot have conditions", line.conditions)
    analysis = Analysis(scope)
    analysis.begin(line.left, left)
    gradient = scope.variables.get(gradient_of(name))
    indices = [analysis.index(token) for token in tokens]
    for index, side in zip(indices, gradient.axes if gradient else (), strict=False):
        index.runs_over(side)
    (definition,) = analysis.run([line.right])
    for letter in definition.free:
        if letter not in letters:
            raise Unreadable(f"the index {letter} is only on the right", line.right)
    sides: Shape = ()
    for letter, index in zip(letters, indices, strict=True):
        if index.dimension is None:
            raise Unreadable(
                f"what does {letter} run over? Declare the shape of {gradient_of(name)}",
                line.left,
            )
        sides += (index.dimension,)
    if letters and definition.shape:
        raise Unreadable(
            "the right side is a matrix, but the left side is an element", line.right
        )
    shape = (
        definition.shape if not letters else (*sides, "1") if len(sides) == 1 else sides
    )
    if gradient and gradient.shape != shape:
        message = (
            f"this is {in_words(shape)}, but {gradient_of(name)} is declared as "
            f"{in_words(gradient.shape)}"
        )
        raise Unreadable(message, line.left)
    backward = scope.is_backward(definition)
    positive = definition.tree.data == "root"  # so that \sqrt{s^2} is s
    scope.add(
        Variable(
            name, shape, "defined", positive, tuple(letters), definition, backward
        ),
        line.left,
    )


def assume(scope: Scope, line: Line) -> None:
    """Add what a line assumes of constants to the scope. Raises `Unreadable`."""
    assert line.left is not None and line.right is not None
    if line.conditions:
        raise Unreadable("an assumption cannot have conditions", line.conditions)
    analysis = Analysis(scope)
    left, right = analysis.run([line.left, line.right])
    if left.shape != right.shape:
        raise Unreadable(
            f"{in_words(left.shape)} is not {in_words(right.shape)}", line.right
        )
    for expression in (left, right):
        for reference in expression.used:
            variable = scope.variables.get(reference.name)
            if reference.accent or (variable and variable.kind != "constant"):
                raise Unreadable(
                    f"an assumption may use only constants: declare constant {reference.name}",
                    expression.part,
                )
    if more := sorted(right.free - left.free):
        raise Unreadable(f"the index {more[0]} is only on the right", line.right)
    scope.assumptions.append((left, right, analysis.dimensions_of(left)))


def never_equal(one: Shape, other: Shape) -> bool:
    """Whether two shapes of the same kind (columns, rows, or matrices) differ in every
    reading.

    Texts also add a number or a column to a matrix, and do not always tell a row from a
    column.
    """
    kinds = [[side == "1" for side in shape] for shape in (one, other)]
    return kinds[0] == kinds[1] and any(map(_differ, one, other))


def _differ(one: str, other: str) -> bool:
    """Whether two sides differ at some sizes that are not 1."""
    return one != other and not one.isdigit() and not other.isdigit()


def reads_as_function(before: Tree, factor: Tree, scope: Scope) -> bool:
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
