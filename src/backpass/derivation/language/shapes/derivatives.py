"""The shapes of derivatives."""

from __future__ import annotations

from lark import Tree

from backpass.derivation.language.names import (
    LOSS,
    Shape,
    axes_of,
    in_words,
    never_equal,
)
from backpass.derivation.language.parse import Unreadable
from backpass.derivation.language.shapes.calls import Calls

_NOT_PARTIAL = (
    "a partial derivative is of a number with respect to a number; "
    "write the matrices by their elements, or declare layout numerator or denominator "
    "for derivatives of columns"
)


class Derivatives(Calls):
    """Derivatives of names and of functions, and norms."""

    def partial(self, tree: Tree) -> Shape:
        above, below = tree.children
        is_numerator = self.scope.layout == "numerator"
        of = () if self._is_loss(above) else self.visit(above)
        by = self._with_respect_to(below)
        if not of:  # of a number: the shape of its variable
            return by[::-1] if is_numerator else by
        return self.scope.laid_out(of, by) or self.reject(_NOT_PARTIAL, tree)

    def _is_loss(self, tree: Tree) -> bool:
        """Whether a tree is 𝓛, which may occur alone only in a derivative."""
        is_name = tree.data in ("reference", "power_of_name")
        found = self.scope.resolve(tree) if is_name else None
        if found is None or found.name != LOSS or found.accent or found.indices:
            return False
        self.expression.references[id(tree)] = found
        return True

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

    def change(self, tree: Tree) -> Shape:
        """Return the shape of d(A B), the differential of an expression: that of the
        expression."""
        for node in tree.children[0].iter_subtrees():
            if node.data == "change" or node.children[:1] == [r"\dot"]:
                self.reject("a differential of a differential is not read", tree)
        return self.visit(tree.children[0])

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
        if call.data != "apply" and (call.data != "call" or len(call.children) != 2):
            self.reject(f"{written} needs f to be a function of one argument", tree)
        return self.visit(call), self.visit(call.children[1])

    def nabla_of(self, tree: Tree) -> Shape:
        """Return the shape of ∇_x y, the gradient of a number by x: that of x."""
        below, above = tree.children
        self.visit_number(above, "only a number has a gradient")
        return self._with_respect_to(below)

    def at_point(self, tree: Tree) -> Shape:
        """Return the shape of what is evaluated where inputs have given values."""
        above, *places = tree.children
        shape = self.visit(above)
        for name, value in zip(places[::2], places[1::2], strict=True):
            of, other = self._with_respect_to(name), self.visit(value)
            found = self.scope.variables[self.expression.references[id(name)].name]
            if found.kind == "defined":
                self.reject(
                    "only an input can have a value at a point, not a defined name",
                    name,
                )
            if found.name in self.scope.chances.random:
                self.reject("a random name has no given value", name)
            if other and other != of:
                self.misfit(f"{in_words(of)} cannot be {in_words(other)}", value)
        return shape

    def slope(self, tree: Tree) -> Shape:
        """Return the shape of f'(x), the derivative of f at x or at its elements."""
        name, *_, bracket = tree.children
        function, shape = self.find(name), self.visit(bracket)
        if function is None or len(function.parameters) != 1 or function.letters:
            self.reject("a prime is read after a function of a number", tree)
        try:
            call = self.of_elements(function, shape, tree)
        except Unreadable as error:
            self.reject(error.message, tree)
        self.expression.calls[id(tree)] = (call,)
        return shape

    def norm(self, tree: Tree) -> Shape:
        array, *kind = tree.children
        rank = len(axes_of(self.visit(array)))
        if kind == ["1"] and rank == 1:
            self.expression.comparisons.append(tree)
        elif rank == 0 or (rank > 1 and kind != ["F"]):
            self.reject(
                r"a norm takes a column or a row; write \lVert A \rVert_F for a matrix",
                tree,
            )
        return ()

    def directional(self, tree: Tree) -> Shape:
        """Return the shape of ∂Y/∂X (V), the derivative of Y in the direction V."""
        above, below, direction = tree.children
        shape = () if self._is_loss(above) else self.visit(above)
        self._has_shape(direction, self._with_respect_to(below))
        return shape

    def _has_shape(self, direction: Tree, shape: Shape) -> None:
        if (other := self.visit(direction)) != shape:
            message = (
                f"a derivative with respect to {in_words(shape)} cannot be applied to "
                f"{in_words(other)}"
            )
            if never_equal(shape, other):
                self.misfit(message, direction)
            self.reject(message, direction)

    def differentiate(self, tree: Tree) -> Shape:
        operator, argument = tree.children
        by, of = self._with_respect_to(operator.children[0]), self.visit(argument)
        if (by or of) and not self.scope.layout:
            self.reject(_NOT_PARTIAL, tree)
        if not of:
            return by[::-1] if self.scope.layout == "numerator" else by
        return self.scope.laid_out(of, by) or self.reject(_NOT_PARTIAL, tree)

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
