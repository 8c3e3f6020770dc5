"""Recognise inputs whose elements belong together, without a declaration that says so.

Drawn again, they need not be in the domain of the function any more.
"""

from __future__ import annotations

import numpy as np

from backpass.contract.arrays import is_array
from backpass.verify.case import Case, Inputs
from backpass.verify.convert import is_floating, to_numpy


def is_kept(case: Case, inputs: Inputs) -> bool:
    """Whether inputs in place of a case's keep the structure that those have.

    Rows that sum to 1 or have length 1, such as probabilities, are not drawn again. No
    length changes beside offsets, which end with a length.
    """
    for old, new in zip(case.inputs, inputs, strict=True):
        if new is old or not is_array(old) or not is_array(new):
            continue
        if is_floating(old) and _is_normalised(to_numpy(old)):
            return False
        if tuple(new.shape) != tuple(old.shape) and _has_offsets(case):
            return False
    return True


def _is_normalised(x: np.ndarray) -> bool:
    """Whether all rows, or all columns, sum to 1 or have length 1."""
    return x.size > 1 and any(
        x.shape[axis] > 1 and np.allclose(total, 1.0, atol=1e-3)
        for axis in range(x.ndim)
        for total in (x.sum(axis), (x * x).sum(axis))
    )


def _has_offsets(case: Case) -> bool:
    """Whether an input consists of offsets: integers from 0 to a length, in order."""
    lengths = {n for value in case.arrays for n in tuple(value.shape)}
    return any(
        not is_floating(value)
        and value.ndim == 1
        and (at := to_numpy(value)).dtype != bool
        and at.size > 1
        and at[0] == 0
        and (np.diff(at) >= 0).all()
        and int(at[-1]) in lengths
        for value in case.arrays
    )
