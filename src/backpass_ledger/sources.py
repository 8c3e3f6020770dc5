"""What the five sources of this project print about FLOPs and memory.

``ROWS`` are their formulas, ``TOTALS`` their sums, ``NUMBERS`` their figures, each with
the formula that gives it, and ``STATEMENTS`` what they say in words. ``off`` is the
printed total or figure minus what its rows or its formula give. ``COMPLETED`` counts a
source's network in the source's own way and adds the terms that the source leaves out.
The keys of the sources are those of ``references.bib``. The letters are this project's:
see ``printed.LETTERS``. A place in a source is named in our words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

from backpass.cost.printed import (
    Printed,
    check_arithmetic,
    contents_of,
    records,
    value,
)

GPT2_POST = "post2024gpt2"  # the backward of GPT-2, formulas only
THESIS = "barbato2025cost"  # an encoder's block with one head, formulas only
TRACE_NOTES = "notes2024traceform"  # prints neither FLOPs nor bytes
GRADIENT_FLOW = "post2024gradientflow"  # Llama 3 70B, mostly figures
TWICE_NOTE = "note2024twice"  # one product


@dataclass(frozen=True)
class Row(Printed):
    """A formula as printed."""

    source: str
    place: str
    name: str
    says: str
    expression: str
    unit: str = "FLOPs"


@dataclass(frozen=True)
class Total:
    """A sum as printed, and the terms that the source says it is the sum of."""

    source: str
    place: str
    name: str
    says: str
    printed: str
    terms: tuple[str, ...]  # as printed, in formulas or in figures
    off: str = "0"  # the printed total, minus the sum of the terms
    unit: str = "FLOPs"

    @property
    def consistent(self) -> bool:
        """Whether the printed total is the sum of the printed terms."""
        return self.off == "0"


# Bytes, FLOPs, or one, in each unit. The gradient-flow post writes MB and GB for powers
# of 2 in most places, and for powers of 10 in some.
UNITS: Mapping[str, int | Fraction] = MappingProxyType(
    {
        "": 1,
        "×": 1,
        "s": 1,
        "%": Fraction(1, 100),
        "FLOPs": 1,
        "GFLOPs": 10**9,
        "TFLOPs": 10**12,
        "TFLOP/s": 10**12,
        "MiB": 2**20,
        "GiB": 2**30,
        "GB": 10**9,
        "GB of 1000 MiB": 1000 * 2**20,
    }
)


@dataclass(frozen=True)
class Number:
    """A figure as printed, the formula from which the source derives it, and
    lengths."""

    source: str
    place: str
    name: str
    says: str
    printed: str
    unit: str
    expression: str
    lengths: Mapping[str, int]
    off: str = "0"  # the printed figure, minus ``rounded``

    @property
    def exact(self) -> Fraction:
        """The formula's value in the figure's unit."""
        return Fraction(value(self.expression, **self.lengths)) / UNITS[self.unit]

    @property
    def rounded(self) -> Decimal:
        """``exact``, rounded to as many decimals as were printed."""
        last = Decimal(1).scaleb(-len(self.printed.partition(".")[2]))
        exact = self.exact
        decimal = Decimal(exact.numerator) / Decimal(exact.denominator)
        return decimal.quantize(last, rounding=ROUND_HALF_UP)


@dataclass(frozen=True)
class Statement:
    """What a source says in words and what is true; as formulas too, where possible."""

    source: str
    place: str
    says: str
    truth: str
    printed: str = ""
    right: str = ""


@dataclass(frozen=True)
class Added:
    """A term that a source leaves out, counted in the source's own way."""

    name: str
    says: str
    expression: str


@dataclass(frozen=True)
class Completed(Printed):
    """A source's total as printed, and the terms that it leaves out."""

    source: str
    name: str
    says: str
    printed: str
    added: tuple[Added, ...]

    @property
    def expression(self) -> str:  # type: ignore[override]  # computed, not stored
        """The printed total and the added terms, as one expression."""
        return " + ".join(
            f"({term})" for term in (self.printed, *(a.expression for a in self.added))
        )


_CONTENTS = contents_of(Path(__file__).with_name("sources.toml"))
_LENGTHS = {name: MappingProxyType(each) for name, each in _CONTENTS["lengths"].items()}
LLAMA_70B: Mapping[str, int] = _LENGTHS["llama-70b"]


def _number(lengths: str = "", **fields: Any) -> Number:
    return Number(lengths=_LENGTHS.get(lengths, MappingProxyType({})), **fields)


def _completed(added: tuple[tuple[str, ...], ...], **fields: Any) -> Completed:
    for *_, formula in added:
        check_arithmetic(formula)
    return Completed(added=tuple(Added(*each) for each in added), **fields)


ROWS = records(Row, _CONTENTS, "formulas")
TOTALS = records(Total, _CONTENTS, "totals")
NUMBERS = records(_number, _CONTENTS, "numbers")
STATEMENTS = records(Statement, _CONTENTS, "statements")
COMPLETED = records(_completed, _CONTENTS, "completed")
