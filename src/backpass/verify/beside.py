"""Compare a gradient beside a kink of y, where differences at the kink show nothing.

Where several kinks meet, as at a row of zeros that many ReLUs receive, a backward adds
up its conventions, and the sum need not lie between the slopes on the two sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from backpass.verify.case import Case
from backpass.verify.convert import to_kind_of
from backpass.verify.diagnosis.places import index_text, numbers_apart
from backpass.verify.findings import SLOPES_DIFFER
from backpass.verify.magnitude import largest
from backpass.verify.report import FAILED, PASSED, Row

MOVE = 1e-3  # of the largest element
POINTS = 12
TRIED = 3  # of these: a step there may cross another kink
SAME, LEAST = 0.05, 1e-6  # of an element, and of the largest: changes by curvature
WRONG = "y has a kink at these inputs, and the gradient is wrong at a point nearby"
NOTE = (
    "y has a kink at these inputs; the gradient was compared at a point nearby, and "
    "lies between its values at points around the kink, or between these and 0"
)


def judged(case: Case, at: int, compared: Callable[[Case], Row]) -> Row | None:
    """Return a passed row if a gradient at a kink is one of those that a right backward
    may return there, a failed one if it is wrong at points nearby too, or None.

    ``compared(case)`` compares the gradient at other inputs. Each element has to lie
    between those at points around the kink; or between them and 0, if more than two
    values occur there.
    """
    got = case.gradients[at]
    if got is None or got.shape != case.float64[at].shape:
        return None
    near = list(_around(case, at))
    try:
        every = [other.gradients[at] for other in near]
    except Exception:  # forward or backward may reject such inputs
        return None
    gradients = [of for of in every if of is not None and of.shape == got.shape]
    if len(gradients) < len(near):
        return None
    around = np.stack(gradients)
    if not (np.isfinite(around).all() and np.isfinite(got).all()):
        return None
    low, high = around.min(axis=0), around.max(axis=0)
    allowed = SAME * np.abs(around).max(axis=0) + LEAST * largest(around)
    several = _count(around, allowed) > 2
    low = np.where(several, np.minimum(low, 0.0), low)
    high = np.where(several, np.maximum(high, 0.0), high)
    within = not ((got < low - allowed) | (got > high + allowed)).any()
    rows = [compared(other) for other in near[:TRIED]]
    if all(row.verdict == FAILED for row in rows):
        return replace(rows[0], reason=_beside(rows[0], near[0], at))
    found = next((row for row in rows if row.verdict == PASSED), None)
    return replace(found, note=NOTE) if found and within else None


def _beside(row: Row, case: Case, at: int) -> str:
    """Return how a gradient is wrong at a point near a kink."""
    got = case.gradients[at]
    reference = case.found.references.get((row.method, row.quantity))
    if got is None or reference is None or reference.shape != got.shape:
        return f"{WRONG}: {SLOPES_DIFFER}"
    off = np.nan_to_num(np.abs(got - reference))
    index = tuple(int(i) for i in np.unravel_index(off.argmax(), off.shape))
    shown, expected = numbers_apart(got[index], reference[index])
    return f"{WRONG}: got {shown} at {index_text(index)}, expected {expected}"


def _around(case: Case, at: int) -> Iterator[Case]:
    """Yield the case at points around one input."""
    x, rng = case.float64[at], case.rng
    size = largest(x) or 1.0
    for _ in range(POINTS):
        sizes = rng.uniform(0.5, 1.5, x.shape) * rng.choice([-1.0, 1.0], x.shape)
        moved = np.where(np.isfinite(x), x + MOVE * size * sizes, x)
        inputs = list(case.inputs)
        inputs[at] = to_kind_of(inputs[at], moved)
        yield replace(case.elsewhere(tuple(inputs)), given_dy=case.dy)


def _count(around: np.ndarray, apart: np.ndarray) -> np.ndarray:
    """Return how many different values each element has."""
    ordered = np.sort(around, axis=0)
    return 1 + (np.diff(ordered, axis=0) > 2 * apart).sum(axis=0)
