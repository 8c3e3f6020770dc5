"""Measure the bytes that an operation keeps between forward and backward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import partial
from typing import Any

import array_api_compat
import numpy as np

from backpass.contract.arrays import Array, is_array
from backpass.cost.inputs import drawn, load
from backpass.operation import Operation


@dataclass(frozen=True)
class Kept:
    """One storage that ``saved`` keeps alive, described by its first array.

    ``is_parameter`` is also true for a constant, such as a table of cosines: both are
    in memory before the step.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    is_parameter: bool

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.shape))}] {self.dtype}"


@dataclass(frozen=True)
class Memory:
    """The storages that ``saved`` keeps alive, each once."""

    arrays: tuple[Kept, ...]

    @property
    def activations(self) -> int:
        """The bytes of all except parameters: what a training step adds to memory."""
        return sum(kept.bytes for kept in self.arrays if not kept.is_parameter)

    @property
    def parameters(self) -> int:
        """The bytes of the parameters among them, which stay in memory anyway."""
        return sum(kept.bytes for kept in self.arrays if kept.is_parameter)


def memory(op: object, *inputs: object, **options: object) -> Memory:
    """Run forward and list the storages that ``saved`` keeps alive.

    ``inputs`` are NumPy arrays, PyTorch tensors (those on the device "meta" take no
    memory), shapes, or None; ``options`` are forward's. A view counts as the whole
    storage that it keeps alive, once for all views of it. A value that is not an array
    counts 0. Raises TypeError if ``saved`` hides arrays in an unknown container.
    """
    op = load(op)
    return memory_of(op, drawn(op, inputs), options)


def saved_bytes(op: object, *inputs: object, **options: object) -> int:
    """Return the bytes that ``saved`` keeps, each storage once.

    Parameters and constants (the module's PARAMETERS and CONSTANTS) do not count.
    """
    return memory(op, *inputs, **options).activations


def memory_of(
    op: Any, arrays: dict[str, Array | None], options: dict[str, object]
) -> Memory:
    _, saved = op.forward(*arrays.values(), **options)
    operation = Operation(op)
    there_anyway = (*operation.parameters, *operation.constants)
    parameters = {
        storage_of(arrays[key])[0]
        for key in there_anyway
        if arrays.get(key) is not None
    }
    storages: dict[int, Kept] = {}
    for name, array in _arrays(saved, ""):
        key, size = storage_of(array)
        dtype = str(array.dtype).removeprefix("torch.")
        storages.setdefault(
            key, Kept(name, tuple(array.shape), dtype, size, key in parameters)
        )
    return Memory(tuple(storages.values()))


def _arrays(saved: object, path: str) -> Iterator[tuple[str, Array]]:
    return ((name, array) for name, _, array in leaves(saved, path))


def leaves(
    value: Any, path: str = "", owner: str = ""
) -> Iterator[tuple[str, str, Array]]:
    """Yield each array of a Saved, and of nested Saveds, which composite operations
    keep: its path, the module of this package in whose Saved it is, and the array."""
    if is_array(value):
        yield path, owner, value
        return
    again = isinstance(value, partial)  # a layer that will run again
    module = (value.func if again else type(value)).__module__ or ""
    if (again or hasattr(value, "_fields")) and module.startswith("backpass."):
        owner = module
    for name, inner in _parts(value):
        yield from leaves(inner, f"{path}.{name}" if path else str(name), owner)


def _parts(value: object) -> Iterable[tuple[object, object]]:
    """Return what a container holds, by name; nothing for a fact such as a size.

    Raises TypeError for an object that hides arrays, whose bytes would otherwise count
    0.
    """
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, partial):
        return [*enumerate(value.args), *value.keywords.items()]
    if isinstance(value, (tuple, list)):
        return zip(getattr(value, "_fields", range(len(value))), value, strict=True)
    attributes = getattr(value, "__dict__", {})
    if is_dataclass(value):
        return attributes.items()
    if any(map(is_array, attributes.values())):
        raise TypeError(
            "saved: expected arrays, alone or in a tuple, list, dict or dataclass; "
            f"got {type(value).__name__}"
        )
    return ()


def storage_of(array: Array) -> tuple[int, int]:
    """Return what identifies an array's storage while it is alive, and its bytes."""
    if array_api_compat.is_torch_array(array):
        from backpass.torch_internals import storage_id

        return storage_id(array), array.untyped_storage().nbytes()
    if not isinstance(array, np.ndarray):
        raise TypeError(
            "saved: expected NumPy arrays or PyTorch tensors, whose bytes are known; "
            f"got {type(array).__name__}"
        )
    owner: object = array
    # NumPy's as_strided puts an object that is not an array in between.
    while (owner := getattr(owner, "base", None)) is not None:
        array = owner if isinstance(owner, np.ndarray) else array
    return id(array), array.nbytes
