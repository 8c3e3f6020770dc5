"""Atomic instructions: what they compute, and how they order other accesses.

PTX ISA 8.7, chapter 9.7.13: atom and red; chapter 8: the memory consistency model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from backpass.ptx.arithmetic import compute, is_float
from backpass.ptx.faults import Unsupported
from backpass.ptx.formats import values_of
from backpass.ptx.parse import width_of

# Without rounding, the result of these operations does not depend on the order in
# which threads apply them.
_COMPUTED = ("add", "min", "max", "and", "or", "xor")
_SCOPES = {"gpu", "cta", "sys"}
ORDERS = {"relaxed", "acquire", "release", "acq_rel"}


class Atomic(NamedTuple):
    """An atomic instruction."""

    operation: str
    type: str
    shared: bool
    order: str

    @property
    def acquires(self) -> bool:
        """Whether later accesses see what was released at the address."""
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
        # In global memory, sums of float32 flush subnormal numbers to 0.
        flush = ".ftz" if self.type == "f32" and not self.shared else ""
        return compute(f"{self.operation}{flush}.{self.type}", [old, operands[0]])[0]

    def inexact(self, old: np.ndarray, added: np.ndarray, new: np.ndarray):
        """Return whether the addition was rounded, so that the sum depends on the order
        of its terms."""
        if self.operation != "add" or not is_float(self.type):
            return np.zeros(len(old), bool)
        a, b, c = (
            values_of(x, self.type).astype(np.longdouble) for x in (old, added, new)
        )
        return (a + b != c) & ~np.isnan(c)


def atomic(name: str) -> Atomic:
    """Return the instruction with a name such as "atom.global.gpu.acq_rel.add.f32".

    Raises Unsupported for an instruction that this package does not execute.
    """
    *parts, type = name.split(".")[1:]
    spaces, orders = {"global", "shared", "cta"} & {*parts}, ORDERS & {*parts}
    rest = [part for part in parts if part not in {*spaces, *orders, *_SCOPES, "noftz"}]
    known = (*_COMPUTED, "exch", "cas")
    if len(rest) != 1 or rest[0] not in known or width_of(type) > 64:
        raise Unsupported(f"ptx: the instruction {name} is not supported")
    order = orders.pop() if orders else "relaxed"
    return Atomic(rest[0], type, "shared" in parts, order)
