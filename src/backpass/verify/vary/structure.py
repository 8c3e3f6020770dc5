"""Recognise inputs whose elements belong together, without a declaration that says so.

Drawn again, they need not be in the domain of the function any more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from backpass.contract.arrays import is_array
from backpass.verify.case import Case, Inputs
from backpass.verify.convert import is_floating, to_kind_of, to_numpy

REPEATS = (
    "the integers drawn repeat, and those given do not; if they may, declare their range "
    "in SHAPES, as in t[n]:int<V"
)

EXCEED = (
    "integers exceed the length of the shorter axis; if they do not count along it, "
    "declare their range in SHAPES, as in t[n]:int<V"
)


def is_kept(case: Case, inputs: Inputs) -> bool:
    """Whether inputs in place of a case's keep the structure that those have.

    Rows that sum to 1 or have length 1, such as probabilities, are not drawn again.
    Beside offsets, which end with a length, integers keep their number, and so do what
    the offsets count and the segments between them; other axes may become longer.
    """
    counted = _counted(case)
    for old, new in zip(case.inputs, inputs, strict=True):
        if new is old or not is_array(old) or not is_array(new):
            continue
        if is_floating(old) and _is_normalised(to_numpy(old)):
            return False
        if not counted or tuple(new.shape) == tuple(old.shape):
            continue
        if not is_floating(old) or len(new.shape) != len(old.shape):
            return False
        if any(
            before != after and (before in counted or after < before)
            for before, after in zip(old.shape, new.shape, strict=True)
        ):
            return False
    return True


def _is_normalised(x: np.ndarray) -> bool:
    """Whether all rows, or all columns, sum to 1 or have length 1."""
    return x.size > 1 and any(
        x.shape[axis] > 1 and np.allclose(total, 1.0, atol=1e-3)
        for axis in range(x.ndim)
        for total in (x.sum(axis), (x * x).sum(axis))
    )


def repeats(given: Sequence[Any], drawn: Sequence[Any]) -> bool:
    """Whether integers that were drawn repeat where those given do not: all of an
    array, those that are not negative, those of each slice, or whole slices. They may
    be places to write to, or the two ends of an edge."""
    return any(
        before and not after
        for old, new in zip(given, drawn, strict=True)
        if is_array(old) and new is not old and not is_floating(old)
        for before, after in zip(_apart(old), _apart(new), strict=False)
    )


def exceed(given: Sequence[Any], inputs: Sequence[Any]) -> bool:
    """Whether integers that did not exceed the length of an axis do so where it is
    shorter. They may be lengths or places along this axis."""
    pairs = [
        (old, new)
        for old, new in zip(given, inputs, strict=True)
        if is_array(old) and is_array(new) and len(old.shape) == len(new.shape)
    ]
    shorter = {
        (before, after)
        for old, new in pairs
        for before, after in zip(old.shape, new.shape, strict=True)
        if after < before
    }
    for old, new in pairs:
        before, after = (to_numpy(one) for one in (old, new))
        if not is_floating(old) and before.dtype != bool and after.size:
            top, here = int(before.max()), int(after.max())
            if any(top <= length and here > less for length, less in shorter):
                return True
    return False


def _apart(array: Any) -> Iterator[bool]:
    """Yield whether the integers of an array are different: all of them, those that are
    not negative, which may mark places that are left out, those of each slice along
    each axis, and its slices."""
    x = to_numpy(array)
    if x.dtype == bool:
        return
    for own in (x, x[x >= 0]):
        yield np.unique(own).size == own.size
    for axis in range(x.ndim) if x.ndim > 1 else ():
        along = np.sort(x, axis)
        yield bool((np.diff(along, axis=axis) != 0).all())
        yield len(np.unique(x, axis=axis)) == x.shape[axis]


def _counted(case: Case) -> set[int]:
    """Return the lengths that offsets among the inputs say, integers from 0 to a
    length, in order: their number, that of the segments between them, and what they
    count. Without offsets there are none."""
    lengths = {n for value in case.arrays for n in tuple(value.shape)}
    found: set[int] = set()
    for value in case.arrays:
        if is_floating(value) or value.ndim != 1:
            continue
        at = to_numpy(value)
        ascend = at.dtype != bool and at.size > 1 and (np.diff(at) >= 0).all()
        if ascend and at[0] == 0 and int(at[-1]) in lengths:
            found |= {at.size, at.size - 1, int(at[-1])}
    return found


def repeated(given: Inputs) -> Iterator[Inputs]:
    """Yield inputs whose integers repeat: they are the larger half of those given, and
    then all are the largest. A small one may mark what is left out."""

    def largest(value: Any, share: int) -> Any:
        if not is_array(value) or is_floating(value) or not math.prod(value.shape):
            return value
        own = to_numpy(value)
        some = np.sort(own.ravel())[::-1][: -(-own.size // share)]
        return to_kind_of(value, np.resize(some, own.shape))

    for share in (2, max(math.prod(x.shape) for x in given if is_array(x))):
        yield tuple(largest(value, share) for value in given)
