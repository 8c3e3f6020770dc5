"""Compare two members of an equation, also with other names held constant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import sympy
from lark import Tree

from backpass.derivation.equality.check import (
    Chain,
    Evaluators,
    Mistake,
    Sizes,
    first_mistake,
    reject_empty,
    trial_sizes,
)
from backpass.derivation.equality.regions import (
    beside_boundaries,
    between_boundaries,
    both_sides,
    other_regions,
)
from backpass.derivation.language.analysis import Analysis
from backpass.derivation.language.calculus import Value
from backpass.derivation.language.evaluate import Evaluator
from backpass.derivation.language.names import (
    LOSS,
    Expression,
    Path,
    Scope,
    Variable,
)
from backpass.derivation.language.parse import Loose, Misfit, Part, Unreadable
from backpass.derivation.language.values.points import DRAWS, Place, Point
from backpass.expressions import exact

# At most this many further regions of signs are tried, in at most ROUNDS rounds.
REGIONS = 48
ROUNDS = 3


class Refused(Exception):
    """Raised for two expressions that differ."""

    def __init__(self, mistake: Mistake, evaluator: Evaluator, chain: Chain) -> None:
        self.mistake, self.evaluator, self.chain = mistake, evaluator, chain


# The derivatives that may hold other names constant.
HOLDING = (
    "partial", "differentiate", "directional", "nabla_of", "second", "second_of",
    "nabla_second",
)  # fmt: skip


class Holding(Evaluator):
    """An evaluator in which some partial derivatives hold other names constant: the
    `names`, or without any the names in the definition that is differentiated."""

    def __init__(
        self,
        scope: Scope,
        sizes: Sizes,
        draw: int | None,
        holding: frozenset[int],
        names: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(scope, sizes, draw)
        self.holding, self.names, self.holds_others = holding, names, False

    def visit(self, tree: Tree) -> Value:
        if tree.data not in HOLDING:
            return super().visit(tree)
        outside, self.holds_others = self.holds_others, id(tree) in self.holding
        value = super().visit(tree)
        self.holds_others = outside
        return value

    def derivative(self, value: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr:
        """Return the derivative with other names constant, or the total one."""
        if not self.holds_others:
            return self.calculus.derivative(value, symbol)
        if self.names:
            return self.calculus.holding(value, symbol, self.names)
        return self.calculus.direct(value, symbol)

    def gradient(self, variable: Variable, indices: tuple[int, ...]) -> sympy.Expr:
        """Return the gradient of the loss; of a state, with other states held."""
        return self.calculus.gradient(variable, indices, self.holds_others)


@dataclass(frozen=True)
class Where(Chain):
    """A chain restricted to cases in which two indices are equal, or to those in which
    they differ."""

    a: str
    b: str
    equal: bool

    def cases(self, evaluator: Evaluator) -> Iterator[dict[str, int]]:
        for indices in super().cases(evaluator):
            if (indices[self.a] == indices[self.b]) is self.equal:
                yield indices


def members_chain(
    scope: Scope,
    first: Part,
    anchor: Part,
    part: Part,
    condition: Part | None,
    loose: bool = False,
    kind: type[Analysis] = Analysis,
) -> Chain:
    """Return two members as a chain, with the free indices of the member `first`, or if
    `loose` with those of all members. `kind` is the analysis.

    Raises `Unreadable` for members without a meaning, and `Misfit` or `Loose` where
    another reading may have one.
    """
    parts = [first, part] if first == anchor else [first, anchor, part]
    analysis = kind(scope)
    expressions = analysis.run(parts, condition)
    conditions = expressions.pop(0) if condition else None
    head, *others = expressions
    for expression in [*others, *([conditions] if conditions else [])]:
        more = sorted(expression.free - head.free)
        if more and (not loose or expression is conditions):
            error = Loose(
                f"the index {more[0]} is not on the left side: is it summed over?",
                expression.part,
            )
            error.letter = more[0]
            raise error
    above, here = expressions[-2:]
    if above.shape != here.shape:
        shapes = [
            "a number" if not e.shape else " × ".join(e.shape) for e in (above, here)
        ]
        misfit = Misfit(
            f"this is {shapes[1]}, but it is set equal to {shapes[0]}", here.part
        )
        misfit.other = above.part
        raise misfit
    free = analysis.dimensions_of(head)
    for expression in others if loose else ():
        free |= analysis.dimensions_of(expression)
    return Chain((above, here), (0,), conditions, free)


def evaluators_of(known: Evaluators, chain: Chain) -> list[Evaluator]:
    """Return an evaluator for each trial, at several points if a sign matters."""
    signs = any(e.compared for e in (*known.scope.definitions, *chain.expressions))
    return [
        known.at(sizes, draw)
        for sizes in trial_sizes(known.scope)
        for draw in (range(DRAWS) if signs else (None,))
    ]


def compare(chain: Chain, evaluators: list[Evaluator]) -> None:
    """Raise `Refused` if two members differ, and `Unreadable` if that cannot be
    decided."""
    try:
        reject_empty(chain, evaluators)
        for evaluator in evaluators:
            if (mistake := first_mistake(chain, evaluator)) is not None:
                if _is_hidden(mistake, evaluator):
                    raise Unreadable(
                        "the two sides differ in a maximum; a maximum is read only where the "
                        "result does not depend on it",
                        mistake.part,
                    )
                _read_everywhere(chain, evaluator)
                raise Refused(mistake, evaluator, chain)
    except (ZeroDivisionError, RecursionError) as error:
        raise Unreadable(
            f"it cannot be evaluated: {error}", chain.expressions[-1].part
        ) from None


def _read_everywhere(chain: Chain, evaluator: Evaluator) -> None:
    """Raise `Unreadable` if a line has no value for some indices: it may be meant only
    for the others."""
    for indices in chain.cases(evaluator):
        for expression in chain.expressions:
            evaluator.value(expression, indices, chain.still)


def elsewhere(
    known: Evaluators, expressions: Iterable[Expression], evaluators: list[Evaluator]
) -> Iterator[Evaluator]:
    """Yield evaluators at points beside boundaries of comparisons and in further
    regions of signs, at the first sizes.

    Compare at each before you take the next: from then on, the differences that are
    compared there are known.
    """
    paths = [*dict.fromkeys(path for one in expressions for path in one.compared)]
    if not paths:
        return
    sizes = evaluators[0].sizes
    first = [one for one in evaluators if one.sizes == sizes]
    there = [one for one in known.known.values() if one.sizes == sizes and one.point]
    new = [one for one in there if one not in first]
    yield from new

    def evaluators_at(points: Iterable[Place]) -> Iterator[Evaluator]:
        for point in points:
            new.append(known.around(sizes, point))
            yield new[-1]

    tried = {path for one in new for path in one.differences}
    untried = [path for path in paths if path not in tried]
    yield from evaluators_at([*beside_boundaries(first, untried)])
    yield from evaluators_at(between_boundaries([*first, *new], paths, REGIONS))
    count = len(new)
    for _ in range(ROUNDS):
        points = other_regions([*first, *new], paths, count + REGIONS - len(new))
        yield from evaluators_at(points)
        if not points:
            break


def _is_hidden(mistake: Mistake, evaluator: Evaluator) -> bool:
    """Whether two values differ only as functions of their maxima: they agree at two
    random points, with the maxima evaluated there."""
    calculus = evaluator.calculus
    if not calculus.maxima:
        return False
    difference = (mistake.above - mistake.here) if not mistake.place else (
        mistake.above[mistake.place] - mistake.here[mistake.place]
    )  # fmt: skip
    difference = calculus.expand(difference)
    if not difference.free_symbols & calculus.maxima:
        return False
    for draw in range(2):
        value = calculus.at(difference, Point(draw, evaluator.sizes))
        if abs(value) > sympy.Rational(1, 10**20):
            return False
    return True


def uses_states(chain: Chain, scope: Scope) -> bool:
    """Whether the members use states of a recurrence, which are too long for a hint
    when they are expanded."""
    names = {r.name for e in chain.expressions for r in e.used if r.kind == "variable"}
    variables = [scope.variables[name] for name in names]
    return any(scope.states_with(scope.variables[n]) for n in scope.upstream(variables))


def sum_to_one(chain: Chain, evaluator: Evaluator) -> str:
    """Return the name of an input whose elements would have to sum to 1 for two members
    to be equal, as those of a label do; "" if no input is one."""
    calculus, differences = evaluator.calculus, []
    for indices in chain.cases(evaluator):
        values = (evaluator.value(e, indices, chain.still) for e in chain.expressions)
        for one, other in zip(*map(np.ravel, values), strict=True):
            differences.append(calculus.expand(one - other))
    used = set().union(*(difference.free_symbols for difference in differences))
    for variable in evaluator.scope.variables.values():
        if (
            variable.kind == "defined"
            or len(variable.axes) != 1
            or variable.name.startswith(r"\bar")
        ):
            continue
        places = calculus.positions(variable)
        *others, last = (calculus.element(variable, place) for place in places)
        if not others or not used & {*others, last}:
            continue
        value = {last: 1 - sympy.Add(*others)}
        try:
            if all(exact.is_zero(one.xreplace(value)) for one in differences):
                return variable.name
        except exact.NotRepresentable:
            continue
    return ""


def of_both_results(
    known: Evaluators, expressions: Iterable[Expression], evaluators: list[Evaluator]
) -> Iterator[Evaluator]:
    """Yield evaluators at points at which a comparison has the result that it has at
    none of the evaluators' points; each is added to them.

    Compare at each before you take the next. Raises `Unreadable` if a comparison has
    one result even then.
    """
    for path in dict.fromkeys(p for e in expressions for p in e.compared):
        before = None
        while seen := _one_sided(path, evaluators):
            where, there = seen
            if (where, there[0].sizes) == before:
                way = "positive" if 1 in there[0].signs[path][where] else "negative"
                raise Unreadable(
                    f"this difference is {way} at all {len(there)} points tried: one "
                    "case was not checked",
                    *path[0],
                )
            before = where, there[0].sizes
            differences = {  # each with an evaluator in whose region it is compared
                difference: one
                for one in there
                for difference in one.differences[path][where]
                if difference.free_symbols
            }
            for difference, evaluator in differences.items():
                for point in both_sides(difference, evaluator):
                    evaluators.append(known.around(evaluator.sizes, point))
                    yield evaluators[-1]


def _one_sided(
    path: Path, evaluators: list[Evaluator]
) -> tuple[tuple, list[Evaluator]] | None:
    """Return the indices at which a comparison has one result at all points, and the
    evaluators that met it; None if it has both results everywhere."""
    met: dict[tuple, tuple[set[int], list[Evaluator]]] = {}
    for evaluator in evaluators:
        sizes = tuple(evaluator.sizes.items())
        for where, signs in evaluator.signs.get(path, {}).items():
            seen, there = met.setdefault((sizes, where), (set(), []))
            seen.update(signs)
            there.append(evaluator)
    for (_, where), (seen, there) in met.items():
        if seen in ({1}, {-1}) and not _is_certain(path, where, there, seen):
            return where, there
    return None


def _is_certain(
    path: Path, where: tuple, evaluators: list[Evaluator], seen: set[int]
) -> bool:
    """Whether a comparison has this result because its names are positive."""
    differences = [d for one in evaluators for d in one.differences[path][where]]
    return bool(differences) and all(
        (one.is_positive if 1 in seen else one.is_negative)
        and all(symbol.is_positive for symbol in one.free_symbols)
        for one in differences
    )


def of_loss(expression: Expression, tree: Tree) -> bool:
    found = expression.references.get(id(tree.children[0]))
    return found is not None and found.name == LOSS


def of_loss_by_state(expression: Expression, tree: Tree, scope: Scope) -> bool:
    """Whether a derivative of the loss is with respect to a state of a recurrence."""
    found = expression.references.get(id(tree.children[1]))
    variable = scope.variables.get(found.name) if found else None
    return of_loss(expression, tree) and (
        variable is not None and bool(scope.states_with(variable))
    )
