"""Runs a kernel's blocks on arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from backpass.ptx.block import Block
from backpass.ptx.faults import Fault
from backpass.ptx.memory import Global
from backpass.ptx.parse import Program


class Report(NamedTuple):
    """What a run was: how many instructions its blocks have executed, and the faults
    that PTX allows, where the result is one of several values."""

    instructions: int
    unsettled: tuple[Fault, ...]


class Tensor(NamedTuple):
    """Memory that a kernel is given: all its bytes ``[n]``, the offset at which its
    pointer points, and whether it has been written to before."""

    bytes: np.ndarray
    offset: int = 0
    defined: bool = True


def run(
    program: Program,
    arguments: Mapping[str, Tensor | int],
    *,
    blocks: int,
    shared: int = 0,
    only: Iterable[int] | None = None,
) -> Report:
    """Execute a kernel, and return what it did.

    ``arguments`` are those of the parameters, in their order, by the names by which
    faults call them: tensors, whose bytes are written in place, and integers.
    Tensors with the same bytes are one. Missing parameters are 0. ``only`` has the
    numbers of the blocks to run, by default all. Raises a Fault, and Unsupported.
    """
    memory = Global()
    known: dict[int, int] = {}
    parameters = {}
    values = list(arguments.items())
    for i, parameter in enumerate(program.parameters):
        name, value = values[i] if i < len(values) else (parameter.name, 0)
        if isinstance(value, Tensor):
            key = value.bytes.__array_interface__["data"][0]
            if key not in known or not len(value.bytes):
                known[key] = memory.add(name, value.bytes, value.defined)
            parameters[parameter.name] = known[key] + value.offset
        else:
            parameters[parameter.name] = int(value) % 2**64
    steps, unsettled = 0, []
    for number in range(blocks) if only is None else only:
        block = Block(
            program, parameters, memory, number=number, blocks=blocks, shared=shared
        )
        block.run()
        steps += block.steps
        unsettled += block.shared.unsettled
    for buffer in memory.buffers:
        unsettled += buffer.unsettled
    return Report(steps, tuple(unsettled))
