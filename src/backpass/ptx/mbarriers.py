"""mbarrier objects: barriers in shared memory that count arrivals and copied bytes.

A phase of an mbarrier is complete when the expected number of threads have arrived, and
as many bytes have been copied as the arrivals have announced. Threads wait for a phase
by its parity. Here, bulk copies are complete at once, but a thread may access what they
have written only after it has waited for their phase. PTX ISA 8.7, chapter 9.7.13.15.
"""

from __future__ import annotations

import numpy as np

from backpass.ptx.faults import Barrier, Fault
from backpass.ptx.memory import size_of
from backpass.ptx.parse import Instruction, Operand, unsupported
from backpass.ptx.proxy import Arrival, MBarrier
from backpass.ptx.races import Who
from backpass.ptx.threads import Threads

BYTES = 8


def mbarrier(threads: Threads, instruction: Instruction, chosen: np.ndarray) -> None:
    """Execute an instruction of mbarrier."""
    own = _OPERATIONS.get(_operation(instruction))
    if own is None:
        raise unsupported(instruction)
    own(threads, instruction, chosen)


def _operation(instruction: Instruction) -> str:
    parts = [x for x in instruction.parts[1:-1] if x not in ("shared", "shared::cta")]
    scopes = ("release", "acquire", "cta")  # the defaults
    parts = [x for x in parts if x not in scopes]
    return ".".join(parts) if instruction.parts[-1] == "b64" else ""


def _place(
    threads: Threads, operand: Operand, chosen: np.ndarray
) -> tuple[np.ndarray, Who]:
    """Return the indices ``[n, 8]`` of the mbarrier of each thread."""
    who = threads.who(chosen)
    addresses = threads.addresses(operand, chosen)
    return threads.shared.indices(addresses, BYTES, who, "uses an mbarrier of"), who


def found(threads: Threads, at: np.ndarray, who: Who) -> list[MBarrier]:
    """Return the mbarriers at the indices ``at[n, 8]``. Raises a fault."""
    addresses = at[:, 0].tolist()
    missing = np.array([x not in threads.proxy.mbarriers for x in addresses])
    if missing.any():
        where = addresses[int(np.argmax(missing))]
        what = f"uses shared memory + {where} as an mbarrier, which is not initialised"
        raise who.fault(Fault, what, missing)
    shared = threads.shared
    wrote = shared.writes.at_once(at, who)
    shared.check_race(at, wrote, shared.writes, who, "uses")
    shared.updates.record(at, who, shared.updates.at_once(at, who))
    return [threads.proxy.mbarriers[x] for x in addresses]


def _init(threads: Threads, instruction: Instruction, chosen: np.ndarray) -> None:
    at, who = _place(threads, instruction.operands[0], chosen)
    count = threads.read(instruction.operands[1], "b32")
    threads.check(count, chosen, "initialises an mbarrier with an undefined count")
    shared = threads.shared
    shared.check_awaited(at, who)  # also that it is not an mbarrier
    at_once = shared.check_write(at, None, who)
    for address, n in zip(at[:, 0].tolist(), count.bits[chosen].tolist(), strict=True):
        if not 1 <= n < 1 << 20:
            what = f"initialises an mbarrier with a count of {n}"
            raise threads.fault(Fault, what, chosen)
        threads.proxy.mbarriers[address] = MBarrier(n, n)
    shared.writes.record(at, who, at_once)
    threads.proxy.barriers[at] = True
    shared.changes += 1


def _inval(threads: Threads, instruction: Instruction, chosen: np.ndarray) -> None:
    at, who = _place(threads, instruction.operands[0], chosen)
    shared = threads.shared
    used = shared.updates.at_once(at, who)
    shared.check_race(at, used, shared.updates, who, "invalidates")
    found(threads, at, who)
    for address in at[:, 0].tolist():
        threads.proxy.mbarriers.pop(address, None)
    shared.writes.record(at, who, shared.writes.at_once(at, who))
    threads.proxy.barriers[at] = False
    shared.changes += 1


