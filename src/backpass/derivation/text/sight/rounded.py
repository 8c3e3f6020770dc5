"""Recognise lines whose decimal numbers are rounded, and which are therefore not
wrong."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

import sympy

from backpass.derivation.text.verdict import Verdict

_DECIMAL = re.compile(r"(?<![\w.])\d+\.(\d+)")
_DIGITS = 40  # of a number that is irrational
_AT_ONE_POINT = re.compile(r"\((-?[\d.]+(?:e-?\d+)?) at one point\)\Z")
ROUNDED = "it holds only if its numbers are rounded: write \\approx in place of ="


def with_rounded(found: list[Verdict]) -> list[Verdict]:
    """Return the verdicts on a statement, but none that a line is wrong whose sides
    differ by less than one unit in the last place of a decimal number."""
    made: list[Verdict] = []
    rounded = False
    for verdict in found:
        is_refused = verdict.kind == "refused"
        rounded = _is_rounded(verdict) if is_refused else rounded
        if rounded and verdict.kind in ("refused", "follows"):
            verdict = replace(
                verdict, kind="not readable", message=ROUNDED, counterexample=None
            )
        made.append(verdict)
    return made


def _is_rounded(verdict: Verdict) -> bool:
    places = [len(one) for one in _DECIMAL.findall(verdict.latex)]
    if not places or verdict.counterexample is None:
        return False
    with suppress(ValueError, ZeroDivisionError):
        example = verdict.counterexample
        expected, got = (_value(one) for one in (example.expected, example.found))
        return abs(expected - got) < Fraction(1, 10 ** min(places))
    return False


def _value(text: str) -> Fraction:
    """Return a value as it is shown, such as sqrt(2). Raises `ValueError`."""
    match = _AT_ONE_POINT.search(text)
    if match:
        return Fraction(match[1])
    with suppress(sympy.SympifyError, TypeError):
        value = sympy.sympify(text)
        if value.is_real and value.is_finite and value.is_number:
            return Fraction(str(sympy.N(value, _DIGITS)))
    raise ValueError(text)
