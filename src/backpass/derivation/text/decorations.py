"""Find a formula's decorations: boxes, braces with words, and colours.

A box and a brace also group what they contain, for a reader. So they are removed only
where the formula has the same meaning without them.
"""

from __future__ import annotations

import re

from backpass.derivation.language.brackets import close

Span = tuple[int, int]

BRACED = r"\{(?:[^{}\\]|\\.|\{(?:[^{}\\]|\\.|\{(?:[^{}\\]|\\.)*\})*\})*\}"
_BOX = re.compile(
    r"\\(?P<name>boxed|underbrace|overbrace|bbox(?:\s*\[[^\[\]]*\])?)\s*(?=\{)"
)
_WORDS = re.compile(
    # Letters stand only beside words: \text{from } Q.
    r"\s*[_^]\s*\{(?=[^a-zA-Z]*\\|[^a-zA-Z]*\})(?:[\sa-zA-Z().,:;!?0-9~]|\\[,;:! ]"
    r"|\\(?:text(?:rm|bf|it|sf|normal)?|mbox|mathrm)\s*\{[^{}=$\\]*\})*\}"
)
_COLOUR = re.compile(r"\\(?P<name>text)?color\s*(?:\[[^\[\]{}]*\])?\s*\{[^{}]*\}\s*")
_SPACES = r"(?:\s|&|~|\\[,;:! ])*"
_EDGE_BEFORE = re.compile(rf"(?:\A|\\\\|\\q?quad|\\begin\s*\{{[^{{}}]*\}}){_SPACES}\Z")
_EDGE_AFTER = re.compile(
    rf"{_SPACES}[.,;]?{_SPACES}(?:\Z|\\\\|\\q?quad|\\end(?![a-z]))"
)
_TERM_BEFORE = re.compile(rf"[=+(\[{{,]{_SPACES}\Z")
_MINUS_BEFORE = re.compile(rf"-{_SPACES}\Z")
_TERM_AFTER = re.compile(rf"{_SPACES}(?:[=+\-)\]}},]|\\(?:right|in)(?![a-z])|\\\}})")
# Commands and signs that bind to the symbol next to them.
_BOUND_BEFORE = re.compile(
    r"(?:[\^_/]|\\(?:[dt]?frac|sqrt|bar|overline|dot|hat|widehat|tilde|widetilde|check|breve|mean|vec|underline"
    r"|math[a-z]+|boldsymbol|bm|text[a-z]*|operatorname(?:\s*\{[a-z]*\})?"
    r"|exp|log|ln|tanh|sin|cos))(?:\s*\^\s*[0-9])?\s*\Z"
)
_BOUND_AFTER = re.compile(r"\s*[\^_/'!]")
_REACHES = re.compile(
    r"[+\-/=,<>|]|\\(?:odot|pm|mp|sum|prod|int|max|min|exp|log|ln|tanh|sin|cos|operatorname"
    r"|nabla|math[a-z]+|text|in|ne|le|ge|leq|geq|approx|frac\s*\{\s*\\partial\s*\})(?![a-z])"
    r"|\\frac\s*\{\s*\\partial\s*\}"
)
# Signs that bind less than the factors of a product do.
_LOOSE = re.compile(
    r"[+\-/=,<>|]|\\(?:odot|circ|pm|mp|in|ne|le|ge|leq|geq|approx)(?![a-z])"
)
_ATOM = re.compile(r"\s*(?:[a-zA-Z0-9]|\\[a-zA-Z]+)\s*")


# A box of text around a whole display: \colorbox{colour}{$…$.}
_FRAME = re.compile(
    r"\A(\s*\\(?:f?colorbox(?:\s*\{[^{}$]*\}){1,2}|bbox(?:\s*\[[^\[\]]*\])?|fbox)\s*\{\s*\$)"
    r"[^$]*(\$[\s.,;]*\}[\s.,;]*)\Z"
)


