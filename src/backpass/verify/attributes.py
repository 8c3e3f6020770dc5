"""Read, copy, and replace the numbers that a layer holds.

They are its floating-point arrays and its Python floats, in attributes, lists, tuples,
dictionaries, and other objects. Arrays that share memory, such as views of one array of
all parameters, share it in a copy too.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from types import (
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from backpass.contract.arrays import Array, is_array
from backpass.verify.convert import is_floating, is_torch, to_kind_of, to_numpy
from backpass.verify.subject import called

Path = tuple[Any, ...]
# Where a class holds no parameters, but perhaps half a process, as a logger does.
OF_PYTHON = sys.stdlib_module_names - {"__main__", "types", "collections"}
# What most classes hold: methods, texts, and descriptors.
OF_CLASSES = {FunctionType, str, type(None), staticmethod, classmethod, property}
OF_CLASSES |= {dict, tuple, bool, int, GetSetDescriptorType, MemberDescriptorType}
TWO_FUNCTIONS = (
    "or give its two functions, as an object whose forward returns (y, saved)"
)


def numbers_in(
    holder: Any, path: Path = (), within: tuple[int, ...] = ()
) -> Iterator[tuple[Path, Array | float]]:
    """Yield the floating-point arrays and Python floats of a layer and of the objects
    that it holds, each with its path."""
    for key, value in _entries(holder):
        place = (*path, key)
        if is_floating(value):
            yield place, value
            if is_torch(value) and value.is_leaf and value.grad is not None:
                yield (*place, "grad"), value.grad
        elif type(value) is float:
            yield place, value
        elif not is_array(value) and id(value) not in within:
            yield from numbers_in(value, place, (*within, id(value)))


def numbers(value: Array | float) -> np.ndarray:
    """Return a copy of an array or a float as a NumPy array."""
    return to_numpy(value) if is_array(value) else np.array(value, np.float64)


def _entries(holder: Any) -> list[tuple[Any, Any]]:
    if isinstance(holder, Mapping):
        return list(holder.items())
    if isinstance(holder, list | tuple):
        return list(enumerate(holder))
    if isinstance(holder, ModuleType | type) or inspect.isroutine(holder):
        return []
    if type(holder).__module__.partition(".")[0] in OF_PYTHON:
        return []
    slots = (getattr(of, "__slots__", ()) for of in type(holder).__mro__)
    names = [name for of in slots for name in ([of] if isinstance(of, str) else of)]
    own = {name: getattr(holder, name) for name in names if hasattr(holder, name)}
    of_class = {
        name: value
        for of in reversed(type(holder).__mro__[:-1])  # all but object
        for name, value in vars(of).items()
        if type(value) not in OF_CLASSES
        and (type(value) is float or is_floating(value))
    }
    return list({**of_class, **own, **getattr(holder, "__dict__", {})}.items())


def held(layer: Any, path: Path) -> Any:
    """Return what a layer holds at a path, or None."""
    for key in path:
        if isinstance(layer, Mapping | list | tuple):
            known = key in layer if isinstance(layer, Mapping) else key < len(layer)
            layer = layer[key] if known else None
        else:
            layer = getattr(layer, key, None)
    return layer


def put(holder: Any, path: Path, value: Any) -> Any:
    """Put a value in its place; return the holder, which is a new one for a tuple."""
    key, *rest = path
    if rest:
        value = put(held(holder, (key,)), tuple(rest), value)
    if isinstance(holder, tuple):
        parts = [*holder[:key], value, *holder[key + 1 :]]
        return type(holder)(*parts) if hasattr(holder, "_fields") else tuple(parts)
    if isinstance(holder, MutableMapping | list):
        holder[key] = value
    else:
        setattr(holder, key, value)
    return holder


# Copies


def copied(
    layer: Any,
    leaves: Mapping[Path, Any] | None = None,
    groups: Sequence[Shared] | None = None,
) -> Any:
    """Return a deep copy, in which a tensor keeps its gradient and arrays that share
    memory still do. ``leaves`` are the layer's ``numbers_in``, and ``groups`` those
    that are ``shared``, if they are known.

    A module, a lock, or another object that cannot be copied is in the copy itself.
    Raises TypeError for an iterator, because it would return other values each time.
    """
    leaves = dict(numbers_in(layer)) if leaves is None else leaves
    known = {
        id(leaves[path]): view
        for group in (shared(leaves) if groups is None else groups)
        if not is_torch(next(iter(group.arrays.values())))
        for path, view in group.copies().items()
    }
    known |= {
        id(value): value.detach().clone()
        for value in leaves.values()
        if is_torch(value) and not value.is_leaf
    }
    try:
        made = copy.deepcopy(layer, {**known})
    except Exception:
        for place, value, error in _not_copied(layer):
            if hasattr(value, "__next__"):
                where = ".".join(map(str, place)) or "the layer"
                raise TypeError(
                    f"op: expected a layer that can be copied, because each forward runs "
                    f"on a copy; {where} of {called(layer)} cannot be copied ({error}): keep its "
                    f"values in a list, {TWO_FUNCTIONS}"
                ) from error
            known[id(value)] = value
        try:
            made = copy.deepcopy(layer, {**known})
        except Exception as error:
            raise TypeError(
                f"op: expected a layer that can be copied, because each forward runs on a "
                f"copy; {called(layer)} cannot be copied ({error}): define its __deepcopy__, "
                f"{TWO_FUNCTIONS}"
            ) from error
    for path in leaves:
        if path[-1:] == ("grad",) and is_torch(held(layer, path[:-1])):
            put(made, path, held(layer, path).clone())
    return made


def _not_copied(
    holder: Any, path: Path = (), within: tuple[int, ...] = ()
) -> Iterator[tuple[Path, Any, Exception]]:
    """Yield the objects in a layer that cannot be copied, the innermost ones, each with
    its path and the error."""
    for key, value in _entries(holder):
        if is_array(value) or id(value) in within:
            continue
        try:
            copy.deepcopy(value)
        except Exception as error:
            place = (*path, key)
            inner = [*_not_copied(value, place, (*within, id(value)))]
            yield from inner or [(place, value, error)]


# Arrays that share memory


@dataclass(frozen=True)
class Shared:
    """Arrays that are views of one block of memory, by path, with the shape, the
    strides, and the offset of each. The block's size and these are in elements."""

    size: int
    arrays: dict[Path, Array]
    layouts: dict[Path, tuple[tuple[int, ...], tuple[int, ...], int]]

    def overlapping(self, path: Path) -> set[Path]:
        """Return the paths of arrays that share an element with the one at a path."""
        if path not in self.layouts:
            return set()
        places = np.arange(self.size)
        own = self._view(places, path)
        return {
            other
            for other in self.layouts
            if np.isin(self._view(places, other), own).any()
        }

    def copies(self) -> dict[Path, Any]:
        """Return copies of NumPy arrays, as views of a new block."""
        first = next(iter(self.arrays.values()))
        return self._views(np.zeros(self.size, first.dtype), self.arrays)

    def replaced(self, new: Mapping[Path, Any]) -> dict[Path, Any]:
        """Return all arrays as views of a new block, which has the new values of some
        and the others' own. Return none if no value is new."""
        values = {path: new[path] for path in self.arrays if path in new}
        if not values:
            return {}
        like = next(iter(values.values()))
        kept = {path: to_kind_of(like, numbers(x)) for path, x in self.arrays.items()}
        zeros = to_kind_of(like, np.zeros(self.size))
        self._views(zeros, kept)
        for path, value in values.items():
            self._view(zeros, path)[...] = value
        return {path: self._view(zeros, path) for path in self.arrays}

    def _views(self, block: Any, values: Mapping[Path, Any]) -> dict[Path, Any]:
        made = {path: self._view(block, path) for path in self.layouts}
        for path, view in made.items():
            view[...] = values[path]
        return made

    def _view(self, block: Any, path: Path) -> Any:
        shape, strides, offset = self.layouts[path]
        if is_torch(block):
            return block.as_strided(shape, strides, offset)
        steps = tuple(stride * block.itemsize for stride in strides)
        return np.ndarray(shape, block.dtype, block, offset * block.itemsize, steps)


