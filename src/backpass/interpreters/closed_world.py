"""The closed-world array: array-API arrays of symbols, or of numbers that count.

NumPy moves the scalars (indexing, reshaping, broadcasting) and never computes with
them. Arithmetic runs scalar by scalar, through the scalars' own operators, so a matrix
product counts, or is proved, because its products and sums ran. A function that the
namespace does not list raises AttributeError, so that nothing goes uncounted or
unproved.

An interpreter is one ``Scalars``; ``Namespace`` and ``Array`` do the rest. Arrays of
integers (tokens, positions) and of booleans (masks) hold plain NumPy values: deciding
where a number goes is not arithmetic on it, and costs nothing.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from numbers import Integral
from typing import Any, NoReturn, Protocol

import numpy as np

Scalar = Any


@dataclass(frozen=True)
class DType:
    """A data type. Two are equal if their names and kinds are."""

    name: str
    kind: str

    def __str__(self) -> str:
        return self.name


INT64 = DType("int64", "signed integer")
BOOL = DType("bool", "bool")

_KINDS = {
    "bool": {"bool"},
    "signed integer": {"signed integer"},
    "unsigned integer": set(),
    "integral": {"signed integer"},
    "real floating": {"real floating"},
    "complex floating": set(),
    "numeric": {"signed integer", "real floating"},
}


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


class Array:
    """An array, created by its interpreter's ``array`` and never modified."""

    __slots__ = ("_namespace", "_values", "dtype")
    # Keep an operation with a NumPy array, or with a SymPy constant, in this class.
    # SymPy leaves an operation to the operand with the higher priority.
    __array_ufunc__ = None
    _op_priority = 100.0
    __hash__ = None  # type: ignore[assignment]  # == compares elements
    device = "cpu"

    def __init__(self, values: np.ndarray, dtype: DType, xp: Namespace):
        self._values = values
        self.dtype = dtype
        self._namespace = xp

    def __array_namespace__(self, *, api_version: str | None = None) -> Namespace:
        return self._namespace

    def __array__(self, *args, **kwargs) -> NoReturn:
        raise TypeError(
            "a closed-world array is not converted to a NumPy array implicitly; use "
            ".to_numpy()"
        )

    def to_numpy(self) -> np.ndarray:
        """Return a copy of the values as a NumPy array."""
        if self.dtype == self._namespace.dtype:
            return self._namespace.scalars.export(self._values)
        return self._values.copy()

    @property
    def shape(self) -> tuple[int, ...]:
        return self._values.shape

    @property
    def ndim(self) -> int:
        return self._values.ndim

    @property
    def size(self) -> int:
        return self._values.size

    def __repr__(self) -> str:
        return (
            f"{self._namespace.__name__}.Array({self.to_numpy()!s}, "
            f"shape={self.shape}, dtype={self.dtype})"
        )

    def __getitem__(self, key: object) -> Array:
        keys = key if isinstance(key, tuple) else (key,)
        return self._namespace._moved(
            self, operator.itemgetter(tuple(map(_plain_key, keys)))
        )

    def __bool__(self) -> bool:
        if self.dtype != BOOL or self.size != 1:
            raise TypeError(
                "a branch needs a single boolean; "
                f"got shape {list(self.shape)} of {self.dtype}"
            )
        return bool(self._values.reshape(()))

    def __index__(self) -> int:
        if self.dtype != INT64 or self.ndim != 0:
            raise TypeError(
                "an integer needs an array of one integer, without axes; "
                f"got shape {list(self.shape)} of {self.dtype}; "
                "use .to_numpy() to get values out of the closed world"
            )
        return int(self._values)

    __int__ = __index__

    def __pow__(self, exponent: object) -> NoReturn:
        raise TypeError("a power is written as products here: x * x rather than x ** 2")

    __rpow__ = __pow__

    def __neg__(self) -> Array:
        return self._namespace.negative(self)

    def __invert__(self) -> Array:
        return self._namespace.logical_not(self)


def _plain_key(key: object) -> object:
    """Return one part of an index as NumPy takes it."""
    if isinstance(key, Array):
        if key.dtype != INT64:
            raise TypeError(
                f"an array used as an index must be of integers; got dtype {key.dtype}"
            )
        return key._values
    if (
        key is None
        or key is Ellipsis
        or (isinstance(key, (slice, Integral)) and not isinstance(key, bool))
    ):
        return key
    raise TypeError(
        "an index must be an integer, a slice, None, ... or an array of integers; "
        f"got {key!r}"
    )


