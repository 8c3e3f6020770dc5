"""Follow the storages of PyTorch's tensors while they are alive."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

from torch import Tensor

from backpass.torch_internals import Unread, storage_id


class Live(Unread):
    """A mode that follows each storage that an operator allocates until it is freed.

    An event is a storage's number and its bytes, negative when it is freed. Memory that
    an operator allocates and frees internally is not recorded. Reading a tensor on the
    device "meta", which has no values, returns 0 or False.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[int, int]] = []
        self._numbers: dict[int, int] = {}
        self._next = itertools.count()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = super().__torch_dispatch__(func, types, args, kwargs)
        self._add_all(found)
        return found

    def _add_all(self, found: Any) -> None:
        if isinstance(found, Tensor):
            self.add(found)
        elif isinstance(found, (tuple, list)):
            for part in found:
                self._add_all(part)

    def add(self, x: Tensor, *, counted: bool = True) -> None:
        """Follow a tensor's storage from now on. If it is not ``counted``, it has 0
        bytes, as for a parameter, which is in memory anyway."""
        key = storage_id(x)
        if key in self._numbers:
            return
        storage = x.untyped_storage()
        number = self._numbers[key] = next(self._next)
        size = storage.nbytes() if counted else 0
        self.events.append((number, size))
        weakref.finalize(storage, self._free, key, number, size)

    def number(self, x: Tensor) -> int:
        """Return the number of a living tensor's storage."""
        return self.number_of(storage_id(x))

    def number_of(self, key: int) -> int:
        """Return the number of a living storage, given its ``storage_id``."""
        return self._numbers[key]

    def _free(self, key: int, number: int, size: int) -> None:
        del self._numbers[key]
        self.events.append((number, -size))

    @property
    def peak(self) -> int:
        """The most bytes that were alive at any time."""
        alive = most = 0
        for _, size in self.events:
            alive += size
            most = max(most, alive)
        return most
