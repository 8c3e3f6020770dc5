"""Reads that race with writes.

A read and a write of the same byte by two threads of a block race if no barrier
separates them: the read may find the byte before or after the write. This is a fault
only if the value is used. The compiler lets several threads load one number, of which
one thread uses it and writes the result to the same place; what the others have loaded
is not used.

So the value of a read that races with an earlier write is undefined. Whether a read
races with a later write is known only later; then the block runs again, and the value
of this read is undefined, too. If the block uses an undefined value, the first race is
the fault.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from backpass.ptx.arrays import zeros
from backpass.ptx.faults import Race

MANY = -1  # several threads write a byte


class _Writes(NamedTuple):
    """Who writes each byte of a memory: the thread + 1, and the time of its warp."""

    thread: np.ndarray
    warp_time: np.ndarray


class Races:
    """The races of one run of a block.

    ``before`` are those of a run before this one; the times of both count from their
    starts. ``first`` is the first race of a read, and ``more`` says whether there was
    one with a later write that the run before did not have.
    """

    def __init__(self, start: int, before: Races | None = None) -> None:
        self.start = start
        self.first: Race | None = before.first if before else None
        self.writes: dict[tuple[int, int], _Writes] = before.writes if before else {}
        self.more = False

    def add(
        self,
        memory: tuple[int, int],
        since: int,
        at: np.ndarray,
        threads: np.ndarray,
        warp_times: np.ndarray,
    ) -> None:
        """Add writes of the bytes ``at[n]`` by ``threads[n]``, after the barrier at the
        time ``since``. ``memory`` is the start and the size of the memory."""
        key, own = (memory[0], since - self.start), threads + 1
        if key not in self.writes:
            arrays = (zeros(memory[1], kind) for kind in (np.int32, np.int64))
            self.writes[key] = _Writes(*arrays)
        writes = self.writes[key]
        before = writes.thread[at]
        writes.thread[at] = np.where((before == 0) | (before == own), own, MANY)
        writes.thread[at[writes.thread[at] != own]] = MANY  # twice in this instruction
        writes.warp_time[at] = warp_times
        self.more |= bool(np.any(writes.thread[at] != before))

    def lost(
        self,
        start: int,
        since: int,
        at: np.ndarray,
        threads: np.ndarray,
        warp_times: np.ndarray,
    ) -> np.ndarray:
        """Return, for each thread, whether its read of the bytes ``at[n, k]`` races
        with a later write."""
        writes = self.writes.get((start, since - self.start))
        if writes is None:
            return np.zeros(len(at), bool)
        writer, own = writes.thread[at], threads[:, None] + 1
        same_warp = (writer > 0) & ((writer - 1) // 32 == threads[:, None] // 32)
        apart = same_warp & (writes.warp_time[at] != warp_times[:, None])
        return np.any((writer != 0) & (writer != own) & ~apart, axis=1)
