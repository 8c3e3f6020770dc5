"""Find points at which comparisons have a combination of signs not met before.

A line with comparisons is compared exactly on each region in which their signs do not
change, and a few random points miss most of the regions of several comparisons.
Therefore many points are drawn, and only the signs are computed there, in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator
from random import Random

import numpy as np
import sympy

from backpass.derivation.equality.cells import points_of_cells
from backpass.derivation.language.evaluate import Evaluator
from backpass.derivation.language.names import Path
from backpass.derivation.language.values.points import SCALES, STEPS, Place

SAMPLES = 4096
NEAR = sympy.Rational(1, 2**16)  # the distance of a point from a boundary
DIFFERENCES, ROOTS = 2, 4  # at most so many of a comparison, and boundaries of each
MOST = 24  # differences whose boundaries on a line are compared with each other
DEGREE, CLOSE = 6, sympy.Rational(1, 2**80)  # of polynomials, and of their boundaries
SPAN, GRID = 10, 137  # boundaries are looked for up to SPAN, at GRID steps
_MATH = [{"erf": math.erf}, "math"]
_NUMPY = [{"erf": np.vectorize(math.erf)}, "numpy"]


def other_regions(
    evaluators: Collection[Evaluator], paths: Collection[Path], limit: int
) -> list[Place]:
    """Return at most `limit` points in regions of signs in which no evaluator is.

    The comparisons are those at `paths`. Their differences are known from the regions
    of the evaluators, so other regions may have other differences: call this again with
    evaluators at the points that it returned.
    """
    differences = _all_differences(evaluators, paths)
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
    tried = np.array(
        [[float(one.point[s]) for s in symbols] for one in evaluators if one.point]
    ).reshape(-1, len(symbols))
    met = {row.tobytes() for row in patterns(tried)}

    def new(points: np.ndarray, most: int) -> list[int]:
        """Return the numbers of points whose signs were not met before."""
        drawn, found = patterns(points), []
        for row in np.flatnonzero((drawn != 0).all(axis=1)):
            if len(found) == most:
                break
            if (pattern := drawn[row].tobytes()) not in met:
                met.add(pattern)
                found.append(int(row))
        return found

    drawn = steps / STEPS * scales[:, None].astype(float)
    starts = np.concatenate([tried, drawn[_first_of_each(patterns(drawn))]])
    cells = points_of_cells(differences[:MOST], symbols, starts, _NUMPY)
    found: list[Place] = [
        {s: _rational(value) for s, value in zip(symbols, cells[-1 - row], strict=True)}
        for row in new(cells[::-1], (limit + 1) // 2)
    ]
    found += [
        {
            symbol: scales[row] * sympy.Rational(int(step), STEPS)
            for symbol, step in zip(symbols, steps[row], strict=True)
        }
        for row in new(drawn, limit - len(found))
    ]
    return found


def _first_of_each(rows: np.ndarray) -> list[int]:
    """Return the number of the first of any equal rows, without those with a 0."""
    whole = np.flatnonzero((rows != 0).all(axis=1))
    return sorted({rows[row].tobytes(): int(row) for row in whole[::-1]}.values())


def _rational(value: float) -> sympy.Rational:
    return sympy.Rational(*float(value).as_integer_ratio())


def beside_boundaries(
    evaluators: Collection[Evaluator], paths: Collection[Path]
) -> Iterator[Place]:
    """Yield points on both sides of where a comparison changes its result.

    These points distinguish a comparison from every one whose boundaries are farther
    away than `NEAR`.
    """
    for path in paths:
        differences = {d for one in evaluators for d in _differences(one, path)}
        for difference in sorted(differences, key=str)[:DIFFERENCES]:
            yield from both_sides(difference, next(iter(evaluators)))


def between_boundaries(
    evaluators: Collection[Evaluator], paths: Collection[Path], limit: int
) -> list[Place]:
    """Return at most `limit` points between neighbouring boundaries of comparisons on
    a line, where these are so close that the points beside one are beyond the other.

    On the line one number changes. Its boundaries are exact: rational, or enclosed.
    """
    differences = _all_differences(evaluators, paths)
    anywhere = next(iter(evaluators)).point
    if len(differences) > MOST or anywhere is None:
        return []
    found: list[Place] = []
    symbols = sorted(set().union(*(d.free_symbols for d in differences)), key=str)
    for symbol in symbols:
        others = {s: anywhere[s] for s in symbols if s != symbol}
        ends = set()
        for difference in differences:
            if symbol in difference.free_symbols:
                ends |= _exact_roots(difference.xreplace(others), symbol)
        for low, high in itertools.pairwise(sorted(ends)):
            middle = (low + high) / 2
            if high - low < 2 * NEAR and not (symbol.is_positive and middle <= 0):
                found.append({**others, symbol: middle})
    return found[:limit]


def _exact_roots(alone: sympy.Expr, symbol: sympy.Symbol) -> set[sympy.Rational]:
    """Return where a polynomial of one symbol is 0, each place within `CLOSE`."""
    if not alone.is_polynomial(symbol):
        return set()
    polynomial = sympy.Poly(alone, symbol)
    if not all(one.is_Rational for one in polynomial.all_coeffs()):
        return set()
    if polynomial.degree() == 1:
        first, last = polynomial.all_coeffs()
        return {-last / first}
    if not 1 < polynomial.degree() <= DEGREE:
        return set()
    found = polynomial.intervals(eps=CLOSE)
    return {(low + high) / 2 for (low, high), _ in found}


def both_sides(difference: sympy.Expr, evaluator: Evaluator) -> Iterator[Place]:
    """Yield points on both sides of boundaries: those that are reached from an
    evaluator's point if one of its numbers changes."""
    assert evaluator.point is not None
    there = {symbol: evaluator.point[symbol] for symbol in difference.free_symbols}
    for symbol in sorted(there, key=str):
        others = {s: value for s, value in there.items() if s != symbol}
        if found := _roots(difference.xreplace(others), symbol):
            # Differs for each symbol, so that no other boundary is met.
            near = NEAR * sympy.Rational(Random(str(symbol)).randint(500, 1000), 1000)
            for root, step in itertools.product(found, (-near, near)):
                yield {**there, symbol: root + step}
            return


