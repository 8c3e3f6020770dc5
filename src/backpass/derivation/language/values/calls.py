"""The values of functions."""

from __future__ import annotations

import numpy as np
import sympy
from lark import Tree

from backpass.derivation.language.calculus import Value
from backpass.derivation.language.names import Call
from backpass.derivation.language.parse import Undefined, Unreadable, tokens_of
from backpass.derivation.language.values.arrays import (
    determinant,
    each,
    each_in_turn,
)
from backpass.derivation.language.values.visitor import Visitor
from backpass.expressions import exact

_FUNCTIONS = {
    r"\exp": sympy.exp, r"\log": sympy.log, r"\ln": sympy.log, r"\tanh": sympy.tanh,
    r"\sin": sympy.sin, r"\cos": sympy.cos, r"\operatorname{erf}": sympy.erf,
    r"\sinh": lambda v: (sympy.exp(v) - sympy.exp(-v)) / 2,
    r"\cosh": lambda v: (sympy.exp(v) + sympy.exp(-v)) / 2,
    r"\tan": lambda v: sympy.sin(v) / sympy.cos(v),
} | {
    rf"\{word}{{sech}}": lambda v: 2 / (sympy.exp(v) + sympy.exp(-v))
    for word in ("operatorname", "text", "mathrm")
}  # fmt: skip
_LOGARITHMS = (r"\log", r"\ln")
_DETERMINANTS = (r"\det", r"\operatorname{det}")


class Calls(Visitor):
    """The values of functions, defined or built in."""

    def call(self, tree: Tree) -> Value:
        values = [self.visit(argument) for argument in tree.children[1:]]
        return self.value_of(tree, values)

    def apply(self, tree: Tree) -> Value:
        function, argument = tree.children
        if str(function.children[0]) in _DETERMINANTS:
            found = self._determinant(argument)
            return sympy.S.Zero if self.is_zero(found) else found
        value = self.visit(argument)
        if str(function.children[0]) in _LOGARITHMS and np.any(value == 0):
            self.undefined("this is the logarithm of 0", argument)
        return self.applied_to(function, value)

    def _determinant(self, tree: Tree) -> Value:
        """Return a determinant; that of a product of square matrices is the product of
        theirs, so that its logarithm is a sum."""
        if tree.data == "bracket":
            return self._determinant(tree.children[0])
        if tree.data == "power":
            base, exponent = tree.children
            if exponent.data == "top":
                return self._determinant(base)
            value = self.visit(tree)
            is_array = isinstance(value, np.ndarray)
            # The only other power of an array, apart from those of its elements.
            is_inverse = exponent.data in ("sum", "inverse_top")
            return 1 / self._determinant(base) if is_array and is_inverse else (
                determinant(value)
            )  # fmt: skip
        if tree.data == "product":
            values = [self.visit(factor) for factor in tree.children]
            sizes = {np.shape(value) for value in values if np.ndim(value)}
            if len(sizes) == 1 and len({*next(iter(sizes))}) == 1:
                ((size, _),) = sizes
                return sympy.Mul(
                    *(determinant(v) if np.ndim(v) else v**size for v in values)
                )
        return determinant(self.visit(tree))

    def value_of(self, tree: Tree, values: list[Value]) -> Value:
        """Return the value of a call, given its arguments."""
        first, *others = [
            self._result(call, values) for call in self.current.calls[id(tree)]
        ]
        for other in others:
            if not self._are_equal(first, other):
                self.reject(
                    "a function of this matrix, or of each of its elements? Write its "
                    "value by indices",
                    tree,
                )
        return first

    def _result(self, call: Call, values: list[Value]) -> Value:
        if call.elementwise:
            return each_in_turn(values[0], lambda v, k: self.called(call, [v], k))
        if call.rows:
            rows = [
                self.called(call, [row[None, :]], number)
                for number, row in enumerate(values[0])
            ]
            return np.concatenate(rows)
        return self.called(call, values)

    def _are_equal(self, first: Value, second: Value) -> bool:
        pairs = zip(np.ravel(first), np.ravel(second), strict=True)
        try:
            return all(self.calculus.definitions.equal(*pair) for pair in pairs)
        except exact.NotRepresentable:
            return False

    def called(self, call: Call, values: list[Value], element: int = 0) -> Value:
        try:
            return self._value_at(call, values, element)
        except Unreadable as error:
            kind = Undefined if isinstance(error, Undefined) else Unreadable
            raise kind(error.message, *call.place) from None

    def _value_at(self, call: Call, values: list[Value], element: int) -> Value:
        function, still = call.function, self.frame.still
        path = (*self.frame.path, call.place)
        parameters = dict(zip(function.parameters, values, strict=True))
        if not function.letters:
            return self.value(call.body, {"": element}, still, parameters, path)
        sizes = [self.calculus.size(side) for side in call.sides]
        array = np.empty(sizes, dtype=object)
        for places in np.ndindex(*sizes):
            indices = dict(zip(function.letters, places, strict=True)) | (
                {"": element} if call.rows else {}
            )
            array[places] = self.value(call.body, indices, still, parameters, path)
        if call.is_row:
            return array[None, :]
        return array[:, None] if len(sizes) == 1 else array

    def applied_to(self, function: Tree, value: Value) -> Value:
        name = str(function.children[0])
        if name.endswith("{tr}"):
            result = sympy.Add(*np.diagonal(np.atleast_2d(value)))
        elif name in _DETERMINANTS:
            result = determinant(value)
        elif name.endswith("{diag}"):
            result = np.full((len(value), len(value)), sympy.S.Zero, dtype=object)
            np.fill_diagonal(result, value[:, 0])
        else:
            result = each(value, _FUNCTIONS[name])
        _, *exponent = tokens_of(function)
        return result ** int(exponent[0]) if exponent else result
