"""Capital letters that a text uses as numbers of things, such as N in 1/N."""

from __future__ import annotations

import re

USUAL = "NMKTDB"
_REALS = r"\\(?:mathbb|mathbf|mathrm)\s*\{?\s*R\s*\}?\s*\^\s*"
# How a number of things is written, and how an array is; # is the letter.
_COUNT = re.compile(
    r"""
    \\(?:sum|prod)(?:_\s*(?:\w|\{[^{}]*\}))?\s*\^\s*\{?\s*\#(?![\w{^])
  | dots[a-z]?\s*,?\s*(?:\\\})?\s*\#(?![\w{^])
  | REALS(?:\#|\{[^{}$]*(?<![\\a-zA-Z])\#(?![\w{^])[^{}$]*\})
  | \\frac\s*\{[^{}]*\}\s*\{\s*\d*\s*\#\s*\}
  | \d\s*/\s*\#(?![\w{^(])
    """.replace("REALS", _REALS),
    re.X,
)
_ARRAY = re.compile(
    r"""
    (?<![\\a-zA-Z{])\#(?:_\s*(?:\w|\{[^{}]*\}))?
      \s*(?:\^\s*\{?\s*(?:\(.*?\))?\s*(?:-\s*1|-?\s*(?:\\top|\\intercal|T|\\mathsf|\\prime))(?!\w)
        |'|\\in\s*REALS)
  | \\(?:operatorname|mathrm|text)\s*\{(?:[tT]r|det|diag|vec)\}\s*\\?l?e?f?t?[(\[]?\s*\#
  | \b(?:matri(?:x|ces)|vectors?)\s+(?:\$[^$]{1,20}\$,?\s*(?:and\s+)?)*\$\s*\#(?![\w{^])
  | \$\s*\#\s*\$(?:\s+\w+){1,3}?\s+(?:matrix|vector)\b
    """.replace("REALS", _REALS),
    re.X,
)


def counted(source: str) -> frozenset[str]:
    """Return the letters that a text uses as numbers of things, and never as arrays."""
    return frozenset(
        letter
        for letter in USUAL
        if _for(_COUNT, letter).search(source) and not is_an_array(letter, source)
    )


def is_an_array(letter: str, source: str) -> bool:
    """Whether a text uses a capital letter as an array."""
    return _for(_ARRAY, letter).search(source) is not None


def _for(pattern: re.Pattern[str], letter: str) -> re.Pattern[str]:
    return re.compile(pattern.pattern.replace(r"\#", letter), re.X)
