"""What registers hold: bits, and which of the bits are defined.

A bit is undefined if it comes from a register or from memory that was never written.
The compiler packs two 16-bit numbers into a register, and may leave one of them
uninitialised, so each bit is tracked. An instruction that moves bits also moves their
state. The rules of and, or, selp, sums, conversions, and pairs are below. The result of
any other instruction is undefined if an operand has an undefined bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, reduce
from typing import Any, NamedTuple

import numpy as np

from backpass.ptx.arithmetic import compute, is_float
from backpass.ptx.parse import width_of


class Value(NamedTuple):
    """What a register holds: ``bits[threads]``. A bit is defined if it is set in
    ``defined[threads]``."""

    bits: np.ndarray
    defined: np.ndarray

    @property
    def whole(self) -> np.ndarray:
        """Whether all bits of each thread are defined."""
        return self.defined == all_bits(self.defined.dtype)

    def resized(self, kind: type) -> Value:
        """Return the value in a register of another width. New bits are 0."""
        if self.bits.dtype == kind:
            return self
        if kind is bool:
            return Value(self.bits.astype(bool), self.whole)
        defined = self.defined.astype(kind)
        if self.defined.dtype == bool:
            defined = np.where(self.defined, all_bits(kind), 0).astype(kind)
        else:
            defined |= ~np.asarray(all_bits(self.defined.dtype)).astype(kind)
        return Value(self.bits.astype(kind), defined)


@cache
def all_bits(kind: np.dtype | type) -> Any:
    """Return the number, or the truth value, whose bits are all set."""
    return ~np.dtype(kind).type(0)


def known(name: str, values: Sequence[Value]) -> np.ndarray:
    """Return the defined bits ``[threads]`` of a result, or whether all are defined."""
    whole = reduce(np.logical_and, [value.whole for value in values])
    if whole.all():
        return whole
    operation, *modifiers, type = name.split(".")
    first, *others = values
    if operation == "selp":
        second, chosen = others
        found = np.where(chosen.bits, first.defined, second.defined)
        return np.where(chosen.whole, found, 0).astype(found.dtype)
    if operation == "not":
        return first.defined
    if operation in ("and", "or"):
        # A defined 0 determines the result of `and`, a defined 1 that of `or`.
        a, b = (x.bits if operation == "or" else ~x.bits for x in values)
        second = others[0]
        both = first.defined & second.defined
        return both | (first.defined & a) | (second.defined & b)
    if operation == "xor":
        return first.defined & others[0].defined
    if operation in _MOVED:
        n = _MOVED[operation]
        rest = [value.bits for value in values[n:]]
        masks = [value.defined for value in values[:n]]
        full = [np.full_like(mask, all_bits(mask.dtype)) for mask in masks]
        # Bits that come from no operand are defined.
        (moved,), (given,) = (compute(name, [*x, *rest]) for x in (masks, full))
        certain = np.all([value.whole for value in values[n:]], axis=0)
        return np.where(certain, moved | ~given, 0).astype(moved.dtype)
    if operation == "cvt" and "x2" in modifiers[-1]:
        both = _halves_of(first.defined, type) if "x2" in type else None
        lower, upper = both or (others[0].whole, first.whole)
        return _halves(lower, upper, width_of(modifiers[-1]))
    integers = not is_float(modifiers[-1] if modifiers else type) and not is_float(type)
    if operation == "cvt" and integers and "sat" not in modifiers:
        bits, width = extended(first.defined, type), width_of(type)
        new = 0 if type[0] == "s" else all_bits(bits.dtype) ^ (2**width - 1)
        return (bits | bits.dtype.type(new)).astype(f"uint{width_of(modifiers[-1])}")
    if not modifiers and not is_float(type) and "x2" not in type:
        both = first.defined & others[0].defined if others else first.defined
        if operation in ("max", "min"):  # one of the operands: as far as they agree
            agree = both & ~(first.bits ^ others[0].bits)
            return np.where(whole, all_bits(agree.dtype), agree)
        if operation in ("add", "sub"):  # a carry changes higher bits only
            lowest = ~both & (both + both.dtype.type(1))
            return lowest - both.dtype.type(1)
    if operation != "setp" and "x2" in type:
        return _halves(*halves_known(values), 32)
    return whole


def halves_known(values: Sequence[Value]) -> tuple[np.ndarray, np.ndarray]:
    """Return whether the lower halves of all values are defined, and whether the upper
    halves are."""
    masks = [value.defined for value in values]
    lower = np.all([mask << np.uint32(16) >= 0xFFFF0000 for mask in masks], axis=0)
    return lower, np.all([mask >= 0xFFFF0000 for mask in masks], axis=0)


def _halves_of(mask: np.ndarray, type: str) -> tuple[np.ndarray, np.ndarray]:
    """Return whether the lower and the upper half of a pair are defined."""
    half = width_of(type) // 2
    full = mask.dtype.type(2**half - 1)
    return mask & full == full, mask >> mask.dtype.type(half) & full == full


def _halves(lower: np.ndarray, upper: np.ndarray, width: int) -> np.ndarray:
    kind, full = np.dtype(f"uint{width}").type, 2 ** (width // 2) - 1
    return lower * kind(full) | upper * kind(full << width // 2)


def extended(bits: np.ndarray, type: str) -> np.ndarray:
    """Return the bits of numbers of an integer type in 64 bits: with their sign, if the
    type is signed."""
    if type[0] != "s":
        return bits.astype(np.uint64)
    return bits.view(f"int{8 * bits.itemsize}").astype(np.int64).view(np.uint64)


# Instructions that move bits, and how many of their operands are moved.
_MOVED = {"shl": 1, "shr": 1, "bfe": 1, "shf": 2, "prmt": 2}
