"""The values of names, and of elements of arrays."""

from __future__ import annotations

import numpy as np
import sympy
from lark import Token, Tree

from backpass.derivation.language.calculus import Value
from backpass.derivation.language.indices import letter_of
from backpass.derivation.language.names import Reference, Variable, sliced
from backpass.derivation.language.parse import tokens_of
from backpass.derivation.language.values.arrays import raised
from backpass.derivation.language.values.visitor import Visitor


class Names(Visitor):
    """Names, with or without indices."""

    def reference(self, tree: Tree) -> Value:
        found = self.current.references[id(tree)]
        return getattr(self, f"_{found.kind}")(found)

    scalar = reference

    def power_of_name(self, tree: Tree) -> Value:
        if id(tree) in self.current.references:
            return self.reference(tree)
        base, exponent = tree.children
        return raised(self.visit(base), int(str(exponent)))

    def element(self, tree: Tree) -> Value:
        array, subscript = tree.children
        name = self.current.part.written(array)
        return self._element(name, self.visit(array), tokens_of(subscript))

    def _variable(self, found: Reference) -> Value:
        variable = self.scope.variables[found.name]

        def one(indices: tuple[int, ...]) -> sympy.Expr:
            if found.accent == "bar":
                return self.gradient(variable, indices)
            if found.accent == "dot":
                return self.calculus.differential(variable, indices, self.frame.still)
            return self.calculus.element(variable, indices)

        if not found.indices:
            return self.calculus.array(variable, one)
        if (beside := self._beside(found, variable)) is not None:
            return beside
        axes, rest = sliced(variable.axes, found.indices)
        tokens = [token for token in found.indices if token.type != "ALL"]
        fixed = self._inside(found.name, tokens, axes)
        if len(fixed) == len(variable.axes):
            return one(fixed)
        values = np.empty([self.calculus.size(side) for side in rest], dtype=object)
        for more in np.ndindex(*values.shape):
            first = found.indices[0].type == "ALL"
            values[more] = one((*more, *fixed) if first else (*fixed, *more))
        shape = self.scope.slice_of(found.name, found.indices)
        return values.reshape([self.calculus.size(side) for side in shape])

    def gradient(self, variable: Variable, indices: tuple[int, ...]) -> sympy.Expr:
        """Return the gradient of the loss with respect to an element."""
        return self.calculus.gradient(variable, indices)

    def _beside(self, found: Reference, variable: Variable) -> Value | None:
        """Return what stands before or behind a sequence, if that is declared or
        assumed to be 0; None inside the sequence."""
        first, *rest = found.indices
        if first.type == "ALL" or not variable.axes:
            return None
        side = variable.axes[0]
        place, size = self.at(first), self.calculus.size(side)
        if 0 <= place < size or place not in (-1, size):
            return None
        label = "0" if place < 0 else f"{side}+1"
        name = f"{variable.name}_{{{label}}}"
        if other := self.scope.variables.get(name):
            if found.accent and other.kind == "constant":
                self.reject(f"{name} is a constant", first)
            return self._variable(
                Reference("variable", name, found.accent, tuple(rest))
            )
        if place == size and (found.accent, variable.name, side) in self.scope.zeros:
            if len(found.indices) == len(variable.axes):
                return sympy.S.Zero
            shape = self.scope.slice_of(variable.name, found.indices)
            sizes = [self.calculus.size(one) for one in shape]
            return np.full(sizes, sympy.S.Zero, dtype=object)
        written = (
            rf"\{found.accent}{{{variable.name}}}" if found.accent else variable.name
        )
        if not first.isdigit():
            then = f"no {written}_{{{label}}} is declared"
            if place == size:
                then = f"if it is 0, say: assume {written}_{{{label}}} = 0"
            self.reject(
                f"{written} has no element {first} for {side} = {size} and {first} = "
                f"{place + 1}: state a condition such as {letter_of(first)} "
                f"{'> 1' if place < 0 else f'< {side}'}; {then}",
                first,
            )
        return None

    def _parameter(self, found: Reference) -> Value:
        value = self.frame.parameters[found.name]
        return self._element(found.name, value, found.indices)

    def _element(
        self, name: str, value: Value, indices: tuple[Token, ...] | list[Token]
    ) -> Value:
        """Return an element of an array, or the whole array without indices."""
        if not indices:
            return value
        column = np.squeeze(value)
        places = self._inside(name, indices, [str(size) for size in column.shape])
        return column[places]

    def _inside(
        self,
        name: str,
        indices: tuple[Token, ...] | list[Token],
        axes: tuple[str, ...] | list[str],
    ) -> tuple[int, ...]:
        places = tuple(map(self.at, indices))
        for token, place, side in zip(indices, places, axes, strict=True):
            if not 0 <= place < self.calculus.size(side):
                size = self.calculus.size(side)
                message = f"{name} has no element {token} for {side} = {size}"
                if token.isdigit() and place >= size:
                    message += "; give larger sizes"
                elif not token.isdigit():
                    message += f" and {token} = {place + 1}: state a condition"
                self.reject(message, token)
        return places

    def _dimension(self, found: Reference) -> Value:
        return sympy.Integer(self.sizes[found.name])

    def _index(self, found: Reference) -> Value:
        return sympy.Integer(self.frame.indices[found.name] + 1)

    def _euler(self, found: Reference) -> Value:
        return sympy.E

    def _pi(self, found: Reference) -> Value:
        return sympy.pi

    def _delta(self, found: Reference) -> Value:
        first, second = map(self.at, found.indices)
        return sympy.Integer(first == second)

    def _identity(self, found: Reference) -> Value:
        size = self.calculus.size("".join(found.indices))
        return np.array(sympy.eye(size), dtype=object)

    def _ones(self, found: Reference) -> Value:
        size = self.calculus.size("".join(found.indices))
        return np.full((size, 1), sympy.S.One, dtype=object)

    def _loss(self, found: Reference) -> Value:
        """Return \\dot{\\mathcal{L}}. Without the dot, 𝓛 occurs only in partial
        derivatives."""
        return sympy.Add(
            *(
                self.calculus.cotangent(output, at)
                * self.calculus.differential(output, at, self.frame.still)
                for output in self.calculus.outputs
                for at in self.calculus.positions(output)
            )
        )
