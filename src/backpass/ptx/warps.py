"""Instructions that the threads of a warp, or of a block, execute together."""

from __future__ import annotations

import numpy as np

from backpass.ptx import tensor_cores
from backpass.ptx.faults import Barrier, Unsupported
from backpass.ptx.parse import Instruction, Number, targets_of, unsupported
from backpass.ptx.released import Acquired, with_later
from backpass.ptx.threads import Threads

# Instructions that all threads of a block, or of a warp, execute together.
TOGETHER = ("bar", "barrier", "shfl", "vote", "redux", "elect")
TOGETHER += ("mma", "wgmma", "ldmatrix", "stmatrix")  # type: ignore[assignment]
# The barriers at which all threads of a block meet.
_FOR_ALL = {"bar.sync", "bar.cta.sync", "barrier.sync", "barrier.cta.sync"}
_FOR_ALL |= {"barrier.sync.aligned", "barrier.cta.sync.aligned"}


def waits_for_all(instruction: Instruction) -> bool:
    """Whether an instruction waits for all threads of the block."""
    return instruction.name in _FOR_ALL


def check_together(
    threads: Threads, instruction: Instruction, active: np.ndarray
) -> None:
    """Raise Unsupported unless an instruction is for all threads of a block, or of
    a warp, and not only for those that it names."""
    name, *operands = instruction.name, *instruction.operands
    if instruction.parts[0] in ("bar", "barrier") and name != "bar.warp.sync":
        if name not in _FOR_ALL or operands != [Number("0")]:
            shown = ", ".join(x[0] for x in operands if isinstance(x[0], str))
            raise Unsupported(f"ptx: {name} {shown} is not supported")
    elif instruction.parts[0] not in ("mma", "ldmatrix", "stmatrix", "wgmma"):
        mask = threads.read(operands[-1], "b32")
        threads.check(mask, active, "uses an uninitialised mask of threads")
        if not np.all(mask.bits[active] == 0xFFFFFFFF):
            raise Unsupported(f"ptx: {name} is supported for whole warps only")


def check_warps(
    threads: Threads, present: np.ndarray, what: str, chosen: np.ndarray | None = None
) -> None:
    """Raise Barrier unless all threads of a warp are present, or none.

    If threads that have returned count as present, ``chosen`` are the others.
    """
    by = present if chosen is None else chosen
    whole = present.reshape(-1, 32).all(axis=1)
    bad = by & ~np.repeat(whole, 32)
    if bad.any():
        raise threads.fault(
            Barrier, f"executes {what} without all threads of its warp", bad
        )


def barrier(threads: Threads, instruction: Instruction, chosen: np.ndarray) -> None:
    """Execute a barrier of the block or of warps."""
    if instruction.name == "bar.warp.sync":
        check_warps(threads, chosen | ~threads.left, "bar.warp.sync", chosen)
        for warp in np.unique(threads.numbers[chosen] // 32):
            threads.warp_times[warp] += 1
            threads.exchanges[warp] += 1
            own = threads.acquired.threads[32 * warp : 32 * warp + 32]
            own[:] = own.any()
        return
    if (missed := threads.left & ~chosen).any():
        missing = int(threads.numbers[missed][0])
        raise threads.fault(
            Barrier, f"is at a barrier that thread {missing} does not reach", chosen
        )
    threads.time += 1
    threads.since = threads.time
    threads.sees = with_later(threads.sees, threads.acquired.seen)
    threads.acquired = Acquired(len(threads.numbers))
    threads.proxy.meet()


def exchange(threads: Threads, chosen: np.ndarray, what: str) -> None:
    """Meet at an instruction by which the threads of whole warps exchange values."""
    check_warps(threads, chosen, what)
    threads.exchanges[np.unique(threads.numbers[chosen] // 32)] += 1


def elect(threads: Threads, instruction: Instruction, chosen: np.ndarray) -> None:
    """Execute elect.sync: choose a thread of each warp. PTX does not say which; here it
    is the first."""
    check_warps(threads, chosen, "elect.sync")
    target, leads = targets_of(instruction.operands[0])
    first, whole = threads.numbers % 32 == 0, np.ones(len(chosen), bool)
    threads.write(target, np.zeros(len(chosen), np.uint32), whole, chosen)
    threads.write(leads, first, whole, chosen)


def specialise(_: Threads, instruction: Instruction, chosen: np.ndarray) -> None:
    """Reject setmaxnreg, with which warps of one role give registers to another."""
    raise Unsupported(
        f"ptx: {instruction.name}: warps with different roles are not supported; launch "
        "the kernel without warp_specialize"
    )


def load_matrices(
    threads: Threads, instruction: Instruction, chosen: np.ndarray
) -> None:
    """Execute ldmatrix."""
    parts = instruction.parts
    if parts[3] != "m8n8" or parts[-1] != "b16":
        raise unsupported(instruction)
    check_warps(threads, chosen, "ldmatrix")
    targets = targets_of(instruction.operands[0])
    n = len(targets)
    # Lanes 8i to 8i + 7 hold the addresses of the rows of matrix i.
    giving = chosen & (threads.numbers % 32 < 8 * n)
    who = threads.who(giving)
    addresses = threads.addresses(instruction.operands[1], giving)
    at = threads.shared.indices(addresses, 16, who, "reads")
    data, defined = threads.shared.load(at, who)
    rows = np.ascontiguousarray(data).view(np.uint16).reshape(-1, n, 8, 8)
    whole = np.all(defined.reshape(-1, n, 8, 8, 2), axis=-1)
    transposed = "trans" in parts
    found = tensor_cores.loaded_matrices(rows, transposed)
    known = tensor_cores.loaded_matrices(whole, transposed) == 0x10001
    for i, register in enumerate(targets):
        own = found[:, :, i].reshape(-1), known[:, :, i].reshape(-1)
        threads.write_chosen(register, *own, chosen)


def store_matrices(
    threads: Threads, instruction: Instruction, chosen: np.ndarray
) -> None:
    """Execute stmatrix, which undoes ldmatrix."""
    parts = instruction.parts
    if parts[3] != "m8n8" or parts[-1] != "b16" or not {*parts[5:-2]} <= {"trans"}:
        raise unsupported(instruction)
    check_warps(threads, chosen, "stmatrix")
    target, source = instruction.operands
    values = [threads.read(x, "b32") for x in targets_of(source)]
    n = len(values)
    giving = chosen & (threads.numbers % 32 < 8 * n)
    who, addresses = threads.who(giving), threads.addresses(target, giving)
    at = threads.shared.indices(addresses, 16, who, "writes")
    warps = chosen.reshape(-1, 32).all(axis=1)
    stored = (
        tensor_cores.stored_matrices(
            np.stack([x.reshape(-1, 32)[warps] for x in own], axis=-1), "trans" in parts
        )
        for own in ([v.bits for v in values], [v.defined for v in values])
    )
    data, masks = (
        np.ascontiguousarray(x).view(np.uint8).reshape(-1, 16) for x in stored
    )
    threads.shared.store(at, data, masks == 0xFF, who)
