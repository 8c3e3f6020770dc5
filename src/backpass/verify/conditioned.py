"""Pass an error in float64 that rounding explains.

The tolerance of exact methods allows for rounding in a different order. It does not
know the condition of a function: a variance of numbers near 1e5 loses five digits more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from backpass.verify.case import JUMPS, ROUNDINGS, Case
from backpass.verify.comparison import Key
from backpass.verify.convert import EPSILON, in_dtype
from backpass.verify.drawing import MEASURING, generator
from backpass.verify.findings import SLOPES_DIFFER
from backpass.verify.magnitude import largest
from backpass.verify.measured import spread
from backpass.verify.methods import complex_step
from backpass.verify.report import FAILED, PASSED, Row

DIGITS = EPSILON["float32"] / 2
IN_FLOAT32 = "every element; half a unit of float32, the digits of constants"
UNITS = 2  # in the last place, which rounding may move inputs and the cotangent
# Times as far they are moved too, so that few moves round to none. What forward and
# backward round on the way does not grow with the move.
FURTHER = 32
WIDER = 4  # times what a wider dtype changes
# Of the largest element: no rounding in float64. A gradient jumps by more at a kink.
MOST = 1e-4
HOW = (
    f"every element; {ROUNDINGS} times what {UNITS} units in the last place of the "
    "inputs and the cotangent change"
)
IN_A_WIDER = f"every element; {WIDER} times what a wider dtype changes"


def unless_rounded(row: Row, case: Case) -> Row:
    """Return the row of an exact method, passed if it failed by no more than what
    forward and backward round, as a wider dtype shows."""

    def allowed(key: Key, got: np.ndarray) -> np.ndarray:
        return WIDER * _rounded(case, key, got)

    return _unless(row, case, allowed, IN_A_WIDER)


def unless_digits(row: Row, case: Case) -> Row:
    """Return the row of an exact method, passed if it failed by less than float32 shows
    and an input has low precision: constants then need no more digits."""
    low = case.dtype != "float64" and case.subject.stem is None
    if not low or row.verdict != FAILED or not row.error or row.error > DIGITS:
        return row
    return replace(row, verdict=PASSED, tolerance=DIGITS, reason="", how=IN_FLOAT32)


def unless_rounding(row: Row, case: Case) -> Row:
    """Return the row of an exact method, passed if it failed by no more than what
    moving the inputs and the cotangent by units in the last place changes."""

    def moved(key: Key, got: np.ndarray) -> np.ndarray:
        return _moves(case, key)

    def rough(key: Key, got: np.ndarray) -> np.ndarray:
        jumps = 0.0 if key == "y" else complex_step.roughness(case, key)
        return _moves(case, key) + JUMPS * jumps

    row = _unless(row, case, moved, HOW)
    # Far from 0, roughness also contains how the slope changes, and is too large.
    return _unless(row, case, rough, HOW) if row.method == complex_step.NAME else row


def _unless(
    row: Row, case: Case, allow: Callable[[Key, np.ndarray], np.ndarray], how: str
) -> Row:
    """Return the row, passed if each element's error is allowed, apart from a few units
    in the last place of the largest."""
    if row.verdict != FAILED or not row.error or not row.error < MOST:
        return row
    key: Key = "y"
    if row.quantity in case.quantities:
        key = case.differentiable[case.quantities.index(row.quantity)]
    elif row.quantity != "y":
        return row
    got = case.y if key == "y" else case.gradients[key]
    if got is None or not np.isfinite(got).all():
        return row
    size = largest(got)
    allowed = allow(key, got) + 4 * EPSILON["float64"] * size
    if largest(allowed) > MOST * size:
        return row
    if row.reason == SLOPES_DIFFER:
        slopes = case.found.slopes[row.method, row.quantity]
        within = all(
            abs(error) <= np.linalg.norm(allowed * moved) for error, moved in slopes
        )
    elif key == "y":
        within = row.error * size <= largest(allowed)
    else:
        reference = case.found.references.get((row.method, row.quantity))
        if reference is None:
            return row
        within = bool((np.abs(got - reference) <= allowed).all())
    if not within:
        return row
    tolerance = max(largest(allowed) / size, row.error)
    return replace(row, verdict=PASSED, tolerance=tolerance, reason="", how=how)


def _rounded(case: Case, key: Key, got: np.ndarray) -> np.ndarray:
    """Return how far each element of a gradient is from the one in NumPy's widest
    dtype; 0 if forward or backward does not compute in it, or for y.

    Moving the inputs does not show what is lost where forward rounds y, as in 1 − y.
    """
    if key == "y":
        return np.zeros(got.shape)
    try:
        inputs = [in_dtype(value, "longdouble") for value in case.float64]
        y, saved = case.subject.forward(*inputs)
        dy = case.dy.astype(np.longdouble).reshape(np.shape(y))
        wide = case.slots.by_input(case.subject.backward(dy, saved))[key]
    except Exception:  # they need not accept this dtype
        return np.zeros(got.shape)
    if y.dtype != np.longdouble or wide is None or wide.shape != got.shape:
        return np.zeros(got.shape)
    return np.nan_to_num(np.abs(got - wide))


def _moves(case: Case, key: Key) -> np.ndarray:
    """Return how far each element moves with the last digits of inputs and cotangent,
    with a margin."""
    rng = generator(case.seed, MEASURING)
    unit = UNITS * EPSILON["float64"]
    if key == "y":
        function, values = case.forward, case.float64
    else:
        function, values = partial(case.gradient_at, key), (*case.float64, case.dy)
    near, far = (spread(function, values, n * unit, rng) for n in (1, FURTHER))
    return ROUNDINGS * np.maximum(near, far / FURTHER)
