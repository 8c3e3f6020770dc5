"""Writes a table of a page in a size at which its columns fit.

Typst gives a wide column what the narrow ones leave; what it cannot break, a number or a name, has to fit. So a table
with many columns is set smaller, by the widths of the longest words of its columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from bs4 import Tag

WIDTH = 470.0  # points
GAP = 9.0  # between two columns
SIZES = (9.0, 8.4, 7.8, 7.2, 6.6, 6.0, 5.4)
LETTER = 0.53  # the mean width of a letter, in its size
NUMBER = re.compile(r"[−\-+~≈<>≤≥]?\s*[\d.,]+(e[+\-−]?\d+)?\s*(%|×|[a-zA-Z]{1,3})?")
LATEX = re.compile(r"\\\((.+?)\\\)", re.DOTALL)
COMMAND = re.compile(r"\\(left|right|displaystyle|bar|hat|frac|,)|[{}_^]")
TIMES = re.compile(r" × (?=[\d.,]|[a-zA-Z]\b)")  # lengths stay together
NAME = re.compile(r"\\[a-zA-Z]+")


def table(node: Tag, cell: Callable[[Tag], str], caption: str) -> str:
    """The table in typst, with the cells as `cell` writes them."""
    rows = [row.find_all(["td", "th"], recursive=False) for row in node.find_all("tr")]
    rows = [row for row in rows if row]
    groups = node.find_all("tbody")
    if len(groups) > 1 and not node.find("thead"):  # the card: a group is a table that stays on one page
        return "\n".join(f"#block(breakable: false)[{table(group, cell, '')}]" for group in groups)
    count = max(sum(int(each.get("colspan", 1)) for each in row) for row in rows)
    heads = len([row for row in rows if row[0].find_parent("thead")])
    simple = [row for row in rows if len(row) == count]
    size = fitting([[shown(row[at]) for row in simple] for at in range(count)])
    aligned = [_alignment([row[at] for row in simple[heads:]]) for at in range(count)]
    head, body = (", ".join(_cells(row, cell) for row in some) for some in (rows[:heads], rows[heads:]))
    header = f"table.header({head}), " if head else ""
    return (
        f"#tabular({size}pt, ({', '.join(aligned)},), [{caption}], {str(bool(heads)).lower()})[#table("
        f"columns: {count}, align: (x, y) => ({', '.join(aligned)},).at(x) + top, {header}{body})]"
    )


def shown(node: Tag) -> str:
    """The text of a cell, with about as many letters for a formula as it is wide."""
    text = LATEX.sub(
        lambda match: NAME.sub("x", COMMAND.sub("", match[1])).replace("+", " ").replace("=", " "),
        node.get_text("\n"),
    )
    return TIMES.sub("\u00a0×\u00a0", text.strip())


def fitting(columns: list[list[str]]) -> float:
    """The largest size at which the longest words of the columns stand side by side."""
    longest = [
        max((len(word) for text in column for word in re.split(r"[ \n\t\-–—]", text)), default=0)
        for column in columns
    ]
    room = WIDTH - GAP * len(columns)
    return next((size for size in SIZES if sum(longest) * LETTER * size <= room), SIZES[-1])


def _alignment(cells: list[Tag]) -> str:
    texts = [each.get_text().strip() for each in cells]
    said = {name for each in cells for name in each.get("class") or () if name.startswith("text-")}
    styled = [re.search(r"text-align:\s*right", each.get("style", "")) for each in cells]
    if "text-right" in said or (styled and all(styled)):
        return "right"
    full = [text for text in texts if text]
    return "right" if full and all(NUMBER.fullmatch(text) for text in full) else "left"


def _cells(row: list[Tag], cell: Callable[[Tag], str]) -> str:
    out = []
    for each in row:
        spans = {name: int(each.get(name, 1)) for name in ("colspan", "rowspan")}
        options = ", ".join(f"{name}: {count}" for name, count in spans.items() if count > 1)
        inside = cell(each)
        out.append(f"table.cell({options})[{inside}]" if options else f"[{inside}]")
    return ", ".join(out)
