"""Launches executed on the CPU as compiled: Triton emits PTX for compute capability
8.0, and ``backpass.ptx`` executes it.

With ``BACKPASS_PTX=1`` in the environment, kernels run in this way on CPU tensors. It
takes about as long as Triton's interpreter, but rounds as the GPU does, also in
bfloat16, and raises a ``ptx.Fault`` for a race or an access out of bounds.
"""

from __future__ import annotations

from functools import cache

import torch

from backpass import ptx
from backpass.kernels.resources import compile_launch

CAPABILITY = 80  # Ampere, the A100


def run(launch) -> ptx.Report:
    """Execute the launch, and return what its programs did. Raises a Fault of
    ``backpass.ptx``."""
    compiled = compile_launch(launch, CAPABILITY)
    arguments: dict[str, ptx.Tensor | int] = {}
    for name in launch.kernel.arg_names:
        value = launch.arguments.get(name)
        if isinstance(value, torch.Tensor):
            arguments[name] = tensor(value)
        elif isinstance(value, int) and value != 1:  # which Triton compiles in
            arguments[name] = value
    shared = compiled.metadata.shared
    program = _parsed(compiled.asm["ptx"])
    return ptx.run(program, arguments, blocks=launch.programs, shared=shared)


def tensor(x: torch.Tensor) -> ptx.Tensor:
    """Return all memory of a tensor's storage, and where the tensor begins in it."""
    elements = x.untyped_storage().nbytes() // x.element_size()
    whole = torch.as_strided(x, (elements,), (1,), 0).detach()
    offset = int(x.storage_offset()) * x.element_size()
    return ptx.Tensor(whole.view(torch.uint8).numpy(), offset)


_parsed = cache(ptx.parse)
