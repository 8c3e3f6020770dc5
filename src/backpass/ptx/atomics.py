"""Atomic instructions: what they compute, how they order other accesses, and when a
sum depends on the order of its terms.

PTX ISA 8.7, chapter 9.7.13: atom and red; chapter 8: the memory consistency model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from backpass.ptx.arithmetic import compute, is_float
from backpass.ptx.arrays import zeros
from backpass.ptx.faults import Unsupported
from backpass.ptx.formats import UNSIGNED, values_of
from backpass.ptx.parse import width_of

# Without rounding, the result of these operations does not depend on the order in
# which threads apply them.
_COMPUTED = ("add", "min", "max", "and", "or", "xor")
_SCOPES = {"gpu", "cta", "sys"}
# The significant bits of each format, and the least power of 2 that is too large.
_FORMATS = {"f16": (11, 16), "bf16": (8, 128), "f32": (24, 128), "f64": (53, 1024)}
ORDERS = {"relaxed", "acquire", "release", "acq_rel"}
NO_TERM = 1 << 14  # above the exponent of every term


class Atomic(NamedTuple):
    """An atomic instruction."""

    operation: str
    type: str
    shared: bool
    order: str
    within_block: bool = False  # not atomic for threads of other blocks

    @property
    def acquires(self) -> bool:
        """Whether the block's later accesses see what was released at the address."""
        return self.order in ("acquire", "acq_rel")

    @property
    def releases(self) -> bool:
        """Whether threads that acquire at the address see earlier writes."""
        return self.order in ("release", "acq_rel")

    def compute(self, old: np.ndarray, operands: list[np.ndarray]) -> np.ndarray:
        """Return the new bits ``[n]`` at the addresses, given the old bits and the
        instruction's operands."""
        if self.operation == "exch":
            return operands[0]
        if self.operation == "cas":
            return np.where(old == operands[0], operands[1], old)
        flush = ".ftz" if self._flushes else ""
        return compute(f"{self.operation}{flush}.{self.type}", [old, operands[0]])[0]

    @property
    def _flushes(self) -> bool:
        """In global memory, sums of float32 flush subnormal numbers to 0."""
        return self.type == "f32" and not self.shared

    def writes(self, old: np.ndarray, operands: list[np.ndarray]) -> np.ndarray:
        """Return whether each thread writes: a compare-and-swap that finds a different
        value does not, and so releases nothing."""
        if self.operation == "cas":
            return old == operands[0]
        return np.ones(len(old), bool)

    @property
    def sums(self) -> bool:
        """Whether the instruction adds floating-point numbers, which may round."""
        return self.operation == "add" and is_float(self._each)

    @property
    def _each(self) -> str:
        return self.type.removesuffix("x2")

    def terms(self, bits: np.ndarray) -> np.ndarray:
        """Return the absolute values ``[n, 1 or 2]`` of the numbers in the bits."""
        parts = np.ascontiguousarray(bits)[:, None].view(UNSIGNED[width_of(self._each)])
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            values = np.abs(values_of(parts, self._each).astype(np.float64))
        flushed = self._flushes & (values < 2.0**-126)
        return np.where(flushed, 0.0, values)

    def exact(self, size: np.ndarray, lowest: np.ndarray) -> np.ndarray:
        """Return whether the format has all multiples of 2 ** ``lowest`` up to
        ``size``."""
        digits, largest = _FORMATS[self._each]
        with np.errstate(over="ignore"):  # 2¹⁰²⁴ is infinite, and larger than any size
            small = size < np.ldexp(1.0, np.minimum(digits + lowest, largest))
        return small & (~np.bool_(self._flushes) | (lowest >= -126))


def atomic(name: str) -> Atomic:
    """Return the instruction with a name such as "atom.global.gpu.acq_rel.add.f32".

    Raises Unsupported for an instruction that this package does not execute.
    """
    *parts, type = name.split(".")[1:]
    spaces, orders = {"global", "shared", "cta"} & {*parts}, ORDERS & {*parts}
    rest = [part for part in parts if part not in {*spaces, *orders, *_SCOPES, "noftz"}]
    known = (*_COMPUTED, "exch", "cas")
    if not spaces & {"global", "shared"}:
        raise Unsupported(f"ptx: {name} at a generic address is not supported")
    if len(rest) != 1 or rest[0] not in known or width_of(type) > 64:
        raise Unsupported(f"ptx: the instruction {name} is not supported")
    order = orders.pop() if orders else "relaxed"
    shared = "shared" in parts
    within_block = "cta" in parts and not shared
    if within_block:
        order = "relaxed"  # for all other blocks
    return Atomic(rest[0], type, shared, order, within_block)


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


def _lowest_bit(x: np.ndarray) -> np.ndarray:
    """Return the exponent of the last bit that is set in each number."""
    fraction, exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))
    digits = np.ldexp(fraction, 53).astype(np.int64)
    place = np.frexp((digits & -digits).astype(np.float64))[1] - 1
    return np.where(digits == 0, NO_TERM, exponent - 53 + place)