_OPERATORS = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "matmul": "matmul",
    "and": "logical_and",
    "or": "logical_or",
}
_RELATIONS = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}


def _operator(name: str) -> Callable:
    return lambda self, other: getattr(self._namespace, name)(self, other)


def _reflected(name: str) -> Callable:
    return lambda self, other: getattr(self._namespace, name)(other, self)


for _symbol, _name in (_OPERATORS | _RELATIONS).items():
    setattr(Array, f"__{_symbol}__", _operator(_name))
for _symbol, _name in _OPERATORS.items():
    setattr(Array, f"__r{_symbol}__", _reflected(_name))


def _arithmetic(operation: Callable) -> Callable:
    def function(self: Namespace, a: Array, b: Array) -> Array:
        a, b = self._pair(a, b)
        if a.dtype == BOOL:
            raise TypeError(
                "arithmetic needs numbers; got booleans; use where to choose by them"
            )
        if a.dtype == INT64:
            return self.wrap(operation(a._values, b._values), INT64)
        return self.wrap(_elementwise(operation, a._values, b._values), self.dtype)

    return function


def _function(name: str) -> Callable:
    def function(self: Namespace, x: Array) -> Array:
        return self._map(
            lambda value: self.scalars.function(name, value),
            self._own(x, self.dtype)._values,
        )

    return function


def _comparison(relation: Callable) -> Callable:
    def function(self: Namespace, a: Array, b: Array) -> Array:
        a, b = self._pair(a, b)
        if a.dtype != self.dtype:
            return self.wrap(relation(a._values, b._values), BOOL)
        with np.errstate(invalid="ignore"):  # comparing NaN gives False, and no warning
            truths = _elementwise(
                lambda p, q: self.scalars.compare(relation, p, q), a._values, b._values
            )
        return self.wrap(truths.astype(np.bool_), BOOL)

    return function


_PRODUCTS = "a power is written as products"
_INSTEAD = {  # of what a backward may look for, what does the same
    **dict.fromkeys(("pow", "power", "square"), _PRODUCTS),
    "abs": "an absolute value is written where(x < 0, -x, x)",
    "maximum": "the larger of two is written where(a < b, b, a)",
    "minimum": "the smaller of two is written where(a < b, a, b)",
    "mean": "a mean is written as a sum, divided by its length",
}


class NotOffered(AttributeError):
    """Raised for a function ``name`` that the closed world does not have."""


