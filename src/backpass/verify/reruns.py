"""Differentiate forward under a change, which may reproduce a wrong gradient.

A backward that omits an option, an input, or a factor may return the right gradient of
a different forward. Forward is tried as it is, and with these changes: an option at its
default or at a neutral value, an optional input left out, another number in place of a
constant, and one operation whose result or operand is constant, or whose derivative
is 1. If a forward has several outputs, their cotangents are changed: one is 0, halved,
doubled, or negated, two are exchanged, or one replaces the other.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from backpass.contract.arrays import size
from backpass.verify.case import Case
from backpass.verify.diagnosis.places import positions
from backpass.verify.drawing import RERUNNING, generator
from backpass.verify.magnitude import largest
from backpass.verify.outputs import Several
from backpass.verify.slopes import OF_FUNCTIONS, SLOPES
from backpass.verify.traced import (
    EVERY,
    ByAutograd,
    ByComplexSteps,
    Change,
    Follower,
    Operation,
)
from backpass.verify.vary.options import (
    left_out,
    neutral_operators,
    neutral_values,
    with_other_options,
)

MOST_OPERATIONS = 64  # of forward: the first ones, changed one at a time
ARITHMETIC = frozenset(
    "add subtract sub negative neg multiply mul divide true_divide truediv div square "
    "power pow".split()
)
MOST_CONSTANTS = 8  # the first ones of forward
SMALL = 0.01  # constants below it are taken for an ε, which backward may have changed
POWERS = tuple(10.0**-n for n in range(3, 13))
MOST_PARTS = 64  # of dy along one axis, for each of which backward runs
MOST_OUTPUTS = 8  # the first ones, whose cotangents are changed one at a time
DERIVED = ("torch autograd", "complex step", "finite differences")  # from forward
COARSE = 2.0**-14  # between the y of an operator and that of kernels in float32
ONLY_THIS_DY = "forward's own gradient for a random dy, but not for this one"
OF_ANOTHER = "forward's own gradient, and the reference is not"
_ENDINGS = {1: "st", 2: "nd", 3: "rd"}


class Rerun(NamedTuple):
    """A change in words, with backward's gradient and forward's under the change.

    Both are for one random cotangent. Forward's gradient is None if it is known not to
    be backward's, or if forward rejects the change.
    """

    says: str
    got: np.ndarray
    gradient: np.ndarray | None


def reruns(case: Case, at: int, method: str = "") -> Iterator[Rerun]:
    """Yield each change with its gradients for input ``at``.

    ``method`` is the name of the method that computed the reference. This is for
    ``diagnose(reruns=…)``. Forward runs under a change only when that change is
    requested. Nothing is yielded if neither autograd nor complex steps can follow
    forward.
    """
    if (found := _follower(case, at)) is None:
        return
    follower, operations = found
    yield from _rerun(follower, _changes(case, follower, operations, method))


def of_operator(case: Case, at: int, got: np.ndarray) -> Iterator[Rerun]:
    """Yield each change of the operator, in place of forward, whose kernels nothing
    follows; its gradients are compared with ``got``, for the case's cotangent."""
    if case.operator is None:
        return
    follower, there = ByAutograd(at, case.dy, got), _as_forward(case, case.operator)
    try:
        operations = follower.operations(there, near=COARSE)
    except Exception:
        return

    def changes() -> Iterator[tuple[str, Callable[[], np.ndarray | None]]]:
        for what, other in neutral_operators(case):
            said, of = f"the operator's gradient with {what}", _as_forward(case, other)
            yield said, lambda of=of: follower.gradient(of)  # type: ignore[misc]
        for word, found in (
            ("with", _of_constants(operations)),
            ("if", _of_operations(operations[:MOST_OPERATIONS])),
        ):
            for what, change in found:
                yield (
                    f"the operator's gradient {word} {what}",
                    lambda change=change: follower.gradient(there, change),  # type: ignore[misc]
                )

    yield from _rerun(follower, changes())


