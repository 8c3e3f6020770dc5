"""The threads of an access, and reads that race with writes.

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
from typing import NamedTuple, TypeVar

import numpy as np

from backpass.ptx.arrays import zeros
from backpass.ptx.faults import Fault, Place, Race
from backpass.ptx.released import Acquired, Seen

MANY = -1  # several threads write a byte

_Fault = TypeVar("_Fault", bound=Fault)


class Who(NamedTuple):
    """The threads that make an access in one instruction of a block."""

    threads: np.ndarray  # [n], their numbers
    warp_times: np.ndarray  # [n], the time of each, counted in barriers of its warp
    exchanges: np.ndarray  # [n], the same in barriers and exchanges of its warp
    since: int  # the time of the block's last barrier
    time: int  # counted in barriers and releases of the block
    block: int
    place: Place | None
    sees: Seen  # what the block has acquired
    acquired: Acquired
    races: Races
    swaps: bool = False  # whether the value is for a compare-and-swap at the address

    def only(self, rows: np.ndarray) -> Who:
        """Return those of the threads that a mask ``rows[n]`` or indices select."""
        return self._replace(
            threads=self.threads[rows],
            warp_times=self.warp_times[rows],
            exchanges=self.exchanges[rows],
        )

    def fault(self, kind: type[_Fault], what: str, bad: np.ndarray) -> _Fault:
        """Return a fault by the first thread for which ``bad`` is true."""
        first = int(self.threads[np.argmax(bad)])
        return kind(what, self.place, self.block, first)


class _Writes(NamedTuple):
    """Who writes each byte of a memory: the thread + 1, and the time of its warp in
    barriers and exchanges."""

    thread: np.ndarray
    exchanges: np.ndarray


class Races:
    """The races of one run of a block.

    ``before`` are those of a run before this one; the times of both count from their
    starts. ``found`` has the first race of each line. ``more`` says whether reads raced
    with later writes with which they did not race in the run before, and ``made``
    whether a value was made undefined. If ``only`` is given, only the races of these
    lines make values undefined. ``lines`` are those that access the byte ``watched``,
    a memory's name and an index, in order.
    """

    def __init__(
        self,
        start: int,
        before: Races | None = None,
        only: Collection[Place | None] | None = None,
        watched: tuple[str, int] | None = None,
    ) -> None:
        self.start, self.only, self.watched = start, only, watched
        self.lines: list[Place | None] = []
        self.found: dict[Place | None, Race] = before.found if before else {}
        self.writes: dict[tuple[int, int], dict[Place | None, _Writes]]
        self.writes = before.writes if before else {}
        self.more = self.made = False

    def notice(self, name: str, at: np.ndarray, who: Who) -> None:
        """Note the line of an access if it is one to the watched byte."""
        if self.watched and self.watched[0] == name and np.any(at == self.watched[1]):
            self.lines.append(who.place)

    def counts(self, place: Place | None) -> bool:
        """Return whether the races of a line make values undefined."""
        return self.only is None or place in self.only

    def add(
        self, memory: tuple[int, int], at: np.ndarray, bad: np.ndarray, who: Who
    ) -> None:
        """Add the writes of the bytes ``at[n, k]`` that are ``bad``: they race with an
        earlier read. ``memory`` is the start and the length of the memory."""
        start, n = memory
        here = self.writes.setdefault((start, who.since - self.start), {})
        if who.place not in here:
            here[who.place] = _Writes(zeros(n, np.int32), zeros(n, np.int64))
        writes, rows = here[who.place], np.nonzero(bad)[0]
        at, own = at[bad], who.threads[rows] + 1
        before = writes.thread[at]
        writes.thread[at] = np.where((before == 0) | (before == own), own, MANY)
        writes.thread[at[writes.thread[at] != own]] = MANY  # twice in this instruction
        writes.exchanges[at] = who.exchanges[rows]
        self.more |= bool(np.any(writes.thread[at] != before))

    def lost(self, start: int, at: np.ndarray, who: Who) -> np.ndarray:
        """Return, for each of the bytes ``at[n, k]`` of the memory that begins at
        ``start``, whether the read by its thread races with a later write."""
        found, own = np.zeros(at.shape, bool), who.threads[:, None]
        here = self.writes.get((start, who.since - self.start), {})
        for place, writes in here.items():
            if self.counts(place):
                writer = writes.thread[at]
                same_warp = (writer > 0) & ((writer - 1) // 32 == own // 32)
                apart = same_warp & (writes.exchanges[at] != who.exchanges[:, None])
                found |= (writer != 0) & (writer != own + 1) & ~apart
        return found
