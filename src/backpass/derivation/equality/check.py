"""Check each line of a derivation against the line above it.

The two must be equal exactly, at several sizes and for every free index.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import sympy

from backpass.derivation.equality.generic import are_equal
from backpass.derivation.equality.numbers import may_be_equal
from backpass.derivation.language.analysis import Analysis
from backpass.derivation.language.calculus import Value
from backpass.derivation.language.definitions import assume, define
from backpass.derivation.language.evaluate import Evaluator
from backpass.derivation.language.expectations import (
    declare_identical,
    declare_independent,
    declare_moment,
    declare_random,
)
from backpass.derivation.language.functions import define_function
from backpass.derivation.language.indices import LARGEST
from backpass.derivation.language.names import Expression, Scope, in_words
from backpass.derivation.language.parse import (
    DECLARING,
    DerivationError,
    Line,
    Part,
    Unreadable,
)
from backpass.derivation.language.sequences import (
    check_recurrence,
    declare_range,
)
from backpass.derivation.language.values.points import DRAWS, Place, Point
from backpass.expressions import exact, intervals

TRIALS = 3
INTERVAL_DRAWS = 12  # points at which a difference is looked for by intervals
Sizes = dict[str, int]


@dataclass(frozen=True)
class Chain:
    """A statement and its steps: expressions that must all be equal.

    `lines` are the positions of their right sides in the derivation.
    """

    expressions: tuple[Expression, ...]
    lines: tuple[int, ...]
    conditions: Expression | None
    free: dict[str, str]  # each free index, with the dimension it runs over

    def cases(self, evaluator: Evaluator) -> Iterator[dict[str, int]]:
        """Yield every assignment of the free indices that meets the conditions."""
        ranges = [range(evaluator.calculus.size(side)) for side in self.free.values()]
        for values in itertools.product(*ranges):
            indices = dict(zip(self.free, values, strict=True))
            if self.conditions is None or evaluator.holds(self.conditions, indices):
                yield indices

    @property
    def still(self) -> frozenset[str]:
        """The names whose differentials the conditions set to 0."""
        if self.conditions is None:
            return frozenset()
        return frozenset(r.name for r in self.conditions.references.values())

    def has_cases_of(self, other: Chain) -> bool:
        """Whether a chain with one place changed still has the same cases."""
        return bool(self.conditions) == bool(other.conditions) and (
            self.free == other.free
        )

    def pair(self, line: int) -> Chain:
        """Return the step to a line from the one above it, as a chain of its own."""
        at = self.lines.index(line)
        return replace(self, expressions=self.expressions[at : at + 2], lines=(line,))


@dataclass
class Evaluators:
    """The evaluators of a scope created so far, by the items of their sizes and their
    draw."""

    scope: Scope
    create: Callable[[Scope, Sizes, int | None], Evaluator] = Evaluator
    known: dict[tuple[tuple[str, int] | int | None, ...], Evaluator] = field(
        default_factory=dict
    )

    def at(self, sizes: Sizes, draw: int | None) -> Evaluator:
        """Return the evaluator for these sizes and this draw of a point."""
        key = (*sizes.items(), draw)
        if key not in self.known:
            self.known[key] = self.create(self.scope, sizes, draw)
        return self.known[key]

    def around(self, sizes: Sizes, point: Place) -> Evaluator:
        """Return a new evaluator around a point."""
        draw = DRAWS + sum(one.sizes == sizes for one in self.known.values())
        evaluator = self.at(sizes, draw)
        assert evaluator.point is not None
        evaluator.point.update(point)
        return evaluator


def scope_of(lines: Iterable[Line]) -> Scope:
    """Return the scope of the declarations and definitions among the lines."""
    return evaluators_in(lines).scope


def evaluators_in(lines: Iterable[Line]) -> Evaluators:
    """Return the evaluators created so far for the scope of the declarations and
    definitions among the lines."""
    return _evaluators_in(tuple(line for line in lines if line.kind in DECLARING))


@lru_cache(maxsize=64)
def _evaluators_in(lines: tuple[Line, ...]) -> Evaluators:
    scope = Scope()
    for line in lines:
        _ADD[line.kind](scope, line)
        if line.kind == "let":
            check_recurrences(scope, line)
        if line.kind == "assume":
            for sizes in trial_sizes(scope):  # raises if it determines nothing
                _ = Evaluator(scope, sizes).calculus.assumed
    return Evaluators(scope)


def check_recurrences(scope: Scope, line: Line) -> None:
    """Raise `Unreadable` if a definition makes a name's element depend on itself."""
    assert line.right is not None
    variable = scope.defined_as(line.right)
    if scope.states_with(variable):
        evaluator = Evaluator(scope, trial_sizes(scope)[0], 0)
        check_recurrence(scope, variable, evaluator.calculus)