def framed(text: str) -> list[Span]:
    """Return where a box of text around a whole display begins and ends."""
    match = _FRAME.match(text)
    return [match.span(1), match.span(2)] if match else []


def decorations(text: str) -> list[Span]:
    """Return where a display has characters that do not change its meaning."""
    found: list[Span] = []
    while new := _first(text):
        found += new
        for start, end in new:
            text = text[:start] + " " * (end - start) + text[end:]
    return found


def _first(text: str) -> list[Span]:
    """Return the spans of the first box, brace or colour that can be removed."""
    for match in _BOX.finditer(text):
        if (end := close(text, match.end())) < 0:
            continue
        after = end + 1
        if match["name"].endswith("brace") and (words := _WORDS.match(text, after)):
            after = words.end()
        inside = text[match.end() + 1 : end]
        if is_same(text[: match.start()], inside, text[after:]):
            return [(match.start(), match.end() + 1), (end, after)]
    for match in _COLOUR.finditer(text):
        if new := _colour(text, match):
            return new
    return []


def is_same(before: str, inside: str, after: str) -> bool:
    """Whether a formula has the same meaning without the box around a part of it."""
    outer = _top_level(inside)
    edges = _EDGE_BEFORE.search(before), _EDGE_AFTER.match(after)
    if "=" in outer:
        return all(edges)
    signs = re.search(r"[+\-]|\\[pm]{2}(?![a-z])", outer)
    is_term = (
        edges[0]
        or _TERM_BEFORE.search(before)
        or (not signs and _MINUS_BEFORE.search(before))
    ) and (edges[1] or _TERM_AFTER.match(after))
    if is_term:
        return True
    return not (
        _REACHES.search(outer)
        or _BOUND_BEFORE.search(before)
        or _BOUND_AFTER.match(after)
    )


def ends_term(before: str, inside: str, after: str) -> bool:
    """Whether a box or a brace contains the last factors of a term."""
    return not (
        _LOOSE.search(_top_level(inside)) or _BOUND_BEFORE.search(before)
    ) and bool(_EDGE_AFTER.match(after) or _TERM_AFTER.match(after))


def _colour(text: str, match: re.Match[str]) -> list[Span]:
    start, end = match.span()
    before = text[:start]
    if text[end : end + 1] == "{":  # \textcolor{red}{x}, or \color{red}{x}
        last = close(text, end)
        if last < 0:
            return []
        if _BOUND_BEFORE.search(before):
            return [(start, end)]
        if _is_free(text[end + 1 : last], text[last + 1 :]):
            return [(start, end + 1), (last, last + 1)]
        return []
    if match["name"]:
        return []
    # {\color{red} x}: the braces print nothing, unless they hold an argument.
    opening = re.search(r"\{\s*\Z", before)
    if opening:
        last = close(text, opening.start())
        outside = before[: opening.start()].rstrip()
        is_argument = re.search(r"[\^_}\]]\Z|\\[a-zA-Z]+\Z", outside)
        is_factor = re.search(r"\\(?:cdot|times|odot|q?quad|left|right)\Z", outside)
        if last >= 0 and (not is_argument or is_factor):
            if not _is_free(text[end:last], text[last + 1 :]):
                return []
            return [(opening.start(), end), (last, last + 1)]
    return [(start, end)]


def _is_free(inside: str, after: str) -> bool:
    """Whether no power or index after a group refers to more than its last symbol."""
    return _BOUND_AFTER.match(after) is None or _ATOM.fullmatch(inside) is not None


def _top_level(text: str) -> str:
    """Return a formula without what is in brackets, except \\frac{\\partial}."""
    found, depth = "", 0
    for match in re.finditer(
        r"\\frac\s*\{\s*\\partial\s*\}|\\[a-zA-Z]+|\\.|.", text, re.S
    ):
        word = match[0]
        closes = word in ("}", ")", "]", r"\}")
        depth -= closes
        if depth <= 0 and not closes:
            found += word
        depth += word in ("{", "(", "[", r"\{")
    return found
