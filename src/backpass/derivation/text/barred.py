"""Names with a bar, such as \\bar{x}, that are means and not gradients.

A bar is the sign of a gradient, but a text of statistics writes the mean of x so. It is
one if a definition of the author says it, or if the text sets \\bar{x} equal to the
mean of x, and does not speak of adjoints. Then \\mean{x} replaces it.
"""

from __future__ import annotations

import re

from backpass.derivation.text.greek import LOWER
from backpass.derivation.text.passages import Text

_BASE = (
    rf"(?:\\(?:mathbf|boldsymbol|vec)\s*\{{\s*(?:[a-zA-Z]|\\(?:{LOWER}))\s*\}}"
    rf"|\\(?:{LOWER})(?![a-zA-Z])|[a-zA-Z])"
)
_COMMAND = r"\\(?:bar|overline)(?![a-zA-Z])"
_NAME = rf"{_COMMAND}\s*\{{?\s*(?P<base>{_BASE})\s*\}}?"
_INDEX = r"(?:\s*_\s*(?P<index>\w|\{[^{}]*\}))?"
_STATED = re.compile(rf"(?:^|[;:])\s*(?:let\s+|mean\b[^;\n=]*=\s*){_NAME}", re.M)
_GROUP = r"(?:\w|\{[^{}]*\})"
_SUM = rf"\\sum(?:\s*\\limits)?(?:\s*[_^]\s*{_GROUP})*\s*(?P<of>[^=+\-$&]{{1,40}}?)\s*"
_ENDS = r"(?=[.,;]?\s*(?:\Z|[$=&]|\\(?:\\|\]|end|q?quad|[tT]ext|,)))"
_COUNT = r"\\[dt]?frac\s*(?:1|\{\s*1\s*\})\s*(?:\{[^{}]*\}|\w)\s*"
_MEAN = (
    rf"(?:{_COUNT}{_SUM}{_ENDS}"
    rf"|\\frac\s*\{{\s*{_SUM.replace('<of>', '<above>')}\}}\s*(?:\{{[^{{}}]*\}}|\w)"
    r"|(?:\\mathbb\s*\{?\s*E\s*\}?|E)\s*(?:\\left)?\s*[\[({]\s*(?P<random>[^=+\-$&]{1,20}?)"
    r"\s*(?:\\right)?\s*[\])}])"
)
_ASSIGNED = re.compile(rf"{_NAME}{_INDEX}\s*&?\s*:?\s*=\s*&?\s*{_MEAN}")
_TOTAL = re.compile(rf"{_SUM}=\s*&?\s*[nNmMkKTBDpP]\s*{_NAME}")
_GRADIENT = re.compile(
    r"\badjoint|cotangent|reverse[\s-]mode|back-?\s?prop|backward|\bbar gradient", re.I
)


def with_means(text: Text, definitions: str = "") -> Text:
    """Return a text with \\mean{x} for \\bar{x}, if the bar marks a mean."""
    written = text.characters
    every = f"{definitions}\n{written}"
    known = {_base(found) for found in _STATED.finditer(every)}
    if not _GRADIENT.search(every):
        for pattern in (_ASSIGNED, _TOTAL):
            found = pattern.finditer(written)
            known |= {_base(one) for one in found if _is_mean(one)}
    if not known:
        return text
    names = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    of_known = re.compile(rf"{_COMMAND}(?=\s*\{{?\s*(?:{names})(?![a-zA-Z]))")
    return text.replaced(of_known, r"\\mean")


def with_bars(message: str) -> str:
    """Return a message with \\bar{x} for \\mean{x}, as the text has it."""
    return re.sub(r"\\mean(?![a-zA-Z])", r"\\bar", message)


def _is_mean(match: re.Match[str]) -> bool:
    """Whether what is summed or averaged is the name itself, perhaps with an index."""
    groups = match.groupdict()
    found = next(groups[name] for name in ("of", "above", "random") if groups.get(name))
    base = re.escape(match["base"].strip())
    own = re.fullmatch(rf"{base}(?P<at>(?:\s*[_^]\s*{_GROUP})*)", found.strip())
    letters = re.findall(r"[a-zA-Z]", groups.get("index") or "")  # of \\bar{x}_j
    return own is not None and all(letter in own["at"] for letter in letters)


def _base(match: re.Match[str]) -> str:
    return "".join(match["base"].split())
