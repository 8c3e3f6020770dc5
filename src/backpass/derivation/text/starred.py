"""Names with a star, such as \\theta^*, which is a label of a text's own names.

A star may also be the sign of an adjoint. So it is a label only of a name that a
definition of the author has, or that a display sets equal to an argmin or assigns; in a
text that speaks of adjoints, only of a name in a file of definitions.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from backpass.derivation.text.greek import LOWER
from backpass.derivation.text.marks import is_bound
from backpass.derivation.text.passages import Text

_GREEK = rf"\\(?:{LOWER})(?![a-zA-Z])"
_BASE = (
    rf"(?:\\(?:mathbf|boldsymbol|hat|tilde)\s*\{{\s*(?:[a-zA-Z]|{_GREEK})\s*\}}"
    rf"|{_GREEK}|(?<![a-zA-Z\\])[a-zA-Z])"
)
_STEP = r"[a-z](?:\s*[+-]\s*1)?"
_STAR = r"(?:\*|\\ast(?![a-zA-Z])|\\star(?![a-zA-Z]))"
_NAME = re.compile(
    rf"(?P<base>{_BASE})\s*(?:_\s*(?:(?P<one>[a-z])|\{{\s*(?P<step>{_STEP})\s*\}})\s*)?"
    rf"\^\s*(?:{_STAR}|\{{\s*{_STAR}\s*(?P<power>\\top|\\intercal|T|2)?\s*\}})"
)
_STATED = re.compile(
    r"(?:^|[;:])\s*(?:given|let|constant|random)\b(?P<names>[^;\n]*)", re.M
)
_READ = re.compile(rf"(?:^|[;:])\s*read\b[^;\n]*{_STAR}", re.M)
_BELOW = re.compile(rf"(?<=[a-zA-Z}}])_\s*(?:{_STAR}|\{{\s*{_STAR}\s*\}})")
_TWO_BELOW = re.compile(rf"(?<=[a-zA-Z}}])_\s*\{{\s*{_STAR}\s*,?\s*{_STAR}\s*\}}")
_ASSIGNED = re.compile(
    r"\s*(?:(?:=|\\in(?![a-zA-Z]))\s*\\?(?:operatorname\*?\s*\{|mathop\s*\{|text\s*\{)?\s*\\?arg"
    r"|:\s*=|\\(?:coloneqq?|triangleq)(?![a-zA-Z]))"
)
_ADJOINT = re.compile(
    r"\badjoint|\bconjugate\b|\bhermitian\b|\bconvolution|\bdual\b", re.I
)


def with_starred(text: Text, definitions: str = "") -> Text:
    """Return a text with \\theta_{\\text{*}} for \\theta^*, if the star is a label."""
    written = text.characters
    every = f"{definitions}\n{written}"
    if _READ.search(every):
        return text
    is_adjoint = _ADJOINT.search(written) is not None
    stated = _STATED.finditer(definitions if is_adjoint else every)
    known = {_key(name) for one in stated for name in _NAME.finditer(one["names"])}
    if not is_adjoint:
        assigned = (
            m for m in _NAME.finditer(written) if _ASSIGNED.match(written, m.end())
        )
        known |= {*map(_key, assigned)}
    edges = [0, *(match.start() for match in _EDGE.finditer(written)), len(written)]
    for match in reversed([*_NAME.finditer(written)]):
        (start, end), step = match.span(), _key(match)[1]
        at = bisect_right(edges, start)
        formula = written[edges[at - 1] : edges[at]]  # the display, or the paragraph
        if _key(match) in known and not (step and is_bound(step[0], formula)):
            new = rf"{match['base']}_{{\text{{{step}*}}}}"
            if power := match["power"]:
                new += "^2" if power == "2" else r"^\top"
            placed = Text(new, (text.origins[start],) * len(new))
            text = text[:start] + placed + text[end:]
    return text


_EDGE = re.compile(r"\$\$|\\[\[\]]|\n\s*\n")


def with_labels(text: Text) -> Text:
    """Return a text with x_{\\text{star}} for x_*, whose star is always a label."""
    text = text.replaced(_TWO_BELOW, r"_{\\text{starstar}}")
    return text.replaced(_BELOW, r"_{\\text{star}}")


def with_stars(message: str) -> str:
    """Return a message with \\theta^* for \\theta_{\\text{*}}, and with x_* for
    x_{\\text{star}}, as the text has it."""
    message = message.replace(r"_{\text{starstar}}", "_{**}")
    message = message.replace(r"_{\text{star}}", "_*")
    return _LABEL.sub(lambda found: f"_{{{found[1]}}}^*" if found[1] else "^*", message)


def is_starred(name: str) -> bool:
    """Whether a name has a star."""
    return _LABEL.search(name) is not None


_LABEL = re.compile(r"_\{\\text\{((?:[a-z](?:[+-]1)?)?)\*\}\}")


def _key(match: re.Match[str]) -> tuple[str, str]:
    step = match["one"] or match["step"] or ""
    return "".join(match["base"].split()), "".join(step.split())
