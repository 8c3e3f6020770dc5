"""What each instruction reads and writes, and in which order instructions have to
execute.

Operands are numbered: registers, and constants, which no instruction writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from backpass.ptx import computed, warps
from backpass.ptx.atomics import atomic
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
    Vector,
    targets_of,
    width_of,
)
from backpass.ptx.registers import kind_of, special_registers

BRANCHES = ("bra", "ret", "exit")
_SPACES = ("shared", "global", "local")
_SPECIAL = {*special_registers(32, 0, (1, 1, 1))}


class Step(NamedTuple):
    """An instruction, and the numbers of its operands."""

    instruction: Instruction
    space: str  # the memory that it accesses, or ""
    mode: str  # of the access: "load", "store", "update", "copy", or "fence"
    sources: tuple[int, ...]
    types: tuple[type, ...]  # as which it reads its sources
    targets: tuple[int | None, ...]
    guard: int | None
    offsets: tuple[int, ...]  # of addresses, which are its first sources
    more: tuple[Any, ...]  # a loaded parameter, a copy's size, or the instruction

    @property
    def reads(self) -> tuple[int, ...]:
        """The operands that it reads."""
        return self.sources if self.guard is None else (*self.sources, self.guard)


class Operands:
    """The operands of a program. ``kinds`` are NumPy's types of their registers, and
    ``constants`` the operands that no instruction writes, with the types as which they
    are read: numbers, names of variables, and special registers."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.kinds: list[type] = []
        self.constants: dict[int, tuple[Operand, str]] = {}
        self._numbers: dict[Any, int] = {}

    def number(self, operand: Operand, type: str = "") -> int:
        """Return the number of an operand that is read as a type, or of a register that
        is written. Raises Unsupported."""
        key = operand.name if isinstance(operand, Register) else (operand, type)
        if key not in self._numbers:
            self._numbers[key] = len(self.kinds)
            self.kinds.append(self._kind(operand, type))
            if not isinstance(operand, Register) or operand.name in _SPECIAL:
                self.constants[self._numbers[key]] = operand, type
        return self._numbers[key]

    def registers(self) -> Iterator[tuple[str, int]]:
        """Yield the name and the number of each register."""
        for key, number in self._numbers.items():
            if isinstance(key, str):
                yield key, number

    def _kind(self, operand: Operand, type: str) -> type:
        if not isinstance(operand, Register):
            return kind_of(type)
        if operand.name in _SPECIAL:
            if width_of(type) != 32:
                raise Unsupported(f"ptx: {operand.name} as {type}")
            return np.uint32
        width = self.program.widths.get(operand.name)
        if width is None:
            raise Unsupported(f"ptx: {operand.name}")
        return bool if width == 1 else kind_of(f"b{width}")

    def step(self, instruction: Instruction) -> Step:
        """Return what an instruction reads and writes. Raises Unsupported if only
        ``block`` executes it."""
        raw = _raw(instruction, self.program)
        guard = instruction.guard
        return Step(
            instruction,
            raw.space,
            raw.mode,
            tuple([self.number(x, type) for x, type in raw.sources]),
            tuple([kind_of(type) for _, type in raw.sources]),
            tuple([None if x is None else self.number(x) for x in raw.targets]),
            None if guard is None else self.number(guard, "pred"),
            raw.offsets,
            raw.more,
        )


class _Raw(NamedTuple):
    """A step before its operands are numbered."""

    space: str
    mode: str
    sources: tuple[tuple[Operand, str], ...] = ()
    targets: tuple[Register | None, ...] = ()
    offsets: tuple[int, ...] = ()
    more: tuple[Any, ...] = ()


def _raw(instruction: Instruction, program: Program) -> _Raw:
    own = _MEMORY.get(instruction.parts[0])
    if own is not None:
        return own(instruction, program)
    if not computed.is_computed(instruction):
        raise Unsupported(f"ptx: the instruction {instruction.name}")
    if instruction.parts[0] in ("shfl", "vote", "redux"):
        mask = instruction.operands[-1]
        if not isinstance(mask, Number) or int(mask.text, 0) % 2**32 != 2**32 - 1:
            raise Unsupported("ptx: a mask of threads")
    return _Raw("", "", *computed.form_of(instruction))


def _load(instruction: Instruction, program: Program) -> _Raw:
    space = _space(instruction)
    target, source = instruction.operands[:2]
    targets = tuple(targets_of(target))
    if space == "param":
        if len(targets) > 1:
            raise Unsupported("ptx: a vector of parameters")
        return _Raw("", "param", (), targets, (), (source,))
    base, offset = _address(source, program)
    return _Raw(space, "load", (base,), targets, (offset,))


def _store(instruction: Instruction, program: Program) -> _Raw:
    space = _space(instruction)
    if space == "param":
        raise Unsupported("ptx: a call")
    target, source = instruction.operands
    base, offset = _address(target, program)
    own = f"b{width_of(instruction.parts[-1])}"
    values = tuple((x, own) for x in targets_of(source))
    return _Raw(space, "store", (base, *values), (), (offset,), (instruction,))


def _matrices(instruction: Instruction, program: Program) -> _Raw:
    if instruction.parts[3] != "m8n8" or instruction.parts[-1] != "b16":
        raise Unsupported("ptx: ldmatrix")
    target, source = instruction.operands
    base, offset = _address(source, program)
    return _Raw("shared", "load", (base,), tuple(targets_of(target)), (offset,))


def _barrier(instruction: Instruction, program: Program) -> _Raw:
    for_all = warps.waits_for_all(instruction) and instruction.operands == (
        Number("0"),
    )
    if for_all or (instruction.name == "bar.warp.sync" and program.threads == 32):
        return _Raw("all", "fence")
    raise Unsupported("ptx: a barrier of some threads")


