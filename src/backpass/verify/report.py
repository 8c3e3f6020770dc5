"""The table of a check: one row for each method and quantity, in a terminal and in a notebook."""

from __future__ import annotations

import html
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PASSED, FAILED, COULD_NOT_RUN, VACUOUS, NOT_RUN = "passed", "FAILED", "could not run", "vacuous", "not run"
_MARKS = {PASSED: "✓", FAILED: "✗", COULD_NOT_RUN: "!", VACUOUS: "○", NOT_RUN: "–"}
_HEADINGS = ("method", "quantity", "verdict", "error", "tolerance", "how")

_WOULD_HELP = (
    "no method that ran has a gradient to compare with. A forward that computes in float64 would give one, "
    "or a function of PyTorch's as operator="
)

_LEFT = "text-align: left; vertical-align: top"


@dataclass(frozen=True)
class Row:
    """What one method found about one quantity.

    ``error`` is the largest element's error over the largest reference element. ``how`` says how it was
    measured and why the tolerance is what it is; ``reason`` says why the verdict is not "passed".
    ``exception`` is what the code under test raised, where the verdict is "could not run".
    """

    method: str
    quantity: str
    verdict: str
    error: float | None = None
    tolerance: float | None = None
    how: str = ""
    reason: str = ""
    exception: BaseException | None = field(default=None, compare=False, repr=False)

    @property
    def mark(self) -> str:
        """✓ passed, ✗ FAILED, ! could not run, ○ vacuous, – not run."""
        return _MARKS[self.verdict]

    @property
    def raised_at(self) -> str:
        """``own.py:12, in backward``: the line of the user's code that raised; empty when there is none."""
        return _place(self.exception) if self.exception else ""

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of the table's headings."""
        verdict = f"{self.mark} {self.verdict}"
        how = self.reason if self.verdict in (NOT_RUN, VACUOUS, COULD_NOT_RUN) else self.how
        return (self.method, self.quantity, verdict, _number(self.error), _number(self.tolerance), how)


class VerificationError(AssertionError):
    """A backward did not pass; ``report`` holds the table, the message is the table."""

    def __init__(self, report: Report):
        super().__init__(str(report))
        self.report = report


