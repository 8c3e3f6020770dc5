"""The value of an expression at given sizes: a SymPy expression, or an object array of them.

Inputs are symbols, one for each element; a definition is evaluated wherever it is used. Derivatives are SymPy's, of these
values: with respect to an input through all definitions, with respect to a defined name with that name held as a
symbol. \\bar{v} is the derivative of 𝓛 = Σ \\bar{y}·y over the outputs y, \\dot{v} the differential of v. A maximum is a
fresh symbol, and every derivative of something that contains it is preceded by the proof that its derivative with
respect to that symbol is 0.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator

import numpy as np
import sympy
from lark import Token, Tree
from lark.visitors import Interpreter

from backpass.derivation.parse import Unreadable
from backpass.derivation.scope import Expression, Reference, Scope, Variable
from backpass.interpreters import exact

Value = sympy.Expr | np.ndarray
Indices = tuple[int, ...]  # zero-based

_RELATIONS = {
    r"\ne": operator.ne, r"\neq": operator.ne, "<": operator.lt, ">": operator.gt,
    r"\le": operator.le, r"\leq": operator.le, r"\ge": operator.ge, r"\geq": operator.ge,
}  # fmt: skip
_FUNCTIONS = {
    r"\exp": sympy.exp, r"\log": sympy.log, r"\ln": sympy.log, r"\tanh": sympy.tanh,
    r"\operatorname{erf}": sympy.erf,
}  # fmt: skip


class Evaluator(Interpreter):
    """Evaluates the expressions of a scope at one assignment of sizes, and remembers what it worked out."""

    def __init__(self, scope: Scope, sizes: dict[str, int]) -> None:
        self.scope, self.sizes = scope, sizes
        self.outputs = scope.outputs()
        self.leaves: dict[sympy.Symbol, tuple[str, Indices]] = {}
        self._elements: dict = {}
        self._derivatives: dict = {}
        self._maxima: dict[tuple, sympy.Symbol] = {}
        self.held: frozenset[str] = frozenset()  # defined names that stand for themselves
        self.still: frozenset[str] = frozenset()  # names that do not move: \dot{A} = 0
        self.indices: dict[str, int] = {}

    def value(self, expression: Expression, indices: dict[str, int] | None = None, still: frozenset[str] = frozenset()) -> Value:
        """The value of an analysed expression, its free indices given, zero-based."""
        saved = self.__dict__.get("expression"), self.indices, self.still
        self.expression, self.indices, self.still = expression, indices or {}, still
        try:
            return self.visit(expression.tree)
        finally:
            self.expression, self.indices, self.still = saved

    # ---- elements and their derivatives ----------------------------------------------------------

    def element(self, name: str, indices: Indices) -> sympy.Expr:
        """One element of a variable: a symbol, or the value of its definition."""
        variable = self.scope.variables[name]
        if variable.kind != "defined" or name in self.held:
            return self.symbol(variable, indices)
        key = name, indices, self.held
        if key not in self._elements:
            if variable.letters:
                self._elements[key] = self.value(variable.definition, dict(zip(variable.letters, indices, strict=True)))
            else:
                whole = self.value(variable.definition)
                for at in self.positions(variable):
                    self._elements[name, at, self.held] = whole[self.spread(variable, at)] if variable.shape else whole
        return self._elements[key]

    def symbol(self, variable: Variable, indices: Indices) -> sympy.Symbol:
        name = "_".join((variable.name, *(str(index + 1) for index in indices)))
        symbol = sympy.Symbol(name, real=True, **({"positive": True} if variable.positive else {}))
        self.leaves[symbol] = variable.name, indices
        return symbol

    def positions(self, variable: Variable) -> Iterator[Indices]:
        return itertools.product(*(range(self.size(side)) for side in variable.axes))

    def size(self, side: str) -> int:
        return int(side) if side.isdigit() else self.sizes[side]

    def spread(self, variable: Variable, indices: Indices) -> Indices:
        """The place of an element in the variable's array, whose sides of length 1 have no index."""
        taken = iter(indices)
        return tuple(0 if side == "1" else next(taken) for side in variable.shape)

    def array(self, variable: Variable, element) -> Value:
        """All elements of a variable, by a function of their indices."""
        if not variable.shape:
            return element(())
        values = np.empty([self.size(side) for side in variable.shape], dtype=object)
        for indices in self.positions(variable):
            values[self.spread(variable, indices)] = element(indices)
        return values

    def derivative(self, value: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr:
        key = value, symbol
        if key not in self._derivatives:
            for maximum in value.free_symbols.intersection(self._maxima.values()):
                if not exact.is_zero(sympy.diff(value, maximum)):
                    raise Unreadable(
                        "a maximum may be differentiated only where nothing depends on it, and this depends on it",
                        self.expression.part,
                    )
            self._derivatives[key] = sympy.diff(value, symbol)
        return self._derivatives[key]

    def partial_of(self, evaluate, name: str, indices: Indices) -> sympy.Expr:
        """The derivative of `evaluate()` with respect to an element; a defined name is held as a symbol meanwhile."""
        variable, held = self.scope.variables[name], self.held
        if variable.kind != "defined":
            return self.derivative(evaluate(), self.symbol(variable, indices))
        self.held = held | {name}
        try:
            value = self.derivative(evaluate(), self.symbol(variable, indices))
        finally:
            self.held = held
        if name in held:
            return value
        return value.xreplace({self.symbol(variable, at): self.element(name, at) for at in self.positions(variable)})

    def gradient(self, name: str, indices: Indices) -> sympy.Expr:
        """\\bar{name}: the derivative of the loss with respect to an element."""
        key = "bar", name, indices, self.held
        if key not in self._elements:
            variable = self.scope.variables[name]
            if name not in self.scope.upstream(self.outputs):
                raise Unreadable(f"no output depends on {name}: it has no gradient", self.expression.part)
            if any(variable is output for output in self.outputs):
                self._elements[key] = self.cotangent(variable, indices)
            else:
                self._elements[key] = sympy.Add(
                    *(
                        self.cotangent(output, at) * self.partial_of(lambda: self.element(output.name, at), name, indices)
                        for output in self.outputs
                        for at in self.positions(output)
                    )
                )
        return self._elements[key]

    def cotangent(self, output: Variable, indices: Indices) -> sympy.Symbol:
        return self.symbol(Variable(rf"\bar{{{output.name}}}", output.shape, "constant"), indices)

    def differential(self, name: str, indices: Indices) -> sympy.Expr:
        """\\dot{name}: how an element moves when the inputs move."""
        variable = self.scope.variables[name]
        if name in self.still:
            return sympy.S.Zero
        if variable.kind == "given":
            return self.symbol(Variable(rf"\dot{{{name}}}", variable.shape, "constant"), indices)
        held, self.held = self.held, self.held | {n for n in self.still if self.scope.variables[n].kind == "defined"}
        try:
            value = self.element(name, indices)
        finally:
            self.held = held
        moved = sympy.Add(
            *(
                self.derivative(value, symbol) * self.differential(*self.leaves[symbol])
                for symbol in sorted(value.free_symbols & self.leaves.keys(), key=str)
                if self._moves(self.leaves[symbol][0])
            )
        )
        return moved.xreplace({s: self.element(*self.leaves[s]) for s in moved.free_symbols & self.leaves.keys()
                               if self.leaves[s][0] in self.still})

    def _moves(self, name: str) -> bool:
        variable = self.scope.variables.get(name)
        return variable is not None and variable.kind == "given" and not name.startswith(r"\bar") and name not in self.still

    # ---- names -----------------------------------------------------------------------------------

    def reference(self, tree: Tree) -> Value:
        found = self.expression.references[id(tree)]
        return getattr(self, f"_{found.kind}")(found)

    scalar = power_of_name = reference

    def _variable(self, found: Reference) -> Value:
        variable = self.scope.variables[found.name]
        one = {"": self.element, "bar": self.gradient, "dot": self.differential}[found.accent]
        if not variable.axes:
            return one(found.name, ())
        if found.indices:
            return one(found.name, tuple(map(self._at, found.indices)))
        return self.array(variable, lambda indices: one(found.name, indices))

    def _at(self, token: Token) -> int:
        return int(token) - 1 if token.isdigit() else self.indices[str(token)]

    def _dimension(self, found: Reference) -> Value:
        return sympy.Integer(self.sizes[found.name])

    def _euler(self, found: Reference) -> Value:
        return sympy.E

    def _pi(self, found: Reference) -> Value:
        return sympy.pi

    def _delta(self, found: Reference) -> Value:
        first, second = map(self._at, found.indices)
        return sympy.Integer(first == second)

    def _identity(self, found: Reference) -> Value:
        size = self.sizes["".join(found.indices)]
        return np.array([[sympy.Integer(i == j) for j in range(size)] for i in range(size)], dtype=object)

    def _ones(self, found: Reference) -> Value:
        return np.full((self.sizes["".join(found.indices)], 1), sympy.S.One, dtype=object)

    def _loss(self, found: Reference) -> Value:
        """\\dot{\\mathcal{L}}; without the dot it stands in partial derivatives only."""
        return sympy.Add(
            *(
                self.cotangent(output, at) * self.differential(output.name, at)
                for output in self.outputs
                for at in self.positions(output)
            )
        )

    # ---- numbers ---------------------------------------------------------------------------------

    def number(self, tree: Tree) -> Value:
        return sympy.Integer(int(tree.children[0]))

    def fraction(self, tree: Tree) -> Value:
        above, below = map(self.visit, tree.children)
        return above / below

    def power(self, tree: Tree) -> Value:
        if id(tree) in self.expression.references:
            return self.reference(tree)
        base, exponent = tree.children
        if exponent.data == "top":
            value = self.visit(base)
            return value.T if isinstance(value, np.ndarray) else value
        return self.visit(base) ** self.visit(exponent)

    def root(self, tree: Tree) -> Value:
        return sympy.sqrt(self.visit(tree.children[0]))

    def apply(self, tree: Tree) -> Value:
        function, argument = tree.children
        name, value = str(function.children[0]), self.visit(argument)
        if name.endswith("{tr}"):
            result = sympy.Add(*np.diagonal(value))
        elif name.endswith("{diag}"):
            result = np.full((len(value), len(value)), sympy.S.Zero, dtype=object)
            np.fill_diagonal(result, value[:, 0])
        else:
            result = _FUNCTIONS[name](value)
        return result ** int(function.children[1]) if len(function.children) > 1 else result

    # ---- sums and products -----------------------------------------------------------------------

    def bracket(self, tree: Tree) -> Value:
        return self.visit(tree.children[0])

    def sum(self, tree: Tree) -> Value:
        terms, sign = [], 1
        for child in tree.children:
            if isinstance(child, Token):
                sign = -1 if child == "-" else 1
            else:
                terms.append(sign * self.visit(child))
        return _add(terms)

    def product(self, tree: Tree) -> Value:
        first, *rest = map(self.visit, tree.children)
        for factor in rest:
            first = _multiply(first, factor)
        return first

    def hadamard(self, tree: Tree) -> Value:
        first, *rest = map(self.visit, tree.children)
        for factor in rest:
            first = first * factor
        return first

    def inner(self, tree: Tree) -> Value:
        first, second = map(self.visit, tree.children)
        return sympy.Add(*np.ravel(first * second))

    def big(self, tree: Tree) -> Value:
        sign, limits, *_, body = tree.children
        values = []
        outside = self.indices
        for indices in self._ranges(tree, limits):
            self.indices = {**outside, **indices}
            values.append(self.visit(body))
        self.indices = outside
        if sign == r"\sum":
            return _add(values)
        if sign == r"\prod":
            return sympy.Mul(*values)
        return self._maxima.setdefault(tuple(values), sympy.Symbol(f"max_{len(self._maxima) + 1}", real=True))

    def _ranges(self, tree: Tree, limits: Tree) -> Iterator[dict[str, int]]:
        letters, sides = zip(*self.expression.ranges[id(tree)], strict=True)
        relation = next((t for t in limits.children if t.type == "RELATION"), None)
        for values in itertools.product(*(range(self.sizes[side]) for side in sides)):
            if relation is None or _RELATIONS[relation](values[0], self._at(limits.children[2])):
                yield dict(zip(letters, values, strict=True))

    # ---- derivatives -----------------------------------------------------------------------------

    def partial(self, tree: Tree) -> Value:
        above, below = tree.children
        loss = self.expression.references.get(id(above))
        variable = self.expression.references[id(below)]
        if loss is not None and loss.kind == "loss":
            return self._variable(Reference("variable", variable.name, "bar", variable.indices))
        return self._differentiated(above, variable)

    def differentiate(self, tree: Tree) -> Value:
        operator, argument = tree.children
        return self._differentiated(argument, self.expression.references[id(operator.children[0])])

    def _differentiated(self, tree: Tree, variable: Reference) -> sympy.Expr:
        return self.partial_of(lambda: self.visit(tree), variable.name, tuple(map(self._at, variable.indices)))

    # ---- conditions ------------------------------------------------------------------------------

    def holds(self, conditions: Expression, indices: dict[str, int]) -> bool:
        """Whether the conditions on indices hold."""
        self.indices = indices
        tokens = [condition.children for condition in conditions.tree.children if isinstance(condition.children[0], Token)]
        return all(_RELATIONS[relation](self._at(first), self._at(second)) for first, relation, second in tokens)


def _add(terms: list[Value]) -> Value:
    if any(isinstance(term, np.ndarray) for term in terms):
        return sum(terms[1:], terms[0])
    return sympy.Add(*terms)


def _multiply(first: Value, second: Value) -> Value:
    if not (isinstance(first, np.ndarray) and isinstance(second, np.ndarray)):
        return first * second
    product = first @ second
    return product[0, 0] if product.shape == (1, 1) else product
