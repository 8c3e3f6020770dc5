"""Memory that records which threads accessed each byte, and when. It finds accesses out
of bounds, bytes that were never written, and races.

Two accesses without a barrier between them happen at the same time. Between threads of
one warp, ``bar.warp.sync`` is enough. If two threads access a byte at the same time,
neither access may be a write, unless both write the same value.

An access of one block happens before an access of another block only if two atomic
instructions at the same address order them: one by which the first block releases the
access, and a later one by which the second block acquires it.
"""

from __future__ import annotations

import mmap
import sys
from typing import NamedTuple

import numpy as np

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

NOBODY, MANY = 0, -1  # who made an access: a thread's number + 1, or several threads
BLOCK = 1 << 32  # more than the time of a block
SPACE = 1 << 40  # addresses of a buffer; no address is 0
PAGE = 1 << 12  # a tensor keeps its alignment up to this number of bytes
LARGE = 1 << 28  # bytes
NO_RESERVATION = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python 3.13 names it
NO_TERM = 1 << 14  # above the exponent of every term


class Released(NamedTuple):
    """The accesses that a block has released: all accesses before the time ``since`` of
    its last barrier, and those of the releasing ``thread`` up to the time ``until``."""

    since: int
    until: int
    thread: int

    def covers(self, threads: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Return whether each access of the block, by thread and time, is released."""
        own = (threads == self.thread + 1) & (times <= self.until)
        return own | (times < self.since)


class Who(NamedTuple):
    """The threads that make an access in one instruction of a block."""

    threads: np.ndarray  # [n], their numbers
    warp_times: np.ndarray  # [n], the time of each, counted in barriers of its warp
    since: int  # the time of the block's last barrier
    time: int  # counted in barriers and releases of the block
    block: int
    place: Place | None
    sees: dict[int, Released]  # what the block has acquired, by releasing block

    def only(self, rows: np.ndarray) -> Who:
        """Return those of the threads that the mask ``rows[n]`` selects."""
        threads, warp_times = self.threads[rows], self.warp_times[rows]
        return self._replace(threads=threads, warp_times=warp_times)

    def fault(self, kind: type[Fault], what: str, bad: np.ndarray) -> Fault:
        """Return a fault by the first thread for which ``bad`` is true."""
        first = int(self.threads[np.argmax(bad)])
        return kind(what, self.place, self.block, first)


class Last:
    """The last access of one kind to each of n bytes: its thread, and its time, which
    also tells its block.

    If several threads made it at the same time, the thread is MANY, or -2 minus the
    number of their warp. ``several`` says whether other blocks made accesses that are
    not ordered before it. ``blocks`` holds the time of each block's last access.
    """

    def __init__(self, n: int) -> None:
        self.thread, self.time = zeros(n, np.int32), zeros(n, np.int64)
        self.warp_time, self.several = zeros(n, np.int64), zeros(n, bool)
        self.blocks: dict[int, int] = {}

    def at_once(self, at: np.ndarray, who: Who) -> np.ndarray:
        """Return whether another thread of the block made the access to each byte, with
        no barrier since."""
        time = self.time[at]
        recent = (time >= who.since) & (time <= who.time)
        if recent.any():
            threads, last = who.threads[:, None], self.thread[at]
            same_warp = _warp(last) == threads // 32
            now = self.warp_time[at] == who.warp_times[:, None]
            recent &= (~same_warp | now) & (last != threads + 1)
        return recent

    def unordered(self, at: np.ndarray, who: Who) -> np.ndarray:
        """Return whether another block made an access to each byte that this block has
        not acquired."""
        thread, time, several = self.thread[at], self.time[at], self.several[at]
        block = time // BLOCK
        other = (thread != NOBODY) & ((block != who.block) | several)
        if other.any():
            for number, released in who.sees.items():
                known = (block == number) & ~several
                other &= ~(known & released.covers(thread, time))
            if np.any(other & several) and all(
                block == who.block or time < who.sees.get(block, _NOTHING).since
                for block, time in self.blocks.items()
            ):
                other &= ~several
        return other

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
        self.blocks[who.block] = who.time

    def name(self, at: np.ndarray) -> str:
        """Return the name of the thread that made the access to the byte."""
        thread = self.thread[at]
        return "another thread" if thread < NOBODY else f"thread {thread - 1}"


class Sums:
    """Sums of floating-point terms by atomic instructions, at their first bytes."""

    def __init__(self, n: int) -> None:
        self.terms, self.lowest = zeros(n, np.int32), zeros(n, np.int16)
        self.size = zeros(n, np.float64)  # the sum of the terms' absolute values

    def add(
        self, at: np.ndarray, own: Atomic, old: np.ndarray, added: np.ndarray
    ) -> np.ndarray:
        """Add the bits ``added[n]`` to the bits ``old[n]``. Return whether each sum may
        depend on the order of its terms.

        It does not if it has two terms, or if no order rounds: all terms are multiples
        of a power of 2, and the sum of their absolute values is small enough for all
        multiples up to it to be represented.
        """
        before, term = own.terms(old), own.terms(added)
        at = at[:, :: at.shape[1] // term.shape[1]]
        first = self.terms[at] == 0
        self.terms[at] += np.where(first & (before != 0), 1, 0) + (term != 0)
        size = np.where(first, before, self.size[at]) + term
        lowest = np.where(first, _lowest_bit(before), self.lowest[at])
        lowest = np.minimum(lowest, _lowest_bit(term))
        self.size[at], self.lowest[at] = size, lowest
        several = (self.terms[at] > 2) & np.isfinite(size)
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

    def load(self, at: np.ndarray, who: Who) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes ``[n, k]`` at the indices ``at[n, k]``, and whether each is
        defined. Raises Race and TooEarly."""
        self._check_awaited(at, who)
        self._check_race(at, self.writes.at_once(at, who), self.writes, who, "reads")
        self.reads.record(at, who, self.reads.at_once(at, who))
        return self.bytes[at], self._defined(at)

    def store(
        self, at: np.ndarray, data: np.ndarray, defined: np.ndarray, who: Who
    ) -> None:
        """Write the bytes ``data[n, k]`` to the indices ``at[n, k]``. Raises Race and
        TooEarly."""
        self._check_awaited(at, who)
        at_once = self.check_write(at, data, who)
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
        known = np.all(self._defined(at), axis=1)
        check_defined(known, f"updates uninitialised bytes of {self.name}", who)
        found, left = np.zeros(len(at), given[0].dtype), np.ones(len(at), bool)
        rounded = np.zeros(len(at), bool)
        while left.any():
            # The first of the remaining threads at each address.
            _, first = np.unique(at[left, 0], return_index=True)
            rows = np.flatnonzero(left)[first]
            places, operands = at[rows], [x[rows] for x in given]
            old = np.ascontiguousarray(self.bytes[places]).view(found.dtype)[:, 0]
            new = own.compute(old, operands).astype(found.dtype)
            self.bytes[places] = new.view(np.uint8).reshape(len(rows), -1)
            if own.sums:
                rounded[rows] = self.sums.add(places, own, old, operands[0])
            found[rows], left[rows] = old, False
        if rounded.any():
            what = f"adds to {self._shown(at, rounded)}: the sum depends on the order"
            self.unsettled.append(who.fault(Order, what, rounded))
        self.updates.record(at, who, self.updates.at_once(at, who))
        return found

    def check_write(
        self, at: np.ndarray, data: np.ndarray | None, who: Who
    ) -> np.ndarray:
        """Raise Race if another thread accesses the indices ``at[n, k]`` at the same
        time, unless it writes the same ``data[n, k]``. Return whether another thread
        does so."""
        self._check_race(at, self.reads.at_once(at, who), self.reads, who, "writes to")
        updated = self.updates.at_once(at, who)
        self._check_race(at, updated, self.updates, who, "writes to")
        wrote = self.writes.at_once(at, who)
        different = wrote if data is None else wrote & (self.bytes[at] != data)
        self._check_race(at, different, self.writes, who, "writes to")
        return wrote

    def _defined(self, at: np.ndarray) -> np.ndarray:
        return np.ones(at.shape, bool) if self.known is None else self.known[at]

    def _check_race(
        self, at: np.ndarray, bad: np.ndarray, last: Last, who: Who, verb: str
    ) -> None:
        if bad.any():
            row = np.any(bad, axis=1)
            other = "reads" if last is self.reads else "writes"
            what = (
                f"{verb} {self._shown(at, row)}, which {last.name(at[bad][0])} {other}, "
                "without a barrier between the two"
            )
            raise who.fault(Race, what, row)

    def _check_awaited(self, at: np.ndarray, who: Who) -> None:
        bad = np.any(self.awaited[at], axis=1)
        if bad.any():
            what = f"accesses {self._shown(at, bad)} before waiting for the copy to it"
            raise who.fault(TooEarly, what, bad)

    def _shown(self, at: np.ndarray, bad: np.ndarray) -> str:
        row = at[np.argmax(bad)]
        return f"{self.name} + {int(row[0])} ({len(row)} bytes)"


class Buffer(Memory):
    """Global memory of one tensor.

    It also checks the order of blocks. Blocks run in any order, so a block must not
    access what another block writes unless something orders the two.
    """

    copied: np.ndarray | None = None  # the block that copies each byte now, plus 1

    def load(self, at: np.ndarray, who: Who) -> tuple[np.ndarray, np.ndarray]:
        wrote = self.writes.unordered(at, who)
        self._check_order(at, who, wrote, self.writes, "reads", "wrote")
        read = self.reads.unordered(at, who)
        found = super().load(at, who)
        self.reads.several[at] = read
        return found

    def store(
        self, at: np.ndarray, data: np.ndarray, defined: np.ndarray, who: Who
    ) -> None:
        self._check_copied(at, who)
        wrote, changed = self.writes.unordered(at, who), self.bytes[at] != data
        for last, other, did in (
            (self.writes, wrote, "wrote"),
            (self.updates, self.updates.unordered(at, who), "updated"),
            (self.reads, self.reads.unordered(at, who), "read"),
        ):
            self._check_order(at, who, other & changed, last, "writes", did)
        super().store(at, data, defined, who)
        self.writes.several[at] = wrote

    def update(
        self, at: np.ndarray, own: Atomic, given: list[np.ndarray], who: Who
    ) -> np.ndarray:
        self._check_copied(at, who)
        wrote = self.writes.unordered(at, who)
        self._check_order(at, who, wrote, self.writes, "updates", "wrote")
        if own.within_block:
            updated = self.updates.unordered(at, who)
            self._check_order(at, who, updated, self.updates, "updates", "updated")
        return super().update(at, own, given, who)

    def mark_copied(self, at: np.ndarray, by: int) -> None:
        """Record that the block numbered ``by`` - 1, or none, copies the bytes."""
        if self.copied is None:
            self.copied = zeros(len(self.bytes), np.int32)
        self.copied[at] = by

    def _check_copied(self, at: np.ndarray, who: Who) -> None:
        if self.copied is None:
            return
        bad = np.any(self.copied[at] == who.block + 1, axis=1)
        if bad.any():
            shown = self._shown(at, bad)
            what = f"writes to {shown} before waiting for the copy from it"
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
                "orders the two: the result depends on the order of the blocks"
            )
            raise who.fault(Order, what, row)


