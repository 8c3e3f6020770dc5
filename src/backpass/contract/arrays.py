"""The few functions that operations need beyond the array API standard.

An operation is written once, against the namespace of the arrays it is given: NumPy's,
PyTorch's (CPU or CUDA), or this package's closed-world arrays, which compute on symbols
or count their operations.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any, TypeGuard

import array_api_compat
import array_api_compat.numpy
import numpy as np

FAR = 1e4
Array = Any  # implements the array API: a NumPy array, a tensor, an interpreter's Array
Gradients = tuple[Array | None, ...]  # None for one that is not wanted


def is_array(value: object) -> TypeGuard[Array]:
    """Whether ``value`` is an array of some library, not a Python number or list."""
    return (
        type(value) in _NAMESPACES
        or hasattr(value, "__array_namespace__")
        or array_api_compat.is_array_api_obj(value)
    )


def namespace(*arrays: Array | None) -> ModuleType:
    """Return the array API namespace that the arrays share. None is skipped.

    Raises TypeError if they come from different libraries.
    """
    if len(arrays) == 1 and (known := _NAMESPACES.get(type(arrays[0]))):
        return known
    given = [array for array in arrays if array is not None]
    kinds = {type(array) for array in given}
    if len(kinds) == 1 and (known := _NAMESPACES.get(*kinds)):
        return known
    found = array_api_compat.array_namespace(*given)
    # A graph that torch.compile traces assumes that the table stays as it is.
    if (
        len(kinds) == 1
        and array_api_compat.is_torch_array(given[0])
        and not is_traced(found)
    ):
        _NAMESPACES[type(given[0])] = found
    return found


# The namespaces of types of arrays that have one, to be found without searching all
# libraries. The types of PyTorch's tensors are added when one is seen.
_NAMESPACES: dict[type, Any] = {np.ndarray: array_api_compat.numpy}


def is_traced(xp: ModuleType) -> bool:
    """Whether torch.compile is tracing the call, so that no number can be read."""
    return hasattr(xp, "compiler") and (
        xp.compiler.is_dynamo_compiling() or _TRACED.get()
    )


def is_remote(x: Array) -> bool:
    """Whether ``x`` is on a CUDA device: reading a number of it would wait for all that
    the device has to do, and a CUDA graph cannot contain it."""
    return hasattr(namespace(x), "compiler") and x.device.type == "cuda"


def is_unread(x: Array) -> bool:
    """Whether no number of ``x`` may be read: torch.compile is tracing, or ``x`` is on
    a CUDA device."""
    return is_traced(namespace(x)) or is_remote(x)


@contextmanager
def traced() -> Iterator[None]:
    """Say that a compiler traces what is called, if PyTorch cannot tell."""
    token = _TRACED.set(True)
    try:
        yield
    finally:
        _TRACED.reset(token)


_TRACED = ContextVar("traced", default=False)


def is_plain(x: object) -> bool:
    """Whether ``x`` is an array of NumPy's or PyTorch's own class, whose shape, dtype
    and device are all that a check can ask. A tensor that a compiler traces is not: its
    lengths may be unknown."""
    kind = type(x)
    if kind is np.ndarray:
        return True
    xp: Any = _NAMESPACES.get(kind)
    return (
        hasattr(xp, "Tensor")
        and (kind is xp.Tensor or kind is xp.nn.Parameter)
        and not is_traced(xp)
    )


def has_values(x: Array) -> bool:
    """Whether ``x`` has elements: PyTorch also has tensors of a shape alone."""
    return not getattr(x, "is_meta", False) and not hasattr(x, "fake_mode")


def size(shape: Sequence[int]) -> int:
    """Return the number of elements of an array of that shape; 1 for a scalar's."""
    return math.prod(shape)


def transpose(x: Array) -> Array:
    """Swap the last two axes of ``x[*, m, n]``: a view, in libraries that have
    views."""
    return namespace(x).matrix_transpose(x)


def as_matrix(x: Array) -> Array:
    """Merge all leading axes of ``x[*, n]`` into one: ``[m, n]``."""
    return namespace(x).reshape(x, (size(x.shape[:-1]), x.shape[-1]))


def as_number(value: Any) -> Any:
    """Turn a NumPy scalar, whose dtype would propagate, into a Python number."""
    return value.item() if isinstance(value, np.generic) else value


def widened(x: Array) -> Array:
    """Cast half precision, in which squares overflow and sums lose digits, to float32.

    Any other ``x`` is returned as it is.
    """
    xp = namespace(x)
    return xp.astype(x, xp.float32) if is_half(x.dtype) else x


def is_half(dtype: Any) -> bool:
    """Whether the dtype is one of half precision."""
    # Most dtypes know their bytes, which are found sooner than a name.
    is_short = getattr(dtype, "itemsize", 2) == 2
    return is_short and name_of(dtype) in ("float16", "bfloat16")


def name_of(dtype: Any) -> str:
    """Return the name of a dtype without that of its library: ``float32``."""
    return str(dtype).rpartition(".")[2]


def as_type_of(x: Array, like: Array) -> Array:
    """Round ``x`` to the dtype of ``like``; return ``x`` itself if it has that
    dtype."""
    return x if x.dtype == like.dtype else namespace(x).astype(x, like.dtype)


