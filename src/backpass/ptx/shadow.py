"""Numbers in float64 beside those of an executed kernel.

Each instruction on floating-point numbers is computed a second time in float64, from
operands that were never rounded. Integers, predicates, and addresses are those of the
execution. The first instruction whose result is far from its number in float64 is where
a kernel loses its digits: an overflow, a sum in a short format, or a difference that
cancels. If no instruction departs, rounding is not what makes a result wrong.

A register or a place in memory without a number in float64 has the executed one. That
is also what remains of arithmetic on the bits of a number.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from backpass.ptx import computed, tensor_cores
from backpass.ptx.arithmetic import is_float
from backpass.ptx.beside import (
    CODES,
    FUNCTIONS,
    Departure,
    Slots,
    Space,
    float64_of,
    halves,
)
from backpass.ptx.faults import Unsupported
from backpass.ptx.moves import space_of
from backpass.ptx.parse import (
    Instruction,
    Label,
    Operand,
    Program,
    Register,
    Vector,
    targets_of,
    width_of,
)
from backpass.ptx.rounded import Rounded
from backpass.ptx.tensors import Buffer, Global, address_of

if TYPE_CHECKING:
    from backpass.ptx.threads import Threads


class TooLong(Exception):
    """Raised if an execution with a shadow exceeds its time, or cannot be followed."""


Finish = Callable[[], None]
MAGIC = 2.0**22  # a sum with such a constant rounds a float32 to an integer


def follows(program: Program) -> bool:
    """Return whether a shadow knows all instructions that move numbers in a program:
    not the copies and products of compute capability 9.0."""
    return not any(x.parts[0] in _UNKNOWN for x in program.code)


class Shadow:
    """The numbers in float64 of the registers and the memory of a kernel's blocks.

    ``first`` is the first instruction whose result differs by more than ``limit`` times
    the largest number of the instruction's results, and ``stored`` the largest such
    difference in what a launch leaves in memory. ``spaces`` has what is beside it, by
    address and size. ``rounded`` says which numbers differ by rounding alone. Unless
    ``overflows`` is true, results that are not finite do not count. Raises TooLong
    after so many seconds of CPU time.
    """

    def __init__(
        self, limit: float, overflows: bool, seconds: float = math.inf
    ) -> None:
        self.limit, self.overflows = limit, overflows
        self._until = time.thread_time() + seconds
        self.first: Departure | None = None
        self.stored = 0.0
        self.rounded = Rounded()
        self._registers: dict[str, Slots] = {}
        self._shared = Space(0, 0)
        self.spaces: dict[tuple[int, int], tuple[Space, np.ndarray]] = {}
        self._own: dict[int, Space] = {}  # by the start of each buffer
        self._block = -1
        self._known = False

    def launch(self, memory: Global) -> None:
        """Begin a launch: what an earlier one has stored is known where the bytes are
        the same."""
        self._block, self._own = -1, {}
        self._known = self.first is not None  # from an earlier launch
        for buffer in memory.buffers:
            n = len(buffer.bytes)
            space, before = self.spaces.get(_key(buffer), (None, None))
            if space is None or before is None:
                space = Space(buffer.start, n)
            else:
                space.start = buffer.start
                same = before == buffer.bytes
                space.forget(~np.logical_and(*halves(same)))
            self._own[buffer.start] = space

    def end(self, memory: Global) -> None:
        """End a launch. A departure that changes nothing it stores does not count."""
        stored = 0.0
        for buffer in memory.buffers:
            space = self._own.get(buffer.start)
            if space is None:
                continue
            self.spaces[_key(buffer)] = space, buffer.bytes.copy()
            for got, exact in space.numbers(buffer.bytes):
                share, _ = self._share(got, exact)
                stored = max(stored, share)
        if not (self._known or self.overflows or stored > self.limit):
            self.first = None
        self.stored = max(self.stored, stored)

    def begin(self, threads: Threads) -> None:
        """Begin a block, or begin it again."""
        if time.thread_time() > self._until or not follows(threads.program):
            raise TooLong
        for space in self._own.values():
            space.begin(again=threads.number == self._block)
        self._block = threads.number
        self._registers = {}
        self._shared = Space(0, len(threads.shared.bytes))

    def execute(
        self,
        threads: Threads,
        instruction: Instruction,
        chosen: np.ndarray,
        run: Callable[[Threads, Instruction, np.ndarray], None],
    ) -> None:
        """Execute an instruction, and compute it in float64 beside."""
        own = _HANDLERS.get(instruction.parts[0])
        with np.errstate(all="ignore"):
            finish = own(self, threads, instruction, chosen) if own else None
        run(threads, instruction, chosen)
        if finish is not None:
            with np.errstate(all="ignore"):
                finish()
        elif instruction.operands and instruction.parts[0] not in _WITHOUT_RESULT:
            for register in targets_of(instruction.operands[0]):
                self._write(threads, register, None, chosen)

    # Registers.

    def _slots(self, threads: Threads, operand: Operand, width: int) -> Slots:
        """Return what is beside an operand of so many bits."""
        found = self._registers.get(getattr(operand, "name", ""))
        n = max(1, width // 16)
        if found is None:
            return Slots.empty(len(threads.numbers), n)
        return found.resized(n)

    def _write(
        self, threads: Threads, register: Any, new: Slots | None, chosen: np.ndarray
    ) -> None:
        if not isinstance(register, Register):
            return
        before = self._registers.get(register.name)
        if new is None and before is None:
            return
        width = threads.program.widths.get(register.name, 1)
        n = max(1, width // 16)
        own = Slots.empty(len(chosen), n) if new is None else new.resized(n)
        if before is not None and not chosen.all():
            own = own.where(chosen, before)
        elif not chosen.all():
            own = own.where(chosen, Slots.empty(len(chosen), n))
        self._registers[register.name] = own

    def _number(
        self, threads: Threads, operand: Operand, type: str, half: int = 0
    ) -> np.ndarray:
        """Return an operand of a floating-point type in float64; of a type of pairs,
        that of the ``half``."""
        own = type.removesuffix("x2")
        bits = threads.read(operand, type).bits
        if "x2" in type:
            bits = (bits >> np.uint32(16 * half)).astype(np.uint16)
        executed = float64_of(bits, own)
        slots = self._slots(threads, operand, 8 * bits.itemsize * (1 + ("x2" in type)))
        return slots.numbers(own, half, executed, bits)

    # The results.

    def _share(self, got: np.ndarray, exact: np.ndarray) -> tuple[float, int]:
        """Return the largest difference as a share of the largest number, and where it
        is."""
        known = np.isfinite(exact)
        if not self.overflows:
            known &= np.isfinite(got)
        if not known.any():
            return 0.0, 0
        largest = float(np.abs(exact[known]).max())
        if not largest:
            return 0.0, 0
        with np.errstate(invalid="ignore"):
            error = np.where(known, np.abs(got - exact), 0.0)
        error[known & ~np.isfinite(got)] = np.inf
        worst = int(np.argmax(error))
        return float(error[worst]) / largest, worst

    def _compare(
        self,
        threads: Threads,
        instruction: Instruction,
        register: Any,
        found: list[np.ndarray],
        type: str,
        chosen: np.ndarray,
    ) -> None:
        """Write the results of an instruction, the lower one first, and note whether
        they depart from what was executed."""
        if not isinstance(register, Register):
            return
        self._write(threads, register, Slots.of(found, type), chosen)
        if self.first is not None or self.limit == math.inf:
            return
        wide = len(found) > 1
        for half, exact in enumerate(found):
            bits = threads.read(register, "b32" if wide else f"b{width_of(type)}").bits
            if wide:
                bits = (bits >> np.uint32(16 * half)).astype(np.uint16)
            got = float64_of(bits, type)
            share, at = self._share(got[chosen], exact[chosen])
            if share > self.limit:
                thread = int(threads.numbers[chosen][at])
                self.first = Departure(
                    instruction.place,
                    instruction.name,
                    threads.number,
                    thread,
                    float(got[thread]),
                    float(exact[thread]),
                )
                return

    # Instructions that compute.

    def _arithmetic(
        self, threads: Threads, instruction: Instruction, chosen: np.ndarray
    ) -> Finish | None:
        parts = instruction.parts
        operation, type = parts[0], parts[-1]
        function = FUNCTIONS.get(operation)
        if function is None or not is_float(type) or {"rz", "rm", "rp"} & {*parts}:
            return None
        register, *sources = instruction.operands
        each = range(2 if "x2" in type else 1)
        rows = [[self._number(threads, x, type, i) for x in sources] for i in each]
        if operation in ("add", "sub", "fma") and self._rounds(rows[0], sources):
            return None
        found = [function(*row) for row in rows]
        if "sat" in parts:
            found = [np.clip(x, 0.0, 1.0) for x in found]
        own = type.removesuffix("x2")
        return lambda: self._compare(threads, instruction, register, found, own, chosen)

    def _rounds(self, numbers: list[np.ndarray], sources: list[Operand]) -> bool:
        """Whether a constant is so large that the sum rounds to an integer."""
        return any(
            not isinstance(x, Register) and np.abs(row).min() >= MAGIC
            for x, row in zip(sources, numbers, strict=True)
        )

    def _converted(
        self, threads: Threads, instruction: Instruction, chosen: np.ndarray
    ) -> Finish | None:
        *modifiers, to, of = instruction.parts[1:]
        register, *sources = instruction.operands
        if not is_float(to) or not is_float(of):
            if is_float(to) or is_float(of):
                return None
            slots = self._slots(threads, sources[0], 16)
            return lambda: self._write(threads, register, slots, chosen)
        whole = {"rni", "rzi", "rmi", "rpi"} & {*modifiers}
        if whole or "x2" in of or to.removesuffix("x2") not in (*CODES, "tf32"):
            return None
        found = [self._number(threads, x, of) for x in sources[::-1]]
        if "sat" in modifiers:
            found = [np.clip(x, 0.0, 1.0) for x in found]
        own = "f32" if to == "tf32" else to.removesuffix("x2")
        return lambda: self._compare(threads, instruction, register, found, own, chosen)

    def _multiplied(
        self, threads: Threads, instruction: Instruction, chosen: np.ndarray
    ) -> Finish | None:
        try:
            where, types = tensor_cores.known(instruction.name)
        except Unsupported:
            return None
        if not is_float(types[0]) or types[1] not in (*CODES, "tf32"):
            return None
        target, *operands = instruction.operands
        left, right, added = (
            tensor_cores.matrices(self._tile(threads, x, type), place)
            for x, type, place in zip(operands, types[1:], where, strict=True)
        )
        sums = tensor_cores.elements(left @ right + added, where[2])

        def finish() -> None:
            of_each = 2 if types[0] == "f16" else 1
            for i, register in enumerate(targets_of(target)):
                own = [sums[:, :, of_each * i + j].reshape(-1) for j in range(of_each)]
                self._compare(threads, instruction, register, own, types[0], chosen)

        return finish

    def _tile(self, threads: Threads, operand: Operand, type: str) -> np.ndarray:
        """Return the numbers ``[warps, 32, n]`` of the registers of an operand."""
        if type in ("f16", "bf16"):
            pairs = [
                self._number(threads, x, f"{type}x2", half)
                for x in targets_of(operand)
                for half in (0, 1)
            ]
        else:
            own = "f32" if type == "tf32" else type
            pairs = [self._number(threads, x, own) for x in targets_of(operand)]
        return np.stack(pairs, axis=-1).reshape(-1, 32, len(pairs))

    # Instructions that move.

    def _moved(
        self, threads: Threads, instruction: Instruction, chosen: np.ndarray
    ) -> Finish | None:
        target, source = instruction.operands
        width = width_of(instruction.parts[-1])
        if isinstance(source, Vector):
            own = [
                self._slots(threads, x, width // len(source.parts))
                for x in source.parts
            ]
            slots = Slots.joined(own)
        elif isinstance(source, Label):
            return None
        else:
            slots = self._slots(threads, source, width)
        if not isinstance(target, Vector):
            return lambda: self._write(threads, target, slots, chosen)
        n = max(1, width // 16 // len(target.parts))

        def finish() -> None:
            for i, register in enumerate(target.parts):
                part = (
                    slots.part(i * n, n) if width // len(target.parts) >= 16 else None
                )
                self._write(threads, register, part, chosen)

        return finish

    def _selected(
        self, threads: Threads, instruction: Instruction, chosen: np.ndarray
    ) -> Finish | None:
        target, first, second, condition = instruction.operands
        width = width_of(instruction.parts[-1])
        yes = threads.read(condition, "pred").bits
        own = [self._slots(threads, x, width) for x in (first, second)]
        slots = own[0].where(yes, own[1])
        return lambda: self._write(threads, target, slots, chosen)

    def _shuffled(
        self, threads: Threads, instruction: Instruction, chosen: np.ndarray
    ) -> Finish | None:
        target, source, *rest = instruction.operands
        bits = [threads.read(x, "b32").bits for x in (source, *rest[:2])]
        of, _ = computed.lanes(instruction, bits)
        slots = self._slots(threads, source, 32).rows(of)
        register = targets_of(target)[0]
        return lambda: self._write(threads, register, slots, chosen)

    def _bitwise(
        self, threads: Threads, instruction: Instruction, chosen: np.ndarray
    ) -> Finish | None:
        """Follow those operations on bits that move a half, or change the sign."""
        target, source, *rest = instruction.operands
        width = width_of(instruction.parts[-1])
        if not rest or isinstance(rest[-1], Register) or width > 32:
            return None
        by = int(threads.read(rest[-1], "b32").bits[0])
        slots = self._slots(threads, source, width)
        operation = instruction.parts[0]
        found = None
        if operation == "prmt":
            both = Slots.joined([slots, self._slots(threads, rest[0], 32)])
            found = both.permuted(by)
        elif (operation, by) in (("shl", 16), ("and", 0xFFFF0000)) and width == 32:
            found = slots.as_float32(0 if operation == "shl" else 1)
        elif (operation, by) == ("shr", 16) and width == 32:
            found = slots.part(1, 1).resized(2)
        elif operation == "and" and by in (0x7FFFFFFF, 0x7FFF, 0x7FFF7FFF):
            found = slots.with_sign(None)
        elif operation == "xor" and by in (0x80000000, 0x8000, 0x80008000):
            found = slots.with_sign(-1.0)
        if found is None:
            return None
        return lambda: self._write(threads, target, found, chosen)

    # Instructions that access memory.

    def _addresses(
        self, threads: Threads, operand: Operand, chosen: np.ndarray, space: str
    ) -> np.ndarray:
        """Return the address of each chosen thread, in the memory of all blocks."""
        found = threads.addresses(operand, chosen)
        return found + threads.shared_from[chosen] if space == "shared" else found

    def _load(
        self, threads: Threads, instruction: Instruction, chosen: np.ndarray
    ) -> Finish | None:
        space = space_of(instruction)
        each = width_of(instruction.parts[-1]) // 8
        if space not in ("shared", "global") or each < 2:
            return None
        target, source = instruction.operands[:2]
        addresses = self._addresses(threads, source, chosen, space)

        def finish() -> None:
            targets = targets_of(target)
            found = self._at(space, addresses, each // 2 * len(targets))
            for i, register in enumerate(targets):
                own = found.part(i * each // 2, each // 2).spread(chosen)
                self._write(threads, register, own, chosen)

        return finish

    def _at(self, space: str, addresses: np.ndarray, n: int) -> Slots:
        if space == "shared":
            return self._shared.load(addresses, n)
        found = Slots.empty(len(addresses), n)
        for own in self._own.values():
            rows = own.contains(addresses)
            if rows.any():
                found = found.replaced(rows, own.load(addresses[rows], n))
        return found

    def _put(self, space: str, addresses: np.ndarray, slots: Slots) -> None:
        if space == "shared":
            self._shared.store(addresses, slots)
            return
        for own in self._own.values():
            rows = own.contains(addresses)
            if rows.any():
                own.store(addresses[rows], slots.rows(rows))

    def _store(
        self, threads: Threads, instruction: Instruction, chosen: np.ndarray
    ) -> Finish | None:
        space = space_of(instruction)
        if space not in ("shared", "global"):
            return None
        target, source = instruction.operands
        width = width_of(instruction.parts[-1])
        own = [self._slots(threads, x, width) for x in targets_of(source)]
        slots = Slots.joined(own).rows(chosen)
        if width < 16:
            slots = Slots.empty(int(chosen.sum()), 1)
        addresses = self._addresses(threads, target, chosen, space)
        if width == 32 and len(np.unique(addresses)) < len(addresses):
            registers = []
            for i, register in enumerate(targets_of(source)):
                bits, part = threads.read(register, "f32").bits, slots.part(2 * i, 2)
                got = bits[chosen], float64_of(bits[chosen], "f32")
                registers.append((got[0], part.numbers("f32", 0, *got[::-1])))
            blocks = threads.blocks[chosen]
            self.rounded.note(instruction.place, blocks, addresses, registers)
        return lambda: self._put(space, addresses, slots)

    def _copied(
        self, threads: Threads, instruction: Instruction, chosen: np.ndarray
    ) -> Finish | None:
        if "bulk" in instruction.parts or instruction.parts[2] not in ("ca", "cg"):
            return _nothing
        to, of, size, *rest = instruction.operands
        n = int(size.text, 0) // 2  # type: ignore[union-attr]
        whole = np.ones(int(chosen.sum()), bool)
        if rest:
            whole = threads.read(rest[0], "b32").bits[chosen] == 2 * n
        into = self._addresses(threads, to, chosen, "shared")
        source = threads.addresses(of, chosen)

        def finish() -> None:
            found = Slots.empty(len(into), n)
            found = found.replaced(whole, self._at("global", source[whole], n))
            self._put("shared", into, found)

        return finish

    def _matrices(
        self, threads: Threads, instruction: Instruction, chosen: np.ndarray
    ) -> Finish | None:
        first, second = instruction.operands
        loads = instruction.parts[0] == "ldmatrix"
        registers = targets_of(first if loads else second)
        n, transposed = len(registers), "trans" in instruction.parts
        giving = chosen & (threads.numbers % 32 < 8 * n)
        row = second if loads else first
        addresses = self._addresses(threads, row, giving, "shared")
        if loads:

            def finish() -> None:
                found = self._shared.load(addresses, 8)
                for i, own in enumerate(found.of_lanes(n, transposed)):
                    self._write(threads, registers[i], own.spread(chosen), chosen)

            return finish
        own = [self._slots(threads, x, 32).rows(chosen) for x in registers]
        rows = Slots.of_rows(own, transposed)
        return lambda: self._shared.store(addresses, rows)

    def _updated(
        self, threads: Threads, instruction: Instruction, chosen: np.ndarray
    ) -> Finish | None:
        """Follow a sum of atomic instructions; what others leave is the executed
        number."""
        parts, operands = instruction.parts, [*instruction.operands]
        result = operands.pop(0) if parts[0] == "atom" else None
        space = "shared" if "shared" in parts else "global"
        addresses = threads.addresses(operands[0], chosen)
        type = parts[-1]
        added = None
        if "add" in parts and type in ("f32", "f64"):
            added = self._number(threads, operands[1], type)[chosen]
            before = self._before(threads, space, addresses, type)

        def finish() -> None:
            slots = Slots.empty(len(addresses), max(1, width_of(type) // 16))
            if added is not None:
                places, of = np.unique(addresses, return_inverse=True)
                first = np.zeros(len(places))
                first[of] = before
                np.add.at(first, of, added)
                slots = Slots.of([first[of]], type)
            self._put(space, addresses, slots)
            if isinstance(result, Register):
                self._write(threads, result, None, chosen)

        return finish

    def _before(
        self, threads: Threads, space: str, addresses: np.ndarray, type: str
    ) -> np.ndarray:
        """Return the numbers at addresses in float64."""
        n = width_of(type) // 8
        bits = np.zeros(len(addresses), f"uint{8 * n}")
        memory: list[Any] = [threads.shared]
        if space == "global":
            memory = [*threads.memory.buffers]
        for own in memory:
            at = addresses - own.start
            rows = (at >= 0) & (at + n <= len(own.bytes))
            if rows.any():
                found = own.bytes[at[rows][:, None] + np.arange(n)]
                bits[rows] = np.ascontiguousarray(found).view(bits.dtype)[:, 0]
        slots = self._at(space, addresses, n // 2)
        return slots.numbers(type, 0, float64_of(bits, type), bits)


def _nothing() -> None:
    """Finish an instruction that moves nothing."""


def _key(buffer: Buffer) -> tuple[int, int]:
    return address_of(buffer.bytes), len(buffer.bytes)


_UNKNOWN = ("wgmma", "mbarrier", "tensormap")
_WITHOUT_RESULT = ("bar", "barrier", "st", "red", "call", "fence", "membar", "cp")
_Handler = Callable[[Shadow, Any, Instruction, np.ndarray], Finish | None]
_HANDLERS: dict[str, _Handler] = {
    **dict.fromkeys(FUNCTIONS, Shadow._arithmetic),
    **dict.fromkeys(("and", "xor", "shl", "shr", "prmt"), Shadow._bitwise),
    **dict.fromkeys(("ldmatrix", "stmatrix"), Shadow._matrices),
    **dict.fromkeys(("atom", "red"), Shadow._updated),
    "cvt": Shadow._converted,
    "mma": Shadow._multiplied,
    "mov": Shadow._moved,
    "selp": Shadow._selected,
    "shfl": Shadow._shuffled,
    "ld": Shadow._load,
    "st": Shadow._store,
    "cp": Shadow._copied,
}
