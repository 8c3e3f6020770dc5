"""Make symbols of the elements of variables, and differentiate definitions.

Every element of every name is a symbol, whether it is given or defined; `expand`
replaces defined symbols by their definitions, down to the inputs. SymPy differentiates
one definition at a time, and the chain rule joins these derivatives: for an input
through all definitions in between, and for a defined name down to that name. \\bar{v}
is the derivative of 𝓛 = Σ \\bar{y}·y over the outputs y, and \\dot{v} the differential
of v. A maximum is a fresh symbol whose derivatives are fresh symbols too. A derivative
that depends on one of these raises `Unreadable`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TypeAlias

import numpy as np
import sympy

from backpass.derivation.language.names import (
    LOSS,
    Expression,
    Scope,
    Variable,
    gradient_of,
)
from backpass.derivation.language.parse import Part, Unreadable
from backpass.derivation.language.slopes import Slopes
from backpass.expressions import exact

Value: TypeAlias = sympy.Expr | np.ndarray
Indices = tuple[int, ...]  # zero-based


class Calculus:
    """The elements and their derivatives at given sizes, each computed once.

    `value_of` evaluates a definition, given its indices.
    """

    def __init__(
        self,
        scope: Scope,
        sizes: dict[str, int],
        value_of: Callable[[Expression, dict[str, int]], Value],
    ) -> None:
        self.scope, self.sizes, self.value_of = scope, sizes, value_of
        self._places: dict[sympy.Symbol, tuple[Variable, Indices]] = {}
        self._definitions: dict[sympy.Symbol, sympy.Expr] = {}
        self._expanded: dict[sympy.Symbol, sympy.Expr] = {}
        self._derivatives: dict[tuple, sympy.Expr] = {}
        self._partials: dict[sympy.Symbol, Slopes] = {}
        self._symbols: dict[sympy.Expr, list[sympy.Symbol]] = {}
        self._maxima: dict[tuple, sympy.Symbol] = {}
        self._slopes: set[sympy.Symbol] = set()  # the unknown derivatives of maxima
        self.definitions = exact.Definitions(self.definition, self.expand)

    @cached_property
    def outputs(self) -> list[Variable]:
        """The outputs, on which the loss depends. They have to be unambiguous only if a
        gradient occurs."""
        return self.scope.outputs()

    @cached_property
    def upstream(self) -> set[str]:
        """The names of the outputs and of everything that they depend on."""
        return self.scope.upstream(self.outputs)

    # ---- elements --------------------------------------------------------------------

    def element(self, variable: Variable, indices: Indices) -> sympy.Symbol:
        """Return the symbol of one element of a variable, given or defined."""
        name = "_".join((variable.name, *(str(index + 1) for index in indices)))
        symbol = sympy.Symbol(name, real=True, positive=variable.positive or None)
        self._places[symbol] = variable, indices
        return symbol

    def place_of(self, symbol: sympy.Symbol) -> tuple[Variable | None, Indices]:
        """Return the variable of which a symbol is an element, and its indices; None if
        it is not an element."""
        return self._places.get(symbol, (None, ()))

    def definition(self, symbol: sympy.Symbol) -> sympy.Expr | None:
        """Return a symbol's definition, in terms of the names that it uses; None if the
        symbol is given."""
        variable, indices = self._places.get(symbol, (None, ()))
        if variable is not None and variable.kind == "promised":
            raise Unreadable(f"{variable.name} is not defined here")
        if variable is None or variable.definition is None:
            return self.assumed.get(symbol) if self.scope.assumptions else None
        if symbol not in self._definitions:
            if variable.letters:
                first = indices[: len(variable.letters)]
                where = dict(zip(variable.letters, first, strict=True))
                value = self.value_of(variable.definition, where)
                sizes = [self.size(side) for side in variable.axes[len(first) :]]
                for rest in np.ndindex(*sizes):
                    one = value.reshape(sizes)[rest] if rest else value
                    self._definitions[self.element(variable, (*first, *rest))] = one
            else:
                whole = self.value_of(variable.definition, {})
                for at in self.positions(variable):
                    one = whole[self.spread(variable, at)] if variable.shape else whole
                    self._definitions[self.element(variable, at)] = one
        return self._definitions[symbol]

    @cached_property
    def assumed(self) -> dict[sympy.Symbol, sympy.Expr]:
        """The elements of constants that the assumptions determine, each by the others.
        Raises `Unreadable` for an assumption that is not linear in any element."""
        found: dict[sympy.Symbol, sympy.Expr] = {}
        for left, right, free in self.scope.assumptions:
            for places in itertools.product(
                *(range(self.size(d)) for d in free.values())
            ):
                where = dict(zip(free, places, strict=True))
                sides = (self.value_of(side, where) for side in (left, right))
                for a, b in zip(
                    *map(np.ravel, np.broadcast_arrays(*sides)), strict=True
                ):
                    rest = sympy.expand((a - b).xreplace(found))
                    if rest == 0:
                        continue
                    symbol, value = _solved(rest, left.part)
                    found = {s: v.xreplace({symbol: value}) for s, v in found.items()}
                    found[symbol] = value
        return found

    def expand(self, value: sympy.Expr) -> sympy.Expr:
        """Express a number in terms of the inputs."""
        defined = [s for s in value.free_symbols if self.definition(s) is not None]
        return value.xreplace({s: self._expand_symbol(s) for s in defined})

    def _expand_symbol(self, symbol: sympy.Symbol) -> sympy.Expr:
        if symbol not in self._expanded:
            self._expanded[symbol] = self.expand(self.definition(symbol))
        return self._expanded[symbol]

    def positions(self, variable: Variable) -> Iterator[Indices]:
        """Return the indices of a variable's elements."""
        return itertools.product(*(range(self.size(side)) for side in variable.axes))

    def size(self, side: str) -> int:
        """Return the size of a dimension, which may be written as a number."""
        return int(side) if side.isdigit() else self.sizes[side]

    def spread(self, variable: Variable, indices: Indices) -> Indices:
        """Return the position of an element in the variable's array, whose axes of
        length 1 have no index."""
        taken = iter(indices)
        return tuple(0 if side == "1" else next(taken) for side in variable.shape)

    def array(
        self, variable: Variable, element: Callable[[Indices], sympy.Expr]
    ) -> Value:
        """Return an array of a variable's shape, given its elements as a function of
        their indices."""
        if not variable.shape:
            return element(())
        values = np.empty([self.size(side) for side in variable.shape], dtype=object)
        for indices in self.positions(variable):
            values[self.spread(variable, indices)] = element(indices)
        return values

    def maximum(self, values: tuple[sympy.Expr, ...]) -> sympy.Symbol:
        """Return the fresh symbol that stands for the largest of some numbers."""
        return self._maxima.setdefault(
            tuple(sorted(set(values), key=str)),
            sympy.Symbol(f"max_{len(self._maxima) + 1}", real=True),
        )

    def at(self, value: sympy.Expr, point: Mapping) -> sympy.Expr:
        """Return an approximation of a number at a point, with 30 digits; `point` has a
        number for each symbol of an input. Each definition is evaluated once."""
        numbers: dict[sympy.Symbol, sympy.Expr] = {}

        def of(value: sympy.Expr) -> sympy.Expr:
            for symbol in value.free_symbols - numbers.keys():
                if values := self._of_maximum(symbol):
                    numbers[symbol] = max(map(of, values))
                elif (definition := self.definition(symbol)) is not None:
                    numbers[symbol] = of(definition)
                else:
                    numbers[symbol] = point[symbol]
            here = {s: numbers[s] for s in value.free_symbols}
            return value.xreplace(here).evalf(30)

        return of(value)

    def inputs(self, value: sympy.Expr) -> set[sympy.Symbol]:
        """Return the symbols of inputs on which a number depends."""
        found: set[sympy.Symbol] = set()
        seen: set[sympy.Symbol] = set()
        left = [value]
        while left:
            for symbol in left.pop().free_symbols - seen:
                seen.add(symbol)
                definition = self.definition(symbol)
                if values := self._of_maximum(symbol):
                    left += values
                elif definition is not None:
                    left.append(definition)
                else:
                    found.add(symbol)
        return found

    def _of_maximum(self, symbol: sympy.Symbol) -> tuple[sympy.Expr, ...]:
        """Return the values whose maximum a symbol is; () if it is not a maximum."""
        return next((v for v, s in self._maxima.items() if s == symbol), ())

    @property
    def maxima(self) -> set[sympy.Symbol]:
        """The fresh symbols created so far."""
        return set(self._maxima.values())

    # ---- derivatives -----------------------------------------------------------------

    def derivative(self, value: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr:
        """Differentiate a number with respect to an element, through all definitions
        between them."""
        return self._without_slopes(self._chain_rule(value, symbol))

    def direct(self, value: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr:
        """Differentiate the definition of a number itself, with the other names in it
        constant. If it does not contain the symbol's name, go through all definitions.
        """
        definition = self.definition(value) if value.is_Symbol else None
        own = value if definition is None else definition
        slope, (name, _) = sympy.diff(own, symbol), self._places[symbol]
        of = self._places.get(value, (None,))[0]
        places = (self._places.get(one, (None,))[0] for one in own.free_symbols)
        if slope == 0 and (name == of or name not in places):
            return self.derivative(value, symbol)
        return slope

    def holding(
        self, value: sympy.Expr, symbol: sympy.Symbol, names: frozenset[str]
    ) -> sympy.Expr:
        """Differentiate a number through all definitions but those of some names, which
        are constant."""
        definition = self.definition(value) if value.is_Symbol else None
        own = value if definition is None or value == symbol else definition
        held = frozenset(
            self.element(self.scope.variables[name], at)
            for name in names
            for at in self.positions(self.scope.variables[name])
        )
        return self._without_slopes(self._chain_rule(own, symbol, held))

    def derivative_at_zero(self, value: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr:
        """Return the derivative of a number with respect to a symbol that is not an
        element, at 0."""
        at_zero = {symbol: sympy.S.Zero}
        for values, largest in list(self._maxima.items()):
            if any(symbol in one.free_symbols for one in values):
                values_at_zero = tuple(one.xreplace(at_zero) for one in values)
                at_zero[largest] = self.maximum(values_at_zero)
        return self.derivative(value, symbol).xreplace(at_zero)

    def _chain_rule(
        self,
        value: sympy.Expr,
        symbol: sympy.Symbol,
        held: frozenset[sympy.Symbol] = frozenset(),
    ) -> sympy.Expr:
        """Differentiate through all definitions but those of symbols that are held."""
        key = value, symbol, held
        if key not in self._derivatives:
            terms = []
            for used in self._used(value):
                if used == symbol:
                    terms.append(self._partial(value, used))
                elif used in held:
                    continue
                elif (inner := self.definition(used)) is not None:
                    if inner_derivative := self._chain_rule(inner, symbol, held):
                        terms.append(self._partial(value, used) * inner_derivative)
                elif used in self._maxima.values():
                    slope = sympy.Symbol(f"∂{used}/∂{symbol}", real=True)
                    self._slopes.add(slope)
                    terms.append(self._partial(value, used) * slope)
            self._derivatives[key] = sympy.Add(*terms)
        return self._derivatives[key]

    def _used(self, value: sympy.Expr) -> list[sympy.Symbol]:
        """Return the symbols of a number, in order."""
        if value not in self._symbols:
            self._symbols[value] = sorted(value.free_symbols, key=str)
        return self._symbols[value]

    def _partial(self, value: sympy.Expr, used: sympy.Symbol) -> sympy.Expr:
        """Differentiate a number with respect to a symbol that it contains, once."""
        if used not in self._partials:
            self._partials[used] = Slopes(used)
        return self._partials[used].of(value)

    def _without_slopes(self, value: sympy.Expr) -> sympy.Expr:
        """Return a derivative without those of the maxima.

        Raises `Unreadable` if it depends on them.
        """
        if not self._slopes:
            return value
        slopes = value.free_symbols & self._slopes
        for slope in slopes:
            if not self.definitions.is_zero(sympy.diff(value, slope)):
                raise Unreadable(
                    "a maximum may not be ignored here: the derivative depends on it"
                )
        return value.xreplace(dict.fromkeys(slopes, sympy.S.Zero))

    def gradient(
        self, variable: Variable, indices: Indices, direct: bool = False
    ) -> sympy.Expr:
        """Return \\bar{v}, the derivative of the loss with respect to an element. A
        `direct` one holds the states at other times, if the element is one of them."""
        if variable in self.outputs:
            return self.cotangent(variable, indices)
        if variable.name not in self.upstream:
            raise Unreadable(
                f"no output depends on {variable.name}: it has no gradient"
            )
        held = self._other_states(variable, indices) if direct else frozenset()
        key = "bar", variable.name, indices, held
        if key not in self._derivatives:
            symbol = self.element(variable, indices)
            terms = (
                self.cotangent(output, at)
                * self._chain_rule(self.element(output, at), symbol, held)
                for output in self.outputs
                for at in self.positions(output)
            )
            self._derivatives[key] = self._without_slopes(sympy.Add(*terms))
        return self._derivatives[key]

    def _other_states(
        self, variable: Variable, indices: Indices
    ) -> frozenset[sympy.Symbol]:
        """Return the elements, at other times, of the names that a recurrence defines
        together with a variable."""
        return frozenset(
            self.element(state, at)
            for state in self.scope.states_with(variable)
            for at in self.positions(state)
            if at and at[0] != indices[0]
        )

    def cotangent(self, output: Variable, indices: Indices) -> sympy.Expr:
        """Return the given gradient of an output's element; that of 𝓛 is 1."""
        if output.name == LOSS:
            return sympy.S.One
        given = Variable(gradient_of(output.name), output.shape, "constant")
        return self.element(given, indices)

    def differential(
        self, variable: Variable, indices: Indices, still: frozenset[str]
    ) -> sympy.Expr:
        """Return \\dot{v}: how an element moves if the inputs move and the names in
        `still` do not."""
        return self._without_slopes(self._moved(variable, indices, still))

    def _moved(
        self, variable: Variable, indices: Indices, still: frozenset[str]
    ) -> sympy.Expr:
        if (
            variable.name in still
            or variable.kind == "constant"
            or variable.name.startswith(r"\bar")
        ):
            return sympy.S.Zero
        if variable.kind == "given":
            moves = Variable(rf"\dot{{{variable.name}}}", variable.shape, "constant")
            return self.element(moves, indices)
        key = "dot", variable.name, indices, still
        if key not in self._derivatives:
            value = self.definition(self.element(variable, indices))
            self._derivatives[key] = self._change(value, still)
        return self._derivatives[key]

    def _change(self, value: sympy.Expr, still: frozenset[str]) -> sympy.Expr:
        return sympy.Add(
            *(
                self._partial(value, used) * self._moved_symbol(used, still)
                for used in self._used(value)
            )
        )

    def change(self, value: sympy.Expr, still: frozenset[str]) -> sympy.Expr:
        """Return the differential of a value, as of a definition."""
        return self._without_slopes(self._change(value, still))

    def _moved_symbol(self, symbol: sympy.Symbol, still: frozenset[str]) -> sympy.Expr:
        if symbol in self._places:
            return self._moved(*self._places[symbol], still)
        slope = sympy.Symbol(f"d{symbol}", real=True)
        self._slopes.add(slope)
        return slope


def _solved(zero: sympy.Expr, part: Part) -> tuple[sympy.Symbol, sympy.Expr]:
    """Solve an equation for a symbol in which it is linear, the last one by name."""
    for symbol in sorted(zero.free_symbols, key=str, reverse=True):
        slope = sympy.diff(zero, symbol)
        if slope.is_number and not symbol.is_positive:
            return symbol, sympy.expand(symbol - zero / slope)
    raise Unreadable(
        "an assumption must be linear, with a number as coefficient, in an element that is "
        "not declared positive",
        part,
    )
