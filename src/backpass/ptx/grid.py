"""Run a kernel's blocks on arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from backpass.ptx.block import Block
from backpass.ptx.faults import Fault
from backpass.ptx.memory import Buffer, Global
from backpass.ptx.parse import Program


class Report(NamedTuple):
    """What a run did: how many instructions its blocks executed, and the faults that
    made a result non-deterministic without stopping the kernel."""

    instructions: int
    unsettled: tuple[Fault, ...]


class Tensor(NamedTuple):
    """Memory that a kernel is given: its bytes ``[n]``, and the ``offset`` in bytes to
    which the kernel's pointer points.

    ``defined`` says which bytes are initialised: all, none, or those of a mask ``[n]``,
    which the run updates.
    """

    bytes: np.ndarray
    offset: int = 0
    defined: bool | np.ndarray = True


def run(
    program: Program,
    arguments: Mapping[str, Tensor | int],
    *,
    blocks: int | Sequence[int],
    shared: int = 0,
    only: Iterable[int] | None = None,
    approximate: int | None = None,
) -> Report:
    """Execute a kernel and return a report.

    ``arguments`` holds the kernel's arguments in the order of its parameters, under the
    names that faults use. An argument is a tensor, whose bytes are updated in place, or
    an integer, which may hold the bits of a floating-point number. Tensors with the
    same bytes are one buffer. Missing arguments are 0. ``blocks`` is the number of
    blocks along up to three axes. ``shared`` is the number of bytes of shared memory of
    a block.

    ``only`` lists the numbers of the blocks to run, counted along the first axis first;
    the default is all. ``approximate`` is the seed of the errors of approximate units;
    by default the units have no error. Raises a Fault, or Unsupported.
    """
    x, y, z = (*((blocks,) if isinstance(blocks, int) else blocks), 1, 1)[:3]
    lengths = x, y, z
    memory = Global()
    masks: list[tuple[np.ndarray, Buffer]] = []
    known: dict[int, int] = {}
    parameters = {}
    values = list(arguments.items())
    for i, parameter in enumerate(program.parameters):
        name, value = values[i] if i < len(values) else (parameter.name, 0)
        if isinstance(value, Tensor):
            key = value.bytes.__array_interface__["data"][0]
            if key not in known or not len(value.bytes):
                known[key] = memory.add(name, value.bytes, value.defined)
                if isinstance(value.defined, np.ndarray):
                    masks.append((value.defined, memory.buffers[-1]))
            parameters[parameter.name] = known[key] + value.offset
        else:
            parameters[parameter.name] = int(value) % 2**64
    steps, unsettled = 0, []
    for number in range(prod(lengths)) if only is None else only:
        block = Block(
            program,
            parameters,
            memory,
            number=number,
            blocks=lengths,
            shared=shared,
            approximate=approximate,
        )
        block.run()
        steps += block.steps
        unsettled += block.shared.unsettled
    for buffer in memory.buffers:
        unsettled += buffer.unsettled
    for mask, buffer in masks:
        mask[:] = ~buffer.undefined
    return Report(steps, tuple(unsettled))
