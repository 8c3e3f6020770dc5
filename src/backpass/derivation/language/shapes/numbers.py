"""The shapes of numbers, fractions, powers, and roots."""

from __future__ import annotations

from lark import Tree

from backpass.derivation.language.names import Reference, Shape, in_words
from backpass.derivation.language.shapes.names import Names, is_square
from backpass.derivation.language.written import canonical


class Numbers(Names):
    """Numbers, fractions, powers, and roots."""

    def number(self, tree: Tree) -> Shape:
        return ()

    def fraction(self, tree: Tree) -> Shape:
        above, below = map(self.visit, tree.children)
        first = tree.children[0]
        if self.is_product(tree) and (
            first.data == "differentiate" or self.may_reach(first)
        ):
            self.reject_reach(tree)
        if below:
            self.not_a_number(
                "a matrix cannot stand below a fraction bar", tree.children[1]
            )
        return above

    def root(self, tree: Tree) -> Shape:
        if self.visit(tree.children[0]):
            self.not_a_number(
                "functions take numbers; write the matrix by its elements", tree
            )
        return ()

    def _is_exponential(self, base: Tree, exponent: Tree) -> bool:
        """Whether e is Euler's number in e^x, beside a name e; if so, record it."""
        is_e = base.data in ("scalar", "reference") and canonical(base) == "e"
        if not is_e or "e" not in self.scope.variables:
            return False
        for node in exponent.iter_subtrees():
            if node.data in ("reference", "scalar"):
                found = self.parameter(node) or self.scope.resolve(node)
                if found and found.kind in ("variable", "parameter"):
                    euler = Reference("euler", "e")
                    self.expression.references[id(base)] = euler
                    return True
        return False

    def power(self, tree: Tree) -> Shape:
        base, exponent = tree.children
        if self._is_name(tree):
            return self.reference(tree)
        if named := self._transposed_name(tree):
            shape = self.reference(named)
            references = self.expression.references
            references[id(tree)] = references.pop(id(named))
            return shape[::-1]
        if exponent.data in ("layer", "sign"):
            name = self.part.written(tree)
            self.reject(f"{name} is not declared or defined above", tree)
        shape = () if self._is_exponential(base, exponent) else self.visit(base)
        if exponent.data != "top" and self.may_reach(base):
            self.reject_reach(base)
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
        if shape and _is_inverse(exponent):
            if len(shape) != 2 or shape[0] != shape[1]:
                self.reject(
                    f"only a square matrix has an inverse; this is {in_words(shape)}",
                    tree,
                )
            return shape
        if exponent.data == "inverse_top":
            self.reject("only a matrix has a transpose of its inverse", tree)
        is_negative = exponent.data == "sum" and exponent.children[0] == "-"
        if is_negative and self._is_of_square(base):
            self.reject(
                "an element of the inverse, or the inverse of the element? Write the "
                r"latter as \frac{1}{…}",
                tree,
            )
        if shape and exponent == Tree("scalar", ["T"]):
            self.reject(
                r"T is a dimension: write the transpose as ^\top, or say: read ^T as "
                r"^\top",
                tree,
            )
        if _is_count(exponent) and is_square(shape):
            return shape
        if shape or self.visit(exponent):
            self.not_a_number(
                "only numbers and square matrices have powers; write the product out, or "
                r"a power of each element as x^{\odot 2}",
                tree,
            )
        return ()

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

    def _transposed_name(self, tree: Tree) -> Tree | None:
        """Return the name W^Q in W^{Q\\top} or W^{Q^\\top}; None if a power is not the
        transpose of a name."""
        base, exponent = tree.children
        letter = Tree("scalar", exponent.children[:1], exponent.meta)
        named = Tree("power", [base, letter], tree.meta)
        if exponent.data == "letter_and_top":
            return named
        is_top = exponent.data == "power" and exponent.children[1].data == "top"
        return named if is_top and self._is_name(named) else None

    def _is_name(self, tree: Tree) -> bool:
        """Whether a power is itself a name, such as σ^2 after `let \\sigma^2 = …`, or
        W^Q."""
        base, exponent = tree.children
        if base.data != "reference" or exponent.data not in (
            "number",
            "scalar",
            "layer",
            "sign",
            "reference",  # a^{l}
            "sum",  # a^{l-1}
            "bracket",  # a^{(l-1)}
        ):
            return False
        found = self.scope.resolve(tree)
        return found is not None and found.kind == "variable"


def _is_count(exponent: Tree) -> bool:
    """Whether an exponent is 2, 3, …"""
    return exponent.data == "number" and str(exponent.children[0]).isdigit() and (
        int(str(exponent.children[0])) > 1
    )  # fmt: skip


def _is_inverse(exponent: Tree) -> bool:
    """Whether an exponent is -1, or that of the transpose of an inverse."""
    if exponent.data == "sum":
        sign, *rest = exponent.children
        return sign == "-" and len(rest) == 1 and rest[0] == Tree("number", ["1"])
    return exponent.data == "inverse_top" and exponent.children[0] == "-"
