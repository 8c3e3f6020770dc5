"""What the asynchronous proxy of a GPU does in the shared memory of a block.

The tensor cores of a warpgroup and bulk copies access shared memory beside the threads.
A thread must not overwrite what they still read, and must not access what a bulk copy
writes before it has waited for the copy. In the other direction, they see what threads
have written only after fence.proxy.async. PTX ISA 8.7, chapters 8.5 and 9.7.9.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from backpass.ptx import garbage
from backpass.ptx.faults import Fault, OutOfBounds, Race, TooEarly
from backpass.ptx.memory import Shared, size_of
from backpass.ptx.parse import Instruction, unsupported
from backpass.ptx.races import Who
from backpass.ptx.released import NOBODY, with_later

if TYPE_CHECKING:
    from backpass.ptx.threads import Threads


@dataclass
class Arrival:
    """A bulk copy to shared memory. ``asked`` says which threads have asked whether its
    phase is complete, ``seen`` which of them have heard that it is, and ``sources``
    holds the addresses of its rows in global memory and their length."""

    at: np.ndarray  # the indices of its bytes
    asked: np.ndarray  # [threads]
    seen: np.ndarray
    sources: list[tuple[np.ndarray, int]] = field(default_factory=list)


@dataclass
class MBarrier:
    """An mbarrier: how many arrivals a phase expects and how many are missing, how many
    announced bytes are missing, and how many phases are complete. ``copies`` are those
    of each phase that threads may still wait for."""

    expected: int
    missing: int
    bytes: int = 0
    phase: int = 0
    copies: list[tuple[int, Arrival]] = field(default_factory=list)

    def advance(self) -> None:
        """Begin the next phase if this one is complete."""
        if self.missing == 0 and self.bytes == 0:
            self.phase, self.missing = self.phase + 1, self.expected


class Outgoing(NamedTuple):
    """A copy to global memory: its thread, its group, and the bytes that it reads."""

    thread: int
    group: int
    at: np.ndarray


class Proxy:
    """The state of each byte of a block's shared memory for the asynchronous proxy."""

    def __init__(self, shared: Shared, threads: int) -> None:
        n = len(shared.bytes)
        self.shared, self.threads = shared, threads
        self.unfenced = np.zeros(n, bool)  # written by threads since the last fence
        self.reading = np.zeros(n, np.int16)  # how many operations in flight read it
        self.arriving = np.zeros(n, np.int32)  # the copy that writes it, plus 1
        self.barriers = np.zeros(n, bool)  # part of an mbarrier
        self.arrivals: dict[int, Arrival] = {}
        self.count = 0  # of all copies so far
        self.mbarriers: dict[int, MBarrier] = {}  # by address
        self.waits_for = ""  # what a thread waits for in a loop, in words
        self.outgoing: list[Outgoing] = []  # copies to global memory
        self.committed = np.zeros(threads, np.int64)  # groups of them, of each thread

    def check(self, at: np.ndarray, who: Who) -> None:
        """Raise a fault unless threads may access the bytes ``at[n, k]``."""
        bad = np.any(self.barriers[at], axis=1)
        if bad.any():
            raise who.fault(Fault, f"accesses an mbarrier{_at(at, bad)}", bad)
        numbers = self.arriving[at]
        if not numbers.any():
            return
        for number in np.unique(numbers[numbers > 0]):
            touched = np.any(numbers == number, axis=1)
            bad = touched & ~self.arrivals[int(number)].seen[who.threads]
            if bad.any():
                what = (
                    f"accesses shared memory{_at(at, bad)} before waiting for the bulk "
                    "copy that writes there"
                )
                raise who.fault(TooEarly, what, bad)

    def check_write(self, at: np.ndarray, who: Who) -> None:
        """Raise TooEarly if an operation in flight reads the bytes ``at[n, k]``."""
        bad = np.any(self.reading[at] > 0, axis=1)
        if bad.any():
            what = (
                f"writes to shared memory{_at(at, bad)} before waiting for the "
                "asynchronous operation that reads there"
            )
            raise who.fault(TooEarly, what, bad)

    def load(
        self, at: np.ndarray, by: list[Who], seed: int, what: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes ``[n, k]`` that an asynchronous operation reads, and which
        are defined. ``by`` are the threads that execute it, one for each row. Raises a
        fault."""
        shared = self.shared
        outside = np.any((at < 0) | (at >= len(shared.bytes)), axis=1)
        if outside.any():
            first = int(at[outside][0, 0])
            has = size_of(len(shared.bytes))
            said = f"{what} reads shared memory + {first}; shared memory has {has}"
            raise by[0].fault(OutOfBounds, said, outside)
        masks = []
        for who in by:
            data, defined = shared.load(at, who)
            masks.append(defined)
        bad = np.any(self.unfenced[at], axis=1)
        if bad.any():
            said = (
                f"{what} reads shared memory{_at(at, bad)}, which threads have written, "
                "without fence.proxy.async between the two accesses"
            )
            raise by[0].fault(Race, said, bad)
        known = np.logical_and.reduce(masks)
        if seed:
            data = garbage.of_memory(at[:, 0], data, known, seed)
        return data, known

    def arrive(
        self, at: np.ndarray, data: np.ndarray, defined: np.ndarray, who: Who
    ) -> Arrival:
        """Write the bytes ``[n, k]`` of a bulk copy. Raises a fault."""
        shared = self.shared
        outside = np.any((at < 0) | (at >= len(shared.bytes)), axis=1)
        if outside.any():
            first, has = int(at[outside][0, 0]), size_of(len(shared.bytes))
            what = f"copies to shared memory + {first}; shared memory has {has}"
            raise who.fault(OutOfBounds, what, outside)
        shared.check_awaited(at, who)
        shared.check_write(at, None, who)
        shared.bytes[at], shared.known[at] = data, defined  # type: ignore[index]
        shared.changes += 1
        shared.writes.thread[at], shared.writes.time[at] = NOBODY, -1
        self.unfenced[at] = False
        self.count += 1
        self.arriving[at] = self.count
        arrival = Arrival(at, *np.zeros((2, self.threads), bool))
        self.arrivals[self.count] = arrival
        return arrival

    def meet(self) -> None:
        """Let all threads see the copies for which one of them has waited: they are at
        a barrier."""
        for number, arrival in [*self.arrivals.items()]:
            if arrival.seen.any():
                own = self.arriving[arrival.at] == number
                self.arriving[arrival.at[own]] = 0
                arrival.seen[:] = True
                del self.arrivals[number]


ORDERING = {f"fence.acq_rel.{scope}" for scope in ("gpu", "sys")}


def fence(threads: Threads, instruction: Instruction, chosen: np.ndarray) -> None:
    """Execute fence.proxy.async: what the threads have written, or have seen at the
    last barrier, is visible to the asynchronous proxy from here on. Or execute
    fence.acq_rel: atomic instructions after it release, and those before it acquire."""
    name = instruction.name
    if name in ORDERING:
        threads.fenced |= chosen
        if threads.awaiting:
            seen = with_later(threads.acquired.seen, threads.awaiting)
            threads.acquired.seen = seen
            threads.acquired.threads |= chosen
        return
    if name.startswith(("fence.mbarrier_init.", "fence.proxy.tensormap::generic.")):
        return
    if name not in ("fence.proxy.async", "fence.proxy.async.shared::cta"):
        raise unsupported(instruction)
    proxy, writes = threads.proxy, threads.shared.writes
    if chosen.all():
        proxy.unfenced[:] = False
        return
    at = np.flatnonzero(proxy.unfenced)
    thread = writes.thread[at]
    own = (thread > NOBODY) & chosen[np.maximum(thread - 1, 0)]
    proxy.unfenced[at[own | (writes.time[at] < threads.since)]] = False


def _at(at: np.ndarray, bad: np.ndarray) -> str:
    return f" at + {int(at[np.argmax(bad)][0])}"
