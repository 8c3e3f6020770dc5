"""Fold text at a terminal's width, and make it readable in any encoding."""

from __future__ import annotations

import codecs
import shutil
import sys
import textwrap
import unicodedata
from typing import TextIO

# Replacements for characters that the encoding lacks. Marks keep their width, so that
# columns stay aligned.
PLAIN = {
    "✓": "+", "✗": "X", "○": "o", "–": "-", "─": "-", "−": "-", "×": "*", "·": "*", "²": "^2", "³": "^3",
    "…": "...", "→": "->", "≤": "<=", "≥": ">=", "≈": "~", "∞": "inf", "√": "sqrt", "∂": "d", "Σ": "sum",
    "ε": "eps", "γ": "gamma", "β": "beta", "Δ": "Delta", "ℒ": "L", "⁻": "^-", "∘": "o", "½": "1/2",
    "¼": "1/4", "¾": "3/4", "⅓": "1/3", "⅔": "2/3",
}  # fmt: skip
_HANDLER = "backpass.plain"


def width() -> int:
    """Return the terminal's width in columns: ``COLUMNS`` if it is set, and 80 if there
    is no terminal."""
    return shutil.get_terminal_size().columns


def folded(text: str, width: int) -> list[str]:
    """Fold the text into lines of at most ``width`` columns, and at least 20.

    A folded line keeps its indent; a line without one continues with an indent of four.
    """
    width = max(width, 20)
    lines = []
    for line in text.splitlines() or [""]:
        indent = " " * (len(line) - len(line.lstrip()))
        lines += textwrap.wrap(
            line.strip(),
            width,
            initial_indent=indent,
            subsequent_indent=indent + ("" if indent else "    "),
            break_on_hyphens=False,
        ) or [""]
    return lines


def make_readable(*streams: TextIO) -> None:
    """Let each stream write any text: characters that its encoding lacks become ASCII.

    The default streams are standard output and standard error.
    """
    codecs.register_error(_HANDLER, _plain)
    for stream in streams or (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_HANDLER)


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_ascii, error.object[error.start : error.end])), error.end


def _ascii(character: str) -> str:
    if character in PLAIN:
        return PLAIN[character]
    bare = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return bare or character.encode("ascii", "backslashreplace").decode()
