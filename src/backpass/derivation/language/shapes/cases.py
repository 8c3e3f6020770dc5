"""The shapes of what depends on a comparison."""

from __future__ import annotations

from lark import Token, Tree

from backpass.derivation.language.names import (
    Shape,
    in_words,
)
from backpass.derivation.language.shapes.names import Names
from backpass.derivation.language.written import (
    subscripts_of,
)


class Cases(Names):
    """Maxima, indicators, and cases."""

    def extreme(self, tree: Tree) -> Shape:
        return self._compared(tree, *tree.children[1:])

    def absolute(self, tree: Tree) -> Shape:
        """Return the shape of |x|, which must be a number."""
        self.visit_number(
            tree.children[0],
            "bars are the absolute value of a number; write a norm as \\lVert x \\rVert, and "
            "a determinant otherwise",
        )
        self.expression.comparisons.append(tree)
        return ()

    def indicator(self, tree: Tree) -> Shape:
        first, relation, second = tree.children
        assert isinstance(relation, Token)
        if relation.startswith(r"\ne"):
            self.reject(r"an indicator compares with <, >, \le or \ge", relation)
        return self._compared(tree, first, second)

    def cases(self, tree: Tree) -> Shape:
        for case in tree.children:
            value, *comparisons = case.children
            self.visit_number(value, "a case must be a number")
            for comparison in comparisons:
                if isinstance(comparison.children[0], Token):
                    if case is not tree.children[-1] or len(comparisons) > 1:
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
        known = self.parameter(side) or self.scope.resolve(side) if is_letter else True
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
