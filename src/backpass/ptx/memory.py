"""Memory that records which threads accessed each byte, and when. It finds accesses out
of bounds, bytes that were never written, and races.

Two accesses by threads of a block count as simultaneous unless a barrier separates
them. Between threads of one warp, ``bar.warp.sync`` is enough. If two threads access a
byte at the same time, neither access may be a write, unless both write the same value,
both are atomic, or the value of a read is not used, as ``races`` describes.

An access of one block happens before an access of another block only if two atomic
instructions at the same address order them: one by which the first block releases the
access, and a later one by which the second block acquires it.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np

from backpass.ptx.arrays import zeros
from backpass.ptx.atomics import Atomic
from backpass.ptx.faults import (
    Fault,
    Misaligned,
    Order,
    OutOfBounds,
    Place,
    Race,
    TooEarly,
    Undefined,
)
from backpass.ptx.races import MANY, Races

NOBODY = 0  # in place of a thread's number + 1
BLOCK = 1 << 32  # the times of block b begin after b * BLOCK
RUN = 1 << 28  # the times of each of its runs
SPACE = 1 << 40  # addresses reserved for each buffer; no buffer begins at 0
PAGE = 1 << 12  # a tensor keeps its alignment up to this number of bytes
NO_TERM = 1 << 14  # above the exponent of every term


_Fault = TypeVar("_Fault", bound=Fault)


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


Seen = dict[int, Released]  # what is acquired, by the block that has released it


class Acquired:
    """What threads of a block have acquired since its last barrier. A thread that has
    acquired something is taken to have acquired what any of them has."""

    def __init__(self, n: int) -> None:
        self.threads, self.seen = np.zeros(n, bool), Seen()


class Who(NamedTuple):
    """The threads that make an access in one instruction of a block."""

    threads: np.ndarray  # [n], their numbers
    warp_times: np.ndarray  # [n], the time of each, counted in barriers of its warp
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
        threads, warp_times = self.threads[rows], self.warp_times[rows]
        return self._replace(threads=threads, warp_times=warp_times)

    def fault(self, kind: type[_Fault], what: str, bad: np.ndarray) -> _Fault:
        """Return a fault by the first thread for which ``bad`` is true."""
        first = int(self.threads[np.argmax(bad)])
        return kind(what, self.place, self.block, first)


class Last:
    """The last access of one kind to each of n bytes: its thread, and its time, which
    also determines its block.

    If several threads made the access at the same time, the thread is MANY, or -2 minus
    the number of their warp if they have the same warp. ``several`` says whether other
    blocks made accesses that are not ordered before the last one. ``blocks`` holds the
    time of each block's last access, and the thread that made it, or MANY if several
    threads made accesses since the barrier before it.
    """

    def __init__(self, n: int) -> None:
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
            now = self.warp_time[at] == who.warp_times[:, None]
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
            block == own
            or sees.get(block, _NOTHING).covers(*np.array([[last], [time]]))
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
        self.time[at], self.warp_time[at] = who.time, who.warp_times[:, None]
        before, last = self.blocks.get(who.block, (0, NOBODY))
        alone = len(who.threads) == 1 and (before < who.since or last == own.flat[0])
        self.blocks[who.block] = who.time, int(own.flat[0]) if alone else MANY

    def name(self, at: np.ndarray) -> str:
        """Return the name of the thread that accessed the byte."""
        thread = self.thread[at]
        return "another thread" if thread < NOBODY else f"thread {thread - 1}"


class Sums:
    """The floating-point sums that atomic instructions compute, each recorded at the
    index of its first byte."""

    def __init__(self, n: int) -> None:
        self.terms, self.lowest = zeros(n, np.int32), zeros(n, np.int16)
        self.size = zeros(n, np.float64)  # the sum of the terms' absolute values

    def add(
        self,
        at: np.ndarray,
        own: Atomic,
        old: np.ndarray,
        added: np.ndarray,
        unordered: np.ndarray,
    ) -> np.ndarray:
        """Add the bits ``added[n]`` to the bits ``old[n]``. Return whether each sum may
        depend on the order of its terms, given whether the added one is ``unordered``
        with another one.

        A sum does not depend on the order if it has at most two terms, or if no order
        requires rounding: all terms are multiples of a power of 2, and the format has
        all multiples up to the sum of the terms' absolute values. A sum with an
        infinite term does not depend on it either.
        """
        before, term = own.terms(old), own.terms(added)
        at = at[:, :: at.shape[1] // term.shape[1]]
        first = self.terms[at] == 0
        self.terms[at] += np.where(first & (before != 0), 1, 0) + (term != 0)
        before = np.where(first, before, self.size[at])
        finite = np.isfinite(term) & (np.isfinite(before) | ~first)
        with np.errstate(over="ignore"):
            size = np.where(finite, before + term, np.nan)
        lowest = np.where(first, _lowest_bit(before), self.lowest[at])
        lowest = np.minimum(lowest, _lowest_bit(term))
        self.size[at], self.lowest[at] = size, lowest
        several = (self.terms[at] > 2) & ~np.isnan(size) & unordered[:, None]
        return np.any(several & ~own.exact(size, lowest), axis=1)


class Memory:
    """Bytes called ``name``, at the addresses from ``start`` on. The mask ``known``
    says which bytes are initialised; None means all.

    ``unsettled`` lists faults that make a result non-deterministic without stopping the
    kernel. For example, threads may write different values to the same bytes in one
    instruction; one value remains, and PTX does not say which.
    """

    def __init__(
        self, name: str, start: int, content: np.ndarray, known: np.ndarray | None
    ) -> None:
        n = len(content)
        self.name, self.start, self.bytes, self.known = name, start, content, known
        self.unsettled: list[Fault] = []
        self.awaited = zeros(n, bool)  # destinations of copies in flight
        self.reads, self.writes, self.updates = Last(n), Last(n), Last(n)
        self.sums = Sums(n)
        self.changes = 0  # how many instructions have changed the bytes

    def load(self, at: np.ndarray, who: Who) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes ``[n, k]`` at the indices ``at[n, k]``, and whether each is
        defined. Raises TooEarly."""
        self._check_awaited(at, who)
        racing = self.writes.at_once(at, who)
        self._note_race(at, racing, self.writes, who, "reads")
        if not who.swaps:
            updated = self.updates.at_once(at, who)
            self._note_race(at, updated, self.updates, who, "reads")
            racing |= updated
        racing &= who.races.counts(who.place)
        racing |= who.races.lost(self, at, who)
        if not who.swaps:
            fine, by = at, who
            if racing.any():
                fine, by = at[~racing][:, None], who.only(np.nonzero(~racing)[0])
            self.reads.record(fine, by, self.reads.at_once(fine, by))
        who.races.made |= bool(racing.any())
        return self.bytes[at], self._defined(at) & ~racing

    def store(
        self, at: np.ndarray, data: np.ndarray, defined: np.ndarray, who: Who
    ) -> None:
        """Write the bytes ``data[n, k]`` to the indices ``at[n, k]``. Raises Race and
        TooEarly."""
        self._check_awaited(at, who)
        at_once = self.check_write(at, data, who)
        same = np.array_equal(self.bytes[at], data)
        self.changes += not (same and np.array_equal(self._defined(at), defined))
        self.bytes[at] = data
        if self.known is not None:
            self.known[at] = defined
        # If threads write to the same bytes in one instruction, one value remains.
        differs = np.any((self.bytes[at] != data), axis=1)
        if differs.any():
            shown = self._shown(at, differs)
            what = f"writes to {shown}, where another thread writes a different value"
            self.unsettled.append(who.fault(Race, what, differs))
        self.writes.record(at, who, at_once)
        self.sums.terms[at] = 0

    def update(
        self, at: np.ndarray, own: Atomic, given: list[np.ndarray], who: Who
    ) -> np.ndarray:
        """Apply an atomic instruction to the indices ``at[n, k]``, one thread after the
        other. Return the bits ``[n]`` that each thread found there.

        A sum that depends on the order of its terms is added to ``unsettled``. Raises
        Race, TooEarly, and Undefined.
        """
        self._check_awaited(at, who)
        self._check_race(at, self.writes.at_once(at, who), self.writes, who, "updates")
        self._check_reads(at, who, "updates")
        known = np.all(self._defined(at), axis=1)
        check_defined(known, f"updates uninitialised bytes of {self.name}", who)
        found, left = np.zeros(len(at), given[0].dtype), np.ones(len(at), bool)
        rounded = np.zeros(len(at), bool)
        at_once = self.updates.at_once(at, who)
        unordered = np.any(at_once | self._of_others(at, who), axis=1)
        while left.any():
            # The first of the remaining threads at each address.
            _, first = np.unique(at[left, 0], return_index=True)
            rows = np.flatnonzero(left)[first]
            places, operands = at[rows], [x[rows] for x in given]
            old = np.ascontiguousarray(self.bytes[places]).view(found.dtype)[:, 0]
            new = own.compute(old, operands).astype(found.dtype)
            self.changes += not np.array_equal(old, new)
            self.bytes[places] = new.view(np.uint8).reshape(len(rows), -1)
            if own.sums:
                apart = unordered[rows]
                rounded[rows] = self.sums.add(places, own, old, operands[0], apart)
            found[rows], left[rows] = old, False
            unordered = np.ones(len(at), bool)  # those left are updated by others now
        if rounded.any():
            shown = self._shown(at, rounded)
            what = f"adds to {shown}: the sum depends on the order of its terms"
            self.unsettled.append(who.fault(Order, what, rounded))
        self.updates.record(at, who, at_once)
        return found

    def _of_others(self, at: np.ndarray, who: Who) -> np.ndarray:
        """Return whether other blocks update the bytes, in no order with this one."""
        return np.zeros(at.shape, bool)

    def check_write(
        self, at: np.ndarray, data: np.ndarray | None, who: Who
    ) -> np.ndarray:
        """Raise Race if another thread accesses the indices ``at[n, k]`` at the same
        time, unless it writes the same ``data[n, k]``. Return whether another thread
        does so."""
        self._check_reads(at, who, "writes to")
        updated = self.updates.at_once(at, who)
        self._check_race(at, updated, self.updates, who, "writes to")
        wrote = self.writes.at_once(at, who)
        different = wrote if data is None else wrote & (self.bytes[at] != data)
        self._check_race(at, different, self.writes, who, "writes to")
        return wrote

    def _defined(self, at: np.ndarray) -> np.ndarray:
        return np.ones(at.shape, bool) if self.known is None else self.known[at]

    def _check_reads(self, at: np.ndarray, who: Who, verb: str) -> None:
        """Note the races of writes to the indices ``at[n, k]`` with earlier reads."""
        bad = self.reads.at_once(at, who)
        if not bad.any():
            return
        self._note_race(at, bad, self.reads, who, verb)
        who.races.add(self, at, bad, who)

    def _note_race(
        self, at: np.ndarray, bad: np.ndarray, last: Last, who: Who, verb: str
    ) -> None:
        if bad.any() and who.place not in who.races.found:
            who.races.found[who.place] = self._race(at, bad, last, who, verb)

    def _check_race(
        self, at: np.ndarray, bad: np.ndarray, last: Last, who: Who, verb: str
    ) -> None:
        if bad.any():
            raise self._race(at, bad, last, who, verb)

    def _race(
        self, at: np.ndarray, bad: np.ndarray, last: Last, who: Who, verb: str
    ) -> Race:
        row = np.any(bad, axis=1)
        kinds = (self.reads, "reads"), (self.writes, "writes"), (last, "updates")
        other = next(did for kind, did in kinds if kind is last)
        what = (
            f"{verb} {self._shown(at, row)}, which {last.name(at[bad][0])} {other}, "
            "without a barrier between the two accesses"
        )
        return who.fault(Race, what, row)

    def _check_awaited(self, at: np.ndarray, who: Who) -> None:
        bad = np.any(self.awaited[at], axis=1)
        if bad.any():
            shown = self._shown(at, bad)
            what = f"accesses {shown} before waiting for the copy that writes there"
            raise who.fault(TooEarly, what, bad)

    def _shown(self, at: np.ndarray, bad: np.ndarray) -> str:
        row = at[np.argmax(bad)]
        return f"{self.name} + {int(row[0])} ({_size(len(row))})"


