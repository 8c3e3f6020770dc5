"""Differentiate forward with one of its operations differentiated wrongly.

Forward runs as it is. Its operations are counted in the order of their calls: functions
and operators whose result is a new array that depends on an input with a gradient. In
one of them, the result or one operand is held constant, or the derivative with respect
to an operand is taken as 1. Or several that follow each other count as one function,
such as a helper, whose derivative is replaced. Autograd differentiates PyTorch's
functions; complex steps differentiate NumPy's.
"""

from __future__ import annotations

import functools
import linecache
import sys
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from backpass.contract.arrays import is_array
from backpass.verify.case import Case
from backpass.verify.convert import in_dtype, is_torch, to_numpy, to_torch
from backpass.verify.magnitude import farthest, largest, within
from backpass.verify.outputs import join
from backpass.verify.slopes import slope_of

LIBRARIES = ("numpy", "torch", "array_api_compat")  # their lines are not forward's
LONGEST_LINE = 72
STEP = 1e-30  # of a complex step
MOST_ELEMENTS = 512  # of an input: forward runs once for each element
AGREEMENT = 1e-4  # between forward's complex step and its difference, along a line
FINITE = 2.0**-17  # the step of that difference
NEAR = 2.0**-26  # between forward's y on tensors and on the arrays given


class Unfollowed(Exception):
    """Forward cannot be differentiated like this."""


EVERY = -1  # the position of a change that concerns all operations


class Change(NamedTuple):
    """The position of the operation that is differentiated wrongly, and how.

    Its result is held constant or, if ``operand`` is the position of an argument, that
    argument is. With ``identity``, the derivative with respect to it is 1. With
    ``slope``, a key of `slopes`, the operations from ``start`` to this one count as one
    function of that argument of the first, with this derivative. With ``constant``,
    that number is replaced by ``value``, in this operation, or in all of them if the
    position is EVERY.
    """

    operation: int
    operand: int | None = None
    identity: bool = False
    slope: str = ""
    start: int = 0
    constant: float | None = None
    value: float = 0.0


class Call(NamedTuple):
    """The line of code that calls an operation, the line that calls its function, the
    name of this function, and the number of its call. A line is "" if its source is not
    available."""

    line: str
    outer: str
    function: str
    number: int


class Operation(NamedTuple):
    """An operation's name and call, the number of its array arguments, the positions of
    those that depend on an input, and the positions of those that also have the
    result's shape; the shapes of the former, and the result's; and the Python floats
    among its arguments."""

    name: str
    call: Call
    arguments: int
    operands: tuple[int, ...]
    alike: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]
    constants: tuple[float, ...]

    @property
    def line(self) -> str:
        return self.call.line


@dataclass
class Trace:
    """The operations of one run. ``change``, if given, changes one of them."""

    constant: Callable[[Any], Any]
    depends: Callable[[Any], bool]
    change: Change | None = None
    operations: list[Operation] = field(default_factory=list)
    _frames: list[FrameType] = field(default_factory=list)  # the calls, kept apart
    _argument: Any = None

    def call(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        options: dict[str, Any],
    ) -> Any:
        """Return what the function returns, and count it if that is an operation."""
        number = len(self.operations)
        change = self.change
        if change and change.constant is not None:
            if change.operation in (number, EVERY):
                args = [self._replaced(arg) for arg in args]
                options = {key: self._replaced(arg) for key, arg in options.items()}
        function = functools.partial(function, **options)
        result = function(*args)
        if not self.depends(result) or any(_shares(result, arg) for arg in args):
            return result
        operands = tuple(i for i, arg in enumerate(args) if self.depends(arg))
        alike = tuple(i for i in operands if args[i].shape == result.shape)
        arrays = sum(is_array(arg) for arg in args)
        shapes = tuple(tuple(args[i].shape) for i in operands)
        call = Call("", "", "", 0) if change else self._call()
        floats = [a for a in (*args, *options.values()) if isinstance(a, float)]
        shape = tuple(result.shape)
        self.operations.append(
            Operation(name, call, arrays, operands, alike, shapes, shape, (*floats,))
        )
        if change and change.slope and number == change.start:
            assert change.operand is not None
            self._argument = args[change.operand]
        if change is None or change.constant is not None or change.operation != number:
            return result
        if change.slope:
            still = self.constant(result)
            z = self.constant(self._argument)
            slope = slope_of(change.slope, name)
            return still + slope(z, still) * (self._argument - z)
        if (at := change.operand) is None:
            return self.constant(result)
        still = self.constant(args[at])
        result = function(*args[:at], still, *args[at + 1 :])
        return result + (args[at] - still) if change.identity else result

    def _replaced(self, value: Any) -> Any:
        """Return the value, or that of the change in place of its constant."""
        assert self.change
        same = isinstance(value, float) and value == self.change.constant
        return self.change.value if same else value

    def _call(self) -> Call:
        """Return the call of the current operation."""
        frame = sys._getframe(1)
        while frame.f_back is not None and _is_of_library(frame.f_globals):
            frame = frame.f_back
        known = (n for n, other in enumerate(self._frames) if other is frame)
        number = next(known, len(self._frames))
        if number == len(self._frames):
            self._frames.append(frame)
        return Call(_line(frame), _line(frame.f_back), _function(frame), number)


