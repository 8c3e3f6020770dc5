"""A block of threads that executes a kernel. All threads are one vector.

Each thread has its own program counter. The block next executes the instruction with
the smallest counter, for the threads that are at this instruction. Threads further
ahead wait, so the threads meet again after a branch or a loop. At a barrier, threads
wait for all threads of the block that have not returned. At an instruction that a warp
executes together, they wait for the rest of the warp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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
    Global,
    Released,
    Shared,
    Who,
    check_aligned,
    check_defined,
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
from backpass.ptx.values import Value, all_bits, known

SPINS = 10_000  # repetitions of an atomic instruction that changes nothing
CARRY = Register("CC.CF")
LIMIT = 5_000_000  # instructions; a block that executes more is taken not to end


class Copy(NamedTuple):
    """An asynchronous copy in flight: its destinations ``[n, k]``, its bytes, and their
    sources."""

    at: np.ndarray
    data: np.ndarray
    defined: np.ndarray
    threads: np.ndarray
    sources: list[tuple[np.ndarray, int]]  # addresses, and the bytes from each on


class Block:
    """The block with the given ``number``. It has ``shared`` bytes of shared memory
    beside the variables that the kernel declares there.

    ``blocks`` is the number of blocks along each of three axes; numbers count along the
    first axis first. ``parameters`` holds the bits of the kernel's parameters and the
    addresses of its tables in global memory, by name.
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
        # The time differs from every other block's; ``since`` is that of the barrier.
        self.time = self.since = number * BLOCK + 1
        self.warp_times = np.zeros(n // 32 + 1, np.int64)
        self.copies: list[list[Copy]] = [[]]  # by group; the last is uncommitted
        self.sees: dict[int, Released] = {}  # what this block has acquired
        self.spins: dict[tuple, int] = {}  # how often the last atomic was repeated
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
                complete = self._complete(instruction, active)
                waiting = (waiting & ~active) | (active & ~complete)
                active = complete
                if not active.any():
                    continue
            chosen = active & self._guard(instruction, active)
            operation = instruction.parts[0]
            if operation == "bra":
                at[active] = here + 1
                at[chosen] = self.program.labels[_label(instruction)]
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
        return np.repeat(active.reshape(-1, 32).all(axis=1), 32)

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
        target, *sources = instruction.operands
        types = _operand_types(instruction)
        if operation in ("addc", "subc", "madc"):
            sources, types = [*sources, CARRY], [*types, "pred"]
        values = [self._read(x, t) for x, t in zip(sources, types, strict=False)]
        results = arithmetic.compute(
            instruction.name, [v.bits for v in values], self.approximate
        )
        defined = known(instruction.name, values)
        targets = _targets(target)
        if "cc" in instruction.parts:
            targets = [*targets, CARRY]
        if operation == "setp" and len(results) < len(targets):  # and its negation
            results = (*results, ~results[0])
        for register, bits in zip(targets, results, strict=True):
            self._write(register, bits, defined, chosen)

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
            width = width_of(type)
            kind = bool if width == 1 else UNSIGNED[width]
            return self.registers[operand.name].resized(kind)
        else:
            bits = np.zeros(n, self._kind(operand.name))
            return Value(bits, bits)
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
        return bool if width == 1 else UNSIGNED[width]

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
        """Return the address of a variable, or the address that a number is."""
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
        parts = instruction.parts
        target, source = instruction.operands[:2]
        targets, type, space = _targets(target), parts[-1], _space(instruction)
        if space == "param":
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
            own, mask = (
                x.view(f"int{8 * data.shape[1]}").astype(np.int64).view(np.uint64)
                for x in (own, mask)
            )
        bits, whole = (np.zeros(len(self.threads), own.dtype) for _ in range(2))
        bits[chosen], whole[chosen] = own, mask
        self._write(register, bits, whole, chosen)

    def _store(self, instruction: Instruction, chosen: np.ndarray) -> None:
        target, source = instruction.operands
        type, space = instruction.parts[-1], _space(instruction)
        values = [self._read(x, f"b{width_of(type)}") for x in _targets(source)]
        n = int(chosen.sum())
        data = _bytes([v.bits[chosen] for v in values], n)
        defined = _bytes([v.defined[chosen] for v in values], n) == 0xFF
        if space == "param":
            raise Unsupported(
                f"ptx: the instruction {instruction.name} is not supported"
            )
        who, addresses = self._who(chosen), self._addresses(target, chosen)
        if space == "local":
            at = self._in_local(addresses, data.shape[1], who)
            for kept, new in zip(self.local, (data, defined), strict=True):
                kept[who.threads[:, None], at] = new
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
            self._check_spin(addresses, own, given, old, chosen)
        if result is not None:
            bits = np.zeros(len(self.threads), old.dtype)
            bits[chosen] = old
            self._write(result, bits, np.ones(len(bits), bool), chosen)

    def _check_spin(
        self,
        addresses: np.ndarray,
        own: atomics.Atomic,
        given: list[np.ndarray],
        found: np.ndarray,
        chosen: np.ndarray,
    ) -> None:
        """Raise Barrier if the block repeats an atomic instruction that changes
        nothing: it waits for another block, and blocks run one after another."""
        if np.any(own.compute(found, given) != found):
            self.spins = {}
            return
        key = (self.place, own, addresses.tobytes(), found.tobytes())
        self.spins = {key: self.spins.get(key, 0) + 1}
        if self.spins[key] > SPINS:
            what = (
                f"finds the same value {SPINS:,} times: it waits for another block, and "
                "here blocks run to their end one after another"
            )
            raise self._fault(Barrier, what, chosen)

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
        if instruction.parts[1] == "warp":
            warps = self.threads[chosen] // 32
            self._check_warps(chosen, "bar.warp.sync")
            self.warp_times[np.unique(warps)] += 1
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

    def _check_warps(self, chosen: np.ndarray, what: str) -> None:
        padded = np.resize(chosen, (len(chosen) + 31) // 32 * 32).reshape(-1, 32)
        split = padded.any(axis=1) & ~padded.all(axis=1)
        if split.any():
            bad = np.repeat(split, 32)[: len(chosen)] & chosen
            raise self._fault(
                Barrier, f"executes {what} without all threads of its warp", bad
            )

    def _shuffle(self, instruction: Instruction, chosen: np.ndarray) -> None:
        target, source, by, clamp = instruction.operands[:4]
        self._check_warps(chosen, "shfl.sync")
        value = self._read(source, "b32")
        lanes, inside = tensor_cores.shuffled_from(
            instruction.parts[2],
            self._read(by, "b32").bits,
            self._read(clamp, "b32").bits,
        )
        of = self.threads // 32 * 32 + lanes
        targets = _targets(target)
        self._write(targets[0], value.bits[of], value.defined[of], chosen)
        if len(targets) > 1:
            self._write(targets[1], inside, np.ones_like(inside), chosen)

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
        value = self._read(instruction.operands[1], "pred")
        if len(self.threads) % 32:
            raise Unsupported("ptx: vote.sync is supported for whole warps only")
        warps = value.bits.reshape(-1, 32)
        if how == "ballot" and type == "b32":
            found = (warps.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(
                axis=1
            )
        elif how in ("all", "any") and type == "pred":
            found = getattr(warps, how)(axis=1)
        else:
            raise Unsupported(
                f"ptx: the instruction {instruction.name} is not supported"
            )
        defined = value.whole.reshape(-1, 32).all(axis=1)
        self._write(
            instruction.operands[0],
            np.repeat(found, 32),
            np.repeat(defined, 32),
            chosen,
        )

    def _multiply(self, instruction: Instruction, chosen: np.ndarray) -> None:
        self._check_warps(chosen, "mma.sync")
        target, *sources = (_targets(x) for x in instruction.operands)
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
            raise Unsupported(
                f"ptx: the instruction {instruction.name} is not supported"
            )
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
        if parts[1] != "async":
            raise Unsupported(
                f"ptx: the instruction {instruction.name} is not supported"
            )
        if parts[2] == "commit_group":
            self._check_together(instruction, chosen)
            self.copies.append([])
        elif parts[2] in ("wait_group", "wait_all"):
            self._check_together(instruction, chosen)
            left = 0 if parts[2] == "wait_all" else int(instruction.operands[0].text, 0)  # type: ignore[union-attr]
            self._await(left, parts[2] == "wait_all")
        else:
            self._start(instruction, chosen)

    def _start(self, instruction: Instruction, chosen: np.ndarray) -> None:
        to, of, size, *rest = instruction.operands
        count, who = int(size.text, 0), self._who(chosen)  # type: ignore[union-attr]
        at = self.shared.indices(self._addresses(to, chosen), count, who, "writes")
        self.shared._check_awaited(at, who)
        self.shared.check_write(at, None, who)
        source = (
            self._read(rest[0], "b32").bits[chosen] if rest else np.full(len(at), count)
        )
        data, defined = (
            np.zeros((len(at), count), np.uint8),
            np.ones((len(at), count), bool),
        )
        addresses, sources = self._addresses(of, chosen), []
        for length in np.unique(source[source > 0]):
            rows = source == length
            if length > count:
                what = f"copies {length} bytes to a destination of {count} bytes"
                raise self._fault(Fault, what, chosen)
            data[rows, :length], defined[rows, :length] = self.memory.load(
                addresses[rows], int(length), who.only(rows)
            )
            sources.append((addresses[rows], int(length)))
        self.shared.awaited[at] = True
        self.copies[-1].append(Copy(at, data, defined, who.threads, sources))
        self._mark(self.copies[-1][-1:], self.number + 1)

    def _await(self, left: int, everything: bool) -> None:
        """Complete the copies of all groups except the last ``left``."""
        if everything:
            self.copies.append([])
        done = len(self.copies) - 1 - left
        for copy in (copy for group in self.copies[:done] for copy in group):
            self.shared.awaited[copy.at] = False
            who = self._these(copy.threads)
            self.shared.store(copy.at, copy.data, copy.defined, who)
            self._mark([copy], 0)
        self.copies[: max(done, 0)] = [[] for _ in self.copies[: max(done, 0)]]
        for group in self.copies:
            self._mark(group, self.number + 1)

    def _mark(self, copies: list[Copy], by: int) -> None:
        """Record by which block, plus 1, the sources of copies are being read."""
        for copy in copies:
            for addresses, length in copy.sources:
                self.memory.mark_copied(addresses, length, by)

    def _check_together(self, instruction: Instruction, chosen: np.ndarray) -> None:
        if not chosen.all():
            raise Unsupported(
                f"ptx: {instruction.name} is supported for all threads together only"
            )

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
    "cvta": Block._move,  # an address is the same number in every state space
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


def _waits_for_all(instruction: Instruction) -> bool:
    return instruction.name.startswith(("bar.sync", "barrier.sync"))


def _label(instruction: Instruction) -> str:
    (target,) = instruction.operands
    if not isinstance(target, Label):
        raise Unsupported(f"ptx: expected a label to branch to; got {target}")
    return target.name


def _space(instruction: Instruction) -> str:
    """Return the memory that a load or a store accesses."""
    parts = {part.partition("::")[0] for part in instruction.parts}
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
    return np.full(n, int(text.rstrip("U"), 0) % 2**width, UNSIGNED[width])
