"""Sides that are not readable, in which another equation may begin."""

from __future__ import annotations

import re

from backpass.derivation.language.brackets import outside
from backpass.derivation.language.functions import is_function
from backpass.derivation.language.parse import Unreadable, parse
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.passages import Text

# In a side that is not readable, another equation may begin here.
_MAY_END = re.compile(
    r"\\(?:(?:text[a-z]*|mbox|mathrm|q?quad|hspace|iff|implies|[a-zA-Z]*[rR]ightarrow)"
    r"(?![a-zA-Z])|[;:])|[,;]"
)
_GOES_ON = re.compile(r"(?:\A|[-+*/]|\\(?:cdot|times|odot))\s*\Z")
TORN = (
    "another equation may begin in the side before this one, which is not readable: write "
    "each equation in a row of its own"
)


def may_end(member: Text) -> bool:
    """Whether another equation may begin in a side: behind a sign outside brackets at
    which its formula may end."""
    text = member.characters
    places = [*outside(text)]
    if not places or places[-1] != len(text):  # brackets without a partner
        return _MAY_END.search(text) is not None
    return any(
        _MAY_END.match(text, at) and not _GOES_ON.search(text, 0, at) for at in places
    )


def is_torn(known: Knowledge, left: Text) -> bool:
    """Whether the left side is not readable, and words may end an equation in it."""
    if not re.search(r"\\(?:text|mbox|mathrm)", left.characters):
        return False
    try:
        parse(known.part(left))
    except Unreadable:
        return not is_function(known.part(left))
    return False