_ADD: dict[str, Callable[[Scope, Line], None]] = {
    "given": Scope.declare, "constant": Scope.declare, "slice": Scope.slice,
    "factor": Scope.multiply, "layout": Scope.lay_out, "applied": Scope.apply,
    "direct": Scope.hold,
    "broadcast": Scope.spread, "positive": Scope.suppose_positive,
    "let": define, "function": define_function, "assume": assume,
    "range": declare_range,
    "random": declare_random, "independent": declare_independent,
    "identical": declare_identical, "mean": declare_moment, "variance": declare_moment,
}  # fmt: skip


def trial_sizes(scope: Scope) -> list[Sizes]:
    """Choose sizes of 2, 3 or 4 for three trials.

    Any two dimensions differ in at least one trial. The first three differ in all
    trials, and the first six have each size once. Raises `DerivationError` for more
    than 27 dimensions, for which this is not possible.
    """
    courses = sorted(
        itertools.product(range(2, LARGEST + 1), repeat=TRIALS),
        key=lambda sizes: (-len(set(sizes)), (sizes[1] - sizes[0]) % 3),
    )
    if len(scope.dimensions) > len(courses):
        raise DerivationError(
            f"give sizes: {len(scope.dimensions)} dimensions are too many to choose sizes "
            "for"
        )
    return [
        dict(zip(scope.dimensions, (course[trial] for course in courses), strict=False))
        for trial in range(TRIALS if scope.dimensions else 1)
    ]


def chains_of(lines: list[Line], scope: Scope) -> list[Chain]:
    """Return the statements with their steps, analysed.

    Raises `Unreadable` for an expression without meaning.
    """
    numbers: list[list[int]] = []
    for k, line in enumerate(lines):
        if line.kind == "statement":
            numbers.append([k])
        elif line.kind == "step":
            numbers[-1].append(k)
    return [chain_of(lines, tuple(each), scope) for each in numbers]


def chain_of(lines: list[Line], numbers: tuple[int, ...], scope: Scope) -> Chain:
    """Return the statement with its steps that stands on the lines at these positions,
    analysed. Raises `Unreadable` for an expression without meaning."""
    head = lines[numbers[0]]
    analysis = Analysis(scope)
    sides = (head.left, *(lines[k].right for k in numbers))
    parts = [side for side in sides if side is not None]
    expressions = analysis.run(parts, head.conditions)
    conditions = expressions.pop(0) if head.conditions else None
    left = expressions[0]
    for expression in [*expressions[1:], *([conditions] if conditions else [])]:
        if more := sorted(expression.free - left.free):
            raise Unreadable(
                f"the index {more[0]} is not on the left side", expression.part
            )
        if expression is not conditions and expression.shape != left.shape:
            message = (
                f"the left side is {in_words(left.shape)}, but this is "
                f"{in_words(expression.shape)}"
            )
            raise Unreadable(message, expression.part)
    free = analysis.dimensions_of(left)
    return Chain(tuple(expressions), numbers, conditions, free)


def reject_empty(chain: Chain, evaluators: Iterable[Evaluator]) -> None:
    """Raise `Unreadable` if no indices meet a chain's conditions."""
    if not any(True for one in evaluators for _ in chain.cases(one)):
        assert chain.conditions is not None  # without them, all indices do
        raise Unreadable("no indices meet the conditions", chain.conditions.part)


class Mistake(NamedTuple):
    """A line that differs from the last correct line.

    It has the indices, the position of the element, and the two values. `against` names
    the correct line; it is "" if the line equals the wrong line directly above it.
    """

    part: Part
    against: str
    indices: dict[str, int]
    place: tuple[int, ...]
    above: Value
    here: Value


