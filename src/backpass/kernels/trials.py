"""Find what the trials of an autotuned kernel leave behind.

Triton's autotuner runs each configuration on the tensors of the first call. A kernel
that adds to a tensor, or works in place, then starts from what the trials have written,
unless ``reset_to_zero`` or ``restore_value`` names the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from backpass import ptx
from backpass.torch_internals import without_torch_functions

LARGEST = 1 << 26  # bytes of all tensors; a call with more is not repeated
MemoryOf = Callable[[torch.Tensor], ptx.Tensor]


class Memory:
    """The bytes of a call's tensors, before the call."""

    def __init__(self, given: Mapping[str, Any], memory_of: MemoryOf) -> None:
        with without_torch_functions():
            found = {
                name: memory_of(x)
                for name, x in given.items()
                if isinstance(x, torch.Tensor) and x.device.type == "cpu"
            }
        if sum(len(x.bytes) for x in found.values()) > LARGEST:
            found = {}
        self._bytes = {name: x.bytes for name, x in found.items()}
        self._before = self.copied()
        self._defined = {
            name: x.defined.copy() if isinstance(x.defined, np.ndarray) else x.defined
            for name, x in found.items()
        }

    def copied(self) -> dict[str, np.ndarray]:
        """Return a copy of all bytes as they are."""
        return {name: own.copy() for name, own in self._bytes.items()}

    def restore(self, copied: Mapping[str, np.ndarray] | None = None) -> None:
        """Restore the bytes from a copy, by default those before the call."""
        for name, own in (copied or self._before).items():
            self._bytes[name][...] = own

    @property
    def overwritten(self) -> bool:
        """Whether bytes have changed that were defined before the call. A kernel cannot
        depend on others."""
        return any(
            (
                (own != self._before[name])
                & np.broadcast_to(self._defined[name], own.shape)
            ).any()
            for name, own in self._bytes.items()
        )

    def differing(self, copied: Mapping[str, np.ndarray]) -> list[str]:
        """Return the names of the tensors whose bytes differ from those of a copy."""
        own = self._bytes.items()
        return [name for name, x in own if not np.array_equal(x, copied[name])]


def sentence(kernel: str, names: Iterable[str]) -> str:
    """Return what is wrong with an autotuned kernel, and what to do about it."""
    listed = ", ".join(names)
    return (
        f"the trials of the autotuned {kernel} change what its launch computes in "
        f"{listed}: list {listed} in reset_to_zero or restore_value of triton.autotune"
    )
