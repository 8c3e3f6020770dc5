"""Memory that records which threads accessed each byte, and when. It finds accesses out
of bounds, bytes that were never written, and races.

Time is counted in barriers: two accesses without a barrier between them happen at the
same time. Between threads of one warp, ``bar.warp.sync`` is enough. If two threads
access a byte at the same time, neither access may be a write, unless both write the
same value.

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

NOBODY, MANY = 0, -1  # any other value is the number of a thread or block, plus 1
BLOCK = 1 << 40  # more barriers than a block executes
START = 1 << 12  # the first address of global memory; no address is 0
LARGE = 1 << 28  # bytes
NO_RESERVATION = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python 3.13 names it
GAP = 1 << 12  # unused bytes between two buffers, at least


class Released(NamedTuple):
    """The accesses that a block has released: all accesses before ``time``, and those
    of the releasing ``thread`` at that time."""

    time: int
    thread: int


class Who(NamedTuple):
    """The threads that make an access in one instruction of a block."""

    threads: np.ndarray  # [n], their numbers
    times: np.ndarray  # [n], the time of each, counted in barriers of the block
    warp_times: np.ndarray  # [n], the same in barriers of its warp
    block: int
    place: Place | None
    sees: dict[int, Released]  # what the block has acquired, by releasing block

    def fault(self, kind: type[Fault], what: str, bad: np.ndarray) -> Fault:
        """Return a fault by the first thread for which ``bad`` is true."""
        first = int(self.threads[np.argmax(bad)])
        return kind(what, self.place, self.block, first)


class Memory:
    """Bytes called ``name``, at the addresses from ``start`` on.

    ``unsettled`` lists faults that make a result non-deterministic without stopping the
    kernel. For example, threads may write different values to the same bytes in one
    instruction; one value remains, and PTX does not say which.
    """

    def __init__(self, name: str, start: int, content: np.ndarray) -> None:
        n = len(content)
        self.name, self.start, self.bytes = name, start, content
        self.unsettled: list[Fault] = []
        self.undefined = _zeros(n, bool)
        self.awaited = _zeros(n, bool)  # destinations of copies in flight
        # The last access of each kind: its thread and its time.
        self.writer, self.reader = (_zeros(n, np.int32) for _ in range(2))
        self.written, self.read = (_zeros(n, np.int64) for _ in range(2))
        self.warp_written, self.warp_read = (_zeros(n, np.int64) for _ in range(2))
        self.atomic = _zeros(n, bool)  # whether the last write was atomic
        self.terms = _zeros(n, np.int32)  # of each sum, at its first byte

    def load(self, at: np.ndarray, who: Who) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes ``[n, k]`` at the indices ``at[n, k]``, and whether each is
        defined. Raises Race and TooEarly."""
        threads = np.broadcast_to(who.threads[:, None] + 1, at.shape)
        self._check_awaited(at, who)
        other = self._at_once(at, who, self.writer, self.written, self.warp_written)
        other &= ~self.atomic[at]
        if other.any():
            row = np.any(other, axis=1)
            writer = self.writer[at][other][0] - 1
            raise who.fault(
                Race,
                f"reads {self._shown(at, row)}, which thread {writer} writes, without "
                "a barrier between the two",
                row,
            )
        # Several readers of a byte are recorded as MANY.
        now = who.times[:, None]
        before = self._at_once(at, who, self.reader, self.read, self.warp_read)
        self.reader[at] = np.where(before, MANY, threads)
        # Two threads of one instruction may have read the same byte.
        lost = self.reader[at] != np.where(before, MANY, threads)
        self.reader[at[lost]] = MANY
        self.read[at], self.warp_read[at] = now, who.warp_times[:, None]
        return self.bytes[at], ~self.undefined[at]

    def store(
        self, at: np.ndarray, data: np.ndarray, defined: np.ndarray, who: Who
    ) -> None:
        """Write the bytes ``data[n, k]`` to the indices ``at[n, k]``. Raises Race and
        TooEarly."""
        self._check_awaited(at, who)
        self.check_write(at, data, who)
        self.bytes[at], self.undefined[at] = data, ~defined
        # If threads write to the same bytes in one instruction, one value remains.
        differs = np.any((self.bytes[at] != data), axis=1)
        if differs.any():
            shown = self._shown(at, differs)
            what = f"writes to {shown}, where another thread writes a different value"
            self.unsettled.append(who.fault(Race, what, differs))
        self.writer[at] = who.threads[:, None] + 1
        self.written[at] = who.times[:, None]
        self.warp_written[at] = who.warp_times[:, None]
        self.atomic[at], self.terms[at] = False, 0

    def update(
        self, at: np.ndarray, own: Atomic, given: list[np.ndarray], who: Who
    ) -> np.ndarray:
        """Apply an atomic instruction to the indices ``at[n, k]``, one thread after the
        other. Return the bits ``[n]`` that each thread found there.

        A rounded sum of three or more terms is added to ``unsettled``. Raises Race,
        TooEarly, and Undefined.
        """
        self._check_awaited(at, who)
        other = self._at_once(at, who, self.writer, self.written, self.warp_written)
        other &= ~self.atomic[at]
        if other.any():
            row = np.any(other, axis=1)
            writer = self.writer[at][other][0] - 1
            what = f"updates {self._shown(at, row)}, which thread {writer} writes, "
            raise who.fault(Race, f"{what}without a barrier between the two", row)
        known = ~np.any(self.undefined[at], axis=1)
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
            begun = (self.terms[places[:, 0]] == 0) & (old != 0)
            self.terms[places[:, 0]] += 1 + begun
            several = self.terms[places[:, 0]] > 2
            rounded[rows] = several & own.inexact(old, operands[0], new)
            found[rows], left[rows] = old, False
        if rounded.any():
            what = f"adds to {self._shown(at, rounded)}: the sum depends on the order"
            self.unsettled.append(who.fault(Order, what, rounded))
        self.writer[at] = who.threads[:, None] + 1
        self.written[at] = who.times[:, None]
        self.warp_written[at] = who.warp_times[:, None]
        self.atomic[at] = True
        return found

    def check_write(self, at: np.ndarray, data: np.ndarray | None, who: Who) -> None:
        """Raise Race if another thread accesses the indices ``at[n, k]`` at the same
        time, unless it writes the same ``data[n, k]``."""
        read = self._at_once(at, who, self.reader, self.read, self.warp_read)
        wrote = self._at_once(at, who, self.writer, self.written, self.warp_written)
        if data is not None:
            wrote &= self.bytes[at] != data
        for bad, last, verb in (
            (read, self.reader, "reads"),
            (wrote, self.writer, "writes"),
        ):
            if bad.any():
                row = np.any(bad, axis=1)
                other = last[at][bad][0]
                name = "another thread" if other == MANY else f"thread {other - 1}"
                raise who.fault(
                    Race,
                    f"writes to {self._shown(at, row)}, which {name} {verb}, without a "
                    "barrier between the two",
                    row,
                )

    def _at_once(
        self,
        at: np.ndarray,
        who: Who,
        last: np.ndarray,
        when: np.ndarray,
        warp_when: np.ndarray,
    ) -> np.ndarray:
        """Return whether another thread made the last access to each byte, at the same
        time."""
        threads, owner = who.threads[:, None] + 1, last[at]
        same_warp = (owner > 0) & ((owner - 1) // 32 == (threads - 1) // 32)
        recent = when[at] == who.times[:, None]
        recent &= ~same_warp | (warp_when[at] == who.warp_times[:, None])
        return recent & (owner != threads) & (owner != NOBODY)

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

    It also records which block last accessed each byte. Blocks run in any order, so a
    block must not access what another block writes unless something orders the two.
    """

    def __init__(self, name: str, start: int, content: np.ndarray) -> None:
        super().__init__(name, start, content)
        self.written_by, self.read_by = (
            _zeros(len(content), np.int32) for _ in range(2)
        )

    def load(self, at: np.ndarray, who: Who) -> tuple[np.ndarray, np.ndarray]:
        other = self._unordered(at, who, self.written_by, self.written, self.writer)
        other &= ~self.atomic[at]
        self._check_order(at, who, other, self.written_by, "reads", "wrote")
        readers = self._unordered(at, who, self.read_by, self.read, self.reader)
        found = super().load(at, who)
        self.read_by[at] = np.where(readers, MANY, who.block + 1)
        return found

    def store(
        self, at: np.ndarray, data: np.ndarray, defined: np.ndarray, who: Who
    ) -> None:
        other = self._unordered(at, who, self.written_by, self.written, self.writer)
        other &= self.bytes[at] != data
        self._check_order(at, who, other, self.written_by, "writes", "wrote")
        other = self._unordered(at, who, self.read_by, self.read, self.reader)
        other &= self.bytes[at] != data
        self._check_order(at, who, other, self.read_by, "writes", "read")
        super().store(at, data, defined, who)
        self.written_by[at] = who.block + 1

    def update(
        self, at: np.ndarray, own: Atomic, given: list[np.ndarray], who: Who
    ) -> np.ndarray:
        other = self._unordered(at, who, self.written_by, self.written, self.writer)
        other &= ~self.atomic[at]
        self._check_order(at, who, other, self.written_by, "updates", "wrote")
        found = super().update(at, own, given, who)
        self.written_by[at] = who.block + 1
        return found

    def _unordered(
        self,
        at: np.ndarray,
        who: Who,
        blocks: np.ndarray,
        when: np.ndarray,
        threads: np.ndarray,
    ) -> np.ndarray:
        """Return whether another block made the last access, and this block has not
        acquired it."""
        last = blocks[at]
        other = (last != NOBODY) & (last != who.block + 1)
        for block, released in who.sees.items() if other.any() else ():
            before = when[at] < released.time
            before |= (when[at] == released.time) & (threads[at] == released.thread + 1)
            other &= ~((last == block + 1) & before)
        return other

    def _check_order(
        self,
        at: np.ndarray,
        who: Who,
        bad: np.ndarray,
        last: np.ndarray,
        verb: str,
        did: str,
    ) -> None:
        if bad.any():
            row = np.any(bad, axis=1)
            other = last[at][bad][0]
            block = "another block" if other == MANY else f"block {other - 1}"
            what = (
                f"{verb} {self._shown(at, row)}, which {block} {did}, and nothing "
                "orders the two: the result depends on the order of the blocks"
            )
            raise who.fault(Order, what, row)


class Global:
    """Global memory: the buffers one after the other, with gaps between them."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.released: dict[int, dict[int, Released]] = {}  # by address and block
        self._next = START

    def add(self, name: str, content: np.ndarray, defined: bool | np.ndarray) -> int:
        """Add a buffer of these bytes ``[n]``, which are updated in place, and return
        its address. ``defined`` says which bytes are initialised."""
        buffer = Buffer(name, self._next, content)
        if defined is not True:
            buffer.undefined[:] = ~np.asarray(defined, bool)
        self.buffers.append(buffer)
        self._next += (len(content) // GAP + 2) * GAP
        return buffer.start

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
        for thread, time, address in zip(
            who.threads, who.times, addresses, strict=True
        ):
            known = self.released.setdefault(int(address), {})
            if own.acquires:
                for block, released in known.items():
                    if block != who.block:
                        before = who.sees.get(block, released)
                        who.sees[block] = max(before, released)
            if own.releases:
                known |= who.sees
                known[who.block] = Released(int(time), int(thread))
        return found

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
            own = who._replace(
                threads=who.threads[rows],
                times=who.times[rows],
                warp_times=who.warp_times[rows],
            )
            yield buffer, rows, own

    def _where(self, address: int, count: int) -> str:
        """Describe an address outside every buffer."""
        before = [b for b in self.buffers if b.start <= address]
        if not before:
            return f"{count} bytes at the address {int(address)}, before all tensors"
        last = before[-1]
        return (
            f"{count} bytes at {last.name} + {int(address) - last.start}, which has "
            f"{len(last.bytes)} bytes"
        )


class Shared(Memory):
    """The shared memory of a block."""

    def __init__(self, size: int) -> None:
        super().__init__("shared memory", 0, np.zeros(size, np.uint8))
        self.undefined[:] = True

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


def _zeros(n: int, dtype: type) -> np.ndarray:
    """Return n zeros, which take no memory until they are written.

    A system may refuse to reserve more memory than it has, so a large array is mapped
    without a reservation.
    """
    size = n * np.dtype(dtype).itemsize
    if size < LARGE or sys.platform != "linux":
        return np.zeros(n, dtype)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVATION
    return np.frombuffer(mmap.mmap(-1, size, flags=flags), dtype)


def _indices(addresses: np.ndarray, count: int, buffer: Buffer) -> np.ndarray:
    return (addresses - buffer.start)[:, None] + np.arange(count)


def check_defined(defined: np.ndarray, what: str, who: Who) -> None:
    """Raise Undefined unless all ``defined[n]`` are true."""
    if not defined.all():
        raise who.fault(Undefined, what, ~defined)
