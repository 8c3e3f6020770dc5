"""Judge one quantity by its largest error, divided by the largest reference element.

Arrays for which that number says nothing, such as empty ones and zeros, have rules of
their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from backpass.verify.case import Case, NotRun
from backpass.verify.convert import is_floating, to_kind_of, to_numpy
from backpass.verify.diagnosis import diagnose
from backpass.verify.findings import Wrong
from backpass.verify.magnitude import farthest, largest
from backpass.verify.outputs import named_arrays
from backpass.verify.report import FAILED, PASSED, VACUOUS, Row
from backpass.verify.reruns import (
    Rerun,
    of_operator,
    of_outputs,
    reruns,
    several_outputs,
)
from backpass.verify.variants import variants

DECLARED_ZERO = "the gradient is declared zero"
TOO_COARSE = "this dtype's rounding is as large as the gradient: any error would pass"
FINE = 1e-14  # of two gradients that differ by rounding alone
# A less accurate reference cannot tell a variant of backward from rounding.
CLOSE = 1e-6
SINGLE = (
    1e-4  # to which numbers of float32 show of which operator they are the gradient
)

Key = Literal["y"] | int  # "y", or the position of the input of a gradient


def largest_error(got: np.ndarray, reference: np.ndarray) -> float:
    """Return the largest error divided by the largest reference element, over the
    entries that are finite in both."""
    finite = np.isfinite(got) & np.isfinite(reference)
    difference, size = farthest(got[finite], reference[finite]), largest(reference)
    return difference / size if size else difference


@dataclass(frozen=True)
class Judge:
    """Compares y, or one input's gradient, with its reference, element by element.

    ``resolution`` times a gradient's natural scale is the smallest number that the
    reference can tell from zero. By default it is the tolerance. ``explain=False`` is
    for numbers that are not the gradient's elements.
    """

    case: Case
    method: str
    key: Key
    tolerance: float
    how: str
    resolution: float | None = None
    explain: bool = True

    @property
    def quantity(self) -> str:
        """``y`` or ``dx``."""
        return "y" if self.key == "y" else self.case.subject.quantity(self.key)

    @property
    def floors(self) -> tuple[float, float]:
        """The largest reference and the largest result that count as zero."""
        if self.key == "y":
            return 0.0, 0.0
        scale = self.case.scales[self.key]
        least = self.tolerance if self.resolution is None else self.resolution
        return least * scale, self.tolerance * scale

    @property
    def declared_zero(self) -> bool:
        """Whether the quantity is a gradient that is declared to be zero."""
        subject = self.case.subject
        return self.key != "y" and (
            subject.input_names[self.key] in subject.zero_gradients
        )

    def row(self, got: np.ndarray | None, reference: np.ndarray) -> Row:
        """Return the row of the quantity. A gradient of None counts as zeros."""
        got = np.zeros_like(reference) if got is None else got
        if self.key != "y" and self.explain:
            self.case.found.references[self.method, self.quantity] = reference
        judge = self._zero_row if self.declared_zero else self._row
        return judge(got, reference)

    def verdict(
        self, verdict: str, error: float | None, reason: str = "", note: str = ""
    ) -> Row:
        """Return a row of the quantity with that verdict."""
        measured = error, self.tolerance, self.how
        return Row(self.method, self.quantity, verdict, *measured, reason, note)

    def _row(self, got: np.ndarray, reference: np.ndarray) -> Row:
        if got.shape != reference.shape:
            return self.verdict(FAILED, np.inf, self._explained(got, reference))
        if reference.size == 0:
            return self.verdict(VACUOUS, None, "the array is empty")
        if np.isfinite(got).all() and np.isfinite(reference).all():
            return self._finite_row(got, reference)
        unknown = np.isnan(reference)
        undefined = np.isnan(got)
        if not self.case.finite and np.isnan(self.case.y_as_given).any():
            # Where the output is undefined, as in a row of −∞, so may be the gradient.
            undefined &= ~unknown
        if undefined.any():
            return self.verdict(FAILED, np.nan, f"NaN at {_where(undefined)}")
        if unknown.any() and self.case.finite:
            reason = (
                f"the reference is NaN at {_where(unknown)}, "
                "though every input is finite"
            )
            return self.verdict(FAILED, np.nan, reason)
        if unknown.all():
            return self.verdict(VACUOUS, None, "the reference is NaN everywhere")
        note = (
            f"no reference at {unknown.sum()} of {unknown.size} entries (NaN)"
            if unknown.any()
            else ""
        )
        infinite = (np.isinf(got) | np.isinf(reference)) & ~unknown
        if (got != reference)[infinite].any():
            where = _where(infinite & (got != reference))
            reason = f"got or the reference is infinite, and they differ, at {where}"
            return self.verdict(FAILED, np.inf, reason)

        compared = ~unknown & ~infinite
        return self._finite_row(
            np.where(compared, got, 0.0), np.where(compared, reference, 0.0), note
        )

    def _finite_row(
        self, got: np.ndarray, reference: np.ndarray, note: str = ""
    ) -> Row:
        size = largest(reference)
        if size <= self.floors[0]:
            if (most := largest(got)) <= self.floors[1]:
                return self.verdict(VACUOUS, None, self._why_zero(size), note)
            return self.verdict(
                FAILED, np.inf, f"expected 0; got up to {most:.2g}", note
            )
        if self.tolerance >= 1:
            return self.verdict(VACUOUS, None, TOO_COARSE, note)
        error = farthest(got, reference) / size
        if error <= self.tolerance:
            return self.verdict(PASSED, error, note=note)
        return self.verdict(FAILED, error, self._explained(got, reference), note)

    def _zero_row(self, got: np.ndarray, reference: np.ndarray) -> Row:
        """Judge a gradient that is declared to be zero."""
        if got.shape != reference.shape:
            return self.verdict(FAILED, np.inf, self._explained(got, reference))
        for what, array, floor in (
            ("the reference", reference, self.floors[0]),
            ("backward", got, self.floors[1]),
        ):
            worst = float(np.abs(array).max(initial=0.0))
            if not worst <= floor:
                return self.verdict(
                    FAILED, np.inf, f"declared zero, but {what} has {worst:.2g}"
                )
        return self.verdict(PASSED, 0.0, note=DECLARED_ZERO)

    def _why_zero(self, most: float) -> str:
        if self.quantity != "y" and not self.case.dy.any():
            return "the cotangent is zero: any error would pass"
        size = (
            "zero everywhere"
            if most == 0
            else f"at most {most:.1g}, too small for this method to see"
        )
        what = "output" if self.key == "y" else "gradient"
        return f"the {what} is {size}: any error would pass"

    def _explained(self, got: np.ndarray, reference: np.ndarray) -> str:
        """Return a placeholder for the row's reason.

        ``check`` replaces it with the quantity's diagnosis.
        """
        case, at, mine = self.case, self.key, (self.method, self.quantity)
        if not (self.explain and case.explain):
            return "wrong"
        accuracy = max(1e-9, self.tolerance)

        def arrays() -> Wrong:
            terms = _terms(case)
            if at == "y":
                del terms["y"], terms["dy"]
            return Wrong(reference, got, terms, accuracy)

        def diagnosed(seconds: float) -> str:
            search = partial(
                diagnose,
                reference,
                got,
                arrays().terms,
                accuracy=accuracy,
                seconds=seconds,
            )
            if at == "y":
                return str(search())
            diagnosis = search(
                backward=lambda dy: case.gradients_for(dy)[at],
                others={
                    quantity: of
                    for (method, quantity), of in case.found.references.items()
                    if method == self.method and quantity != self.quantity
                },
                variants=variants(case, at) if accuracy <= CLOSE else (),
                reruns=_reruns(case, at, self.method, got, accuracy),
                outputs=of_outputs(case, at) if accuracy <= CLOSE else (),
                fine=FINE if self.tolerance < accuracy else 0.0,
                options={
                    name: value
                    for name, value in case.subject.all_options.items()
                    if type(value) in (int, float) and math.isfinite(value)
                },
            )
            if diagnosis.kind == "equal":  # off by less than a diagnosis can see
                off = largest_error(got, reference)
                return (
                    f"off by {off:.1e} of the largest element: more than the "
                    "tolerance, but too little for a diagnosis"
                )
            return str(diagnosis)

        case.found.suspect(*mine, accuracy, diagnosed, arrays)
        return "wrong"


def _reruns(
    case: Case, at: int, method: str, got: np.ndarray, accuracy: float
) -> Iterator[Rerun]:
    """Yield the gradients of forward under changes; where nothing follows it, or in the
    precision of float32, those of the operator."""
    followed = False
    for rerun in reruns(case, at, method) if accuracy <= CLOSE else ():
        followed = True
        yield rerun
    if not followed and accuracy <= SINGLE:
        yield from of_operator(case, at, got)


def _terms(case: Case) -> dict[str, np.ndarray]:
    """Return the arrays from which a gradient may be computed, by name.

    These are the floating-point inputs, y, dy, and the other saved arrays. Of several
    outputs, y1 and dy1 are the first and its cotangent.
    """
    named = zip(case.subject.input_names, case.float64, strict=False)
    terms = {name: value for name, value in named if is_floating(value)}
    terms |= {"y": case.y_as_given, "dy": case.dy}
    try:
        saved = case.run[1]
    except NotRun:
        return terms
    if several := several_outputs(case):
        dys = several.split(to_kind_of(case.run[0], case.dy))
        pairs = zip(several.outputs, dys, strict=True)
        for number, (output, cotangent) in enumerate(pairs, start=1):
            if cotangent is not None:
                terms.setdefault(f"y{number}", to_numpy(output))
                terms.setdefault(f"dy{number}", to_numpy(cotangent))
    for name, value in named_arrays(saved):
        value = to_numpy(value)
        if not any(
            np.array_equal(value, known, equal_nan=True) for known in terms.values()
        ):
            terms[name] = value
    return terms


def _where(mask: np.ndarray) -> str:
    index = [int(i) for i in np.argwhere(mask)[0]]
    return f"index {index}" if index else "the only element"
