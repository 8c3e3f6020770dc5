"""What a closed world does for free: create arrays, check them, and move elements."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, Protocol

import numpy as np

from backpass.interpreters.array import BOOL, INT64, KINDS, STORAGE, Array, DType

Scalar = Any
Shape = int | tuple[int, ...]


class Scalars(Protocol):
    """What an interpreter defines. Its scalars have ``+ - * /`` and unary ``-``."""

    name: str  # the namespace's __name__
    dtype: DType  # of the arrays that hold its scalars
    pi: Scalar

    def constant(self, value: object) -> Scalar:
        """Return a scalar for a real number. Raises TypeError for anything else."""

    def function(self, name: str, x: Scalar) -> Scalar:
        """Return the exp, log, tanh, sqrt, erf, sin or cos of a scalar."""

    def compare(self, relation: Callable, a: Scalar, b: Scalar) -> bool:
        """Return ``relation(a, b)``, where relation is ``operator.lt`` or the like."""

    def maximum(self, values: Sequence[Scalar]) -> Scalar:
        """Return the largest of one or more scalars."""

    def export(self, values: np.ndarray) -> np.ndarray:
        """Turn an object array of scalars into the NumPy array for ``to_numpy``."""


class Moving:
    """A namespace without arithmetic."""

    int64 = INT64
    bool = BOOL
    inf = float("inf")
    nan = float("nan")
    scalars: Scalars
    dtype: DType
    _floating: tuple[DType, ...]  # the dtypes of numbers that are not integers
    _kinds = "biufO"  # of the NumPy arrays that become arrays
    __name__: str

    # Creating arrays.

    def wrap(self, values: object, dtype: DType) -> Array:
        """Return ``values`` as an Array.

        A bare scalar, which NumPy returns for an array without axes, is boxed.
        """
        if not isinstance(values, np.ndarray):
            box = np.empty((), dtype=STORAGE.get(dtype, object))
            box[()] = values
            values = box
        return Array(values, dtype, self)

    def asarray(
        self, values: object, *, dtype: DType | None = None, device: str | None = None
    ) -> Array:
        """Copy a number, a nested list of numbers, or a NumPy array into an Array."""
        if device not in (None, Array.device):
            raise ValueError(f"device: expected {Array.device!r}; got {device!r}")
        if isinstance(values, Array):
            own = self._own(values)
            return own if dtype in (None, own.dtype) else self.astype(own, dtype)
        plain = np.asarray(values)
        if plain.dtype.kind in "biu" and dtype in (None, BOOL, INT64):
            dtype = dtype or (BOOL if plain.dtype.kind == "b" else INT64)
            return self.wrap(plain.astype(STORAGE[dtype]), dtype)
        dtype = dtype or self.dtype
        if plain.dtype.kind not in self._kinds or dtype not in self._floating:
            raise TypeError(
                f"cannot make an array of {dtype} from NumPy's {plain.dtype}"
            )
        return self._of_numbers(plain, dtype)

    def _of_numbers(self, values: np.ndarray, dtype: DType) -> Array:
        return self._map(self.scalars.constant, values.astype(object))

    def full(
        self,
        shape: Shape,
        value: object,
        *,
        dtype: DType | None = None,
        device: str | None = None,
    ) -> Array:
        one = self.asarray(value, dtype=dtype, device=device)
        if one.ndim:
            raise TypeError(
                f"value: expected a single number; got shape {list(one.shape)}"
            )
        return self.broadcast_to(one, shape if isinstance(shape, tuple) else (shape,))

    def zeros(
        self, shape: Shape, *, dtype: DType | None = None, device: str | None = None
    ) -> Array:
        return self.full(shape, 0, dtype=dtype or self.dtype, device=device)

    def ones(
        self, shape: Shape, *, dtype: DType | None = None, device: str | None = None
    ) -> Array:
        return self.full(shape, 1, dtype=dtype or self.dtype, device=device)

    def full_like(self, x: Array, value: object) -> Array:
        return self.full(x.shape, value, dtype=x.dtype)

    def zeros_like(self, x: Array) -> Array:
        return self.zeros(x.shape, dtype=x.dtype)

    def ones_like(self, x: Array) -> Array:
        return self.ones(x.shape, dtype=x.dtype)

    def arange(
        self,
        start: int,
        stop: int | None = None,
        step: int = 1,
        *,
        device: str | None = None,
    ) -> Array:
        """Return integers only, such as positions and tokens."""
        start, stop = (0, start) if stop is None else (start, stop)
        return self.asarray(
            np.arange(*map(operator.index, (start, stop, step))), device=device
        )

    def astype(self, x: Array, dtype: DType) -> Array:
        """Convert booleans to integers or numbers, or integers to numbers, for free.

        Raises TypeError for the opposite direction.
        """
        x = self._own(x)
        if x.dtype == dtype:
            return x
        order = (BOOL, INT64, self.dtype)
        if dtype not in order or order.index(x.dtype) > order.index(dtype):
            raise TypeError(f"{self.__name__} cannot convert {x.dtype} to {dtype}")
        integers = x._values.astype(np.int64)
        if dtype == INT64:
            return self.wrap(integers, INT64)
        return self._map(self.scalars.constant, integers)

    def isdtype(
        self, dtype: DType, kind: str | DType | tuple[str | DType, ...]
    ) -> builtins.bool:
        kinds = kind if isinstance(kind, tuple) else (kind,)
        return any(
            dtype == k if isinstance(k, DType) else dtype.kind in KINDS[k]
            for k in kinds
        )

    # Moving; views wherever NumPy has views.

    def reshape(self, x: Array, /, shape: tuple[int, ...]) -> Array:
        return self._moved(x, np.reshape, shape)

    def permute_dims(self, x: Array, /, axes: tuple[int, ...]) -> Array:
        return self._moved(x, np.transpose, axes)

    def matrix_transpose(self, x: Array, /) -> Array:
        return self._moved(x, np.swapaxes, -1, -2)

    def broadcast_to(self, x: Array, /, shape: tuple[int, ...]) -> Array:
        return self._moved(x, np.broadcast_to, shape)

    def expand_dims(self, x: Array, /, *, axis: int = 0) -> Array:
        return self._moved(x, np.expand_dims, axis)

    def squeeze(self, x: Array, /, axis: int | tuple[int, ...]) -> Array:
        return self._moved(x, np.squeeze, axis)

    def take(self, x: Array, indices: Array, /, *, axis: int) -> Array:
        return self._moved(x, np.take, self._own(indices, INT64)._values, axis)

    def take_along_axis(self, x: Array, indices: Array, /, *, axis: int = -1) -> Array:
        return self._moved(
            x, np.take_along_axis, self._own(indices, INT64)._values, axis
        )

    def stack(self, arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
        return self._joined(np.stack, arrays, axis)

    def concat(self, arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
        return self._joined(np.concatenate, arrays, axis)

    # What all functions share.

    def _own(self, x: object, *dtypes: DType) -> Array:
        """Return ``x`` if it is an array of this namespace and of one of the dtypes.

        Raises TypeError otherwise.
        """
        if not isinstance(x, Array) or x._namespace is not self:
            raise TypeError(
                f"expected an array of {self.__name__}; "
                f"got {type(x).__module__}.{type(x).__name__}"
            )
        if dtypes and x.dtype not in dtypes:
            raise TypeError(
                f"expected an array of {' or '.join(map(str, dtypes))}; got {x.dtype}"
            )
        return x

    def _pair(self, a: object, b: object) -> tuple[Array, Array]:
        """Return arrays of one dtype. A Python scalar takes the other's dtype."""
        if not isinstance(a, Array):
            a = self._beside(a, self._own(b))
        elif not isinstance(b, Array):
            b = self._beside(b, self._own(a))
        a, b = self._own(a), self._own(b)
        self._check_alike(a, b)
        return a, b

    def _check_alike(self, a: Array, b: Array) -> None:
        if a.dtype != b.dtype:
            raise TypeError(
                f"expected two arrays of the same dtype; got {a.dtype} and {b.dtype}"
            )

    def _beside(self, value: object, other: Array) -> Array:
        if isinstance(value, np.ndarray):
            raise TypeError(
                f"expected an array of {self.__name__} or a number; got a NumPy array"
            )
        if other.dtype == self.dtype:
            return self.wrap(self.scalars.constant(value), self.dtype)
        if isinstance(value, bool if other.dtype == BOOL else Integral):
            return self.wrap(value, other.dtype)
        raise TypeError(f"{value!r} cannot be combined with an array of {other.dtype}")

    def _map(self, function: Callable, values: np.ndarray) -> Array:
        return self.wrap(elementwise(function, values), self.dtype)

    def _moved(self, x: Array, move: Callable, *how: object) -> Array:
        return self.wrap(move(self._own(x)._values, *how), x.dtype)

    def _joined(self, join: Callable, arrays: Sequence[Array], axis: int) -> Array:
        dtypes = {self._own(x).dtype for x in arrays}
        if len(dtypes) != 1:
            raise TypeError(
                "expected arrays of the same dtype; "
                f"got {', '.join(sorted(map(str, dtypes))) or 'none'}"
            )
        return self.wrap(join([x._values for x in arrays], axis=axis), dtypes.pop())


def elementwise(function: Callable, *values: np.ndarray) -> np.ndarray:
    """Apply ``function`` to the broadcast elements; return an object array, even
    without axes."""
    results = np.frompyfunc(function, len(values), 1)(*values)
    if isinstance(results, np.ndarray):
        return results
    box = np.empty((), dtype=object)
    box[()] = results
    return box
