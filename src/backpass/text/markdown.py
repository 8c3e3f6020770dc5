"""Write the Markdown that a cell of a page shows."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

_SPECIAL = re.compile(r"[\\`*_\[\]<>$#|~]")


class Markdown(str):
    """Markdown that a page shows."""

    def _repr_markdown_(self) -> str:
        return str(self)


def escaped(text: str) -> str:
    """Return plain text so that a page shows it as it is."""
    return _SPECIAL.sub(r"\\\g<0>", text)


def table(rows: Sequence[Sequence[str]], aligned: str) -> Markdown:
    """Return rows, the first of which is the heading, as a table."""
    first, *others = (f"| {' | '.join(row)} |" for row in rows)
    return Markdown("\n".join([first, f"|{aligned}|", *others]))


def division(inside: Sequence[str], name: str, /, **data: str) -> list[str]:
    """Return lines in a ``<div>`` of the class ``name``, with data attributes."""
    attributes = "".join(
        f' data-{key.replace("_", "-")}="{html.escape(value)}"'
        for key, value in data.items()
    )
    return [f'<div class="{name}"{attributes}>', "", *inside, "", "</div>", ""]


def folded(summary: str, inside: Sequence[str]) -> list[str]:
    """Return lines below a summary that a reader opens."""
    return [f"<details><summary>{summary}</summary>", "", *inside, "", "</details>", ""]


def code(source: str) -> list[str]:
    """Return Python source as lines of Markdown."""
    return ["```python", source, "```"]