@dataclass(frozen=True)
class Report:
    """Every row of one check, and the gradients it was to show: ``("dx", "dw")``."""

    name: str
    inputs: str
    rows: tuple[Row, ...]
    gradients: tuple[str, ...]

    @property
    def failed(self) -> tuple[Row, ...]:
        """The rows that failed."""
        return self.having(FAILED)

    @property
    def passed(self) -> bool:
        """A row passed for each gradient; no row failed, could not run or was vacuous."""
        return not (self.unshown or self.failed or self.having(COULD_NOT_RUN) or self.having(VACUOUS))

    @property
    def unshown(self) -> tuple[str, ...]:
        """The gradients for which no row passed."""
        shown = {row.quantity for row in self.having(PASSED)}
        return tuple(gradient for gradient in self.gradients if gradient not in shown)

    def having(self, verdict: str) -> tuple[Row, ...]:
        """The rows with that verdict."""
        return tuple(row for row in self.rows if row.verdict == verdict)

    def of(self, method: str) -> tuple[Row, ...]:
        """The rows of one method."""
        return tuple(row for row in self.rows if row.method == method)

    def raise_unless_passed(self) -> Report:
        """Return the report if it passed; raise VerificationError otherwise.

        Where code raised, the first exception is the error's ``__cause__``, so its traceback is shown.
        """
        if self.passed:
            return self
        for row in self.having(COULD_NOT_RUN):
            if row.exception:
                raise VerificationError(self) from row.exception
        raise VerificationError(self)

    @property
    def title(self) -> str:
        """What was checked."""
        return f"{self.name}: {self.inputs}"

    @property
    def summary(self) -> str:
        """How many rows passed, failed, were vacuous, were not run."""
        counts = ((len(self.having(verdict)), verdict) for verdict in _MARKS)
        return ", ".join(f"{count} {verdict}" for count, verdict in counts if count)

    def findings(self) -> Iterator[tuple[str, str]]:
        """Each thing found wrong, once: the quantities and methods it was seen in, and the sentence.

        What could not run comes last, with the line of the user's code that raised.
        """
        for _, where, what in self._found():
            yield where, what

    def _found(self) -> Iterator[tuple[str, str, str]]:
        seen: dict[tuple[str, str, str], list[str]] = {}
        for row in (*self.failed, *self.having(COULD_NOT_RUN)):
            reason = f"{row.reason} ({row.raised_at})" if row.raised_at else row.reason
            seen.setdefault((row.mark, row.quantity, reason), []).append(row.method)
        for (mark, quantity, reason), methods in seen.items():
            yield mark, f"{quantity} ({', '.join(methods)})".lstrip(), reason

    def _remarks(self) -> Iterator[tuple[str, str, str]]:
        """What stands below the table: a mark, of what, and the sentence."""
        yield from self._found()
        if self.having(COULD_NOT_RUN):
            return  # what stood in the way of a reference has just been said
        seen = {row.quantity for row in self.rows if row.verdict != NOT_RUN}
        if unseen := [gradient for gradient in self.unshown if gradient not in seen]:
            yield _MARKS[VACUOUS], f"nothing was shown about {', '.join(unseen)}", _WOULD_HELP

    def __str__(self) -> str:
        table = [_HEADINGS, *(row.cells() for row in self.rows)]
        widths = [max(len(line[at]) for line in table) for at in range(len(_HEADINGS))]
        right = {_HEADINGS.index("error"), _HEADINGS.index("tolerance")}
        lines = [
            "  ".join(
                cell.rjust(width) if at in right else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in table
        ]
        rule = "─" * sum(widths[:-1], 2 * (len(widths) - 1) + len(_HEADINGS[-1]))
        found = [f"{mark} {where}: {what}" for mark, where, what in self._remarks()]
        return "\n".join([self.title, lines[0], rule, *lines[1:], rule, self.summary, *found])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col" style="{_LEFT}">{heading}</th>' for heading in _HEADINGS)
        body = "".join(_html_row(row) for row in self.rows)
        found = "".join(
            f"<li><strong>{html.escape(where)}</strong>: {html.escape(what)}</li>"
            for _, where, what in self._remarks()
        )
        return (
            '<div class="backpass-report">'
            '<div class="backpass-scroll" role="region" tabindex="0"'
            f' aria-label="Checks of {html.escape(self.name)}" style="overflow-x: auto; max-width: 100%">'
            f'<table><caption style="{_LEFT}">{html.escape(self.title)}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
            f"<p>{html.escape(self.summary)}</p>" + (f"<ul>{found}</ul>" if found else "") + "</div>"
        )


def _html_row(row: Row) -> str:
    method, *cells = (html.escape(cell) for cell in row.cells())
    *narrow, how = cells
    data = "".join(f'<td style="{_LEFT}; white-space: nowrap">{_stressed(cell)}</td>' for cell in narrow)
    kind = row.verdict.lower().replace(" ", "-")
    return (
        f'<tr class="backpass-{kind}"><th scope="row" style="{_LEFT}">{method}</th>{data}'
        f'<td style="{_LEFT}; min-width: 14em">{how}</td></tr>'
    )


def _place(exception: BaseException) -> str:
    """The innermost line outside this package: the user's own if there is one, otherwise a library's."""
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
    return f"{_shown(frame.filename)}:{frame.lineno}, in {frame.name}"


def _is_library(filename: str) -> bool:
    parts = Path(filename).parts
    return (
        "site-packages" in parts or "dist-packages" in parts or filename.startswith(sys.base_prefix + "/lib")
    )


def _shown(filename: str) -> str:
    """The file as a reader would name it: relative to the current directory; "cell" in a notebook."""
    path = Path(filename)
    if any(part.startswith("ipykernel_") for part in path.parts):
        return "cell"
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename


def _stressed(cell: str) -> str:
    return f"<strong>{cell}</strong>" if FAILED in cell else cell


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"
