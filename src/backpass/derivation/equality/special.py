"""Whether two members that differ are equal where inputs have a special form.

A matrix may be orthogonal, a vector have length 1, a number be 0 or 1. A text may say
so in words. Inputs of the form are drawn, and the members are compared at them; the
other inputs stay general.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from random import Random
from typing import NamedTuple

import numpy as np
import sympy

from backpass.derivation.equality.check import Chain
from backpass.derivation.language.evaluate import Evaluator
from backpass.derivation.language.names import Variable
from backpass.derivation.language.parse import Unreadable
from backpass.derivation.language.values.points import Point
from backpass.expressions import intervals

POINTS = 3  # of the other inputs
MOST_NAMES = 6
MOST_ELEMENTS = 400  # of the members that are compared
UNVALUED = (
    Unreadable, ArithmeticError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip
Values = Mapping[sympy.Symbol, sympy.Expr]
Array = np.ndarray  # of rational numbers
# Draws arrays of some shapes; returns None for shapes that have no such form.
Draw = Callable[[Random, Sequence[tuple[int, ...]]], Sequence[Array] | None]


class Form(NamedTuple):
    """A form of inputs, which have these names."""

    kind: str
    names: tuple[str, ...]
    draw: Draw
    variables: tuple[Variable, ...]


class Differing:
    """Two members that differ, element by element, in terms of the inputs."""

    def __init__(self, chain: Chain, evaluator: Evaluator) -> None:
        self.chain, self.evaluator = chain, evaluator

    @cached_property
    def pairs(self) -> list[tuple[sympy.Expr, sympy.Expr]]:
        """The elements that differ in writing; none if they have no values."""
        with suppress(*UNVALUED):
            return self._pairs()
        return []

    def _pairs(self) -> list[tuple[sympy.Expr, sympy.Expr]]:
        chain, evaluator = self.chain, self.evaluator
        expand, pairs = evaluator.calculus.expand, []
        for indices in chain.cases(evaluator):
            values = (
                evaluator.value(e, indices, chain.still) for e in chain.expressions
            )
            for one, other in zip(*map(np.ravel, values), strict=True):
                pair = expand(sympy.sympify(one)), expand(sympy.sympify(other))
                if pair[0] != pair[1]:
                    pairs.append(pair)
        return [*dict.fromkeys(pairs)]

    @cached_property
    def inputs(self) -> list[Variable]:
        """The inputs of the elements that differ."""
        place_of = self.evaluator.calculus.place_of
        symbols = {s for pair in self.pairs for one in pair for s in one.free_symbols}
        found = (place_of(symbol)[0] for symbol in sorted(symbols, key=str))
        return [
            *dict.fromkeys(
                one
                for one in found
                if one and one.kind != "defined" and not one.name.startswith(r"\bar")
            )
        ]

    def forms(self) -> Iterator[Form]:
        """Yield the forms that inputs may have."""
        variables = self.inputs
        if not 0 < len(self.pairs) <= MOST_ELEMENTS or len(variables) > MOST_NAMES:
            return
        for kind, count, draw in _FORMS:
            for chosen in _choices(variables, count):
                names = tuple(one.name for one in chosen)
                yield Form(kind, names, draw, tuple(chosen))

    def equal_in(self, form: Form) -> bool:
        """Whether the members are equal at inputs of a form."""
        size = self.evaluator.calculus.size
        shapes = [tuple(map(size, one.axes)) for one in form.variables]
        for number in range(POINTS):
            arrays = form.draw(Random(number), shapes)
            if arrays is None or not self.equal_at(
                self.values(zip(form.variables, arrays, strict=True)), number
            ):
                return False
        return True

    def values(self, arrays: Iterable[tuple[Variable, Array]]) -> Values:
        """Return the values of the elements of variables. An array may have an axis of
        length 1 more, as a column has."""
        calculus = self.evaluator.calculus
        return {
            calculus.element(variable, place): value
            for variable, array in arrays
            for place, value in zip(
                calculus.positions(variable), np.ravel(array), strict=True
            )
        }

    def equal_at(self, values: Values, number: int) -> bool:
        """Whether all elements have values, and no difference, where some symbols have
        certain values and the others random ones, with either sign."""
        draws = (2 * number, 2 * number + 1)
        points = [Point(draw, self.evaluator.sizes) for draw in draws]
        for pair in self.pairs:
            one, other = (each.xreplace(values) for each in pair)
            if not all(intervals.is_enclosed(each, points) for each in (one, other)):
                return False
            if intervals.point_of_difference(one, other, points) is not None:
                return False
        return True


def _choices(
    variables: Sequence[Variable], count: int
) -> Iterator[tuple[Variable, ...]]:
    """Yield each choice of so many variables; if one is to be chosen, also all that
    have as many axes."""
    yield from itertools.permutations(variables, count)
    if count == 1:
        for axes in range(3):
            if len(alike := [one for one in variables if len(one.axes) == axes]) > 1:
                yield tuple(alike)


# ---- forms of one input, or of all that have as many axes ----------------------------


def _each(axes: int, draw: Callable[[Random, tuple[int, ...]], Array | None]) -> Draw:
    """Return what draws each of several arrays with so many axes."""

    def drawn(rng: Random, shapes: Sequence[tuple[int, ...]]) -> list[Array] | None:
        if any(len(shape) != axes for shape in shapes):
            return None
        arrays = [draw(rng, shape) for shape in shapes]
        return None if any(one is None for one in arrays) else arrays  # type: ignore[return-value]

    return drawn


def _numbers(rng: Random, shape: tuple[int, ...]) -> Array:
    """Draw rational numbers."""
    found = np.empty(shape, dtype=object)
    for place in np.ndindex(shape):
        found[place] = sympy.Rational(2 * rng.randint(-40, 40) + 1, 17)
    return found


def _among(*values: int) -> Callable[[Random, tuple[int, ...]], Array]:
    """Return what draws each element among some values."""

    def draw(rng: Random, shape: tuple[int, ...]) -> Array:
        found = np.empty(shape, dtype=object)
        for place in np.ndindex(shape):
            found[place] = sympy.Integer(rng.choice(values))
        return found

    return draw


def _unit(rng: Random, shape: tuple[int, ...]) -> Array:
    """Draw a vector of length 1, by stereographic projection."""
    t = _numbers(rng, (shape[0] - 1,))
    square = (t * t).sum()
    return np.array([*(2 * t / (1 + square)), (1 - square) / (1 + square)])


def _centred(rng: Random, shape: tuple[int, ...]) -> Array:
    x = _numbers(rng, shape)
    return x - x.mean()


def _constant(rng: Random, shape: tuple[int, ...]) -> Array:
    return np.repeat(_numbers(rng, (1,)), shape[0])


def _one_hot(rng: Random, shape: tuple[int, ...]) -> Array:
    found = np.full(shape, sympy.Integer(0), dtype=object)
    for row in found.reshape(-1, shape[-1]):
        row[rng.randrange(shape[-1])] = sympy.Integer(1)
    return found


def _square(
    draw: Callable[[Random, int], Array],
) -> Callable[[Random, tuple[int, ...]], Array | None]:
    """Return what draws a square matrix; a single element has no special form."""

    def drawn(rng: Random, shape: tuple[int, ...]) -> Array | None:
        return draw(rng, shape[0]) if shape[0] == shape[1] > 1 else None

    return drawn


def _symmetric(rng: Random, n: int) -> Array:
    a = _numbers(rng, (n, n))
    return a @ a.T + np.eye(n, dtype=int)  # positive definite, too


def _skew(rng: Random, n: int) -> Array:
    a = _numbers(rng, (n, n))
    return a - a.T


def _diagonal(rng: Random, n: int) -> Array:
    return _numbers(rng, (n,)) * np.eye(n, dtype=int)


def _triangular(rng: Random, n: int) -> Array:
    return np.tril(_numbers(rng, (n, n)))


def _inverse(a: Array) -> Array:
    return np.array(sympy.Matrix(a).inv().tolist(), dtype=object)


def _orthogonal(rng: Random, n: int) -> Array:
    """Draw an orthogonal matrix, by Cayley's transform."""
    skew, one = _skew(rng, n), np.eye(n, dtype=int)
    return _among(-1, 1)(rng, (n,)) * ((one - skew) @ _inverse(one + skew))


