"""Compile kernels to PTX alone, which is all that is executed on the CPU.

For a GPU, Triton also assembles the PTX to machine code, which takes about as long as
compiling it, and minutes for a kernel of 20,000 lines of PTX.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from triton import knobs

KEY = "PTX alone"  # distinguishes these kernels from assembled ones in Triton's cache


@contextmanager
def unassembled() -> Iterator[None]:
    """Leave out the last stage of Triton's compilation. A hook that the user has set
    still runs, before that."""
    before = knobs.runtime.add_stages_inspection_hook
    knobs.runtime.add_stages_inspection_hook = _after(before)
    try:
        yield
    finally:
        knobs.runtime.add_stages_inspection_hook = before


def _after(before: Any) -> Any:
    def hook(*of: Any) -> tuple[str, ...] | None:
        """Change the stages of a compilation; without arguments, return the two keys
        under which Triton caches its result."""
        found = before(*of) if before else None
        if not of:
            return tuple(KEY + key for key in found or ("", ""))
        _backend, stages, *_ = of
        stages["cubin"] = lambda ptx, metadata: b""
        return None

    return hook
