"""Blocks that execute together: all their threads are one vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from backpass.ptx import block, computed, tensor_cores
from backpass.ptx.bundles import Bundle, Plan, Segment, Slot, Source
from backpass.ptx.conflicts import Conflicts
from backpass.ptx.formats import UNSIGNED
from backpass.ptx.in_flight import Copies
from backpass.ptx.parse import Label, Number, Program, Register, width_of
from backpass.ptx.registers import constant, special_registers
from backpass.ptx.rows import (
    EVERYONE,
    Chosen,
    Unsure,
    WideRegisters,
    check_defined,
    defined_value,
    is_defined,
    with_masks,
)
from backpass.ptx.tracked import (
    OF_SIZE,
    By,
    GlobalOfBlocks,
    LocalOfThreads,
    SharedOfBlocks,
)
from backpass.ptx.updates import Noted, Updates
from backpass.ptx.values import Value, extended

ELEMENTS = 1 << 16  # of a bundle: its instructions times the threads


class Wave:
    """The blocks of a grid with these ``numbers``."""

    approximate: int | None = None
    updates: Updates
    first = 0  # how many blocks come before this wave
    visits = 0  # of segments

    def __init__(
        self,
        program: Program,
        plan: Plan,
        parameters: Mapping[str, int],
        memory: GlobalOfBlocks,
        numbers: np.ndarray,
        blocks: tuple[int, int, int],
        shared: int,
    ) -> None:
        self.program, self.plan, self.parameters = program, plan, parameters
        self.numbers, self.grid, self.added = numbers, blocks, shared
        self.n, self.count = program.threads, len(numbers)
        threads = self.n * self.count
        self.memory = memory
        size = program.shared + shared
        self.shared = SharedOfBlocks(self.count, size, plan.granules["shared"])
        self.local = LocalOfThreads(threads, program.local)
        self.registers = WideRegisters(plan.rows, self.count, self.n)
        self.lanes = np.arange(threads)
        self.lane_numbers = self.lanes + 1
        self.own = self.lanes // self.n  # the block of each thread, in this wave
        # For global memory, blocks and threads are numbered through the grid.
        self.block = np.repeat(numbers, self.n)
        self.thread = self.block * self.n + self.lanes % self.n + 1
        self.times = np.zeros(threads, np.int64)  # how many barriers each has passed
        self.at = np.zeros(threads, np.int64)
        self.steps = np.zeros(self.count, np.int64)  # of each block
        self.copies, self.conflicts = Copies(self.count), Conflicts(program)
        self.special = special_registers(self.n, numbers, blocks)
        for slot, (operand, type) in plan.constants.items():
            self._fill(slot, operand, type)
        self.segments = plan.of_size(max(1, ELEMENTS // threads))
        self.repeats = _Repeats()

    def _fill(self, slot: Slot, operand: object, type: str) -> None:
        """Set a register that no instruction writes."""
        kind, at = slot
        if isinstance(operand, Number):
            bits = constant(operand.text, type, 1)
        elif isinstance(operand, Register):
            bits = self.special[operand.name]
        else:
            assert isinstance(operand, Label)
            bits = np.array([self._address_of(operand.name)], np.uint64)
        self.registers.fill(kind, at, bits)

    def _address_of(self, name: str) -> int:
        known = {**self.program.variables}
        known |= {table: self.parameters[table] for table in self.program.tables}
        if name not in known and not name.isdigit():
            raise Unsure
        return known[name] if name in known else int(name)

    def run(self, report: Callable[[int], None]) -> int:
        """Execute the blocks to their ends, and return how many instructions they have
        executed, which ``report`` is called with meanwhile. Raises Unsure."""
        end, here = len(self.program.code), 0
        there = EVERYONE
        while here < end:
            segment = self.segments[here]
            self.visits += 1
            self._count(segment, there)
            report(int(self.steps.sum()))
            for bundle in segment.bundles:
                chosen = self.registers.chosen_by(bundle, there)
                if chosen is not None:
                    self.execute(bundle, chosen)
            self._branch(segment, there)
            here = int(self.at.min())
            there = self._at(here)
        return int(self.steps.sum())

    def execute(self, bundle: Bundle, chosen: Chosen) -> None:
        """Execute the instructions of a bundle. Raises Unsure."""
        operation = bundle.instruction.parts[0]
        _OPERATIONS.get(operation, Wave.compute)(self, bundle, chosen)

    def _at(self, here: int) -> Chosen:
        """Return the threads that are at an instruction."""
        there = self.at == here
        if there.all():
            return EVERYONE
        by_block = there.reshape(self.count, self.n)
        whole = by_block.all(axis=1)
        lanes = np.flatnonzero(there)
        same = np.array_equal(whole, by_block.any(axis=1))
        return Chosen(lanes, np.flatnonzero(whole) if same else None)

    def _count(self, segment: Segment, there: Chosen) -> None:
        if there.lanes is None:
            self.steps += segment.steps
        else:
            self.steps[np.unique(self.own[there.lanes])] += segment.steps
        if self.steps.max() > block.LIMIT:
            raise Unsure

    def _branch(self, segment: Segment, there: Chosen) -> None:
        """Set where the threads that have executed a segment are next."""
        target, branch = segment.end, segment.branch
        own = slice(None) if there.lanes is None else there.lanes
        if branch is not None:
            target = len(self.program.code)
            if branch.parts[0] == "bra":
                target = self.program.labels[branch.operands[0].name]  # type: ignore[union-attr]
        if branch is None or segment.guard is None:
            self.at[own] = target
        else:
            guard = self.registers.read(Source(segment.guard, bool), there)
            check_defined(guard)
            self.at[own] = np.where(guard.bits ^ branch.negated, target, segment.end)
        if target < segment.end:
            self.repeats.check(self.registers.bits)

    def by(self, bundle: Bundle, chosen: Chosen, *, everywhere: bool) -> By:
        """Return who makes an access: by the numbers of the grid if it is to global
        memory, which is ``everywhere``."""
        threads = self.thread if everywhere else self.lane_numbers
        blocks = self.block if everywhere else self.own
        own = threads, blocks, self.times
        return By(
            own,
            lambda x: chosen.spread(x, bundle.size),
            lambda: chosen.numbered(bundle.size, len(self.lanes)),
        )

    def addresses(self, bundle: Bundle, chosen: Chosen, i: int = 0) -> np.ndarray:
        """Return the addresses of all elements. Raises Unsure if one is not defined."""
        base = self.registers.read(bundle.sources[i], chosen)
        check_defined(base)
        return chosen.shifted(base.bits.astype(np.int64), bundle.offsets[i])

    def whole(self, chosen: Chosen, size: int) -> np.ndarray | None:
        """Return the numbers of the groups of ``size`` threads that execute an
        instruction, or None for all. Raises Unsure if a group is not whole."""
        if chosen.rows is not None:
            raise Unsure
        if chosen.lanes is None:
            return None
        if len(chosen.lanes) % size:
            raise Unsure
        groups = chosen.lanes.reshape(-1, size)
        if not np.array_equal(groups, groups[:, :1] // size * size + np.arange(size)):
            raise Unsure
        return groups[:, 0] // size

    def compute(self, bundle: Bundle, chosen: Chosen) -> None:
        """Execute instructions that only compute."""
        if bundle.instruction.parts[0] in computed.OF_WARPS:
            self.whole(chosen, 32)
        values = [self.registers.read(x, chosen) for x in bundle.sources]
        bits = [x.bits for x in values]
        results = computed.compute(bundle.instruction, bits, self.approximate)
        if all(map(is_defined, values)):
            found = [defined_value(x) for x in results]
        else:
            full = [with_masks(x) for x in values]
            masks = computed.known_results(bundle.instruction, full)
            found = [_value(*x) for x in zip(results, masks, strict=False)]
        self._write(bundle, found, chosen)

    def _write(self, bundle: Bundle, found: Sequence[Value], chosen: Chosen) -> None:
        for rows, value in zip(bundle.targets, found, strict=False):
            if rows is not None:
                self.registers.write(rows, value, chosen)

    def load(self, bundle: Bundle, chosen: Chosen) -> None:
        """Execute ld."""
        type = bundle.instruction.parts[-1]
        if not bundle.space:
            self._parameters(bundle, type, chosen)
            return
        each = width_of(type) // 8
        own: SharedOfBlocks | LocalOfThreads | GlobalOfBlocks = self.memory
        if bundle.space in ("shared", "local"):
            own = self.shared if bundle.space == "shared" else self.local
        by = self.by(bundle, chosen, everywhere=bundle.space == "global")
        size = each * len(bundle.targets)
        data, defined = own.load(self.addresses(bundle, chosen), size, by)
        parts = _parts(data, each)
        masks = None if defined is None else _parts(defined, each)
        for i, rows in enumerate(bundle.targets):
            found = [parts[:, i]] if masks is None else [parts[:, i], masks[:, i]]
            if type[0] == "s":  # sign-extend to a wider register
                found = [extended(np.ascontiguousarray(x), type) for x in found]
            if rows is not None:
                value = defined_value(found[0]) if masks is None else Value(*found)
                self.registers.write(rows, value, chosen)

    def _parameters(self, bundle: Bundle, type: str, chosen: Chosen) -> None:
        width, found = width_of(type), []
        for source in bundle.parameters:
            value = (self.parameters[source.base] >> 8 * source.offset) % 2**width
            if type[0] == "s" and value >> (width - 1):
                value += 2**64 - 2**width  # sign-extend to a wider register
            found.append(value)
        zeros = chosen.spread(np.zeros(len(self.lanes), np.int64), bundle.size)
        bits = chosen.shifted(zeros, np.array(found, np.uint64).view(np.int64))
        self._write(bundle, [defined_value(bits.view(np.uint64))], chosen)

    def store(self, bundle: Bundle, chosen: Chosen) -> None:
        """Execute st."""
        values = [self.registers.read(x, chosen) for x in bundle.sources[1:]]
        data = _joined([x.bits for x in values])
        by = self.by(bundle, chosen, everywhere=bundle.space == "global")
        addresses = self.addresses(bundle, chosen)
        defined = None
        if not all(map(is_defined, values)):
            masks = _joined([with_masks(x).defined for x in values]).view(np.uint8)
            defined = np.where(masks == 0xFF, masks, np.uint8(0)).view(data.dtype)
        if bundle.space == "shared":
            differs = self.shared.store(addresses, data, defined, by)
            if differs is not None:
                self.conflicts.note(self, bundle, by, addresses, data, differs)
        elif bundle.space == "local":
            self.local.store(addresses, data, defined, by)
        elif defined is None:
            self.copies.check_sources(addresses)
            self.memory.store(addresses, data, by)
        else:
            raise Unsure

    def update(self, bundle: Bundle, chosen: Chosen) -> None:
        """Note the updates of atom or red."""
        value = self.registers.read(bundle.sources[1], chosen)
        check_defined(value)
        addresses = self.addresses(bundle, chosen)
        self.memory.check_updated(addresses)
        nothing, positions = np.zeros(len(addresses), np.int64), self.updates.positions
        own = np.array([positions[id(x)] for x in bundle.parameters])
        self.updates.noted.append(
            Noted(
                self.first + chosen.spread(self.own, bundle.size),
                nothing + self.visits,
                chosen.shifted(nothing, own),
                chosen.spread(self.lanes % self.n, bundle.size),
                nothing + chosen.spread(self.times, bundle.size),
                addresses,
                value.bits.astype(np.uint64),
            )
        )

    def load_matrices(self, bundle: Bundle, chosen: Chosen) -> None:
        """Execute ldmatrix."""
        self.whole(chosen, 32)
        n = len(bundle.targets)
        # Lanes 8i to 8i + 7 hold the addresses of the rows of matrix i.
        addresses = self.addresses(bundle, chosen)
        giving = np.flatnonzero(np.arange(len(addresses)) % 32 < 8 * n)
        by = self.by(bundle, chosen, everywhere=False).only(giving)
        data, defined = self.shared.load(addresses[giving], 16, by)
        transposed = "trans" in bundle.instruction.parts
        rows = data.view(np.uint16).reshape(-1, n, 8, 8)
        found = tensor_cores.loaded_matrices(rows, transposed)
        results = [defined_value(found[:, :, i].reshape(-1)) for i in range(n)]
        if defined is not None:
            whole = (defined.view(np.uint16) == 0xFFFF).reshape(-1, n, 8, 8)
            known = tensor_cores.loaded_matrices(whole, transposed) == 0x10001
            results = [
                _value(found[:, :, i].reshape(-1), known[:, :, i].reshape(-1))
                for i in range(n)
            ]
        self._write(bundle, results, chosen)

    def barrier(self, bundle: Bundle, chosen: Chosen) -> None:
        """Execute a barrier of blocks."""
        blocks = self.blocks(chosen)
        self.shared.meet(blocks)
        self.times[slice(None) if chosen.lanes is None else chosen.lanes] += 1

    def blocks(self, chosen: Chosen) -> np.ndarray | None:
        """Return the blocks whose threads execute an instruction together, or None for
        all. Raises Unsure if a thread of a block that has not returned is missing."""
        if chosen.rows is not None:
            raise Unsure
        if chosen.lanes is None:
            return None
        counts = np.bincount(self.own[chosen.lanes], minlength=self.count)
        left = np.bincount(
            self.own[self.at < len(self.program.code)], minlength=self.count
        )
        if ((counts > 0) & (counts != left)).any():
            raise Unsure
        return np.flatnonzero(counts)

    def copy(self, bundle: Bundle, chosen: Chosen) -> None:
        """Execute cp.async: start copies, close a group of them, or wait for groups."""
        how = bundle.instruction.parts[2]
        if how in ("ca", "cg"):
            self.copies.start(self, bundle, chosen)
            return
        if (
            self.whole(chosen, self.n) is not None
            and (self.at[chosen.lanes] == len(self.program.code)).any()
        ):
            raise Unsure
        blocks = self.blocks(chosen)
        if how == "commit_group":
            self.copies.close(blocks)
        else:
            left = 0
            if how == "wait_group":
                left = int(bundle.instruction.operands[0].text, 0)  # type: ignore[union-attr]
            self.copies.finish(self.shared, blocks, left, everything=how == "wait_all")


_OPERATIONS: dict[str, Callable[[Wave, Bundle, Chosen], None]] = {
    "ld": Wave.load,
    "st": Wave.store,
    "atom": Wave.update,
    "red": Wave.update,
    "ldmatrix": Wave.load_matrices,
    "bar": Wave.barrier,
    "barrier": Wave.barrier,
    "cp": Wave.copy,
}


class _Repeats:
    """Notices that a wave is in the same state at two branches backwards."""

    FIRST = 256  # branches without a check

    def __init__(self) -> None:
        self.branches = 0
        self.kept: dict[type, np.ndarray] = {}
        self.different: tuple[type, int] | None = None

    def check(self, now: Mapping[type, np.ndarray]) -> None:
        """Raise Unsure if no register has changed since an earlier branch."""
        self.branches += 1
        if self.branches < self.FIRST:
            return
        if self.kept and not self._differs(now):
            raise Unsure
        if self.branches & (self.branches - 1) == 0:
            self.kept = {kind: bits.copy() for kind, bits in now.items()}
            self.different = None

    def _differs(self, now: Mapping[type, np.ndarray]) -> bool:
        if self.different is not None:
            kind, at = self.different
            if not np.array_equal(self.kept[kind][at], now[kind][at]):
                return True
        for kind, bits in now.items():
            rows = np.flatnonzero((self.kept[kind] != bits).any(axis=1))
            if len(rows):
                self.different = kind, int(rows[0])
                return True
        return False


def _value(bits: np.ndarray, defined: np.ndarray) -> Value:
    """Return a value, given its bits and which are defined, or whether all are."""
    if defined.dtype == bool and bits.dtype != bool:
        kind = bits.dtype.type
        defined = np.where(defined, ~kind(0), kind(0))
    return Value(bits, defined)


def _parts(data: np.ndarray, each: int) -> np.ndarray:
    """Return elements as the values ``[n, k]`` of so many bytes each."""
    return data.view(UNSIGNED[8 * each]).reshape(len(data), -1)


def _joined(values: list[np.ndarray]) -> np.ndarray:
    """Return the elements ``[n]`` that consist of these values ``[n]``."""
    if len(values) == 1:
        return np.ascontiguousarray(values[0])
    found = np.stack(values, axis=1)
    return found.view(OF_SIZE[found[0].nbytes])[:, 0]