def _orthonormal(rng: Random, shape: tuple[int, ...]) -> Array:
    """Draw a matrix whose columns are orthonormal, or its rows if it has fewer."""
    found = _orthogonal(rng, max(shape))
    return found[: shape[0], : shape[1]]


def _projection(rng: Random, n: int) -> Array:
    v = _unit(rng, (n,))
    return np.outer(v, v)


def _stochastic(rng: Random, shape: tuple[int, ...]) -> Array:
    """Draw a matrix whose rows sum to 1."""
    a = abs(_numbers(rng, shape))
    return a / a.sum(axis=1, keepdims=True)


def _turned(rng: Random, shape: tuple[int, ...]) -> Array:
    return _stochastic(rng, shape[::-1]).T


def _rank_one(rng: Random, shape: tuple[int, ...]) -> Array:
    return np.outer(*(_numbers(rng, (n,)) for n in shape))


# ---- forms of several inputs ---------------------------------------------------------


def _equal(rng: Random, shapes: Sequence[tuple[int, ...]]) -> list[Array] | None:
    if shapes[0] != shapes[1]:
        return None
    return [_numbers(rng, shapes[0])] * 2


def _transposes(rng: Random, shapes: Sequence[tuple[int, ...]]) -> list[Array] | None:
    if len(shapes[0]) != 2 or shapes[0] != shapes[1][::-1]:
        return None
    a = _numbers(rng, shapes[0])
    return [a, a.T]


