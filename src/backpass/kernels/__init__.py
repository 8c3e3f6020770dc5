"""The operations in Triton: the same ``forward`` and ``backward``, on torch tensors,
one module per stem.

The formulas are those of ``backpass.ops.<stem>``. The norms also have
``forward_of_sum`` and ``backward_of_sum``, for rows that are a residual sum, and RMS
norm has ``forward_rotated``, for rows that RoPE then rotates. This is the only folder
that imports triton, and it imports it only when a kernel is loaded. Kernels run on a
CUDA device. They run on the CPU, slowly, in Triton's interpreter, or as compiled in
``compiled.executing()``; that is how they are tested without a GPU. The interpreter is
chosen once per process: ``TRITON_INTERPRET=1`` must be set when triton is first
imported.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from backpass.contract.stems import modules_in, no_such

# A kernel has the name of its operation; kernels share the other modules of the folder.
STEMS = tuple(stem for stem in modules_in("ops") if stem in modules_in("kernels"))


# How kernels run without a GPU, for messages.
ON_CPU = (
    "on the CPU, set TRITON_INTERPRET=1 before triton is imported to run kernels in "
    "Triton's interpreter, or run them as compiled in kernels.compiled.executing()"
)

executions: list[Any] = []  # the drivers of ``compiled.executing()``, the inner last


def load(stem: str) -> ModuleType:
    """Return the kernel's module. Raises LookupError if there is no such kernel, and
    ImportError if torch or triton is not installed."""
    if stem not in STEMS:
        raise LookupError(no_such("kernel", stem, STEMS))
    if reason := missing():
        raise ImportError(reason)
    return import_module(f"{__name__}.{stem}")


def available() -> str | None:
    """Return None if kernels can run; otherwise the reason why they cannot, and what
    would change that."""
    if reason := missing():
        return reason
    if _is_on("TRITON_INTERPRET"):
        too_late = "TRITON_INTERPRET=1 was set after triton was imported; set it before"
        return None if interpreted() else too_late
    import torch

    if not torch.cuda.is_available() and not executed():
        return "no CUDA device; to run kernels on the CPU, set TRITON_INTERPRET=1 before triton is imported"
    return None


def interpreted() -> bool:
    """Whether kernels of this process run in Triton's interpreter. Imports triton,
    which decides it."""
    import triton.language as tl

    return type(tl.max).__name__ == "InterpretedFunction"


def executed() -> bool:
    """Whether kernels of this process run on the CPU as compiled, within
    ``compiled.executing()`` or because ``BACKPASS_PTX=1`` is set."""
    return bool(executions) or (_is_on("BACKPASS_PTX") and not interpreted())


def on_cpu() -> bool:
    """Whether kernels of this process take tensors on the CPU."""
    return interpreted() or executed()


def device() -> str:
    """Return where kernels run in this process: "cuda", or "cpu" in the interpreter or
    as compiled. Raises RuntimeError if they cannot run."""
    if reason := available():
        raise RuntimeError(reason)
    return "cpu" if on_cpu() else "cuda"


def interpret_without_cuda() -> None:
    """Choose Triton's interpreter for this process if there is no CUDA device and
    triton is not imported yet."""
    import torch

    as_compiled = _is_on("BACKPASS_PTX")
    if (
        not torch.cuda.is_available()
        and "triton" not in sys.modules
        and not as_compiled
    ):
        os.environ["TRITON_INTERPRET"] = "1"


def _is_on(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes", "on", "y")


def missing() -> str | None:
    """Return None if torch and triton are installed; otherwise a sentence."""
    absent = [name for name in ("torch", "triton") if find_spec(name) is None]
    return (
        f"{' and '.join(absent)} not installed; kernels need both" if absent else None
    )
