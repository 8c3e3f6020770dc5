"""Numbers in float64 beside bits: those of registers, and of bytes of memory.

Each 16 bits have a slot. The number of a float16 or bfloat16 is in its slot, and that
of a longer format in the first of its slots. A code says which format it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from backpass.ptx.faults import Place
from backpass.ptx.formats import values_of
from backpass.ptx.tensor_cores import GROUP, PLACE

NONE = 0  # the number is the executed one
CODES = {"f16": 1, "bf16": 2, "f32": 3, "f64": 4}
SIZES = {"f16": 1, "bf16": 1, "f32": 2, "f64": 4}  # in slots

# Instructions on floating-point numbers, in float64.
FUNCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "fma": lambda a, b, c: a * b + c,
    "max": np.fmax,
    "min": np.fmin,
    "neg": np.negative,
    "abs": np.abs,
    "ex2": np.exp2,
    "lg2": np.log2,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcp": lambda x: 1 / x,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


def float64_of(bits: np.ndarray, type: str) -> np.ndarray:
    """Return the numbers that bits represent in a type."""
    return values_of(bits, type).astype(np.float64)


def halves(flags: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the flags of the first and of the second byte of each slot."""
    even = np.concatenate([flags, np.zeros(len(flags) % 2, bool)])
    return even[::2], even[1::2]


class Departure(NamedTuple):
    """An instruction whose result is far from its number in float64."""

    place: Place | None
    instruction: str
    block: int
    thread: int
    got: float
    exact: float