class Global:
    """Global memory: buffers so far apart that no wrong stride leads from one to
    another."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.released: dict[int, dict[int, Released]] = {}  # by address and block

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

    def load(
        self, addresses: np.ndarray, count: int, who: Who
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return ``count`` bytes from each address ``[n]``, and whether each is
        defined. Raises OutOfBounds, Misaligned, Race, and Order."""
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
        for buffer, rows, own in self._divided(addresses, count, who, "writes"):
            at = _indices(addresses[rows], count, buffer)
            buffer.store(at, data[rows], defined[rows], own)

    def update(
        self, addresses: np.ndarray, own: Atomic, given: list[np.ndarray], who: Who
    ) -> np.ndarray:
        """Apply an atomic instruction to each address ``[n]``, and return the bits that
        it found there. Raises what ``load`` raises, and Undefined."""
        found = np.zeros(len(addresses), given[0].dtype)
        for buffer, rows, by in self._divided(
            addresses, found.itemsize, who, "updates"
        ):
            at = _indices(addresses[rows], found.itemsize, buffer)
            found[rows] = buffer.update(at, own, [x[rows] for x in given], by)
        for thread, address, writes in zip(
            who.threads, addresses, own.writes(found, given), strict=True
        ):
            known = self.released.setdefault(int(address), {})
            if own.acquires:
                _add_later(who.sees, known)
            if own.releases and writes:
                _add_later(known, who.sees)
                known[who.block] = Released(who.since, who.time, int(thread))
        return found

    def mark_copied(self, addresses: np.ndarray, count: int, by: int) -> None:
        """Record that the block numbered ``by`` - 1, or none, copies ``count`` bytes
        from each address, which are in bounds."""
        for buffer in self.buffers:
            rows = addresses // SPACE == buffer.start // SPACE
            if rows.any():
                buffer.mark_copied(_indices(addresses[rows], count, buffer), by)

    def _divided(self, addresses: np.ndarray, count: int, who: Who, verb: str):
        """Yield each accessed buffer, the rows of its accesses, and who makes them."""
        check_aligned(addresses, count, who, "global memory")
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
            return f"{count} bytes at the address {int(address)}, before all tensors"
        nearest = min(self.buffers, key=lambda buffer: abs(address - buffer.start))
        offset = int(address) - nearest.start
        sign = "+" if offset >= 0 else "-"
        return (
            f"{count} bytes at {nearest.name} {sign} {abs(offset)}, which has "
            f"{len(nearest.bytes)} bytes"
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
                f"{verb} {count} bytes at shared memory + {first}, which has "
                f"{len(self.bytes)} bytes"
            )
            raise who.fault(OutOfBounds, what, outside)
        return addresses[:, None] + np.arange(count)


