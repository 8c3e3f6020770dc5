"""A block of threads that executes a kernel. All threads are one vector.

Each thread has its own program counter. The block next executes the instruction with
the smallest counter, for the threads that are at this instruction. Threads further
ahead wait, so the threads meet again after a branch or a loop. At a barrier, threads
wait for all threads of the block that have not returned. At an instruction that a warp
executes together, they wait for the rest of the warp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from backpass.ptx import arithmetic, atomics, tensor_cores
from backpass.ptx.faults import (
    Barrier,
    Fault,
    OutOfBounds,
    Place,
    Undefined,
    Unsupported,
)
from backpass.ptx.formats import UNSIGNED, bits_of
from backpass.ptx.memory import (
    BLOCK,
    RUN,
    Acquired,
    Global,
    Seen,
    Shared,
    Who,
    check_aligned,
    check_defined,
    with_later,
)
from backpass.ptx.parse import (
    Address,
    Instruction,
    Label,
    Number,
    Operand,
    Program,
    Register,
    Vector,
    width_of,
)
from backpass.ptx.races import Races
from backpass.ptx.values import Value, all_bits, extended, halves_known, known

CARRY = Register("CC.CF")
LIMIT = 5_000_000  # instructions; a block that executes more is assumed not to end


class Copy(NamedTuple):
    """An asynchronous copy in flight: its destinations ``[n, k]``, its bytes, and their
    sources."""

    at: np.ndarray
    data: np.ndarray
    defined: np.ndarray
    threads: np.ndarray
    sources: list[tuple[np.ndarray, int]]  # addresses, and the bytes from each on


class State(NamedTuple):
    """The state of a block: how often its memory has changed, where its threads are and
    which of them wait, and its registers."""

    changes: int
    at: np.ndarray
    waiting: np.ndarray
    registers: dict[str, Value]


class Block:
    """The block with the given ``number``. It has ``shared`` bytes of shared memory in
    addition to the variables that the kernel declares there.

    ``blocks`` is the number of blocks along each of three axes; numbers count along the
    first axis first. ``parameters`` holds the bits of the kernel's parameters and the
    addresses of its tables in global memory, by name. ``before`` are the races of a run
    of the block before this one, of which only those of the lines ``only`` count.
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
    ) -> None:
        self.program, self.parameters = program, parameters
        self.memory, self.shared = memory, Shared(program.shared + shared)
        self.number, n = number, program.threads
        # Each thread's local memory: the bytes, and whether each is defined.
        self.local = (
            np.zeros((n, program.local), np.uint8),
            np.zeros((n, program.local), bool),
        )
        self.approximate = approximate
        self.threads = np.arange(n)
        self.registers: dict[str, Value] = {}
        self.left = np.ones(n, bool)  # the threads that have not returned
        found: dict[str, np.ndarray | int] = {"%laneid": self.threads % 32}
        found |= {"%warpid": self.threads // 32}
        bit = 1 << self.threads % 32
        found |= {
            "%lanemask_eq": bit,
            "%lanemask_lt": bit - 1,
            "%lanemask_le": 2 * bit - 1,
        }
        found |= {"%lanemask_ge": 2**32 - bit, "%lanemask_gt": 2**32 - 2 * bit}
        found |= {"%tid.x": self.threads, "%tid.y": 0, "%tid.z": 0}
        found |= {"%ntid.x": n, "%ntid.y": 1, "%ntid.z": 1}
        place = number
        for axis, length in zip("xyz", blocks, strict=True):
            found |= {f"%ctaid.{axis}": place % length, f"%nctaid.{axis}": length}
            place //= length
        self.special = {
            name: np.broadcast_to(np.asarray(x, np.uint32), (n,))
            for name, x in found.items()
        }
        # No two blocks share a time. ``since`` is the time of the last barrier.
        # So does that of a run before.
        self.time = self.since = before.start + RUN if before else number * BLOCK + 1
        self.races = Races(self.time, before, only)
        self.warp_times = np.zeros(n // 32 + 1, np.int64)
        self.copies: list[list[Copy]] = [[]]  # by group; the last is uncommitted
        self.sees: Seen = {}  # what this block has acquired
        self.acquired = Acquired(n)
        self.kept: State | None = None  # at a branch backwards
        self.branches, self.different = 0, ""  # how many, and what differed last
        self.steps = 0
        self.place: Place | None = None

    def run(self) -> None:
        """Execute the kernel until all threads have returned. Raises a Fault."""
        code, end = self.program.code, len(self.program.code)
        at = np.zeros(len(self.threads), np.int64)
        waiting = np.zeros(len(self.threads), bool)
        while (left := at < end).any():
            self.left, ready = left, left & ~waiting
            if not ready.any() and _waits_for_all(code[at[left][0]]):
                # Threads for which the others waited may have returned.
                ready = left & (at[left] == at[left][0]).all()
            if not ready.any():
                missing = int(np.argmax(~left if not left.all() else at != at[0]))
                what = f"waits for thread {missing}, which does not arrive"
                raise self._fault(Barrier, what, waiting)
            here = int(at[ready].min())
            instruction, active = code[here], at == here
            self.steps += 1
            if self.steps > LIMIT:
                what = f"does not end within {LIMIT:,} instructions"
                raise self._fault(Barrier, what, active)
            self.place = instruction.place
            if instruction.parts[0] in _TOGETHER:
                self._check_together(instruction, active)
                complete = self._complete(instruction, active)
                waiting = (waiting & ~active) | (active & ~complete)
                active = complete
                if not active.any():
                    continue
            operation = instruction.parts[0]
            chosen = active & self._guard(instruction, active)
            if operation == "bra":
                at[active] = here + 1
                at[chosen] = target = self.program.labels[_label(instruction)]
                if target <= here and chosen.any():
                    self._check_repeats(at, waiting, chosen)
            elif operation in ("ret", "exit"):
                at[active] = here + 1
                at[chosen] = end
            else:
                if chosen.any():
                    self._execute(instruction, chosen)
                at[active] = here + 1

    def _complete(self, instruction: Instruction, active: np.ndarray) -> np.ndarray:
        """Return the active threads whose whole warp is active. At a barrier, all
        threads that have not returned must be active."""
        if _waits_for_all(instruction):
            return active & (active == self.left).all()
        whole = (active | ~self.left).reshape(-1, 32).all(axis=1)
        return active & np.repeat(whole, 32)

    def _check_repeats(
        self, at: np.ndarray, waiting: np.ndarray, chosen: np.ndarray
    ) -> None:
        """Raise Barrier if the block was in the same state at an earlier branch
        backwards. The state that is kept for this is replaced after 1, 2, 4, …
        branches."""
        self.branches += 1
        changes = self.memory.changes + self.shared.changes
        if self.kept is not None and self.kept.changes == changes:
            kept = self.kept
            names = (
                [self.different, *kept.registers] if self.different else kept.registers
            )
            other = (
                x for x in names if not _same(kept.registers[x], self.registers[x])
            )
            self.different = next(other, "")
            if (
                not self.different
                and len(kept.registers) == len(self.registers)
                and np.array_equal(kept.at, at)
                and np.array_equal(kept.waiting, waiting)
            ):
                what = (
                    "repeats a loop in which nothing changes: it does not end, or waits "
                    "for another block, but blocks run to completion one after another "
                    "here"
                )
                raise self._fault(Barrier, what, chosen)
        if self.branches & (self.branches - 1) == 0:
            self.kept = State(changes, at.copy(), waiting.copy(), {**self.registers})
            self.different = ""

    def _guard(self, instruction: Instruction, active: np.ndarray) -> np.ndarray:
        if instruction.guard is None:
            return active
        value = self._read(instruction.guard, "pred")
        self._check(
            value,
            active,
            f"uses an uninitialised predicate ({instruction.guard.name})",
        )
        return ~value.bits if instruction.negated else value.bits

    def _execute(self, instruction: Instruction, chosen: np.ndarray) -> None:
        operation = instruction.parts[0]
        special = _MEMORY.get(operation)
        if special is not None:
            special(self, instruction, chosen)
            return
        if operation not in arithmetic.OPERATIONS:
            raise _unsupported(instruction)
        target, *sources = instruction.operands
        types = _operand_types(instruction)
        if operation in ("addc", "subc", "madc"):
            sources, types = [*sources, CARRY], [*types, "pred"]
        values = [self._read(x, t) for x, t in zip(sources, types, strict=False)]
        results = arithmetic.compute(
            instruction.name, [v.bits for v in values], self.approximate
        )
        defined = [known(instruction.name, values)] * 2
        targets = _targets(target)
        if operation == "setp" and "x2" in instruction.parts[-1]:
            defined = [*halves_known(values)]
        if operation == "cvt" and instruction.parts[-2][0] == "s":
            type = instruction.parts[-2]
            results = (extended(results[0], type),)
            if defined[0].dtype != bool:
                defined[0] = extended(defined[0], type)
        if "cc" in instruction.parts:
            targets = [*targets, CARRY]
        if operation == "setp" and len(results) < len(targets):  # and its negation
            results = (*results, ~results[0])
        for register, bits, mask in zip(targets, results, defined, strict=False):
            self._write(register, bits, mask, chosen)

    # Registers

    def _read(self, operand: Operand, type: str) -> Value:
        """Return the bits of an operand, as a type, for all threads."""
        n = len(self.threads)
        if isinstance(operand, Number):
            bits = _constant(operand.text, type, n)
        elif isinstance(operand, Label):
            address = self._address_of(operand.name)
            bits = np.full(n, address, UNSIGNED[width_of(type)])
        elif not isinstance(operand, Register):
            raise Unsupported(f"ptx: the operand {operand} is not supported here")
        elif operand.name in self.special:
            bits = self.special[operand.name]
        elif operand.name in self.registers:
            return self.registers[operand.name].resized(_kind_of(type))
        else:
            bits = np.zeros(n, self._kind(operand.name))
            return Value(bits, bits).resized(_kind_of(type))
        return Value(bits, np.full(n, all_bits(bits.dtype)))

    def _write(
        self,
        register: Operand,
        bits: np.ndarray,
        defined: np.ndarray,
        chosen: np.ndarray,
    ) -> None:
        """Write bits ``[threads]`` for the chosen threads. ``defined`` says which bits
        of each thread are defined, or whether all are."""
        if not isinstance(register, Register):
            raise Unsupported(f"ptx: {register} cannot be written to")
        kind = self._kind(register.name)
        if defined.dtype == bool:
            full = all_bits(bits.dtype)
            defined = np.where(defined, full, ~full)
        bits, defined = Value(bits, defined).resized(kind)
        if not chosen.all():
            before = self._read(
                register, "pred" if kind is bool else f"b{8 * np.dtype(kind).itemsize}"
            )
            bits = np.where(chosen, bits, before.bits)
            defined = np.where(chosen, defined, before.defined)
        self.registers[register.name] = Value(bits, defined)

    def _kind(self, name: str) -> type:
        width = self.program.widths.get(name)
        if width is None:
            raise Unsupported(f"ptx: the register {name} is not supported")
        return _kind_of("pred" if width == 1 else f"b{width}")

    # Memory

    def _who(self, chosen: np.ndarray) -> Who:
        return self._these(self.threads[chosen])

    def _these(self, threads: np.ndarray) -> Who:
        return Who(
            threads,
            self.warp_times[threads // 32],
            self.since,
            self.time,
            self.number,
            self.place,
            self.sees,
            self.acquired,
            self.races,
        )

    def _addresses(self, operand: Operand, chosen: np.ndarray) -> np.ndarray:
        if not isinstance(operand, Address):
            raise Unsupported(f"ptx: expected an address; got {operand}")
        if operand.base not in self.program.widths:
            start = self._address_of(operand.base)
            return np.full(int(chosen.sum()), start + operand.offset)
        value = self._read(Register(operand.base), "b64")
        self._check(value, chosen, f"uses an uninitialised address ({operand.base})")
        return value.bits[chosen].astype(np.int64) + operand.offset

    def _address_of(self, name: str) -> int:
        """Return the address of a variable, or the number as an address."""
        if name in self.program.variables:
            return self.program.variables[name]
        if name in self.program.tables:
            return self.parameters[name]
        if not name.isdigit():
            raise Unsupported(f"ptx: the name {name} is not supported here")
        return int(name)

    def _check_writable(self, addresses: np.ndarray, who: Who) -> None:
        for name, content in self.program.tables.items():
            offset = addresses - self.parameters[name]
            inside = (offset >= 0) & (offset < len(content))
            if inside.any():
                raise who.fault(OutOfBounds, f"writes to the table {name}", inside)

    def _load(self, instruction: Instruction, chosen: np.ndarray) -> None:
        type, space = instruction.parts[-1], _space(instruction)
        target, source = instruction.operands[:2]
        targets = _targets(target)
        if space == "param":
            if len(targets) > 1:
                raise _unsupported(instruction)
            bits = self.parameters[source.base] >> 8 * source.offset  # type: ignore[union-attr]
            n, width = len(self.threads), width_of(type)
            value = bits % 2**width
            if type[0] == "s" and value >> (width - 1):
                value += 2**64 - 2**width  # sign-extend to a wider register
            full = np.full(
                n,
                value % 2 ** (8 * np.dtype(self._kind(targets[0].name)).itemsize),
                np.uint64,
            )
            self._write(targets[0], full, np.ones(n, bool), chosen)
            return
        each = width_of(type) // 8
        who, addresses = self._who(chosen), self._addresses(source, chosen)
        if space == "local":
            at = self._in_local(addresses, each * len(targets), who)
            data, defined = (kept[who.threads[:, None], at] for kept in self.local)
        elif space == "shared":
            at = self.shared.indices(addresses, each * len(targets), who, "reads")
            data, defined = self.shared.load(at, who)
        else:
            # If another thread updates the word after this load, the swap fails.
            who = who._replace(swaps=source in self.program.swapped)
            data, defined = self.memory.load(addresses, each * len(targets), who)
        for i, register in enumerate(targets):
            self._spread(
                register,
                data[:, i * each : (i + 1) * each],
                defined[:, i * each : (i + 1) * each],
                type,
                chosen,
            )

    def _spread(
        self,
        register: Operand,
        data: np.ndarray,
        defined: np.ndarray,
        type: str,
        chosen: np.ndarray,
    ) -> None:
        """Write the bytes of the chosen threads ``[n, k]`` to a register."""
        kind = UNSIGNED[8 * data.shape[1]]
        own = np.ascontiguousarray(data).view(kind)[:, 0]
        mask = (defined * np.uint8(0xFF)).view(kind)[:, 0]
        if type[0] == "s":  # sign-extend to a wider register
            own, mask = extended(own, type), extended(mask, type)
        bits, whole = (np.zeros(len(self.threads), own.dtype) for _ in range(2))
        bits[chosen], whole[chosen] = own, mask
        self._write(register, bits, whole, chosen)

    def _store(self, instruction: Instruction, chosen: np.ndarray) -> None:
        type, space = instruction.parts[-1], _space(instruction)
        target, source = instruction.operands
        values = [self._read(x, f"b{width_of(type)}") for x in _targets(source)]
        n = int(chosen.sum())
        data = _bytes([v.bits[chosen] for v in values], n)
        defined = _bytes([v.defined[chosen] for v in values], n) == 0xFF
        if space == "param":
            raise Unsupported(
                "ptx: calls of functions are not supported; tl.device_print, "
                "tl.device_assert, and functions that are not inlined call one"
            )
        who, addresses = self._who(chosen), self._addresses(target, chosen)
        if space == "local":
            at = self._in_local(addresses, data.shape[1], who)
            for kept, new in zip(self.local, (data, defined), strict=True):
                kept[who.threads[:, None], at] = new
            self.shared.changes += 1
        elif space == "shared":
            at = self.shared.indices(addresses, data.shape[1], who, "writes")
            self.shared.store(at, data, defined, who)
        else:
            self._check_writable(addresses, who)
            check_defined(np.all(defined, axis=1), "stores an uninitialised value", who)
            self.memory.store(addresses, data, defined, who)

    def _in_local(self, addresses: np.ndarray, count: int, who: Who) -> np.ndarray:
        """Return the indices ``[n, count]`` of bytes in the threads' local memory."""
        check_aligned(addresses, count, who, "local memory")
        outside = (addresses < 0) | (addresses + count > self.program.local)
        if outside.any():
            what = f"accesses local memory outside its {self.program.local} bytes"
            raise who.fault(OutOfBounds, what, outside)
        return addresses[:, None] + np.arange(count)

    def _atomic(self, instruction: Instruction, chosen: np.ndarray) -> None:
        own = atomics.atomic(instruction.name)
        operands = list(instruction.operands)
        result = operands.pop(0) if instruction.parts[0] == "atom" else None
        target, *sources = operands
        width = f"b{width_of(own.type)}"
        values = [self._read(x, width) for x in sources]
        who, addresses = self._who(chosen), self._addresses(target, chosen)
        for value in values:
            what = "passes an uninitialised value to an atomic instruction"
            self._check(value, chosen, what)
        given = [value.bits[chosen] for value in values]
        if own.shared:
            at = self.shared.indices(addresses, given[0].itemsize, who, "updates")
            old = self.shared.update(at, own, given, who)
        else:
            old = self.memory.update(addresses, own, given, who)
            self.time += own.releases  # what the threads do next is not released
        if result is not None:
            bits = np.zeros(len(self.threads), old.dtype)
            bits[chosen] = old
            self._write(result, bits, np.ones(len(bits), bool), chosen)

    def _move(self, instruction: Instruction, chosen: np.ndarray) -> None:
        target, source = instruction.operands
        type = instruction.parts[-1]
        if isinstance(source, Vector):  # join the parts into one value
            width = width_of(type) // len(source.parts)
            values = [self._read(x, f"b{width}") for x in source.parts]
            kind = UNSIGNED[width_of(type)]
            shifts = [kind(i * width) for i in range(len(values))]
            bits, defined = (
                sum(x.astype(kind) << by for x, by in zip(parts, shifts, strict=True))
                for parts in zip(*values, strict=True)
            )
            self._write(target, bits, defined, chosen)
            return
        value = self._read(source, type)
        if isinstance(target, Vector):
            width = width_of(type) // len(target.parts)
            for i, register in enumerate(target.parts):
                if register != Label("_"):
                    by = value.bits.dtype.type(i * width)
                    bits, defined = ((x >> by).astype(UNSIGNED[width]) for x in value)
                    self._write(register, bits, defined, chosen)
            return
        self._write(target, value.bits, value.defined, chosen)

    # The block and its warps

    def _barrier(self, instruction: Instruction, chosen: np.ndarray) -> None:
        if instruction.name == "bar.warp.sync":
            self._check_warps(chosen | ~self.left, "bar.warp.sync", chosen)
            for warp in np.unique(self.threads[chosen] // 32):
                self.warp_times[warp] += 1
                own = self.acquired.threads[32 * warp : 32 * warp + 32]
                own[:] = own.any()
            return
        if (missed := self.left & ~chosen).any():
            missing = int(self.threads[missed][0])
            raise self._fault(
                Barrier,
                f"is at a barrier that thread {missing} does not reach",
                chosen,
            )
        self.time += 1
        self.since = self.time
        self.sees = with_later(self.sees, self.acquired.seen)
        self.acquired = Acquired(len(self.threads))

    def _check_together(self, instruction: Instruction, active: np.ndarray) -> None:
        """Raise Unsupported unless an instruction is for all threads of a block, or of
        a warp, and not only for those that it names."""
        name, *operands = instruction.name, *instruction.operands
        if instruction.parts[0] in ("bar", "barrier") and name != "bar.warp.sync":
            if name not in _FOR_ALL or operands != [Number("0")]:
                shown = ", ".join(x[0] for x in operands if isinstance(x[0], str))
                raise Unsupported(f"ptx: {name} {shown} is not supported")
        elif instruction.parts[0] not in ("mma", "ldmatrix"):
            mask = self._read(operands[-1], "b32")
            self._check(mask, active, "uses an uninitialised mask of threads")
            if not np.all(mask.bits[active] == 0xFFFFFFFF):
                raise Unsupported(f"ptx: {name} is supported for whole warps only")

    def _check_warps(
        self, present: np.ndarray, what: str, chosen: np.ndarray | None = None
    ) -> None:
        """Raise Barrier unless all threads of a warp are present, or none.

        If threads that have returned count as present, ``chosen`` are the others.
        """
        by = present if chosen is None else chosen
        whole = present.reshape(-1, 32).all(axis=1)
        bad = by & ~np.repeat(whole, 32)
        if bad.any():
            raise self._fault(
                Barrier, f"executes {what} without all threads of its warp", bad
            )

    def _shuffle(self, instruction: Instruction, chosen: np.ndarray) -> None:
        target, source, by, clamp = instruction.operands[:4]
        self._check_warps(chosen, "shfl.sync")
        value, lane, bound = (self._read(x, "b32") for x in (source, by, clamp))
        how = instruction.parts[2]
        lanes, inside = tensor_cores.shuffled_from(how, lane.bits, bound.bits)
        of = self.threads // 32 * 32 + lanes
        targets, known = _targets(target), lane.whole & bound.whole
        defined = np.where(known, value.defined[of], 0)
        self._write(targets[0], value.bits[of], defined, chosen)
        if len(targets) > 1:
            self._write(targets[1], inside, known, chosen)

    def _reduce(self, instruction: Instruction, chosen: np.ndarray) -> None:
        self._check_warps(chosen, "redux.sync")
        target, source = instruction.operands[:2]
        value = self._read(source, "b32")
        found = tensor_cores.redux(instruction.name, value.bits.reshape(-1, 32))
        defined = np.repeat(value.whole.reshape(-1, 32).all(axis=1), 32)
        self._write(target, found.reshape(-1), defined, chosen)

    def _vote(self, instruction: Instruction, chosen: np.ndarray) -> None:
        """vote.sync: whether the predicate is true for all threads of a warp, or for
        any of them, or a bit for each thread."""
        how, type = instruction.parts[2], instruction.parts[-1]
        self._check_warps(chosen, "vote.sync")
        target, source = instruction.operands[:2]
        value = self._read(source, "pred")
        warps = value.bits.reshape(-1, 32)
        if how == "ballot" and type == "b32":
            found = (warps.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(
                axis=1
            )
        elif how in ("all", "any") and type == "pred":
            found = getattr(warps, how)(axis=1)
        else:
            raise _unsupported(instruction)
        defined = value.whole.reshape(-1, 32).all(axis=1)
        self._write(target, np.repeat(found, 32), np.repeat(defined, 32), chosen)

    def _multiply(self, instruction: Instruction, chosen: np.ndarray) -> None:
        self._check_warps(chosen, "mma.sync")
        target, *sources = (_targets(x) for x in instruction.operands)
        if len(sources) != 3:
            raise _unsupported(instruction)
        type = "b64" if "f64" in instruction.parts else "b32"
        values = [[self._read(x, type) for x in own] for own in sources]
        registers = [
            np.stack([v.bits for v in own], axis=-1).reshape(-1, 32, len(own))
            for own in values
        ]
        flags = [
            np.stack([v.whole for v in own], axis=-1).reshape(-1, 32, len(own))
            for own in values
        ]
        found = tensor_cores.mma(instruction.name, *registers)
        known = tensor_cores.mma_needs(instruction.name, *flags)
        for i, register in enumerate(target):
            own = found[:, :, i].reshape(-1), known[:, :, i].reshape(-1)
            self._write(register, *own, chosen)

    def _load_matrices(self, instruction: Instruction, chosen: np.ndarray) -> None:
        parts = instruction.parts
        if parts[3] != "m8n8" or parts[-1] != "b16":
            raise _unsupported(instruction)
        self._check_warps(chosen, "ldmatrix")
        targets = _targets(instruction.operands[0])
        n = len(targets)
        # Lanes 8i to 8i + 7 hold the addresses of the rows of matrix i.
        giving = chosen & (self.threads % 32 < 8 * n)
        who, addresses = (
            self._who(giving),
            self._addresses(instruction.operands[1], giving),
        )
        at = self.shared.indices(addresses, 16, who, "reads")
        data, defined = self.shared.load(at, who)
        rows = np.ascontiguousarray(data).view(np.uint16).reshape(-1, n, 8, 8)
        whole = np.all(defined.reshape(-1, n, 8, 8, 2), axis=-1)
        transposed = "trans" in parts
        found = tensor_cores.loaded_matrices(rows, transposed)
        known = tensor_cores.loaded_matrices(whole, transposed) == 0x10001
        for i, register in enumerate(targets):
            bits = np.zeros(len(self.threads), np.uint32)
            mask = np.zeros(len(self.threads), bool)
            bits[chosen], mask[chosen] = (
                found[:, :, i].reshape(-1),
                known[:, :, i].reshape(-1),
            )
            self._write(register, bits, mask, chosen)

    # Asynchronous copies

    def _copy(self, instruction: Instruction, chosen: np.ndarray) -> None:
        parts = instruction.parts
        self.shared.changes += 1
        if parts[1] != "async":
            raise _unsupported(instruction)
        if parts[2] == "commit_group":
            self._check_all(instruction, chosen)
            self.copies.append([])
        elif parts[2] in ("wait_group", "wait_all"):
            self._check_all(instruction, chosen)
            left = 0 if parts[2] == "wait_all" else int(instruction.operands[0].text, 0)  # type: ignore[union-attr]
            self._await(left, parts[2] == "wait_all")
        elif parts[2] in ("ca", "cg"):
            self._start(instruction, chosen)
        else:
            raise _unsupported(instruction)

    def _start(self, instruction: Instruction, chosen: np.ndarray) -> None:
        to, of, size, *rest = instruction.operands
        count, who = int(size.text, 0), self._who(chosen)  # type: ignore[union-attr]
        at = self.shared.indices(self._addresses(to, chosen), count, who, "writes")
        self.shared._check_awaited(at, who)
        self.shared.check_write(at, None, who)
        lengths = np.full(len(at), count, np.uint32)
        if rest:
            value = self._source_size(rest[0], instruction)
            self._check(value, chosen, "copies an uninitialised number of bytes")
            lengths = value.bits[chosen]
        data = np.zeros((len(at), count), np.uint8)
        defined = np.ones(data.shape, bool)
        addresses, sources = self._addresses(of, chosen), []
        check_aligned(addresses, count, who, "global memory")
        for length in np.unique(lengths[lengths > 0]):
            rows = lengths == length
            if length > count:
                what = f"copies {length} bytes to a destination of {count} bytes"
                raise self._fault(Fault, what, chosen)
            data[rows, :length], defined[rows, :length] = self.memory.load_bytes(
                addresses[rows], int(length), who.only(rows)
            )
            sources.append((addresses[rows], int(length)))
        self.shared.awaited[at] = True
        self.copies[-1].append(Copy(at, data, defined, who.threads, sources))
        self._mark(self.copies[-1][-1:], self.number + 1)

    def _source_size(self, operand: Operand, instruction: Instruction) -> Value:
        """Return how many bytes each thread copies; the others are 0."""
        if isinstance(operand, Register) and self._kind(operand.name) is bool:
            what = f"ptx: {instruction.name} with a predicate is not supported"
            raise Unsupported(what)
        return self._read(operand, "b32")

    def _await(self, left: int, everything: bool) -> None:
        """Complete the copies of all groups except the last ``left``."""
        if everything:
            self.copies.append([])
        done = max(len(self.copies) - 1 - left, 0)
        for copy in (copy for group in self.copies[:done] for copy in group):
            self.shared.awaited[copy.at] = False
            who = self._these(copy.threads)
            self.shared.store(copy.at, copy.data, copy.defined, who)
            self._mark([copy], 0)
        self.copies[:done] = [[] for _ in self.copies[:done]]
        for group in self.copies:
            self._mark(group, self.number + 1)

    def _mark(self, copies: list[Copy], by: int) -> None:
        """Record that the block with the number ``by`` - 1, or no block if ``by`` is 0,
        is reading the sources of the copies."""
        for copy in copies:
            for addresses, length in copy.sources:
                self.memory.mark_copied(addresses, length, by)

    def _check_all(self, instruction: Instruction, chosen: np.ndarray) -> None:
        if not chosen.all():
            raise Unsupported(
                f"ptx: {instruction.name} is supported only if all threads execute it "
                "together"
            )

    def stop_copies(self) -> None:
        """Forget the copies in flight, if the block is to run again."""
        for group in self.copies:
            self._mark(group, 0)

    # Faults

    def _check(self, value: Value, active: np.ndarray, what: str) -> None:
        bad = active & ~value.whole
        if bad.any():
            raise self._fault(Undefined, what, bad)

    def _fault(self, kind: type[Fault], what: str, bad: np.ndarray) -> Fault:
        return kind(what, self.place, self.number, int(np.argmax(bad)))


_MEMORY: dict[str, Callable[[Block, Instruction, np.ndarray], None]] = {
    "ld": Block._load,
    "st": Block._store,
    "atom": Block._atomic,
    "red": Block._atomic,
    "mov": Block._move,
    "cvta": Block._move,  # a generic address is the same number
    "bar": Block._barrier,
    "barrier": Block._barrier,
    "shfl": Block._shuffle,
    "vote": Block._vote,
    "redux": Block._reduce,
    "mma": Block._multiply,
    "ldmatrix": Block._load_matrices,
    "cp": Block._copy,
}


# Instructions that all threads of a block, or of a warp, execute together.
_TOGETHER = ("bar", "barrier", "shfl", "vote", "redux", "mma", "ldmatrix")


def _bytes(values: Sequence[np.ndarray], n: int) -> np.ndarray:
    """Return the bytes ``[n, k]`` of values ``[n]``, one after the other."""
    parts = [np.ascontiguousarray(x).view(np.uint8).reshape(n, -1) for x in values]
    return np.concatenate(parts, axis=1)


# The barriers at which all threads of a block meet.
_FOR_ALL = {"bar.sync", "bar.cta.sync", "barrier.sync", "barrier.cta.sync"}
_FOR_ALL |= {"barrier.sync.aligned", "barrier.cta.sync.aligned"}


def _waits_for_all(instruction: Instruction) -> bool:
    return instruction.name in _FOR_ALL


def _unsupported(instruction: Instruction) -> Unsupported:
    return Unsupported(f"ptx: the instruction {instruction.name} is not supported")


def _kind_of(type: str) -> type:
    """Return NumPy's type of a register that holds a type."""
    width = width_of(type)
    return bool if width == 1 else UNSIGNED[width]


def _same(one: Value, other: Value) -> bool:
    return one is other or (
        np.array_equal(one.bits, other.bits)
        and np.array_equal(one.defined, other.defined)
    )


def _label(instruction: Instruction) -> str:
    (target,) = instruction.operands
    if not isinstance(target, Label):
        raise Unsupported(f"ptx: expected a label to branch to; got {target}")
    return target.name


# The modifiers of loads and stores: spaces, sizes, and hints for the caches.
_OF_ACCESSES = {"ld", "st", "param", "local", "shared", "const", "global", "v2", "v4"}
_OF_ACCESSES |= {"weak", "volatile", "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt"}
_OF_ACCESSES |= {"L1", "L2"}


def _space(instruction: Instruction) -> str:
    """Return the memory that a load or a store accesses."""
    parts = {part.partition("::")[0] for part in instruction.parts}
    if not parts <= _OF_ACCESSES | {instruction.parts[-1]}:
        raise _unsupported(instruction)
    for space in ("param", "local", "shared", "const", "global"):
        if space in parts:
            return space
    raise Unsupported(f"ptx: {instruction.name} at a generic address is not supported")


def _targets(operand: Operand) -> Sequence[Register]:
    """Return the registers that an operand names: one register, several in braces, or
    two predicates separated by a bar."""
    if isinstance(operand, Vector):
        return operand.parts  # type: ignore[return-value]
    if isinstance(operand, Register) and "|" in operand.name:
        return [Register(name) for name in operand.name.split("|")]
    return [operand]  # type: ignore[list-item]


def _operand_types(instruction: Instruction) -> list[str]:
    """Return the types of the source operands of an arithmetic instruction."""
    parts, n = instruction.parts, len(instruction.operands) - 1
    type = parts[-1]
    if parts[0] == "selp":
        return [type, type, "pred"]
    if parts[0] in ("shl", "shr"):
        return [type, "b32"]
    if parts[0] == "bfe":
        return [type, "b32", "b32"]
    if parts[0] == "mad" and "wide" in parts:
        return [type, type, f"b{2 * width_of(type)}"]
    return [type] * n


def _constant(text: str, type: str, n: int) -> np.ndarray:
    """Return the bits of a constant for n threads."""
    if type == "pred":
        return np.full(n, int(text, 0) != 0)
    width = width_of(type)
    if text.startswith(("0f", "0F", "0d", "0D")):
        own = 32 if text[1] in "fF" else 64
        if own != width:
            raise Unsupported(f"ptx: the constant {text} is not of type {type}")
        return np.full(n, int(text[2:], 16), UNSIGNED[width])
    if not text.startswith(("0x", "0X")) and re.search(r"[.eE]", text):
        if not arithmetic.is_float(type):
            raise Unsupported(f"ptx: the constant {text} is not of type {type}")
        return bits_of(np.full(n, float(text)), type)
    base = 8 if re.match(r"-?0\d", text) else 0
    return np.full(n, int(text.rstrip("U"), base) % 2**width, UNSIGNED[width])
