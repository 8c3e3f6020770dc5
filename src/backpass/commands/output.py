"""What commands print: lines, folded at the terminal's width, with coloured marks."""

from __future__ import annotations

import os
import sys

from backpass.text import terminal

_COLOURS = {
    "✓": "32",
    "✗": "31;1",
    "○": "33",
    "! could not run": "31",
    "! raised": "31",
}


def say(*lines: str) -> None:
    """Print the lines."""
    for line in lines:
        # One write: the lines of ranks that share an output do not mix.
        print(f"{line}\n", end="", flush=True)


def folded(text: str) -> list[str]:
    """Return the text in lines of the terminal's width, coloured."""
    return [coloured(line) for line in terminal.folded(text, terminal.width())]


def coloured(text: str) -> str:
    """Colour the marks on a terminal, unless NO_COLOR is set.

    The colours add no information: the marks say the same.
    """
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if plain or not sys.stdout.isatty():
        return text
    for mark, colour in _COLOURS.items():
        text = text.replace(mark, f"\033[{colour}m{mark}\033[0m")
    return text
