"""Find braces that are not a command's argument, for which TeX prints nothing.

A formula is read as it prints, so these braces are dropped: \\sum_j {x_j} prints
\\sum_j x_j. An author may still have meant them to group. Where that would be another
formula, as in 2 {x + y}, it is a definition neither with nor without them, and a line
that would hold with brackets in their place is not refused.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from backpass.derivation.language.brackets import close
from backpass.derivation.text.decorations import ends_term, is_same
from backpass.derivation.text.passages import Text

GROUPS = (
    "braces that are not a command's argument print nothing, so they cannot group; "
    "write brackets"
)
_TOKEN = re.compile(r"\s*(\\(?:operatorname\*|[a-zA-Z]+)|\\.|\S)", re.S)
_ARGUMENTS = dict.fromkeys(
    ("frac", "dfrac", "tfrac", "cfrac", "binom", "overset", "underset", "stackrel"), 2
) | dict.fromkeys(
    (
        "sqrt", "bar", "overline", "dot", "ddot", "hat", "widehat", "tilde", "widetilde",
        "check", "breve", "mean", "vec", "underline", "underbrace", "overbrace", "boxed", "mathrel", "mathbin",
        "mathop", "substack",
    ),
    1,
)  # fmt: skip
_WORDS = re.compile(  # whose arguments are names or words
    r"\\(?:text[a-z]*|mbox|math[a-z]+|boldsymbol|bm|pmb|operatorname\*?|begin|end|label"
    r"|tag|hspace|phantom|color|textcolor)\Z"
)
_NONE = re.compile(  # commands without an argument
    r"\\(?:[^a-zA-Z]|(?:var)?(?:alpha|beta|gamma|delta|epsilon|zeta|eta|theta|kappa|lambda"
    r"|mu|nu|xi|pi|rho|sigma|tau|phi|chi|psi|omega|ell|iota|upsilon)"
    r"|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Phi|Psi|Omega"
    r"|sum|prod|max|min|bigodot|exp|log|ln|tanh|sinh|cosh|sin|cos|tan|partial|nabla|odot"
    r"|cdot|times|circ|q?quad|space|left|right|[bB]igg?[lr]?|[lr]angle|[lr]Vert|[lr]vert"
    r"|top|intercal|prime|infty|[cldv]?dots|in|ne|neq|le|leq|ge|geq|pm|mid)\Z"
)
# Commands that take what stands on their right as an argument, without braces.
_OPEN = re.compile(
    r"\\(?:sum|prod|max|min|bigodot|exp|log|ln|tanh|sinh|cosh|sin|cos|tan|partial|nabla"
    r"|left|right|[bB]igg?[lr]?|operatorname\*?|text|mathrm)\Z"
)
_SWITCHES = re.compile(  # whose effect ends with the group
    r"\\(?:rm|bf|it|sf|tt|cal|scr|over|atop|choose|above|brace|brack"
    r"|(?:display|text|script|scriptscript)style|boldmath|color|large|small)(?![a-zA-Z])"
)
_SCRIPT = re.compile(r"\s*([\^_'])")
_LETTER = re.compile(r"[a-zA-Z0-9]|\\[a-zA-Z]+\Z")


class Group(NamedTuple):
    """A pair of braces that is not an argument: the places of both.

    `is_plain` says whether the formula is the same with brackets in their place.
    """

    opening: int
    closing: int
    is_plain: bool


def groups(text: str) -> list[Group]:
    """Return the braces of a formula that can be dropped."""
    found: list[Group] = []
    if "{" in text:
        _walk(text, 0, len(text), found)
    return found


def without_braces(text: Text) -> Text:
    """Return a text as it prints, without braces that are not arguments."""
    found = groups(text.characters)
    places = [at for group in found for at in (group.opening, group.closing)]
    return text.blanked([(at, at + 1) for at in places])


def with_brackets(text: Text) -> Text | None:
    """Return a text with brackets in place of the braces that its author may have meant
    to group; None if it has none."""
    characters = list(text.characters)
    found = groups(text.characters)
    for group in found:
        characters[group.opening] = " " if group.is_plain else "("
        characters[group.closing] = " " if group.is_plain else ")"
    if all(group.is_plain for group in found):
        return None
    return Text("".join(characters), text.origins)


def _walk(text: str, at: int, end: int, found: list[Group]) -> None:
    """Add the braces between two places that are not arguments."""
    while at < end and (match := _TOKEN.match(text, at, end)):
        at = _after(text, match, end, found)


def _after(text: str, match: re.Match[str], end: int, found: list[Group]) -> int:
    """Return where what begins with a token ends; add the braces in it."""
    word, at = match[1], match.end()
    if word == "{":
        closing = close(text, match.start(1))
        if not 0 <= closing < end:
            return end
        if not _SWITCHES.search(text, at, closing):
            _walk(text, at, closing, found)
            if group := _group(text, match.start(1), closing):
                found.append(group)
        return closing + 1
    if word in ("^", "_"):
        return _argument(text, at, end, found)
    if len(word) == 1 or _NONE.match(word):
        return at
    if word == r"\sqrt" and (option := re.compile(r"\s*\[[^\[\]]*\]").match(text, at)):
        at = option.end()
    count = _ARGUMENTS.get(word[1:], 0)
    for _ in range(count):
        at = _argument(text, at, end, found)
    while not count and (brace := _TOKEN.match(text, at, end)) and brace[1] == "{":
        closing = close(text, brace.start(1))
        name = text[brace.end() : closing]
        at = closing + 1 if closing >= 0 else end
        if _WORDS.match(word) and (word != r"\begin" or name != "array"):
            break
    return at


def _argument(text: str, at: int, end: int, found: list[Group]) -> int:
    """Return where an argument ends; add the braces in it."""
    if not (match := _TOKEN.match(text, at, end)):
        return end
    if match[1] != "{":
        return match.end() if match[1] in "^_" else _after(text, match, end, found)
    closing = close(text, match.start(1))
    if not 0 <= closing < end:
        return end
    _walk(text, match.end(), closing, found)
    return closing + 1


def _group(text: str, opening: int, closing: int) -> Group | None:
    """Return a pair of braces, or None if it changes what is printed."""
    inside, after = text[opening + 1 : closing], text[closing + 1 :]
    kind = _kind(inside)
    if script := _SCRIPT.match(after):
        # The height of a power is that of the group, as in {\sum_j x_j}^2.
        if kind not in ("one", "bracket") and (kind, script[1]) != ("indexed", "^"):
            return None
        return Group(opening, closing, True)
    before = text[:opening]
    is_plain = (
        bool(kind)
        or not inside.strip()
        or is_same(before, inside, after)
        or ends_term(before, inside, after)
    )
    return Group(opening, closing, is_plain)


def _kind(inside: str) -> str:
    """Return what a group holds: "one" symbol or fraction, a "bracket", a symbol that
    is "indexed" or has a "power"; otherwise ""."""
    if not (match := _TOKEN.match(inside)):
        return ""
    word, end = match[1], len(inside)
    if word in ("(", r"\left"):
        begins = match.end() if word == r"\left" else match.start(1)
        if inside[begins : begins + 1] != "(":
            return ""
        depth = 0
        for at in range(begins, end):
            depth += (inside[at] == "(") - (inside[at] == ")")
            if depth == 0:
                return "" if inside[at + 1 :].strip() else "bracket"
        return ""
    if _OPEN.match(word) or not (_LETTER.match(word) or word[0] == "\\"):
        return ""
    at, kind = _after(inside, match, end, []), "one"
    while script := _SCRIPT.match(inside, at):
        kind = "indexed" if script[1] == "_" and kind == "one" else "power"
        at = script.end()
        at = at if script[1] == "'" else _argument(inside, at, end, [])
    return kind if not inside[at:].strip() else ""