def _as_forward(case: Case, operator: Callable) -> Case:
    """Return the case with the operator in place of forward."""
    return replace(case, subject=replace(case.subject, plain_forward=operator))


def of_outputs(case: Case, at: int) -> Iterator[Rerun]:
    """Yield each change of the outputs' cotangents, such as one that is not used, with
    its gradients for input ``at``.

    This is for ``diagnose(outputs=…)``. Forward's gradient is that of the changed
    cotangents.
    """
    several = several_outputs(case)
    if several is None or (found := _follower(case, at)) is None:
        return
    follower, _ = found
    yield from _rerun(
        follower,
        (
            (says, lambda dy=dy: replace(follower, dy=dy).gradient(case))  # type: ignore[misc]
            for says, dy in _changed_cotangents(several, follower.dy)
        ),
    )


def several_outputs(case: Case) -> Several | None:
    """Return the outputs if a cotangent belongs to each of at least two."""
    try:
        saved = case.run[1]
    except Exception:
        return None
    several = case.subject.several(saved)
    return several if several is not None and sum(several.joined) > 1 else None


def _follower(case: Case, at: int) -> tuple[Follower, list[Operation]] | None:
    """Return what differentiates forward for a random cotangent, and its operations;
    None if nothing can, or backward returns no gradient of the input's shape."""
    try:
        dy = _another_dy(case)
        got = case.gradients_for(dy)[at]
    except Exception:
        return None
    if got is None or got.shape != case.float64[at].shape:
        return None
    for kind in (ByAutograd,) if case.uses_torch else (ByComplexSteps, ByAutograd):
        follower = kind(at, dy, got)
        with contextlib.suppress(Exception):
            return follower, follower.operations(case)
    return None


def _rerun(
    follower: Follower,
    changes: Iterable[tuple[str, Callable[[], np.ndarray | None]]],
) -> Iterator[Rerun]:
    for says, run in changes:
        try:
            gradient = run()
        except Exception:
            gradient = None
        yield Rerun(says, follower.got, gradient)


