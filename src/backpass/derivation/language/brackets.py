"""Find what is outside all brackets of LaTeX, and the matching closing brace."""

from __future__ import annotations

import re
from collections.abc import Iterator

OPENING = (r"\begin", r"\{", "{", "(", "[")
CLOSING = (r"\end", r"\}", "}", ")", "]")
_BRACE = re.compile(r"\\.|[{}]", re.S)


def outside(
    text: str, opening: tuple[str, ...] = OPENING, closing: tuple[str, ...] = CLOSING
) -> Iterator[int]:
    """Yield the positions outside all brackets and environments, including the end.

    A backslash and the character after it have one position.
    """
    depth, at = 0, 0
    while at < len(text):
        if depth == 0:
            yield at
        depth += text.startswith(opening, at) - text.startswith(closing, at)
        at += 2 if text[at] == "\\" else 1
    if depth == 0:
        yield len(text)


def close(text: str, opening: int = 0) -> int:
    """Return the position of the brace that closes the first one from a position; −1 if
    there is none."""
    depth = 0
    for match in _BRACE.finditer(text, opening):
        depth += (match[0] == "{") - (match[0] == "}")
        if depth == 0 and match[0] == "}":
            return match.start()
    return -1
