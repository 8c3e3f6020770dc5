"""Marks which cells of a notebook begin a slide, for `jupyter nbconvert --to slides` and for RISE.

A section begins a slide, and a subsection, an exercise, a paragraph that begins with a bold title, or text that follows
code a slide below it. A cell of code is a fragment: it appears, with its output, after the text above it. Left out of the
slides are solutions, cells that only install, and cells that only assert, as the site folds them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import nbformat
from backpass_folds import STEPS, parsed

HEADING = re.compile(r"^(#+) (.*)")
BREAK = re.compile(r"#{1,3} |> \*\*Exercise|\*\*[^*]+\.\*\* ")  # where text is divided
FENCE = re.compile(r"(`{3,}|~{3,})")


def divided(text: str) -> Iterator[str]:
    """The text in parts, each of which begins with a heading or an exercise, except the first."""
    part, fence, above = [], "", ""
    for line in text.split("\n"):
        if match := FENCE.match(line):
            fence = "" if line.startswith(fence or "\0") else fence or match[1]
        if not fence and not above.startswith(">") and BREAK.match(line) and any(part):
            yield "\n".join(part).strip("\n")
            part = []
        part.append(line)
        above = line
    yield "\n".join(part).strip("\n")


def mark(cell: nbformat.NotebookNode, kind: str) -> None:
    cell.metadata["slideshow"] = {"slide_type": kind}


def mark_slides(cells: list[nbformat.NotebookNode]) -> None:
    """Mark the cells of a page that are shown on slides, in their order; those that are marked already are left out."""
    section, after_code = "", False
    for cell in cells:
        if "slideshow" in cell.metadata:
            continue
        if cell.cell_type == "code":
            left_out = is_only_asserted(cell, section)
            mark(cell, "skip" if left_out else "fragment")
            after_code = after_code or not left_out
            continue
        if heading := HEADING.match(cell.source):
            section = heading[2]
        if heading and len(heading[1]) < 3:
            mark(cell, "slide")
        else:
            mark(cell, "subslide" if after_code or BREAK.match(cell.source) else "-")
        after_code = False


def is_only_asserted(cell: nbformat.NotebookNode, section: str) -> bool:
    """Whether the cell shows nothing and asserts, outside of sections whose code a reader follows."""
    if cell.get("outputs") or STEPS.search(section):
        return False
    statements = parsed(cell.source)
    return any(isinstance(each, ast.Assert) for statement in statements for each in ast.walk(statement))
