"""The products of warpgroups that are in flight: see ``warpgroups``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from backpass.ptx.faults import TooEarly
from backpass.ptx.parse import Instruction, Operand, Register, Vector
from backpass.ptx.values import Value

if TYPE_CHECKING:
    from backpass.ptx.threads import Threads

SIZE = 128  # threads of a warpgroup
_WRITE_NOTHING = ("st", "red", "bar", "barrier", "bra", "cp", "fence", "mbarrier")


class Flight(NamedTuple):
    """A product in flight: the threads that started it, the registers that it writes
    and reads, and the bytes of shared memory that it reads."""

    threads: np.ndarray
    written: frozenset[str]
    read: frozenset[str]
    bytes: list[np.ndarray]


class Products:
    """The products of a block that are in flight, by warpgroup and by group. The last
    group is uncommitted. ``fenced`` holds the registers as they were at the last
    wgmma.fence of a warpgroup: their values, and the shape of the last product that
    wrote them. ``open`` says whether it has not waited since."""

    def __init__(self, n: int) -> None:
        count = -(-n // SIZE)
        self.groups: list[list[list[Flight]]] = [[[]] for _ in range(count)]
        self.fenced: list[dict[str, tuple[Value, str]] | None] = [None] * count
        self.open = [False] * count
        self.flying: list[Flight] = []

    def check(
        self, threads: Threads, instruction: Instruction, chosen: np.ndarray
    ) -> None:
        """Raise TooEarly if an instruction uses a register of a product in flight."""
        if instruction.parts[0] == "wgmma":
            return
        names = [[*names_of(x)] for x in instruction.operands]
        targets = set()
        if names and instruction.parts[0] not in _WRITE_NOTHING:
            targets = {*names[0]}
        used = {name for own in names for name in own}
        for flight in self.flying:
            wrong = sorted(used & flight.written | targets & flight.read)
            bad = flight.threads & chosen
            if wrong and bad.any():
                what = f"uses the register {wrong[0]} before waiting for the product that {'writes' if wrong[0] in flight.written else 'reads'} it (wgmma.wait_group)"
                raise threads.fault(TooEarly, what, bad)


def names_of(operand: Operand) -> list[str]:
    """Return the registers that an operand names."""
    if isinstance(operand, Vector):
        return [name for x in operand.parts for name in names_of(x)]
    if isinstance(operand, Register):
        return operand.name.split("|")
    base = getattr(operand, "base", None)
    return [base] if base else []