def _all_differences(
    evaluators: Collection[Evaluator], paths: Collection[Path]
) -> list[sympy.Expr]:
    """Return the differences of comparisons, in the same order in every run."""
    found = {d for one in evaluators for path in paths for d in _differences(one, path)}
    return sorted(found, key=str)


def _differences(evaluator: Evaluator, path: Path) -> Iterator[sympy.Expr]:
    for differences in evaluator.differences.get(path, {}).values():
        yield from (one for one in differences if one.free_symbols)


def _roots(alone: sympy.Expr, symbol: sympy.Symbol) -> list[sympy.Rational]:
    """Return where an expression of one symbol changes its sign."""
    slope = sympy.diff(alone, symbol)
    if slope.free_symbols:
        found = sorted(_exact_roots(alone, symbol))[:ROOTS] or _bisected(alone, symbol)
    else:
        root = sympy.expand(symbol - alone / slope) if slope != 0 else sympy.nan
        found = [root] if root.is_Rational else []
    return [root for root in found if not symbol.is_positive or root > NEAR]


def _bisected(alone: sympy.Expr, symbol: sympy.Symbol) -> list[sympy.Rational]:
    function = sympy.lambdify([symbol], alone, _MATH)
    least = 0 if symbol.is_positive else -GRID
    ends = [SPAN * k / GRID for k in range(least, GRID + 1)]
    found = []
    try:
        values = [function(end) for end in ends]
        for (low, high), (at_low, at_high) in zip(
            itertools.pairwise(ends), itertools.pairwise(values), strict=True
        ):
            if at_low * at_high >= 0:
                continue
            for _ in range(60):
                middle = (low + high) / 2
                if function(low) * function(middle) <= 0:
                    high = middle
                else:
                    low = middle
            found.append(sympy.Rational(round(low * 2**40), 2**40))
    except (ValueError, OverflowError, TypeError, ZeroDivisionError):
        pass  # not defined there
    return found[:ROOTS]
