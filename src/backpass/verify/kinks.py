"""Judge gradients in half precision where the reference has kinks.

Half precision rounds a clamp's bound too, such as the 0.7 of ``x < 0.7``, so a number
beside the bound may be on either side of it. Half precision also puts inputs exactly on
a kink, as that of ``w / s`` clamped at −8, where the gradients of both sides are right.
So the reference is computed again where the inputs are moved: by one unit in the last
place, which excuses single elements, and by far less, which has to explain all
gradients together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from backpass.interpreters.rounding import rounded
from backpass.verify import ties
from backpass.verify.case import Case
from backpass.verify.comparison import Key
from backpass.verify.convert import EPSILON
from backpass.verify.drawing import generator

JUMP = 0.25  # of an element: a larger change counts as a jump at a kink
RARE = 0.05  # of all elements, that may be at kinks; or one
SHARE = 0.5  # of the error allowed: a larger change by far smaller moves is a jump
FEW, DRAWS = 6, 4  # inputs that are moved, and random moves of all
KINKS = 9  # a stream of the seed

Results = dict[Key, np.ndarray]


class Kinks:
    """The gradients of a case, and the reference around its inputs.

    ``reference`` computes y and the gradients of a case in float64, and ``allowed``
    has the error allowed for each element of each.
    """

    def __init__(
        self,
        case: Case,
        dtype: str,
        reference: Callable[[Case], Results],
        got: Mapping[Key, np.ndarray | None],
        allowed: Mapping[Key, np.ndarray],
    ) -> None:
        self.case, self.dtype, self.reference = case, dtype, reference
        self.got, self.allowed = got, allowed

    @cached_property
    def _here(self) -> Results:
        return self.reference(self.case)

    def within_a_unit(self, key: Key) -> np.ndarray:
        """Return the elements of a gradient that equal the reference's beyond a jump
        within one unit in the last place; none if they are not few."""
        got, right, allowed = self.got[key], self._here[key], self.allowed[key]
        beyond = np.zeros(right.shape, bool)
        if got is None or got.shape != right.shape:
            return beyond
        for there in (of[key] for of in self._a_unit_away):
            change = np.abs(there - right)
            own = JUMP * np.maximum(np.abs(there), np.abs(right))
            jumps = (change > allowed) & (change > own)
            jumps &= change > 8 * np.median(change)
            beyond |= jumps & (np.abs(got - there) <= allowed)
        return beyond & (beyond.sum() <= max(1, int(RARE * right.size)))

    @cached_property
    def _a_unit_away(self) -> list[Results]:
        found = []
        for unit in (EPSILON[self.dtype], -EPSILON[self.dtype]):
            inputs = self.case.changed(partial(_scaled, unit, self.dtype))
            moved = replace(self.case, inputs=inputs, given_dy=self.case.dy)
            found.append(self.reference(moved))
        return found

    @cached_property
    def excused(self) -> dict[Key, np.ndarray]:
        """The elements at kinks of each gradient; empty if any element differs from the
        reference for another reason.

        At one place beside the inputs, the reference has to equal all gradients, and
        to jump wherever they differ from it at the inputs. A sum over a row has a kink
        wherever a term has one, so these elements have to be few among those of all
        gradients, but not among those of each.
        """
        off: dict[Key, np.ndarray] = {}
        beyond: dict[Key, np.ndarray] = {}
        for key, got in self.got.items():
            if key == "y":
                continue
            if got is None or got.shape != self._here[key].shape:
                return {}
            off[key] = ~self._agrees(key, self._here)
            beyond[key] = off[key] & self.within_a_unit(key)
        number = sum(int(of.sum()) for of in off.values())
        size = sum(of.size for of in off.values())
        if not 0 < number <= max(1, int(RARE * size)):
            return {}
        for there in self._beside(off):
            if all(
                (beyond[key] | self._agrees(key, there)).all()
                and (beyond[key] | self._jumps(key, there))[off[key]].all()
                for key in off
            ):
                return off
        return {}

    def _agrees(self, key: Key, there: Results) -> np.ndarray:
        got = self.got[key]
        assert got is not None
        return np.abs(got - there[key]) <= self.allowed[key]

    def _jumps(self, key: Key, there: Results) -> np.ndarray:
        right = self._here[key]
        unit = EPSILON[self.dtype] * np.abs(right)
        change = np.abs(there[key] - right)
        return change > SHARE * np.maximum(self.allowed[key], unit)

    def _beside(self, off: Mapping[Key, np.ndarray]) -> Iterator[Results]:
        """Yield the reference where elements whose gradients differ are moved: those of
        one input up, down, and each to the side that explains its gradient; then each
        of all inputs to a random side."""
        rng = generator(self.case.seed, KINKS)
        few = [at for at in off if at != "y" and off[at].any()][:FEW]
        for at in few:
            sides = np.zeros(off[at].shape)
            for side in (1.0, -1.0):
                there = self._moved({at: side * off[at]})
                yield there
                sides[off[at] & self._agrees(at, there)] = side
            yield self._moved({at: sides})
        for _ in range(DRAWS):
            yield self._moved(
                {at: off[at] * rng.choice((-1.0, 1.0), off[at].shape) for at in few}
            )

    def _moved(self, sides: Mapping[int, np.ndarray]) -> Results:
        given, unit = self.case.float64, ties.MOVE * EPSILON[self.dtype]
        moved = {
            at: given[at] + unit * side * np.abs(given[at])
            for at, side in sides.items()
        }
        return self.reference(ties.beside(self.case, moved))


def _scaled(unit: float, dtype: str, x: np.ndarray) -> np.ndarray:
    return rounded(x * (1 + unit), dtype)
