"""Differentiate forward under a change, which may reproduce a wrong gradient.

A backward that omits an option, an input, or a factor may return the right gradient of
a different forward. Forward is tried as it is, and with these changes: an option at its
default or at a neutral value, an optional input left out, and one operation whose
result or operand is constant, or whose derivative is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from backpass.verify.case import Case
from backpass.verify.drawing import RERUNNING, generator
from backpass.verify.magnitude import largest
from backpass.verify.traced import (
    ByAutograd,
    ByComplexSteps,
    Change,
    Follower,
    Operation,
)
from backpass.verify.vary.options import left_out, neutral_values, with_other_options

MOST_OPERATIONS = 64  # of forward: the first ones, changed one at a time
_ENDINGS = {1: "st", 2: "nd", 3: "rd"}


class Rerun(NamedTuple):
    """A change in words, with backward's gradient and forward's under the change.

    Both are for one random cotangent. Forward's gradient is None if it is known not to
    be backward's, or if forward rejects the change.
    """

    says: str
    got: np.ndarray
    gradient: np.ndarray | None


def reruns(case: Case, at: int) -> Iterator[Rerun]:
    """Yield each change with its gradients for input ``at``.

    This is for ``diagnose(reruns=…)``. Forward runs under a change only when that
    change is requested. Nothing is yielded if neither autograd nor complex steps can
    follow forward.
    """
    try:
        dy = _another_dy(case)
        got = case.gradients_for(dy)[at]
    except Exception:
        return
    if got is None or got.shape != case.float64[at].shape:
        return
    for kind in (ByAutograd,) if case.uses_torch else (ByComplexSteps, ByAutograd):
        follower = kind(at, dy, got)
        try:
            operations = follower.operations(case)
        except Exception:
            continue
        for says, rerun in _changes(case, follower, operations):
            try:
                gradient = rerun()
            except Exception:
                gradient = None
            yield Rerun(says, got, gradient)
        return


def _another_dy(case: Case) -> np.ndarray:
    """Return a random cotangent of the scale of the case's, which the user may have
    given."""
    drawn = generator(case.seed, RERUNNING).standard_normal(case.dy.shape)
    return np.where(np.isfinite(case.y), drawn * largest(case.dy), 0.0)


def _changes(
    case: Case, follower: Follower, operations: list[Operation]
) -> Iterator[tuple[str, Callable[[], np.ndarray | None]]]:
    """Yield each change in words, and a function that computes forward's gradient."""
    says = "forward's own gradient, and the reference is not"
    yield says, lambda: follower.gradient(case)
    for what, other in _of_the_call(case):
        yield (
            f"forward's gradient {what}",
            lambda other=other: follower.gradient(other),  # type: ignore[misc]
        )
    for what, change in _of_operations(operations[:MOST_OPERATIONS]):
        yield (
            f"forward's gradient if {what}",
            lambda change=change: follower.gradient(case, change),  # type: ignore[misc]
        )


def _of_the_call(case: Case) -> Iterator[tuple[str, Case]]:
    """Yield the case with an option at a value that may have no effect, and without an
    optional input."""
    for name, value, other, there in with_other_options(case, neutral_values):
        yield f"with {name}={other!r} in place of {value!r}", there
    yield from left_out(case)


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


def _ordinal(n: int) -> str:
    """Return ``1st``, ``2nd``, ``11th``."""
    last = 0 if n % 100 in (11, 12, 13) else n % 10
    return f"{n}{_ENDINGS.get(last, 'th')}"
