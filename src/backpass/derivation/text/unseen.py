"""Find what may contain displayed mathematics and is not read, to report it."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Environments that print displays and are not read, and files that a text includes.
_ENVIRONMENTS = re.compile(
    r"\\begin\{(?P<name>(?:dgroup|darray|empheq|numcases|subnumcases|xalignat|xxalignat"
    r"|IEEEeqnarraybox)\*?)\}"
)
_INCLUDED = re.compile(
    r"\\(?P<name>input|include|subfile|subimport)(?![a-zA-Z])\s*(?:\{[^{}]*\}|\S+)"
)
_FENCE = re.compile(
    r"^[ \t]*(?:`{3,}|~{3,})[ \t]*\{?(?P<name>latex|tex|rst|eval-rst)\}?[ \t]*$", re.M
)
_SOURCED = re.compile(r"^[ \t]*```\{(?P<name>include|literalinclude)\}", re.M)


def unseen(source: str, text: str, form: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of what is not read in a text of a form.

    `source` is the text as written, and `text` the same without code and comments.
    """
    found: list[tuple[int, str]] = []
    found += [(m.start(), m["name"]) for m in _ENVIRONMENTS.finditer(text)]
    if form == "latex":
        found += [(m.start(), rf"\{m['name']}") for m in _INCLUDED.finditer(text)]
    elif form == "markdown":
        found += [
            (m.start(), f"a fence of {m['name']}") for m in _FENCE.finditer(source)
        ]
        found += [(m.start(), m["name"]) for m in _SOURCED.finditer(source)]
    for start, name in sorted(found):
        yield source.count("\n", 0, start) + 1, name
