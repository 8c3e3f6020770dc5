"""Conflicts in shared memory of blocks that execute together: threads of a block write
different values to one place in one instruction, and one of them remains.

They are the faults that ``memory`` finds, and a wave goes on after them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from backpass.ptx.bundles import Bundle
from backpass.ptx.faults import Fault, Race
from backpass.ptx.memory import SHARED, conflict, place_of, units_apart
from backpass.ptx.parse import Program
from backpass.ptx.tracked import By

if TYPE_CHECKING:
    from backpass.ptx.wave import Wave


class _Noted(NamedTuple):
    """A conflict: the block's place in its wave, the visit of the segment, the position
    of the instruction, and the fault."""

    block: int
    visit: int
    position: int
    fault: Fault


class Conflicts:
    """The conflicts of a wave."""

    def __init__(self, program: Program) -> None:
        self._positions = {id(x): i for i, x in enumerate(program.code)}
        self._noted: list[_Noted] = []

    def note(
        self,
        wave: Wave,
        bundle: Bundle,
        by: By,
        addresses: np.ndarray,
        data: np.ndarray,
        differs: np.ndarray,
    ) -> None:
        """Note the conflicts of a bundle that has written the elements ``data[n]`` to
        the addresses. ``differs[n]`` says which of them do not remain."""
        rows = np.flatnonzero(differs)
        own, size = by.only(rows), data.itemsize
        pair = wave.shared.kept(addresses[rows], size, own), data[rows]
        units = units_apart(*(x.view(np.uint8).reshape(-1, size) for x in pair))
        events, first, of = np.unique(
            own.blocks * bundle.size + own.instructions,
            return_index=True,
            return_inverse=True,
        )
        most = np.zeros(len(events))
        np.maximum.at(most, of, units)
        for event, row, apart in zip(events, rows[first], most, strict=True):
            block, number = divmod(int(event), bundle.size)
            instruction = bundle.parameters[number]
            kind, what = conflict(place_of(SHARED, int(addresses[row]), size), apart)
            thread = int(by.threads[row] - 1) % wave.n
            fault = kind(what, instruction.place, int(wave.numbers[block]), thread)
            fault.apart = kind is Race
            position = self._positions[id(instruction)]
            self._noted.append(_Noted(block, wave.visits, position, fault))

    def faults(self) -> list[Fault]:
        """Return the faults, in the order in which blocks that execute one after
        another find them."""
        return [x.fault for x in sorted(self._noted, key=lambda x: x[:3])]
