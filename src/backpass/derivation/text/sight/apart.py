"""Names that another section defines, and that are constant in a line's section."""

from __future__ import annotations

import re

from backpass.derivation.text.sight.inference import Inference, Read
from backpass.derivation.text.sight.ruling import slopes_of

_LETTERS = re.compile(r"\\[a-zA-Z]+|[a-zA-Z]")
_FACES = re.compile(
    r"\\(?:mathbf|boldsymbol|bm|vec|mathrm|mathcal|text)(?![a-zA-Z])|[{}\s]"
)


def without_apart(
    inference: Inference, own: Read, bound: list[str]
) -> tuple[list[str], tuple[str, ...]]:
    """Return names that depend on others without those that are constant in a line,
    and in words which these are."""
    apart = {
        name: is_apart(inference.reads, inference.functions, own, name)
        for name in bound
        if name not in inference.prose.derived
    }
    words = (f"{name} does not depend on {by}" for name, by in apart.items() if by)
    return [name for name in bound if not apart.get(name)], tuple(words)


def is_apart(reads: list[Read], functions: set[str], own: Read, name: str) -> str:
    """Return the name by which a line differentiates, if another name is constant
    there although other sections define it; "" if that is not certain.

    The section has to define what is differentiated by both names, and no definition
    above the line that the other name may use has to contain the variable, or a
    function that nothing defines.
    """
    slopes = slopes_of(own)
    variables = {one for _, by in slopes for one in by}
    differentiated = {one for of, _ in slopes for one in of}
    if len(variables) != 1 or name in variables:
        return ""
    (variable,) = variables
    here = [read for read in reads if read.section == own.section and read is not own]
    if any(_plain(read.head) == _plain(name) for read in here):
        return ""
    shown = [
        read
        for read in here
        if read.head in differentiated and {name, variable} <= read.right
    ]
    above = [read for read in reads if read.line < own.line or read in here]
    unknown = functions - {read.head for read in reads}
    return variable if shown and not _reaches(above, unknown, name, variable) else ""


def _reaches(reads: list[Read], unknown: set[str], name: str, variable: str) -> bool:
    """Whether some definition that a name may use contains a variable, or a function
    that is unknown."""
    waiting, seen = [_plain(name)], {_plain(name)}
    ends = {_plain(one) for one in (variable, *unknown)}
    while waiting:
        one = waiting.pop()
        for read in reads:
            if not read.head or _plain(read.head) != one:
                continue
            found = {_plain(one) for one in _names(read)}
            if ends & found:
                return True
            waiting += found - seen
            seen |= found
    return False


def _names(read: Read) -> set[str]:
    """Return the names on the right of an equation; all letters if it is unread."""
    if len(read.trees) == len(read.statement.members):
        return {*read.right}
    text = " ".join(one.characters for one in read.statement.members[1:])
    return {*_LETTERS.findall(_FACES.sub(" ", text))}


def _plain(name: str) -> str:
    """Return a name without its face, in lower case."""
    return _FACES.sub("", name).lower()
