"""Show a report on a page.

If everything passed, it is one line that opens into a table; otherwise the table is
open. Its rows are methods and its columns quantities. How the numbers were measured,
and why, is written once below the table for all cells that share it.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator

from backpass.text import table
from backpass.verify.report import FAILED, PASSED, Report, Row

WHOLE = ("", "all")  # the quantity of a row that is about all quantities
_LEFT = "text-align: left; vertical-align: top; white-space: nowrap"


def report_html(report: Report, shown: bool | None = None) -> str:
    """Return the report as HTML. ``shown`` is whether its table is open: by default, if
    a check did not pass."""
    mark = "✓" if report.passed else "✗"
    opened = " open" if (not report.passed if shown is None else shown) else ""
    found = "".join(
        f"<li><strong>{html.escape(where)}</strong>: {html.escape(what)}</li>"
        for _, where, what in report.remarks()
    )
    return (
        f'<details class="backpass-report"{opened}><summary>{mark} '
        f"<strong>{html.escape(report.name)}</strong>: {html.escape(summary(report))}</summary>"
        + _table(report)
        + (f'<ul class="backpass-findings">{found}</ul>' if found else "")
        + _notes(report)
        + "</details>"
    )


def summary(report: Report) -> str:
    """Return ``11 passed, 1 not run; the largest error is 0.15 of its tolerance``."""
    shares = [
        row.error / row.tolerance
        for row in report.rows
        if row.error is not None and row.tolerance
    ]
    if not report.passed or not shares:
        return report.summary
    largest = max(shares)
    shown = (
        f"{math.floor(100 * largest) / 100:g}" if largest > 0.1 else f"{largest:.2g}"
    )
    return f"{report.summary}; the largest error is {shown} of its tolerance"


def _table(report: Report) -> str:
    named = (row.quantity for row in report.shown if row.quantity not in WHOLE)
    quantities = list(dict.fromkeys(named))
    return table.page(
        [_text("error, and tolerance"), *map(_text, quantities)],
        [[_text(method), *_cells(rows, quantities)] for method, rows in _lines(report)],
        caption=table.Cell(html.escape(report.inputs), 'style="text-align: left"'),
        label=f"Checks of {report.name}",
    )


def _lines(report: Report) -> Iterator[tuple[str, dict[str, Row]]]:
    """Yield the lines of the table: a method, and its rows by quantity.

    A row about all quantities has its own line, and so has a quantity that a method
    judged a second time.
    """
    lines: list[tuple[str, dict[str, Row]]] = []
    for row in report.shown:
        taken = (*WHOLE, row.quantity)
        fits = (
            cells
            for method, cells in lines
            if method == row.method and not cells.keys() & set(taken)
        )
        cells = None if row.quantity in WHOLE else next(fits, None)
        if cells is None:
            lines.append((row.method, cells := {}))
        cells[row.quantity] = row
    yield from lines


def _cells(rows: dict[str, Row], quantities: list[str]) -> list[table.Cell]:
    """Return the cells of one line. A row about all quantities has one cell."""
    if whole := next((rows[name] for name in WHOLE if name in rows), None):
        return [_cell(whole, f' colspan="{max(1, len(quantities))}"')]
    return [_cell(rows[name]) if name in rows else _text("") for name in quantities]


def _text(words: str) -> table.Cell:
    return table.Cell(html.escape(words), f'style="{_LEFT}"')


def _cell(row: Row, span: str = "") -> table.Cell:
    """Return ``✓ 2.1e-11`` and the tolerance in small print, with the verdict in words
    if the row did not pass."""
    kind = row.verdict.lower().replace(" ", "-")
    shown = row.mark if row.verdict == PASSED else f"{row.mark} {row.verdict}"
    shown = f"<strong>{shown}</strong>" if row.verdict == FAILED else shown
    if row.error is not None:
        shown += f" {row.error:.1e}" if row.error else " exact"
    if row.tolerance:
        of = f"of {row.tolerance:.0e}"
        shown += f' <small class="backpass-tolerance">{of}</small>'
    return table.Cell(shown, f'class="backpass-{kind}"{span} style="{_LEFT}"')


def _notes(report: Report) -> str:
    """Return how the rows were measured, or why not, each sentence once."""
    notes: dict[str, dict[str, list[str]]] = {}
    for row in report.shown:
        if said := row.cells()[-1]:
            names = notes.setdefault(said, {}).setdefault(row.method, [])
            names += [] if row.quantity in WHOLE else [row.quantity]
    items = ""
    for said, of in notes.items():
        rows = ", ".join(" ".join((method, *names)) for method, names in of.items())
        items += f"<li>{html.escape(rows)}: {html.escape(said)}</li>"
    return f'<ul class="backpass-notes">{items}</ul>' if items else ""


# Notebooks call this method. It is attached here, so that a report need not know HTML.
Report._repr_html_ = report_html  # type: ignore[attr-defined]