class Buffer(Memory):
    """Global memory of one tensor.

    It also checks the order of blocks. Blocks run in any order, so a block must not
    access what another block writes unless something orders the two accesses.
    """

    copied: np.ndarray | None = None  # the block that is copying each byte, plus 1

    def __init__(
        self, name: str, start: int, content: np.ndarray, known: np.ndarray | None
    ) -> None:
        super().__init__(name, start, content, known)
        # Whether each byte has changed since one of the reads that `reads` stands for.
        self.changed = zeros(len(content), bool)
        self.log: list[tuple[np.ndarray, list[np.ndarray]]] = []  # for `undo`

    def _arrays(self) -> list[np.ndarray]:
        kept = [self.bytes, self.changed]
        kept += [self.sums.terms, self.sums.lowest, self.sums.size]
        return kept if self.known is None else [*kept, self.known]

    def _keep(self, at: np.ndarray) -> None:
        self.log.append((at, [array[at] for array in self._arrays()]))

    def undo(self) -> None:
        """Restore the bytes as they were when the log was cleared."""
        for at, kept in reversed(self.log):
            for array, old in zip(self._arrays(), kept, strict=True):
                array[at] = old
        self.log = []

    def load(self, at: np.ndarray, who: Who) -> tuple[np.ndarray, np.ndarray]:
        wrote = self.writes.unordered(at, who)
        self._check_order(at, who, wrote, self.writes, "reads", "wrote")
        if who.swaps:
            return super().load(at, who)
        updated, read = (last.unordered(at, who) for last in (self.updates, self.reads))
        self._check_order(at, who, updated, self.updates, "reads", "updated")
        found = super().load(at, who)
        self.reads.several[at] = read
        self.changed[at] &= read
        return found

    def store(
        self, at: np.ndarray, data: np.ndarray, defined: np.ndarray, who: Who
    ) -> None:
        self._check_copied(at, who)
        wrote, changes = self.writes.unordered(at, who), self.bytes[at] != data
        updated, read = (last.unordered(at, who) for last in (self.updates, self.reads))
        self._check_order(at, who, wrote & changes, self.writes, "writes", "wrote")
        self._check_order(at, who, updated, self.updates, "writes", "updated")
        read &= changes | self.changed[at]
        self._check_order(at, who, read, self.reads, "writes", "read")
        self._keep(at)
        super().store(at, data, defined, who)
        self.writes.several[at] = wrote
        self.changed[at] |= changes

    def update(
        self, at: np.ndarray, own: Atomic, given: list[np.ndarray], who: Who
    ) -> np.ndarray:
        self._check_copied(at, who)
        wrote = self.writes.unordered(at, who)
        self._check_order(at, who, wrote, self.writes, "updates", "wrote")
        updated, read = (last.unordered(at, who) for last in (self.updates, self.reads))
        if own.within_block:
            self._check_order(at, who, updated, self.updates, "updates", "updated")
        self._check_order(at, who, read, self.reads, "updates", "read")
        self._keep(at)
        before = self.bytes[at]
        found = super().update(at, own, given, who)
        self.updates.several[at] = updated
        self.changed[at] |= self.bytes[at] != before
        return found

    def _of_others(self, at: np.ndarray, who: Who) -> np.ndarray:
        return self.updates.unordered(at, who)

    def mark_copied(self, at: np.ndarray, by: int) -> None:
        """Record that the block with the number ``by`` - 1, or no block if ``by`` is 0,
        is copying the bytes."""
        if self.copied is None:
            self.copied = zeros(len(self.bytes), np.int32)
        self.copied[at] = by

    def _check_copied(self, at: np.ndarray, who: Who) -> None:
        if self.copied is None:
            return
        bad = np.any(self.copied[at] == who.block + 1, axis=1)
        if bad.any():
            shown = self._shown(at, bad)
            what = f"writes to {shown} before waiting for the copy that reads there"
            raise who.fault(TooEarly, what, bad)

    def _check_order(
        self,
        at: np.ndarray,
        who: Who,
        bad: np.ndarray,
        last: Last,
        verb: str,
        did: str,
    ) -> None:
        if bad.any():
            row, first = np.any(bad, axis=1), at[bad][0]
            number = last.time[first] // BLOCK
            block = "another block" if last.several[first] else f"block {number}"
            what = (
                f"{verb} {self._shown(at, row)}, which {block} {did}, and nothing "
                "orders the two accesses: the result depends on the order of the blocks"
            )
            raise who.fault(Order, what, row)


