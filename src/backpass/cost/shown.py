"""Results that are shown as a table: as text in a terminal, as HTML on a page."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from backpass.text.table import Cell, aligned, page


class Sheet(NamedTuple):
    """A table and what is written around it."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]
    right: Collection[int] = ()  # in a terminal: the columns aligned to the right
    below: str = ""  # a line under the rows; on a page, part of the title
    label: str = ""  # on a page: what screen readers call the table, if not its title


class Shown(ABC):
    """A result that is shown as a table.

    A dataclass that derives from this class has ``repr=False``.
    """

    @abstractmethod
    def _in_text(self) -> Sheet:
        """Return what a terminal shows."""

    def _in_page(self) -> Sheet:
        """Return what a page shows; by default, what a terminal shows."""
        return self._in_text()

    def __repr__(self) -> str:
        of = self._in_text()
        lines = aligned([of.headings, *of.rows], right=of.right)
        return "\n".join([of.title, *lines, *filter(None, [of.below])])

    def _repr_html_(self) -> str:
        of = self._in_page()
        caption = f"{of.title}. {of.below}" if of.below else of.title
        return page(of.headings, of.rows, caption=caption, label=of.label)


def typeset(formula: str) -> Cell:
    """Return a cell of a page's table in which formulas are typeset. ``formula`` is
    HTML, with LaTeX between its delimiters."""
    # Because of the class, the PDF typesets the cell.
    return Cell(formula, 'class="tex2jax_process"')
