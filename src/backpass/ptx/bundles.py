"""Divide a program into bundles: equal instructions that execute together.

The compiler unrolls loops, so a kernel consists of many equal instructions on different
registers. Between two branches, only registers and memory order instructions. So those
that are ready at the same time and have the same name form a bundle, which ``lockstep``
executes as one vector of all its instructions and all threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from backpass.ptx import computed, warps
from backpass.ptx.faults import Unsupported
from backpass.ptx.moves import space_of
from backpass.ptx.parse import (
    Address,
    Instruction,
    Label,
    Number,
    Operand,
    Program,
    Register,
    label_of,
    targets_of,
    width_of,
)
from backpass.ptx.registers import kind_of

_BRANCHES = ("bra", "ret", "exit")
_SPECIAL = ("%tid.", "%ntid.", "%ctaid.", "%nctaid.", "%laneid", "%warpid", "%lanemask")
Slot = tuple[type, int]  # a row of the registers of one width


class Rows(NamedTuple):
    """A register of each instruction of a bundle: all have the same width. If their
    rows follow one another, ``range`` selects them too."""

    kind: type
    at: np.ndarray  # [instructions]
    range: slice | None

    @classmethod
    def of(cls, kind: type, at: np.ndarray) -> Rows:
        """Return the rows with these numbers."""
        first, n = int(at[0]), len(at)
        follow = np.array_equal(at, np.arange(first, first + n))
        return cls(kind, at, slice(first, first + n) if follow else None)


class Source(NamedTuple):
    """An operand of each instruction of a bundle, and NumPy's type of its type."""

    rows: Rows
    kind: type


class Bundle(NamedTuple):
    """Instructions that differ only in their registers and in the offsets of their
    addresses. ``instruction`` is the first."""

    instruction: Instruction
    space: str  # the memory that they access, or ""
    sources: tuple[Source, ...]
    targets: tuple[Rows | None, ...]
    offsets: np.ndarray  # [addresses, instructions]
    guard: Rows | None
    negated: np.ndarray  # [instructions]
    parameters: tuple[Any, ...]  # of loads of parameters, or the size of a copy

    @property
    def count(self) -> int:
        """The number of instructions."""
        return len(self.negated)

    def divided(self, most: int) -> Iterator[Bundle]:
        """Yield bundles of at most so many of the instructions."""
        if self.count <= most:
            yield self
            return
        for first in range(0, self.count, most):
            own = slice(first, first + most)

            def cut(rows: Rows, own: slice = own) -> Rows:
                return Rows.of(rows.kind, rows.at[own])

            yield self._replace(
                sources=tuple(x._replace(rows=cut(x.rows)) for x in self.sources),
                targets=tuple(x and cut(x) for x in self.targets),
                offsets=self.offsets[:, own],
                guard=self.guard and cut(self.guard),
                negated=self.negated[own],
                parameters=self.parameters[own],
            )


class Segment(NamedTuple):
    """The instructions from a branch or its target to the next branch, which ends the
    segment if there is one."""

    bundles: tuple[Bundle, ...]
    count: int  # of the instructions, with the branch
    end: int  # the position after it
    branch: Instruction | None
    guard: Rows | None


@dataclass
class Plan:
    """What ``lockstep`` executes.

    ``rows`` counts the registers of each width. ``constants`` are the operands that no
    instruction writes, by their row: numbers, with their type, names of variables, and
    special registers. ``stored`` names the parameters from which addresses of stores to
    global memory are computed.
    """

    segments: dict[int, Segment]
    rows: dict[type, int]
    constants: dict[Slot, tuple[Operand, str]]
    stored: frozenset[str]
    granules: dict[str, int]  # the size of the shortest access, by memory
    failures: int = 0  # how often `lockstep` gave up
    divided: dict[int, dict[int, Segment]] = field(default_factory=dict)

    def of_size(self, most: int) -> dict[int, Segment]:
        """Return the segments, in bundles of at most so many instructions."""
        if most not in self.divided:
            self.divided[most] = {
                start: segment._replace(
                    bundles=tuple(
                        part for x in segment.bundles for part in x.divided(most)
                    )
                )
                for start, segment in self.segments.items()
            }
        return self.divided[most]


def plan_of(program: Program) -> Plan | None:
    """Return the plan of a program, or None if it has an instruction that only
    ``block`` executes."""
    try:
        return _Planner(program).plan()
    except Unsupported:
        return None