def _arrive(threads: Threads, instruction: Instruction, chosen: np.ndarray) -> None:
    """Announce bytes that copies will write, and arrive."""
    operands = list(instruction.operands)
    if _operation(instruction) == "arrive.expect_tx":
        operands = operands[1:]  # without the state, which must be a sink
        if str(getattr(instruction.operands[0], "name", "")) != "_":
            raise unsupported(instruction)
    at, who = _place(threads, operands[0], chosen)
    size = threads.read(operands[1], "b32")
    threads.check(size, chosen, "expects an undefined number of bytes")
    counts = size.bits[chosen].tolist()
    for own, n in zip(found(threads, at, who), counts, strict=True):
        own.bytes += n
        if _operation(instruction) == "arrive.expect_tx":
            if own.missing == 0:
                what = "arrives at an mbarrier more often than its count"
                raise threads.fault(Barrier, what, chosen)
            own.missing -= 1
        own.advance()
    threads.shared.changes += 1


def complete(
    threads: Threads, operand: Operand, arrival: Arrival, count: int, one: np.ndarray
) -> None:
    """Count the bytes of a copy at its mbarrier. Raises a fault."""
    at, who = _place(threads, operand, one)
    (own,) = found(threads, at, who)
    own.copies.append((own.phase, arrival))
    own.bytes -= count
    if own.missing == 0 and own.bytes < 0:
        what = f"copies {size_of(-own.bytes)} more than its mbarrier expects"
        raise threads.fault(Fault, what, one)
    own.advance()


def _wait(threads: Threads, instruction: Instruction, chosen: np.ndarray) -> None:
    """Return whether the phase with a parity is complete."""
    target, operand, *rest = instruction.operands
    if not rest:
        raise unsupported(instruction)
    at, who = _place(threads, operand, chosen)
    parity = threads.read(rest[0], "b32")
    threads.check(parity, chosen, "waits for an undefined parity")
    wanted = parity.bits[chosen]
    if (wanted > 1).any():
        raise threads.fault(Fault, "waits for a parity other than 0 and 1", chosen)
    barriers = found(threads, at, who)
    done = np.array([x.phase & 1 for x in barriers], np.uint32) != wanted
    threads.proxy.waits_for = ""
    for address in np.unique(at[:, 0]):
        own, rows = threads.proxy.mbarriers[int(address)], at[:, 0] == address
        if not done[rows].all():
            parity_of_first = int(wanted[rows & ~done][0])
            threads.proxy.waits_for = _missing(own, int(address), parity_of_first)
        done[rows] &= _see(threads, own, who.threads[rows], done[rows])
    threads.write_chosen(target, done, np.ones(len(done), bool), chosen)


def _see(
    threads: Threads, own: MBarrier, of: np.ndarray, done: np.ndarray
) -> np.ndarray:
    """Let the threads of which the phase is ``done`` see its copies, and return which
    do. A copy takes time, so a thread that asks for the first time does not."""
    left, ready = [], done.copy()
    for phase, arrival in own.copies:
        if phase < own.phase:
            first = done & ~arrival.asked[of]
            arrival.asked[of[first]] = True
            threads.shared.changes += int(first.any())
            ready &= ~first
            for addresses, length in arrival.sources if ready.any() else ():
                threads.memory.mark_copied(addresses, length, 0)
            arrival.seen[of[ready]] = True
        if not arrival.seen.all():
            left.append((phase, arrival))
    own.copies = left
    return ready


def _missing(own: MBarrier, address: int, parity: int) -> str:
    what = []
    if own.missing:
        what.append(f"{own.missing} arrival{'' if own.missing == 1 else 's'}")
    if own.bytes:
        what.append(f"{size_of(abs(own.bytes))} of copies")
    lacks = " and ".join(what)
    return (
        f"waits for the phase of parity {parity} of the mbarrier at shared memory + "
        f"{address}, which lacks {lacks}"
    )


_OPERATIONS = {
    "init": _init,
    "inval": _inval,
    "arrive.expect_tx": _arrive,
    "expect_tx": _arrive,
    "try_wait.parity": _wait,
    "test_wait.parity": _wait,
}
