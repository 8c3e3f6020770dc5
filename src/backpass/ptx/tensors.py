"""Global memory: the tensors that are passed to a kernel.

A buffer also checks the order of blocks. Blocks run in any order, so a block must not
access what another block writes unless something orders the two accesses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from backpass.ptx.accesses import BLOCK, Last
from backpass.ptx.arrays import zeros
from backpass.ptx.atomics import Atomic
from backpass.ptx.faults import HalfWord, Order, OutOfBounds, Place, TooEarly
from backpass.ptx.memory import Memory, check_aligned, size_of
from backpass.ptx.races import Who
from backpass.ptx.released import Released, Seen, with_later
from backpass.ptx.traffic import Traffic

SPACE = 1 << 40  # addresses reserved for each buffer; no buffer begins at 0
OF_ODD = (
    ". Triton compiles an atomic sum in bfloat16 to a loop over words of two elements: "
    "give the tensor an even number of elements, or add in float32"
)
PAGE = 1 << 12  # a tensor keeps its alignment up to this number of bytes


class Buffer(Memory):
    """Global memory of one tensor. It also checks the order of blocks."""

    copied: np.ndarray | None = None  # the block that is copying each byte, plus 1
    unwritten: Place | None = None  # the last load of bytes that nothing has written

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
        self._check_order(at, who, wrote, self.writes, "reads")
        if who.swaps:
            return super().load(at, who)
        updated, read = (last.unordered(at, who) for last in (self.updates, self.reads))
        self._check_order(at, who, updated, self.updates, "reads")
        found = super().load(at, who)
        self.reads.several[at] = read
        self.changed[at] &= read
        if self.known is not None and not self.known[at].all():
            self.unwritten = who.place
        return found

    def store(
        self, at: np.ndarray, data: np.ndarray, defined: np.ndarray, who: Who
    ) -> None:
        self._check_copied(at, who)
        wrote, changes = self.writes.unordered(at, who), self.bytes[at] != data
        updated, read = (last.unordered(at, who) for last in (self.updates, self.reads))
        self._check_order(at, who, wrote & changes, self.writes, "writes")
        self._check_order(at, who, updated, self.updates, "writes")
        read &= changes | self.changed[at]
        self._check_order(at, who, read, self.reads, "writes")
        self._keep(at)
        super().store(at, data, defined, who)
        self.writes.several[at] = wrote
        self.changed[at] |= changes

    def update(
        self, at: np.ndarray, own: Atomic, given: list[np.ndarray], who: Who
    ) -> np.ndarray:
        self._check_copied(at, who)
        wrote = self.writes.unordered(at, who)
        self._check_order(at, who, wrote, self.writes, "updates")
        updated, read = (last.unordered(at, who) for last in (self.updates, self.reads))
        if own.within_block:
            self._check_order(at, who, updated, self.updates, "updates")
        self._check_order(at, who, read, self.reads, "updates")
        self._keep(at)
        before = self.bytes[at]
        found = super().update(at, own, given, who)
        self.updates.several[at] = updated
        self.changed[at] |= self.bytes[at] != before
        return found

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
        self, at: np.ndarray, who: Who, bad: np.ndarray, last: Last, verb: str
    ) -> None:
        if bad.any():
            row, first = np.any(bad, axis=1), at[bad][0]
            number = last.time[first] // BLOCK
            block = "another block" if last.several[first] else f"block {number}"
            what = (
                f"{verb} {self._shown(at, row)}, which {block} {last.then}, and nothing "
                "orders the two accesses: the result depends on the order of the blocks"
            )
            raise who.fault(Order, what, row)


class Global:
    """Global memory: buffers that are 2**40 addresses apart, so that a wrong stride
    does not lead from one buffer into another."""

    def __init__(self, find: Callable[[int], Any] = lambda address: None) -> None:
        """``find`` returns the tensor at an address, and its name, or None."""
        self.find = find
        self.traffic: Traffic | None = None  # counts what is moved
        self.buffers: list[Buffer] = []
        self.released: dict[int, Seen] = {}  # what is released at each address
        self.log: list[tuple[int, Seen]] = []  # for `undo`
        self.unsettled: list[int] = []  # how many each buffer had

    def add(
        self,
        name: str,
        content: np.ndarray,
        defined: bool | np.ndarray,
        start: int | None = None,
    ) -> int:
        """Add a buffer of these bytes ``[n]``, which are updated in place, and return
        its address: ``start``, or one after those of the other buffers. ``defined``
        says which bytes are initialised: all, none, or those of a mask, which is
        updated too."""
        known = defined if isinstance(defined, np.ndarray) else None
        if defined is False:
            known = zeros(len(content), bool)
        if start is None:
            start = (len(self.buffers) + 1) * SPACE + address_of(content) % PAGE
        self.buffers.append(Buffer(name, start, content, known))
        return start

    def _added(self, address: int) -> bool:
        """Add the tensor at an address that a kernel has loaded, if there is one."""
        found = self.find(address)
        if found is None or any(x.start == found[1].start for x in self.buffers):
            return False
        name, x = found
        self.add(name, x.bytes, x.defined, x.start)
        self.unsettled.append(0)
        return True

    @property
    def changes(self) -> int:
        """How many instructions have changed the bytes of a buffer."""
        return sum(buffer.changes for buffer in self.buffers)

    def unwritten(self) -> str:
        """Return where a kernel has loaded bytes that nothing has written, for a
        message; "" if it has not."""
        return "".join(
            f"; bytes of {x.name} that nothing has written were loaded at {x.unwritten}"
            for x in self.buffers
            if x.unwritten is not None
        )

    def begin(self) -> None:
        """Start what ``undo`` restores: the run of a block."""
        self.log, self.unsettled = [], [len(x.unsettled) for x in self.buffers]
        for buffer in self.buffers:
            buffer.log = []
        if self.traffic is not None:
            self.traffic.begin()

    def undo(self) -> None:
        """Restore memory as it was at ``begin``."""
        for address, seen in reversed(self.log):
            self.released[address] = seen
        for buffer, count in zip(self.buffers, self.unsettled, strict=True):
            buffer.undo()
            del buffer.unsettled[count:]
        self.log = []
        if self.traffic is not None:
            self.traffic.undo()

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
        for buffer, rows, at, own in self._divided(addresses, count, who, "reads"):
            found[rows], defined[rows] = buffer.load(at, own)
            self._count(buffer, False, at, own)
        return found, defined

    def store(
        self, addresses: np.ndarray, data: np.ndarray, defined: np.ndarray, who: Who
    ) -> None:
        """Write the bytes ``data[n, k]``. Raises what ``load`` raises."""
        count = data.shape[1]
        check_aligned(addresses, count, who, "global memory")
        for buffer, rows, at, own in self._divided(addresses, count, who, "writes"):
            buffer.store(at, data[rows], defined[rows], own)
            self._count(buffer, True, at, own)

    def update(
        self, addresses: np.ndarray, own: Atomic, given: list[np.ndarray], who: Who
    ) -> np.ndarray:
        """Apply an atomic instruction to each address ``[n]``, and return the bits that
        it found there. Raises what ``load`` raises, and Undefined."""
        found, count = np.zeros(len(addresses), given[0].dtype), given[0].itemsize
        check_aligned(addresses, count, who, "global memory")
        for buffer, rows, at, by in self._divided(addresses, count, who, "updates"):
            found[rows] = buffer.update(at, own, [x[rows] for x in given], by)
            for stores in (False, True):
                self._count(buffer, stores, at, by)
        self._order(addresses, own, own.writes(found, given), who)
        return found

    def _count(self, buffer: Buffer, stores: bool, at: np.ndarray, who: Who) -> None:
        """Count the accesses to the indices ``at[n, k]``, if they are counted."""
        if self.traffic is not None:
            n, size = at.shape
            given = buffer.name, stores, buffer.start + at[:, 0], size
            blocks = np.full(n, who.block)
            self.traffic.add(*given, blocks, np.zeros(n, np.int64))

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
        """Yield each accessed buffer, the rows of its accesses, the indices of their
        bytes, and who makes them."""
        left = np.ones(len(addresses), bool)
        found = []
        for buffer in self.buffers:
            first = addresses - buffer.start
            rows = left & (first >= 0) & (first + count <= len(buffer.bytes))
            if rows.any():
                found.append((buffer, rows))
                left &= ~rows
        if left.any():
            if self._added(int(addresses[left][0])):
                yield from self._divided(addresses, count, who, verb)
                return
            what = f"{verb} {self._where(addresses[left][0], count)}"
            if who.swaps and all(map(self._is_half, addresses[left])) and count == 4:
                raise who.fault(HalfWord, what + OF_ODD, left)
            raise who.fault(OutOfBounds, what, left)
        for buffer, rows in found:
            yield buffer, rows, _indices(addresses[rows], count, buffer), who.only(rows)

    def _is_half(self, address: int) -> bool:
        """Whether the last two bytes of a buffer begin at the address."""
        return any(of.start + len(of.bytes) - 2 == address for of in self.buffers)

    def _where(self, address: int, count: int) -> str:
        """Describe an address outside every buffer."""
        if address < SPACE // 2:
            return f"{size_of(count)} at address {int(address)}, before all tensors"
        nearest = min(self.buffers, key=lambda buffer: abs(address - buffer.start))
        offset = int(address) - nearest.start
        if offset > SPACE:
            return (
                f"{size_of(count)} at address {int(address)}, beyond all tensors; "
                "data_ptr() is the address of a tensor only in executing(as_cuda=True)"
            )
        sign = "+" if offset >= 0 else "-"
        return (
            f"{size_of(count)} at {nearest.name} {sign} {abs(offset)}; "
            f"{nearest.name} has {size_of(len(nearest.bytes))}"
        )


def _indices(addresses: np.ndarray, count: int, buffer: Buffer) -> np.ndarray:
    return (addresses - buffer.start)[:, None] + np.arange(count)


def address_of(content: np.ndarray) -> int:
    """Return the address of an array in this process."""
    return content.__array_interface__["data"][0]