class _Step(NamedTuple):
    """An instruction, what it reads and writes, and the parameters from which the
    addresses of its first operand and its space follow."""

    instruction: Instruction
    space: str
    mode: str  # of the access: "load", "store", "copy", or "fence"
    sources: tuple[tuple[Operand, str], ...]
    targets: tuple[Register | None, ...]
    offsets: tuple[int, ...]
    more: tuple[Any, ...]  # the parameter of a load, or the size of a copy


class _Planner:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.steps = [
            None if x.parts[0] in _BRANCHES else _step_of(x, program)
            for x in program.code
        ]
        self.origins = self._origins()
        self.slots: dict[Any, Slot] = {}
        self.counts: dict[type, int] = defaultdict(int)
        self.constants: dict[Slot, tuple[Operand, str]] = {}

    def plan(self) -> Plan:
        code, end = self.program.code, len(self.program.code)
        starts = {0, end}
        for at, instruction in enumerate(code):
            if instruction.parts[0] in _BRANCHES:
                starts.add(at + 1)
                if instruction.parts[0] == "bra":
                    starts.add(self.program.labels[label_of(instruction)])
        ordered = sorted(starts)
        segments = {
            first: self._segment(first, last) for first, last in pairwise(ordered)
        }
        stored: set[str] = set()
        granules = {"shared": 16, "global": 16}
        for step in self.steps:
            if step is not None and step.space in granules:
                if step.mode == "store" and step.space == "global":
                    stored |= self._origin(step.sources[0][0])
                own = _granule(step)
                granules[step.space] = min(granules[step.space], own)
                if step.mode == "copy":
                    granules["global"] = min(granules["global"], own)
        return Plan(
            segments, dict(self.counts), self.constants, frozenset(stored), granules
        )

    def _segment(self, first: int, last: int) -> Segment:
        code = self.program.code
        branch = code[last - 1] if code[last - 1].parts[0] in _BRANCHES else None
        steps = self.steps[first : last - (branch is not None)]
        bundles: dict[Any, list[_Step]] = defaultdict(list)
        for step, level in zip(steps, _levels(steps), strict=True):
            assert step is not None
            bundles[level, self._alike(step)].append(step)
        ordered = sorted(bundles.items(), key=lambda item: item[0][0])
        guard = None
        made = tuple(self._bundle(own) for _, own in ordered)
        if branch is not None and branch.guard is not None:
            guard = self._rows([(branch.guard, "pred")])
        return Segment(made, last - first, last, branch, guard)

    def _alike(self, step: _Step) -> tuple[Any, ...]:
        """Return what the instructions of a bundle have in common."""
        kinds = tuple(self._kind(x, type) for x, type in step.sources)
        targets = tuple(x and self._kind(x, "") for x in step.targets)
        own = (self._origin(step.sources[0][0]),) if step.space == "global" else ()
        guarded = step.instruction.guard is not None
        more = step.more if step.mode == "copy" else ()
        return (step.instruction.name, kinds, targets, guarded, own, more)

    def _bundle(self, steps: list[_Step]) -> Bundle:
        first = steps[0]
        targets = tuple(
            None
            if register is None
            else self._rows([(x.targets[i], "") for x in steps])
            for i, register in enumerate(first.targets)
        )
        sources = tuple(
            Source(self._rows([x.sources[i] for x in steps]), kind_of(type))
            for i, (_, type) in enumerate(first.sources)
        )
        guard = None
        if first.instruction.guard is not None:
            guard = self._rows([(x.instruction.guard, "pred") for x in steps])
        offsets = np.array([x.offsets for x in steps], np.int64).T
        negated = np.array([x.instruction.negated for x in steps])
        return Bundle(
            first.instruction,
            first.space,
            sources,
            targets,
            offsets,
            guard,
            negated,
            tuple(operand for x in steps for operand in x.more),
        )

    def _rows(self, operands: list[tuple[Any, str]]) -> Rows:
        slots = [self._slot(x, type) for x, type in operands]
        return Rows.of(slots[0][0], np.array([at for _, at in slots]))

    def _kind(self, operand: Operand, type: str) -> type:
        if not isinstance(operand, Register):
            return kind_of(type)
        if operand.name.startswith(_SPECIAL):
            if width_of(type) != 32:
                raise Unsupported(f"ptx: {operand.name} as {type}")
            return np.uint32
        width = self.program.widths.get(operand.name)
        if width is None:
            raise Unsupported(f"ptx: {operand.name}")
        return bool if width == 1 else kind_of(f"b{width}")

    def _slot(self, operand: Any, type: str) -> Slot:
        """Return the row of an operand, which is allocated at its first use."""
        own = isinstance(operand, Register)
        key = operand if own else (operand, type)
        if key not in self.slots:
            kind = self._kind(operand, type)
            slot = self.slots[key] = kind, self.counts[kind]
            self.counts[kind] += 1
            if not own or operand.name.startswith(_SPECIAL):
                self.constants[slot] = operand, type
        return self.slots[key]

    def _origin(self, operand: Operand) -> frozenset[str]:
        name = operand.name if isinstance(operand, Register) else None
        return self.origins.get(name, frozenset())

    def _origins(self) -> dict[str | None, frozenset[str]]:
        """Return the parameters from which each register may be computed, without what
        loads return."""
        found: dict[str | None, frozenset[str]] = {}
        changed = True
        while changed:
            changed = False
            for step in filter(None, self.steps):
                if step.mode == "param":
                    own = frozenset((step.more[0].base,))
                elif step.space:
                    continue
                else:
                    names = (x.name for x, _ in step.sources if isinstance(x, Register))
                    own = frozenset().union(*(found.get(x, ()) for x in names))
                for register in step.targets if own else ():
                    before = found.get(register and register.name, frozenset())
                    if register is not None and not own <= before:
                        found[register.name] = before | own
                        changed = True
        return found


