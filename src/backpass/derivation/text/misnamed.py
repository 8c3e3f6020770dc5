"""A name that a text uses in one place, and neither declares, defines, nor explains.

If its letter is that of declared names, and the line holds with a declared name that
has its letter or its labels, the name is a slip. After a definition of \\sigma^2,
\\sigma is its root.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from backpass.derivation.language.parse import Part, Unreadable
from backpass.derivation.text.forms import MENDS, differs
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.members import Equation, agree

_UNDECLARED = re.compile(r"(.+) is not declared or defined above\Z")
_FONT = re.compile(r"\\(?:mathbf|boldsymbol|bm|mathrm|mathit|vec)(?![a-zA-Z])")
_LABEL = re.compile(r"[\^_].*\Z", re.S)


def misnamed(
    known: Knowledge, equation: Equation, part: Part, error: Unreadable
) -> Unreadable | None:
    """Return what is wrong with an undeclared name in a member; None if the text may
    give it a meaning."""
    match = _UNDECLARED.match(error.message)
    if match is None or error.part != part or known.infers:
        return None
    name = match[1]
    root = _LABEL.sub("", name)
    if rf"{root}^2" in known.scope.variables:
        wrong = all(
            differs(known, equation, _with_root(part, root, sign), 1) for sign in "+-"
        )
        message = (
            rf"{name} is not declared, and with the root of {root}^2 this is wrong"
        )
        return Unreadable(message, part, error.position) if wrong else None
    if _is_elsewhere(known.source, part.text, name):
        return None
    written = part.text[error.position :]
    found = re.match(re.escape(name).replace(r"\ ", r"\s*"), written)
    if found is None:
        return None
    before, after = part.text[: error.position], written[found.end() :]
    for other in islice(_alike(known, name), MENDS):
        meant = Part(part.source, part.start, f"{before}{other} {after}")
        if agree(known, equation.first, equation.anchor, meant, equation.beside):
            message = (
                f"{name} is not declared or defined, and is nowhere else in the text; "
                f"it holds with {other} in its place"
            )
            return Unreadable(message, part, error.position)
    return None


def _with_root(part: Part, name: str, sign: str) -> Part:
    """Return a member with a root of the square in place of a name."""
    bare = re.compile(rf"{re.escape(name)}(?![a-zA-Z_])(?!\s*\^\s*\{{?2\}}?(?!\d))")
    root = rf"\left( {sign.strip('+')} \sqrt{{{name}^2}} \right)"
    return Part(part.source, part.start, bare.sub(lambda _: root, part.text))


def _split(name: str) -> tuple[str, str]:
    """Return the letter of a name, and its labels."""
    letter = _LABEL.sub("", name)
    return letter, name.removeprefix(letter)


def _alike(known: Knowledge, name: str) -> Iterator[str]:
    """Yield the declared names with the letter or the labels of a name whose letter is
    that of a declared name."""
    letter, labels = _split(name)
    names = [(one, *_split(one)) for one in known.scope.variables]
    if any(own == letter for _, own, _ in names):
        yield from (one for one, a, b in names if letter == a or labels == b)


def _is_elsewhere(source: str, member: str, name: str) -> bool:
    """Whether a text has a name in another place than in a member."""
    ends = r"(?![a-zA-Z0-9])" if _LABEL.search(name) else r"(?![a-zA-Z0-9_]|\^\()"
    one = re.compile(rf"(?<![a-zA-Z\\]){re.escape(_plain(name).strip())}{ends}")
    return len(one.findall(_plain(source))) > len(one.findall(_plain(member)))


def _plain(text: str) -> str:
    """Return a text without fonts, braces, and spaces before scripts."""
    return re.sub(r"\s*([\^_])\s*", r"\1", re.sub(r"[{}]", "", _FONT.sub(" ", text)))
