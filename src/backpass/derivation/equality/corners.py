"""Find points in the regions between the boundaries of linear comparisons.

Where up to three boundaries meet, the signs on all their sides are reached by small
steps from that corner, however far it is from 0, where random points are drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import sympy

MOST = 24  # boundaries
CORNERS = 400  # at most so many corners
TOGETHER = 3  # at most so many boundaries at a corner
# The steps from the boundaries of a corner differ, because others may pass through it.
# They are not round numbers, because boundaries not yet known often are round.
_STEPS = np.array([[1, 1 / 4, 1 / 16], [1 / 16, 1 / 4, 1]]) * 0.9631
_REACH = 1 / 16  # a step, by the distance of the nearest other boundary


def beside_corners(
    linear: Sequence[tuple[np.ndarray, float]], start: np.ndarray
) -> np.ndarray:
    """Return points on all sides of boundaries a · x + c = 0, given as (a, c), near
    corners: the points nearest to `start` at which one, two, or three of them meet."""
    linear = linear[:MOST]
    found = [np.empty((0, len(start)))]
    if not linear:
        return found[0]
    lengths = np.array([np.linalg.norm(a) for a, _ in linear])
    normals = np.array([a for a, _ in linear]) / lengths[:, None]
    offsets = np.array([c for _, c in linear]) / lengths
    left = CORNERS
    for count in range(1, 1 + min(TOGETHER, len(linear), len(start))):
        chosen = itertools.combinations(range(len(linear)), count)
        groups = np.array([*itertools.islice(chosen, left)], dtype=int)
        left -= len(groups)
        if not len(groups):
            break
        found.append(_beside(normals, offsets, groups, start))
    return np.concatenate(found)


def _beside(
    normals: np.ndarray, offsets: np.ndarray, groups: np.ndarray, start: np.ndarray
) -> np.ndarray:
    count = groups.shape[1]
    meeting = normals[groups]
    products = meeting @ meeting.transpose(0, 2, 1)
    regular = np.linalg.det(products) > 1e-9
    groups, meeting, products = groups[regular], meeting[regular], products[regular]
    if not len(groups):
        return np.empty((0, len(start)))
    inverses = np.linalg.inv(products)
    # From a point, the shortest way to where the boundaries of a group are at -values.
    ways = meeting.transpose(0, 2, 1) @ inverses
    corners = start - (ways @ (meeting @ start + offsets[groups])[..., None])[..., 0]
    apart = np.abs(corners @ normals.T + offsets)
    apart[apart < 1e-9 * (1 + np.abs(offsets))] = np.inf
    reach = np.minimum(apart.min(axis=1), 1 / _REACH) * _REACH
    signs = np.array([*itertools.product((-1, 1), repeat=count)])
    steps = (signs[None] * _STEPS[:, None, :count]).reshape(-1, count)
    moved = (ways @ steps.T).transpose(0, 2, 1) * reach[:, None, None]
    return (corners[:, None, :] + moved).reshape(-1, len(start))


def linear_in(
    difference: sympy.Expr, symbols: Sequence[sympy.Symbol]
) -> tuple[np.ndarray, float] | None:
    """Return (a, c) if a difference is a · x + c with rational numbers; else None."""
    used = difference.free_symbols
    if not difference.is_polynomial(*used):
        return None
    slopes = [difference.coeff(symbol) for symbol in symbols]
    rest = sympy.expand(
        difference - sum(a * s for a, s in zip(slopes, symbols, strict=True))
    )
    if not rest.is_Rational or not all(one.is_Rational for one in slopes):
        return None
    return np.array(slopes, dtype=float), float(rest)