def _step_of(instruction: Instruction, program: Program) -> _Step:
    """Return what an instruction reads and writes. Raises Unsupported if only ``block``
    executes it."""
    parts = instruction.parts
    if computed.is_computed(instruction):
        if parts[0] in ("shfl", "vote", "redux"):
            mask = instruction.operands[-1]
            if not isinstance(mask, Number) or int(mask.text, 0) % 2**32 != 2**32 - 1:
                raise Unsupported("ptx: a mask of threads")
        form = computed.form_of(instruction)
        return _Step(instruction, "", "", form.sources, form.targets, (), ())
    own = _MEMORY.get(parts[0])
    if own is None:
        raise Unsupported(f"ptx: {instruction.name} in lockstep")
    return own(instruction, program)


def _load(instruction: Instruction, program: Program) -> _Step:
    space = _space(instruction)
    target, source = instruction.operands[:2]
    targets = tuple(targets_of(target))
    if space == "param":
        if len(targets) > 1:
            raise Unsupported("ptx: a vector of parameters")
        return _Step(instruction, "", "param", (), targets, (), (source,))
    base, offset = _address(source, program)
    return _Step(instruction, space, "load", (base,), targets, (offset,), ())


def _store(instruction: Instruction, program: Program) -> _Step:
    space = _space(instruction)
    if space == "param":
        raise Unsupported("ptx: a call")
    target, source = instruction.operands
    base, offset = _address(target, program)
    own = f"b{width_of(instruction.parts[-1])}"
    values = tuple((x, own) for x in targets_of(source))
    return _Step(instruction, space, "store", (base, *values), (), (offset,), ())


def _matrices(instruction: Instruction, program: Program) -> _Step:
    parts = instruction.parts
    if parts[3] != "m8n8" or parts[-1] != "b16":
        raise Unsupported("ptx: ldmatrix")
    target, source = instruction.operands
    base, offset = _address(source, program)
    targets = tuple(targets_of(target))
    return _Step(instruction, "shared", "load", (base,), targets, (offset,), ())


def _barrier(instruction: Instruction, program: Program) -> _Step:
    for_all = warps.waits_for_all(instruction) and instruction.operands == (
        Number("0"),
    )
    if for_all or (instruction.name == "bar.warp.sync" and program.threads == 32):
        return _Step(instruction, "all", "fence", (), (), (), ())
    raise Unsupported("ptx: a barrier of some threads")


