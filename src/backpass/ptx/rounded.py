"""Numbers that threads of a block write to one place, and that differ by rounding
alone: computed in float64, they are equal."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from backpass.ptx.beside import float64_of
from backpass.ptx.faults import Fault, LastBits, Place
from backpass.ptx.memory import CONTRACTED

ROUNDED = "{}, by rounding alone: computed in float64, the two are equal. " + CONTRACTED
EQUAL = 2.0**-16  # of the executed difference: the most between equal float64 numbers


class Rounded:
    """Whether the numbers that a block and a line write to one place differ by rounding
    alone."""

    def __init__(self) -> None:
        self._alike: dict[tuple[int | None, Place | None], bool] = {}

    def note(
        self,
        place: Place | None,
        blocks: np.ndarray,
        addresses: np.ndarray,
        registers: Iterable[tuple[np.ndarray, np.ndarray]],
    ) -> None:
        """Note what threads of ``blocks[n]`` store at ``addresses[n]``: the bits of
        float32 numbers, and the numbers in float64, of each register."""
        _, first, of, counts = np.unique(
            addresses, return_index=True, return_inverse=True, return_counts=True
        )
        alike = np.ones(len(addresses), bool)
        for bits, exact in registers:
            apart = bits != bits[first][of]
            pair = float64_of(bits, "f32"), exact
            executed, beside = (np.abs(x - x[first][of]) for x in pair)
            alike &= ~apart | (beside <= EQUAL * executed)
        for block in np.unique(blocks[counts[of] > 1]).tolist():
            own = bool(alike[blocks == block].all())
            self._alike[block, place] = self._alike.get((block, place), True) and own

    def judged(self, fault: Fault) -> Fault:
        """Return LastBits in place of a fault whose numbers differ by rounding alone,
        any other fault unchanged."""
        if not (fault.apart and self._alike.get((fault.block, fault.place))):
            return fault
        what = ROUNDED.format(fault.what)
        return LastBits(what, fault.place, fault.block, fault.thread)
