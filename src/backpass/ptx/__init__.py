"""Execute the PTX of GPU kernels with NumPy, and report their faults.

Triton compiles a kernel to PTX, the assembly language of NVIDIA's GPUs. This package
executes the PTX. It computes all threads of a block as one vector, in the number
formats of the hardware. Its memory records which threads have accessed each byte. The
execution shows what a kernel computes in the dtype for which it was compiled. It also
finds faults that can leave the result correct: accesses out of bounds, races, and uses
of uninitialised values. As long as nothing can be a fault, all blocks are one vector.

    program = ptx.parse(text)
    ptx.run(program, {"x": ptx.Tensor(x.view(np.uint8)), "n": 300}, blocks=4)

To learn PTX from this package, read its modules in this order:

- ``parse``: what a line says
- ``formats`` and ``eight_bits``: numbers and rounding
- ``arithmetic`` and ``approximate``: what a thread computes
- ``tensor_cores``: what a warp computes
- ``released``, ``races``, and ``accesses``: who accesses bytes, and in which order
- ``atomics``, ``memory``, and ``tensors``: which accesses are allowed
- ``values``, ``registers``, and ``garbage``: which bits of a register are defined
- ``threads``: what the threads of a block share
- ``computed``: instructions that only compute, by their operands and results
- ``moves``, ``warps``, and ``copies``: how threads access memory, meet, and copy
- ``proxy``: what a GPU's asynchronous proxy does beside the threads
- ``descriptors``, ``products``, and ``warpgroups``: how four warps multiply (wgmma)
- ``mbarriers``, ``tensor_maps``, and ``bulk``: how tiles are copied (TMA)
- ``calls``: what ``tl.device_print`` and ``tl.device_assert`` call
- ``block``: how threads branch and wait
- ``steps`` and ``bundles``: which instructions can execute together
- ``beside``, ``rounded``, and ``shadow``: numbers in float64 beside those of registers
- ``rows`` and ``tracked``: registers and memory of blocks that execute together
- ``in_flight``, ``updates``, and ``conflicts``: their copies, sums, and conflicts
- ``wave``, ``wide_shadow``, and ``lockstep``: how they execute
- ``grid``: how the blocks of a kernel run
- ``traffic``: how many bytes of global memory they move

The package executes the instructions that Triton 3 emits for compute capability 8.0,
8.9, or 9.0 and that the kernels of its tests contain; any other instruction raises
``Unsupported``. It does not execute calls of other functions, accesses at generic
addresses, clusters of blocks, warps with different roles (warp specialisation), or
features of later GPUs. It does not check timing or the order of accesses within a warp.
"""

from backpass.ptx.approximate import Coarse
from backpass.ptx.faults import (
    Assertion,
    AtomicSum,
    Barrier,
    Fault,
    HalfWord,
    LastBits,
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
from backpass.ptx.tensor_cores import rounds_to_tf32, with_all_digits
from backpass.ptx.tensor_maps import Mapped, TensorMap
from backpass.ptx.traffic import Moved

__all__ = [
    "Assertion",
    "AtomicSum",
    "Barrier",
    "Coarse",
    "Fault",
    "HalfWord",
    "LastBits",
    "Mapped",
    "Misaligned",
    "Moved",
    "Order",
    "OutOfBounds",
    "Place",
    "Program",
    "Race",
    "Report",
    "Tensor",
    "TensorMap",
    "TooEarly",
    "Undefined",
    "Unsupported",
    "parse",
    "rounds_to_tf32",
    "run",
    "with_all_digits",
]
