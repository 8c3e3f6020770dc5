"""Judge a result where inputs have equal elements.

A maximum, a sort, or a top-k chooses among equal elements by a convention, and rounding
to half precision can make elements equal that were drawn different. So the reference is
computed again beside the ties: equal elements are moved apart, in several orders, by
far less than a unit in the last place. A gradient may be divided among equal elements
in any way, but its sum may not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from backpass.verify.case import Case
from backpass.verify.comparison import Key
from backpass.verify.convert import (
    EPSILON,
    device_of,
    is_floating,
    is_torch,
    to_numpy,
    to_torch,
)
from backpass.verify.drawing import generator
from backpass.verify.magnitude import largest

ORDERS = 8  # in which equal elements are moved apart
MOVE = 2.0**-8  # of a unit in the last place: the farthest that they are moved
JUMP = 0.002  # of an element: a larger change counts as a jump
SUM = 4  # units in the last place of the largest element, for a sum of equal ones
TIES = 8  # a stream of the seed

Results = dict[Key, np.ndarray]
Moves = Callable[[int], np.ndarray]  # of n elements, each from -1 to 1


class Beside:
    """The reference beside the ties of a case. ``reference`` computes y and the
    gradients of a case in float64."""

    def __init__(self, case: Case, reference: Callable[[Case], Results]) -> None:
        self.case, self.reference = case, reference

    @cached_property
    def _apart(self) -> list[Results]:
        return [self.reference(of) for of in _apart(self.case)]

    @cached_property
    def _together(self) -> list[Results]:
        moves = (np.ones, _backwards)
        return [self.reference(_moved(self.case, move)) for move in moves]

    def excused(
        self, key: Key, got: np.ndarray | None, allowed: np.ndarray
    ) -> tuple[np.ndarray | None, int]:
        """Return y or a gradient, with the reference's elements where only the choice
        among equal elements of an input makes it differ, and how many these are.

        If an element differs for any other reason, the result is returned as it is.
        """
        case, right = self.case, self.reference(self.case)[key]
        if got is None or got.shape != right.shape or not np.isfinite(got).all():
            return got, 0
        off = ~(np.abs(got - right) <= allowed)
        if not off.any() or not any(map(_has_ties, case.inputs)):
            return got, 0
        apart = [of[key] for of in self._apart]
        chosen = np.any([_jumps(of, right) for of in apart], axis=0)
        for of in self._together:  # a kink of each element by itself
            chosen &= ~_jumps(of[key], right)
        if (off & ~chosen).any():
            return got, 0
        met = np.any([np.abs(got - of) <= allowed for of in apart], axis=0)
        if key != "y":
            low, high = (of([right, *apart], axis=0) for of in (np.min, np.max))
            between = (low - allowed <= got) & (got <= high + allowed)
            x, most = case.float64[key], SUM * EPSILON[case.dtype] * largest(right)
            tied = _ties(x)
            met = np.where(tied, between, met)
            # The tolerance was measured beside ties too, and may include jumps.
            least = np.minimum(allowed, most)
            if not _is_conserved(x, got - right, chosen & tied, least):
                return got, 0
        if (off & ~met).any():
            return got, 0
        return np.where(off, right, got), int(off.sum())


def note(n: int) -> str:
    """Return the note of a result of which n elements are excused."""
    elements = f"{n} elements differ" if n > 1 else "1 element differs"
    return f"{elements} by the choice among equal elements, which is a convention"


def _jumps(there: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return which elements of two references differ by more than their inputs."""
    return np.abs(there - right) > JUMP * np.maximum(np.abs(there), np.abs(right))


def _apart(case: Case) -> Iterator[Case]:
    """Yield the case with equal elements moved apart: in ascending and in descending
    order, so that the first or the last of each is the largest, and in random ones."""
    yield _moved(case, _ascending)
    yield _moved(case, lambda n: -_ascending(n))
    rng = generator(case.seed, TIES)
    for _ in range(ORDERS - 2):
        yield _moved(case, lambda n: rng.permutation(_ascending(n)))


def _ascending(n: int) -> np.ndarray:
    return np.linspace(-1.0, 1.0, n)


def _backwards(n: int) -> np.ndarray:
    return -np.ones(n)


def _moved(case: Case, moves: Moves) -> Case:
    """Return the case with the equal elements of each input moved, in float64."""
    moved = {}
    for at, given in enumerate(case.inputs):
        if not _has_ties(given):
            continue
        x = to_numpy(given)
        size = np.where(x == 0, _least(x), np.abs(x))
        unit = MOVE * EPSILON[case.dtype] * size
        moved[at] = np.where(_ties(x), x + unit * moves(x.size).reshape(x.shape), x)
    return beside(case, moved)


def beside(case: Case, moved: Mapping[int, np.ndarray]) -> Case:
    """Return the case with some inputs replaced by numbers of float64, for a reference.

    Forward says which outputs have gradients; it need not accept these inputs.
    """
    inputs = tuple(
        value
        if at not in moved
        else to_torch(moved[at], device_of(value))
        if is_torch(value)
        else moved[at]
        for at, value in enumerate(case.inputs)
    )
    subject = replace(case.subject, forward=partial(_at_the_given, case))
    return replace(case, subject=subject, inputs=inputs, given_dy=case.dy)


def _at_the_given(case: Case, *_: object, **__: object) -> tuple[Any, Any]:
    return case.subject.forward(*case.given())


def _has_ties(value: object) -> bool:
    return is_floating(value) and bool(_ties(to_numpy(value)).any())


def _ties(x: np.ndarray) -> np.ndarray:
    """Return which elements are finite and equal another one."""
    _, group, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (counts[group] > 1).reshape(x.shape) & np.isfinite(x)


def _least(x: np.ndarray) -> float:
    """Return the smallest size of an element other than 0, or 1."""
    sizes = np.abs(x[np.isfinite(x) & (x != 0)])
    return float(sizes.min(initial=np.inf)) if sizes.size else 1.0


def _is_conserved(
    x: np.ndarray, off: np.ndarray, chosen: np.ndarray, allowed: np.ndarray
) -> bool:
    """Whether the errors of equal elements add up to no more than rounding."""
    _, group = np.unique(x, return_inverse=True)
    group = group.reshape(x.shape)[chosen]
    if not group.size:
        return True
    sums, counts = np.bincount(group, off[chosen]), np.bincount(group)
    most = np.zeros(len(counts))
    np.maximum.at(most, group, np.broadcast_to(allowed, x.shape)[chosen])
    return bool((np.abs(sums) <= most * np.maximum(2, counts**0.5)).all())