def _changed_cotangents(
    several: Several, dy: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each change of one output's cotangent, or of two, in words, with the
    vector of all cotangents."""
    parts, start = [], 0
    for number, (output, joined) in enumerate(
        zip(several.outputs, several.joined, strict=True), start=1
    ):
        if joined:
            stop = start + size(output.shape)
            parts.append((number, tuple(output.shape), slice(start, stop)))
            start = stop
    parts = parts[:MOST_OUTPUTS]
    for number, _, own in parts:
        of = f"the cotangent of output {number}"
        for factor, says in (
            (0.0, f"{of} is not used"),
            (0.5, f"only half of {of} is used"),
            (2.0, f"{of} is added twice"),
            (-1.0, f"{of} has the wrong sign"),
        ):
            changed = dy.copy()
            changed[own] *= factor
            yield says, changed
    for (one, shape, first), (other, same, second) in itertools.combinations(parts, 2):
        if shape != same:
            continue
        both = dy.copy()
        both[first], both[second] = dy[second], dy[first]
        yield f"the cotangents of outputs {one} and {other} are exchanged", both
        for used, place, value, lost in (
            (one, second, first, other),
            (other, first, second, one),
        ):
            changed = dy.copy()
            changed[place] = dy[value]
            says = f"the cotangent of output {used} is used in place of that of output"
            yield f"{says} {lost}", changed


def _another_dy(case: Case) -> np.ndarray:
    """Return a random cotangent of the scale of the case's, which the user may have
    given."""
    drawn = generator(case.seed, RERUNNING).standard_normal(case.dy.shape)
    return np.where(np.isfinite(case.y), drawn * largest(case.dy), 0.0)


def _changes(
    case: Case, follower: Follower, operations: list[Operation], method: str
) -> Iterator[tuple[str, Callable[[], np.ndarray | None]]]:
    """Yield each change in words, and a function that computes forward's gradient."""
    yield _unchanged(follower, method), lambda: follower.gradient(case)
    for what, other in _of_the_call(case):
        yield (
            f"forward's gradient {what}",
            lambda other=other: follower.gradient(other),  # type: ignore[misc]
        )
    for what, change in _of_constants(operations):
        yield (
            f"forward's gradient with {what}",
            lambda change=change: follower.gradient(case, change),  # type: ignore[misc]
        )
    for what, dy in _without_parts(case, follower):
        yield what, lambda dy=dy: replace(follower, dy=dy).gradient(case)  # type: ignore[misc]
    for what, change in _of_operations(operations[:MOST_OPERATIONS]):
        yield (
            f"forward's gradient if {what}",
            lambda change=change: follower.gradient(case, change),  # type: ignore[misc]
        )


def _unchanged(follower: Follower, method: str) -> str:
    """Say what it means that a gradient is forward's own for a random cotangent, while
    this method computed a different one for the case's cotangent."""
    if method == follower.method:
        return ONLY_THIS_DY
    if method not in DERIVED:
        return OF_ANOTHER
    return (
        f"forward's own gradient by {follower.method} for a random dy, and {method} "
        "disagrees for this one: forward's derivative may not be unique there, as at a "
        "kink or where a scatter repeats an index, or only this dy shows the mistake"
    )


def _without_parts(case: Case, follower: Follower) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the cotangent without the positions of one axis at which backward does not
    use it, in words. Several outputs are left out."""
    dy = follower.dy
    if several_outputs(case) is not None:
        return
    for axis, length in enumerate(dy.shape):
        along = np.arange(length).reshape(
            [-1 if a == axis else 1 for a in range(dy.ndim)]
        )
        left, unused, runs = [(0, length)], np.zeros(length, dtype=bool), 0
        while left and runs < MOST_PARTS:
            start, stop = left.pop()
            runs += 1
            part = case.gradients_for(
                np.where((start <= along) & (along < stop), dy, 0.0)
            )[follower.at]
            if part is None or not part.any():
                unused[start:stop] = True
            elif stop - start > 1:
                middle = (start + stop) // 2
                left += [(start, middle), (middle, stop)]
        if unused.any() and not unused.all():
            where = positions(np.nonzero(unused)[0])
            says = f"forward's gradient without dy at {where} of axis {axis}"
            yield says, np.where(unused[along], 0.0, dy)


def _of_the_call(case: Case) -> Iterator[tuple[str, Case]]:
    """Yield the case with an option at a value that may have no effect, and without an
    optional input."""
    for name, value, other, there in with_other_options(case, neutral_values):
        yield f"with {name}={other!r} in place of {value!r}", there
    yield from left_out(case)


def _of_constants(operations: list[Operation]) -> Iterator[tuple[str, Change]]:
    """Yield the changes of constants, each in all operations and then in one.

    A small one, such as the ε of a logarithm, may be left out or have another value in
    backward. A factor may be left out."""
    places: dict[float, list[int]] = {}
    for n, operation in enumerate(operations):
        for constant in operation.constants:
            if math.isfinite(constant) and abs(constant) not in (0.0, 1.0):
                places.setdefault(constant, []).append(n)
    for constant, at in [*places.items()][:MOST_CONSTANTS]:
        every = [EVERY] if len({*at}) > 1 else []
        others = POWERS if abs(constant) < SMALL else (1.0,)
        for n in (*every, *dict.fromkeys(at)):
            line = operations[max(n, at[0])].line
            where = "" if n == EVERY or not line else f"; its line: {line}"
            for value in (0.0, *others):
                what = f"{value:g} in place of {constant:g}{where}"
                yield what, Change(n, constant=constant, value=value)


def _of_operations(operations: list[Operation]) -> Iterator[tuple[str, Change]]:
    """Yield the changes of operations, those of whole results first."""
    called = [
        f"{operation.name} (the {_ordinal(n)} operation)"
        for n, operation in enumerate(operations, start=1)
    ]
    lines = [f"; its line: {of.line}" if of.line else "" for of in operations]
    for n, (name, line) in enumerate(zip(called, lines, strict=True)):
        yield f"the result of {name} is constant{line}", Change(n)
    for n, operation in enumerate(operations):
        name, line = called[n], lines[n]
        for at in operation.operands:
            which = f"the {_ordinal(at + 1)} operand of {name}"
            if len(operation.operands) > 1:
                yield f"{which} is constant{line}", Change(n, at)
            if at in operation.alike:
                to = f" with respect to its {_ordinal(at + 1)} operand"
                to = to if operation.arguments > 1 else ""
                says = f"the derivative of {name}{to} is 1{line}"
                yield says, Change(n, at, identity=True)
    yield from _of_functions(operations)


def _of_functions(operations: list[Operation]) -> Iterator[tuple[str, Change]]:
    """Yield the changes of helpers and of lines, taken as one function each, and of
    operations with one argument."""
    spans = [*_spans(operations)][:MOST_OPERATIONS]
    for slope in SLOPES:
        for name, line, last, start, at in spans:
            says = f"the derivative of {name} is {slope}{line}"
            yield says, Change(last, at, slope=slope, start=start)
        for n, operation in enumerate(operations):
            unary = operation.arguments == 1 and operation.name not in ARITHMETIC
            if unary and slope != "1":
                yield from _with_slopes(operation, n, [slope])
    for n, operation in enumerate(operations):
        yield from _with_slopes(operation, n, OF_FUNCTIONS.get(operation.name, ()))


def _with_slopes(
    operation: Operation, n: int, slopes: Iterable[str]
) -> Iterator[tuple[str, Change]]:
    """Yield an operation with each of these derivatives."""
    name = f"{operation.name} (the {_ordinal(n + 1)} operation)"
    line = f"; its line: {operation.line}" if operation.line else ""
    for slope in slopes if operation.alike else ():
        says = f"the derivative of {name} is {slope}{line}"
        yield says, Change(n, operation.alike[0], slope=slope, start=n)


def _spans(operations: list[Operation]) -> Iterator[tuple[str, str, int, int, int]]:
    """Yield operations that follow each other and count as one function: its name and
    line, its last operation and its first, and the operand of that.

    These are all operations of a helper, and the last ones of a line of several.
    """
    calls = itertools.groupby(enumerate(operations), key=lambda pair: pair[1].call[1:])
    for (outer, _, _), run in calls:
        own = [n for n, _ in run]
        first, last = own[0], own[-1]
        if outer and 1 < len(own) < len(operations):
            for at, shape in _operands(operations[first]):
                if shape == operations[last].shape:
                    name = operations[last].call.function
                    says = f"{name} (operations {first + 1} to {last + 1})"
                    yield says, f"; its call: {outer}", last, first, at
        for line, each in itertools.groupby(own, key=lambda n: operations[n].line):
            of_line = [*each]
            names = [operations[n].name for n in of_line]
            once = line and len({*names}) == len(names)  # not a line in a loop
            for start in of_line[:-1] if once else []:
                end = of_line[-1]
                for at, shape in _operands(operations[start]):
                    if shape == operations[end].shape and (start, end) != (first, last):
                        ends = f"{operations[start].name} to {operations[end].name}"
                        says = f"{ends} (operations {start + 1} to {end + 1})"
                        yield says, f"; its line: {line}", end, start, at


def _operands(operation: Operation) -> Iterator[tuple[int, tuple[int, ...]]]:
    return zip(operation.operands, operation.shapes, strict=True)


def _ordinal(n: int) -> str:
    """Return ``1st``, ``2nd``, ``11th``."""
    last = 0 if n % 100 in (11, 12, 13) else n % 10
    return f"{n}{_ENDINGS.get(last, 'th')}"
