"""Analyse expressions before anything is evaluated, once for all sizes.

The analysis ensures that every name is known, every index runs over one dimension, and
every matrix product fits. It records what evaluation needs: what each reference refers
to, and what each bound index ranges over.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NoReturn

from lark import Token, Tree
from lark.visitors import Interpreter

from backpass.derivation.names import (
    LOSS,
    Expression,
    Reference,
    Scope,
    Shape,
    Variable,
    accent_and_name,
    canonical,
    gradient_of,
    in_words,
    subscripts_of,
)
from backpass.derivation.parse import (
    Line,
    Misfit,
    Part,
    Unreadable,
    parse,
    span_of,
    tokens_of,
)


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


_NOT_PARTIAL = (
    "a partial derivative is of a number with respect to a number; "
    "write the matrices by their elements, or declare layout numerator or denominator "
    "for derivatives of columns"
)
_TIMES = re.compile(r"\\(?:cdot|times)")
# Signs and spaces that show that a name and a bracket are two factors.
_APART = re.compile(r"\\(?:cdot|times|q?quad|[,;: ])|~")


class Analysis(Interpreter):
    """Visits expressions that share free indices. A visit returns a shape."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.free: dict[str, Index] = {}
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
            expressions.append(self.begin(part, parse(part)))
            self.expression.shape = self.visit(self.expression.tree)
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

    def reject(self, message: str, where: Tree | Token) -> NoReturn:
        raise Unreadable(message, self.part, span_of(where)[0])

    def misfit(self, message: str, where: Tree, certain: bool) -> NoReturn:
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
        letters = [
            self.index(token) for token in (first, second) if not token.isdigit()
        ]
        if len(letters) == 2 and not letters[0].runs_with(letters[1]):
            self.reject(f"{first} and {second} run over different dimensions", first)

    # ---- names -----------------------------------------------------------------------

    def reference(self, tree: Tree) -> Shape:
        found = self.scope.resolve(tree)
        if found is None:
            self.reject(
                f"{self.part.text[tree.meta.start_pos : tree.meta.end_pos]} is not "
                "declared or defined above",
                tree,
            )
        self.expression.references[id(tree)] = found
        return getattr(self, f"_shape_of_{found.kind}")(found, tree)

    scalar = power_of_name = reference

    def _shape_of_variable(self, found: Reference, tree: Tree) -> Shape:
        variable = self.scope.variables[found.name]
        if found.accent and variable.kind == "constant":
            self.reject(f"{found.name} is a constant", tree)
        if not found.indices:
            return variable.shape
        if len(found.indices) != len(variable.axes):
            wanted = (
                ("no index", "one index", "two indices")[rank]
                if (rank := len(variable.axes)) < 3
                else f"{rank} indices"
            )
            self.reject(f"{found.name} takes {wanted}; got {len(found.indices)}", tree)
        for token, side in zip(found.indices, variable.axes, strict=True):
            if not token.isdigit() and not self.index(token).runs_over(side):
                other = self.index(token).dimension
                self.reject(
                    f"{token} runs over {other} elsewhere, but over {side} here", token
                )
        return ()

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
        side = self._side(found, tree)
        return (side, side)

    def _shape_of_ones(self, found: Reference, tree: Tree) -> Shape:
        return (self._side(found, tree), "1")

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
        if tree.children[0].data == "differentiate" and self._is_product(tree):
            self.reject(
                "how far does this derivative reach? Write brackets round it", tree
            )
        if below:
            self.reject("a matrix cannot stand below a fraction bar", tree.children[1])
        return above

    def power(self, tree: Tree) -> Shape:
        base, exponent = tree.children
        if self._is_name(tree):
            return self.reference(tree)
        shape = self.visit(base)
        if exponent.data == "top":
            if (
                base.data == "reference"
                and not shape
                and self.expression.references[id(base)].indices
            ):
                self.reject(
                    "this prints like an element of the transpose: swap the indices",
                    base,
                )
            return shape[::-1]
        if shape or self.visit(exponent):
            self.reject("only numbers have powers; write a matrix product out", tree)
        return ()

    def _is_name(self, tree: Tree) -> bool:
        """Whether a power is itself a name, such as σ^2 after `let \\sigma^2 = …`."""
        base, exponent = tree.children
        if base.data != "reference" or exponent.data != "number":
            return False
        found = self.scope.resolve(tree)
        return found is not None and found.kind == "variable"

    def root(self, tree: Tree) -> Shape:
        if self.visit(tree.children[0]):
            self.reject(
                "functions take numbers; write the matrix by its elements", tree
            )
        return ()

    def apply(self, tree: Tree) -> Shape:
        function, argument = tree.children
        name, shape = str(function.children[0]), self.visit(argument)
        if name.endswith("{tr}"):
            if len(shape) != 2 or shape[0] != shape[1]:
                self.reject(
                    f"a trace needs a square matrix; this is {in_words(shape)}",
                    argument,
                )
            return ()
        if name.endswith("{diag}"):
            if len(shape) != 2 or shape[1] != "1":
                self.reject(f"diag needs a column; this is {in_words(shape)}", argument)
            return (shape[0], shape[0])
        if shape:
            self.reject(
                "functions take numbers; write the matrix by its elements", argument
            )
        return ()

    # ---- sums and products -----------------------------------------------------------

    def bracket(self, tree: Tree) -> Shape:
        return self.visit(tree.children[0])

    def sum(self, tree: Tree) -> Shape:
        return self._same_shape(
            [child for child in tree.children if isinstance(child, Tree)], "added to"
        )

    def hadamard(self, tree: Tree) -> Shape:
        return self._same_shape(tree.children, r"multiplied (\odot) by")

    def inner(self, tree: Tree) -> Shape:
        self._same_shape(tree.children, "paired with")
        return ()

    def _same_shape(self, trees: list[Tree], verb: str) -> Shape:
        first, *rest = ((tree, self.visit(tree)) for tree in trees)
        for tree, shape in rest:
            if shape != first[1]:
                message = f"{in_words(first[1])} cannot be {verb} {in_words(shape)}"
                self.misfit(message, tree, never_equal(first[1], shape))
        return first[1]

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
                self.reject(
                    "how far does this derivative reach? Write brackets round it",
                    before,
                )
            if not _APART.search(between) and reads_as_function(
                before, factor, self.scope
            ):
                name = self.part.text[before.meta.start_pos : before.meta.end_pos]
                self.reject(
                    f"{name}(…) prints like a function of what is in the bracket. Write "
                    rf"the product as {name} \, (…) or {name} \cdot (…); give the value "
                    "of a function its own name",
                    before,
                )
        shape = self.visit(tree.children[0])
        for factor in tree.children[1:]:
            other = self.visit(factor)
            if shape and other:
                if len(shape) != 2 or len(other) != 2 or shape[1] != other[0]:
                    self.misfit(
                        f"{in_words(shape)} cannot be multiplied by {in_words(other)}",
                        factor,
                        # Texts also write products of elements like this.
                        shape != other and _differ(shape[-1], other[0]),
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
            self.run_together(tokens[0], tokens[1])
        for end in upper:
            found = self.scope.resolve(end.children[0])
            if found is None or found.kind != "dimension":
                self.reject("a sum must end at a dimension", end)
            for _, index in letters:
                index.runs_over(found.name)
        shape = self.visit(body)
        del self.bound[len(self.bound) - len(letters) :]
        if sign != r"\sum" and shape:
            self.reject(f"a {sign[1:]} takes numbers", body)
        # A sum of products is the same either way.
        if sign != r"\sum" and self._is_product(body):
            self.reject(f"how far does this {sign[1:]} reach? Write brackets", body)
        self.ranges.append((self.expression, tree, letters))
        return shape

    def _is_product(self, tree: Tree) -> bool:
        """Whether a tree is factors side by side, or a division by a slash."""
        if tree.data == "fraction":
            above, below = tree.children
            return "/" in self.part.text[above.meta.end_pos : below.meta.start_pos]
        return tree.data in ("product", "hadamard")

    # ---- cases -----------------------------------------------------------------------

    def larger(self, tree: Tree) -> Shape:
        return self._compared(tree, *tree.children[1:])

    def indicator(self, tree: Tree) -> Shape:
        first, relation, second = tree.children
        assert isinstance(relation, Token)
        if relation.startswith(r"\ne"):
            self.reject(r"an indicator compares with <, >, \le or \ge", relation)
        return self._compared(tree, first, second)

    def _compared(self, tree: Tree, first: Tree, second: Tree) -> Shape:
        for side in (first, second):
            if shape := self.visit(side):
                self.reject(
                    f"only numbers can be compared; this is {in_words(shape)}", side
                )
        self.expression.comparisons.append(tree)
        return ()

    # ---- derivatives -----------------------------------------------------------------

    def partial(self, tree: Tree) -> Shape:
        above, below = tree.children
        found = None if above.data == "bracket" else self.scope.resolve(above)
        if (
            found is not None
            and found.name == LOSS
            and not (found.accent or found.indices)
        ):
            self.expression.references[id(above)] = found
            shape = self._with_respect_to(below)
            return shape[::-1] if self.scope.layout == "numerator" else shape
        shapes = self.visit(above), self._with_respect_to(below)
        if shapes == ((), ()):
            return ()
        laid_out = None
        if above.data != "bracket":
            laid_out = self.scope.laid_out(*shapes)
        return laid_out or self.reject(_NOT_PARTIAL, tree)

    def differentiate(self, tree: Tree) -> Shape:
        operator, argument = tree.children
        if self._with_respect_to(operator.children[0]) or self.visit(argument):
            self.reject(_NOT_PARTIAL, tree)
        return ()

    def _with_respect_to(self, tree: Tree) -> Shape:
        shape = self.visit(tree)
        found = self.expression.references[id(tree)]
        if (
            found.kind != "variable"
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
    if any(token.isdigit() or token.type == "WORD" for token in tokens):
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
    scope.add(
        Variable(name, shape, "defined", False, tuple(letters), definition, backward),
        line.left,
    )


def never_equal(one: Shape, other: Shape) -> bool:
    """Whether two shapes differ in any reading: both are columns, rows, or matrices.

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
    if argument.data != "bracket":
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
    return factor.data == "number"