def first_mistake(chain: Chain, evaluator: Evaluator) -> Mistake | None:
    """Return the first line that differs from the line above it, or None.

    This takes much less time than writing its report.
    """
    return next(mistakes(chain, evaluator), None)


def mistakes(chain: Chain, evaluator: Evaluator) -> Iterator[Mistake]:
    """Yield each line that differs from the last correct line above it.

    Comparing with a correct line keeps one mistake from being reported for two lines.
    """
    cases = list(chain.cases(evaluator))
    anchor, *rest = chain.expressions
    known = [evaluator.value(anchor, indices, chain.still) for indices in cases]
    wrong: list[Value] = []  # the values of the line directly above, if it is wrong
    for expression in rest:
        here: list[Value] = []
        for indices, above in zip(cases, known, strict=True):
            here.append(evaluator.value(expression, indices, chain.still))
            place = _difference(expression, above, here[-1], evaluator)
            if place is not None:
                break
        else:
            anchor, known, wrong = expression, here, []
            continue
        mistake = Mistake(
            expression.part, "the line above it", indices, place, above, here[-1]
        )
        others = (
            evaluator.value(expression, i, chain.still) for i in cases[len(here) :]
        )
        if wrong:
            here += others
            pairs = zip(wrong, here, strict=True)
            is_repeated = all(
                _difference(expression, *pair, evaluator) is None for pair in pairs
            )
            last = f"line {anchor.part.line}, the last correct line above it"
            if anchor is chain.expressions[0]:
                last = f"the left side in line {anchor.part.line}"
            mistake = mistake._replace(against="" if is_repeated else last)
        yield mistake
        wrong = [*here, *others]


def _difference(
    expression: Expression, above: Value, here: Value, evaluator: Evaluator
) -> tuple[int, ...] | None:
    definitions, undecided = evaluator.calculus.definitions, None
    try:
        place = difference(above, here, definitions)
        if place is None or not may_be_equal(
            *((above[place], here[place]) if place else (above, here)), evaluator
        ):
            return place
        raise exact.NotRepresentable(
            (above - here)[place] if place else above - here,
            "it is 0 at the points tried",
        )
    except exact.NotRepresentable as error:
        undecided = error
    pairs = zip(*map(np.ravel, (above, here)), strict=True)
    for number, (one, other) in enumerate(pairs):
        if one != other and difference_point(one, other, evaluator) is not None:
            return tuple(map(int, np.unravel_index(number, np.shape(above))))
    pairs = zip(*map(np.ravel, (above, here)), strict=True)
    expand, signs = evaluator.calculus.expand, _signs_in(evaluator)
    if all(
        one == other or are_equal(one, other, expand, signs) for one, other in pairs
    ):
        return None
    raise Unreadable(
        "no difference was found, but equality cannot be decided here: "
        f"{_in_words(undecided)}",
        expression.part,
    ) from undecided


def _signs_in(evaluator: Evaluator) -> dict[sympy.Expr, int]:
    """Return the differences that comparisons have met around a point, each with its
    sign there; comparisons are tried with both."""
    if evaluator.point is None:
        return {}
    calculus, found = evaluator.calculus, {}
    for path, places in evaluator.differences.items():
        for where, differences in places.items():
            signs = evaluator.signs[path][where]
            if len(differences) == len(signs) == 1:
                expanded = sympy.expand(calculus.expand(*differences))
                found[expanded] = next(iter(signs))
    return found


def _in_words(error: exact.NotRepresentable) -> str:
    """Return for authors why an expression cannot be compared exactly."""
    part = error.part
    if isinstance(part, sympy.Abs | sympy.sign):
        return f"it has the absolute value or the sign of {part.args[0]}"
    if part.is_Pow and not part.exp.is_Rational:
        return f"{part} has an exponent that is not a rational number"
    return str(error)


def difference_point(
    above: sympy.Expr, here: sympy.Expr, evaluator: Evaluator
) -> Point | None:
    """Return a point at which two numbers certainly differ; None if none is found.

    Around a point, only that point is tried, because signs may change elsewhere.
    """
    calculus = evaluator.calculus
    above, here = calculus.expand(above), calculus.expand(here)
    if (above.free_symbols | here.free_symbols) & calculus.maxima:
        return None
    points = [Point(draw, evaluator.sizes) for draw in range(INTERVAL_DRAWS)]
    if evaluator.point is not None:
        points = [evaluator.point]
    found = intervals.point_of_difference(above, here, points)
    return found if isinstance(found, Point) else None