def _copy(instruction: Instruction, program: Program) -> _Raw:
    parts = instruction.parts
    if parts[1] == "async" and parts[2] in ("commit_group", "wait_group", "wait_all"):
        return _Raw("all", "fence")
    if parts[1] != "async" or parts[2] not in ("ca", "cg"):
        raise Unsupported("ptx: cp")
    to, of, size, *rest = instruction.operands
    if any(program.widths.get(getattr(x, "name", "")) == 1 for x in rest):
        raise Unsupported("ptx: a copy with a predicate")
    (into, first), (source, second) = _address(to, program), _address(of, program)
    sources = (into, source, *((x, "b32") for x in rest))
    return _Raw("shared", "copy", sources, (), (first, second), (size,))


def _update(instruction: Instruction, program: Program) -> _Raw:
    """Return the step of an atomic instruction whose result is not used."""
    own, operands = atomic(instruction.name), list(instruction.operands)
    if instruction.parts[0] == "atom":
        result = operands.pop(0)
        if getattr(result, "name", "_") in _used(program):
            raise Unsupported(f"ptx: the instruction {instruction.name}")
    if own.shared or len(operands) > 2:
        raise Unsupported(f"ptx: the instruction {instruction.name}")
    base, offset = _address(operands[0], program)
    value = operands[1], f"b{width_of(own.type)}"
    return _Raw("global", "update", (base, value), (), (offset,), (instruction,))


def _used(program: Program) -> set[str]:
    """Return the names of the registers that an instruction reads."""
    found: set[str] = set()
    for x in program.code:
        writes = x.parts[0] in ("ld", "atom", "ldmatrix") or computed.is_computed(x)
        for operand in x.operands[1:] if writes else x.operands:
            parts = operand.parts if isinstance(operand, Vector) else (operand,)
            found |= {str(getattr(of, "name", getattr(of, "base", ""))) for of in parts}
        found |= {x.guard.name} if x.guard else set()
    return found


_MEMORY = {
    "ld": _load,
    "st": _store,
    "atom": _update,
    "red": _update,
    "ldmatrix": _matrices,
    "bar": _barrier,
    "barrier": _barrier,
    "cp": _copy,
}


def _space(instruction: Instruction) -> str:
    space = space_of(instruction)
    return "global" if space == "const" else space


def _address(operand: Operand, program: Program) -> tuple[tuple[Operand, str], int]:
    """Return the base of an address, with its type, and the offset."""
    if not isinstance(operand, Address):
        raise Unsupported(f"ptx: expected an address; got {operand}")
    own = operand.base in program.widths
    base = Register(operand.base) if own else Label(operand.base)
    return (base, "b64"), operand.offset


def granule(step: Step) -> int:
    """Return the size of the parts of memory that an access treats alike, in bytes."""
    if step.mode == "copy":
        return int(step.more[0].text, 0)
    if step.instruction.parts[0] == "ldmatrix":
        return 16
    return width_of(step.instruction.parts[-1]) // 8


def _spaces(step: Step) -> tuple[str, ...]:
    """Return the memories whose accesses an instruction must not pass."""
    if step.mode in ("fence", "copy"):
        return ("shared", "global")
    return (step.space,) if step.space else ()


class _Levels:
    """Assigns a level to each instruction of a segment: those of lower levels execute
    before it. Stores without a load between them get the same level, as long as those
    that are alike, and form a bundle, follow one another."""

    def __init__(self) -> None:
        self.levels: list[int] = []
        self.wrote: dict[int, int] = {}  # the last level that wrote each register
        self.read: dict[int, int] = {}  # or read it
        self.floors = dict.fromkeys(_SPACES, 0)  # the least level of an access
        self.modes = dict.fromkeys(_SPACES, "")
        self.last = dict.fromkeys(_SPACES, -1)  # the highest level in this mode
        self.stores: dict[str, list[int]] = {space: [] for space in _SPACES}
        self.bundles: dict[str, list[Any]] = {space: [] for space in _SPACES}
        self.held: dict[int, str] = {}  # read by one of these stores

    def add(self, step: Step, alike: Any) -> None:
        """Assign a level to the next instruction. ``alike`` is what it has in common
        with those of its bundle."""
        spaces, sources = _spaces(step), step.reads
        targets = [x for x in step.targets if x is not None]
        for space in spaces:
            if self.modes[space] != step.mode or step.mode == "fence":
                self.close(space)
                self.modes[space] = step.mode
        if step.mode == "store":
            if alike in self.bundles[step.space][:-1]:
                self.close(step.space)
            if alike not in self.bundles[step.space]:
                self.bundles[step.space].append(alike)
        for register in targets:
            if register in self.held:  # the stores have to read it before
                self.close(self.held[register])
        before = [self.wrote.get(register, -1) for register in (*sources, *targets)]
        before += [self.read.get(register, -1) for register in targets]
        level = max([*before, *(self.floors[space] - 1 for space in spaces), -1]) + 1
        for register in sources:
            if self.read.get(register, -1) < level:
                self.read[register] = level
        for register in targets:
            self.wrote[register] = level
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
        self.stores[space], self.bundles[space] = [], []
        self.floors[space] = max(self.floors[space], last + 1)


def levels_of(steps: list[Step], alike: list[Any]) -> list[int]:
    """Return the level of each instruction of a segment. Instructions of one level form
    a bundle if they have the same ``alike``."""
    own = _Levels()
    for step, key in zip(steps, alike, strict=True):
        own.add(step, key)
    for space in own.floors:
        own.close(space)
    return own.levels
