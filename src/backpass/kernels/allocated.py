"""Track the memory that a program allocates without initialising it, and which of its
bytes have been written since."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from backpass.ptx.arrays import zeros
from backpass.torch_internals import (
    TorchDispatchMode,
    body,
    is_higher_order,
    read_by,
    without_torch_functions,
    written_by,
)

_EMPTY = {
    torch.ops.aten.empty,
    torch.ops.aten.empty_like,
    torch.ops.aten.empty_permuted,
    torch.ops.aten.empty_strided,
    torch.ops.aten.new_empty,
    torch.ops.aten.new_empty_strided,
}
LARGE = 1 << 26  # bytes; larger allocations are not filled
LARGEST = 1 << 30  # bytes; larger allocations are not tracked
GARBAGE = 0xFF  # in every byte: NaN in each floating-point format, -1 for integers


class Part(NamedTuple):
    """A tensor in tracked memory, which this does not keep alive."""

    storage: StorageWeakRef
    written: torch.Tensor  # of the storage's mask, the bytes of each element


class Allocated(TorchDispatchMode):
    """A mode in which ``torch.empty`` and similar functions return memory filled with
    garbage, whose bytes are undefined until they are written. So are the bytes that
    ``resize_`` adds.

    Memory above 64 MiB is not filled, and memory above 1 GiB is not tracked: it counts
    as written. A write counts if a kernel or a PyTorch operator makes it, so a tensor
    that is filled through ``x.numpy()`` counts as unwritten. Memory is
    also tracked inside an operator that is written in Python.
    """

    # Lets ``torch.library.wrap_triton`` launch a kernel in this mode.
    supports_higher_order_operators = True

    def __init__(self, functions: AbstractContextManager[Any] | None = None) -> None:
        """``functions`` is a mode that PyTorch suspends inside such an operator."""
        super().__init__()
        self._functions = functions or nullcontext()
        self._known: dict[int, tuple[StorageWeakRef, np.ndarray]] = {}
        self._misread: set[StorageWeakRef] = set()  # PyTorch has read undefined bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if is_higher_order(func):
            return func(*args, **kwargs)
        if (own := body(func)) is not None:
            with self, self._functions:
                return own(*args, **kwargs)
        with without_torch_functions():  # a mode may hide the real device of a tensor
            return self._seen(func, args, kwargs)

    def _seen(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call an operator of PyTorch, record its writes, and return its result."""
        for x in read_by(func, args, kwargs):
            part = self.part(x)
            if part is not None and _missing(part):
                self._misread.add(part.storage)
        resized = func.overloadpacket is torch.ops.aten.resize_
        kept = self._mask(args[0]) if resized else np.zeros(0, bool)
        found = func(*args, **kwargs)
        if resized or func.overloadpacket in _EMPTY:
            self._add(found, kept)
        moved = resized or func.overloadpacket is torch.ops.aten.set_  # writes nothing
        for x in () if moved else written_by(func, args, kwargs):
            known = self.defined(x)
            if known is not True:
                _elements(known, x)[...] = True
        return found

    def defined(self, x: torch.Tensor) -> np.ndarray | Literal[True]:
        """Return a mask of the bytes of the tensor's storage that have been written, or
        True if the storage is not tracked."""
        entry = self._known.get(x.untyped_storage().data_ptr())
        return True if entry is None or entry[0].expired() else entry[1]

    def _mask(self, x: torch.Tensor) -> np.ndarray:
        known = self.defined(x)
        return np.ones(x.untyped_storage().nbytes(), bool) if known is True else known

    def part(self, x: torch.Tensor) -> Part | None:
        """Return what ``unwritten`` needs to know of a tensor, or None if its memory is
        not tracked."""
        if x.device.type != "cpu" or x.layout is not torch.strided:
            return None
        known = self.defined(x)
        if known is True:
            return None
        storage = self._known[x.untyped_storage().data_ptr()][0]
        return Part(storage, _elements(known, x))

    def unwritten(self, part: Part, returned: Sequence[Part] | None = None) -> int:
        """Return how many elements were never written. Memory that has been freed has
        none, unless PyTorch has read undefined bytes of it: nobody can read it now. Of
        other memory, only the tensors ``returned`` count, if they are known: its other
        elements may pad a row."""
        if part.storage in self._misread:
            return _missing(part)
        if part.storage.expired():
            return 0
        if returned is None:
            return _missing(part)
        own = (_missing(view) for view in returned if view.storage == part.storage)
        return max(own, default=0)

    def _add(self, x: torch.Tensor, kept: np.ndarray) -> None:
        """Track the storage of a tensor, whose first bytes are ``kept``, a mask."""
        storage = x.untyped_storage()
        n = storage.nbytes()
        if x.device.type != "cpu" or not len(kept) < n <= LARGEST:
            return
        mask = zeros(n, bool)
        mask[: len(kept)] = kept
        if n <= LARGE:
            whole = torch.as_strided(x, (n // x.element_size(),), (1,), 0)
            whole.view(torch.uint8)[len(kept) :] = GARBAGE
        self._known[storage.data_ptr()] = StorageWeakRef(storage), mask


def _missing(part: Part) -> int:
    rows = part.written.unsqueeze(0) if part.written.ndim == 1 else part.written
    each = max(1, LARGE // max(1, rows[:1].numel()))
    parts = (chunk.all(dim=-1) for chunk in rows.split(each))
    return rows[..., 0].numel() - sum(int(part.count_nonzero()) for part in parts)


def _elements(mask: np.ndarray, x: torch.Tensor) -> torch.Tensor:
    """Return a view ``[*x.shape, bytes]`` of the mask of a storage's bytes, which
    selects the bytes of each element of ``x``."""
    size = x.element_size()
    strides = [size * stride for stride in x.stride()]
    whole = torch.from_numpy(mask)
    return whole.as_strided(
        (*x.shape, size), (*strides, 1), size * int(x.storage_offset())
    )
