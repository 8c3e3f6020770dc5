"""Atomic instructions of blocks that execute together, if nothing uses their results.

The order of the blocks decides how a floating-point sum rounds. So ``lockstep`` only
notes the updates. When all blocks have been executed, the updates are applied in the
order in which blocks that execute one after another make them, by the same memory,
which also says whether a sum depends on its order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from backpass.ptx.accesses import BLOCK
from backpass.ptx.atomics import atomic
from backpass.ptx.faults import Fault
from backpass.ptx.formats import UNSIGNED
from backpass.ptx.parse import Program, width_of
from backpass.ptx.races import Races, Who
from backpass.ptx.released import Acquired, Seen, with_later
from backpass.ptx.rows import Unsure
from backpass.ptx.tensors import Global


class Noted(NamedTuple):
    """Updates of one bundle: for each, the block's place in the order of blocks, the
    visit of the segment, the position of the instruction, the thread of the block, how
    many barriers it has passed, the address, and the bits of the operand."""

    order: np.ndarray
    visit: np.ndarray
    position: np.ndarray
    thread: np.ndarray
    times: np.ndarray
    address: np.ndarray
    bits: np.ndarray


class Updates:
    """The updates of all blocks of a kernel."""

    def __init__(self, program: Program) -> None:
        self.program, self.noted = program, list[Noted]()
        self.positions = {id(x): i for i, x in enumerate(program.code)}

    def apply(self, memory: Global, numbers: Sequence[int]) -> None:
        """Apply the updates to memory. Raises Unsure, with memory as before, if one is
        a fault."""
        if not self.noted:
            return
        memory.begin()
        joined = Noted(*map(np.concatenate, zip(*self.noted, strict=True)))
        sorted_ = np.lexsort(
            (joined.thread, joined.position, joined.visit, joined.order)
        )
        joined = Noted(*(x[sorted_] for x in joined))
        own: _Block | None = None
        relaxed = self._orders_nothing(joined)
        try:
            for group in _instructions(joined):
                number = numbers[int(group.order[0])]
                if own is None or own.number != number:
                    own = _Block(self.program, number, relaxed)
                own.update(memory, group)
        except Fault:
            memory.undo()
            raise Unsure from None

    def _orders_nothing(self, noted: Noted) -> bool:
        """Whether no block can have acquired what another block has updated before it
        updates it too.

        This holds if each block executes its instructions in the order of the program,
        each once, and each address belongs to one instruction. What a block releases at
        an instruction covers its updates at this one and those before, and another
        block acquires it there, after its own updates at those before.
        """
        used, position = np.unique(noted.position, return_inverse=True)
        names = [self.program.code[i].name for i in used.tolist()]
        if len({width_of(_atomic(name).type) for name in names}) > 1:
            return False
        place = noted.order * len(used) + position
        owner = noted.address * len(used) + position
        event = np.append(True, np.diff(noted.visit) != 0) | np.append(
            True, np.diff(place) != 0
        )
        return bool(
            (np.diff(place[event]) > 0).all()
            and len(np.unique(owner)) == len(np.unique(noted.address))
        )


def _instructions(noted: Noted) -> Iterator[Noted]:
    """Yield the updates that a block makes in one instruction."""
    change = np.zeros(len(noted.order), bool)
    for of in (noted.order, noted.visit, noted.position):
        change[1:] |= of[1:] != of[:-1]
    starts = [0, *np.flatnonzero(change).tolist(), len(change)]
    for first, last in pairwise(starts):
        yield Noted(*(x[first:last] for x in noted))


_atomic = cache(atomic)


class _Block:
    """The time of a block and what it has acquired, as in ``threads``. It acquires and
    releases nothing if its instructions are ``relaxed``."""

    def __init__(self, program: Program, number: int, relaxed: bool) -> None:
        self.program, self.number, self.relaxed = program, number, relaxed
        self.time = self.since = number * BLOCK + 1
        self.passed = 0  # barriers
        self.warp_times = np.zeros(program.threads, np.int64)
        self.sees, self.acquired = Seen(), Acquired(program.threads)
        self.races = Races(self.time)

    def update(self, memory: Global, group: Noted) -> None:
        """Apply the updates of one instruction. Raises a Fault, or Unsure."""
        if more := int(group.times[0]) - self.passed:
            self.passed += more
            self.time += more
            self.since = self.time
            self.sees = with_later(self.sees, self.acquired.seen)
            self.acquired = Acquired(self.program.threads)
        instruction = self.program.code[int(group.position[0])]
        own = _atomic(instruction.name)
        who = Who(
            group.thread,
            self.warp_times[group.thread],
            self.warp_times[group.thread],
            self.since,
            self.time,
            self.number,
            instruction.place,
            self.sees,
            self.acquired,
            self.races,
        )
        bits = group.bits.astype(UNSIGNED[width_of(own.type)])
        executed = own._replace(order="relaxed") if self.relaxed else own
        memory.update(group.address, executed, [bits], who)
        self.time += own.releases
        if self.races.found:
            raise Unsure
