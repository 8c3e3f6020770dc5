"""Experiments that a page defines and a script repeats at full size.

A cell with the tag ``experiment`` holds functions of the experiment. The script runs those cells of the page, and the
page compares its own small draw with the record. So there is one definition, and a change of it is noticed.
"""

from __future__ import annotations

import re
from typing import Any

from harness import ROOT

CELL = re.compile(
    r"^```\{code-cell\} python\n:tags: \[[^\]\n]*\bexperiment\b[^\]\n]*\]\n(.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def of_page(name: str) -> dict[str, Any]:
    """Run the page's cells with the tag ``experiment``, in order; return what they define.

    Raises LookupError if the page has none.
    """
    path = ROOT / "chapters" / f"{name}.md"
    cells = CELL.findall(path.read_text(encoding="utf-8"))
    if not cells:
        raise LookupError(f"no cell of {path.name} has the tag experiment")
    defined: dict[str, Any] = {"__name__": name}
    exec(compile("\n".join(cells), str(path), "exec"), defined)
    return defined


def digits(values: Any) -> list[float]:
    """Round to nine significant digits, so that a record is compact and a page can compare six."""
    return [float(f"{value:.9g}") for value in values]
