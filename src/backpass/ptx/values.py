"""What registers hold: bits, and which of the bits are defined.

A bit is undefined if it comes from a register or from memory that was never written.
The compiler packs two 16-bit numbers into a register, and may leave one of them
uninitialised, so single bits are tracked. An instruction that moves bits moves their
state too. The result of any other instruction is undefined if an operand has an
undefined bit.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def all_bits(kind: np.dtype | type) -> Any:
    """Return the number, or the truth value, whose bits are all set."""
    return ~np.dtype(kind).type(0)


def known(name: str, values: Sequence[Value]) -> np.ndarray:
    """Return the defined bits ``[threads]`` of a result, or whether all are defined."""
    whole = np.all([value.whole for value in values], axis=0)
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
    if operation == "cvt" and len(modifiers) == 1:
        (to,), of = modifiers, type
        if not is_float(to) and not is_float(of) and width_of(to) <= width_of(of):
            return first.defined.astype(f"uint{width_of(to)}")
    if operation != "cvt" and operation != "setp" and "x2" in type:
        lower = np.all(
            [x.defined << np.uint32(16) >= 0xFFFF0000 for x in values], axis=0
        )
        upper = np.all([x.defined >= 0xFFFF0000 for x in values], axis=0)
        return lower * np.uint32(0xFFFF) | upper * np.uint32(0xFFFF0000)
    return whole


# Instructions that move bits, and how many operands they move.
_MOVED = {"shl": 1, "shr": 1, "bfe": 1, "shf": 2, "prmt": 2}
