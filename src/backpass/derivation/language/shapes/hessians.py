"""The shapes of second derivatives."""

from __future__ import annotations

from lark import Tree

from backpass.derivation.language.names import LOSS, Shape, axes_of, in_words
from backpass.derivation.language.shapes.expectations import Expectations


class Hessians(Expectations):
    """Second derivatives of numbers by numbers and columns."""

    def second(self, tree: Tree) -> Shape:
        """Return the shape of ∂²y/∂a∂b, of ∂²y/∂x², or of ∂²y/∂x∂x^T."""
        above, *below = tree.children
        return self._by_two(tree, above, below)

    def second_of(self, tree: Tree) -> Shape:
        *below, above = tree.children
        return self._by_two(tree, above, below)

    def _by_two(self, tree: Tree, above: Tree, below: list[Tree]) -> Shape:
        self._twice_differentiated(above)
        if len(below) == 1:
            below = [self._squared(below[0])] * 2
        is_outer = below[-1].data == "transposed"
        names = [one.children[0] if one.data == "transposed" else one for one in below]
        shapes = [self._with_respect_to(one) for one in names]
        for one in names:
            self._not_by_random(tree, above, one)
        if not any(shapes):
            return ()
        if any(len(axes_of(shape)) != 1 or shape[1] != "1" for shape in shapes):
            self.reject(
                "a second derivative is by numbers, or by a column twice; write others by "
                "their elements",
                tree,
            )
        first, last = (self.expression.references[id(one)] for one in names)
        if first != last and not is_outer:
            self.reject(
                r"which of the two has the rows? Write \partial x \partial y^\top", tree
            )
        return shapes[0][0], shapes[1][0]

    def _squared(self, below: Tree) -> Tree:
        """Return x in x^2."""
        if below.data != "power_of_name" or str(below.children[1]) != "2":
            self.reject(r"a second derivative is by \partial x^2", below)
        return below.children[0]

    def _twice_differentiated(self, above: Tree) -> None:
        if self._is_loss(above):
            if LOSS not in self.scope.variables:
                self.reject(
                    "the loss is not defined here, so its second derivative is not known",
                    above,
                )
            return
        self.visit_number(above, "only a number has a second derivative")

    def nabla_second(self, tree: Tree) -> Shape:
        """Return the shape of ∇²f(x) or of ∇_x² y, the matrix of second derivatives."""
        *below, above = tree.children
        if not below:
            if above.data != "call" or len(above.children) != 2:
                self.reject(
                    r"\nabla^2 f needs f to be a function of one argument", tree
                )
            below = [above.children[1]]
            if self.visit(above):
                self.reject("only a number has a second derivative", above)
        else:
            self._twice_differentiated(above)
        shape = self._with_respect_to(below[0])
        self._not_by_random(tree, above, below[0])
        if shape and (len(axes_of(shape)) != 1 or shape[1] != "1"):
            self.reject(
                f"second derivatives are by a number or a column; this is {in_words(shape)}",
                tree,
            )
        return (shape[0], shape[0]) if shape else ()

    def second_slope(self, tree: Tree) -> Shape:
        return self.slope(tree)
