"""Show the result of a check as a table in a terminal.

It has one row for each method and quantity. `verify.page` shows it in a notebook.
"""

from __future__ import annotations

import json
import math
import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from backpass.contract.arrays import Array
from backpass.text import table as tables
from backpass.text import terminal
from backpass.verify.diagnosis import Diagnosis
from backpass.verify.findings import SLOPES_DIFFER, Wrong

PASSED = "passed"
FAILED = "FAILED"
COULD_NOT_RUN = "could not run"
VACUOUS = "vacuous"
NOT_RUN = "not run"
_MARKS = {PASSED: "✓", FAILED: "✗", COULD_NOT_RUN: "!", VACUOUS: "○", NOT_RUN: "–"}
VARIATIONS = "variations"  # the method of rows that sum up several
_HEADINGS = ("method", "quantity", "verdict", "error", "tolerance", "how")

_WOULD_HELP = (
    "no method that ran has a gradient to compare with. There is one if every method "
    "may run and forward computes in float64, or if a PyTorch function is given as "
    "operator="
)


@dataclass(frozen=True)
class Row:
    """The verdict of one method on one quantity.

    ``error`` is the largest absolute error divided by the largest absolute element of
    the reference. ``how`` says how it was measured and why the tolerance is what it is;
    ``reason`` says why the verdict is not "passed". ``note`` is what a reader must know
    even about a row that passed, such as a tolerance of their own. ``variation`` says
    at which other inputs, or with which other call, it was measured. ``exception`` is
    the exception that the code under test raised, if the verdict is "could not run".
    ``relative`` is, for low precision, the largest error of an element divided by its
    size, or by a gradient's natural scale if that is larger, or by the size of the
    largest element if all have the same bound.
    """

    method: str
    quantity: str
    verdict: str
    error: float | None = None
    tolerance: float | None = None
    how: str = ""
    reason: str = ""
    note: str = ""
    variation: str = ""
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    relative: float | None = field(default=None, compare=False, repr=False)

    @property
    def mark(self) -> str:
        """✓ passed, ✗ FAILED, ! could not run, ○ vacuous, – not run."""
        return _MARKS[self.verdict]

    @property
    def raised_at(self) -> str:
        """The user's line that raised, as ``own.py:12, in backward``, or ""."""
        return _place(self.exception) if self.exception else ""

    @property
    def remark(self) -> str:
        """What a terminal prints besides the row's cells.

        The reason for a failure is not included; it is printed below the table.
        """
        said = self.how if self.verdict == FAILED else ""
        said = self.reason if self.verdict in (VACUOUS, NOT_RUN) else said
        return "; ".join(filter(None, (said, self.note)))

    def to_dict(self) -> dict[str, str | float | None]:
        """Return the row as plain data; see ``Report.to_dict``."""
        names: tuple[str, ...] = (*_HEADINGS, "reason")
        names += ("note", "variation", "raised_at")
        return {name: _plain(getattr(self, name)) for name in names}

    def cells(self) -> tuple[str, ...]:
        """Return the row as text, in the order of the table's headings."""
        unjudged = self.verdict in (NOT_RUN, VACUOUS, COULD_NOT_RUN)
        said = self.reason if unjudged else self.how
        return (
            self.method,
            self.quantity,
            f"{self.mark} {self.verdict}",
            _number(self.error),
            _number(self.tolerance),
            "; ".join(filter(None, (said, self.note))),
        )


class VerificationError(AssertionError):
    """Raised if a backward did not pass. The message is the table of ``report``."""

    def __init__(self, report: Report):
        super().__init__(str(report))
        self.report = report


