"""Experiments that a page defines and a script repeats at full size.

The cells with the tag ``experiment`` define the experiment. The script runs these cells of the page, and the page repeats
a small part and compares it with the record. So there is one definition, and the page notices if a change of it changes
the results.
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
    """Round to nine significant digits: a record stays compact, and a page can compare six digits."""
    return [float(f"{value:.9g}") for value in values]