def holds_if_positive(mistake: Mistake, evaluator: Evaluator) -> bool:
    """Whether no difference is found between the values of a mistake where all inputs
    are positive."""
    if evaluator.point is not None:
        return False
    calculus = evaluator.calculus
    pair = (mistake.above, mistake.here)
    if mistake.place:
        pair = tuple(value[mistake.place] for value in pair)
    above, here = map(calculus.expand, pair)
    symbols = above.free_symbols | here.free_symbols
    if symbols & calculus.maxima or all(symbol.is_positive for symbol in symbols):
        return False
    draws = (Point(draw, evaluator.sizes) for draw in range(0, INTERVAL_DRAWS, 2))
    points = [{s: abs(point[s]) for s in symbols} for point in draws]
    if not all(intervals.is_enclosed(one, points) for one in (above, here)):
        return False
    return intervals.point_of_difference(above, here, points) is None


def difference(
    a: Value, b: Value, definitions: exact.Definitions
) -> tuple[int, ...] | None:
    """Return the position (zero-based) of the first element in which two values differ.

    It is () for two numbers, and None if the values are equal. Raises
    `exact.NotRepresentable` if no element differs and one cannot be compared.
    """
    if not isinstance(a, np.ndarray):
        return None if definitions.equal(a, b) else ()
    undecided = None
    for at in np.ndindex(a.shape):
        try:
            if not definitions.equal(a[at], b[at]):
                return at
        except exact.NotRepresentable as error:
            undecided = error
    if undecided is not None:
        raise undecided
    return None


def report(mistake: Mistake, evaluator: Evaluator) -> str:
    """Describe a mistake: the line, where it differs, and the two values."""
    part, against = mistake.part, mistake.against
    if not against:
        return f"this line equals the line above it, which is wrong\n{part.pointer(0)}"
    where, above, here = counterexample(mistake, evaluator)
    at = f"  at {', '.join(where)}:\n" if where else ""
    return (
        f"this line does not equal {against}\n{part.pointer(0)}\n{at}"
        f"    above: {above}\n    here:  {here}"
    )


def counterexample(
    mistake: Mistake, evaluator: Evaluator
) -> tuple[list[str], str, str]:
    """Return where a line differs from the correct one, and the two values there."""
    _, _, indices, place, above, here = mistake
    where = [f"{side} = {size}" for side, size in evaluator.sizes.items()]
    where += [f"{letter} = {value + 1}" for letter, value in indices.items()]
    if place:
        where.append(f"element ({', '.join(str(k + 1) for k in place)})")
        above, here = above[place], here[place]
    calculus = evaluator.calculus
    inputs = calculus.inputs
    symbols = sorted(inputs(above) | inputs(here), key=str)
    point = {
        symbol: sympy.Rational(3 + 2 * k, 7 + k) for k, symbol in enumerate(symbols)
    }
    if evaluator.point is None:
        pair = calculus.expand(above), calculus.expand(here)
        if intervals.point_of_difference(*pair, [point]) is None:
            there = difference_point(above, here, evaluator)
            if there is not None and len(symbols) <= 4:
                point = {symbol: there[symbol] for symbol in symbols}
                where += [f"{s} = {float(value):.2g}" for s, value in point.items()]
    else:
        compared = sorted(evaluator.point.items(), key=str)
        numbers = [f"{symbol} = {float(value):.2g}" for symbol, value in compared]
        where.append(f"around {', '.join(numbers)}")
        there = Point(evaluator.point.draw, evaluator.sizes)
        there.update(evaluator.point)
        point = {symbol: there[symbol] for symbol in symbols}
    return where, _shown(above, evaluator, point), _shown(here, evaluator, point)


def _shown(
    value: sympy.Expr, evaluator: Evaluator, point: dict[sympy.Symbol, sympy.Rational]
) -> str:
    text = str(value)
    if len(text) > 160:
        text = text[:160] + " …"
    number = evaluator.calculus.at(value, point).evalf(6)
    has_number = value.free_symbols and number.is_number
    return f"{text}  ({number} at one point)" if has_number else text
