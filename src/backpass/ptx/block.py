"""A block of threads that executes a kernel. All threads are one vector.

Each thread has its own program counter. The block next executes the instruction with
the smallest counter, for the threads that are at this instruction. Threads further
ahead wait, so the threads meet again after a branch or a loop. At a barrier, threads
wait for all threads of the block that have not returned. At an instruction that a warp
executes together, they wait for the rest of the warp.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from backpass.ptx import (
    calls,
    computed,
    copies,
    mbarriers,
    moves,
    proxy,
    tensor_maps,
    warpgroups,
    warps,
)
from backpass.ptx.faults import Barrier, Undefined
from backpass.ptx.parse import Instruction, label_of, unsupported
from backpass.ptx.threads import Threads
from backpass.ptx.values import Value
from backpass.ptx.warps import TOGETHER, check_together, waits_for_all

_BRANCHES = ("bra", "ret", "exit")
LIMIT = 5_000_000  # instructions; a block that executes more is assumed not to end


class State(NamedTuple):
    """The state of a block: how often its memory has changed, where its threads are and
    which of them wait, and its registers."""

    changes: int
    at: np.ndarray
    waiting: np.ndarray
    registers: dict[str, Value]


class Block:
    """A block of these threads, at the beginning of the kernel."""

    def __init__(self, threads: Threads) -> None:
        self.threads = threads
        self.kept: State | None = None  # at a branch backwards
        self.branches, self.different = 0, ""  # how many, and what differed last
        self.steps = 0

    def run(self) -> None:
        """Execute the kernel until all threads have returned. Raises a Fault."""
        threads, n = self.threads, len(self.threads.numbers)
        code, end = threads.program.code, len(threads.program.code)
        execute = _execute
        if (shadow := threads.shadow) is not None:
            shadow.begin(threads)
            execute = partial(shadow.execute, run=_execute)
        at, waiting = np.zeros(n, np.int64), np.zeros(n, bool)
        everyone = np.ones(n, bool)
        here, together = 0, True  # whether all threads are at `here`, and none waits
        while True:
            if together:
                if here >= end:
                    return
                threads.left = active = everyone
            else:
                if not (left := at < end).any():
                    return
                threads.left = left
                here = self._next(at, waiting)
                active = at == here
            instruction = code[here]
            self.steps += 1
            if self.steps > LIMIT:
                what = f"does not end within {LIMIT:,} instructions"
                raise threads.fault(Barrier, what, active)
            threads.place = instruction.place
            operation = instruction.parts[0]
            if operation in TOGETHER:
                check_together(threads, instruction, active)
                if not together:
                    complete = _complete(threads, instruction, active)
                    waiting = (waiting & ~active) | (active & ~complete)
                    active = complete
                    if not active.any():
                        continue
            chosen = active
            if instruction.guard is not None:
                chosen = active & _guard(threads, instruction, active, here)
            if threads.guards is not None:
                _check_lost(threads, operation, chosen)
            if operation in _BRANCHES:
                target = end
                if operation == "bra":
                    target = threads.program.labels[label_of(instruction)]
                at[active] = here + 1
                at[chosen] = target
                if target <= here and chosen.any():
                    self._check_repeats(at, waiting, chosen)
                here = int(at[0])
                together = bool((at == here).all()) and not waiting.any()
                continue
            if chosen is everyone or chosen.any():
                execute(threads, instruction, chosen)
            if together:
                here += 1
            else:
                at[active] = here + 1

    def _next(self, at: np.ndarray, waiting: np.ndarray) -> int:
        """Return the instruction to execute next: the first at which threads are that
        do not wait. Raises Barrier if all wait for threads that do not arrive."""
        threads = self.threads
        left, code = threads.left, threads.program.code
        ready = left & ~waiting
        if not ready.any() and waits_for_all(code[at[left][0]]):
            # Threads for which the others waited may have returned.
            ready = left & (at[left] == at[left][0]).all()
        if not ready.any():
            missing = int(np.argmax(~left if not left.all() else at != at[0]))
            what = f"waits for thread {missing}, which does not arrive"
            raise threads.fault(Barrier, what, waiting)
        return int(at[ready].min())

    def _check_repeats(
        self, at: np.ndarray, waiting: np.ndarray, chosen: np.ndarray
    ) -> None:
        """Raise Barrier if the block was in the same state at an earlier branch
        backwards. The state that is kept for this is replaced after 1, 2, 4, …
        branches."""
        self.branches += 1
        values = self.threads.registers.values
        changes = self.threads.memory.changes + self.threads.shared.changes
        if self.kept is not None and self.kept.changes == changes:
            kept = self.kept
            names = (
                [self.different, *kept.registers] if self.different else kept.registers
            )
            other = (x for x in names if not _same(kept.registers[x], values[x]))
            self.different = next(other, "")
            if (
                not self.different
                and len(kept.registers) == len(values)
                and np.array_equal(kept.at, at)
                and np.array_equal(kept.waiting, waiting)
            ):
                what = self.threads.proxy.waits_for or (
                    "repeats a loop in which nothing changes: it does not end, or waits "
                    "for another block, but blocks run to completion one after another "
                    "here"
                )
                raise self.threads.fault(Barrier, what, chosen)
        if self.branches & (self.branches - 1) == 0:
            self.kept = State(changes, at.copy(), waiting.copy(), {**values})
            self.different = ""


def _complete(
    threads: Threads, instruction: Instruction, active: np.ndarray
) -> np.ndarray:
    """Return the active threads whose whole warp is active. At a barrier, all
    threads that have not returned must be active."""
    if waits_for_all(instruction):
        return active & (active == threads.left).all()
    size = 128 if instruction.parts[0] == "wgmma" else 32
    if len(active) % size:
        return active
    whole = (active | ~threads.left).reshape(-1, size).all(axis=1)
    return active & np.repeat(whole, size)


def _guard(
    threads: Threads, instruction: Instruction, active: np.ndarray, here: int
) -> np.ndarray:
    """Return for which threads the guard of an instruction is true."""
    assert instruction.guard is not None
    value = threads.read(instruction.guard, "pred")
    bits, labels = value.bits, threads.program.labels
    repeats = instruction.parts[0] == "bra" and labels[label_of(instruction)] <= here
    if threads.guards is None or repeats:
        what = f"uses an uninitialised predicate ({instruction.guard.name})"
        threads.check(value, active, what)
    else:
        threads.lost |= active & ~value.whole
        bits = np.where(value.whole, bits, threads.guards ^ instruction.negated)
    return ~bits if instruction.negated else bits


def _check_lost(threads: Threads, operation: str, chosen: np.ndarray) -> None:
    """Raise Undefined if threads with an undefined guard do what others can see."""
    if operation not in _UNSEEN and not computed.is_of_threads(operation):
        if (bad := chosen & threads.lost).any():
            what = "does this, or does not, depending on an undefined value"
            raise threads.fault(Undefined, what, bad)


def _execute(threads: Threads, instruction: Instruction, chosen: np.ndarray) -> None:
    operation = instruction.parts[0]
    if threads.products.flying:
        threads.products.check(threads, instruction, chosen)
    special = _MEMORY.get(operation)
    if special is not None:
        special(threads, instruction, chosen)
        return
    if not computed.is_computed(instruction):
        raise unsupported(instruction)
    if operation in computed.OF_WARPS:
        warps.exchange(threads, chosen, f"{operation}.sync")
    form = computed.form_of(instruction)
    values = [threads.read(x, type) for x, type in form.sources]
    bits = [value.bits for value in values]
    results = computed.compute(instruction, bits, threads.approximate)
    defined = computed.known_results(instruction, values)
    for register, own, mask in zip(form.targets, results, defined, strict=False):
        if register is not None:
            threads.write(register, own, mask, chosen)


_UNSEEN = (*_BRANCHES, "ld")  # by other threads
_MEMORY: dict[str, Callable[[Threads, Instruction, np.ndarray], None]] = {
    "ld": moves.load,
    "st": moves.store,
    "atom": moves.atomic,
    "red": moves.atomic,
    "bar": warps.barrier,
    "barrier": warps.barrier,
    "ldmatrix": warps.load_matrices,
    "stmatrix": warps.store_matrices,
    "cp": copies.copy,
    "elect": warps.elect,
    "fence": proxy.fence,
    "mbarrier": mbarriers.mbarrier,
    "setmaxnreg": warps.specialise,
    "tensormap": tensor_maps.tensormap,
    "wgmma": warpgroups.warpgroup,
    "call": calls.call,
}


def _same(one: Value, other: Value) -> bool:
    return one is other or (
        np.array_equal(one.bits, other.bits)
        and np.array_equal(one.defined, other.defined)
    )
