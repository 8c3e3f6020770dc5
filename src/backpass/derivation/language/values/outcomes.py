"""Average over random names: sums over a few outcomes with unknown probabilities.

Names of which no two are declared independent have their values together: outcome k of
these names has the probability w_k / (w_1 + … + w_K) and a value for each of them. All
values and weights are symbols, so an identity of averages that holds here holds for
every distribution with K values, and one that fails here fails for some. A name that
depends on two such groups has a value for each pair of outcomes. The average of a
product of independent factors is the product of their averages.

A declared mean m is that of m + z, where the average of z is 0. A declared variance s²
is that of m + s z, where z has the values t, -1/t, u and -1/u with probabilities such
that its mean is 0 and its variance 1. Of a vector with declared covariances, products
of at most two elements are averaged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
import sympy

from backpass.derivation.language.calculus import Calculus
from backpass.derivation.language.names import Variable
from backpass.derivation.language.parse import Unreadable

LEAST, MOST = 3, 6  # outcomes of names that are not independent
TERMS = 1000  # of one average
NONE: frozenset[int] = frozenset()


class Outcomes:
    """The outcomes of the random names at some sizes."""

    def __init__(self, calculus: Calculus, supposed: frozenset[str]) -> None:
        self.calculus, self.supposed = calculus, supposed
        self.chances = calculus.scope.chances
        self._known: dict[tuple[sympy.Expr, frozenset], sympy.Expr] = {}
        self._expanded: dict[sympy.Symbol, sympy.Expr] = {}
        self.symbols: set[sympy.Symbol] = set()  # of values and of probabilities
        self.beyond = False  # whether an average is not of a polynomial of degree 2

    # ---- averages --------------------------------------------------------------------

    def mean(self, value: sympy.Expr, names: tuple[str, ...] = ()) -> sympy.Expr:
        """Return the average of a number over all random names, or over some."""
        value = self.expanded(sympy.sympify(value))
        over = frozenset(self.groups)
        if names:
            scope = self.calculus.scope
            inputs = scope.upstream([scope.variables[name] for name in names])
            over = frozenset(s for s, v in self._variables.items() if v.name in inputs)
            others = self._groups_of(value, frozenset(self.groups) - over)
            if others & set().union(*(self.groups[s] for s in over)):
                raise Unreadable("average over all names that are not independent")
        if not value.free_symbols & over:
            return value
        terms = sympy.Add.make_args(sympy.expand(value))
        return sympy.Add(*(self._of_term(term, over) for term in terms))

    def _of_term(self, term: sympy.Expr, over: frozenset) -> sympy.Expr:
        """Return the average of a product: the product of those of its independent
        factors."""
        left = [*sympy.Mul.make_args(term)]
        found = []
        self._reject_unknown(term.free_symbols & over)
        while left:
            together = [left.pop()]
            groups = self._groups_of(together[0], over)
            while groups and (
                more := [one for one in left if self._groups_of(one, over) & groups]
            ):
                together += more
                left = [one for one in left if one not in more]
                groups |= set().union(*(self._groups_of(one, over) for one in more))
            found.append(self._of_factor(sympy.Mul(*together), frozenset(groups)))
        return sympy.Mul(*found)

    def _groups_of(self, value: sympy.Expr, over: frozenset) -> set[int]:
        return set().union(*(self.groups[s] for s in value.free_symbols & over))

    def _of_factor(self, value: sympy.Expr, groups: frozenset[int]) -> sympy.Expr:
        if not groups:
            return value
        if of_vector := self._of_covariances(value):
            return of_vector[0]
        key = value, groups
        used = value.free_symbols & self.groups.keys()
        used = [symbol for symbol in used if self.groups[symbol] & groups]
        if (
            not value.is_polynomial(*used)
            or sympy.Poly(value, *used).total_degree() > 2
        ):
            self.beyond = True
        if key not in self._known:
            self._known[key] = sympy.Add(*self._terms(value, sorted(groups)))
        return self._known[key]

    def _of_covariances(self, value: sympy.Expr) -> tuple[sympy.Expr] | None:
        """Return the average of a product of elements of a vector whose covariances are
        declared; None if it has no such element."""
        used = [s for s in value.free_symbols if s in self._variables]
        names = {self._variables[s].name for s in used}
        known = names & {name for name, _ in self._covariances}
        if not known:
            return None
        if others := sorted(names - (one := {min(known)})):
            raise Unreadable(
                f"are these independent? Then say: independent {min(one)}, {others[0]}"
            )
        if not value.is_polynomial(*used):
            raise Unreadable("covariances say nothing of this average")
        found = []
        for powers, factor in sympy.Poly(value, *used).terms():
            ends = [
                s for s, power in zip(used, powers, strict=True) for _ in range(power)
            ]
            if len(ends) > 2:
                raise Unreadable(
                    "covariances say nothing of a product of more than two"
                )
            means = [self._mean_of(s) for s in ends]
            places = [self.calculus.place_of(s)[1] for s in ends]
            between = (
                self._covariances[min(known), (*places[0], *places[1])]
                if len(ends) == 2
                else sympy.S.Zero
            )
            found.append(factor * (sympy.Mul(*means) + between))
        return (sympy.Add(*found),)

    def _mean_of(self, symbol: sympy.Symbol) -> sympy.Expr:
        mean = self._means.get(symbol)
        return self._symbol(f"m({symbol})", None) if mean is None else mean

    def _terms(self, value: sympy.Expr, groups: list[int]) -> Iterator[sympy.Expr]:
        chances = [self._probabilities[number] for number in groups]
        if math.prod(map(len, chances)) > TERMS:
            raise Unreadable("this average has too many terms: use fewer names in it")
        symbols = [
            s for s in value.free_symbols if self.groups.get(s, NONE) & {*groups}
        ]
        for outcome in itertools.product(*(range(len(one)) for one in chances)):
            at = dict(zip(groups, outcome, strict=True))
            there = {
                s: self._values[s][tuple(at[one] for one in sorted(self.groups[s]))]
                for s in symbols
            }
            weights = (chances[k][one] for k, one in enumerate(outcome))
            yield sympy.Mul(*weights, value.xreplace(there))

    def expanded(self, value: sympy.Expr) -> sympy.Expr:
        """Express a number in terms of random inputs, and of names that do not depend
        on any."""
        if value.free_symbols & self.calculus.maxima:
            raise Unreadable("a maximum inside an expectation is not read")
        found = {}
        for symbol in value.free_symbols:
            definition = self.calculus.definition(symbol)
            if definition is None or not self.calculus.inputs(symbol) & {*self.groups}:
                continue
            if symbol not in self._expanded:
                self._expanded[symbol] = self.expanded(definition)
            found[symbol] = self._expanded[symbol]
        return value.xreplace(found)

    # ---- groups ----------------------------------------------------------------------

    @cached_property
    def _variables(self) -> dict[sympy.Symbol, Variable]:
        """Each random element, with its name."""
        variables = self.calculus.scope.variables
        return {
            self.calculus.element(variables[name], at): variables[name]
            for name in sorted(self.chances.random)
            for at in self.calculus.positions(variables[name])
        }

    @cached_property
    def groups(self) -> dict[sympy.Symbol, frozenset[int]]:
        """Each random element, with the numbers of the groups that it belongs to."""
        found: dict[sympy.Symbol, set[int]] = {s: set() for s in self._variables}
        self._members: list[list[sympy.Symbol]] = []
        joint = sorted(n for n in self.chances.random if not self._is_apart(n))
        for names in _cliques(joint, self.chances.are_independent):
            self._members.append(
                [s for s, v in self._variables.items() if v.name in names]
            )
        self._members += [
            [s] for s, v in self._variables.items() if self._is_apart(v.name)
        ]
        for number, symbols in enumerate(self._members):
            for symbol in symbols:
                found[symbol].add(number)
        return {symbol: frozenset(numbers) for symbol, numbers in found.items()}

    def _is_apart(self, name: str) -> bool:
        """Whether the elements of a name are independent of each other, and have their
        values on their own: how they depend on other names has to be declared."""
        scope = self.calculus.scope
        if "independent" in self.supposed or name in self.chances.apart:
            return True
        stated = any(
            r.name == name for one in self.chances.variances for r in one[0].used
        )
        return stated and not scope.variables[name].axes

    def _reject_unknown(self, symbols: set[sympy.Symbol]) -> None:
        """Raise `Unreadable` for a product of names that may depend on each other in a
        way that is not declared."""
        if "independent" in self.supposed:
            return
        names = sorted({self._variables[symbol].name for symbol in symbols})
        for one, other in itertools.combinations(names, 2):
            if self._is_apart(one) or self._is_apart(other):
                if not self.chances.are_independent(one, other):
                    raise Unreadable(
                        f"are these independent? Then say: independent {one}, {other}"
                    )

    @cached_property
    def _probabilities(self) -> list[tuple[sympy.Expr, ...]]:
        """The probabilities of the outcomes of each group."""
        found: list[tuple[sympy.Expr, ...]] = []
        for symbols in self._members:
            label = self._label(symbols[0])
            if symbols[0] in self._variances:
                t, u, w = self._of_variance(label)
                found.append(
                    tuple(
                        weight * one / (1 + w)
                        for weight, free in ((w, t), (sympy.S.One, u))
                        for one in (1 / (1 + free**2), free**2 / (1 + free**2))
                    )
                )
                continue
            if "binary" in self.supposed and len(symbols) == 1:
                p = self._symbol(f"w({label})", True)
                found.append((p / (1 + p), 1 / (1 + p)))
                continue
            count = min(max(LEAST, len(symbols) + 1), MOST)
            if any(len(self.groups[symbol]) > 1 for symbol in symbols):
                count = LEAST
            weights = [self._symbol(f"w({label})_{k + 1}", True) for k in range(count)]
            total = sympy.Add(*weights)
            found.append(tuple(weight / total for weight in weights))
        return found

    @cached_property
    def _values(self) -> dict[sympy.Symbol, dict[tuple[int, ...], sympy.Expr]]:
        """The value of each random element for each outcome of its groups."""
        return {symbol: self._values_of(symbol) for symbol in self._variables}

    def _values_of(self, symbol: sympy.Symbol) -> dict[tuple[int, ...], sympy.Expr]:
        groups, label = sorted(self.groups[symbol]), self._label(symbol)
        mean = self._means.get(symbol)
        if symbol in self._variances:
            if len(groups) > 1 or len(self._members[groups[0]]) > 1:
                raise Unreadable(
                    "a variance is read only of independent elements: say independent "
                    f"{self._variables[symbol].name}_i"
                )
            t, u, _ = self._of_variance(label)
            if mean is None:
                mean = self._symbol(f"m({label})", None)
            root = sympy.sqrt(self._variances[symbol])
            scale = root.replace(sympy.Abs, lambda argument: argument)
            return {
                (k,): mean + scale * z for k, z in enumerate((t, -1 / t, u, -1 / u))
            }
        chances = [self._probabilities[number] for number in groups]
        if "binary" in self.supposed and len(self._members[groups[0]]) == 1:
            return {(0,): sympy.S.One, (1,): sympy.S.Zero}
        found = {
            outcome: self._symbol(
                f"{label}({','.join(str(k + 1) for k in outcome)})", symbol.is_positive
            )
            for outcome in itertools.product(*(range(len(one)) for one in chances))
        }
        if mean is not None:
            weights = {
                outcome: sympy.Mul(
                    *(one[k] for one, k in zip(chances, outcome, strict=True))
                )
                for outcome in found
            }
            last = [*found][-1]
            drift = sympy.Add(
                *(weights[one] * found[one] for one in found if one != last)
            )
            found[last] = -drift / weights[last]
            found = {outcome: mean + one for outcome, one in found.items()}
        return found

    def _of_variance(self, label: str) -> list[sympy.Symbol]:
        return [self._symbol(f"{letter}({label})", True) for letter in "tuw"]

    def _label(self, symbol: sympy.Symbol) -> str:
        """Return what names the values of an element: the same for all elements that
        have one distribution."""
        name = self._variables[symbol].name
        if "identical" in self.supposed:
            return "same"
        if name not in self.chances.identical:
            return str(symbol)
        if not self._is_apart(name):
            raise Unreadable(f"are these independent? Then say: independent {name}_i")
        return name

    def _symbol(self, name: str, positive: bool | None) -> sympy.Symbol:
        symbol = sympy.Symbol(name, real=True, positive=positive or None)
        self.symbols.add(symbol)
        return symbol

    @cached_property
    def _means(self) -> dict[sympy.Symbol, sympy.Expr]:
        found = self._facts("means")
        for symbol, variable in self._variables.items():
            if f"centred {variable.name}" in self.supposed:
                found.setdefault(symbol, sympy.S.Zero)
        return found

    @cached_property
    def _variances(self) -> dict[sympy.Symbol, sympy.Expr]:
        return self._facts("variances")

    @cached_property
    def _covariances(self) -> dict[tuple[str, tuple[int, ...]], sympy.Expr]:
        """The covariances of the elements of each vector that has them, by its name and
        two places."""
        found = {}
        for left, right, _ in self.chances.covariances:
            name = left.references[id(left.tree)].name
            matrix = np.array(self.calculus.value_of(right, {}), dtype=object)
            for place in np.ndindex(*matrix.shape):
                matrix[place] = self.calculus.expand(sympy.sympify(matrix[place]))
            if (matrix != matrix.T).any():
                written = right.part.text
                raise Unreadable(
                    f"covariances are symmetric: say constant {written}, and assume "
                    rf"{written} = {written}^\top"
                )
            found |= {
                (name, place): matrix[place] for place in np.ndindex(*matrix.shape)
            }
        return found

    def _facts(self, kind: str) -> dict[sympy.Symbol, sympy.Expr]:
        """Return the declared mean or variance of each element that has one."""
        found: dict[sympy.Symbol, sympy.Expr] = {}
        for left, right, free in getattr(self.chances, kind):
            sides = map(self.calculus.size, free.values())
            for places in itertools.product(*map(range, sides)):
                where = dict(zip(free, places, strict=True))
                both = (self.calculus.value_of(side, where) for side in (left, right))
                pairs = zip(*map(np.ravel, np.broadcast_arrays(*both)), strict=True)
                found |= dict(pairs)
        return found


def _cliques(
    names: list[str], are_independent: Callable[[str, str], bool]
) -> list[frozenset[str]]:
    """Return the largest sets of names of which no two are independent."""
    found: list[frozenset[str]] = []
    for count in range(len(names), 0, -1):
        for chosen in map(frozenset, itertools.combinations(names, count)):
            pairs = itertools.combinations(sorted(chosen), 2)
            if not any(chosen <= one for one in found) and not any(
                are_independent(*pair) for pair in pairs
            ):
                found.append(chosen)
    return found
