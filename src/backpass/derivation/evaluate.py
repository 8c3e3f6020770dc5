"""The value of an expression at given sizes: a SymPy expression, or an object array of them.

Every element of every name is a symbol, of an input and of a definition alike; `expand` replaces the defined ones by
their definitions, down to the inputs. Derivatives are SymPy's, of one definition at a time, joined by the chain rule: with
respect to an input through all definitions on the way, with respect to a defined name up to that name. \\bar{v} is the
derivative of 𝓛 = Σ \\bar{y}·y over the outputs y, \\dot{v} the differential of v. A maximum is a fresh symbol whose
derivatives are fresh symbols too; what does not depend on them is a derivative, what does is refused.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator

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
        self.upstream = scope.upstream(self.outputs)
        self.expression: Expression | None = None
        self.indices: dict[str, int] = {}
        self.still: frozenset[str] = frozenset()  # names that do not move: \dot{A} = 0
        self._places: dict[sympy.Symbol, tuple[Variable, Indices]] = {}
        self._definitions: dict[sympy.Symbol, sympy.Expr] = {}
        self._expanded: dict[sympy.Symbol, sympy.Expr] = {}
        self._derivatives: dict[tuple, sympy.Expr] = {}
        self._maxima: dict[tuple, sympy.Symbol] = {}
        self._slopes: set[sympy.Symbol] = set()  # the unknown derivatives of maxima

    def value(
        self, expression: Expression, indices: dict[str, int] | None = None, still: frozenset[str] = frozenset()
    ) -> Value:
        """The value of an analysed expression, its free indices given, zero-based."""
        saved = self.expression, self.indices, self.still
        self.expression, self.indices, self.still = expression, indices or {}, still
        try:
            return self.visit(expression.tree)
        finally:
            self.expression, self.indices, self.still = saved

    # ---- elements --------------------------------------------------------------------------------

    def element(self, variable: Variable, indices: Indices) -> sympy.Symbol:
        """The symbol of one element of a variable, whether it is given or defined."""
        name = "_".join((variable.name, *(str(index + 1) for index in indices)))
        symbol = sympy.Symbol(name, real=True, **({"positive": True} if variable.positive else {}))
        self._places[symbol] = variable, indices
        return symbol

    def definition(self, symbol: sympy.Symbol) -> sympy.Expr | None:
        """What a symbol is defined as, in terms of the names that its definition uses; None if it is given."""
        variable, indices = self._places.get(symbol, (None, ()))
        if variable is None or variable.definition is None:
            return None
        if symbol not in self._definitions:
            if variable.letters:
                at = dict(zip(variable.letters, indices, strict=True))
                self._definitions[symbol] = self.value(variable.definition, at)
            else:
                whole = self.value(variable.definition)
                for at in self.positions(variable):
                    one = whole[self.spread(variable, at)] if variable.shape else whole
                    self._definitions[self.element(variable, at)] = one
        return self._definitions[symbol]

    def expand(self, value: sympy.Expr) -> sympy.Expr:
        """A number in terms of the inputs."""
        return value.xreplace({s: self._expand_symbol(s) for s in value.free_symbols if self.definition(s) is not None})

    def _expand_symbol(self, symbol: sympy.Symbol) -> sympy.Expr:
        if symbol not in self._expanded:
            self._expanded[symbol] = self.expand(self.definition(symbol))
        return self._expanded[symbol]

    def positions(self, variable: Variable) -> Iterator[Indices]:
        """The indices of a variable's elements."""
        return itertools.product(*(range(self.size(side)) for side in variable.axes))

    def size(self, side: str) -> int:
        """The size of a dimension, or a number that stands for one."""
        return int(side) if side.isdigit() else self.sizes[side]

    def spread(self, variable: Variable, indices: Indices) -> Indices:
        """The place of an element in the variable's array, whose sides of length 1 have no index."""
        taken = iter(indices)
        return tuple(0 if side == "1" else next(taken) for side in variable.shape)

    def array(self, variable: Variable, element: Callable[[Indices], sympy.Expr]) -> Value:
        """All elements of a variable, by a function of their indices."""
        if not variable.shape:
            return element(())
        values = np.empty([self.size(side) for side in variable.shape], dtype=object)
        for indices in self.positions(variable):
            values[self.spread(variable, indices)] = element(indices)
        return values

    # ---- derivatives -----------------------------------------------------------------------------

    def derivative(self, value: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr:
        """The derivative of a number with respect to an element, through all definitions between them."""
        return self._without_slopes(self._chain_rule(value, symbol))

    def _chain_rule(self, value: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr:
        key = value, symbol
        if key not in self._derivatives:
            terms = []
            for used in sorted(value.free_symbols, key=str):
                if used == symbol:
                    terms.append(sympy.diff(value, used))
                elif (inner := self.definition(used)) is not None:
                    terms.append(sympy.diff(value, used) * self._chain_rule(inner, symbol))
                elif used in self._maxima.values():
                    slope = sympy.Symbol(f"∂{used}/∂{symbol}", real=True)
                    self._slopes.add(slope)
                    terms.append(sympy.diff(value, used) * slope)
            self._derivatives[key] = sympy.Add(*terms)
        return self._derivatives[key]

    def _without_slopes(self, value: sympy.Expr) -> sympy.Expr:
        """A derivative, which must not depend on those of the maxima."""
        slopes = value.free_symbols & self._slopes
        for slope in slopes:
            if not exact.is_zero(self.expand(sympy.diff(value, slope))):
                raise Unreadable(
                    "a maximum stands here that may not be ignored: the derivative depends on it",
                    self.expression.part if self.expression else None,
                )
        return value.xreplace(dict.fromkeys(slopes, sympy.S.Zero))

    def gradient(self, variable: Variable, indices: Indices) -> sympy.Expr:
        """\\bar{v}: the derivative of the loss with respect to an element."""
        if variable in self.outputs:
            return self.cotangent(variable, indices)
        if variable.name not in self.upstream:
            raise Unreadable(f"no output depends on {variable.name}: it has no gradient", self.expression.part)
        symbol = self.element(variable, indices)
        return self._without_slopes(
            sympy.Add(
                *(
                    self.cotangent(output, at) * self._chain_rule(self.element(output, at), symbol)
                    for output in self.outputs
                    for at in self.positions(output)
                )
            )
        )

    def cotangent(self, output: Variable, indices: Indices) -> sympy.Symbol:
        """The given gradient of an output's element."""
        return self.element(Variable(rf"\bar{{{output.name}}}", output.shape, "constant"), indices)

    def differential(self, variable: Variable, indices: Indices) -> sympy.Expr:
        """\\dot{v}: how an element moves when the inputs move."""
        return self._without_slopes(self._moved(variable, indices))

    def _moved(self, variable: Variable, indices: Indices) -> sympy.Expr:
        if variable.name in self.still or variable.kind == "constant" or variable.name.startswith(r"\bar"):
            return sympy.S.Zero
        if variable.kind == "given":
            return self.element(Variable(rf"\dot{{{variable.name}}}", variable.shape, "constant"), indices)
        key = "dot", variable.name, indices, self.still
        if key not in self._derivatives:
            value = self.definition(self.element(variable, indices))
            self._derivatives[key] = sympy.Add(
                *(sympy.diff(value, used) * self._moved_symbol(used) for used in sorted(value.free_symbols, key=str))
            )
        return self._derivatives[key]

    def _moved_symbol(self, symbol: sympy.Symbol) -> sympy.Expr:
        if symbol in self._places:
            return self._moved(*self._places[symbol])
        slope = sympy.Symbol(f"d{symbol}", real=True)
        self._slopes.add(slope)
        return slope

    # ---- names -----------------------------------------------------------------------------------

    def reference(self, tree: Tree) -> Value:
        found = self.expression.references[id(tree)]
        return getattr(self, f"_{found.kind}")(found)

    scalar = power_of_name = reference

    def _variable(self, found: Reference) -> Value:
        variable = self.scope.variables[found.name]
        one = {"": self.element, "bar": self.gradient, "dot": self.differential}[found.accent]
        if not variable.axes:
            return one(variable, ())
        if found.indices:
            return one(variable, tuple(map(self._at, found.indices)))
        return self.array(variable, lambda indices: one(variable, indices))

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
                self.cotangent(output, at) * self.differential(output, at)
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

    def _differentiated(self, tree: Tree, below: Reference) -> sympy.Expr:
        symbol = self.element(self.scope.variables[below.name], tuple(map(self._at, below.indices)))
        return self.derivative(self.visit(tree), symbol)

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
