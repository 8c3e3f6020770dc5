"""The threads of a block, and what they share: memory, time, and copies in flight."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from backpass.ptx.accesses import BLOCK, RUN
from backpass.ptx.faults import Fault, Place, Undefined, Unsupported
from backpass.ptx.memory import Shared
from backpass.ptx.parse import Address, Operand, Program, Register
from backpass.ptx.products import Products
from backpass.ptx.proxy import Proxy
from backpass.ptx.races import Races, Who
from backpass.ptx.registers import Registers, special_registers
from backpass.ptx.released import Acquired, Seen, with_later
from backpass.ptx.tensors import Global
from backpass.ptx.values import Value

if TYPE_CHECKING:
    from backpass.ptx.shadow import Shadow


class Copy(NamedTuple):
    """An asynchronous copy in flight: its destinations ``[n, k]``, its bytes, and their
    sources."""

    at: np.ndarray
    data: np.ndarray
    defined: np.ndarray
    threads: np.ndarray
    sources: list[tuple[np.ndarray, int]]  # addresses, and the bytes from each on


class Threads:
    """The threads of the block with the given ``number``. They have ``shared`` bytes of
    shared memory in addition to the variables that the kernel declares there.

    ``blocks`` is the number of blocks along each of three axes; numbers count along the
    first axis first. ``parameters`` holds the bits of the kernel's parameters and the
    addresses of its tables in global memory, by name. ``before`` are the races of a run
    of the block before this one, of which only those of the lines ``only`` count, and
    ``watched`` is a byte whose accesses are noted. ``seed`` is that of what undefined
    bits are; then ``doubtful`` collects the values that are stored although they may be
    undefined. ``guards`` is what undefined guards are, unless they may repeat a loop;
    it is None where they are a fault. Then ``lost`` are the threads with such a guard.
    ``shadow`` computes in float64 beside.
    """

    def __init__(
        self,
        program: Program,
        parameters: dict[str, int],
        memory: Global,
        *,
        number: int = 0,
        blocks: tuple[int, int, int] = (1, 1, 1),
        shared: int = 0,
        approximate: int | None = None,
        before: Races | None = None,
        only: Collection[Place | None] | None = None,
        watched: tuple[str, int] | None = None,
        seed: int = 0,
        guards: bool | None = None,
        shadow: Shadow | None = None,
    ) -> None:
        self.program, self.parameters, self.shadow = program, parameters, shadow
        self.memory, self.shared = memory, Shared(program.shared + shared)
        self.number, n = number, program.threads
        # Each thread's local memory: the bytes, and whether each is defined.
        self.local = (
            np.zeros((n, program.local), np.uint8),
            np.zeros((n, program.local), bool),
        )
        self.passed: dict[str, Value] = {}  # arguments of the next call
        self.printed: list[str] = []  # shown at the block's end: it may run again
        self.approximate = approximate
        self.numbers, self.blocks = np.arange(n), np.full(n, number)
        self.shared_from = np.zeros(n, np.int64)  # where its shared memory begins
        self.registers = Registers(
            n,
            program.widths,
            special_registers(n, number, blocks),
            {name: parameters[name] for name in program.addressed} | program.variables,
        )
        self.registers.seed = seed
        self.doubtful: list[bytes] = []
        self.read, self.write = self.registers.read, self.registers.write
        self.guards, self.lost = guards, np.zeros(n, bool)
        self.left = np.ones(n, bool)  # the threads that have not returned
        # No two blocks share a time, nor do two runs of a block. ``since`` is the time
        # of the last barrier.
        self.time = self.since = before.start + RUN if before else number * BLOCK + 1
        self.races = Races(self.time, before, only, watched)
        self.warp_times = np.zeros(n // 32 + 1, np.int64)  # in its barriers
        self.exchanges = np.zeros(n // 32 + 1, np.int64)  # in barriers and exchanges
        self.copies: list[list[Copy]] = [[]]  # by group; the last is uncommitted
        self.proxy, self.products = Proxy(self.shared, n), Products(n)
        if program.asynchronous:
            self.shared.proxy = self.proxy
        self.sees: Seen = {}  # what this block has acquired
        self.acquired = Acquired(n)
        # For fence.acq_rel: who has executed one, and what the next one acquires.
        self.fenced, self.awaiting = np.zeros(n, bool), Seen()
        self.place: Place | None = None

    def who(self, chosen: np.ndarray) -> Who:
        """Return the threads that make an access, given a mask or their numbers."""
        threads = self.numbers[chosen]
        return Who(
            threads,
            self.warp_times[threads // 32],
            self.exchanges[threads // 32],
            self.since,
            self.time,
            self.number,
            self.place,
            self.sees,
            self.acquired,
            self.races,
        )

    def notice_released(self, addresses: np.ndarray) -> None:
        """Note what is released at addresses of atomic instructions: a fence after them
        acquires it."""
        for address in np.unique(addresses):
            released = self.memory.released.get(int(address), {})
            self.awaiting = with_later(self.awaiting, released)

    def write_chosen(
        self,
        register: Operand,
        bits: np.ndarray,
        defined: np.ndarray,
        chosen: np.ndarray,
    ) -> None:
        """Write what the chosen threads get, ``bits[n]`` and ``defined[n]``."""
        of_all = [np.zeros(len(chosen), x.dtype) for x in (bits, defined)]
        of_all[0][chosen], of_all[1][chosen] = bits, defined
        self.write(register, of_all[0], of_all[1], chosen)

    def addresses(self, operand: Operand, chosen: np.ndarray) -> np.ndarray:
        """Return the address of each chosen thread. Raises Undefined."""
        if not isinstance(operand, Address):
            raise Unsupported(f"ptx: expected an address; got {operand}")
        if operand.base not in self.program.widths:
            start = self.registers.address_of(operand.base)
            return np.full(int(chosen.sum()), start + operand.offset)
        value = self.registers.read(Register(operand.base), "b64")
        self.check(value, chosen, f"uses an uninitialised address ({operand.base})")
        return value.bits[chosen].astype(np.int64) + operand.offset

    def check(self, value: Value, active: np.ndarray, what: str) -> None:
        """Raise Undefined unless the value of each active thread is defined."""
        bad = active & ~value.whole
        if bad.any():
            raise self.fault(Undefined, what, bad)

    def fault(self, kind: type[Fault], what: str, bad: np.ndarray) -> Fault:
        """Return a fault by the first thread for which ``bad`` is true."""
        return kind(what, self.place, self.number, int(np.argmax(bad)))