def _function(frame: FrameType) -> str:
    """Return the name of a function, with its module if the name alone says little."""
    name, module = frame.f_code.co_name, frame.f_globals.get("__name__", "__main__")
    plain = name != "forward" or module == "__main__"
    return name if plain else f"{module.rpartition('.')[2]}.{name}"


def _line(frame: FrameType | None) -> str:
    """Return the line of code that a frame runs, or "" for one of a library."""
    if frame is None or _is_of_library(frame.f_globals):
        return ""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return textwrap.shorten(line, LONGEST_LINE, placeholder=" …")


def _is_of_library(names: dict[str, Any]) -> bool:
    module = names.get("__name__", "")
    own = module.startswith("backpass.verify.")  # which calls forward
    return own or module.partition(".")[0] in LIBRARIES


def _shares(result: Any, arg: Any) -> bool:
    """Whether the result is the argument, or a view of it."""
    if result is arg:
        return True
    if is_torch(result):
        return result._is_view()
    return isinstance(arg, np.ndarray) and np.may_share_memory(result, arg)


@dataclass(frozen=True)
class Follower:
    """Forward's gradient for one input and one cotangent, under a change.

    ``got`` is backward's gradient for the same cotangent. A gradient that is known to
    differ from it need not be computed in full. ``method`` is the name of the check's
    method that differentiates forward in the same way.
    """

    method: ClassVar[str] = ""
    at: int
    dy: np.ndarray
    got: np.ndarray

    def gradient(self, case: Case, change: Change | None = None) -> np.ndarray | None:
        """Return the gradient; None if it is known to differ from ``got``. Raises
        Unfollowed."""
        raise NotImplementedError

    def operations(self, case: Case) -> list[Operation]:
        """Return forward's operations. Raises Unfollowed."""
        raise NotImplementedError


