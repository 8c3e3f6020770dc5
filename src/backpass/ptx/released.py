"""What a block releases to other blocks, and what it acquires from them.

An access of one block happens before an access of another block only if two atomic
instructions at the same address order them: one by which the first block releases the
access, and a later one by which the second block acquires it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NOBODY = 0  # in place of a thread's number + 1


class Released(NamedTuple):
    """The accesses that a block has released: all accesses before the time ``since`` of
    its last barrier, and those of each releasing thread up to its time in ``until``."""

    since: int
    until: dict[int, int]  # by thread

    def covers(self, threads: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Return whether each access of the block, by thread + 1 and time, is
        released."""
        last = np.zeros(max(self.until, default=0) + 2, np.int64)
        for thread, until in self.until.items():
            last[thread + 1] = until
        known = (threads > NOBODY) & (threads < len(last))
        return (times < self.since) | (times <= last[np.where(known, threads, 0)])

    def contains(self, other: Released) -> bool:
        """Whether everything that the other one releases is released."""
        return other.since <= self.since and all(
            until <= self.until.get(thread, 0) for thread, until in other.until.items()
        )

    def with_more(self, more: Released) -> Released:
        """Return what is released according to either of the two."""
        if more.contains(self):
            return more
        later = {
            thread: max(until, self.until.get(thread, 0))
            for thread, until in more.until.items()
        }
        return Released(max(self.since, more.since), self.until | later)


NOTHING = Released(0, {})
Seen = dict[int, Released]  # what is acquired, by the block that has released it


class Acquired:
    """What threads of a block have acquired since its last barrier. A thread that has
    acquired something is taken to have acquired what any of them has."""

    def __init__(self, n: int) -> None:
        self.threads, self.seen = np.zeros(n, bool), Seen()


def with_later(seen: Seen, more: Seen) -> Seen:
    """Return what is acquired according to either of the two."""
    found = seen
    for block, released in more.items():
        before = seen.get(block, NOTHING)
        if released is not before and not before.contains(released):
            found = {**seen} if found is seen else found
            found[block] = before.with_more(released)
    return found
