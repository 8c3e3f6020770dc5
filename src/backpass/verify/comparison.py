"""The verdict on one quantity: the largest element's error over the largest reference element, and when that
says nothing.
"""

from __future__ import annotations

import numpy as np

from backpass.verify.case import Case
from backpass.verify.report import FAILED, PASSED, VACUOUS, Row


def judge_y(
    case: Case, method: str, got: np.ndarray, reference: np.ndarray, tolerance: float, how: str
) -> Row:
    """Compare an output, element by element."""
    return _judge(case, method, "y", got, reference, tolerance, how, floors=(0.0, 0.0))


def judge_gradient(
    case: Case,
    method: str,
    at: int,
    got: np.ndarray | None,
    reference: np.ndarray,
    tolerance: float,
    how: str,
    resolution: float | None = None,
) -> Row:
    """Compare the whole gradient with respect to one input, element by element.

    ``resolution`` times the gradient's natural scale is the least that the reference can tell from zero; it is
    the tolerance unless given.
    """
    if got is None:
        got = np.zeros_like(reference)
    scale = case.scale(at)
    floors = (tolerance if resolution is None else resolution) * scale, tolerance * scale
    if case.subject.input_names[at] in case.subject.zero_gradients:
        return _judge_zero(method, case.quantity(at), got, reference, tolerance, how, floors)
    return _judge(case, method, case.quantity(at), got, reference, tolerance, how, floors)


def largest_error(got: np.ndarray, reference: np.ndarray) -> float:
    """The largest element's error over the largest reference element; over the entries finite in both."""
    finite = np.isfinite(got) & np.isfinite(reference)
    difference = np.abs(got[finite] - reference[finite]).max(initial=0.0)
    largest = np.abs(reference[finite]).max(initial=0.0)
    return float(difference / largest) if largest else float(difference)


def _judge(case, method, quantity, got, reference, tolerance, how, floors) -> Row:
    def row(verdict: str, error: float | None = None, reason: str = "", note: str = "") -> Row:
        return Row(method, quantity, verdict, error, tolerance, "; ".join(filter(None, (how, note))), reason)

    if got.shape != reference.shape:
        return row(FAILED, np.inf, f"expected shape {list(reference.shape)}; got {list(got.shape)}")
    if reference.size == 0:
        return row(VACUOUS, reason="the array is empty")
    if np.isnan(got).any():
        return row(FAILED, np.nan, f"NaN at {_where(np.isnan(got))}")

    unknown = np.isnan(reference)
    if unknown.any() and case.finite:
        return row(FAILED, np.nan, f"the reference is NaN at {_where(unknown)}, though every input is finite")
    note = (
        f"reference NaN at {unknown.sum()} of {unknown.size} entries, not compared" if unknown.any() else ""
    )
    if unknown.all():
        return row(VACUOUS, reason="the reference is NaN everywhere")
    infinite = (np.isinf(got) | np.isinf(reference)) & ~unknown
    if (got != reference)[infinite].any():
        return row(
            FAILED, np.inf, f"infinite, unlike the reference, at {_where(infinite & (got != reference))}"
        )

    compared = ~unknown & ~infinite
    difference = np.abs(np.where(compared, got, 0.0) - np.where(compared, reference, 0.0))
    largest = np.abs(reference[compared]).max(initial=0.0)
    if largest <= floors[0]:
        if np.abs(got[compared]).max(initial=0.0) <= floors[1]:
            return row(VACUOUS, reason=_why_zero(case, quantity, largest))
        return row(FAILED, np.inf, f"expected 0; got up to {np.abs(got[compared]).max():.2g}")
    if tolerance >= 1:
        return row(
            VACUOUS, reason="the rounding of this dtype is as large as the gradient: any error would pass"
        )
    error = float(difference.max() / largest)
    if error <= tolerance:
        return row(PASSED, error, note=note)
    return row(FAILED, error, f"largest error at {_where(difference == difference.max())}", note)


def _judge_zero(method, quantity, got, reference, tolerance, how, floors) -> Row:
    how = f"{how}; the gradient is declared zero"
    for what, array, floor in (("the reference", reference, floors[0]), ("backward", got, floors[1])):
        largest = float(np.abs(array).max(initial=0.0))
        if not largest <= floor:
            return Row(
                method,
                quantity,
                FAILED,
                np.inf,
                tolerance,
                how,
                f"declared zero, but {what} has {largest:.2g}",
            )
    return Row(method, quantity, PASSED, 0.0, tolerance, how)


def _why_zero(case: Case, quantity: str, largest: float) -> str:
    if quantity != "y" and not case.dy.any():
        return "the cotangent is zero"
    size = "zero everywhere" if largest == 0 else f"at most {largest:.1g}, too small for this method to see"
    return f"the {'output' if quantity == 'y' else 'gradient'} is {size}: any error would pass"


def _where(mask: np.ndarray) -> str:
    index = [int(i) for i in np.argwhere(mask)[0]]
    return f"index {index}" if index else "the only element"