def _inverses(rng: Random, shapes: Sequence[tuple[int, ...]]) -> list[Array] | None:
    if len({*shapes}) > 1 or len(shapes[0]) != 2 or len({*shapes[0]}) > 1:
        return None
    a = _numbers(rng, shapes[0])
    return [a, _inverse(a)]


def _commuting(rng: Random, shapes: Sequence[tuple[int, ...]]) -> list[Array] | None:
    if len({*shapes}) > 1 or len(shapes[0]) != 2 or len({*shapes[0]}) > 1:
        return None
    a = _numbers(rng, shapes[0])
    return [a, a @ a + 3 * a]


def _perpendicular(
    rng: Random, shapes: Sequence[tuple[int, ...]]
) -> list[Array] | None:
    if len({*shapes}) > 1 or len(shapes[0]) != 1 or shapes[0][0] < 2:
        return None
    u, v = (_numbers(rng, shapes[0]) for _ in range(2))
    return [u, v - (u @ v) / (u @ u) * u]


def _eigenpair(rng: Random, shapes: Sequence[tuple[int, ...]]) -> list[Array] | None:
    """Draw a matrix, an eigenvector of it, and its eigenvalue."""
    if [*map(len, shapes)] != [2, 1, 0] or {*shapes[0]} != {*shapes[1]}:
        return None
    a, v, value = (_numbers(rng, shape) for shape in shapes)
    return [a + np.outer(value[()] * v - a @ v, v) / (v @ v), v, value]


_FORMS: tuple[tuple[str, int, Draw], ...] = (
    ("binary", 1, _each(0, _among(0, 1))),
    ("signs", 1, _each(0, _among(-1, 1))),
    ("unit", 1, _each(1, _unit)),
    ("centred", 1, _each(1, _centred)),
    ("one-hot", 1, _each(1, _one_hot)),
    ("binary", 1, _each(1, _among(0, 1))),
    ("signs", 1, _each(1, _among(-1, 1))),
    ("symmetric", 1, _each(2, _square(_symmetric))),
    ("skew", 1, _each(2, _square(_skew))),
    ("diagonal", 1, _each(2, _square(_diagonal))),
    ("triangular", 1, _each(2, _square(_triangular))),
    ("orthogonal", 1, _each(2, _square(_orthogonal))),
    ("orthonormal", 1, _each(2, _orthonormal)),
    ("projection", 1, _each(2, _square(_projection))),
    ("stochastic", 1, _each(2, _stochastic)),
    ("stochastic", 1, _each(2, _turned)),
    ("one-hot", 1, _each(2, _one_hot)),
    ("rank one", 1, _each(2, _rank_one)),
    ("transposes", 2, _transposes),
    ("inverses", 2, _inverses),
    ("commuting", 2, _commuting),
    ("perpendicular", 2, _perpendicular),
    ("eigenpair", 3, _eigenpair),
    ("constant", 1, _each(1, _constant)),
    ("equal", 2, _equal),
    ("one", 1, _each(0, _among(1))),
    ("zero", 1, _each(0, _among(0))),
    ("zero", 1, _each(1, _among(0))),
)
