"""Executes the PTX that a compiler emits for a GPU, on NumPy, and says what is wrong.

A Triton kernel is compiled to PTX, the assembly language of NVIDIA's GPUs. This package
executes it: the threads of a block as one vector, in the number formats of the
hardware, with memory that knows who has used each byte. So it finds what a kernel does
at the dtype for which it was compiled, and what no result shows: accesses out of
bounds, races, and values that nobody wrote.

    program = ptx.parse(text)
    ptx.run(program, {"x": ptx.Tensor(x.view(np.uint8)), "n": 300}, blocks=4)

To learn PTX from it, read in this order: ``parse`` (what a line says), ``formats``
(numbers and roundings), ``arithmetic`` and ``approximate`` (what a thread computes),
``tensor_cores`` (what a warp computes), ``memory`` and ``atomics`` (who may use which
bytes when), ``block`` (how threads branch, wait, and copy), and ``grid``. It executes
what Triton 3 emits for compute capability 8.0. It does not see timing, the order of
accesses within a warp, or what later GPUs add.
"""

from backpass.ptx.faults import (
    Barrier,
    Fault,
    Misaligned,
    Order,
    OutOfBounds,
    Place,
    Race,
    TooEarly,
    Undefined,
    Unsupported,
)
from backpass.ptx.grid import Report, Tensor, run
from backpass.ptx.parse import Program, parse

__all__ = [
    "Barrier",
    "Fault",
    "Misaligned",
    "Order",
    "OutOfBounds",
    "Place",
    "Program",
    "Race",
    "Report",
    "Tensor",
    "TooEarly",
    "Undefined",
    "Unsupported",
    "parse",
    "run",
]
