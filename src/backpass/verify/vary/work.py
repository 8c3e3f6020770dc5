"""Bound the work of variations by counting it, so that no clock decides what runs.

A unit is about the work of one line of Python that calls nothing.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import numpy as np

from backpass.contract.arrays import size
from backpass.verify.case import Case
from backpass.verify.convert import to_kind_of
from backpass.verify.outputs import named_arrays

ELEMENTS = 20  # of arrays, for one unit in a call of forward or of backward
TORCH = 20  # units in a call of a function of PyTorch
CUBES = 1000  # of the length of a matrix, for one unit in its inverse
MATRICES = inspect.unwrap(np.linalg.inv).__code__.co_filename  # of NumPy's functions
CALLS = 200  # of forward and of backward, for the variations of a small object
FEWEST = 8  # calls of each, for one variation
SEARCH = 5.0  # seconds for the diagnoses of all variations


class TooMuch(BaseException):
    """Raised where a variation would exceed its bound.

    It is not an Exception, because methods would count one against the code under test.
    """


@dataclass(frozen=True)
class Bound:
    """The most work of one variation, and of all variations of a check."""

    one: int
    every: int


BY_DEFAULT = Bound(one=4_000_000, every=8_000_000)
ASKED_FOR = Bound(one=20_000_000, every=60_000_000)


class Work:
    """The work that is left for the variations of one check, and the seconds for their
    diagnoses."""

    def __init__(self, bound: Bound):
        self.bound, self.left, self.search = bound, bound.every, SEARCH

    def counted(self, case: Case) -> Case:
        """Return the case with functions that raise TooMuch where its variation exceeds
        its bound.

        Lines and arrays are counted in the first call of each function. Later calls
        count as much.
        """
        left = [min(self.bound.one, self.left)]
        least = elements(case.arrays) // ELEMENTS
        costs: dict[str, int] = {}

        def spend(cost: int) -> None:
            left[0] -= cost
            self.left -= cost
            if left[0] < 0:
                raise TooMuch

        def bounded(name: str, function: Callable) -> Callable:
            def call(*arguments: Any, **wanted: Any) -> Any:
                if name in costs:
                    spend(costs[name])
                    return function(*arguments, **wanted)
                most = max(left[0] // FEWEST - least, 0)
                returned, ran = lines(function, *arguments, most=most, **wanted)
                arrays = _arrays(returned) if name == "forward" else ()
                costs[name] = ran + least + elements(arrays) // ELEMENTS
                spend(costs[name])
                return returned

            return call

        subject = case.subject
        return replace(
            case,
            subject=replace(
                subject,
                forward=bounded("forward", subject.forward),
                backward=bounded("backward", subject.backward),
                plain_forward=bounded("plain_forward", subject.plain_forward),
            ),
        )


def too_large(case: Case) -> str:
    """Return which work of a case is too much to vary it by default; "" if none is.

    Forward and backward run once.
    """
    most = BY_DEFAULT.every // CALLS
    given = elements(case.arrays)
    if given > most * ELEMENTS:
        return f"more than {most * ELEMENTS:,} elements"
    try:
        lines(_once, case, most=most - given // ELEMENTS)
    except TooMuch:
        return f"more than {most:,} lines of Python"
    except Exception:
        pass  # the methods say what raises
    return ""


def _once(case: Case) -> None:
    y, saved = case.subject.forward(*case.given())
    case.subject.backward(to_kind_of(y, case.dy), saved)


def elements(arrays: Sequence[Any]) -> int:
    """Return the number of elements of several arrays."""
    return sum(size(tuple(array.shape)) for array in arrays)


def lines(
    function: Callable, *arguments: Any, most: int = sys.maxsize, **keywords: Any
) -> tuple[Any, int]:
    """Return what a function returns, and how many lines of Python it ran. A function
    of PyTorch, and an inverse or a decomposition of matrices by NumPy, count as the
    lines that take as long.

    Raises TooMuch after ``most`` lines.
    """
    count, before = 0, sys.gettrace()

    def spend(units: int) -> None:
        nonlocal count
        count += units
        if count > most:
            raise TooMuch

    def trace(frame: FrameType, event: str, argument: object) -> Callable | None:
        if frame.f_code.co_filename == __file__:
            return None  # what counts is not counted
        spend(1)
        if event == "call" and frame.f_code.co_filename == MATRICES:
            spend(_of_matrices(frame.f_locals.get("a")))
        return trace

    with _each_of_torch(spend):
        sys.settrace(trace)
        try:
            returned = function(*arguments, **keywords)
        finally:
            sys.settrace(before)
    return returned, count


def _each_of_torch(spend: Callable[[int], None]) -> AbstractContextManager:
    """Return a context in which each call of a function of PyTorch is counted."""
    if "torch" not in sys.modules:
        return nullcontext()
    from torch.overrides import TorchFunctionMode

    class Counted(TorchFunctionMode):
        def __torch_function__(
            self, function: Callable, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            spend(TORCH)
            return function(*args, **(kwargs or {}))

    return Counted()


def _of_matrices(a: Any) -> int:
    """Return the work of a function of matrices, in lines."""
    shape = np.shape(a) if isinstance(a, np.ndarray) else ()
    return math.prod(shape) * min(shape[-2:]) // CUBES if len(shape) > 1 else 0


def _arrays(returned: Any) -> list[Any]:
    """Return what a forward returns and saves, as far as it is known by name."""
    try:
        y, saved = returned
        return [y, *(array for _, array in named_arrays(saved))]
    except Exception:
        return []  # the contract says what form it has to have


@dataclass
class Instructions:
    """How many of ``most`` instructions may still be executed. ``kept`` has those
    reserved in each dtype for other values, which take as many as the values given."""

    most: int
    asked: bool
    left: int = 0
    kept: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.left = self.most

    def for_(self, dtype: str, first: bool) -> int:
        """Return how many a variation in a dtype may execute: if asked, half of those
        that are left, so that a long one does not use all of them. The first one may
        also use those reserved in its dtype."""
        own = self.kept.get(dtype, 0) if first else 0
        return (self.left - sum(self.kept.values()) + own) // (2 if self.asked else 1)

    def release(self, dtype: str) -> None:
        """Let the other values in a dtype use what is reserved for them, also if
        variations before them took more than was expected."""
        self.left = max(self.left, sum(self.kept.values()))
        self.kept.pop(dtype, None)