_NOTHING = Released(0, 0, 0)


def check_aligned(addresses: np.ndarray, count: int, who: Who, name: str) -> None:
    """Raise Misaligned unless every address is a multiple of ``count`` bytes."""
    odd = addresses % count != 0
    if odd.any():
        address = int(addresses[odd][0])
        what = (
            f"accesses {count} bytes of {name} at address {address}, which is not a "
            f"multiple of {count}"
        )
        raise who.fault(Misaligned, what, odd)


def zeros(n: int, dtype: type) -> np.ndarray:
    """Return n zeros, which take no memory until they are written.

    A system may refuse to reserve more memory than it has, so a large array is mapped
    without a reservation.
    """
    size = n * np.dtype(dtype).itemsize
    if size < LARGE or sys.platform != "linux":
        return np.zeros(n, dtype)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVATION
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), dtype)


def address_of(content: np.ndarray) -> int:
    """Return the address of an array in this process."""
    return content.__array_interface__["data"][0]


def _warp(threads: np.ndarray) -> np.ndarray:
    """Return the warp of each thread, as ``Last`` records threads; -1 if there is none
    or several."""
    return np.where(threads > NOBODY, (threads - 1) // 32, -2 - threads)


def _lowest_bit(x: np.ndarray) -> np.ndarray:
    """Return the exponent of the last bit that is set in each number."""
    fraction, exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))
    digits = np.ldexp(fraction, 53).astype(np.int64)
    place = np.frexp((digits & -digits).astype(np.float64))[1] - 1
    return np.where(digits == 0, NO_TERM, exponent - 53 + place)


def _add_later(to: dict[int, Released], more: dict[int, Released]) -> None:
    """Add what ``more`` says of each block, unless ``to`` has something later."""
    for block, released in more.items():
        to[block] = max(to.get(block, released), released)


def _indices(addresses: np.ndarray, count: int, buffer: Buffer) -> np.ndarray:
    return (addresses - buffer.start)[:, None] + np.arange(count)


def check_defined(defined: np.ndarray, what: str, who: Who) -> None:
    """Raise Undefined unless all ``defined[n]`` are true."""
    if not defined.all():
        raise who.fault(Undefined, what, ~defined)
