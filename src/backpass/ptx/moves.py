"""Instructions that move bits between registers and memory: ld, st, atom, and red."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from backpass.ptx import atomics, garbage
from backpass.ptx.faults import OutOfBounds, Unsupported
from backpass.ptx.formats import UNSIGNED
from backpass.ptx.memory import OF_NEIGHBOUR, check_aligned, check_defined
from backpass.ptx.parse import (
    Instruction,
    targets_of,
    unsupported,
    width_of,
)
from backpass.ptx.races import Who
from backpass.ptx.threads import Threads
from backpass.ptx.values import extended

HALVES = (0xFFFF, 0xFFFF0000)  # of a word of 32 bits


def load(threads: Threads, instruction: Instruction, chosen: np.ndarray) -> None:
    """Execute ld: load from any memory, or read a parameter."""
    type, space = instruction.parts[-1], space_of(instruction)
    target, source = instruction.operands[:2]
    targets = targets_of(target)
    if space == "param":
        if len(targets) > 1:
            raise unsupported(instruction)
        bits = threads.parameters[source.base] >> 8 * source.offset  # type: ignore[union-attr]
        n, width = len(threads.numbers), width_of(type)
        value = bits % 2**width
        if type[0] == "s" and value >> (width - 1):
            value += 2**64 - 2**width  # sign-extend to a wider register
        full = np.full(n, value, np.uint64)
        threads.write(targets[0], full, np.ones(n, bool), chosen)
        return
    each = width_of(type) // 8
    who, addresses = threads.who(chosen), threads.addresses(source, chosen)
    if space == "local":
        at = _in_local(threads, addresses, each * len(targets), who)
        data, defined = (kept[who.threads[:, None], at] for kept in threads.local)
    elif space == "shared":
        at = threads.shared.indices(addresses, each * len(targets), who, "reads")
        data, defined = threads.shared.load(at, who)
    else:
        # If another thread updates the word after this load, the swap fails.
        who = who._replace(swaps=source in threads.program.swapped)
        data, defined = threads.memory.load(addresses, each * len(targets), who)
    if threads.registers.seed:
        data = garbage.of_memory(addresses, data, defined, threads.registers.seed)
    loaded = (data, defined * np.uint8(0xFF))
    numbers, masks = (np.ascontiguousarray(x).view(UNSIGNED[8 * each]) for x in loaded)
    for register, bits, mask in zip(targets, numbers.T, masks.T, strict=True):
        if type[0] == "s":  # sign-extend to a wider register
            bits, mask = extended(bits, type), extended(mask, type)
        threads.write_chosen(register, bits, mask, chosen)


def store(threads: Threads, instruction: Instruction, chosen: np.ndarray) -> None:
    """Execute st."""
    type, space = instruction.parts[-1], space_of(instruction)
    target, source = instruction.operands
    values = [threads.read(x, f"b{width_of(type)}") for x in targets_of(source)]
    if space == "param":
        (threads.passed[target.base],) = values  # type: ignore[union-attr]
        return
    n = int(chosen.sum())
    data = _bytes([v.bits[chosen] for v in values], n)
    defined = _bytes([v.defined[chosen] for v in values], n) == 0xFF
    who, addresses = threads.who(chosen), threads.addresses(target, chosen)
    if space == "local":
        at = _in_local(threads, addresses, data.shape[1], who)
        for kept, new in zip(threads.local, (data, defined), strict=True):
            kept[who.threads[:, None], at] = new
        threads.shared.changes += 1
    elif space == "shared":
        at = threads.shared.indices(addresses, data.shape[1], who, "writes")
        threads.shared.store(at, data, defined, who)
    else:
        _check_writable(threads, addresses, who)
        if threads.registers.seed:
            threads.doubtful.append(data[~np.all(defined, axis=1)].tobytes())
            defined = np.ones_like(defined)
        what = f"stores an uninitialised value{threads.memory.unwritten()}"
        check_defined(np.all(defined, axis=1), what, who)
        threads.memory.store(addresses, data, defined, who)


def _check_writable(threads: Threads, addresses: np.ndarray, who: Who) -> None:
    for name, content in threads.program.tables.items():
        offset = addresses - threads.parameters[name]
        inside = (offset >= 0) & (offset < len(content))
        if inside.any():
            raise who.fault(OutOfBounds, f"writes to the table {name}", inside)


def _in_local(
    threads: Threads, addresses: np.ndarray, count: int, who: Who
) -> np.ndarray:
    """Return the indices ``[n, count]`` of bytes in the threads' local memory."""
    check_aligned(addresses, count, who, "local memory")
    outside = (addresses < 0) | (addresses + count > threads.program.local)
    if outside.any():
        what = f"accesses local memory outside its {threads.program.local} bytes"
        raise who.fault(OutOfBounds, what, outside)
    return addresses[:, None] + np.arange(count)


def atomic(threads: Threads, instruction: Instruction, chosen: np.ndarray) -> None:
    """Execute atom, or red, which has no result."""
    own = atomics.atomic(instruction.name)
    operands = list(instruction.operands)
    result = operands.pop(0) if instruction.parts[0] == "atom" else None
    target, *sources = operands
    width = f"b{width_of(own.type)}"
    values = [threads.read(x, width) for x in sources]
    who, addresses = threads.who(chosen), threads.addresses(target, chosen)
    who = who._replace(swaps=target in threads.program.swapped)
    for value in values:
        what = f"passes an uninitialised value to an atomic instruction{threads.memory.unwritten()}"
        if own.operation == "cas" and np.isin(value.defined[chosen], HALVES).any():
            what += OF_NEIGHBOUR
        threads.check(value, chosen, what)
    given = [value.bits[chosen] for value in values]
    if own.shared:
        at = threads.shared.indices(addresses, given[0].itemsize, who, "updates")
        old = threads.shared.update(at, own, given, who)
    else:
        if own.order == "relaxed" and threads.fenced[chosen].all():
            own = own._replace(order="release")
        old = threads.memory.update(addresses, own, given, who)
        threads.time += own.releases  # what the threads do next is not released
        if threads.program.fences and not own.within_block:
            threads.notice_released(addresses)
    if result is not None:
        threads.write_chosen(result, old, np.ones(len(old), bool), chosen)


# The modifiers of loads and stores: spaces, sizes, and hints for the caches.
_OF_ACCESSES = {"ld", "st", "param", "local", "shared", "const", "global", "v2", "v4"}
_OF_ACCESSES |= {"weak", "volatile", "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt"}
_OF_ACCESSES |= {"L1", "L2"}


def space_of(instruction: Instruction) -> str:
    """Return the memory that a load or a store accesses."""
    parts = {part.partition("::")[0] for part in instruction.parts}
    if not parts <= _OF_ACCESSES | {instruction.parts[-1]}:
        raise unsupported(instruction)
    for space in ("param", "local", "shared", "const", "global"):
        if space in parts:
            return space
    raise Unsupported(f"ptx: {instruction.name} at a generic address is not supported")


def _bytes(values: Sequence[np.ndarray], n: int) -> np.ndarray:
    """Return the bytes ``[n, k]`` of values ``[n]``, one after the other."""
    parts = [np.ascontiguousarray(x).view(np.uint8).reshape(n, -1) for x in values]
    return np.concatenate(parts, axis=1)
