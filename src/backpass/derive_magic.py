"""``%%derive``: judge the displayed mathematics of a cell of a notebook.

    %load_ext backpass.derive_magic

The cell is Markdown with definitions, as for ``backpass derive``. The magic displays
the Markdown and prints the table of verdicts below it.
"""

from __future__ import annotations

from typing import Any

from backpass.commands.derive import SECONDS, report
from backpass.derivation.document import read_document
from backpass.derivation.judge import judge


def load_ipython_extension(shell: Any) -> None:
    """Give a notebook the magic ``%%derive``."""
    shell.register_magic_function(show, "cell", "derive")


def show(line: str, cell: str) -> None:
    """Show the Markdown of a cell, and print the verdicts on it. ``line`` contains
    definitions for the whole cell, without ``derive:``."""
    from IPython.display import Markdown, display

    document = read_document(cell, "markdown", line)
    display(Markdown(cell))
    print("\n".join(report(document, judge(document, line, seconds=SECONDS))))
