"""What the operations need of an array library beyond the array API standard, and no more.

An operation is written once, against the namespace of whatever array it is given: NumPy, PyTorch
(CPU or CUDA), or this package's closed-world arrays, which compute on symbols or count themselves.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import array_api_compat
import array_api_compat.numpy
import numpy as np

Array = Any  # whatever implements the array API: numpy.ndarray, torch.Tensor, interpreters' Array


def is_array(value: object) -> bool:
    """Whether ``value`` is an array of some library (Python numbers, lists and None are not)."""
    return hasattr(value, "__array_namespace__") or array_api_compat.is_array_api_obj(
        value
    )


def namespace(*arrays: Array | None) -> ModuleType:
    """The array API namespace that the given arrays (None is skipped) share.

    Raises TypeError when they come from different libraries.
    """
    if arrays and all(type(array) is np.ndarray for array in arrays):
        return (
            array_api_compat.numpy
        )  # as below, without its search among all libraries
    return array_api_compat.array_namespace(*(a for a in arrays if a is not None))


def size(shape: Sequence[int]) -> int:
    """Number of elements of an array of that shape; 1 for the shape of a scalar."""
    return math.prod(shape)


def transpose(x: Array) -> Array:
    """``x[*, m, n]`` with its last two axes swapped: ``[*, n, m]``. A view where the library has views."""
    return namespace(x).matrix_transpose(x)


def as_matrix(x: Array) -> Array:
    """``x[*, n]`` with all leading axes merged into one: ``[m, n]``."""
    return namespace(x).reshape(x, (size(x.shape[:-1]), x.shape[-1]))


def as_number(value: Any) -> Any:
    """The value as a number of Python's own, where it is a scalar of NumPy's, which would bring its dtype along."""
    return value.item() if isinstance(value, np.generic) else value


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

    This is the adjoint of broadcasting. Nothing is added where nothing was broadcast. Numbers of 16 bits are added in
    float32.
    """
    xp = namespace(x)
    new_axes = len(x.shape) - len(shape)
    stretched = [
        axis
        for axis, length in enumerate(x.shape)
        if axis < new_axes or (shape[axis - new_axes] == 1 and length != 1)
    ]
    if stretched:
        x = as_type_of(xp.sum(widened(x), axis=tuple(stretched), keepdims=True), x)
    return xp.reshape(x, shape)


def one_hot(index: Array, length: int) -> Array:
    """Booleans ``[*, length]``: for each integer of ``index[*]`` true in its place, nowhere if it has none."""
    xp = namespace(index)
    return xp.arange(length, device=index.device) == index[..., None]


def pick(x: Array, index: Array) -> Array:
    """The entry of each row of ``x[*, n]`` that ``index[*]`` names, ``[*]``; 0 where the index is −1."""
    xp = namespace(x, index)
    found = xp.take_along_axis(x, index[..., None], axis=-1)[
        ..., 0
    ]  # −1 reads the last entry
    return xp.where(index < 0, 0.0, found)


def bounded_below(x: Array) -> Array:
    """``x`` with 0 for −∞: for a product with something that vanishes there faster, where −∞ · 0 would be NaN."""
    return namespace(x).where(x == -math.inf, 0.0, x)


def bounded(x: Array) -> Array:
    """``x`` with 0 for −∞ and for ∞."""
    return -bounded_below(-bounded_below(x))


def sigmoid(x: Array) -> Array:
    """``1/(1 + e^−x)`` in 5 FLOPs: softmax's weight of ``x`` beside a score of 0. Nothing overflows, and either tail
    keeps its digits, which ``(1 + tanh(x/2))/2`` would lose. Of tensors PyTorch's own, as good and in one pass."""
    xp = namespace(x)
    if hasattr(xp, "sigmoid"):
        return xp.sigmoid(x)
    # Subtracting one number from both exponents changes nothing. The larger of −x and 0 leaves neither positive.
    top = bounded(xp.max(xp.stack([-x, xp.zeros_like(x)]), axis=0))
    own = xp.exp(-top)
    return own / (own + xp.exp(-x - top))


def erf(x: Array) -> Array:
    """The error function; on NumPy's arrays, which have none, Python's own, an element at a time."""
    xp = namespace(x)
    return xp.erf(x) if hasattr(xp, "erf") else np.asarray(_erf_each(x), dtype=x.dtype)


def _erf_of(z: float | complex) -> float | complex:
    """The error function of one number. Python knows it for real ones; for complex ones it is summed,
    e^(−z²) · 2z/√π · Σ (2z²)ⁿ/(1·3·…·(2n + 1)), whose terms have one sign near the real axis."""
    if not isinstance(z, complex):
        return math.erf(z)
    if abs(z.real) > 6:  # where it is ±1 in float64
        return complex(math.copysign(1.0, z.real))
    square, n, total, term = z * z, 0, 0j, 1 + 0j
    while abs(term) > 1e-17 * abs(total):
        total += term
        n += 1
        term *= 2 * square / (2 * n + 1)
    return cmath.exp(-square) * 2 * z / math.sqrt(math.pi) * total


_erf_each = np.frompyfunc(_erf_of, 1, 1)


def scatter_add(rows: Array, index: Array, length: int) -> Array:
    """``out[length, n]``: row i is the sum of the ``rows[m, n]`` with ``index[m] = i``, and 0 where there is none.

    This is the adjoint of taking rows. What belongs to one row is added in one order, so the sum is the same each time.
    """
    xp = namespace(rows, index)
    if not (
        array_api_compat.is_numpy_array(rows) or array_api_compat.is_torch_array(rows)
    ):
        return xp.scatter_add(rows, index, length)
    add = _add_in_order if str(rows.device) == "cpu" else _add_sorted
    return add(
        xp.zeros((length, rows.shape[1]), dtype=rows.dtype, device=rows.device),
        index,
        rows,
    )


def _add_in_order(out: Array, index: Array, rows: Array) -> Array:
    """``out``, to which each of the rows was added in turn."""
    if array_api_compat.is_torch_array(out):
        return out.index_add_(0, index, rows)
    namespace(out).add.at(out, index, rows)
    return out


def _add_sorted(out: Array, index: Array, rows: Array) -> Array:
    """The same on a GPU, whose threads would add the rows in whatever order they come: PyTorch's ``index_put_``
    sorts them by index first, and one thread adds what belongs to one row."""
    return out.index_put_((index,), rows, accumulate=True)