class Global:
    """Global memory: buffers that are 2**40 addresses apart, so that a wrong stride
    does not lead from one buffer into another."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.released: dict[int, Seen] = {}  # what is released at each address
        self.log: list[tuple[int, Seen]] = []  # for `undo`
        self.unsettled: list[int] = []  # how many each buffer had

    def add(self, name: str, content: np.ndarray, defined: bool | np.ndarray) -> int:
        """Add a buffer of these bytes ``[n]``, which are updated in place, and return
        its address. ``defined`` says which bytes are initialised: all, none, or those
        of a mask, which is updated too."""
        known = defined if isinstance(defined, np.ndarray) else None
        if defined is False:
            known = zeros(len(content), bool)
        start = (len(self.buffers) + 1) * SPACE + address_of(content) % PAGE
        self.buffers.append(Buffer(name, start, content, known))
        return start

    @property
    def changes(self) -> int:
        """How many instructions have changed the bytes of a buffer."""
        return sum(buffer.changes for buffer in self.buffers)

    def begin(self) -> None:
        """Start what ``undo`` restores: the run of a block."""
        self.log, self.unsettled = [], [len(x.unsettled) for x in self.buffers]
        for buffer in self.buffers:
            buffer.log = []

    def undo(self) -> None:
        """Restore memory as it was at ``begin``."""
        for address, seen in reversed(self.log):
            self.released[address] = seen
        for buffer, count in zip(self.buffers, self.unsettled, strict=True):
            buffer.undo()
            del buffer.unsettled[count:]
        self.log = []

    def load(
        self, addresses: np.ndarray, count: int, who: Who
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return ``count`` bytes from each address ``[n]``, and whether each is
        defined. Raises OutOfBounds, Misaligned, Race, and Order."""
        check_aligned(addresses, count, who, "global memory")
        return self.load_bytes(addresses, count, who)

    def load_bytes(
        self, addresses: np.ndarray, count: int, who: Who
    ) -> tuple[np.ndarray, np.ndarray]:
        """Load from addresses of any alignment."""
        found = np.zeros((len(addresses), count), np.uint8)
        defined = np.zeros(found.shape, bool)
        for buffer, rows, own in self._divided(addresses, count, who, "reads"):
            at = _indices(addresses[rows], count, buffer)
            found[rows], defined[rows] = buffer.load(at, own)
        return found, defined

    def store(
        self, addresses: np.ndarray, data: np.ndarray, defined: np.ndarray, who: Who
    ) -> None:
        """Write the bytes ``data[n, k]``. Raises what ``load`` raises."""
        count = data.shape[1]
        check_aligned(addresses, count, who, "global memory")
        for buffer, rows, own in self._divided(addresses, count, who, "writes"):
            at = _indices(addresses[rows], count, buffer)
            buffer.store(at, data[rows], defined[rows], own)

    def update(
        self, addresses: np.ndarray, own: Atomic, given: list[np.ndarray], who: Who
    ) -> np.ndarray:
        """Apply an atomic instruction to each address ``[n]``, and return the bits that
        it found there. Raises what ``load`` raises, and Undefined."""
        found = np.zeros(len(addresses), given[0].dtype)
        check_aligned(addresses, found.itemsize, who, "global memory")
        for buffer, rows, by in self._divided(
            addresses, found.itemsize, who, "updates"
        ):
            at = _indices(addresses[rows], found.itemsize, buffer)
            found[rows] = buffer.update(at, own, [x[rows] for x in given], by)
        self._order(addresses, own, own.writes(found, given), who)
        return found

    def _order(
        self, addresses: np.ndarray, own: Atomic, writes: np.ndarray, who: Who
    ) -> None:
        """Let the threads acquire what is released at each address ``[n]``, and release
        what they have accessed. ``writes[n]`` says which of them write."""
        if own.acquires:
            for address in np.unique(addresses):
                more = self.released.get(int(address), {})
                who.acquired.seen = with_later(who.acquired.seen, more)
            who.acquired.threads[who.threads] = True
        if own.releases:
            for address in np.unique(addresses[writes]):
                threads = who.threads[writes & (addresses == address)]
                until = dict.fromkeys(threads.tolist(), who.time)
                before = self.released.get(int(address), {})
                seen = with_later(before, who.sees)
                if who.acquired.threads[threads].any():
                    seen = with_later(seen, who.acquired.seen)
                own_part = {who.block: Released(who.since, until)}
                self.log.append((int(address), before))
                self.released[int(address)] = with_later(seen, own_part)

    def mark_copied(self, addresses: np.ndarray, count: int, by: int) -> None:
        """Record that the block with the number ``by`` - 1, or no block if ``by`` is 0,
        is copying ``count`` bytes from each address. All bytes are in bounds."""
        for buffer in self.buffers:
            rows = addresses // SPACE == buffer.start // SPACE
            if rows.any():
                buffer.mark_copied(_indices(addresses[rows], count, buffer), by)

    def _divided(self, addresses: np.ndarray, count: int, who: Who, verb: str):
        """Yield each accessed buffer, the rows of its accesses, and who makes them."""
        left = np.ones(len(addresses), bool)
        found = []
        for buffer in self.buffers:
            first = addresses - buffer.start
            rows = left & (first >= 0) & (first + count <= len(buffer.bytes))
            if rows.any():
                found.append((buffer, rows))
                left &= ~rows
        if left.any():
            raise who.fault(
                OutOfBounds, f"{verb} {self._where(addresses[left][0], count)}", left
            )
        for buffer, rows in found:
            yield buffer, rows, who.only(rows)

    def _where(self, address: int, count: int) -> str:
        """Describe an address outside every buffer."""
        if address < SPACE // 2:
            return f"{_size(count)} at address {int(address)}, before all tensors"
        nearest = min(self.buffers, key=lambda buffer: abs(address - buffer.start))
        offset = int(address) - nearest.start
        if offset > SPACE:
            return (
                f"{_size(count)} at address {int(address)}, beyond all tensors; "
                "data_ptr() is not the address of a tensor here"
            )
        sign = "+" if offset >= 0 else "-"
        return (
            f"{_size(count)} at {nearest.name} {sign} {abs(offset)}; "
            f"{nearest.name} has {_size(len(nearest.bytes))}"
        )


