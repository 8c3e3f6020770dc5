"""Track the memory that a program allocates without initialising it, and which of its
bytes have been written since."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from backpass.torch_internals import TorchDispatchMode, written_by

_EMPTY = {
    torch.ops.aten.empty,
    torch.ops.aten.empty_like,
    torch.ops.aten.empty_strided,
    torch.ops.aten.new_empty,
    torch.ops.aten.new_empty_strided,
}
LARGEST = 1 << 26  # bytes; larger allocations are not tracked
GARBAGE = 0xFF  # in every byte: NaN in each floating-point format, -1 for integers


class Allocated(TorchDispatchMode):
    """A mode in which ``torch.empty`` and similar functions return memory filled with
    garbage, whose bytes are undefined until they are written."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, tuple[StorageWeakRef, np.ndarray]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if func.overloadpacket in _EMPTY:
            self._add(found)
        for x in written_by(func, args, kwargs):
            known = self.defined(x)
            if known is not True:
                _elements(known, x)[...] = True
        return found

    def defined(self, x: torch.Tensor) -> np.ndarray | Literal[True]:
        """Return a mask of the bytes of the tensor's storage that have been written, or
        True if the storage is not tracked."""
        entry = self._known.get(x.untyped_storage().data_ptr())
        return True if entry is None or entry[0].expired() else entry[1]

    def unwritten(self, x: torch.Tensor) -> int:
        """Return how many elements of the tensor were never written."""
        known = self.defined(x)
        if known is True:
            return 0
        return int((~_elements(known, x).all(dim=-1)).sum())

    def _add(self, x: torch.Tensor) -> None:
        storage = x.untyped_storage()
        if x.device.type != "cpu" or not 0 < storage.nbytes() <= LARGEST:
            return
        everything = torch.as_strided(x, (storage.nbytes() // x.element_size(),), (1,))
        everything.view(torch.uint8).fill_(GARBAGE)
        mask = np.zeros(storage.nbytes(), bool)
        self._known[storage.data_ptr()] = StorageWeakRef(storage), mask


def _elements(mask: np.ndarray, x: torch.Tensor) -> torch.Tensor:
    """Return a view ``[*x.shape, bytes]`` of the mask of a storage's bytes, which
    selects the bytes of each element of ``x``."""
    size = x.element_size()
    strides = [size * stride for stride in x.stride()]
    whole = torch.from_numpy(mask)
    return whole.as_strided(
        (*x.shape, size), (*strides, 1), size * int(x.storage_offset())
    )
