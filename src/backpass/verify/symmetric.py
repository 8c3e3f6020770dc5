"""Judge the gradient of a symmetric matrix of which forward reads one triangle, as a
Cholesky decomposition does.

The gradient that is customary there is symmetric: it is half of the derivative by the
element that is read, at that element and at the one opposite. Together they change y as
a symmetric change of the matrix does.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from backpass.verify.case import Case
from backpass.verify.comparison import Judge
from backpass.verify.magnitude import largest
from backpass.verify.report import PASSED, Row

NOTE = (
    "{name} is symmetric, and forward reads one of its triangles: compared for "
    "symmetric changes"
)


def judged(row: Row, case: Case, at: int) -> Row | None:
    """Return a passed row if a gradient is symmetric and right for symmetric changes of
    a symmetric matrix of which forward reads one triangle; otherwise None."""
    x, got = case.float64[at], case.gradients[at]
    reference = case.found.references.get((row.method, row.quantity))
    if reference is None or got is None or row.tolerance is None:
        return None
    if got.shape != x.shape or x.ndim < 2 or not 1 < x.shape[-1] == x.shape[-2]:
        return None
    near = row.tolerance * largest(reference)
    if not (_is_symmetric(x, 0.0) and _is_symmetric(got, near)):
        return None
    unread = [largest(half(reference, k)) <= near for half, k in _TRIANGLES]
    if unread[0] == unread[1]:
        return None
    judge = Judge(case, row.method, at, row.tolerance, row.how)
    found = judge.row(got, (reference + reference.swapaxes(-1, -2)) / 2)
    note = NOTE.format(name=case.subject.input_names[at])
    return replace(found, note=note) if found.verdict == PASSED else None


_TRIANGLES = ((np.tril, -1), (np.triu, 1))


def _is_symmetric(x: np.ndarray, near: float) -> bool:
    return bool((np.abs(x - x.swapaxes(-1, -2)) <= near).all())
