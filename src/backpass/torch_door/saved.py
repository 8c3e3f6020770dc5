"""What ``forward`` saved, as an operator of ``torch.library`` can return it.

An operator returns tensors, and none of them may be, or share memory with, an input or
another output. What forward saves breaks these rules: softmax saves its y, a linear
layer saves its x and w, and other operations also save a size or the name of a dtype.
So forward's operator returns

- y, the output;
- own, the saved arrays that are neither an input nor y;
- sources, which gives the position of each saved array in ``[*inputs, y, *own]``. The
  positions are the lengths of an empty tensor's axes, which can be read without its
  values, even while torch.compile traces;
- facts, on the CPU: the number of the structure that was saved, then the numbers in it.
  Some depend on data, such as the number of counted targets.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import torch

from backpass import torch_internals as internals
from backpass.contract.shapes import Outline

Tensor = torch.Tensor


class _Place(NamedTuple):
    """The place of a leaf of Saved: of an array, or of a number, of type ``kind``."""

    kind: type


class _Structure(NamedTuple):
    """A Saved without its arrays and numbers, and the module that wrote it, whose
    backward will read it."""

    module: ModuleType
    saved: Any


_numbers = itertools.count()
_number_of: dict[_Structure, int] = {}
_structures: dict[int, _Structure] = {}


def without_aliases(
    inputs: tuple[Tensor | None, ...], y: Tensor, saved: tuple
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Return y, own and sources, as the docstring of this module describes them."""
    pool: list[Tensor | None] = [*inputs, y]
    own: list[Tensor] = []
    sources: list[int] = []
    for array in tensors_in(saved):
        found = (i for i, x in enumerate(pool) if x is not None and _same(array, x))
        at = next(found, len(pool))
        if at == len(pool):
            own.append(unaliased(array, pool))
            pool.append(own[-1])
        sources.append(at)
    return unaliased(y, inputs), own, y.new_empty((0, *sources))


def facts_of(module: ModuleType, saved: tuple) -> Tensor:
    """Return the number of the structure of ``saved``, followed by the numbers in
    ``saved``."""
    numbers = [number_of(module, saved), *map(float, numbers_in(saved))]
    return torch.tensor(numbers, dtype=torch.float64, device="cpu")


def number_of(module: ModuleType, saved: tuple) -> int:
    """Return the number of the structure of ``saved``. A new structure gets one."""
    structure = _Structure(module, emptied(saved))
    if (number := _number_of.get(structure)) is None:
        number = _number_of.setdefault(structure, next(_numbers))
        _structures[number] = structure
    return number


def without_tensors(module: ModuleType, saved: tuple) -> tuple:
    """Return ``saved`` with a place for each array. Its structure gets a number, in
    case torch.compile traces the backward, which then needs one."""
    found = emptied(saved, (Tensor,))
    if found not in (seen := _seen.setdefault(module, set())):
        number_of(module, saved)
        if len(seen) >= MOST_SEEN:  # a Saved may hold numbers that depend on data
            seen.clear()
        seen.add(found)
    return found


_seen: dict[ModuleType, set[tuple]] = {}
MOST_SEEN = 1024


def read(facts: Tensor, arrays: list[Tensor]) -> tuple[ModuleType, tuple]:
    """Return the module that saved, and what it saved."""
    number, *others = facts.tolist()
    numbers = iter(others)
    module, emptied = _structures[int(number)]
    left = {Tensor: iter(arrays), int: map(_integer, numbers), float: numbers}
    return module, filled(emptied, left)


def filled(part: Any, left: dict[type, Iterator]) -> Any:
    """Return ``part`` of an emptied Saved. Each place gets the next leaf of its type
    from ``left``."""
    if type(part) is _Place:
        return next(left[part.kind])
    if isinstance(part, tuple):
        if int not in left and type(part) in _WITHOUT_TENSORS:
            return part
        return _tuple_like(part, [filled(inner, left) for inner in part])
    return part


def emptied(part: Any, kinds: tuple[type, ...] = (Tensor, int, float)) -> Any:
    """Return ``part`` of a Saved with a place for each array and number, or for those
    of certain kinds."""
    if isinstance(part, tuple):
        if int not in kinds and type(part) in _WITHOUT_TENSORS:
            return part
        return _tuple_like(part, [emptied(inner, kinds) for inner in part])
    kind = _kind(part)
    return _PLACES[kind] if kind in kinds else part


_WITHOUT_TENSORS = Outline, torch.Size
_PLACES: dict[Any, _Place] = {kind: _Place(kind) for kind in (Tensor, int, float)}


def _leaves(part: Any) -> Iterator[Any]:
    if isinstance(part, tuple):
        for inner in part:
            yield from _leaves(inner)
    else:
        yield part


def tensors_in(saved: tuple) -> list[Tensor]:
    found: list[Tensor] = []
    for part in saved:
        if isinstance(part, Tensor):
            found.append(part)
        elif isinstance(part, tuple) and type(part) not in _WITHOUT_TENSORS:
            found += tensors_in(part)
    return found


def numbers_in(saved: tuple) -> list[float]:
    return [leaf for leaf in _leaves(saved) if _kind(leaf) in (int, float)]


def _tuple_like(like: tuple, parts: Iterable[Any]) -> tuple:
    kind: Any = type(like)
    return kind._make(parts) if hasattr(kind, "_make") else tuple(parts)


def _kind(leaf: Any) -> type | None:
    """Return the type of a leaf that is passed separately: an array, an integer or a
    float. Return None for a leaf that belongs to the structure."""
    if type(leaf) in _KINDS:
        return _KINDS[type(leaf)]
    if isinstance(leaf, Tensor):
        return Tensor
    if isinstance(leaf, int | torch.SymInt) and not isinstance(leaf, bool):
        return int
    return float if isinstance(leaf, float | torch.SymFloat) else None


# Of the usual leaves, which are found sooner here.
_KINDS: dict[type, type | None] = {
    **{kind: kind for kind in (Tensor, int, float)},
    torch.nn.Parameter: Tensor,
    **dict.fromkeys((str, bool, type(None))),
}


def _integer(number: float) -> int | float:
    """Return the number as an integer, unless it is NaN, as the count is if no target
    is counted."""
    return int(number) if number == number else number


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether both are the same elements in the same memory."""
    return a is b or (
        internals.share_memory(a, b)
        and a.dtype == b.dtype
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.storage_offset() == b.storage_offset()
    )


def unaliased(x: Tensor, others: Iterable[Tensor | None]) -> Tensor:
    """Return ``x``, or a copy if it shares memory with one of the others."""
    for other in others:
        if other is not None and internals.share_memory(x, other):
            return x.clone(memory_format=torch.contiguous_format)
    return x
