"""What the operations need of an array library beyond the array API standard, and no more.

An operation is written once, against the namespace of whatever array it is given: NumPy, PyTorch
(CPU or CUDA), or this package's closed-world arrays, which compute on symbols or count themselves.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import array_api_compat

Array = Any  # whatever implements the array API: numpy.ndarray, torch.Tensor, interpreters' Array


def is_array(value: object) -> bool:
    """Whether ``value`` is an array of some library (Python numbers, lists and None are not)."""
    return hasattr(value, "__array_namespace__") or array_api_compat.is_array_api_obj(value)


def namespace(*arrays: Array | None) -> ModuleType:
    """The array API namespace that the given arrays (None is skipped) share.

    Raises TypeError when they come from different libraries.
    """
    return array_api_compat.array_namespace(*(a for a in arrays if a is not None))


def size(shape: tuple[int, ...]) -> int:
    """Number of elements of an array of that shape; 1 for the shape of a scalar."""
    return math.prod(shape)


def transpose(x: Array) -> Array:
    """``x[*, m, n]`` with its last two axes swapped: ``[*, n, m]``. A view where the library has views."""
    return namespace(x).matrix_transpose(x)


def as_matrix(x: Array) -> Array:
    """``x[*, n]`` with all leading axes merged into one: ``[m, n]``."""
    return namespace(x).reshape(x, (size(x.shape[:-1]), x.shape[-1]))


def widened(x: Array) -> Array:
    """``x`` in float32 where its type has 16 bits, in which squares overflow and sums lose digits; else ``x`` itself."""
    xp = namespace(x)
    short = str(x.dtype).rpartition(".")[2] in ("float16", "bfloat16")
    return xp.astype(x, xp.float32) if short else x


def as_type_of(x: Array, like: Array) -> Array:
    """``x`` rounded to the dtype of ``like``; ``x`` itself where it has that."""
    return x if x.dtype == like.dtype else namespace(x).astype(x, like.dtype)


def sum_to_shape(x: Array, shape: tuple[int, ...]) -> Array:
    """Sum ``x`` over the axes along which an array of ``shape`` was broadcast to reach ``x.shape``.

    This is the adjoint of broadcasting. Nothing is added where nothing was broadcast.
    """
    xp = namespace(x)
    new_axes = len(x.shape) - len(shape)
    stretched = [
        axis
        for axis, length in enumerate(x.shape)
        if axis < new_axes or (shape[axis - new_axes] == 1 and length != 1)
    ]
    if stretched:
        x = xp.sum(x, axis=tuple(stretched), keepdims=True)
    return xp.reshape(x, shape)


def one_hot(index: Array, length: int) -> Array:
    """Booleans ``[*, length]``: for each integer of ``index[*]`` true in its place, nowhere if it has none."""
    xp = namespace(index)
    return xp.arange(length, device=index.device) == index[..., None]


def pick(x: Array, index: Array) -> Array:
    """The entry of each row of ``x[*, n]`` that ``index[*]`` names, ``[*]``; 0 where the index is −1."""
    xp = namespace(x, index)
    found = xp.take_along_axis(x, index[..., None], axis=-1)[..., 0]  # −1 reads the last entry
    return xp.where(index < 0, 0.0, found)
