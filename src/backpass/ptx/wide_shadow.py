"""A wave that executes beside float64, to judge its conflicts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from backpass.ptx.bundles import Bundle, Plan
from backpass.ptx.faults import Fault
from backpass.ptx.parse import Operand, Register
from backpass.ptx.registers import Registers, kind_of
from backpass.ptx.rows import Chosen
from backpass.ptx.shadow import Shadow
from backpass.ptx.tensors import Global
from backpass.ptx.threads import Threads
from backpass.ptx.tracked import GlobalOfBlocks
from backpass.ptx.updates import Updates
from backpass.ptx.values import Value, all_bits
from backpass.ptx.wave import Wave


def judged(
    faults: Sequence[Fault],
    wave: Wave,
    plan: Plan,
    memory: Global,
    tracked: GlobalOfBlocks,
) -> list[Fault]:
    """Return the conflicts of a wave: LastBits in place of those of numbers that differ
    by rounding alone. The blocks of the others execute again, beside float64.

    The memory is as it was before the wave, and remains so. ``plan`` is ordered.
    """
    apart = {fault.block for fault in faults if fault.apart}
    own = np.array([number for number in wave.numbers.tolist() if number in apart])
    shadow = Shadow(math.inf, overflows=False)
    again = _Beside(wave, plan, own, memory, tracked, shadow)
    try:
        again.run(lambda _: None)
    finally:
        tracked.undo()
    return [shadow.rounded.judged(fault) for fault in faults]


class _Beside(Wave):
    """Some blocks of a wave again, with a shadow."""

    def __init__(
        self,
        wave: Wave,
        plan: Plan,
        numbers: np.ndarray,
        memory: Global,
        tracked: GlobalOfBlocks,
        shadow: Shadow,
    ) -> None:
        of = wave.program, plan, wave.parameters, tracked, numbers
        super().__init__(*of, wave.grid, wave.added)
        self.approximate, self.updates = wave.approximate, Updates(wave.program)
        self._shadow, self._threads = shadow, _Lanes(self, memory)
        shadow.launch(memory)
        shadow.begin(self._threads)

    def execute(self, bundle: Bundle, chosen: Chosen) -> None:
        lanes = np.zeros(len(self.lanes), bool)
        lanes[slice(None) if chosen.lanes is None else chosen.lanes] = True
        own = super().execute
        self._shadow.execute(
            self._threads, bundle.instruction, lanes, lambda *_: own(bundle, chosen)
        )


class _Lanes(Threads):
    """All threads of a wave as a shadow sees them: those of one block, whose shared
    memory is that of the blocks, one after another."""

    def __init__(self, wave: Wave, memory: Global) -> None:
        size = wave.count * wave.shared.each - wave.program.shared
        program = wave.program._replace(threads=len(wave.lanes), local=0)
        super().__init__(program, {**wave.parameters}, memory, shared=size)
        self.blocks, self.shared_from = wave.block, wave.own * wave.shared.each
        self.registers = _Registers(wave, self.registers)
        self.read = self.registers.read


class _Registers(Registers):
    """The registers of a wave. All bits count as defined."""

    def __init__(self, wave: Wave, of: Registers) -> None:
        super().__init__(of.n, of.widths, wave.special, of.variables)
        self._bits, self._rows = wave.registers.bits, wave.plan.registers

    def read(self, operand: Operand, type: str) -> Value:
        """Return the bits of an operand, as a type, for all threads."""
        name = getattr(operand, "name", "")
        if not isinstance(operand, Register) or name in self.special:
            return super().read(operand, type)
        kind, at = self._rows[name]
        bits = self._bits[kind][at]
        whole = np.broadcast_to(all_bits(kind), bits.shape)
        return Value(bits, whole).resized(kind_of(type))
