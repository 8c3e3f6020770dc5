"""Advise on a gradient that is zero at the inputs given: it may be zero for every
input, or by coincidence."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from backpass.contract.arrays import is_array
from backpass.verify.case import Case
from backpass.verify.convert import is_floating, to_kind_of, to_numpy
from backpass.verify.drawing import VARYING, generator
from backpass.verify.report import FAILED, PASSED, VACUOUS, Row

ELSEWHERE = 3  # other inputs at which the gradient may differ from 0
RowsOf = Callable[[Case, Sequence[str]], list[Row]]


def advised(rows: list[Row], case: Case, rows_of: RowsOf) -> list[Row]:
    """Return the rows, those of a gradient that is zero with what to do about it."""
    known: dict[str, str] = {}

    def judged(row: Row) -> Row:
        vacuous = row.verdict == VACUOUS and row.quantity in case.quantities
        if not vacuous or not row.reason.startswith("the gradient is "):
            return row
        if row.quantity not in known:
            known[row.quantity] = _advice(row.quantity, case, rows_of)
        return replace(row, reason=row.reason + known[row.quantity])

    return [judged(row) for row in rows]


def _advice(quantity: str, case: Case, rows_of: RowsOf) -> str:
    at = case.differentiable[case.quantities.index(quantity)]
    name = case.subject.input_names[at]
    line = f'zero_gradients=["{name}"]'
    seen = [_verdict(number, at, case, rows_of) for number in range(ELSEWHERE)]
    if PASSED in seen or FAILED in seen:
        wrong = ", and differs from backward's" if FAILED in seen else ""
        return f". At other random inputs it is not 0{wrong}: give other inputs"
    if seen.count(VACUOUS) == ELSEWHERE:
        return (
            f". At {ELSEWHERE} other random inputs it is 0 too; if it is 0 for every "
            f"input, add {line}"
        )
    return f". If it is 0 for every input, add {line}; otherwise give other inputs"


def _verdict(number: int, at: int, case: Case, rows_of: RowsOf) -> str:
    """Return the verdict of differences on one gradient, at other random inputs."""
    rng = generator(case.seed + number, VARYING)
    inputs = tuple(_drawn_again(value, rng) for value in case.inputs)
    others = {
        case.subject.input_names[of]: "" for of in case.differentiable if of != at
    }
    other = case.elsewhere(inputs, explain=False, conventions=others)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = rows_of(other, ["finite_difference"])
        try:
            finite = bool(np.isfinite(other.y_as_given).all())
        except Exception:
            return ""
    quantity = case.subject.quantity(at)
    found = [row.verdict for row in rows if row.quantity == quantity]
    return found[0] if finite and found else ""


def _drawn_again(value: Any, rng: np.random.Generator) -> Any:
    """Return another array of the same kind: normal numbers of its mean and spread,
    without a sign if it has none; of integers, elements of its own."""
    if not is_array(value):
        return value
    x = to_numpy(value)
    if not x.size or not np.isfinite(x).all():
        return value
    if not is_floating(value):
        return to_kind_of(value, rng.choice(x.ravel(), x.shape))
    drawn = rng.normal(x.mean(), x.std() or 1.0, x.shape)
    return to_kind_of(value, np.abs(drawn) if x.min() >= 0 and x.any() else drawn)