@dataclass(frozen=True)
class Report:
    """Every row of a check, and the gradients that it had to show: ``("dx",)``.

    ``rows`` has a row for each variation, and ``shown`` sums them up. ``wrong`` has the
    arrays of each quantity that failed at the inputs given, for ``diagnose``.
    """

    name: str
    inputs: str
    rows: tuple[Row, ...]
    gradients: tuple[str, ...]
    seed: int | None = None
    wrong: Mapping[str, Wrong] = field(default_factory=dict, compare=False, repr=False)

    @property
    def shown(self) -> tuple[Row, ...]:
        """The rows of the table: the variations that show one fault are one row, those
        that passed are one row, and so are those that were not run."""
        varied = [row for row in self.rows if row.variation]
        rows = [row for row in self.rows if not row.variation]
        rows += [_failed(found) for _, found in _faults(varied)]
        passed = [row for row in varied if row.verdict == PASSED]
        others = [row for row in varied if row.verdict == NOT_RUN]
        rows += [_passed(passed)] if passed else []
        rows += [_not_run(others)] if others else []
        return tuple(rows)

    @property
    def failed(self) -> tuple[Row, ...]:
        """The rows that failed."""
        return self.having(FAILED)

    @property
    def passed(self) -> bool:
        """Whether a row passed for each gradient, and no row failed, could not run or
        was vacuous."""
        wrong = (FAILED, COULD_NOT_RUN, VACUOUS)
        return not self.unshown and not any(row.verdict in wrong for row in self.rows)

    @property
    def unshown(self) -> tuple[str, ...]:
        """The gradients for which no row passed."""
        shown = {row.quantity for row in self.having(PASSED)}
        return tuple(gradient for gradient in self.gradients if gradient not in shown)

    def having(self, verdict: str) -> tuple[Row, ...]:
        """Return the rows with that verdict."""
        return tuple(row for row in self.rows if row.verdict == verdict)

    def of(self, method: str) -> tuple[Row, ...]:
        """Return the rows of one method, at all dtypes."""
        return tuple(
            row for row in self.rows if row.method.partition(", ")[0] == method
        )

    def raise_unless_passed(self) -> Report:
        """Return the report if it passed; raise VerificationError otherwise.

        If the code under test raised exceptions, the first one is the error's
        ``__cause__``, so that its traceback is shown.
        """
        if self.passed:
            return self
        for row in self.having(COULD_NOT_RUN):
            if row.exception:
                raise VerificationError(self) from row.exception
        raise VerificationError(self)

    @property
    def title(self) -> str:
        """The name of what was checked, and its inputs."""
        return f"{self.name}: {self.inputs}"

    @property
    def summary(self) -> str:
        """How many rows of the table have each verdict."""
        counts = Counter(row.verdict for row in self.shown)
        return ", ".join(f"{counts[of]} {of}" for of in _MARKS if counts[of])

    def findings(self) -> Iterator[tuple[str, str]]:
        """Yield each fault once: where it is, and the sentence that describes it.

        "Where" is the quantity and the methods that found the fault. The sentence names
        the first variation that shows it, if it does not show at the inputs given, and
        how many more do. Methods that could not run come last, with the line of the
        user's code that raised.
        """
        for _, where, what in self._found():
            yield where, what

    def _found(self) -> Iterator[tuple[str, str, str]]:
        for (mark, quantity, said), rows in _faults(self.rows):
            methods = dict.fromkeys(row.method for row in rows)
            given = [row for row in rows if not row.variation]
            more = len(rows) - max(1, len(given))
            said = said if given else rows[0].reason + _raised(rows[0])
            said += f"; the same at {_counted(more, not given)}" if more else ""
            yield mark, f"{quantity} ({', '.join(methods)})".lstrip(), said

    def diagnose(
        self, quantity: str, terms: Mapping[str, Array], seconds: float = 5.0
    ) -> Diagnosis:
        """Say how a wrong quantity differs from its reference, with terms of your own.

        ``terms`` are named arrays, such as an intermediate result of backward, at the
        inputs given. The search tries them together with the check's own: the inputs,
        y, dy, and the saved arrays. It takes at most about ``seconds`` of CPU time.
        Raises LookupError if the quantity was not compared element by element, or was
        right.
        """
        if quantity not in self.wrong:
            known = ", ".join(self.wrong) or "none"
            raise LookupError(
                "quantity: expected one that is wrong, compared element by element, at "
                f"the inputs given ({known}); got {quantity!r}"
            )
        return self.wrong[quantity].diagnose(terms, seconds)

    def remarks(self) -> Iterator[tuple[str, str, str]]:
        """Yield the lines below the table: a mark, a heading, and the sentence."""
        yield from self._found()
        if self.having(COULD_NOT_RUN) or any(not row.quantity for row in self.failed):
            return  # the lines above say why there is no reference
        seen = {row.quantity for row in self.rows if row.verdict != NOT_RUN}
        if unseen := [gradient for gradient in self.unshown if gradient not in seen]:
            yield (
                _MARKS[VACUOUS],
                f"nothing was shown about {', '.join(unseen)}",
                _WOULD_HELP,
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON.

        Numbers that are not finite become "inf", "-inf" or "nan".
        """
        return {
            "name": self.name,
            "inputs": self.inputs,
            "seed": self.seed,
            "passed": self.passed,
            "summary": self.summary,
            "rows": [row.to_dict() for row in self.rows],
            "findings": [
                {"where": where, "what": what} for where, what in self.findings()
            ],
        }

    def to_json(self, indent: int | None = 2) -> str:
        """Return ``to_dict`` as JSON, in ASCII."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def text(self, width: int | None = None) -> str:
        """Return the table for a terminal, in lines of at most ``width`` columns.

        The default is the terminal's width, or 80 if it is unknown. How a row was
        measured is printed only if the row did not pass, and once if several rows share
        it.
        """
        width = width or terminal.width()
        counts = Counter(row.remark for row in self.shown if row.remark)
        marks = {
            remark: f"[{at}]"
            for at, remark in enumerate((r for r in counts if counts[r] > 1), 1)
        }
        found = [f"{mark} {remark}" for remark, mark in marks.items()]
        found += [f"{mark} {where}: {what}" for mark, where, what in self.remarks()]
        return "\n".join(
            line
            for part in (self.title, *self._table(marks, width), self.summary, *found)
            for line in terminal.folded(part, width)
        )

    def _table(self, marks: dict[str, str], width: int) -> Iterator[str]:
        """Yield the rows between two rules, in columns if they fit. A remark that only
        one row has is printed below that row."""
        table = [
            (*_HEADINGS[:-1], ""),
            *((*row.cells()[:-1], marks.get(row.remark, "")) for row in self.shown),
        ]
        widths = tables.widths(table)
        fits = sum(widths) + 2 * len(widths) <= width
        numbers = (_HEADINGS.index("error"), _HEADINGS.index("tolerance"))
        headings, *lines = (
            tables.aligned(table, right=numbers)
            if fits
            else ["  ".join(filter(None, cells)) for cells in table]
        )
        rule = "─" * min(width, sum(widths[:-1], 2 * (len(widths) - 2)))
        yield from (headings, rule)
        for row, line in zip(self.shown, lines, strict=True):
            yield line
            if row.remark and row.remark not in marks:
                yield f"    {row.remark}"
        yield rule


def _faults(rows: Sequence[Row]) -> list[tuple[tuple[str, str, str], list[Row]]]:
    """Return the rows that failed, and then those that could not run, by fault: the
    mark, the quantity and the sentence, without the variation that shows it.

    A variation without a sentence of its own belongs to the last fault of its quantity.
    """
    faults: dict[tuple[str, str, str], list[Row]] = {}
    for verdict in (FAILED, COULD_NOT_RUN):
        for row in (row for row in rows if row.verdict == verdict):
            said = _without_variation(row)
            key = (row.mark, row.quantity, said + _raised(row))
            if row.variation and said in ("", SLOPES_DIFFER):
                earlier = [other for other in faults if other[:2] == key[:2]]
                key = earlier[-1] if earlier else key
            faults.setdefault(key, []).append(row)
    return list(faults.items())


def _without_variation(row: Row) -> str:
    """Return the reason of a row without its variation and the method that found it."""
    start = f"{row.variation}: "
    if not (row.variation and row.reason.startswith(start)):
        return row.reason
    return row.reason.removeprefix(start).partition(": ")[2]


def _raised(row: Row) -> str:
    return f" ({row.raised_at})" if row.raised_at else ""


def _failed(rows: Sequence[Row]) -> Row:
    """Sum up the variations that show one fault, with the largest error."""
    worst = max(rows, key=lambda row: row.error or 0.0)
    return replace(worst, how=_listed(rows), reason=rows[0].reason)


def _passed(rows: Sequence[Row]) -> Row:
    """Sum up the variations that passed, with the worst error and its variation."""
    worst = max(rows, key=lambda row: (row.error or 0.0) / (row.tolerance or 1.0))
    note = f"{_count(rows)} passed: {_listed(rows)}"
    note += f"; the error is that of {worst.variation}" if worst.error else ""
    return Row(VARIATIONS, "all", PASSED, worst.error, worst.tolerance, note=note)


def _not_run(rows: Sequence[Row]) -> Row:
    """Sum up the variations that were not run, by reason. An exception is named without
    its message."""
    by_reason: dict[str, list[Row]] = {}
    for row in rows:
        said = row.reason.removeprefix(f"{row.variation}: ")
        said = re.sub(r"\((\w+): .*\)$", r"(\1)", said, flags=re.DOTALL)
        by_reason.setdefault(said, []).append(row)
    reason = "; ".join(f"{_listed(of)}: {said}" for said, of in by_reason.items())
    return Row(VARIATIONS, "", NOT_RUN, reason=f"{_count(rows)}: {reason}")


def _count(rows: Sequence[Row]) -> str:
    return _counted(len(rows))


def _counted(number: int, more: bool = False) -> str:
    """Return ``2 variations``, or ``2 more variations``."""
    return f"{number} {'more ' if more else ''}variation{'s' if number > 1 else ''}"


def _listed(rows: Sequence[Row]) -> str:
    """Return the variations as a list. Those that differ only in the length that is
    replaced are named together: ``length 1 in place of 4 and 6``."""
    starts: dict[str, list[str]] = {}
    for row in rows:
        start, between, length = row.variation.partition(" in place of ")
        starts.setdefault(start + between, []).append(length)
    return ", ".join(start + " and ".join(of) for start, of in starts.items())


def _place(exception: BaseException) -> str:
    """Return the innermost line outside this package: the user's own if there is one,
    otherwise a library's."""
    package = Path(__file__).parents[1]
    frames = [
        frame
        for frame in traceback.extract_tb(exception.__traceback__)
        if package not in Path(frame.filename).parents
    ]
    own = [frame for frame in frames if not _is_library(frame.filename)]
    if not (own or frames):
        return ""
    frame = (own or frames)[-1]
    return f"{file_shown(frame.filename)}:{frame.lineno}, in {frame.name}"


def _is_library(filename: str) -> bool:
    libraries = {"site-packages", "dist-packages"}
    return bool(libraries & {*Path(filename).parts}) or filename.startswith(
        sys.base_prefix + "/lib"
    )


def file_shown(filename: str) -> str:
    """Return the file's name for a reader: relative to the current directory, or "cell"
    in a notebook."""
    path = Path(filename)
    if any(part.startswith("ipykernel_") for part in path.parts):
        return "cell"
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else filename


def _plain(value: float | str | None) -> float | str | None:
    """Return what JSON can hold: the name of a number that is not finite."""
    if value is None or isinstance(value, str):
        return value
    return float(value) if math.isfinite(value) else str(float(value))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"