class ByAutograd(Follower):
    """Forward runs on tensors in float64."""

    method = "torch autograd"

    def gradient(self, case: Case, change: Change | None = None) -> np.ndarray | None:
        import torch

        y, x, _ = self._run(case, change)
        if tuple(y.shape) != self.dy.shape:
            raise Unfollowed
        if not y.requires_grad:
            return np.zeros(tuple(x.shape))
        dy = to_torch(self.dy, case.device, y.dtype)
        (found,) = torch.autograd.grad(y, [x], dy, allow_unused=True)
        return np.zeros(tuple(x.shape)) if found is None else to_numpy(found)

    def operations(self, case: Case, near: float = NEAR) -> list[Operation]:
        """Return forward's operations. Its y may differ from the case's by ``near``
        times the largest element. Raises Unfollowed."""
        y, _, trace = self._run(case, None)
        if tuple(y.shape) != self.dy.shape:
            raise Unfollowed
        if not within(to_numpy(y), case.y, near * largest(case.y)):
            raise Unfollowed
        return trace.operations

    def _run(self, case: Case, change: Change | None) -> tuple[Any, Any, Trace]:
        """Return y, the input as a leaf, and the operations."""
        import torch
        from torch.overrides import TorchFunctionMode

        def depends(value: Any) -> bool:
            return is_torch(value) and value.requires_grad

        trace = Trace(lambda value: value.detach(), depends, change)

        class Mode(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                name = getattr(func, "__name__", "")
                options = kwargs or {}
                if _in_place(name) or options.get("out") is not None:
                    return func(*args, **options)
                return trace.call(_in_words(name), func, args, options)

        leaves = [to_torch(value, case.device) for value in case.inputs]
        for at in case.differentiable:
            leaves[at].requires_grad_()
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            with Mode():
                returned = case.subject.plain_forward(*leaves)
            y, _ = join(returned)
        if not is_torch(y):
            raise Unfollowed
        return y, leaves[self.at], trace


def _in_place(name: str) -> bool:
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def _in_words(name: str) -> str:
    """Return an operator's name as a function's: ``__rsub__`` is sub."""
    if not name.startswith("__"):
        return name
    return name.strip("_").removeprefix("r").replace("getitem", "indexing")


class ByComplexSteps(Follower):
    """Forward runs on NumPy's complex numbers."""

    method = "complex step"

    def gradient(self, case: Case, change: Change | None = None) -> np.ndarray | None:
        x = case.float64[self.at]
        direction = case.directions.first(self.at)
        slope = self._slope(case, direction, change)
        size = float(np.abs(self.got * direction).sum())
        if abs(slope - float(np.sum(self.got * direction))) > AGREEMENT * size:
            return None
        units = np.eye(x.size).reshape(-1, *x.shape)
        slopes = [self._slope(case, unit, change) for unit in units]
        return np.array(slopes).reshape(x.shape)

    def operations(self, case: Case) -> list[Operation]:
        x, direction = case.float64[self.at], case.directions.first(self.at)
        if x.size > MOST_ELEMENTS:
            raise Unfollowed
        exact, trace = self._change(case, direction, None)
        ahead, behind = (
            case.forward(self._replaced(case, x + step * direction))
            for step in (FINITE, -FINITE)
        )
        near = (ahead - behind) / (2 * FINITE)
        if farthest(exact, near) > AGREEMENT * max(largest(near), largest(exact)):
            raise Unfollowed
        return trace.operations

    def _replaced(self, case: Case, value: np.ndarray) -> tuple[Any, ...]:
        return (*case.float64[: self.at], value, *case.float64[self.at + 1 :])

    def _slope(self, case: Case, direction: np.ndarray, change: Change | None) -> float:
        return float(np.sum(self.dy * self._change(case, direction, change)[0]))

    def _change(
        self, case: Case, direction: np.ndarray, change: Change | None
    ) -> tuple[np.ndarray, Trace]:
        """Return y's change along the direction, and the operations."""
        trace = Trace(
            lambda value: value.real.astype(complex),
            lambda value: isinstance(value, np.ndarray) and np.iscomplexobj(value),
            change,
        )
        values, kind = list(case.float64), _counted(trace)
        for at in case.differentiable:
            values[at] = in_dtype(values[at], "complex128").view(kind)
        values[self.at] += 1j * STEP * direction
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = np.asarray(case.subject.forward(*values)[0])
        if not np.iscomplexobj(y) or y.shape != self.dy.shape:
            raise Unfollowed
        return np.where(np.isfinite(y), y.imag / STEP, 0.0), trace


def _counted(trace: Trace) -> type[np.ndarray]:
    """Return an array type whose operations are counted."""

    class Counted(np.ndarray):
        def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
            if out is not None:
                options["out"] = tuple(map(_plain, out))
            function = getattr(ufunc, method)
            plain = _plain(inputs)
            if out is not None:  # in place
                function(*plain, **options)
                return out[0] if len(out) == 1 else out
            name = _REDUCED.get((ufunc.__name__, method), ufunc.__name__)
            return wrapped(trace.call(name, function, plain, options))

        def __array_function__(self, func, types, args, kwargs):
            plain, options = _plain(args), {k: _plain(v) for k, v in kwargs.items()}
            if func.__name__.endswith("_like"):
                return wrapped(func(*plain, **options))
            return wrapped(trace.call(func.__name__, func, plain, options))

    def wrapped(result: Any) -> Any:
        if isinstance(result, (tuple, list)):
            return type(result)(map(wrapped, result))
        if isinstance(result, np.ndarray | np.complexfloating) and np.iscomplexobj(
            result
        ):
            return np.asarray(result).view(Counted)
        return result

    return Counted


_REDUCED = {
    ("add", "reduce"): "sum",
    ("add", "accumulate"): "cumsum",
    ("multiply", "reduce"): "prod",
    ("maximum", "reduce"): "max",
    ("minimum", "reduce"): "min",
}


def _plain(value: Any) -> Any:
    """Return arrays as NumPy's own type, including those in lists and tuples."""
    if isinstance(value, np.ndarray):
        return value.view(np.ndarray)
    if type(value) in (tuple, list):
        return type(value)(map(_plain, value))
    return value
