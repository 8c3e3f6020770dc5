"""Follow the storages of PyTorch's tensors while they are alive."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from backpass.torch_internals import Unread, allocates, storage_id


class Inferring(Unread):
    """A mode in which the result of an operator on the device "meta" is inferred once
    for each kind of inputs. PyTorch infers it in Python, in many lines, and the layers
    of a model call the same operators."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[Any, _Kind] = {}  # by the operator and its inputs' kinds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = [*args, *(kwargs or {}).items()]
        try:
            key = func, *map(_kind, given)
            known = self._kinds.get(key)
        except TypeError:
            return super().__torch_dispatch__(func, types, args, kwargs)
        if known is not None:
            return known.tensor()
        found = super().__torch_dispatch__(func, types, args, kwargs)
        if allocates(func) and found.is_meta and _is_alone(found, given):
            self._kinds[key] = _kind(found)
        return found


class _Kind(NamedTuple):
    """All of a tensor without values on which the kind of a result can depend."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    def tensor(self) -> Tensor:
        return torch.empty_strided(
            self.shape, self.stride, dtype=self.dtype, device="meta"
        )


def _kind(value: Any) -> Any:
    """Return the kind of an input, or a nest of kinds. Raises TypeError for a tensor
    with values."""
    if isinstance(value, Tensor):
        if not value.is_meta:
            raise TypeError("a tensor with values")
        return _Kind(value.shape, value.stride(), value.dtype)
    if isinstance(value, (tuple, list)):
        return tuple(map(_kind, value))
    return type(value), value  # 1 equals 1.0 and True


def _is_alone(x: Tensor, given: Any) -> bool:
    """Whether a tensor has a storage of its own, of no more bytes than it needs."""
    if any(isinstance(g, Tensor) and storage_id(g) == storage_id(x) for g in given):
        return False
    least = _kind(x).tensor().untyped_storage().nbytes()
    return x.untyped_storage().nbytes() == least


class Live(Inferring):
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