class Shared(Memory):
    """The shared memory of a block."""

    def __init__(self, size: int) -> None:
        content, known = np.zeros(size, np.uint8), np.zeros(size, bool)
        super().__init__("shared memory", 0, content, known)

    def indices(
        self, addresses: np.ndarray, count: int, who: Who, verb: str
    ) -> np.ndarray:
        """Return the indices ``[n, count]`` of the bytes from each address on. Raises
        OutOfBounds and Misaligned."""
        check_aligned(addresses, count, who, self.name)
        outside = (addresses < 0) | (addresses + count > len(self.bytes))
        if outside.any():
            first = int(addresses[outside][0])
            what = (
                f"{verb} {_size(count)} at shared memory + {first}; "
                f"shared memory has {_size(len(self.bytes))}"
            )
            raise who.fault(OutOfBounds, what, outside)
        return addresses[:, None] + np.arange(count)


_NOTHING = Released(0, {})


def check_aligned(addresses: np.ndarray, count: int, who: Who, name: str) -> None:
    """Raise Misaligned unless every address is a multiple of ``count`` bytes."""
    odd = addresses % count != 0
    if odd.any():
        address = int(addresses[odd][0])
        what = (
            f"accesses {_size(count)} of {name} at address {address}, which is not a "
            f"multiple of {count}"
        )
        raise who.fault(Misaligned, what, odd)