class Slots(NamedTuple):
    """The ``numbers[n, k]`` of k slots, and their codes."""

    values: np.ndarray
    codes: np.ndarray

    @classmethod
    def empty(cls, n: int, k: int) -> Slots:
        """Return slots without numbers."""
        return cls(np.zeros((n, k)), np.zeros((n, k), np.uint8))

    @classmethod
    def of(cls, found: Sequence[np.ndarray], type: str) -> Slots:
        """Return the slots of registers that hold numbers ``[n]`` of a type, one after
        the other. NaN has no number beside it."""
        size = SIZES[type]
        slots = cls.empty(len(found[0]), size * len(found))
        for i, x in enumerate(found):
            slots.values[:, i * size] = x
            slots.codes[:, i * size] = np.where(np.isnan(x), NONE, CODES[type])
        return slots

    @classmethod
    def joined(cls, parts: Sequence[Slots]) -> Slots:
        """Return the slots of several registers, one after the other."""
        values, codes = zip(*parts, strict=True)
        return cls(np.concatenate(values, axis=1), np.concatenate(codes, axis=1))

    def numbers(
        self, type: str, at: int, executed: np.ndarray, bits: np.ndarray
    ) -> np.ndarray:
        """Return the numbers of a type in slot ``at``; the executed ones where the slot
        has none. The bits of a bfloat16 are the upper ones of a float32."""
        found = np.where(self.codes[:, at] == CODES[type], self.values[:, at], executed)
        if type == "f32" and at == 0:
            upper = (self.codes[:, 1] == CODES["bf16"]) & (bits & 0xFFFF == 0)
            found = np.where(upper, self.values[:, 1], found)
        return found

    def resized(self, k: int) -> Slots:
        """Return k slots: the first ones, or more of them without numbers."""
        n, before = self.codes.shape
        if k == before:
            return self
        if k > before:
            return Slots.joined([self, Slots.empty(n, k - before)])
        found = Slots(self.values[:, :k], self.codes[:, :k].copy())
        longer = [size for type, size in SIZES.items() if size > k]
        for code in (CODES[type] for type, size in SIZES.items() if size in longer):
            found.codes[found.codes == code] = NONE
        return found

    def part(self, first: int, k: int) -> Slots:
        """Return k slots from ``first`` on."""
        own = slice(first, first + k)
        return Slots(self.values[:, own], self.codes[:, own])

    def rows(self, rows: np.ndarray) -> Slots:
        """Return those of some threads."""
        return Slots(self.values[rows], self.codes[rows])

    def where(self, chosen: np.ndarray, other: Slots) -> Slots:
        """Return these for chosen threads, and others for the rest."""
        own = chosen[:, None]
        values = np.where(own, self.values, other.values)
        return Slots(values, np.where(own, self.codes, other.codes))

    def replaced(self, rows: np.ndarray, new: Slots) -> Slots:
        """Return the slots with those of some threads replaced."""
        values, codes = self.values.copy(), self.codes.copy()
        values[rows], codes[rows] = new
        return Slots(values, codes)

    def spread(self, chosen: np.ndarray) -> Slots:
        """Return the slots of all threads, given those of the chosen ones."""
        found = Slots.empty(len(chosen), self.codes.shape[1])
        found.values[chosen], found.codes[chosen] = self
        return found

    def permuted(self, selector: int) -> Slots | None:
        """Return the slots of prmt's result, if it moves whole halves."""
        nibbles = [selector >> 4 * i & 0xF for i in range(4)]
        pairs = [(nibbles[2 * i], nibbles[2 * i + 1]) for i in (0, 1)]
        if any(low % 2 or high != low + 1 or high > 7 for low, high in pairs):
            return None
        return Slots.joined([self.part(low // 2, 1) for low, _ in pairs]).shorter()

    def shorter(self) -> Slots:
        """Return the slots without numbers of more than 16 bits."""
        codes = np.where(self.codes > CODES["bf16"], NONE, self.codes)
        return Slots(self.values, codes.astype(np.uint8))

    def as_float32(self, at: int) -> Slots:
        """Return the slots of a float32 whose upper half is the bfloat16 in a slot."""
        found = Slots.empty(len(self.codes), 2)
        found.values[:, 0] = self.values[:, at]
        known = self.codes[:, at] == CODES["bf16"]
        found.codes[:, 0] = np.where(known, CODES["f32"], NONE)
        return found

    def with_sign(self, sign: float | None) -> Slots:
        """Return the numbers times a sign, or without their sign for None."""
        values = np.abs(self.values) if sign is None else sign * self.values
        return Slots(values, self.codes)

    def of_lanes(self, n: int, transposed: bool) -> Iterator[Slots]:
        """Yield the slots of each of ldmatrix's n registers, given the rows of its
        matrices."""
        for i in range(n):
            parts = []
            for own in self:
                rows = own.reshape(-1, n, 8, 8)[:, i]
                rows = np.swapaxes(rows, 1, 2) if transposed else rows
                each = [rows[:, GROUP, 2 * PLACE + j].reshape(-1) for j in (0, 1)]
                parts.append(np.stack(each, axis=1))
            yield Slots(*parts)

    @classmethod
    def of_rows(cls, registers: Sequence[Slots], transposed: bool) -> Slots:
        """Return the rows of the matrices that stmatrix writes, given its registers."""
        parts = []
        for own in zip(*registers, strict=True):
            warps = len(own[0]) // 32
            rows = np.zeros((warps, len(own), 8, 8), own[0].dtype)
            for i, x in enumerate(own):
                for j in (0, 1):
                    rows[:, i, GROUP, 2 * PLACE + j] = x[:, j].reshape(warps, 32)
            rows = np.swapaxes(rows, 2, 3) if transposed else rows
            parts.append(rows.reshape(-1, 8))
        return cls(*parts)


class Space:
    """The slots of bytes of memory from an address on. What the blocks store is logged,
    so that a block can begin again."""

    def __init__(self, start: int, n: int) -> None:
        self.start, self.n = start, n
        self.values = np.zeros(-(-n // 2))
        self.codes = np.zeros(-(-n // 2), np.uint8)
        self._log: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def begin(self, again: bool) -> None:
        """Begin a block, or begin it again: then what it has stored is forgotten."""
        for at, values, codes in reversed(self._log) if again else ():
            self.values[at], self.codes[at] = values, codes
        self._log = []

    def forget(self, which: np.ndarray) -> None:
        """Forget the numbers of slots."""
        codes = self.codes
        codes[which] = NONE
        for type, size in SIZES.items():
            for i in range(1, min(size, len(which))):
                later = np.zeros(len(which), bool)
                later[:-i] = which[i:]
                codes[later & (codes == CODES[type])] = NONE

    def contains(self, addresses: np.ndarray) -> np.ndarray:
        """Return which addresses are in this memory."""
        return (addresses >= self.start) & (addresses < self.start + self.n)

    def _places(self, addresses: np.ndarray, k: int) -> np.ndarray:
        return ((addresses - self.start) // 2)[:, None] + np.arange(k)

    def load(self, addresses: np.ndarray, k: int) -> Slots:
        """Return the k slots at each address."""
        at = self._places(addresses, k)
        return Slots(self.values[at], self.codes[at])

    def store(self, addresses: np.ndarray, slots: Slots) -> None:
        """Store slots at each address."""
        at = self._places(addresses, slots.codes.shape[1])
        self._log.append((at, self.values[at], self.codes[at]))
        self.values[at], self.codes[at] = slots

    def numbers(self, content: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the executed numbers of each format, and those beside them."""
        for type, code in CODES.items():
            at = np.flatnonzero(self.codes == code)
            width = 2 * SIZES[type]
            at = at[2 * at + width <= len(content)]
            if len(at):
                found = content[2 * at[:, None] + np.arange(width)]
                bits = np.ascontiguousarray(found).view(f"uint{8 * width}")[:, 0]
                yield float64_of(bits, type), self.values[at]