class Namespace:
    """The functions of one closed world: these and no others."""

    int64 = INT64
    bool = BOOL
    inf = float("inf")
    nan = float("nan")

    def __init__(self, scalars: Scalars):
        self.scalars = scalars
        self.dtype = scalars.dtype
        self.pi = scalars.pi
        self.__name__ = scalars.name
        setattr(self, scalars.dtype.name, scalars.dtype)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        hint = _INSTEAD.get(name)
        raise NotOffered(
            f"{self.__name__} does not offer {name!r}{f'; {hint}' if hint else ''}. An unlisted function would "
            f"go uncounted and unproved. There are: {', '.join(dir(self))}",
            name=name,
            obj=self,
        )

    def __dir__(self) -> list[str]:
        return sorted(
            name
            for name in {*vars(Namespace), *vars(self)}
            if name[0] != "_" and name not in _INTERNAL
        )

    def __repr__(self) -> str:
        return f"<array namespace {self.__name__!r}>"

    # Creating arrays.

    def wrap(self, values: object, dtype: DType) -> Array:
        """Return ``values`` as an Array.

        A bare scalar, which NumPy returns for an array without axes, is boxed.
        """
        if not isinstance(values, np.ndarray):
            box = np.empty((), dtype=_STORAGE.get(dtype, object))
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
            values = self._own(values)
            return (
                values if dtype in (None, values.dtype) else self.astype(values, dtype)
            )
        plain = np.asarray(values)
        if plain.dtype.kind in "biu" and dtype in (None, BOOL, INT64):
            dtype = dtype or (BOOL if plain.dtype.kind == "b" else INT64)
            return Array(plain.astype(_STORAGE[dtype]), dtype, self)
        if plain.dtype.kind not in "biufO" or dtype not in (None, self.dtype):
            raise TypeError(
                f"cannot make an array of {dtype or self.dtype} from NumPy's {plain.dtype}"
            )
        return self._map(self.scalars.constant, plain.astype(object))

    def full(
        self,
        shape: int | tuple[int, ...],
        value: object,
        *,
        dtype: DType | None = None,
        device: str | None = None,
    ) -> Array:
        shape = shape if isinstance(shape, tuple) else (shape,)
        one = self.asarray(value, dtype=dtype, device=device)
        if one.ndim:
            raise TypeError(
                f"value: expected a single number; got shape {list(one.shape)}"
            )
        return Array(np.broadcast_to(one._values, shape).copy(), one.dtype, self)

    def zeros(
        self,
        shape: int | tuple[int, ...],
        *,
        dtype: DType | None = None,
        device: str | None = None,
    ) -> Array:
        return self.full(shape, 0, dtype=dtype or self.dtype, device=device)

    def ones(
        self,
        shape: int | tuple[int, ...],
        *,
        dtype: DType | None = None,
        device: str | None = None,
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
        return (
            Array(integers, INT64, self)
            if dtype == INT64
            else self._map(self.scalars.constant, integers)
        )

    def isdtype(
        self, dtype: DType, kind: str | DType | tuple[str | DType, ...]
    ) -> builtins.bool:
        kinds = kind if isinstance(kind, tuple) else (kind,)
        return any(
            dtype == k if isinstance(k, DType) else dtype.kind in _KINDS[k]
            for k in kinds
        )

    # Arithmetic, one scalar at a time.

    add = _arithmetic(operator.add)
    subtract = _arithmetic(operator.sub)
    multiply = _arithmetic(operator.mul)

    def divide(self, a: Array, b: Array) -> Array:
        a, b = self._pair(a, b)
        if a.dtype != self.dtype:
            raise TypeError(f"division needs {self.dtype}; got {a.dtype}")
        return self.wrap(
            _elementwise(operator.truediv, a._values, b._values), self.dtype
        )

    def negative(self, x: Array) -> Array:
        x = self._own(x, INT64, self.dtype)
        return (
            self._map(operator.neg, x._values)
            if x.dtype == self.dtype
            else Array(-x._values, INT64, self)
        )

    exp = _function("exp")
    log = _function("log")
    tanh = _function("tanh")
    sqrt = _function("sqrt")
    sin = _function("sin")
    cos = _function("cos")
    erf = _function("erf")  # not in the array API; see backpass.contract.arrays.erf

    def sum(
        self,
        x: Array,
        /,
        *,
        axis: int | tuple[int, ...] | None = None,
        keepdims: builtins.bool = False,
    ) -> Array:
        """Add from left to right: n − 1 additions for n terms. Without terms, 0."""
        x = self._own(x, INT64, self.dtype)
        terms, kept = _reduced_last(x._values, axis)
        zero = 0 if x.dtype == INT64 else self.scalars.constant(0)
        total = self._sum_last(terms, zero)
        return self.wrap(total.reshape(kept) if keepdims else total, x.dtype)

    def matmul(self, a: Array, b: Array) -> Array:
        """Multiply, then add from left to right: n products and n − 1 additions for
        each element."""
        a, b = self._own(a, self.dtype), self._own(b, self.dtype)
        if not (a.ndim and b.ndim):
            raise ValueError("a matrix product needs at least one axis on each side")
        left = a._values[np.newaxis] if a.ndim == 1 else a._values
        right = b._values[:, np.newaxis] if b.ndim == 1 else b._values
        if left.shape[-1] != right.shape[-2]:
            raise ValueError(
                f"shapes {list(a.shape)} and {list(b.shape)} have no matrix product"
            )
        # [..., m, 1, n] times [..., 1, p, n], summed over n
        products = _elementwise(
            operator.mul,
            left[..., np.newaxis, :],
            right.swapaxes(-1, -2)[..., np.newaxis, :, :],
        )
        total = self._sum_last(products, self.scalars.constant(0))
        if a.ndim == 1:
            total = total[..., 0, :]
        if b.ndim == 1:
            total = total[..., 0]
        return self.wrap(total, self.dtype)

    # Comparing and choosing, which is free.

    equal = _comparison(operator.eq)
    not_equal = _comparison(operator.ne)
    less = _comparison(operator.lt)
    less_equal = _comparison(operator.le)
    greater = _comparison(operator.gt)
    greater_equal = _comparison(operator.ge)

    def logical_and(self, a: Array, b: Array) -> Array:
        return self.wrap(self._own(a, BOOL)._values & self._own(b, BOOL)._values, BOOL)

    def logical_or(self, a: Array, b: Array) -> Array:
        return self.wrap(self._own(a, BOOL)._values | self._own(b, BOOL)._values, BOOL)

    def logical_not(self, x: Array) -> Array:
        return self.wrap(~self._own(x, BOOL)._values, BOOL)

    def any(
        self,
        x: Array,
        /,
        *,
        axis: int | tuple[int, ...] | None = None,
        keepdims: builtins.bool = False,
    ) -> Array:
        return self.wrap(
            self._own(x, BOOL)._values.any(axis=axis, keepdims=keepdims), BOOL
        )

    def all(
        self,
        x: Array,
        /,
        *,
        axis: int | tuple[int, ...] | None = None,
        keepdims: builtins.bool = False,
    ) -> Array:
        return self.wrap(
            self._own(x, BOOL)._values.all(axis=axis, keepdims=keepdims), BOOL
        )

    def max(
        self,
        x: Array,
        /,
        *,
        axis: int | tuple[int, ...] | None = None,
        keepdims: builtins.bool = False,
    ) -> Array:
        x = self._own(x, INT64, self.dtype)
        values, kept = _reduced_last(x._values, axis)
        if values.shape[-1] == 0:
            raise ValueError("max needs at least one element; got none")
        if x.dtype == INT64:
            top = values.max(axis=-1)
        else:
            top = np.empty(values.shape[:-1], dtype=object)
            for index in np.ndindex(top.shape):
                top[index] = self.scalars.maximum(values[index].tolist())
        return self.wrap(np.asarray(top).reshape(kept) if keepdims else top, x.dtype)

    def where(self, condition: Array, a: Array, b: Array) -> Array:
        a, b = self._pair(a, b)
        return self.wrap(
            np.where(self._own(condition, BOOL)._values, a._values, b._values), a.dtype
        )

    # Moving, which is free; views wherever NumPy has views.

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

    def scatter_add(self, rows: Array, index: Array, length: int) -> Array:
        """Add ``rows[k, *]`` into ``out[index[k], *]``; return ``out[length, *]``.

        This is not in the array API; see ``contract.arrays.scatter_add``. The first row
        of an index is moved, and each further row is added. A row of ``out`` that no
        index names is 0.
        """
        rows, index = self._own(rows, self.dtype), self._own(index, INT64)
        out = np.full((length, *rows.shape[1:]), self.scalars.constant(0), dtype=object)
        reached = set()
        for row, i in zip(rows._values, index._values.tolist(), strict=True):
            if not 0 <= i < length:
                raise IndexError(
                    f"index: expected integers from 0 to {length - 1}; got {i}"
                )
            out[i] = _elementwise(operator.add, out[i], row) if i in reached else row
            reached.add(i)
        return Array(out, self.dtype, self)

    # What the functions above share.

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
        if a.dtype != b.dtype:
            raise TypeError(
                f"expected two arrays of the same dtype; got {a.dtype} and {b.dtype}"
            )
        return a, b

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
        return self.wrap(_elementwise(function, values), self.dtype)

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

    def _sum_last(self, terms: np.ndarray, zero: Scalar) -> np.ndarray:
        if terms.shape[-1] == 0:
            return np.full(terms.shape[:-1], zero, dtype=terms.dtype)
        total = reduce(
            lambda a, b: _elementwise(operator.add, a, b), np.moveaxis(terms, -1, 0)
        )
        # NumPy returns a scalar for one term without other axes.
        return np.asarray(total, dtype=terms.dtype)


_STORAGE = {INT64: np.int64, BOOL: np.bool_}
_INTERNAL = {"wrap", "scalars", "dtype"}


def _elementwise(function: Callable, *values: np.ndarray) -> np.ndarray:
    """Apply ``function`` to the broadcast elements; return an object array, even
    without axes."""
    results = np.frompyfunc(function, len(values), 1)(*values)
    if isinstance(results, np.ndarray):
        return results
    box = np.empty((), dtype=object)
    box[()] = results
    return box


def _reduced_last(
    values: np.ndarray, axis: int | tuple[int, ...] | None
) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return ``values`` with the axes to reduce merged into a last one, and the
    result's shape with ``keepdims``."""
    rank = values.ndim
    given = (
        range(rank) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    )
    chosen = [operator.index(a) for a in given]
    if len({a % rank for a in chosen if -rank <= a < rank}) != len(chosen):
        raise ValueError(
            f"axis: expected different axes of an array with {rank}; got {axis!r}"
        )
    chosen = [a % rank for a in chosen]
    others = [a for a in range(rank) if a not in chosen]
    shape = tuple(values.shape[a] for a in others)
    kept = tuple(1 if a in chosen else length for a, length in enumerate(values.shape))
    terms = values.transpose(others + chosen).reshape(
        *shape, prod(values.shape[a] for a in chosen)
    )
    return terms, kept
