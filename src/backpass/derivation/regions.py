"""Find points at which comparisons have signs that they had at no point tried yet.

A line with comparisons is compared exactly on each region in which their signs do not
change, and a few random points miss most of the regions of several comparisons.
Therefore many points are drawn, and only the signs are computed there, in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator
from typing import TypeAlias

import numpy as np
import sympy

from backpass.derivation.evaluate import SCALES, STEPS, Evaluator
from backpass.derivation.names import Path

Place: TypeAlias = dict[sympy.Symbol, sympy.Expr]  # a number for each symbol

SAMPLES = 4096
NEAR = sympy.Rational(1, 2**16)  # the distance of a point from a boundary
ROOTS = 2  # the boundaries of one comparison that are tried
_MATH = [{"erf": math.erf}, "math"]
_NUMPY = [{"erf": np.vectorize(math.erf)}, "numpy"]


def elsewhere(
    evaluators: Collection[Evaluator], paths: Collection[Path], limit: int
) -> list[Place]:
    """Return at most `limit` points in regions of signs in which no evaluator is.

    The comparisons are those at `paths`. Their differences are known from the regions
    of the evaluators, so other regions may have other differences: call this again with
    evaluators at the points that it returned.
    """
    differences = list(
        dict.fromkeys(
            difference
            for evaluator in evaluators
            for path in paths
            for difference in _differences(evaluator, path)
        )
    )
    if len(differences) < 2 or limit <= 0:
        return []
    symbols = sorted(set().union(*(d.free_symbols for d in differences)), key=str)
    signs = sympy.lambdify(symbols, differences, _NUMPY, cse=True)

    def patterns(values: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            columns = np.broadcast_arrays(*signs(*values.T), np.empty(len(values)))
        found = np.array(columns[:-1], dtype=float).T
        near = ~(np.abs(found) > 1e-9)  # also where it is NaN
        return np.where(near, 0, np.sign(found)).astype(np.int8)

    rng = np.random.default_rng([len(symbols), len(differences)])
    steps = 2 * rng.integers(-STEPS, STEPS, size=(SAMPLES, len(symbols))) + 1
    scales = np.array(SCALES, dtype=object)[rng.integers(len(SCALES), size=SAMPLES)]
    for column, symbol in enumerate(symbols):
        if symbol.is_positive:
            steps[:, column] = np.abs(steps[:, column])
    drawn = patterns(steps / STEPS * scales[:, None].astype(float))
    tried = np.array(
        [[float(one.point[s]) for s in symbols] for one in evaluators if one.point]
    ).reshape(-1, len(symbols))
    met = {row.tobytes() for row in patterns(tried)}
    found: list[Place] = []
    for row in np.flatnonzero((drawn != 0).all(axis=1)):
        if (pattern := drawn[row].tobytes()) not in met:
            met.add(pattern)
            found.append(
                {
                    symbol: scales[row] * sympy.Rational(int(step), STEPS)
                    for symbol, step in zip(symbols, steps[row], strict=True)
                }
            )
            if len(found) == limit:
                break
    return found


def beside_boundaries(
    evaluators: Collection[Evaluator], paths: Collection[Path]
) -> Iterator[Place]:
    """Yield points on both sides of where a comparison changes its result.

    So two comparisons whose boundaries are farther apart than `NEAR` are told apart.
    """
    for path in paths:
        differences = {d for one in evaluators for d in _differences(one, path)}
        for difference in sorted(differences, key=str)[:ROOTS]:
            yield from both_sides(difference, next(iter(evaluators)))


def both_sides(difference: sympy.Expr, evaluator: Evaluator) -> Iterator[Place]:
    """Yield points on both sides of a boundary near an evaluator's point."""
    assert evaluator.point is not None
    there = {symbol: evaluator.point[symbol] for symbol in difference.free_symbols}
    if root := _root(difference, there):
        symbol, value = root
        for step in (-NEAR, NEAR):
            yield {**there, symbol: value + step}


def _differences(evaluator: Evaluator, path: Path) -> Iterator[sympy.Expr]:
    for differences in evaluator.differences.get(path, {}).values():
        yield from (one for one in differences if one.free_symbols)


def _root(
    difference: sympy.Expr, point: Place
) -> tuple[sympy.Symbol, sympy.Expr] | None:
    """Return where a difference is 0 if one of the numbers of a point changes."""
    for symbol in sorted(point, key=str):
        others = {s: value for s, value in point.items() if s != symbol}
        alone = difference.xreplace(others)
        slope = sympy.diff(alone, symbol)
        if slope.free_symbols:
            value = _bisected(alone, symbol)
        else:
            value = symbol - alone / slope if slope != 0 else None
            value = None if value is None else sympy.nsimplify(sympy.expand(value))
        if value is not None and value.is_Rational:
            if not symbol.is_positive or value > NEAR:
                return symbol, value
    return None


def _bisected(alone: sympy.Expr, symbol: sympy.Symbol) -> sympy.Rational | None:
    """Return a number near which an expression of one symbol changes its sign."""
    function = sympy.lambdify([symbol], alone, _MATH)
    ends = sorted(
        float(scale * sign)
        for scale in SCALES
        for sign in ((1,) if symbol.is_positive else (-1, 1))
    )
    try:
        for low, high in itertools.pairwise(ends):
            if function(low) * function(high) < 0:
                for _ in range(60):
                    middle = (low + high) / 2
                    if function(low) * function(middle) <= 0:
                        high = middle
                    else:
                        low = middle
                return sympy.Rational(round(low * 2**40), 2**40)
    except (ValueError, OverflowError, TypeError, ZeroDivisionError):
        return None
    return None
