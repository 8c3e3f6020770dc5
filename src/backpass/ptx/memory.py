"""Memory that records which threads accessed each byte, and when. It finds accesses out
of bounds, bytes that were never written, and races.

Two accesses by threads of a block count as simultaneous unless a barrier separates
them. If two threads access a byte at the same time, neither access may be a write,
unless both write the same value, both are atomic, or the value of a read is not used,
as ``races`` describes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from backpass.ptx.accesses import Last
from backpass.ptx.arrays import zeros
from backpass.ptx.atomics import Atomic, Sums
from backpass.ptx.faults import (
    AtomicSum,
    Fault,
    LastBits,
    Misaligned,
    OutOfBounds,
    Race,
    TooEarly,
    Undefined,
)
from backpass.ptx.races import Who

if TYPE_CHECKING:
    from backpass.ptx.proxy import Proxy

# The usual cause of a difference in the last bits, and the remedy.
CONTRACTED = (
    "Threads that compute the same sum can differ by this much if the compiler "
    "contracts a product and a sum to a fused multiply-add: each adds the other's "
    "rounded product to its own unrounded one. Launch the kernel with "
    "enable_fp_fusion=False to avoid this"
)
LAST_BITS = (
    "at most {units} in the last place of a float32, {share:.0e} of its value. "
    + CONTRACTED
)
SHARED = "shared memory"
CLOSE = 4  # units in the last place
OF_NEIGHBOUR = (
    ". Triton compiles an atomic sum in bfloat16 to a loop over words of two elements: "
    "initialise both elements, or add in float32"
)


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
        self.reads = Last(n, "reads", "read", exchanged=True)
        self.writes = Last(n, "writes", "wrote")
        self.updates = Last(n, "updates", "updated")
        self.sums = Sums(n)
        self.changes = 0  # how many instructions have changed the bytes

    def load(self, at: np.ndarray, who: Who) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes ``[n, k]`` at the indices ``at[n, k]``, and whether each is
        defined. Raises TooEarly."""
        self.check_awaited(at, who)
        who.races.notice(self.name, at, who)
        racing = self.writes.at_once(at, who)
        self._note_race(at, racing, self.writes, who, "reads")
        if not who.swaps:
            updated = self.updates.at_once(at, who)
            self._note_race(at, updated, self.updates, who, "reads")
            racing |= updated
        racing &= who.races.counts(who.place)
        racing |= who.races.lost(self.start, at, who)
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
        self.check_awaited(at, who)
        who.races.notice(self.name, at, who)
        at_once = self.check_write(at, data, who)
        same = np.array_equal(self.bytes[at], data)
        self.changes += not (same and np.array_equal(self._defined(at), defined))
        self.bytes[at] = data
        if self.known is not None:
            self.known[at] = defined
        # If threads write to the same bytes in one instruction, one value remains.
        differs = np.any((self.bytes[at] != data), axis=1)
        if differs.any():
            units = units_apart(self.bytes[at][differs], data[differs]).max()
            kind, what = conflict(self._shown(at, differs), units)
            fault = who.fault(kind, what, differs)
            fault.apart = kind is Race
            self.unsettled.append(fault)
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
        self.check_awaited(at, who)
        who.races.notice(self.name, at, who)
        self.check_race(at, self.writes.at_once(at, who), self.writes, who, "updates")
        self._check_reads(at, who, "updates")
        known = self._defined(at)
        what = f"updates uninitialised bytes of {self.name}"
        if who.swaps and at.shape[1] == 4 and (known.sum(axis=1) == 2).any():
            what += OF_NEIGHBOUR
        check_defined(np.all(known, axis=1), what, who)
        found, left = np.zeros(len(at), given[0].dtype), np.ones(len(at), bool)
        rounded = np.zeros(len(at), bool)
        at_once = self.updates.at_once(at, who)
        of_others = self.updates.unordered(at, who)
        unordered = np.any(at_once | of_others, axis=1)
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
            self.unsettled.append(who.fault(AtomicSum, what, rounded))
        self.updates.record(at, who, at_once)
        return found

    def check_write(
        self, at: np.ndarray, data: np.ndarray | None, who: Who
    ) -> np.ndarray:
        """Raise Race if another thread accesses the indices ``at[n, k]`` at the same
        time, unless it writes the same ``data[n, k]``. Return whether another thread
        does so."""
        self._check_reads(at, who, "writes to")
        updated = self.updates.at_once(at, who)
        self.check_race(at, updated, self.updates, who, "writes to")
        wrote = self.writes.at_once(at, who)
        different = wrote if data is None else wrote & (self.bytes[at] != data)
        self.check_race(at, different, self.writes, who, "writes to")
        return wrote

    def _defined(self, at: np.ndarray) -> np.ndarray:
        return np.ones(at.shape, bool) if self.known is None else self.known[at]

    def _check_reads(self, at: np.ndarray, who: Who, verb: str) -> None:
        """Note the races of writes to the indices ``at[n, k]`` with earlier reads."""
        bad = self.reads.at_once(at, who)
        if not bad.any():
            return
        self._note_race(at, bad, self.reads, who, verb)
        who.races.add((self.start, len(self.bytes)), at, bad, who)

    def _note_race(
        self, at: np.ndarray, bad: np.ndarray, last: Last, who: Who, verb: str
    ) -> None:
        if bad.any() and who.place not in who.races.found:
            who.races.found[who.place] = self._race(at, bad, last, who, verb)

    def check_race(
        self, at: np.ndarray, bad: np.ndarray, last: Last, who: Who, verb: str
    ) -> None:
        """Raise Race if any of the bytes ``at[n, k]`` is ``bad``."""
        if bad.any():
            raise self._race(at, bad, last, who, verb)

    def _race(
        self, at: np.ndarray, bad: np.ndarray, last: Last, who: Who, verb: str
    ) -> Race:
        row = np.any(bad, axis=1)
        what = (
            f"{verb} {self._shown(at, row)}, which {last.name(at[bad][0])} {last.now}, "
            "without a barrier between the two accesses"
        )
        race = who.fault(Race, what, row)
        race.byte = self.name, int(at[bad][0])
        return race

    def check_awaited(self, at: np.ndarray, who: Who) -> None:
        bad = np.any(self.awaited[at], axis=1)
        if bad.any():
            shown = self._shown(at, bad)
            what = f"accesses {shown} before waiting for the copy that writes there"
            raise who.fault(TooEarly, what, bad)

    def _shown(self, at: np.ndarray, bad: np.ndarray) -> str:
        row = at[np.argmax(bad)]
        return place_of(self.name, int(row[0]), len(row))


