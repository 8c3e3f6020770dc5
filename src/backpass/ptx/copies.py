"""Asynchronous copies from global to shared memory."""

from __future__ import annotations

import numpy as np

from backpass.ptx import bulk
from backpass.ptx.faults import Fault, Unsupported
from backpass.ptx.memory import check_aligned
from backpass.ptx.parse import Instruction, Operand, Register, unsupported
from backpass.ptx.threads import Copy, Threads
from backpass.ptx.values import Value


def copy(threads: Threads, instruction: Instruction, chosen: np.ndarray) -> None:
    """Execute cp.async: start a copy, close a group of copies, or wait for groups."""
    parts = instruction.parts
    threads.shared.changes += 1
    if parts[1:3] == ["async", "bulk"] or parts[1] == "reduce":
        bulk.bulk(threads, instruction, chosen)
        return
    if parts[1] != "async":
        raise unsupported(instruction)
    if parts[2] == "commit_group":
        _check_all(instruction, chosen)
        threads.copies.append([])
    elif parts[2] in ("wait_group", "wait_all"):
        _check_all(instruction, chosen)
        left = 0 if parts[2] == "wait_all" else int(instruction.operands[0].text, 0)  # type: ignore[union-attr]
        _await(threads, left, parts[2] == "wait_all")
    elif parts[2] in ("ca", "cg"):
        _start(threads, instruction, chosen)
    else:
        raise unsupported(instruction)


def _start(threads: Threads, instruction: Instruction, chosen: np.ndarray) -> None:
    to, of, size, *rest = instruction.operands
    count, who = int(size.text, 0), threads.who(chosen)  # type: ignore[union-attr]
    at = threads.shared.indices(threads.addresses(to, chosen), count, who, "writes")
    threads.shared.check_awaited(at, who)
    threads.shared.check_write(at, None, who)
    lengths = np.full(len(at), count, np.uint32)
    if rest:
        value = _source_size(threads, rest[0], instruction)
        threads.check(value, chosen, "copies an uninitialised number of bytes")
        lengths = value.bits[chosen]
    data = np.zeros((len(at), count), np.uint8)
    defined = np.ones(data.shape, bool)
    addresses, sources = threads.addresses(of, chosen), []
    check_aligned(addresses, count, who, "global memory")
    for length in np.unique(lengths[lengths > 0]):
        rows = lengths == length
        if length > count:
            what = f"copies {length} bytes to a destination of {count} bytes"
            raise threads.fault(Fault, what, chosen)
        data[rows, :length], defined[rows, :length] = threads.memory.load_bytes(
            addresses[rows], int(length), who.only(rows)
        )
        sources.append((addresses[rows], int(length)))
    threads.shared.awaited[at] = True
    threads.copies[-1].append(Copy(at, data, defined, who.threads, sources))
    _mark(threads, threads.copies[-1][-1:], threads.number + 1)


def _source_size(threads: Threads, operand: Operand, instruction: Instruction) -> Value:
    """Return how many bytes each thread copies; the others are 0."""
    if isinstance(operand, Register) and threads.registers.kind(operand.name) is bool:
        what = f"ptx: {instruction.name} with a predicate is not supported"
        raise Unsupported(what)
    return threads.read(operand, "b32")


def _await(threads: Threads, left: int, everything: bool) -> None:
    """Complete the copies of all groups except the last ``left``."""
    if everything:
        threads.copies.append([])
    done = max(len(threads.copies) - 1 - left, 0)
    for copy in (copy for group in threads.copies[:done] for copy in group):
        threads.shared.awaited[copy.at] = False
        who = threads.who(copy.threads)
        threads.shared.store(copy.at, copy.data, copy.defined, who)
        _mark(threads, [copy], 0)
    threads.copies[:done] = [[] for _ in threads.copies[:done]]
    for group in threads.copies:
        _mark(threads, group, threads.number + 1)


def stop(threads: Threads) -> None:
    """Forget the copies in flight, if the block is to run again."""
    for group in threads.copies:
        _mark(threads, group, 0)


def _mark(threads: Threads, copies: list[Copy], by: int) -> None:
    """Record that the block with the number ``by`` - 1, or no block if ``by`` is 0,
    is reading the sources of the copies."""
    for copy in copies:
        for addresses, length in copy.sources:
            threads.memory.mark_copied(addresses, length, by)


def _check_all(instruction: Instruction, chosen: np.ndarray) -> None:
    if not chosen.all():
        raise Unsupported(
            f"ptx: {instruction.name} is supported only if all threads execute it "
            "together"
        )
