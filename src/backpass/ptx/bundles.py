"""Divide a program into bundles: equal instructions that execute together.

The compiler unrolls loops, so a kernel consists of many equal instructions on different
registers. Between two branches, only registers and memory order instructions. So those
that are ready at the same time and have the same name form a bundle, which ``lockstep``
executes as one vector of all its instructions and all threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from backpass.ptx.faults import Unsupported
from backpass.ptx.parse import Instruction, Operand, Program, label_of
from backpass.ptx.steps import BRANCHES, Operands, Step, granule, levels_of

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
    parameters: tuple[Any, ...]  # that are loaded, a copy's size, or instructions

    @property
    def size(self) -> int:
        """The number of instructions."""
        return len(self.negated)

    def divided(self, most: int) -> Iterator[Bundle]:
        """Yield bundles of at most so many of the instructions."""
        if self.size <= most:
            yield self
            return
        for first in range(0, self.size, most):
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
    steps: int  # how many instructions it has, with the branch
    end: int  # the position after it
    branch: Instruction | None
    guard: Rows | None


@dataclass
class Plan:
    """What ``lockstep`` executes.

    ``rows`` counts the registers of each width, and ``registers`` has the row of each
    by its name. ``constants`` are the operands that no instruction writes, by their
    row: numbers, with their type, names of variables, and special registers. ``stored``
    names the parameters from which addresses of stores to global memory are computed,
    and ``updated`` those of atomic instructions.
    """

    segments: dict[int, Segment]
    rows: dict[type, int]
    registers: dict[str, Slot]
    constants: dict[Slot, tuple[Operand, str]]
    stored: frozenset[str]
    updated: frozenset[str]
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


def plan_of(program: Program, *, ordered: bool = False) -> Plan | str:
    """Return the plan of a program, or why only ``block`` can execute it. If it is
    ``ordered``, each instruction is a bundle, in the order of the program."""
    try:
        return _Planner(program, ordered).plan()
    except Unsupported as reason:
        return str(reason).removeprefix("ptx: ")


class _Planner:
    def __init__(self, program: Program, ordered: bool) -> None:
        self.program, self.operands = program, Operands(program)
        self.ordered = ordered
        self.steps = [
            None if x.parts[0] in BRANCHES else self.operands.step(x)
            for x in program.code
        ]
        self.guards = [
            None if x.guard is None else self.operands.number(x.guard, "pred")
            for x in program.code
        ]
        self.kinds = self.operands.kinds
        self.origins = _origins(filter(None, self.steps))
        self.rows = [-1] * len(self.kinds)
        self.counts: dict[type, int] = defaultdict(int)

    def plan(self) -> Plan:
        segments = {
            first: self._segment(first, last)
            for first, last in pairwise(self._starts())
        }
        stored: set[str] = set()
        updated: set[str] = set()
        granules = {"shared": 16, "global": 16}
        for step in filter(None, self.steps):
            if step.mode == "store" and step.space == "global":
                stored |= self.origins.get(step.sources[0], frozenset())
            if step.mode == "update":
                updated |= self.origins.get(step.sources[0], frozenset())
                continue
            for space in ("shared", "global") if step.mode == "copy" else (step.space,):
                if space in granules:
                    granules[space] = min(granules[space], granule(step))
        constants = {
            (self.kinds[i], self._row(i)): constant
            for i, constant in self.operands.constants.items()
        }
        if updated and any(x.name == "bar.warp.sync" for x in self.program.code):
            raise Unsupported("ptx: a barrier of a warp beside atomic instructions")
        registers = {
            name: (self.kinds[i], self._row(i)) for name, i in self.operands.registers()
        }
        written = frozenset(stored), frozenset(updated)
        counts = dict(self.counts)
        return Plan(segments, counts, registers, constants, *written, granules)

    def _starts(self) -> list[int]:
        """Return where segments start, and the end of the program."""
        code = self.program.code
        starts = {0, len(code)}
        for at, instruction in enumerate(code):
            if instruction.parts[0] in BRANCHES:
                starts.add(at + 1)
                if instruction.parts[0] == "bra":
                    starts.add(self.program.labels[label_of(instruction)])
        return sorted(starts)

    def _segment(self, first: int, last: int) -> Segment:
        branch, guard = None, None
        if self.steps[last - 1] is None:
            branch, own = self.program.code[last - 1], self.guards[last - 1]
            guard = None if own is None else self._rows([own])
        steps = [x for x in self.steps[first:last] if x is not None]
        alike = [self._alike(x) for x in steps]
        levels = [*range(len(steps))] if self.ordered else levels_of(steps, alike)
        bundles: dict[Any, list[Step]] = defaultdict(list)
        for step, *key in zip(steps, levels, alike, strict=True):
            bundles[tuple(key)].append(step)
        ordered = sorted(bundles, key=lambda key: key[0])
        made = tuple([self._bundle(bundles[key]) for key in ordered])
        return Segment(made, last - first, last, branch, guard)

    def _alike(self, step: Step) -> tuple[Any, ...]:
        """Return what the instructions of a bundle have in common."""
        kinds = self.kinds
        more: tuple[Any, ...] = ()
        if step.space == "global":
            more = (self.origins.get(step.sources[0]),)
        elif step.mode == "copy":
            more = step.more
        return (
            step.instruction.name,
            tuple([kinds[x] for x in step.sources]),
            tuple([None if x is None else kinds[x] for x in step.targets]),
            step.guard is None,
            more,
        )

    def _bundle(self, steps: list[Step]) -> Bundle:
        first = steps[0]
        targets = tuple(
            None if own[0] is None else self._rows(own)  # type: ignore[arg-type]
            for own in zip(*(x.targets for x in steps), strict=True)
        )
        of = zip(*(x.sources for x in steps), strict=True)
        return Bundle(
            first.instruction,
            first.space,
            tuple(map(Source, map(self._rows, of), first.types)),
            targets,
            np.array([x.offsets for x in steps], np.int64).T,
            None if first.guard is None else self._rows([x.guard for x in steps]),  # type: ignore[misc]
            np.array([x.instruction.negated for x in steps]),
            tuple([operand for x in steps for operand in x.more]),
        )

    def _rows(self, operands: Sequence[int]) -> Rows:
        kind = self.kinds[operands[0]]
        return Rows.of(kind, np.array([self._row(x) for x in operands]))

    def _row(self, operand: int) -> int:
        """Return the row of an operand, which is allocated at its first use."""
        if self.rows[operand] < 0:
            kind = self.kinds[operand]
            self.rows[operand] = self.counts[kind]
            self.counts[kind] += 1
        return self.rows[operand]


def _origins(steps: Iterable[Step]) -> dict[int, frozenset[str]]:
    """Return the parameters from which each register may be computed, without what
    loads return."""
    found: dict[int, frozenset[str]] = {}
    left = []
    for step in steps:
        if step.mode == "param" and step.targets[0] is not None:
            before = found.get(step.targets[0], frozenset())
            found[step.targets[0]] = before | {step.more[0].base}
        elif not step.space and step.sources:
            left.append(step)
    changed = True
    while changed:
        changed = False
        for step in left:
            own = frozenset().union(*[found[x] for x in step.sources if x in found])
            for register in step.targets if own else ():
                if register is not None and not own <= found.get(register, frozenset()):
                    found[register] = own | found.get(register, frozenset())
                    changed = True
    return found