def _copy(instruction: Instruction, program: Program) -> _Step:
    parts = instruction.parts
    if parts[1] == "async" and parts[2] in ("commit_group", "wait_group", "wait_all"):
        return _Step(instruction, "all", "fence", (), (), (), ())
    if parts[1] != "async" or parts[2] not in ("ca", "cg"):
        raise Unsupported("ptx: cp")
    to, of, size, *rest = instruction.operands
    (into, first), (source, second) = _address(to, program), _address(of, program)
    lengths = tuple((x, "b32") for x in rest)
    if any(program.widths.get(getattr(x, "name", "")) == 1 for x in rest):
        raise Unsupported("ptx: a copy with a predicate")
    return _Step(
        instruction,
        "shared",
        "copy",
        (into, source, *lengths),
        (),
        (first, second),
        (size,),
    )


_MEMORY = {
    "ld": _load,
    "st": _store,
    "ldmatrix": _matrices,
    "bar": _barrier,
    "barrier": _barrier,
    "cp": _copy,
}


def _space(instruction: Instruction) -> str:
    space = space_of(instruction)
    if space == "local":
        raise Unsupported("ptx: local memory")
    return "global" if space == "const" else space


def _address(operand: Operand, program: Program) -> tuple[tuple[Operand, str], int]:
    """Return the base of an address, with its type, and the offset."""
    if not isinstance(operand, Address):
        raise Unsupported(f"ptx: expected an address; got {operand}")
    own = operand.base in program.widths
    base = Register(operand.base) if own else Label(operand.base)
    return (base, "b64"), operand.offset


def _granule(step: _Step) -> int:
    """Return the size of the parts of memory that an access treats alike, in bytes."""
    if step.mode == "copy":
        return int(step.more[0].text, 0)
    if step.instruction.parts[0] == "ldmatrix":
        return 16
    return width_of(step.instruction.parts[-1]) // 8


def _registers(step: _Step) -> list[Register]:
    """Return the registers that an instruction reads."""
    found = [x for x, _ in step.sources if isinstance(x, Register)]
    return [*found, step.instruction.guard] if step.instruction.guard else found


def _spaces(step: _Step) -> tuple[str, ...]:
    """Return the memories whose accesses an instruction must not pass."""
    if step.mode in ("fence", "copy"):
        return ("shared", "global")
    return (step.space,) if step.space else ()


class _Levels:
    """Assigns a level to each instruction of a segment: those of lower levels execute
    before it. Stores without a load between them get the same level."""

    def __init__(self) -> None:
        self.levels: list[int] = []
        self.wrote: dict[Register, int] = {}  # the last level that wrote each register
        self.read: dict[Register, int] = {}  # or read it
        self.floors = {"shared": 0, "global": 0}  # the least level of an access
        self.modes = {"shared": "", "global": ""}
        self.last = {"shared": -1, "global": -1}  # the highest level in this mode
        self.stores: dict[str, list[int]] = {"shared": [], "global": []}
        self.held: dict[Register, str] = {}  # read by one of these stores

    def add(self, step: _Step) -> None:
        """Assign a level to the next instruction."""
        spaces, sources = _spaces(step), _registers(step)
        targets = [x for x in step.targets if x is not None]
        for space in spaces:
            if self.modes[space] != step.mode or step.mode == "fence":
                self.close(space)
                self.modes[space] = step.mode
        for register in targets:
            if register in self.held:  # the stores have to read it before
                self.close(self.held[register])
        level = max((self.floors[space] for space in spaces), default=0)
        for register in (*sources, *targets):
            level = max(level, self.wrote.get(register, -1) + 1)
        for register in targets:
            level = max(level, self.read.get(register, -1) + 1)
            self.wrote[register] = level
        for register in sources:
            self.read[register] = max(self.read.get(register, -1), level)
        for space in spaces:
            self.last[space] = max(self.last[space], level)
        if step.mode == "store":
            self.stores[step.space].append(len(self.levels))
            self.held |= dict.fromkeys(sources, step.space)
        self.levels.append(level)

    def close(self, space: str) -> None:
        """End a series of accesses in one mode: later ones have higher levels."""
        last = self.last[space]
        for i in self.stores[space]:
            self.levels[i] = last
        for register in [x for x, of in self.held.items() if of == space]:
            self.read[register] = max(self.read.get(register, -1), last)
            del self.held[register]
        self.stores[space] = []
        self.floors[space] = max(self.floors[space], last + 1)


def _levels(steps: list[_Step | None]) -> list[int]:
    own = _Levels()
    for step in steps:
        assert step is not None
        own.add(step)
    for space in own.floors:
        own.close(space)
    return own.levels
