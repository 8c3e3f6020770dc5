"""The shapes of names, and of elements of arrays."""

from __future__ import annotations

from lark import Token, Tree

from backpass.derivation.language.indices import Index, letter_of
from backpass.derivation.language.names import (
    Reference,
    Shape,
    axes_of,
    differ,
    sliced,
)
from backpass.derivation.language.parse import Misfit, span_of, tokens_of
from backpass.derivation.language.shapes.visitor import Visitor
from backpass.derivation.language.written import (
    accent_and_name,
    subscripts_of,
)


def is_square(shape: Shape) -> bool:
    """Whether a shape is that of a square matrix, so that A^2 is A A."""
    return len(shape) == 2 and shape[0] == shape[1]


class Names(Visitor):
    """Names, with or without indices."""

    def reference(self, tree: Tree) -> Shape:
        found = self.parameter(tree) or self.scope.resolve(tree) or self._number(tree)
        if found is None:
            name = self.part.written(tree)
            if self.find(tree):
                self.reject(f"{name} is a function: write its value, {name}(…)", tree)
            self.reject(f"{name} is not declared or defined above", tree)
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
        shape = self.visit(base)
        if shape and not (is_square(shape) and int(str(exponent)) > 1):
            self.not_a_number("only numbers and square matrices have powers", tree)
        return shape

    def element(self, tree: Tree) -> Shape:
        array, subscript = tree.children
        name = self.part.written(array)
        indices = tokens_of(subscript)
        if any(token.type == "WORD" for token in indices):
            self.reject("expected indices of an element; got a word", subscript)
        self._reject_rows(indices)
        shape = self.visit(array)
        self.elements[id(tree)] = axes_of(shape)
        return self._element(name, shape, tuple(indices), tree)

    def parameter(self, tree: Tree) -> Reference | None:
        accent, name = accent_and_name(tree)
        if accent or name not in self.parameters:
            return None
        return Reference("parameter", name, "", tuple(subscripts_of(tree)))

    def _number(self, tree: Tree) -> Reference | None:
        """Return the index of a sum, or one with a declared range, as a number."""
        tokens = list(tree.scan_values(lambda one: True))
        if len(tokens) != 1 or tokens[0].type not in ("LETTER", "GREEK"):
            return None
        letter = str(tokens[0])
        if letter not in self.scope.times and letter not in dict(self.bound):
            return None
        self.index(tokens[0])
        return Reference("index", letter)

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
            written = self.part.written(tree)
            self.reject(
                f"is {written} a row or a column? Declare its shape: slice "
                rf"{written} \in \mathbb{{R}}^…",
                tree,
            )
        if whole:
            axes = sliced(axes, indices)[0]
            indices = tuple(token for token in indices if token.type != "ALL")
        if len(indices) != len(axes):
            words = ("no index", "one index", "two indices")
            wanted = dict(enumerate(words)).get(len(axes), f"{len(axes)} indices")
            self.reject(f"{name} takes {wanted}; got {len(indices)}", tree)
        for token, side in zip(indices, axes, strict=True):
            if not side:
                self._run_over_promised(name, token)
                continue
            if self.is_last(token):
                if side != (last := letter_of(token)):
                    self.reject(f"{last} is a dimension, but not that of this index, "
                                f"{side}", token)  # fmt: skip
            elif not token.isdigit() and not self.index(token).runs_over(side):
                self.unlike_ranges(token, side, [*indices].count(token) > 1)
        return whole

    def unlike_ranges(self, token: Token, side: str, diagonal: bool) -> None:
        """Reject an index that runs over one dimension here, and another elsewhere."""
        other = self.index(token).dimension or ""
        letter = "the index of the dots" if token.startswith("#") else str(token)
        message = f"{letter} runs over {other} elsewhere, but over {side} here"
        if not differ(other, side):
            self.reject(message, token)
        # A_{ii} may be read as the diagonal of a matrix that is not square.
        raise Misfit(message, self.part, span_of(token)[0], True, diagonal)

    def _run_over_promised(self, name: str, token: Token) -> None:
        """Let an index run over the dimension, unknown yet, of a name defined below."""
        index = self.promised.setdefault(name, Index())
        if self.is_last(token):
            fits = index.runs_over(letter_of(token))
        else:
            fits = token.isdigit() or self.index(token).runs_with(index)
        if not fits:
            self.reject(f"{token} runs over {self.index(token).dimension} elsewhere, "
                        f"but over {index.dimension} here", token)  # fmt: skip

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
        if variable.kind == "promised" and not self.is_definition:
            self.reject(f"{found.name} is not defined yet", tree)
        whole = self.scope.slice_of(found.name, found.indices)
        if variable.kind == "promised" and found.indices == ():
            self.reject(f"{found.name} needs its index here", tree)
        return self._element(found.name, variable.shape, found.indices, tree, whole)

    def _shape_of_constant(self, found: Reference, tree: Tree) -> Shape:
        if found.indices:
            self.reject(f"{found.name} takes no index", tree)
        return ()

    _shape_of_dimension = _shape_of_euler = _shape_of_pi = _shape_of_constant
    _shape_of_index = _shape_of_constant

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
        side = self._side(found, tree) if found.indices else self.unknown(tree)
        return (side, side)

    def _shape_of_ones(self, found: Reference, tree: Tree) -> Shape:
        return self._side(found, tree) if found.indices else self.unknown(tree), "1"

    def _side(self, found: Reference, tree: Tree) -> str:
        side = "".join(found.indices)
        if side not in self.scope.dimensions:
            self.reject(
                f"{found.name} needs its size as a subscript, one of "
                f"{', '.join(self.scope.dimensions)}",
                tree,
            )
        return side
