"""Memory of several blocks that execute together.

Unlike ``memory``, it does not judge. It raises Unsure if an access may be a fault or if
two accesses may race. Then the blocks run again, one after another, with ``memory``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np

from backpass.ptx.arrays import zeros
from backpass.ptx.rows import Unsure
from backpass.ptx.tensors import SPACE, Buffer, Global

# NumPy's types of accesses by their size in bytes. A complex number is copied as it is.
OF_SIZE: dict[int, type] = {
    1: np.uint8,
    2: np.uint16,
    4: np.uint32,
    8: np.uint64,
    16: np.complex128,
}
# What a part of shared memory is: never written, written before the last barrier or
# since, or the destination of a copy in flight. At a barrier, FRESH becomes SETTLED.
EMPTY, SETTLED, FRESH, AWAITED = 0, 1, 3, 4
_AT_BARRIER = np.uint8(0xFF ^ FRESH ^ SETTLED)
SEVERAL = -1  # in place of a thread


class By:
    """Who makes an access, for each element: the thread, numbered through all blocks
    from 1 on, its block, and how many barriers the block has passed. They are computed
    when they are needed, by ``spread`` from those of each thread of a wave. ``number``
    returns the number of each element's instruction."""

    def __init__(
        self,
        own: Sequence[np.ndarray],
        spread: Callable[[np.ndarray], np.ndarray],
        number: Callable[[], np.ndarray],
    ) -> None:
        self._own, self._spread, self._number = own, spread, number

    @cached_property
    def threads(self) -> np.ndarray:
        """The thread of each element."""
        return self._spread(self._own[0])

    @cached_property
    def blocks(self) -> np.ndarray:
        """The block of each element."""
        return self._spread(self._own[1])

    @cached_property
    def times(self) -> np.ndarray:
        """How many barriers the block of each element has passed."""
        return self._spread(self._own[2])

    @property
    def instructions(self) -> np.ndarray:
        """The number of each element's instruction, among those that run together."""
        return self._number()

    def only(self, rows: np.ndarray) -> By:
        """Return those that a mask or indices select."""
        return By(
            self._own, lambda own: self._spread(own)[rows], lambda: self._number()[rows]
        )


