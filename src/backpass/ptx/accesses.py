"""The last accesses of each byte: by which thread, and when.

Two accesses by threads of a block count as simultaneous unless a barrier separates
them. Between threads of one warp, ``bar.warp.sync`` is enough. Between a read and a
later write in one warp, an exchange of values, such as ``shfl.sync``, is enough too:
the exchanged value is assumed to be the one that was read.
"""

from __future__ import annotations

import numpy as np

from backpass.ptx.arrays import zeros
from backpass.ptx.races import MANY, Who
from backpass.ptx.released import NOBODY, NOTHING, Seen, with_later

BLOCK = 1 << 32  # the times of block b begin after b * BLOCK
RUN = 1 << 28  # the times of each of its runs


class Last:
    """The last access of one kind to each of n bytes: its thread, and its time, which
    also determines its block. The kind is given as verbs, such as "reads" and "read".

    If several threads made the access at the same time, the thread is MANY, or -2 minus
    the number of their warp if they have the same warp. ``several`` says whether other
    blocks made accesses that are not ordered before the last one. ``blocks`` holds the
    time of each block's last access, and the thread that made it, or MANY if several
    threads made accesses since the barrier before it. If ``exchanged``, an exchange of
    values within a warp separates these accesses from later ones.
    """

    def __init__(self, n: int, now: str, then: str, exchanged: bool = False) -> None:
        self.now, self.then, self.exchanged = now, then, exchanged
        self.thread, self.time = zeros(n, np.int32), zeros(n, np.int64)
        self.warp_time, self.several = zeros(n, np.int64), zeros(n, bool)
        self.blocks: dict[int, tuple[int, int]] = {}

    def at_once(self, at: np.ndarray, who: Who) -> np.ndarray:
        """Return, for each byte, whether another thread of the block made such an
        access, with no barrier since."""
        if not self.blocks:  # nobody did
            return np.zeros(at.shape, bool)
        time = self.time[at]
        recent = (time >= who.since) & (time <= who.time)
        if recent.any():
            threads, last = who.threads[:, None], self.thread[at]
            same_warp = _warp(last) == threads // 32
            now = self.warp_time[at] == self._times(who)
            recent &= (~same_warp | now) & (last != threads + 1)
        return recent

    def unordered(self, at: np.ndarray, who: Who) -> np.ndarray:
        """Return, for each byte, whether another block made such an access that this
        block has not acquired."""
        if not self.blocks:
            return np.zeros(at.shape, bool)
        thread, several = self.thread[at], self.several[at]
        block = self.time[at] // BLOCK
        other = (thread != NOBODY) & ((block != who.block) | several)
        if other.any():
            other &= ~self._seen(at, who.block, who.sees)
            rows = who.acquired.threads[who.threads]
            if rows.any():
                sees = with_later(who.sees, who.acquired.seen)
                other[rows] &= ~self._seen(at[rows], who.block, sees)
        return other

    def _seen(self, at: np.ndarray, own: int, sees: Seen) -> np.ndarray:
        """Return whether all accesses of other blocks to each byte are released."""
        thread, time, several = self.thread[at], self.time[at], self.several[at]
        block, found = time // BLOCK, np.zeros(at.shape, bool)
        for number, released in sees.items():
            found |= (block == number) & ~several & released.covers(thread, time)
        if several.any() and all(
            block == own or sees.get(block, NOTHING).covers(*np.array([[last], [time]]))
            for block, (time, last) in self.blocks.items()
        ):
            found |= several
        return found

    def record(self, at: np.ndarray, who: Who, at_once: np.ndarray) -> None:
        """Record an access. ``at_once`` is what the method of that name returned."""
        threads = np.broadcast_to(who.threads[:, None], at.shape)
        warps = threads // 32
        own = threads + 1
        if at_once.any():
            both = np.where(_warp(self.thread[at]) == warps, -2 - warps, MANY)
            own = np.where(at_once, both, own)
        self.thread[at] = own
        # Two threads of one instruction may have accessed the same byte.
        last = self.thread[at]
        lost = last != own
        if lost.any():
            same_warp = lost & (_warp(last) == warps)
            self.thread[at[same_warp]] = (-2 - warps)[same_warp]
            self.thread[at[lost & ~same_warp]] = MANY
        self.time[at], self.warp_time[at] = who.time, self._times(who)
        before, last = self.blocks.get(who.block, (0, NOBODY))
        alone = len(who.threads) == 1 and (before < who.since or last == own.flat[0])
        self.blocks[who.block] = who.time, int(own.flat[0]) if alone else MANY

    def _times(self, who: Who) -> np.ndarray:
        """Return the time of each thread's warp, as an array ``[n, 1]``."""
        return (who.exchanges if self.exchanged else who.warp_times)[:, None]

    def name(self, at: np.ndarray) -> str:
        """Return the name of the thread that accessed the byte."""
        thread = self.thread[at]
        return "another thread" if thread < NOBODY else f"thread {thread - 1}"


def _warp(threads: np.ndarray) -> np.ndarray:
    """Return the warp of each thread, as ``Last`` records threads; a negative number
    for no thread, or for threads of several warps."""
    return np.where(threads > NOBODY, (threads - 1) // 32, -2 - threads)
