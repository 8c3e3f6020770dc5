"""Atomic instructions: what they compute, and in which order they make other accesses
happen.

PTX ISA 8.7, chapter 9.7.13: atom and red; chapter 8: the memory consistency model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from backpass.ptx.arithmetic import compute, is_float
from backpass.ptx.faults import Unsupported
from backpass.ptx.formats import values_of
from backpass.ptx.parse import width_of

# Operations whose result does not depend on the order in which threads apply them.
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
        """Whether later accesses see what was released there."""
        return self.order in ("acquire", "acq_rel")

    @property
    def releases(self) -> bool:
        """Whether what was written before is seen by those who acquire it."""
        return self.order in ("release", "acq_rel")

    def compute(self, old: np.ndarray, operands: list[np.ndarray]) -> np.ndarray:
        """Return the new bits at the address ``[n]``, from the old ones and the
        instruction's operands."""
        if self.operation == "exch":
            return operands[0]
        if self.operation == "cas":
            return np.where(old == operands[0], operands[1], old)
        # On global memory, sums of float32 lose subnormal numbers.
        flush = ".ftz" if self.type == "f32" and not self.shared else ""
        return compute(f"{self.operation}{flush}.{self.type}", [old, operands[0]])[0]

    def inexact(self, old: np.ndarray, added: np.ndarray, new: np.ndarray):
        """Whether a sum was rounded, so that it depends on the order of its terms."""
        if self.operation != "add" or not is_float(self.type):
            return np.zeros(len(old), bool)
        a, b, c = (
            values_of(x, self.type).astype(np.longdouble) for x in (old, added, new)
        )
        return (a + b != c) & ~np.isnan(c)


def atomic(name: str) -> Atomic:
    """Return the instruction of a name such as "atom.global.gpu.acq_rel.add.f32".
    Raises Unsupported for one that is not executed here."""
    *parts, type = name.split(".")[1:]
    spaces, orders = {"global", "shared", "cta"} & {*parts}, ORDERS & {*parts}
    rest = [part for part in parts if part not in {*spaces, *orders, *_SCOPES, "noftz"}]
    known = (*_COMPUTED, "exch", "cas")
    if len(rest) != 1 or rest[0] not in known or width_of(type) > 64:
        raise Unsupported(f"ptx: the instruction {name} is not executed here")
    order = orders.pop() if orders else "relaxed"
    return Atomic(rest[0], type, "shared" in parts, order)
