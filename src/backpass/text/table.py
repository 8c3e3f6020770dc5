"""Show a table in a terminal, and the same table on a page."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple


class Cell(NamedTuple):
    """A cell of a page's table whose content is already HTML. ``attributes`` go into
    its tag."""

    html: str
    attributes: str = ""


def widths(rows: Iterable[Sequence[str]]) -> list[int]:
    """Return the width of each column."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return the rows as lines of text, with columns two spaces apart.

    The columns at the positions ``right`` are aligned to the right.
    """
    each = widths(rows)
    return [
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, each, strict=True))
        ).rstrip()
        for row in rows
    ]


def page(
    headings: Sequence[str | Cell],
    rows: Iterable[Sequence[str | Cell]],
    *,
    caption: str | Cell = "",
    label: str = "",
) -> str:
    """Return the rows as HTML, in a group that scrolls sideways.

    A row's first cell is its heading. An empty heading is a plain cell. Strings are
    escaped. ``label`` names the group to screen readers; by default it is the caption.
    """
    title = _tag("caption", caption) if caption else ""
    head = "".join(
        _tag("th", heading, ' scope="col"') if heading else "<td></td>"
        for heading in headings
    )
    body = "".join(f"<tr>{_row(*row)}</tr>" for row in rows)
    return scrolling(
        f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>",
        label or (caption if isinstance(caption, str) else html.unescape(caption.html)),
    )


def scrolling(inside: str, label: str) -> str:
    """Return HTML in a group that scrolls sideways on a narrow page, by keyboard too.

    ``label`` names the group to screen readers. A group may share its name with another
    on the page; a region is a landmark, which may not.
    """
    return (
        f'<div class="backpass-scroll" role="group" tabindex="0" aria-label="{html.escape(label)}"'
        f' style="overflow-x: auto; max-width: 100%">{inside}</div>'
    )


def _row(heading: str | Cell, *cells: str | Cell) -> str:
    return _tag("th", heading, ' scope="row"') + "".join(
        _tag("td", cell) for cell in cells
    )


def _tag(name: str, cell: str | Cell, attributes: str = "") -> str:
    content, more = cell if isinstance(cell, Cell) else (html.escape(cell), "")
    return f"<{name}{attributes}{' ' if more else ''}{more}>{content}</{name}>"