def address_of(content: np.ndarray) -> int:
    """Return the address of an array in this process."""
    return content.__array_interface__["data"][0]


def _warp(threads: np.ndarray) -> np.ndarray:
    """Return the warp of each thread, as ``Last`` records threads; a negative number
    for no thread, or for threads of several warps."""
    return np.where(threads > NOBODY, (threads - 1) // 32, -2 - threads)


def _lowest_bit(x: np.ndarray) -> np.ndarray:
    """Return the exponent of the last bit that is set in each number."""
    fraction, exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))
    digits = np.ldexp(fraction, 53).astype(np.int64)
    place = np.frexp((digits & -digits).astype(np.float64))[1] - 1
    return np.where(digits == 0, NO_TERM, exponent - 53 + place)


def with_later(seen: Seen, more: Seen) -> Seen:
    """Return what is acquired according to either of the two."""
    found = seen
    for block, released in more.items():
        before = seen.get(block, _NOTHING)
        if released is not before and not before.contains(released):
            found = {**seen} if found is seen else found
            found[block] = before.with_more(released)
    return found


def _size(n: int) -> str:
    return f"{n} byte{'' if n == 1 else 's'}"


def _indices(addresses: np.ndarray, count: int, buffer: Buffer) -> np.ndarray:
    return (addresses - buffer.start)[:, None] + np.arange(count)


def check_defined(defined: np.ndarray, what: str, who: Who) -> None:
    """Raise Undefined unless all ``defined[n]`` are true."""
    if not defined.all():
        raise who.fault(Undefined, what, ~defined)
