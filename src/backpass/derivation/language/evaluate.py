"""Evaluate an expression at given sizes, to SymPy expressions."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import numpy as np
import sympy
from lark import Token, Tree
from lark.visitors import Interpreter

from backpass.derivation.language.calculus import Calculus, Value
from backpass.derivation.language.names import (
    LOSS,
    Call,
    Expression,
    Path,
    Reference,
    Scope,
    sliced,
)
from backpass.derivation.language.parse import Unreadable, span_of, tokens_of
from backpass.expressions import exact
from backpass.interpreters.symbolic import sign_at

_RELATIONS = {
    "=": operator.eq,
    r"\ne": operator.ne, r"\neq": operator.ne, "<": operator.lt, ">": operator.gt,
    r"\le": operator.le, r"\leq": operator.le, r"\ge": operator.ge, r"\geq": operator.ge,
}  # fmt: skip
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


# The scales of the numbers of points, and the draws with each of them.
SCALES = (1, sympy.Rational(1, 8), 8, sympy.Rational(1, 64))
DRAWS_OF_A_SCALE = 4
STEPS = 10**6  # numbers are multiples of scale / STEPS, so few are equal


class Point(dict):
    """A random number for each symbol, drawn when it is first used.

    An odd `draw` has the numbers of the even draw before it with the opposite sign;
    positive symbols have new positive numbers. The scale changes every
    `DRAWS_OF_A_SCALE` draws, in the order of `SCALES`.
    """

    def __init__(self, draw: int, sizes: dict[str, int]) -> None:
        self.draw, self.sizes = draw, sizes

    def __missing__(self, symbol: sympy.Symbol) -> sympy.Rational:
        draw, opposite = (self.draw, 0) if symbol.is_positive else divmod(self.draw, 2)
        least = 0 if symbol.is_positive else -STEPS
        value = SCALES[self.draw // DRAWS_OF_A_SCALE % len(SCALES)] * sympy.Rational(
            2 * Random(f"{symbol} {draw} {self.sizes}").randint(least, STEPS - 1) + 1,
            STEPS,
        )
        self[symbol] = -value if opposite else value
        return self[symbol]


class Evaluator(Interpreter):
    """Evaluates the expressions of a scope at one assignment of sizes.

    An expression that depends on a sign is evaluated as it is around a point. Each
    grammar rule has a method of the same name. `signs` are those met at each
    comparison, by its part and position.
    """

    def __init__(
        self, scope: Scope, sizes: dict[str, int], draw: int | None = None
    ) -> None:
        self.scope, self.sizes, self.draw = scope, sizes, draw
        self.point = None if draw is None else Point(draw, sizes)
        # The signs met, and what was compared, by the place of a comparison and then
        # by its indices.
        self.signs: dict[Path, dict[tuple, set[int]]] = {}
        self.differences: dict[Path, dict[tuple, set[sympy.Expr]]] = {}
        self.path: Path = ()  # the calls that lead to what is evaluated
        self.outside: tuple = ()  # the indices in each of these calls
        self.calculus = Calculus(scope, sizes, self.value)
        self._current: Expression | None = None
        self.indices: dict[str, int] = {}
        self.still: frozenset[str] = frozenset()  # names that do not move: \dot{A} = 0
        self.parameters: dict[str, Value] = {}
        self.moving: list[sympy.Symbol] = []  # the ε of derivatives being evaluated

    def value(
        self,
        expression: Expression,
        indices: dict[str, int] | None = None,
        still: frozenset[str] = frozenset(),
        parameters: dict[str, Value] | None = None,
        path: Path = (),
    ) -> Value:
        """Return the value of an expression, given its free indices (zero-based) and,
        in a function's body, its parameters and the calls that lead to it.

        Defined names stay symbols. Names in `still` have a differential of 0.
        """
        saved = self._current, self.indices, self.still, self.parameters, self.path
        outside = self.outside
        self.outside = (*outside, tuple(sorted(self.indices.items()))) if path else ()
        self._current, self.indices, self.still = expression, indices or {}, still
        self.parameters, self.path = parameters or {}, path
        try:
            return self.visit(expression.tree)
        except Unreadable as error:
            raise (
                error if error.part else Unreadable(error.message, expression.part)
            ) from None
        finally:
            self._current, self.indices, self.still, self.parameters, self.path = saved
            self.outside = outside

    @property
    def current(self) -> Expression:
        """The expression that is being evaluated."""
        assert self._current is not None
        return self._current

    # ---- names -----------------------------------------------------------------------

    def reference(self, tree: Tree) -> Value:
        found = self.current.references[id(tree)]
        return getattr(self, f"_{found.kind}")(found)

    scalar = reference

    def power_of_name(self, tree: Tree) -> Value:
        if id(tree) in self.current.references:
            return self.reference(tree)
        base, exponent = tree.children
        return self.visit(base) ** int(str(exponent))

    def _variable(self, found: Reference) -> Value:
        variable = self.scope.variables[found.name]

        def one(indices: tuple[int, ...]) -> sympy.Expr:
            if found.accent == "bar":
                return self.calculus.gradient(variable, indices)
            if found.accent == "dot":
                return self.calculus.differential(variable, indices, self.still)
            return self.calculus.element(variable, indices)

        if not found.indices:
            return self.calculus.array(variable, one)
        fixed = self._places(found)
        if len(fixed) == len(variable.axes):
            return one(fixed)
        rest = sliced(variable.axes, found.indices)[1]
        values = np.empty([self.calculus.size(side) for side in rest], dtype=object)
        for more in np.ndindex(*values.shape):
            first = found.indices[0].type == "ALL"
            values[more] = one((*more, *fixed) if first else (*fixed, *more))
        shape = self.scope.slice_of(found.name, found.indices)
        return values.reshape([self.calculus.size(side) for side in shape])

    def _parameter(self, found: Reference) -> Value:
        value = self.parameters[found.name]
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

    def _places(self, found: Reference) -> tuple[int, ...]:
        """Return the zero-based indices of a reference."""
        axes = sliced(self.scope.variables[found.name].axes, found.indices)[0]
        indices = [token for token in found.indices if token.type != "ALL"]
        return self._inside(found.name, indices, axes)

    def _inside(
        self,
        name: str,
        indices: tuple[Token, ...] | list[Token],
        axes: tuple[str, ...] | list[str],
    ) -> tuple[int, ...]:
        places = tuple(map(self._at, indices))
        for token, place, side in zip(indices, places, axes, strict=True):
            if not 0 <= place < self.calculus.size(side):
                message = (
                    f"{name} has no element {token} for {side} = "
                    f"{self.calculus.size(side)}; give larger sizes"
                )
                raise Unreadable(message, self.current.part, span_of(token)[0])
        return places

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
        size = self.calculus.size("".join(found.indices))
        return np.array(
            [[sympy.Integer(i == j) for j in range(size)] for i in range(size)],
            dtype=object,
        )

    def _ones(self, found: Reference) -> Value:
        return np.full(
            (self.calculus.size("".join(found.indices)), 1), sympy.S.One, dtype=object
        )

    def _loss(self, found: Reference) -> Value:
        """Return \\dot{\\mathcal{L}}. Without the dot, 𝓛 occurs only in partial
        derivatives."""
        return sympy.Add(
            *(
                self.calculus.cotangent(output, at)
                * self.calculus.differential(output, at, self.still)
                for output in self.calculus.outputs
                for at in self.calculus.positions(output)
            )
        )

    # ---- numbers ---------------------------------------------------------------------

    def number(self, tree: Tree) -> Value:
        return sympy.Rational(str(tree.children[0]))

    def fraction(self, tree: Tree) -> Value:
        above, below = map(self.visit, tree.children)
        return above / below

    def power(self, tree: Tree) -> Value:
        base, exponent = tree.children
        if id(tree) in self.current.references:
            value = self.reference(tree)
            return value.T if exponent.data == "letter_and_top" else value
        if exponent.data == "top":
            value = self.visit(base)
            return value.T if isinstance(value, np.ndarray) else value
        if exponent.data == "each":  # a power of each element
            return self.visit(base) ** sympy.Rational("".join(tokens_of(exponent)))
        return self.visit(base) ** self.visit(exponent)

    def root(self, tree: Tree) -> Value:
        return sympy.sqrt(self.visit(tree.children[0]))

    def element(self, tree: Tree) -> Value:
        array, subscript = tree.children
        name = self.current.part.text[array.meta.start_pos : array.meta.end_pos]
        return self._element(name, self.visit(array), tokens_of(subscript))

    def call(self, tree: Tree) -> Value:
        values = [self.visit(argument) for argument in tree.children[1:]]
        return self._value_of(tree, values)

    def _value_of(self, tree: Tree, values: list[Value]) -> Value:
        """Return the value of a call, given its arguments."""
        first, *others = [
            self._elementwise(call, values[0])
            if call.elementwise
            else self._called(call, values)
            for call in self.current.calls[id(tree)]
        ]
        for other in others:
            if not self._are_equal(first, other):
                raise Unreadable(
                    "a function of this matrix, or of each of its elements? Write its "
                    "value by indices",
                    self.current.part,
                    tree.meta.start_pos,
                )
        return first

    def _are_equal(self, first: Value, second: Value) -> bool:
        pairs = zip(np.ravel(first), np.ravel(second), strict=True)
        try:
            return all(self.calculus.definitions.equal(*pair) for pair in pairs)
        except exact.NotRepresentable:
            return False

    def _elementwise(self, call: Call, array: np.ndarray) -> np.ndarray:
        values = np.empty(array.shape, dtype=object)
        for number, at in enumerate(np.ndindex(array.shape)):
            values[at] = self._called(call, [array[at]], number)
        return values

    def _called(self, call: Call, values: list[Value], element: int = 0) -> Value:
        try:
            return self._value_at(call, values, element)
        except Unreadable as error:
            raise Unreadable(error.message, *call.place) from None

    def _value_at(self, call: Call, values: list[Value], element: int) -> Value:
        function, still, path = call.function, self.still, (*self.path, call.place)
        parameters = dict(zip(function.parameters, values, strict=True))
        if not function.letters:
            # The element has its own cases, as an index has.
            return self.value(call.body, {"": element}, still, parameters, path)
        sizes = [self.calculus.size(side) for side in call.sides]
        array = np.empty(sizes, dtype=object)
        for places in np.ndindex(*sizes):
            indices = dict(zip(function.letters, places, strict=True))
            array[places] = self.value(call.body, indices, still, parameters, path)
        if call.is_row:
            return array[None, :]
        return array[:, None] if len(sizes) == 1 else array

    def apply(self, tree: Tree) -> Value:
        return self._applied(tree.children[0], self.visit(tree.children[1]))

    def _applied(self, function: Tree, value: Value) -> Value:
        name = str(function.children[0])
        if name.endswith("{tr}"):
            result = sympy.Add(*np.diagonal(np.atleast_2d(value)))
        elif name.endswith("{diag}"):
            result = np.full((len(value), len(value)), sympy.S.Zero, dtype=object)
            np.fill_diagonal(result, value[:, 0])
        else:
            result = _each(value, _FUNCTIONS[name])
        _, *exponent = tokens_of(function)
        return result ** int(exponent[0]) if exponent else result

    # ---- sums and products -----------------------------------------------------------

    def bracket(self, tree: Tree) -> Value:
        return self.visit(tree.children[0])

    def sum(self, tree: Tree) -> Value:
        if (found := self.current.sums.get(id(tree))) is not None:
            size = self.calculus.size(found.side)
            return _add(
                [self._where(found.terms[0], {found.letter: k}) for k in range(size)]
            )
        terms, sign = [], 1
        for child in tree.children:
            if isinstance(child, Token):
                sign = -1 if child == "-" else 1
            else:
                terms.append(sign * self.visit(child))
        return _add(terms)

    def _where(self, tree: Tree, indices: dict[str, int]) -> Value:
        """Return the value of a subtree with further indices set."""
        outside = self.indices
        self.indices = {**outside, **indices}
        try:
            return self.visit(tree)
        finally:
            self.indices = outside

    def matrix(self, tree: Tree) -> Value:
        found = self.current.matrices[id(tree)]
        sizes = [self.calculus.size(one.length) for one in (found.rows, found.columns)]
        values = np.empty(sizes, dtype=object)
        for row, column in np.ndindex(*sizes):
            where = {found.rows.letter: row, found.columns.letter: column}
            values[row, column] = self._where(found.entry(row, column), where)
        return values[0, 0] if sizes == [1, 1] else values

    def largest(self, tree: Tree) -> Value:
        return self.calculus.maximum(tuple(np.ravel(self.visit(tree.children[1]))))

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
        values = [
            self._where(body, indices) for indices in list(self._ranges(tree, limits))
        ]
        if sign == r"\sum":
            return _add(values)
        if sign == r"\prod":
            return sympy.Mul(*values)
        if sign == r"\bigodot":
            return math.prod(values[1:], start=values[0])
        return self.calculus.maximum(tuple(values))

    def _ranges(self, tree: Tree, limits: Tree) -> Iterator[dict[str, int]]:
        letters, sides = zip(*self.current.ranges[id(tree)], strict=True)
        tokens = tokens_of(limits)
        relation = next((t for t in tokens if t.type == "RELATION"), None)
        for values in itertools.product(
            *(range(self.calculus.size(side)) for side in sides)
        ):
            if relation is None or _RELATIONS[relation](
                values[0], self._at(tokens[-1])
            ):
                yield dict(zip(letters, values, strict=True))

    # ---- cases -----------------------------------------------------------------------

    def extreme(self, tree: Tree) -> Value:
        """Return the larger or the smaller of two values."""
        first, second = map(self.visit, tree.children[1:])
        wanted = -1 if tree.children[0] == r"\min" else 1
        is_first = self._signs(tree, first - second, lambda sign: sign == wanted)
        return is_first * first + (1 - is_first) * second

    def indicator(self, tree: Tree) -> Value:
        first, relation, second = tree.children
        assert isinstance(relation, Token)
        holds = _RELATIONS[relation]
        difference = self.visit(first) - self.visit(second)
        return self._signs(tree, difference, lambda sign: holds(sign, 0))

    def _signs(
        self, tree: Tree, difference: Value, holds: Callable[[int], bool]
    ) -> Value:
        """Return 1 where a difference's sign around the point meets a condition, and 0
        elsewhere, for a number or for each element."""
        if not isinstance(difference, np.ndarray):
            return sympy.Integer(holds(self._sign(tree, difference)))
        values, outside = np.empty(difference.shape, dtype=object), self.indices
        try:
            for number, place in enumerate(np.ndindex(*difference.shape)):
                self.indices = {**outside, " ": number}  # an element has its own cases
                sign = self._sign(tree, difference[place])
                values[place] = sympy.Integer(holds(sign))
        finally:
            self.indices = outside
        return values

    def cases(self, tree: Tree) -> Value:
        found = [case for case in tree.children if self._applies(case.children[1])]
        if len(found) > 1 and isinstance(found[-1].children[1].children[0], Token):
            found.pop()  # otherwise
        if len(found) != 1:
            raise Unreadable(
                "more than one case applies here" if found else "no case applies here",
                self.current.part,
                tree.meta.start_pos,
            )
        return self.visit(found[0].children[0])

    def _applies(self, comparison: Tree) -> bool:
        first, *rest = comparison.children
        if not rest:
            return True  # otherwise
        holds = []
        for relation, second in zip(rest[::2], rest[1::2], strict=True):
            sign = str(relation.children[0])
            if any(one is relation for one in self.current.comparisons):
                value = self.visit(first) - self.visit(second)
                holds.append(_RELATIONS[sign](self._sign(relation, value), 0))
            else:
                letters = (next(side.scan_values(bool)) for side in (first, second))
                holds.append(_RELATIONS[sign](*map(self._at, letters)))
            first = second
        return all(holds)

    def _sign(self, tree: Tree, difference: sympy.Expr) -> int:
        """Return a difference's sign around the point; 0 if it is identically 0."""
        difference = self.calculus.expand(difference)
        if difference.free_symbols & self.calculus.maxima:
            raise Unreadable(
                "this comparison depends on a maximum",
                self.current.part,
                tree.meta.start_pos,
            )
        assert self.point is not None  # what compares is evaluated around a point
        sign = sign_at(difference, self.point)
        place = self.current.part, tree.meta.start_pos or 0
        path = *self.path, place
        where = (*self.outside, tuple(sorted(self.indices.items())))
        self.signs.setdefault(path, {}).setdefault(where, set()).add(sign)
        differences = self.differences.setdefault(path, {})
        differences.setdefault(where, set()).add(difference)
        if sign == 0 and not self._is_zero(difference):
            raise Unreadable(
                "the sign of this is not known",
                self.current.part,
                tree.meta.start_pos,
            )
        return sign

    def _is_zero(self, difference: sympy.Expr) -> bool:
        try:
            return exact.is_zero(difference)
        except exact.NotRepresentable:
            return False

    # ---- derivatives -----------------------------------------------------------------

    def partial(self, tree: Tree) -> Value:
        above, below = tree.children
        loss = self.current.references.get(id(above))
        if loss is not None and loss.name == LOSS:
            variable = self.current.references[id(below)]
            gradient = self._variable(
                Reference("variable", variable.name, "bar", variable.indices)
            )
            if self.scope.layout == "numerator" and isinstance(gradient, np.ndarray):
                return gradient.T
            return gradient
        values, symbols = self.visit(above), self.visit(below)
        if isinstance(values, np.ndarray):
            return self._jacobian(np.ravel(values), np.ravel(symbols))
        slopes = _each(symbols, lambda symbol: self.derivative(values, symbol))
        if isinstance(slopes, np.ndarray) and self.scope.layout == "numerator":
            return slopes.T
        return slopes

    def derivative(self, value: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr:
        """Differentiate a number with respect to an element."""
        return self.calculus.derivative(value, symbol)

    def _jacobian(self, values: np.ndarray, symbols: np.ndarray) -> Value:
        """Return the derivatives of a column by a column, in the declared layout."""
        rows = [[self.derivative(v, s) for s in symbols] for v in values]
        jacobian = np.array(rows, dtype=object)
        return jacobian.T if self.scope.layout == "denominator" else jacobian

    def differentiate(self, tree: Tree) -> Value:
        operator, argument = tree.children
        return self.derivative(self.visit(argument), self.visit(operator.children[0]))

    def differential(self, tree: Tree) -> Value:
        """Return d/dε f(x + ε v) at ε = 0."""
        call, direction = tree.children
        return self._along(call, self.visit(call.children[1]), self.visit(direction))

    def _along(self, call: Tree, argument: Value, direction: Value) -> Value:
        """Return the derivative of a function at an argument in a direction."""

        def function(moved: Value) -> Value:
            if call.data == "apply":
                return self._applied(call.children[0], moved)
            return self._value_of(call, [moved])

        return self._moved(argument, function, direction)

    def jacobian(self, tree: Tree) -> Value:
        """Return the derivatives of f(x) by x, in the declared layout."""
        (call,) = tree.children
        argument = self.visit(call.children[1])
        slopes = [self._along(call, argument, unit) for unit in _units(argument)]
        if not isinstance(argument, np.ndarray) and not isinstance(
            slopes[0], np.ndarray
        ):
            return slopes[0]
        by_columns = np.array([np.ravel(slope) for slope in slopes], dtype=object)
        return by_columns if self.scope.layout == "denominator" else by_columns.T

    def nabla(self, tree: Tree) -> Value:
        """Return the derivatives of f(x) by the elements of x, in the shape of x."""
        (call,) = tree.children
        argument = self.visit(call.children[1])
        slopes = [self._along(call, argument, unit) for unit in _units(argument)]
        if not isinstance(argument, np.ndarray):
            return slopes[0]
        return np.array(slopes, dtype=object).reshape(argument.shape)

    def nabla_of(self, tree: Tree) -> Value:
        below, above = tree.children
        value = self.visit(above)
        return _each(self.visit(below), lambda symbol: self.derivative(value, symbol))

    def _moved(
        self,
        argument: Value,
        function: Callable[[Value], Value],
        along: Value = sympy.S.One,
    ) -> Value:
        """Return d/dε function(argument + ε · along) at ε = 0."""
        epsilon = sympy.Symbol(f"ε{len(self.moving)}", real=True)
        self.moving.append(epsilon)
        if self.point is not None:
            self.point[epsilon] = sympy.S.Zero
        try:
            value = function(argument + epsilon * along)
        finally:
            if self.point is not None:
                del self.point[epsilon]
            self.moving.pop()
        return _each(value, lambda v: self.calculus.derivative_at_zero(v, epsilon))

    def slope(self, tree: Tree) -> Value:
        """Return d/dε f(x + ε) at ε = 0, of each element."""
        (call,) = self.current.calls[id(tree)]
        numbers = itertools.count()  # an element has its own cases

        def of_one(value: sympy.Expr) -> Value:
            number = next(numbers)
            return self._moved(value, lambda moved: self._called(call, [moved], number))

        return _each(self.visit(tree.children[-1]), of_one)

    def norm(self, tree: Tree) -> Value:
        return sympy.sqrt(sympy.Add(*np.ravel(self.visit(tree.children[0])) ** 2))

    def directional(self, tree: Tree) -> Value:
        above, below, direction = tree.children
        along = np.ravel(self.visit(direction))
        variable = self.current.references[id(below)]
        found = self.current.references.get(id(above))
        if found is not None and found.kind == "loss":
            gradient = self._variable(replace(variable, accent="bar"))
            return sympy.Add(*(np.ravel(gradient) * along))
        symbols = np.ravel(self.visit(below))

        def moved(value: sympy.Expr) -> sympy.Expr:
            slopes = [self.derivative(value, symbol) for symbol in symbols]
            return sympy.Add(*(np.array(slopes, dtype=object) * along))

        return _each(self.visit(above), moved)

    # ---- conditions ------------------------------------------------------------------

    def holds(self, conditions: Expression, indices: dict[str, int]) -> bool:
        """Whether the conditions on indices hold."""
        self.indices = indices
        tokens = [
            tokens_of(condition)
            for condition in conditions.tree.children
            if isinstance(condition.children[0], Token)
        ]
        return all(
            _RELATIONS[relation](self._at(first), self._at(second))
            for first, relation, second in tokens
        )


def _each(value: Value, function: Callable[[sympy.Expr], sympy.Expr]) -> Value:
    """Apply a function to a number, or to each element of an array."""
    if not isinstance(value, np.ndarray):
        return function(value)
    return np.vectorize(function, otypes=[object])(value)


def _units(value: Value) -> list[Value]:
    """Return the unit vectors in the shape of a value."""
    if not isinstance(value, np.ndarray):
        return [sympy.S.One]
    units = []
    for place in np.ndindex(value.shape):
        unit = np.full(value.shape, sympy.S.Zero, dtype=object)
        unit[place] = sympy.S.One
        units.append(unit)
    return units


def _add(terms: list[Value]) -> Value:
    if any(isinstance(term, np.ndarray) for term in terms):
        return sum(terms[1:], terms[0])
    return sympy.Add(*terms)


def _multiply(first: Value, second: Value) -> Value:
    if not (isinstance(first, np.ndarray) and isinstance(second, np.ndarray)):
        return first * second
    product = first @ second
    return product[0, 0] if product.shape == (1, 1) else product