def zeros(shape: tuple[int, ...], like: Array) -> Array:
    """Return zeros with the dtype and on the device of ``like``."""
    return namespace(like).zeros(shape, dtype=like.dtype, device=like.device)


def sum_to_shape(x: Array, shape: tuple[int, ...]) -> Array:
    """Sum ``x`` over the axes along which an array of ``shape`` was broadcast.

    This is the adjoint of broadcasting ``shape`` to ``x.shape``. An axis that was not
    broadcast is not summed. Half precision is summed in float32.
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
    """Return booleans ``[*, length]``, true at each integer of ``index[*]``.

    The row of an integer outside 0 … length − 1 is all false.
    """
    xp = namespace(index)
    return xp.arange(length, device=index.device) == index[..., None]


def pick(x: Array, index: Array) -> Array:
    """Take entry ``index[*]`` of each row of ``x[*, n]``; 0 where the index is −1."""
    xp = namespace(x, index)
    # The index −1 reads the last entry, which the next line replaces.
    entries = xp.take_along_axis(x, index[..., None], axis=-1)[..., 0]
    return xp.where(index < 0, 0.0, entries)


def bounded_below(x: Array) -> Array:
    """Replace −∞ by 0 in ``x``.

    This keeps a product with a factor that is 0 there from becoming −∞ · 0 = NaN.
    """
    return namespace(x).where(x == -math.inf, 0.0, x)


def bounded(x: Array) -> Array:
    """Replace −∞ and ∞ by 0 in ``x``."""
    return -bounded_below(-bounded_below(x))


def near_zero(x: Array) -> Array:
    """Clip ``x`` to ±10⁴. In an array without ``clip``, replace only −∞ and ∞.

    This keeps a product with a density, or with the distance of tanh, erf, or the
    sigmoid from its limit, from becoming ∞ · 0 = NaN. At ±10⁴ these factors are 0 in
    every dtype.
    """
    if hasattr(x, "clip"):
        return x.clip(-FAR, FAR)
    return namespace(x).where(x == math.inf, FAR, not_far_below(x))


def not_far_below(x: Array) -> Array:
    """Clip ``x`` at −10⁴ from below, or replace only −∞, as ``near_zero`` does."""
    if hasattr(x, "clip"):
        return x.clip(-FAR, None)
    return namespace(x).where(x == -math.inf, -FAR, x)


def sigmoid(x: Array) -> Array:
    """Compute ``1/(1 + e^−x)`` in 5 FLOPs, as softmax's weight of a score ``x`` beside
    a score of 0.

    Nothing overflows, and both tails keep the digits that ``(1 + tanh(x/2))/2`` would
    lose. For tensors this is PyTorch's own function, which is as accurate and needs one
    pass.
    """
    xp = namespace(x)
    if hasattr(xp, "sigmoid"):
        return xp.sigmoid(x)
    # Subtracting one number from both exponents changes nothing. The larger of −x and 0
    # leaves neither positive.
    top = bounded(xp.max(xp.stack([-x, xp.zeros_like(x)]), axis=0))
    own = xp.exp(-top)
    return own / (own + xp.exp(-x - top))


def erf(x: Array) -> Array:
    """Compute the error function. NumPy has none, so its arrays use Python's, element
    by element."""
    xp = namespace(x)
    return xp.erf(x) if hasattr(xp, "erf") else np.asarray(_erf_each(x), dtype=x.dtype)


def _erf_of(z: float | complex) -> float | complex:
    """Compute the error function of one number.

    Python has it for real numbers. For complex ones it is the series e^(−z²) · 2z/√π ·
    Σ (2z²)ⁿ/(1·3·…·(2n + 1)), whose terms do not cancel near the real axis.
    """
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
    """Add row k of ``rows[m, n]`` into row ``index[k]`` of ``out[length, n]``.

    This is the adjoint of taking rows; a row of ``out`` that no index names is 0. The
    terms of each row are added in a fixed order, so that the sum is the same each time.
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


def add_rows(out: Array, index: Array, rows: Array) -> Array:
    """Add row k of ``rows[m, n]`` into row ``index[k]`` of ``out[length, n]``; return
    ``out``.

    NumPy and PyTorch add in the storage of ``out``, which must be the caller's own.
    """
    if not (
        array_api_compat.is_numpy_array(out) or array_api_compat.is_torch_array(out)
    ):
        xp, length = namespace(out, rows, index), out.shape[0]
        own = xp.arange(length, device=index.device)
        return xp.scatter_add(xp.concat([out, rows]), xp.concat([own, index]), length)
    add = _add_in_order if str(out.device) == "cpu" else _add_sorted
    return add(out, index, rows)


def _add_in_order(out: Array, index: Array, rows: Array) -> Array:
    """Add the rows to ``out`` one after another, and return ``out``."""
    if array_api_compat.is_torch_array(out):
        return out.index_add_(0, index, rows)
    namespace(out).add.at(out, index, rows)
    return out


def _add_sorted(out: Array, index: Array, rows: Array) -> Array:
    """Do the same on a GPU, whose threads would otherwise add the rows in any order.

    PyTorch's ``index_put_`` sorts the rows by index first, and then one thread adds the
    rows of one index.
    """
    return out.index_put_((index,), rows, accumulate=True)
