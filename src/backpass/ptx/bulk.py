"""Bulk copies of tiles between global and shared memory, as tensor maps describe them.

A copy to shared memory counts its bytes at an mbarrier. A copy to global memory belongs
to a group of its thread. Elements outside the tensor are filled, or not written. PTX
ISA 8.7, chapter 9.7.9.27.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np

from backpass.ptx import atomics, mbarriers, tensor_maps
from backpass.ptx.descriptors import swizzled
from backpass.ptx.faults import Misaligned
from backpass.ptx.formats import NAN, UNSIGNED
from backpass.ptx.memory import check_defined
from backpass.ptx.parse import Address, Instruction, Operand, Vector, unsupported
from backpass.ptx.proxy import Outgoing
from backpass.ptx.races import Who
from backpass.ptx.tensor_maps import TensorMap
from backpass.ptx.threads import Threads


class Tile(NamedTuple):
    """Where a tile is. ``rows`` are the numbers of its rows that are inside the tensor,
    and ``addresses`` where they begin in global memory; of each, the elements from
    ``first`` to ``end`` are inside. ``at`` holds the index of each byte of the tile in
    shared memory ``[rows, bytes]``."""

    rows: np.ndarray
    addresses: np.ndarray
    first: int
    end: int
    at: np.ndarray


def bulk(threads: Threads, instruction: Instruction, chosen: np.ndarray) -> None:
    """Execute cp.async.bulk or cp.reduce.async.bulk."""
    name = instruction.name.removesuffix(".L2::cache_hint")
    if name == "cp.async.bulk.commit_group":
        threads.proxy.committed[chosen] += 1
    elif name in ("cp.async.bulk.wait_group", "cp.async.bulk.wait_group.read"):
        _await(threads, int(instruction.operands[0].text, 0), chosen)  # type: ignore[union-attr]
    else:
        own = next((of for form, of in _COPIES if re.fullmatch(form, name)), None)
        if own is None:
            raise unsupported(instruction)
        for number in threads.numbers[chosen]:  # usually one
            own(threads, instruction, threads.numbers == number)


def _tile(
    threads: Threads, operand: Operand, shared: Operand, one: np.ndarray
) -> tuple[TensorMap, Tile, Who]:
    """Return the map of a thread's copy, where the tile is, and the thread, once for
    each row of the tile. Raises a fault."""
    address, coordinates = operand.parts  # type: ignore[union-attr]
    assert isinstance(address, Address) and isinstance(coordinates, Vector)
    who = threads.who(one)
    own = tensor_maps.read(threads, int(threads.addresses(address, one)[0]), who)
    values = [threads.read(x, "b32") for x in coordinates.parts]
    for value in values:
        threads.check(value, one, "copies from undefined coordinates")
    at = [int(x.bits[one].view(np.int32)[0]) for x in values]
    start = int(threads.addresses(shared, one)[0])
    if start % 128:
        what = f"copies a tile to shared memory + {start}, not a multiple of 128"
        raise threads.fault(Misaligned, what, one)
    first, end = max(0, -at[0]), min(own.box[0], own.shape[0] - at[0])
    rows, addresses = [], []
    for i, index in enumerate(product(*map(range, reversed(own.box[1:])))):
        place = [x + c for x, c in zip(reversed(index), at[1:], strict=True)]
        inside = all(0 <= x < n for x, n in zip(place, own.shape[1:], strict=True))
        if inside and first < end:
            rows.append(i)
            offset = sum(x * by for x, by in zip(place, own.strides, strict=True))
            addresses.append(own.address + offset + (at[0] + first) * own.width)
    row = own.box[0] * own.width
    places = start + np.arange(own.size).reshape(-1, row)
    if own.span:
        places = swizzled(places, own.span)
    found = Tile(np.array(rows, int), np.array(addresses, np.int64), first, end, places)
    return own, found, who.only(np.zeros(len(places), int))


def _load(threads: Threads, instruction: Instruction, one: np.ndarray) -> None:
    """Copy a tile to shared memory."""
    to, of, barrier = instruction.operands
    own, tile, who = _tile(threads, of, to, one)
    data = np.zeros(tile.at.shape, np.uint8)
    if own.fill_nan and own.type in NAN:
        data.view(UNSIGNED[8 * own.width])[:] = NAN[own.type]
    defined = np.ones(data.shape, bool)
    inside = slice(tile.first * own.width, tile.end * own.width)
    sources = []
    if len(tile.rows):
        size = (tile.end - tile.first) * own.width
        by = who.only(np.zeros(len(tile.rows), int))
        found, known = threads.memory.load_bytes(tile.addresses, size, by)
        data[tile.rows, inside], defined[tile.rows, inside] = found, known
        threads.memory.mark_copied(tile.addresses, size, threads.number + 1)
        sources.append((tile.addresses, size))
    arrival = threads.proxy.arrive(tile.at, data, defined, who)
    arrival.sources += sources
    mbarriers.complete(threads, barrier, arrival, own.size, one)


def _outgoing(
    threads: Threads, instruction: Instruction, one: np.ndarray
) -> tuple[TensorMap, np.ndarray, np.ndarray, np.ndarray, Who]:
    """Start a copy to global memory. Return the map, the addresses of the parts that
    are inside the tensor, their bytes and which of them are defined, and the thread."""
    of, shared = instruction.operands
    own, tile, who = _tile(threads, of, shared, one)
    what = "a bulk copy"
    data, known = threads.proxy.load(tile.at, [who], threads.registers.seed, what)
    threads.proxy.reading[tile.at] += 1
    thread = int(threads.numbers[one][0])
    group = int(threads.proxy.committed[thread])
    threads.proxy.outgoing.append(Outgoing(thread, group, tile.at))
    inside = slice(tile.first * own.width, tile.end * own.width)
    data, known = data[tile.rows, inside], known[tile.rows, inside]
    size = data.shape[1] if len(tile.rows) else 0
    each = own.width
    ends = [size, *(int(x) for x in tile.addresses)]
    while each < 16 and not any(x % (2 * each) for x in ends):
        each *= 2
    parts = np.arange(0, size, each)
    addresses = (tile.addresses[:, None] + parts).reshape(-1)
    by = who.only(np.zeros(len(addresses), int))
    return own, addresses, data.reshape(-1, each), known.reshape(-1, each), by


def _store(threads: Threads, instruction: Instruction, one: np.ndarray) -> None:
    """Copy a tile to global memory."""
    _, addresses, data, known, who = _outgoing(threads, instruction, one)
    if not len(addresses):
        return
    if threads.registers.seed:
        threads.doubtful.append(data[~np.all(known, axis=1)].tobytes())
        known = np.ones_like(known)
    check_defined(np.all(known, axis=1), "stores an uninitialised value", who)
    threads.memory.store(addresses, data, known, who)


def _reduce(threads: Threads, instruction: Instruction, one: np.ndarray) -> None:
    """Add a tile to global memory, or reduce it in another way."""
    how = next(x for x in instruction.parts if x in _REDUCTIONS)
    own, addresses, data, known, who = _outgoing(threads, instruction, one)
    kind = UNSIGNED[8 * own.width]
    each = data.shape[1] // own.width
    addresses = (addresses[:, None] + np.arange(each) * own.width).reshape(-1)
    if not len(addresses):
        return
    who = who.only(np.zeros(len(addresses), int))
    check_defined(np.all(known.reshape(len(addresses), -1), axis=1), _PASSES, who)
    type = own.type if how in ("add", "min", "max") else f"b{8 * own.width}"
    more = ".noftz" if type in ("f16", "bf16") and how == "add" else ""
    atomic = atomics.atomic(f"red.relaxed.gpu.global.{how}{more}.{type}")
    given = np.ascontiguousarray(data).view(kind).reshape(-1)
    threads.memory.update(addresses, atomic, [given], who)


_PASSES = "passes an uninitialised value to a reduction"
_REDUCTIONS = ("add", "min", "max", "and", "or", "xor")


def _await(threads: Threads, left: int, chosen: np.ndarray) -> None:
    """Complete the copies of all groups of the threads except the last ``left``."""
    flying = []
    for copy in threads.proxy.outgoing:
        done = copy.group < threads.proxy.committed[copy.thread] - left
        if chosen[copy.thread] and done:
            threads.proxy.reading[copy.at] -= 1
        else:
            flying.append(copy)
    threads.proxy.outgoing = flying


_TENSOR = r"async\.bulk\.tensor\.[1-5]d\."
_COPIES: tuple[tuple[str, Callable[..., None]], ...] = (
    (
        rf"cp\.{_TENSOR}shared::(cta|cluster)\.global(\.tile)?"
        r"\.mbarrier::complete_tx::bytes",
        _load,
    ),
    (rf"cp\.{_TENSOR}global\.shared::cta(\.tile)?\.bulk_group", _store),
    (
        rf"cp\.reduce\.{_TENSOR}global\.shared::cta\.({'|'.join(_REDUCTIONS)})"
        r"(\.tile)?\.bulk_group",
        _reduce,
    ),
)
