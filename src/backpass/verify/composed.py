"""Bound the error of code that is composed of operations in half precision.

Such code rounds after each operation, where PyTorch's operator, or a kernel that
computes in float32, rounds its result once. If the code is right in float64, only its
arithmetic is in question. The error allowed depends on the function alone, not on the
code: it is a multiple of the change that one rounding of all inputs and of the result
makes. An overflow, or a sum whose terms are added one by one in half precision, exceeds
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from backpass.verify.case import Case
from backpass.verify.comparison import Key
from backpass.verify.convert import (
    EPSILON,
    dtype_name,
    is_floating,
    is_torch,
    to_kind_of,
)
from backpass.verify.magnitude import largest, within
from backpass.verify.methods.autograd import differentiate

# Times the effect of one rounding of the inputs and of the result: the worst element.
# Right code of 39 kinds reached 1.8, and 3.2 at inputs of a single element.
SEVERAL = 4
# Times the same, relative: the median of the relative errors of large elements, which
# shows a constant factor. Right code reached 1.3; 1.02 is 2.6 in bfloat16.
FACTOR = 2
ENOUGH = 16  # elements, of which a median says something
MOST = 128  # operations; in a longer chain, such as a sum term by term, errors add up
LOST = 0.125  # of the largest element: a larger error is not one of a few roundings
RIGHT = 1e-6  # of the largest element: in float64, a smaller error is rounding
WORDS = f"or {SEVERAL} roundings, because its operations round one by one"

# Operators of PyTorch whose results are numbers that they were given, or their
# negatives.
EXACT = {
    *("_to_copy", "clone", "copy_", "neg", "abs", "relu", "where", "cat", "stack"),
    *("index", "gather", "index_select", "masked_fill", "maximum", "minimum", "flip"),
    *(
        "amax",
        "amin",
        "max",
        "min",
        "clamp",
        "clamp_min",
        "clamp_max",
        "constant_pad_nd",
    ),
    *("threshold_backward", "slice_backward", "select_backward", "_unsafe_view"),
    *("index_put", "index_put_", "scatter", "full_like", "zeros_like", "ones_like"),
}


class Allowed(NamedTuple):
    """The largest error of each element, and of a factor that all have in common."""

    each: float
    factor: float


def allowed(
    case: Case,
    dtype: str,
    right: Mapping[Key, np.ndarray],
    neighbours: Sequence[Mapping[Key, np.ndarray]],
    step: float,
) -> dict[Key, Allowed]:
    """Return the errors that are allowed for results on whose way more than one
    operation rounds, and which are right in float64.

    ``right`` is the reference. ``step`` times the difference of a neighbour's reference
    is the effect of one rounding of the inputs.
    """
    if case.subject.stem or case.dtype != dtype or dtype == "float32":
        return {}
    if case.computes_in != "float64":
        return {}
    often = rounds_often(case)
    found: dict[Key, Allowed] = {}
    for key, of in right.items():
        if not often[key != "y"] or not is_right(case, key, of):
            continue
        changes = [step * (there[key] - of) for there in neighbours]
        unit = EPSILON[dtype] / 2
        size = largest(of)
        change = max(map(largest, changes))
        each = min(SEVERAL * (change + unit * size), LOST * size)
        factor = FACTOR * max(2 * unit, change / (size or 1.0))
        found[key] = Allowed(each, factor)
    return found


def common_factor(got: np.ndarray, reference: np.ndarray) -> float:
    """Return the median ratio of the elements that are large; 1 if they are few."""
    large = np.isfinite(got) & (np.abs(reference) > largest(reference) / 8)
    if np.count_nonzero(large) < ENOUGH:
        return 1.0
    return float(np.median(got[large] / reference[large]))


def is_right(case: Case, key: Key, reference: np.ndarray) -> bool:
    """Whether y is that of the operator, or a gradient that of the reference, when they
    are computed in float64."""
    got: np.ndarray | None
    try:
        if key != "y":
            got = case.gradients[key]
        else:
            got = case.y
            reference = differentiate(case, case.operator)[0] if case.operator else got
    except Exception:  # it need not accept float64
        return False
    if got is None or got.shape != reference.shape:
        return False
    return within(got, reference, RIGHT * largest(reference))


def rounds_often(case: Case) -> tuple[bool, bool]:
    """Return whether more than one operation rounds to the inputs' dtype on the way to
    y, and whether more than one does on the way to the gradients.

    If more than MOST do, a loop may add terms one by one, and False is returned.

    The operations of PyTorch are counted as they run. NumPy computes float16 with a
    rounding after each operation.
    """
    if not case.uses_torch:
        return True, True
    of_y, of_all = _roundings(case)
    return 1 < of_y <= MOST, 1 < of_all <= MOST


def _roundings(case: Case) -> tuple[int, int]:
    """Return how many operations round in forward, and in forward and backward."""
    from backpass.torch_internals import TorchDispatchMode

    class Counting(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            found = func(*args, **(kwargs or {}))
            self.count += _rounds(func, args, found, case.dtype)
            return found

    with Counting() as mode:
        y, saved = case.subject.forward(*case.given())
        of_y = mode.count
        case.subject.backward(to_kind_of(y, case.dy), saved)
    return of_y, mode.count


def _rounds(func: Any, args: tuple, found: Any, dtype: str) -> bool:
    name = func.overloadpacket.__name__
    if func.is_view or name in EXACT or not _has(found, dtype):
        return False
    return any(_has(value, dtype) for value in args)


def _has(value: Any, dtype: str) -> bool:
    """Whether a value is a tensor of that dtype, or contains one."""
    if isinstance(value, tuple | list):
        return any(_has(part, dtype) for part in value)
    return is_torch(value) and is_floating(value) and dtype_name(value) == dtype
