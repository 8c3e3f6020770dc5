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


class Flight(NamedTuple):
    """A product in flight: the threads that started it, the registers that hold its
    result, and the bytes of shared memory that it reads."""

    threads: np.ndarray
    written: set[str]
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
        """Raise TooEarly if an instruction uses a register of a product in flight.

        A mov does not count as a use, because the compiler inserts it freely; its
        target then belongs to the product too. The compiler may also overwrite the
        registers of A, for which ptxas then allocates other registers or waits.
        """
        if instruction.parts[0] == "wgmma":
            return
        names = {name for x in instruction.operands for name in names_of(x)}
        for flight in self.flying:
            wrong = sorted(names & flight.written)
            bad = flight.threads & chosen
            if not wrong or not bad.any():
                continue
            if instruction.parts[0] == "mov" and wrong[0] not in _targets(instruction):
                flight.written.update(_targets(instruction))
            else:
                raise threads.fault(TooEarly, UNWAITED.format(wrong[0]), bad)


UNWAITED = (
    "uses the register {} before waiting for the product that writes it "
    "(wgmma.wait_group)"
)


def _targets(instruction: Instruction) -> list[str]:
    return names_of(instruction.operands[0])


def names_of(operand: Operand) -> list[str]:
    """Return the registers that an operand names."""
    if isinstance(operand, Vector):
        return [name for x in operand.parts for name in names_of(x)]
    if isinstance(operand, Register):
        return operand.name.split("|")
    base = getattr(operand, "base", None)
    return [base] if base else []
