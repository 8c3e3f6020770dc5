"""Whether the shapes of an equation fit in any convention.

Texts differ in their layout of derivatives, in whether a vector is a column or a row,
and in whether symbols side by side may be a product of elements. A convention holds for
a whole equation. If its shapes fit in none, no reading makes it right.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache

from lark import Token, Tree

from backpass.derivation.language.analysis import Analysis
from backpass.derivation.language.names import (
    Expression,
    Reference,
    Scope,
    Shape,
    axes_of,
    differ,
)
from backpass.derivation.language.parse import (
    Misfit,
    NotANumber,
    Part,
    Unreadable,
    parse,
)


@dataclass(frozen=True)
class Convention:
    """What a text may mean by shapes. Each field says whether something is
    transposed."""

    vectors: bool = False  # names that are declared as columns
    gradients: bool = False  # the derivative of a number by an array
    nablas: bool = False  # such a derivative, written with \nabla
    jacobians: bool = False  # the derivative of a column by a column
    bars: bool = False  # gradients written with a bar
    results: bool = False  # names that are defined by one of these


class _Read(Analysis):
    """Analyses expressions in a convention.

    Arrays of matching lengths may be added, or multiplied element by element.
    """

    convention = Convention()
    _of_matrices = False  # whether the product that is read has a transpose

    def reference(self, tree: Tree) -> Shape:
        shape = super().reference(tree)
        found = self.expression.references[id(tree)]
        if len(shape) != 2 or found.kind not in ("variable", "ones"):
            return shape
        turned = self.convention.vectors and "1" in shape
        if _has_bar(found):
            turned ^= self.convention.bars
        elif self.convention.results and _is_result(self.scope, found):
            turned = not turned
        return shape[::-1] if turned else shape

    scalar = reference

    def partial(self, tree: Tree) -> Shape:
        above, below = tree.children
        of = () if self._is_loss(above) else self.visit(above)
        by = self._with_respect_to(below)
        if not of:
            return by[::-1] if self.convention.gradients else by
        if above.data == "bracket":
            return super().partial(tree)
        return self._jacobian(of, by) or super().partial(tree)

    def jacobian(self, tree: Tree) -> Shape:
        shapes = self._function_at(tree, r"\partial f(x)")
        if shapes == ((), ()):
            return ()
        return self._jacobian(*shapes) or super().jacobian(tree)

    def _jacobian(self, of: Shape, by: Shape) -> Shape:
        """Return the shape of a derivative by a column or a row; () if it has none."""
        if any(len(axes_of(shape)) > 1 for shape in (of, by)):
            return ()
        sides = tuple((*axes_of(shape), "1")[0] for shape in (of, by))
        return sides[::-1] if self.convention.jacobians else sides

    def nabla(self, tree: Tree) -> Shape:
        shape = super().nabla(tree)
        return shape[::-1] if self.convention.nablas else shape

    def nabla_of(self, tree: Tree) -> Shape:
        shape = super().nabla_of(tree)
        return shape[::-1] if self.convention.nablas else shape

    def nabla_second(self, tree: Tree) -> Shape:
        """Reject \\nabla^2, which may be the Laplacian."""
        self.reject("a matrix, or its trace?", tree)

    def apply(self, tree: Tree) -> Shape:
        function, argument = tree.children
        if str(function.children[0]).endswith("{diag}"):
            sides = axes_of(self.visit(argument))
            if len(sides) == 1:
                return sides * 2
        return super().apply(tree)

    def unlike(self, one: Shape, other: Shape, tree: Tree, verb: str) -> Shape:
        return self._together(one, other) or super().unlike(one, other, tree, verb)

    def product(self, tree: Tree) -> Shape:
        before = self._of_matrices
        self._of_matrices = any(_is_transposed(one) for one in tree.children)
        try:
            return super().product(tree)
        finally:
            self._of_matrices = before

    def unmultiplied(self, one: Shape, other: Shape, tree: Tree) -> Shape:
        if len(one) == len(other) == 2 and not differ(one[1], other[0]):
            if "1" not in (one[1], other[0]):
                return one[0], other[1]  # a length that is a number may be the other
        # A transpose shows that a product is one of matrices.
        spreads = len(axes_of(one)) != len(axes_of(other))
        if self._of_matrices and spreads:
            return super().unmultiplied(one, other, tree)
        return self._together(one, other) or super().unmultiplied(one, other, tree)

    def _together(self, one: Shape, other: Shape) -> Shape:
        """Return the shape of two arrays taken together element by element, where a
        text may mean that; () if it cannot."""
        if not one or not other:
            return one or other
        if len(one) != 2 or len(other) != 2:
            raise Unreadable("arrays with more axes may be taken together in many ways")
        first, second = axes_of(one), axes_of(other)
        if len(first) == len(second) == 1:
            return one if not differ(first[0], second[0]) else ()
        for vector, matrix in ((first, other), (second, one)):
            # A vector beside a matrix may be meant for each of its rows or columns.
            if len(vector) == 1:
                fits = any(not differ(vector[0], side) for side in matrix)
                return matrix if fits else ()
        pairs = zip(one, other, strict=True)
        return one if not any(differ(*pair) for pair in pairs) else ()


def _is_transposed(factor: Tree) -> bool:
    return factor.data == "power" and factor.children[1].data == "top"


class Square(Analysis):
    """Analyses expressions as if all dimensions had the same length."""

    def unlike_ranges(self, token: Token, side: str, diagonal: bool) -> None:
        pass

    def unlike_together(self, message: str, where: Token) -> None:
        pass


@cache
def _in(convention: Convention) -> type[_Read]:
    """Return the analysis in a convention."""
    return type("Read", (_Read,), {"convention": convention})


def fit(
    scope: Scope, parts: Sequence[Part], conditions: Part | None, is_equation: bool
) -> bool:
    """Whether shapes fit in a convention, as far as they can be read.

    The members of an equation before the last one are right, so a convention in which
    they do not fit each other is not that of the text.
    """
    fits_above: set[bool] = set()
    for number, convention in enumerate(_conventions(scope, parts)):
        try:
            expressions = _in(convention)(scope).run([*parts], conditions)
        except Misfit:
            fits_above.add(True)
            continue
        except NotANumber:
            if number == 0:
                return True  # not an error of the convention's own
            continue
        except Unreadable:
            if number == 0 or not (
                is_equation and _is_unread(scope, convention, parts[:-1], conditions)
            ):
                return True
            continue
        if not is_equation:
            return True
        pairs = itertools.pairwise(expressions)
        *above, here = (_may_equal(scope, *pair) for pair in pairs)
        if all(above) and here:
            return True
        fits_above.add(all(above))
    return fits_above == {False}


def _is_unread(
    scope: Scope,
    convention: Convention,
    parts: Sequence[Part],
    conditions: Part | None,
) -> bool:
    """Whether the members that are right have no meaning in a convention."""
    try:
        _in(convention)(scope).run([*parts], conditions)
    except Misfit:
        return False
    except Unreadable:
        return True
    return False


def _conventions(scope: Scope, parts: Sequence[Part]) -> Iterator[Convention]:
    """Yield the conventions that a text may follow, with the usual one first."""
    free = set().union(*(_kinds(scope, parse(part)) for part in parts))
    if scope.layout:
        free -= {"vectors"}
    if scope.layout == "denominator":
        free -= {"gradients", "nablas"}
    if scope.layout == "numerator":
        free -= {"jacobians"}
    if any(name.startswith(r"\bar") for name in scope.variables):
        free -= {"bars"}
    # The usual one turns what the layout turns.
    usual = {
        "gradients": scope.layout == "numerator",
        "jacobians": scope.layout == "denominator",
    }
    names = [field.name for field in fields(Convention)]
    choices = []
    for name in names:
        first = usual.get(name, False)
        choices.append((first, not first) if name in free else (first,))
    for chosen in itertools.product(*choices):
        convention = Convention(*chosen)
        # No text has gradients as rows and the Jacobians that are their transposes.
        if not (convention.gradients and convention.jacobians):
            yield convention


def _kinds(scope: Scope, tree: Tree, within: tuple[str, ...] = ()) -> set[str]:
    """Return the fields of a convention that matter for an expression in the
    definitions of the names ``within``."""
    found: set[str] = set()
    for node in tree.iter_subtrees():
        found |= _OF_NODES.get(node.data, set())
        if node.data not in ("reference", "power_of_name", "power", "scalar"):
            continue
        reference = scope.resolve(node)
        if reference is None or reference.kind != "variable":
            continue
        if _has_bar(reference):
            found.add("bars")
        if "1" in scope.variables[reference.name].shape:
            found.add("vectors")
        if reference.name not in within and _is_result(scope, reference, within):
            found.add("results")
    return found


_OF_NODES = {
    "partial": {"gradients", "jacobians"},
    "jacobian": {"jacobians"},
    "nabla": {"nablas"},
    "nabla_of": {"nablas"},
}


def _has_bar(reference: Reference) -> bool:
    return reference.accent == "bar" or reference.name.startswith(r"\bar")


def _is_result(
    scope: Scope, reference: Reference, within: tuple[str, ...] = ()
) -> bool:
    """Whether the definition of a name has derivatives whose shapes are a
    convention."""
    definition = scope.variables[reference.name].definition
    if definition is None or not definition.shape:
        return False
    within = (*within, reference.name)
    return bool(_kinds(scope, definition.tree, within) - {"vectors"})


def _is_computed(scope: Scope, number: Expression) -> bool:
    """Whether a number is computed from arrays where it stands: a sum, a norm, or a
    product of arrays. Texts also write an element for its array."""
    return not number.free and any(
        reference.kind == "variable" and scope.variables[reference.name].shape
        for reference in number.references.values()
    )


def _may_be_applied(expression: Expression) -> bool:
    """Whether a derivative stands before a bracket, to which it may be applied."""
    return any(
        before.data in ("partial", "jacobian", "nabla") and factor.data == "bracket"
        for product in expression.tree.find_data("product")
        for before, factor in itertools.pairwise(product.children)
    )


def _may_equal(scope: Scope, above: Expression, here: Expression) -> bool:
    """Whether two shapes may be the same. Texts also set an array equal to one number,
    as in x = c, and do not always tell a column from a row."""
    one, other = above.shape, here.shape
    if not one or not other:
        number, array = (here, above) if one else (above, here)
        if not (one or other) or _may_be_applied(array):
            return True
        if array.tree.data in ("reference", "scalar", "power_of_name"):
            return True  # another name, written like that of the array
        return not _is_computed(scope, number)
    if len(one) != 2 or len(other) != 2:
        return True
    first, second = axes_of(one), axes_of(other)
    if len(first) == len(second) == 1:
        return not differ(first[0], second[0])
    return not any(
        a != b and ("1" in (a, b) or differ(a, b))
        for a, b in zip(one, other, strict=True)
    )