def shared(leaves: Mapping[Path, Array | float]) -> list[Shared]:
    """Return the blocks of which several of the arrays are views."""
    groups: dict[Any, list[Path]] = {}
    for path, x in leaves.items():
        if is_torch(x) and not x.requires_grad and x.layout == x.new_empty(0).layout:
            groups.setdefault((x.untyped_storage().data_ptr(), x.dtype), []).append(
                path
            )
        elif isinstance(x, np.ndarray) and _whole_strides(x):
            groups.setdefault((id(_root(x)), x.dtype), []).append(path)
    return [
        _block({path: leaves[path] for path in paths})
        for paths in groups.values()
        if len({id(leaves[path]) for path in paths}) > 1
    ]


def _block(arrays: dict[Path, Any]) -> Shared:
    layouts, first = {}, next(iter(arrays.values()))
    if is_torch(first):
        size = first.untyped_storage().nbytes() // first.element_size()
        for path, x in arrays.items():
            layouts[path] = tuple(x.shape), tuple(x.stride()), x.storage_offset()
        return Shared(size, arrays, layouts)
    low, high = byte_bounds(_root(first))
    for path, x in arrays.items():
        steps = tuple(stride // x.itemsize for stride in x.strides)
        start = x.__array_interface__["data"][0] - low
        layouts[path] = x.shape, steps, start // x.itemsize
    return Shared((high - low) // first.itemsize, arrays, layouts)


def _root(x: np.ndarray) -> np.ndarray:
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


def _whole_strides(x: np.ndarray) -> bool:
    """Whether an array's strides are multiples of its elements, which are those of the
    array that it is a view of."""
    return _root(x).dtype == x.dtype and all(
        stride % x.itemsize == 0 for stride in x.strides
    )
