"""Find out, without importing PyTorch, whether a forward calls functions of NumPy,
which autograd cannot follow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

# The functions that an array's operators call. A tensor has these operators too.
OPERATORS = {
    *("add", "subtract", "multiply", "divide", "power", "matmul", "negative", "abs"),
    *("absolute", "floor_divide", "remainder", "positive", "square", "equal"),
    *("not_equal", "less", "less_equal", "greater", "greater_equal", "invert"),
    *("bitwise_and", "bitwise_or", "bitwise_xor", "conjugate", "sign"),
}


def function_of_numpy(
    forward: Callable[..., Any], inputs: Sequence[Any], positions: Collection[int]
) -> str:
    """Return the first function of NumPy, such as "np.exp", that forward calls on the
    inputs at these positions or on arrays computed from them.

    Return "" if it calls none, if it requests the namespace of its arrays, or if it
    raises an error of its own.
    """
    given = (
        _Watched(np.array(value)) if at in positions else value
        for at, value in enumerate(inputs)
    )
    try:
        with np.errstate(all="ignore"):
            forward(*given)
            return ""
    except _Called as found:
        called = f"np.{found}"
    except (Exception, _Generic):
        called = ""
    with np.errstate(all="ignore"), contextlib.suppress(Exception):
        forward(*inputs)  # an object may have kept what was watched
    return called


class _Called(BaseException):
    """Signals a call of NumPy; not caught by an ``except Exception`` of forward."""


class _Generic(BaseException):
    """Signals that forward requests the namespace of its arrays and calls that."""


class _Watched(np.lib.mixins.NDArrayOperatorsMixin):
    """An array that raises _Called with the function of NumPy that is called on it."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __array_namespace__(self, **options: Any) -> Any:
        raise _Generic

    def __array__(self, *options: Any, **others: Any) -> Any:
        raise _Called("asarray")

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any
    ) -> Any:
        if method != "__call__" or ufunc.__name__ not in OPERATORS:
            raise _Called(ufunc.__name__)
        return _watched(ufunc(*map(_plain, inputs), **options))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # such as __array_interface__
            raise AttributeError(name)
        found = getattr(self._values, name)
        if not callable(found):
            return _watched(found)
        return lambda *inputs, **options: _watched(
            found(*map(_plain, inputs), **options)
        )

    def __getitem__(self, index: Any) -> Any:
        return _watched(self._values[index])

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        return (_watched(value) for value in self._values)


def _watched(value: Any) -> Any:
    return _Watched(value) if isinstance(value, np.ndarray | np.floating) else value


def _plain(value: Any) -> Any:
    return value._values if isinstance(value, _Watched) else value
