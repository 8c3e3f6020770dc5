"""The arrays of a closed world: values, a dtype, and the namespace that computes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NoReturn

import numpy as np


@dataclass(frozen=True)
class DType:
    """A data type. Two are equal if their names and kinds are."""

    name: str
    kind: str

    def __str__(self) -> str:
        return self.name


INT64 = DType("int64", "signed integer")
BOOL = DType("bool", "bool")
STORAGE = {INT64: np.int64, BOOL: np.bool_}

KINDS = {
    "bool": {"bool"},
    "signed integer": {"signed integer"},
    "unsigned integer": set(),
    "integral": {"signed integer"},
    "real floating": {"real floating"},
    "complex floating": set(),
    "numeric": {"signed integer", "real floating"},
}


class Array:
    """An array, created by its interpreter's ``array`` and never modified."""

    __slots__ = ("_namespace", "_values", "dtype")
    # Keep an operation with a NumPy array, or with a SymPy constant, in this class.
    # SymPy leaves an operation to the operand with the higher priority.
    __array_ufunc__ = None
    _op_priority = 100.0
    __hash__ = None  # type: ignore[assignment]  # == compares elements
    device = "cpu"

    def __init__(self, values: np.ndarray, dtype: DType, xp: Any):
        self._values = values
        self.dtype = dtype
        self._namespace = xp

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
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
RELATIONS = {
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


for _symbol, _name in (_OPERATORS | RELATIONS).items():
    setattr(Array, f"__{_symbol}__", _operator(_name))
for _symbol, _name in _OPERATORS.items():
    setattr(Array, f"__r{_symbol}__", _reflected(_name))
