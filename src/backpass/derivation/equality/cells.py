"""Find a point in each region between the boundaries of comparisons, also far from 0
and between curved boundaries.

The boundaries are added one by one. Each region so far is left across the new boundary:
from a point in it, steps increase the product of the distances to its own boundaries
and to a place beyond the new one (Huard's method of centres). The steps do not depend
on scales, so a region may be narrow or far away. Every region between linear boundaries
is found. Between curved ones a region that is not convex may be missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import sympy

CELLS = 160  # at most so many regions
STEPS, CENTRING = 100, 3  # steps across a boundary, and behind it
_LENGTHS = 0.9631 / 2.0 ** np.arange(10)  # of a step; points on round boundaries differ
PULL = 4  # of the new boundary, by the push of all others
SYMBOLS, OPERATIONS = 8, 60  # at most so many in a boundary that is curved
_TOGETHER = 2  # points of a region from which the next boundary is crossed

Many: TypeAlias = np.ndarray  # a row for each point
Entries: TypeAlias = dict[tuple[int, ...], sympy.Expr]


class _Sides:
    """The values of differences at points, and how these change."""

    def __init__(
        self,
        differences: Sequence[sympy.Expr],
        symbols: Sequence[sympy.Symbol],
        modules: list,
    ) -> None:
        self.count, self.width = len(differences), len(symbols)
        entries: Entries = {(number,): one for number, one in enumerate(differences)}
        self._values = _Entries(entries, symbols, modules)
        entries = _derivatives(entries, symbols)
        self._slopes = _Entries(entries, symbols, modules)
        self._bends = _Entries(_derivatives(entries, symbols), symbols, modules)
        self.bent = {number for number, _, _ in self._bends.places}

    def values(self, points: Many) -> Many:
        return self._values.at(points)

    def slopes(self, points: Many) -> Many:
        found = np.zeros((len(points), self.count, self.width))
        numbers, along = self._slopes.columns
        found[:, numbers, along] = self._slopes.at(points)
        return found

    def bends(self, points: Many, weights: Many) -> Many:
        """Return the sums of the second derivatives by these weights."""
        numbers, first, second = self._bends.columns
        found = np.zeros((len(points), self.width, self.width))
        with np.errstate(all="ignore"):
            terms = self._bends.at(points) * weights[:, numbers]
        for column, place in enumerate(zip(first, second, strict=True)):
            found[:, *place] += terms[:, column]
        return found


class _Entries:
    """Expressions at their places in an array, as functions of many points."""

    def __init__(
        self, entries: Entries, symbols: Sequence[sympy.Symbol], modules: list
    ) -> None:
        self.places = [*entries]
        self.columns = [
            np.array(one, dtype=int) for one in zip(*self.places, strict=True)
        ]
        self._function = sympy.lambdify(symbols, [*entries.values()], modules, cse=True)

    def at(self, points: Many) -> Many:
        with np.errstate(all="ignore"):
            found = np.broadcast_arrays(
                *self._function(*points.T), np.empty(len(points))
            )
        return np.array(found[:-1], dtype=float).T


def _derivatives(entries: Entries, symbols: Sequence[sympy.Symbol]) -> Entries:
    """Return the derivatives that are not 0."""
    found = {
        (*place, number): sympy.diff(entry, symbol)
        for place, entry in entries.items()
        for number, symbol in enumerate(symbols)
        if symbol in entry.free_symbols
    }
    return {place: entry for place, entry in found.items() if entry != 0}


def points_of_cells(
    differences: Sequence[sympy.Expr],
    symbols: Sequence[sympy.Symbol],
    starts: Many,
    modules: list,
) -> Many:
    """Return a point for each combination of signs that is found, from `starts`.

    A positive symbol is positive at every start, and remains so.
    """
    ends = [symbol for symbol in symbols if symbol.is_positive]
    differences = [one for one in differences if _is_simple(one)]
    if not differences:
        return starts[:0]
    sides = _Sides([*ends, *differences], symbols, modules)
    points = starts[np.isfinite(sides.values(starts)).all(axis=1)]
    for count in range(len(ends), sides.count):
        points = _first_of_each(points, sides, count)
        signs = np.sign(sides.values(points)[:, : count + 1])
        there = {row.tobytes() for row in signs}
        beyond = signs * np.where(np.arange(count + 1) == count, -1, 1)
        left = np.array([row.tobytes() not in there for row in beyond], dtype=bool)
        if left.any():
            crossed = _crossed(points[left], beyond[left], sides)
            points = np.concatenate([points, crossed])
    return _first_of_each(points, sides, sides.count, most=1)


def _is_simple(difference: sympy.Expr) -> bool:
    """Whether it takes little time to differentiate a difference twice."""
    used = difference.free_symbols
    if difference.has(sympy.Abs, sympy.sign):
        return False
    if difference.is_polynomial(*used) and sympy.Poly(difference, *used).is_linear:
        return True
    return len(used) <= SYMBOLS and difference.count_ops() <= OPERATIONS


def _first_of_each(
    points: Many, sides: _Sides, count: int, most: int = _TOGETHER
) -> Many:
    """Return the first points with each combination of the first signs, none of 0."""
    signs = np.sign(sides.values(points)[:, :count])
    met: dict[bytes, list[int]] = {}
    for row in np.flatnonzero((signs != 0).all(axis=1)):
        same = met.setdefault(signs[row].tobytes(), [])
        if len(same) < most:
            same.append(int(row))
    chosen = [row for same in list(met.values())[:CELLS] for row in same]
    return points[chosen]


def _crossed(points: Many, signs: Many, sides: _Sides) -> Many:
    """Return points with these signs, where they are reached from points at which all
    but the last of them hold."""
    found = [np.empty((0, sides.width))]
    before = np.full(len(points), np.inf)
    for number in range(STEPS):
        last = (sides.values(points)[:, : signs.shape[1]] * signs)[:, -1]
        there = last > 0
        found.append(_centred(points[there], signs[there], sides))
        # Every few steps, points that have not come nearer are given up.
        if number % 4 == 3:
            there |= ~(-last < 0.9 * before)
            before = -last
        points, signs, before = points[~there], signs[~there], before[~there]
        if not len(points):
            break
        points = _step(points, signs, sides, towards=2.5 * -last[~there])
    return np.concatenate(found)


def _centred(points: Many, signs: Many, sides: _Sides) -> Many:
    for _ in range(CENTRING if len(points) else 0):
        points = _step(points, signs, sides, towards=np.zeros(len(points)))
    return points


def _step(points: Many, signs: Many, sides: _Sides, towards: Many) -> Many:
    """Return points from which the last boundary is farther behind, if any are."""
    count = signs.shape[1]

    def distances(places: Many, of: np.ndarray) -> Many:
        found = sides.values(places)[:, :count] * signs[of]
        found[:, -1] += towards[of]
        return found

    each = np.arange(len(points))
    weights = np.ones(count)
    weights[-1] = PULL * count
    away = distances(points, each)
    with np.errstate(all="ignore"):
        pushes = signs / away
        rows = sides.slopes(points)[:, :count] * pushes[..., None]
    pushes[~np.isfinite(rows).all(axis=2)] = 0
    rows[~np.isfinite(rows)] = 0
    ways = [_straight(rows, weights)]
    if any(number < count for number in sides.bent):
        more = np.zeros((len(points), sides.count - count))
        bends = sides.bends(points, np.concatenate([pushes * weights, more], axis=1))
        ways.append(_bent(rows, weights, bends))
    lengths = np.array(_LENGTHS)[:, None]
    moves = np.concatenate([way[:, None] * lengths for way in ways], axis=1)
    tried = points[:, None] + moves
    of = np.repeat(each, moves.shape[1])
    with np.errstate(all="ignore"):
        merits = np.log(distances(tried.reshape(-1, sides.width), of)) @ weights
        merits = np.where(np.isnan(merits), -np.inf, merits)
        merits = merits.reshape(len(points), -1)
        known = np.log(away) @ weights
    best = merits.argmax(axis=1)
    better = merits[each, best] > known
    return np.where(better[:, None], tried[each, best], points)


def _straight(rows: Many, weights: np.ndarray) -> Many:
    """Return Newton's steps if the boundaries are linear, where these are nearly
    parallel, too."""
    rows = rows * np.sqrt(weights)[:, None]
    scale = np.sqrt((rows**2).sum(axis=1)) + 1e-300
    inverse = np.linalg.pinv(rows / scale[:, None], rcond=1e-12)
    return inverse @ np.sqrt(weights) / scale


def _bent(rows: Many, weights: np.ndarray, bends: Many) -> Many:
    """Return Newton's steps with all second derivatives, uphill in each direction."""
    with np.errstate(all="ignore"):
        curved = np.nan_to_num(rows.transpose(0, 2, 1) * weights @ rows - bends)
    along, ways = np.linalg.eigh(curved)
    along = np.maximum(np.abs(along), 1e-12 * np.abs(along).max(axis=1)[:, None])
    uphill = (rows * weights[:, None]).sum(axis=1)
    turned = (uphill[:, None] @ ways)[:, 0] / (along + 1e-300)
    return (ways @ turned[..., None])[..., 0]
