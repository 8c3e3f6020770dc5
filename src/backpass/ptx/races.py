"""Reads that race with writes.

A read and a write of the same byte by two threads of a block race if no barrier
separates them: the read may find the byte before or after the write. This is a fault
only if the value is used. The compiler lets several threads load one number, of which
one thread uses it and writes the result to the same place; what the others have loaded
is not used.

So the value of a read that races with an earlier write is undefined. Whether a read
races with a later write is known only later; then the block runs again, and the value
of this read is undefined, too. If the block uses an undefined value, the race is the
fault. If there are several races, the block runs with each alone to find the one whose
value is used.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from backpass.ptx.arrays import zeros
from backpass.ptx.faults import Place, Race

if TYPE_CHECKING:
    from backpass.ptx.memory import Memory, Who

MANY = -1  # several threads write a byte


class _Writes(NamedTuple):
    """Who writes each byte of a memory: the thread + 1, and the time of its warp."""

    thread: np.ndarray
    warp_time: np.ndarray


class Races:
    """The races of one run of a block.

    ``before`` are those of a run before this one; the times of both count from their
    starts. ``found`` has the first race of each line. ``more`` says whether reads raced
    with later writes with which they did not race in the run before, and ``made``
    whether a value was made undefined. If ``only`` is given, only the races of these
    lines make values undefined.
    """

    def __init__(
        self,
        start: int,
        before: Races | None = None,
        only: Collection[Place | None] | None = None,
    ) -> None:
        self.start, self.only = start, only
        self.found: dict[Place | None, Race] = before.found if before else {}
        self.writes: dict[tuple[int, int], dict[Place | None, _Writes]]
        self.writes = before.writes if before else {}
        self.more = self.made = False

    def counts(self, place: Place | None) -> bool:
        """Return whether the races of a line make values undefined."""
        return self.only is None or place in self.only

    def add(self, memory: Memory, at: np.ndarray, bad: np.ndarray, who: Who) -> None:
        """Add the writes of the bytes ``at[n, k]`` that are ``bad``: they race with an
        earlier read."""
        here = self.writes.setdefault((memory.start, who.since - self.start), {})
        if who.place not in here:
            n = len(memory.bytes)
            here[who.place] = _Writes(zeros(n, np.int32), zeros(n, np.int64))
        writes, rows = here[who.place], np.nonzero(bad)[0]
        at, own = at[bad], who.threads[rows] + 1
        before = writes.thread[at]
        writes.thread[at] = np.where((before == 0) | (before == own), own, MANY)
        writes.thread[at[writes.thread[at] != own]] = MANY  # twice in this instruction
        writes.warp_time[at] = who.warp_times[rows]
        self.more |= bool(np.any(writes.thread[at] != before))

    def lost(self, memory: Memory, at: np.ndarray, who: Who) -> np.ndarray:
        """Return, for each of the bytes ``at[n, k]``, whether the read by its thread
        races with a later write."""
        found, own = np.zeros(at.shape, bool), who.threads[:, None]
        here = self.writes.get((memory.start, who.since - self.start), {})
        for place, writes in here.items():
            if self.counts(place):
                writer = writes.thread[at]
                same_warp = (writer > 0) & ((writer - 1) // 32 == own // 32)
                apart = same_warp & (writes.warp_time[at] != who.warp_times[:, None])
                found |= (writer != 0) & (writer != own + 1) & ~apart
        return found
