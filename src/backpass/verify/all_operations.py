"""Check every operation by every method, and show the results in one table."""

from __future__ import annotations

import html
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from backpass import ops
from backpass.recorded import findings
from backpass.text import table as tables
from backpass.text import terminal
from backpass.text.table import Cell
from backpass.verify.case import Case
from backpass.verify.checking import METHODS, USUAL, check
from backpass.verify.comparison import DECLARED_ZERO
from backpass.verify.drawing import cases
from backpass.verify.methods import symbolic
from backpass.verify.report import COULD_NOT_RUN, FAILED, NOT_RUN, VACUOUS, Report, Row
from backpass.verify.subject import subject

NO_ROW = "–"
_ONE_LINE = 'style="white-space: nowrap"'
SEEN = "the same symbols as at other inputs of this table"


class _Table:
    """A table of operations by methods, in a terminal and on a page."""

    root: str  # the path to the site's root, for links

    def table(self) -> list[list[str]]:
        """Return the headings, then a line for each operation."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """Return the table for a terminal, in lines of at most ``width`` columns.

        The default is the terminal's width. Columns that do not fit are printed below.
        """
        width = width or terminal.width()
        first, *others = (
            _in_two_lines(*column) for column in zip(*self.table(), strict=True)
        )
        blocks = [[first]]
        for column in others:
            wide = sum(max(map(len, cells)) + 2 for cells in (*blocks[-1], column)) - 2
            if wide > width and blocks[-1][1:]:
                blocks.append([first])
            blocks[-1].append(column)
        return "\n\n".join(
            "\n".join(tables.aligned([*zip(*block, strict=True)])) for block in blocks
        )

    def _repr_html_(self) -> str:
        headings, *lines = self.table()
        rows = []
        for stem, *cells in lines:
            page = f"{self.root}/chapters/{ops.page(stem)}.html"
            link = Cell(f'<a href="{page}"><code>{stem}</code></a>')
            rows.append([link, *(Cell(of, _ONE_LINE) for of in cells)])
        shown = tables.page(headings, rows, label="Operations by checks")
        return f'<div class="backpass-overview">{shown}</div>'


@dataclass(frozen=True, repr=False)
class Overview(_Table):
    """The reports of each operation."""

    reports: dict[str, tuple[Report, ...]]
    root: str = "."  # the path to the site's root, for links

    @property
    def passed(self) -> bool:
        """Whether every report of every operation passed."""
        return all(
            report.passed for reports in self.reports.values() for report in reports
        )

    def rows(self, stem: str, method: str) -> list[Row]:
        """Return the rows of one method for one operation, at all drawn inputs."""
        return [
            row
            for report in self.reports[stem]
            for row in report.of(METHODS[method].NAME)
        ]

    def methods(self) -> list[str]:
        """Return the methods that have a row for at least one operation."""
        return [
            method
            for method in METHODS
            if any(self.rows(stem, method) for stem in self.reports)
        ]

    def table(self) -> list[list[str]]:
        """Return the headings, then a line for each operation.

        A cell is a mark, and the largest error if there is one.
        """
        methods = self.methods()
        lines = (
            [stem, *(_cell(self.rows(stem, method)) for method in methods)]
            for stem in self.reports
        )
        return [["operation", *(METHODS[name].NAME for name in methods)], *lines]


@dataclass(frozen=True, repr=False)
class Recorded(_Table):
    """The table as the tests recorded it, in ``assets/records/checks.json``."""

    root: str = "."

    def table(self) -> list[list[str]]:
        entries = findings.load("checks").entries
        recorded = {name for found in entries.values() for name in found}
        names = (method.NAME for method in METHODS.values())
        methods = [name for name in names if name in recorded]
        lines = (
            [stem, *(entries[stem].get(name, NO_ROW) for name in methods)]
            for stem in ops.STEMS
        )
        return [["operation", *methods], *lines]

    def _repr_html_(self) -> str:
        versions = html.escape(findings.load("checks").provenance)
        return f"{super()._repr_html_()}<p><small>Recorded with {versions}.</small></p>"


def check_all(
    *stems: str, seed: int = 0, repeats: bool = True, root: str = "."
) -> Overview:
    """Check the named operations, or all, each at inputs of several shapes.

    ``root`` is the path from the page that shows the table to the site's root.
    Without ``repeats``, inputs are left out if their symbols and dtype are those of
    earlier ones. Failures are in the table; they raise no exception.
    """
    return Overview(
        {stem: tuple(_checked(stem, seed, repeats)) for stem in stems or ops.STEMS},
        root,
    )


def _checked(stem: str, seed: int, repeats: bool) -> Iterator[Report]:
    drawn = cases(stem, np.random.default_rng(seed))
    return check_each(stem, drawn, seed, repeats=repeats)


def check_each(
    stem: str,
    drawn: Iterable[tuple[Sequence[object], dict[str, Any]]],
    seed: int,
    *,
    repeats: bool = True,
    compiled: bool = False,
) -> Iterator[Report]:
    """Yield a report for each of several inputs and options of an operation, with the
    compiled kernel's rows if they are asked for.

    The symbolic method sees only the structure of the inputs, so it runs at the first
    inputs of each structure. Without ``repeats``, inputs are left out if their
    structure and dtype are those of earlier ones.
    """
    structures: set[Hashable] = set()
    dtypes: set[tuple[Hashable, str]] = set()
    for inputs, options in drawn:
        case = Case(subject(ops.load(stem), len(inputs), options), tuple(inputs), seed)
        structure = symbolic.structure(case)
        if repeats or (structure, case.dtype) not in dtypes:
            methods = [*USUAL, *["compiled"] * compiled]
            if structure in structures:
                methods.remove("symbolic")
            report = check(
                stem, *inputs, seed=seed, methods=methods, raises=False, options=options
            )
            if structure in structures:
                seen = Row(symbolic.NAME, "", NOT_RUN, reason=SEEN)
                report = _with_row(report, seen)
            yield report
        structures.add(structure)
        dtypes.add((structure, case.dtype))


def _with_row(report: Report, row: Row) -> Report:
    """Return the report with one more row, in the order of the methods."""
    order = [method.NAME for method in METHODS.values()]

    def place(row: Row) -> int:
        return order.index(row.method.partition(", ")[0])

    return replace(report, rows=tuple(sorted((*report.rows, row), key=place)))


def _in_two_lines(heading: str, *cells: str) -> list[str]:
    upper, _, lower = heading.rpartition(" ")
    return [upper, lower, *cells]


def _cell(rows: Sequence[Row]) -> str:
    """Return ``✓ 2.1e-11``, ``✓ exact``, ``✗ FAILED``, ``! raised``, ``○ vacuous`` or
    ``–``."""
    words = {FAILED: FAILED, COULD_NOT_RUN: "raised", VACUOUS: VACUOUS}
    for verdict, word in words.items():
        for row in rows:
            if row.verdict == verdict:
                return f"{row.mark} {word}"
    ran = [row for row in rows if row.verdict != NOT_RUN]
    # The error of a zero gradient is rounding, relative to rounding.
    errors = [
        row.error for row in ran if row.error is not None and row.note != DECLARED_ZERO
    ]
    if not errors:
        return "✓" if ran else NO_ROW
    return f"✓ {max(errors):.1e}" if max(errors) else "✓ exact"