class Shared(Memory):
    """The shared memory of a block."""

    def __init__(self, size: int) -> None:
        content, known = np.zeros(size, np.uint8), np.zeros(size, bool)
        super().__init__(SHARED, 0, content, known)
        self.proxy: Proxy | None = None  # if the kernel uses the asynchronous proxy

    def check_awaited(self, at: np.ndarray, who: Who) -> None:
        super().check_awaited(at, who)
        if self.proxy is not None:
            self.proxy.check(at, who)

    def check_write(
        self, at: np.ndarray, data: np.ndarray | None, who: Who
    ) -> np.ndarray:
        if self.proxy is not None:
            self.proxy.check_write(at, who)
        return super().check_write(at, data, who)

    def store(
        self, at: np.ndarray, data: np.ndarray, defined: np.ndarray, who: Who
    ) -> None:
        super().store(at, data, defined, who)
        if self.proxy is not None:
            self.proxy.unfenced[at] = True

    def update(
        self, at: np.ndarray, own: Atomic, given: list[np.ndarray], who: Who
    ) -> np.ndarray:
        if self.proxy is not None:
            self.proxy.check_write(at, who)
            self.proxy.unfenced[at] = True
        return super().update(at, own, given, who)

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
                f"{verb} {size_of(count)} at shared memory + {first}; "
                f"shared memory has {size_of(len(self.bytes))}"
            )
            raise who.fault(OutOfBounds, what, outside)
        return addresses[:, None] + np.arange(count)


def conflict(place: str, units: float) -> tuple[type[Fault], str]:
    """Return the fault of threads that write different values to a place, so many units
    in the last place apart: its class, and what happens."""
    what = f"writes to {place}, where another thread writes a different value"
    if not 0 < units <= CLOSE:
        return Race, what
    whole = int(np.ceil(units))
    count = f"{whole} unit{'s' if whole > 1 else ''}"
    bits = LAST_BITS.format(units=count, share=whole * 2.0**-23)
    return LastBits, f"{what}, by {bits}"


def units_apart(kept: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Return by how many units in the last place two arrays of bytes ``[n, k]`` differ
    at most in each row, if it holds normal float32 numbers that differ by at most
    CLOSE; otherwise infinity."""
    if kept.shape[1] % 4:
        return np.full(len(kept), np.inf)
    a, b = (np.ascontiguousarray(x).view(np.float32) for x in (kept, data))
    with np.errstate(invalid="ignore", over="ignore"):
        units = np.abs(a - b) / np.spacing(np.maximum(np.abs(a), np.abs(b)))
    normal = np.minimum(np.abs(a), np.abs(b)) >= np.finfo(np.float32).tiny
    close = (units <= CLOSE) & normal
    return np.where(a == b, 0, np.where(close, units, np.inf)).max(axis=1)


def check_aligned(addresses: np.ndarray, count: int, who: Who, name: str) -> None:
    """Raise Misaligned unless every address is a multiple of ``count`` bytes."""
    odd = addresses % count != 0
    if odd.any():
        address = int(addresses[odd][0])
        what = (
            f"accesses {size_of(count)} of {name} at address {address}, which is not a "
            f"multiple of {count}"
        )
        raise who.fault(Misaligned, what, odd)


def check_defined(defined: np.ndarray, what: str, who: Who) -> None:
    """Raise Undefined unless all ``defined[n]`` are true."""
    if not defined.all():
        raise who.fault(Undefined, what, ~defined)


def place_of(name: str, index: int, n: int) -> str:
    """Return the place of n bytes of a memory in words."""
    return f"{name} + {index} ({size_of(n)})"


def size_of(n: int) -> str:
    """Return a number of bytes in words."""
    return f"{n} byte{'' if n == 1 else 's'}"
