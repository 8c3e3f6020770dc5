"""Find points at which comparisons have signs that they had at no point tried yet.

A line with comparisons is compared exactly on each region in which their signs do not
change, and a few random points miss most of the regions of several comparisons.
Therefore many points are drawn, and only the signs are computed there, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import sympy

from backpass.derivation.evaluate import SCALES, STEPS, Evaluator
from backpass.derivation.names import Path

SAMPLES = 4096
_NUMPY = [{"erf": np.vectorize(math.erf)}, "numpy"]


def elsewhere(
    evaluators: Collection[Evaluator], paths: Collection[Path], limit: int
) -> list[dict[sympy.Symbol, sympy.Expr]]:
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
            for difference in evaluator.differences.get(path, ())
            if difference.free_symbols
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
    found: list[dict[sympy.Symbol, sympy.Expr]] = []
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
