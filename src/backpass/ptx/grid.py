"""Run a kernel's blocks on arrays."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from backpass.ptx import copies, garbage, lockstep
from backpass.ptx.block import Block
from backpass.ptx.faults import Fault, Race, Undefined, Unsupported
from backpass.ptx.parse import Program
from backpass.ptx.races import Races
from backpass.ptx.shadow import Shadow, follows
from backpass.ptx.tensor_maps import Mapped
from backpass.ptx.tensors import Global, address_of
from backpass.ptx.threads import Threads
from backpass.ptx.traffic import Moved, Traffic

RUNS = 4  # of a block whose reads race with later writes


class Report(NamedTuple):
    """What a run did: how many instructions its blocks executed, and the faults that
    made a result non-deterministic without stopping the kernel. ``alone`` says why the
    blocks did not execute together, which takes longer; it is empty if they did.
    ``moved`` has the bytes that were moved, if they were counted."""

    instructions: int
    unsettled: tuple[Fault, ...]
    alone: str = ""
    moved: tuple[Moved, ...] = ()


class Tensor(NamedTuple):
    """Memory that is passed to a kernel: its bytes ``[n]``, and the ``offset`` in bytes
    to which the kernel's pointer points.

    ``defined`` says which bytes are initialised: all, none, or those of a mask ``[n]``,
    which the run updates. ``start`` is the address of the first byte, if the kernel may
    load it from memory.
    """

    bytes: np.ndarray
    offset: int = 0
    defined: bool | np.ndarray = True
    start: int | None = None


def run(
    program: Program,
    arguments: Mapping[str, Tensor | Mapped | int],
    *,
    blocks: int | Sequence[int],
    shared: int = 0,
    only: Iterable[int] | None = None,
    approximate: int | None = None,
    watch: Callable[[str], None] = lambda _: None,
    find: Callable[[int], tuple[str, Tensor] | None] = lambda address: None,
    shadow: Shadow | None = None,
    count: bool = False,
) -> Report:
    """Execute a kernel and return a report.

    ``arguments`` holds the kernel's arguments in the order of its parameters, under the
    names that faults use. An argument is a tensor, whose bytes are updated in place, a
    tensor with a tensor map, or an integer, which may hold the bits of a floating-point
    number. Tensors whose bytes overlap are one buffer. Missing arguments are 0.
    ``blocks`` is the number of blocks along up to three axes. ``shared`` is the size of
    a block's shared memory in bytes, without the variables that the kernel declares
    there.

    ``only`` lists the numbers of the blocks to run, counted along the first axis first;
    the default is all. ``approximate`` is the seed of the errors of approximate units;
    by default the units have no error. ``watch`` is called with what is being done, in
    words. ``find`` returns the tensor at an address that is outside all tensors, and
    its name. ``shadow`` computes in float64 beside, which takes several times as long.
    With ``count``, the report has the bytes of global memory that were moved, as
    ``traffic`` defines them. Raises a Fault, or Unsupported.
    """
    x, y, z = (*((blocks,) if isinstance(blocks, int) else blocks), 1, 1)[:3]
    lengths = x, y, z
    memory, traffic = Global(find), Traffic()
    memory.traffic = traffic if count else None
    values = list(arguments.items())
    given = {name: x.tensor if isinstance(x, Mapped) else x for name, x in values}
    tensors = {name: x for name, x in given.items() if isinstance(x, Tensor)}
    addresses = _placed(tensors, memory)
    for name, argument in values:
        if isinstance(argument, Mapped):
            encoded = argument.map._replace(address=addresses[name]).encoded()
            addresses[name] = memory.add(f"the tensor map of {name}", encoded, True)
    parameters = {}
    for i, parameter in enumerate(program.parameters):
        name, value = values[i] if i < len(values) else (parameter.name, 0)
        own = addresses[name] if name in addresses else int(value)  # type: ignore[arg-type]
        parameters[parameter.name] = own % 2**64
    for name, content in program.tables.items():
        table = np.frombuffer(content, np.uint8).copy()
        parameters[name] = memory.add(name, table, True)
    numbers = [*range(prod(lengths))] if only is None else [*only]
    settings: dict[str, Any] = {
        "blocks": lengths,
        "shared": shared,
        "approximate": approximate,
    }
    if shadow is not None:
        settings["shadow"] = shadow
        shadow.launch(memory)
    try:
        if shadow is not None:
            raise lockstep.Alone("float64 beside")
        steps, conflicts = lockstep.run(
            program, parameters, memory, numbers, watch=watch, **settings
        )
        found = (*conflicts, *(x for of in memory.buffers for x in of.unsettled))
        return Report(steps, found, "", traffic.moved())
    except lockstep.Alone as reason:
        alone = str(reason)
    steps, unsettled, beside = 0, [], shadow is None and follows(program)
    for i, number in enumerate(numbers):
        watch(f"block {i + 1} of {len(numbers)}, {steps:,} instructions")
        create = partial(
            Threads,
            program,
            parameters,
            memory,
            number=number,
            **settings,
        )
        block = _ran(memory, create)
        if beside and any(fault.apart for fault in _found(memory, block)):
            block = _judged(memory, create, block)
        steps += block.steps
        unsettled += block.threads.shared.unsettled
    if shadow is not None:
        shadow.end(memory)
    for buffer in memory.buffers:
        unsettled += buffer.unsettled
    return Report(steps, tuple(unsettled), alone, traffic.moved())


def _ran(
    memory: Global,
    create: Callable[..., Threads],
    *,
    before: Races | None = None,
    shown: bool = True,
) -> Block:
    """Run a block, and again if reads in it race with later writes. ``before`` are the
    races of a run before these. Unless ``shown`` is false, print what it prints. Raises
    a Fault: a race if a value of such a read is used, or if every run has others."""
    races = before
    for _ in range(RUNS):
        block, fault = _tried(memory, create, before=races)
        races = block.threads.races
        if not races.more or isinstance(fault, Undefined):
            break
        _undo(memory, block)
    found: Fault | None = None
    if isinstance(fault, Undefined):
        if block.threads.races.made:
            races = block.threads.races
            found = _used(memory, create, block, fault)
            if isinstance(found, Race):
                block, seen = _seen(memory, create, block, races)
                found, fault = (found, fault) if seen else (None, None)
        else:
            block, fault = _settled(memory, create, block, fault), None
    if found is None and block.threads.races.more:
        found = next(iter(block.threads.races.found.values()))
    elif found is None and isinstance(fault, Race):
        found = fault
    if found:
        raise _with_both_lines(memory, create, block, found)
    if shown:
        print("".join(block.threads.printed), end="", flush=True)
    if fault:
        raise fault
    return block


def _found(memory: Global, block: Block) -> list[Fault]:
    """Return the faults of a block that did not stop it."""
    found = [*block.threads.shared.unsettled]
    for buffer, count in zip(memory.buffers, memory.unsettled, strict=True):
        found += buffer.unsettled[count:]
    return found


def _judged(memory: Global, create: Callable[..., Threads], block: Block) -> Block:
    """Run a block again, in which threads write different numbers to one place, beside
    float64. Where these are equal there, the difference is one of rounding."""
    _undo(memory, block)
    shadow = Shadow(math.inf, overflows=False)
    shadow.launch(memory)
    create = partial(create, shadow=shadow)
    block = _ran(memory, create, before=block.threads.races, shown=False)
    for own in (block.threads.shared, *memory.buffers):
        own.unsettled = [shadow.rounded.judged(fault) for fault in own.unsettled]
    return block


def _settled(
    memory: Global, create: Callable[..., Threads], block: Block, fault: Undefined
) -> Block:
    """Run a block again with different values of what is undefined. Raises the fault
    unless the block stores the same values each time."""
    stored = []
    for seed in garbage.SEEDS:
        _undo(memory, block)
        block, other = _tried(memory, create, seed=seed)
        stored.append(block.threads.doubtful)
        if other or stored[-1] != stored[0]:
            raise fault
    return block


def _seen(
    memory: Global, create: Callable[..., Threads], block: Block, races: Races
) -> tuple[Block, bool]:
    """Run a block with guards that races make undefined all false, and all true; return
    the last run, and whether other threads may see anything of that."""
    for guards in (False, True):
        _undo(memory, block)
        block, fault = _tried(memory, create, before=races, guards=guards)
        if fault:
            return block, True
    return block, False


def _tried(
    memory: Global, create: Callable[..., Threads], **settings: object
) -> tuple[Block, Fault | None]:
    """Run a block, and return it with the fault that it raised."""
    block = Block(create(**settings))
    memory.begin()
    try:
        block.run()
    except Fault as fault:
        return block, fault
    except Unsupported as error:
        where = "" if block.threads.place is None else f"{block.threads.place}: "
        raise Unsupported(f"{where}{error}") from None
    return block, None


def _undo(memory: Global, block: Block) -> None:
    copies.stop(block.threads)
    memory.undo()


def _used(
    memory: Global, create: Callable[..., Threads], block: Block, fault: Undefined
) -> Fault:
    """Return the race whose value a block uses, or the fault if it is one without any
    race."""
    *lines, last = block.threads.races.found
    for only in ((), *((line,) for line in lines)):
        _undo(memory, block)
        block, found = _tried(memory, create, before=block.threads.races, only=only)
        if isinstance(found, Undefined):
            return block.threads.races.found[only[0]] if only else found
    return block.threads.races.found[last]


def _with_both_lines(
    memory: Global, create: Callable[..., Threads], block: Block, fault: Fault
) -> Fault:
    """Return a race with the line of the earlier access, which another run of the block
    finds; any other fault unchanged."""
    if not isinstance(fault, Race) or fault.byte is None:
        return fault
    _undo(memory, block)
    block, _ = _tried(memory, create, watched=fault.byte)
    other = None
    for line in block.threads.races.lines:
        if line == fault.place and other is not None:
            break
        other = other if line == fault.place else line
    where = "on the same line" if other is None else f"at {other}"
    what = f"{fault.what}; the other access is {where}"
    return Race(what, fault.place, fault.block, fault.thread)


def _placed(tensors: Mapping[str, Tensor], memory: Global) -> dict[str, int]:
    """Add the tensors to the memory, and return the address to which each points."""
    first = {name: address_of(x.bytes) for name, x in tensors.items()}
    end = {name: first[name] + len(x.bytes) for name, x in tensors.items()}
    groups: list[list[str]] = []  # of tensors that overlap
    for name in tensors:
        apart, own = [], [name]
        for group in groups:
            if any(first[name] < end[x] and first[x] < end[name] for x in group):
                own = group + own
            else:
                apart.append(group)
        groups = [*apart, own]
    found = {}
    for group in groups:
        start = min(first[name] for name in group)
        n = max(end[name] for name in group) - start
        content, defined = _joined([tensors[name] for name in group], start, n)
        given = [(tensors[x].start, first[x] - start) for x in group]
        at = next((own - offset for own, offset in given if own is not None), None)
        address = memory.add(group[0], content, defined, at)
        for name in group:
            found[name] = address + first[name] - start + tensors[name].offset
    return found


def _joined(
    tensors: list[Tensor], start: int, n: int
) -> tuple[np.ndarray, bool | np.ndarray]:
    """Return the n bytes that begin at the address ``start``, and which of them are
    defined. Each tensor is a part of these bytes. Unless all tensors have all n bytes
    and the same ``defined``, every byte counts as defined."""
    x = tensors[0]
    if all(len(y.bytes) == n and y.defined is x.defined for y in tensors):
        return x.bytes, x.defined
    for y in tensors:
        if isinstance(y.defined, np.ndarray):
            y.defined[:] = True
    return np.ctypeslib.as_array((ctypes.c_uint8 * n).from_address(start)), True