class Views:
    """Views of bytes as elements of each size. Addresses count from ``start``, a
    multiple of every size, at or before the first byte."""

    def __init__(self, content: np.ndarray, start: int = 0) -> None:
        self._content, self._start = content, start
        self._found: dict[int, np.ndarray] = {}

    def of(self, size: int) -> np.ndarray:
        """Return the elements of a size, the first of them at the first address that is
        a multiple of it."""
        if size not in self._found:
            own = self._content[-self._start % size :]
            own = own[: len(own) // size * size]
            self._found[size] = own.view(OF_SIZE[size])
        return self._found[size]


def _differ(view: np.ndarray, at: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Return whether each element at the indices differs from the data."""
    found = view[at]
    if found.dtype == np.complex128:
        found, data = (x.view(np.uint64).reshape(-1, 2) for x in (found, data))
        return np.any(found != data, axis=1)
    return found != data


def _in_several(at: np.ndarray, chosen: np.ndarray, by: By) -> bool:
    """Return whether several instructions access an index of a chosen element."""
    rows = np.isin(at, at[chosen])
    places, instructions = at[rows], by.instructions[rows]
    pairs = np.stack([places, instructions])
    return np.unique(pairs, axis=1).shape[1] > len(np.unique(places))


def _check_aligned(addresses: np.ndarray, size: int) -> None:
    if int(np.bitwise_or.reduce(addresses)) & (size - 1):
        raise Unsure


class SharedOfBlocks:
    """The shared memory of blocks, ``size`` bytes each. All accesses have multiples of
    ``granule`` bytes."""

    def __init__(self, blocks: int, size: int, granule: int) -> None:
        self.size, self.granule = size, granule
        self.each = -(-size // 16) * 16  # bytes from the start of one block to the next
        n = blocks * self.each
        self.bytes = Views(np.zeros(n // 16, np.complex128).view(np.uint8))
        self._codes = np.zeros(-(-n // granule // 8) * 8, np.uint8)
        self.codes = Views(self._codes)
        self.hits = Views(np.zeros(len(self._codes), bool))
        self.writers = zeros(len(self._codes), np.int32)
        self.known: Views | None = None  # bytes that are 0xFF if defined
        self.fresh = False  # whether a block has written since its last barrier
        self.reads: list[tuple[np.ndarray, int, By]] = []  # since the last barrier

    def places(self, addresses: np.ndarray, size: int, by: By) -> np.ndarray:
        """Return the indices of the elements of a size at the addresses ``[n]``."""
        if not len(addresses):
            return addresses
        if addresses.min() < 0 or addresses.max() + size > self.size:
            raise Unsure
        _check_aligned(addresses, size)
        return (addresses + by.blocks * self.each) // size

    def load(
        self, addresses: np.ndarray, size: int, by: By
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the elements of a size at the addresses ``[n]``, and, unless all bits
        are defined, which of them are."""
        at = self.places(addresses, size, by)
        self.reads.append((at, size, by))
        each = size // self.granule
        data = self.bytes.of(size)[at]
        defined = None
        if each <= 8:
            settled = OF_SIZE[each](int.from_bytes(bytes([SETTLED] * each), "little"))
            if not (self.codes.of(each)[at] == settled).all():
                defined = self._inspected(at, size, by)
        else:
            defined = self._inspected(at, size, by)
        if self.known is not None:
            defined = self.known.of(size)[at]
        return data, defined

    def kept(self, addresses: np.ndarray, size: int, by: By) -> np.ndarray:
        """Return the elements of a size at the addresses ``[n]`` without an access."""
        return self.bytes.of(size)[self.places(addresses, size, by)]

    def granules(self, at: np.ndarray, size: int) -> np.ndarray:
        """Return the parts ``[n, k]`` of elements at the indices ``at[n]``."""
        each = size // self.granule
        return at[:, None] * each + np.arange(each)

    def _inspected(self, at: np.ndarray, size: int, by: By) -> np.ndarray | None:
        """Return which bits of elements are defined. Raises Unsure if another thread
        has written an element since the last barrier, or a copy will."""
        granules = self.granules(at, size)
        codes = self._codes[granules]
        fresh = codes == FRESH
        if (codes == AWAITED).any() or (
            fresh & (self.writers[granules] != by.threads[:, None])
        ).any():
            raise Unsure
        empty = codes == EMPTY
        if not empty.any():
            return None
        full = np.where(empty, np.uint8(0), np.uint8(0xFF))
        own = np.repeat(full, self.granule, axis=1)
        return np.ascontiguousarray(own).view(OF_SIZE[size])[:, 0]

    def store(
        self,
        addresses: np.ndarray,
        data: np.ndarray,
        defined: np.ndarray | None,
        by: By,
    ) -> np.ndarray | None:
        """Write elements ``data[n]``. ``defined`` says which of their bytes are defined
        if not all are. If threads write different elements to one place in one
        instruction, the last remains: return which elements differ from what remains.
        """
        size, differs = data.itemsize, None
        at = self.places(addresses, size, by)
        granules, others = self.check_written(at, size, by, data)
        view = self.bytes.of(size)
        view[at] = data  # of a thread's stores to one place, the last remains
        self._codes[granules] = FRESH
        own = np.where(others, SEVERAL, by.threads[:, None])
        self.writers[granules] = own
        lost = self.writers[granules] != own
        if lost.any():  # two threads write at one place
            differs = _differ(view, at, data)
            if not differs.any():
                differs = None
            elif _in_several(at, differs, by):
                raise Unsure
            self.writers[granules[lost]] = SEVERAL
        self.fresh = True
        if defined is not None and self.known is None:
            known = np.repeat(self._codes != EMPTY, self.granule)
            self.known = Views(np.where(known, np.uint8(0xFF), np.uint8(0)))
        if self.known is not None:
            full = np.full(data.nbytes, 0xFF, np.uint8).view(data.dtype)
            self.known.of(size)[at] = full if defined is None else defined
        return differs

    def check_written(
        self, at: np.ndarray, size: int, by: By, data: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Raise Unsure if another thread has read elements since the last barrier, or
        written different data. Return the granules of the elements, and whether another
        thread has written the same data there."""
        granules = self.granules(at, size)
        codes = self._codes[granules]
        if (codes == AWAITED).any():
            raise Unsure
        self._check_reads(granules, by)
        others = codes == FRESH
        others &= self.writers[granules] != by.threads[:, None]
        rows = np.any(others, axis=1)
        if rows.any() and (
            data is None or _differ(self.bytes.of(size), at, data)[rows].any()
        ):
            raise Unsure
        return granules, others

    def _check_reads(self, granules: np.ndarray, by: By) -> None:
        if not self.reads:
            return
        hits = self.hits.of(1)
        hits[granules] = True
        found = False
        for at, size, _ in self.reads:
            each = size // self.granule
            if each <= 8:
                found = bool(self.hits.of(each)[at].any())
            else:
                found = bool(hits[self.granules(at, size)].any())
            if found:
                break
        hits[granules] = False
        if not found:
            return
        # Only the threads themselves may have read what they write now.
        owners = np.zeros(len(self._codes), np.int32)
        owners[granules] = by.threads[:, None]
        if (owners[granules] != by.threads[:, None]).any():
            raise Unsure
        for at, size, readers in self.reads:
            own = owners[self.granules(at, size)]
            if ((own != 0) & (own != readers.threads[:, None])).any():
                raise Unsure

    def expect(self, at: np.ndarray, size: int, by: By) -> None:
        """Record that elements are the destinations of copies in flight. Raises Unsure
        if two copies have the same one, or if they race with other accesses."""
        granules, _ = self.check_written(at, size, by, None)
        own = np.arange(len(at))[:, None]
        self.writers[granules] = own
        if (self.writers[granules] != own).any():
            raise Unsure
        self._codes[granules] = AWAITED

    def arrive(self, at: np.ndarray, size: int) -> None:
        """Record that the copies to elements have arrived."""
        self._codes[self.granules(at, size)] = EMPTY

    def meet(self, blocks: np.ndarray | None) -> None:
        """Let blocks, or all for None, pass a barrier."""
        if blocks is None:
            self.reads.clear()
            if self.fresh:
                self._codes &= _AT_BARRIER
                self.fresh = False
            return
        kept = []
        for at, size, by in self.reads:
            rows = ~np.isin(by.blocks, blocks)
            if rows.any():
                kept.append((at[rows], size, by.only(rows)))
        self.reads = kept
        each = self.each // self.granule
        for block in blocks.tolist() if self.fresh else ():
            self._codes[block * each : block * each + each] &= _AT_BARRIER


class LocalOfThreads:
    """The local memory of the threads of a wave, ``size`` bytes each."""

    def __init__(self, threads: int, size: int) -> None:
        self.size, self.each = size, -(-size // 16) * 16
        n = threads * self.each // 16
        self.bytes, self.known = (
            Views(np.zeros(n, np.complex128).view(np.uint8)) for _ in range(2)
        )

    def _places(self, addresses: np.ndarray, size: int, by: By) -> np.ndarray:
        if addresses.min() < 0 or addresses.max() + size > self.size:
            raise Unsure
        _check_aligned(addresses, size)
        return (addresses + (by.threads - 1) * self.each) // size

    def load(
        self, addresses: np.ndarray, size: int, by: By
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the elements of a size at the addresses ``[n]``, and, unless all bits
        are defined, which of them are."""
        at = self._places(addresses, size, by)
        known = self.known.of(size)[at]
        full = (known.view(np.uint8) == 0xFF).all()
        return self.bytes.of(size)[at], None if full else known

    def store(
        self,
        addresses: np.ndarray,
        data: np.ndarray,
        defined: np.ndarray | None,
        by: By,
    ) -> None:
        """Write elements ``data[n]``. ``defined`` says which of their bytes are defined
        if not all are."""
        size = data.itemsize
        at = self._places(addresses, size, by)
        full = np.full(data.nbytes, 0xFF, np.uint8).view(data.dtype)
        self.bytes.of(size)[at] = data  # of a thread's stores, the last remains
        self.known.of(size)[at] = full if defined is None else defined


class _Accessed:
    """Which thread accessed each part of a buffer, and when; SEVERAL for threads of
    several blocks, and less for several threads of one block."""

    def __init__(self, n: int) -> None:
        self.threads, self.times = zeros(n, np.int32), zeros(n, np.int32)

    def others(self, at: np.ndarray, by: By, n: int) -> np.ndarray:
        """Return whether another thread made an access, with no barrier since."""
        threads, own = self.threads[at], by.threads[:, None]
        found = (threads != 0) & (threads != own)
        if found.any():
            same = _block_of(threads, n) == by.blocks[:, None]
            found &= ~(same & (self.times[at] != by.times[:, None]))
        return found

    def record(self, at: np.ndarray, by: By, n: int) -> None:
        """Record an access by threads of blocks of n threads."""
        before, own = self.threads[at], np.broadcast_to(by.threads[:, None], at.shape)
        blocks, now = by.blocks[:, None], by.times[:, None]
        new = own
        if (odd := (before != 0) & (before != own)).any():
            same = _block_of(before, n) == blocks
            apart = same & (self.times[at] != now)
            new = np.where(odd & ~apart, np.where(same, -2 - blocks, SEVERAL), own)
        self.threads[at] = new
        self.times[at] = np.broadcast_to(now, at.shape)
        left = self.threads[at]
        if (lost := left != new).any():
            same = _block_of(left, n) == blocks
            both = np.broadcast_to(-2 - blocks, at.shape)
            self.threads[at[lost & same]] = both[lost & same]
            self.threads[at[lost & ~same]] = SEVERAL


def _block_of(threads: np.ndarray, n: int) -> np.ndarray:
    return np.where(threads > 0, (threads - 1) // n, -2 - threads)


class _Tracked:
    """A buffer. If it is not ``stored``, its accesses are not recorded. If it is
    ``updated`` by atomic instructions, no others may access it."""

    updated = False

    def __init__(self, buffer: Buffer, stored: bool, granule: int) -> None:
        self.buffer, self.start, self.size = buffer, buffer.start, len(buffer.bytes)
        self.views = Views(buffer.bytes, buffer.start)
        known = buffer.known
        self.known = None
        if known is not None and not known.all():
            self.known = Views(known.view(np.uint8), buffer.start)
        self.read, self.wrote = None, None
        if stored:
            self.first = buffer.start // granule
            n = -(-self.size // granule) + 1
            self.read, self.wrote = _Accessed(n), _Accessed(n)


def _check_plain(own: _Tracked) -> None:
    if own.updated:
        raise Unsure


class GlobalOfBlocks:
    """Global memory of blocks of n threads. Only the buffers at ``stored`` addresses
    may be written, and only those at ``updated`` ones may be updated by atomic
    instructions; ``granule`` divides the size of each access."""

    def __init__(
        self,
        memory: Global,
        stored: set[int],
        updated: set[int],
        granule: int,
        n: int,
    ) -> None:
        of_stored = {address // SPACE for address in stored}
        self.buffers = [
            _Tracked(x, x.start // SPACE in of_stored, granule) for x in memory.buffers
        ]
        for own in self.buffers:
            own.updated = own.start // SPACE in {x // SPACE for x in updated}
        self.granule, self.n, self.traffic = granule, n, memory.traffic
        self.log: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # for `undo`

    def undo(self) -> None:
        """Restore memory as it was at first."""
        if self.traffic is not None:
            self.traffic.clear()
        for view, at, old in reversed(self.log):
            view[at] = old
        self.log = []

    @contextmanager
    def as_before(self, count: int) -> Iterator[None]:
        """Let memory be as it was after ``count`` entries of the log, meanwhile."""
        later = []
        for view, at, old in reversed(self.log[count:]):
            later.append((view, at, view[at]))
            view[at] = old
        try:
            yield
        finally:
            for view, at, new in reversed(later):
                view[at] = new

    def _divided(self, addresses: np.ndarray, size: int):
        """Yield each accessed buffer, and the rows of its accesses, None for all."""
        _check_aligned(addresses, size)
        number = int(addresses[0]) // SPACE - 1
        if 0 <= number < len(self.buffers):
            own = self.buffers[number]
            if (
                addresses.min() >= own.start
                and addresses.max() + size <= own.start + own.size
            ):
                _check_plain(own)
                yield own, None
                return
        left = np.ones(len(addresses), bool)
        for own in self.buffers:
            rows = left & (addresses >= own.start)
            rows &= addresses + size <= own.start + own.size
            if rows.any():
                _check_plain(own)
                yield own, np.flatnonzero(rows)
                left &= ~rows
        if left.any():
            raise Unsure

    def check_updated(self, addresses: np.ndarray) -> None:
        """Raise Unsure if an atomic instruction updates an address outside the buffers
        that only atomic instructions may access."""
        left = np.ones(len(addresses), bool)
        for own in self.buffers:
            if own.updated:
                left &= (addresses < own.start) | (addresses >= own.start + own.size)
        if left.any():
            raise Unsure

    def load(
        self, addresses: np.ndarray, size: int, by: By
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the elements of a size at the addresses ``[n]``, and, unless all bits
        are defined, which of them are."""
        data, defined = np.zeros(len(addresses), OF_SIZE[size]), None
        for own, rows in self._divided(addresses, size) if len(addresses) else ():
            found, known = self._loaded(own, addresses, size, by, rows)
            if rows is None:
                return found, known
            data[rows] = found
            if known is not None:
                if defined is None:
                    defined = np.full(data.nbytes, 0xFF, np.uint8).view(data.dtype)
                defined[rows] = known
        return data, defined

    def _loaded(
        self,
        own: _Tracked,
        addresses: np.ndarray,
        size: int,
        by: By,
        rows: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        if rows is not None:
            addresses, by = addresses[rows], by.only(rows)
        self._count(own, False, addresses, size, by)
        at = addresses // size - -(-own.start // size)
        if own.read is not None and own.wrote is not None:
            granules = self._granules(own, addresses, size)
            if own.wrote.others(granules, by, self.n).any():
                raise Unsure
            own.read.record(granules, by, self.n)
        known = None
        if own.known is not None:
            flags = own.known.of(size)[at].view(np.uint8)
            if not flags.all():
                known = (flags * np.uint8(0xFF)).view(OF_SIZE[size])
        return own.views.of(size)[at], known

    def store(self, addresses: np.ndarray, data: np.ndarray, by: By) -> None:
        """Write elements ``data[n]``."""
        size = data.itemsize
        for own, rows in self._divided(addresses, size) if len(addresses) else ():
            each, values, who = addresses, data, by
            if rows is not None:
                each, values, who = addresses[rows], data[rows], by.only(rows)
            self._store(own, each, values, who)

    def _store(
        self, own: _Tracked, addresses: np.ndarray, data: np.ndarray, by: By
    ) -> None:
        size = data.itemsize
        self._count(own, True, addresses, size, by)
        at, view = addresses // size - -(-own.start // size), own.views.of(size)
        if own.read is None or own.wrote is None:  # not expected from the program
            raise Unsure
        granules = self._granules(own, addresses, size)
        if own.read.others(granules, by, self.n).any():
            raise Unsure
        others = own.wrote.others(granules, by, self.n)
        if others.any():
            same = _block_of(own.wrote.threads[granules], self.n) == by.blocks[:, None]
            if (others & ~same).any() or _differ(view, at, data)[others.any(1)].any():
                raise Unsure
        self.log.append((view, at, view[at]))
        view[at] = data  # of a thread's stores to one place, the last remains
        own.wrote.record(granules, by, self.n)
        lost = own.wrote.threads[granules] != by.threads[:, None]
        if lost.any() and _differ(view, at, data).any():
            raise Unsure
        if own.known is not None:
            known = own.known.of(size)
            self.log.append((known, at, known[at]))
            known[at] = np.ones(data.nbytes, np.uint8).view(known.dtype)

    def _count(
        self, own: _Tracked, stores: bool, addresses: np.ndarray, size: int, by: By
    ) -> None:
        if self.traffic is not None:
            given = own.buffer.name, stores, addresses, size
            self.traffic.add(*given, by.blocks, by.instructions)

    def _granules(self, own: _Tracked, addresses: np.ndarray, size: int) -> np.ndarray:
        first = addresses // self.granule - own.first
        return first[:, None] + np.arange(size // self.granule)
