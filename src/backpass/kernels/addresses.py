"""The addresses of tensors that a program passes to kernels inside other tensors.

A kernel for a group of matrices loads the address of each matrix from a tensor of
``data_ptr()``. Executed kernels have other addresses than PyTorch: each tensor has an
address space of its own, so that a wrong stride leads out of the tensor and not into
another one. This module gives out such addresses, and finds the tensor of one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from backpass.ptx.tensors import PAGE, SPACE
from backpass.torch_internals import storage_from

FIRST = 1 << 10  # the first of these spaces; those before are of a kernel's arguments


class _Asked(NamedTuple):
    """A tensor whose address was given out, which this does not keep alive."""

    storage: StorageWeakRef
    start: int  # the address of the storage
    dtype: torch.dtype
    view: tuple[torch.Size, tuple[int, ...], int]  # shape, strides, and offset


class Addresses:
    """The addresses that ``data_ptr`` returns."""

    def __init__(self) -> None:
        self._asked: dict[int, _Asked] = {}  # by the address in this process
        self._count = 0

    def of(self, x: torch.Tensor) -> int:
        """Return the address of a tensor, and remember it."""
        storage = x.untyped_storage()
        real = storage.data_ptr()
        if not real:
            return 0
        if (start := self.start(x)) is None:
            start = (FIRST + self._count) * SPACE + real % PAGE
            self._count += 1
            view = x.shape, x.stride(), int(x.storage_offset())
            self._asked[real] = _Asked(StorageWeakRef(storage), start, x.dtype, view)
        return start + int(x.storage_offset()) * x.element_size()

    def start(self, x: torch.Tensor) -> int | None:
        """Return the address of a tensor's storage, or None if it was not asked for."""
        entry = self._asked.get(x.untyped_storage().data_ptr())
        return None if entry is None or entry.storage.expired() else entry.start

    def at(self, address: int) -> torch.Tensor | None:
        """Return the element at an address, of this process or of those that ``of``
        returns, or None if it is not of a tensor whose address was asked for."""
        for begin, x in self._asked.items():
            if x.storage.expired():
                continue
            own = storage_from(x.storage.cdata)
            for start in (begin, x.start):
                if start <= address < start + own.nbytes():
                    offset = (address - start) // x.dtype.itemsize
                    return torch.empty(0, dtype=x.dtype).set_(own, offset, (1,), (1,))
        return None

    def find(self, address: int) -> tuple[str, torch.Tensor] | None:
        """Return the tensor at an address, with a name for messages, or None if a
        tensor is not known there or has been freed."""
        for x in self._asked.values():
            if x.start // SPACE == address // SPACE and not x.storage.expired():
                own = storage_from(x.storage.cdata)
                shape, strides, offset = x.view
                found = torch.empty(0, dtype=x.dtype).set_(own, offset, shape, strides)
                return f"tensor {x.start // SPACE - FIRST + 1} by address", found
        return None
