"""Execute many blocks at once, as long as nothing happens that needs a judgement.

All threads of the blocks are one vector, and so are equal instructions: see
``bundles``. Memory checks that no access is a fault, that no two threads race, and that
no block accesses what another one writes. Then the order of the blocks does not matter,
and the result is the same as that of one block after another. Otherwise the execution
stops, memory is restored, and ``block`` executes the blocks and says what is wrong.

The updates of atomic instructions are noted, and applied at the end: see ``updates``. A
program that uses their results, or has calls, is left to ``block``.

Threads of a block may write different values to one place of shared memory in one
instruction: see ``conflicts``. If the values are far apart, the blocks execute again
beside float64, which says whether they differ by rounding alone: see ``wide_shadow``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from backpass.ptx.bundles import Plan, plan_of
from backpass.ptx.faults import Fault, Unsupported
from backpass.ptx.parse import Program
from backpass.ptx.rows import Unsure
from backpass.ptx.tensors import Global
from backpass.ptx.tracked import GlobalOfBlocks
from backpass.ptx.updates import Updates
from backpass.ptx.wave import Wave
from backpass.ptx.wide_shadow import judged

THREADS = 1 << 13  # at most so many threads at once, and at least one block
REGISTERS = 1 << 24  # of all threads at once, and words of local memory
FAILURES = 2  # after which a program is left to ``block``
UNSURE = "an access that may be a fault or a race"
PLANS = 64  # the plans of so many programs are kept

_plans: dict[tuple[int, bool], tuple[Program, Plan | str]] = {}


class Alone(Exception):
    """Why blocks execute one after another."""


def run(
    program: Program,
    parameters: Mapping[str, int],
    memory: Global,
    numbers: Sequence[int],
    *,
    blocks: tuple[int, int, int],
    shared: int,
    approximate: int | None,
    watch: Callable[[str], None] = lambda _: None,
) -> tuple[int, list[Fault]]:
    """Execute the blocks with these numbers. Return how many instructions they have
    executed, and their conflicts. Raises Alone, with memory as before, if ``block`` has
    to execute them."""
    plan = _plan(program)
    if isinstance(plan, str):
        raise Alone(plan)
    if plan.failures >= FAILURES:
        raise Alone(UNSURE)
    if len({*numbers}) < len(numbers):
        raise Alone("a block is listed twice")
    everything = _tracked(plan, program, parameters, memory)
    updates, found = Updates(program), list[Fault]()
    of_thread = sum(plan.rows.values()) + program.local // 4
    most = min(THREADS, REGISTERS // max(1, of_thread))
    each, steps = max(1, most // program.threads), 0
    try:
        for first in range(0, len(numbers), each):
            own = np.array(numbers[first : first + each])
            wave = Wave(program, plan, parameters, everything, own, blocks, shared)
            wave.approximate, wave.updates, wave.first = approximate, updates, first
            words = f"blocks {first + 1} to {first + len(own)} of {len(numbers)}"

            def report(count: int, words: str = words, before: int = steps) -> None:
                watch(f"{words}, {before + count:,} instructions")

            before = len(everything.log)
            steps += wave.run(report)
            conflicts = wave.conflicts.faults()
            if any(fault.apart for fault in conflicts):
                with everything.as_before(before):
                    tracked = _tracked(plan, program, parameters, memory)
                    tracked.traffic, ordered = None, _plan(program, ordered=True)
                    assert isinstance(ordered, Plan)
                    conflicts = judged(conflicts, wave, ordered, memory, tracked)
            found += conflicts
        updates.apply(memory, numbers)
    except (Unsure, Unsupported):
        everything.undo()
        plan.failures += 1
        raise Alone(UNSURE) from None
    return steps, found


def _tracked(
    plan: Plan, program: Program, parameters: Mapping[str, int], memory: Global
) -> GlobalOfBlocks:
    """Return the memory of blocks that execute together."""
    stored, updated = (
        {parameters[name] for name in names} for names in (plan.stored, plan.updated)
    )
    granule = plan.granules["global"]
    return GlobalOfBlocks(memory, stored, updated, granule, program.threads)


def _plan(program: Program, *, ordered: bool = False) -> Plan | str:
    key = id(program), ordered
    if key not in _plans:
        while len(_plans) >= PLANS:
            del _plans[next(iter(_plans))]
        _plans[key] = program, plan_of(program, ordered=ordered)
    return _plans[key][1]
