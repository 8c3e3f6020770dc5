"""Write the marks that texts have for norms, absolute values, indicators and signs in
the notation of derivations."""

from __future__ import annotations

import re

from backpass.derivation.language.brackets import outside
from backpass.derivation.text.passages import Text

_WORD = r"\\(?:text(?:rm|bf|it|normal)?|math(?:rm|bf|sf)|operatorname)"
_ONE = r"(?:\{[^{}]*\}|[a-zA-Z0-9]|\\[a-zA-Z]+)"
_BRACED = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_UP_TO = r"\\leq?(?![a-zA-Z])"
_SUCH = r"(?:\\[,;: ])*(?::|,|;|\||\\mid(?![a-zA-Z])|\\colon(?![a-zA-Z]))(?:\\[,;: ])*"
_STEP = r"[a-z](?:\s*[+-]\s*1)?|0"
_PLAIN = (
    (re.compile(r"\\left\s*\|\s*\\left\s*\||\\left\s*\\[lr]?Vert(?![a-zA-Z])"), r"\\left\\|"),
    (re.compile(r"\\right\s*\|\s*\\right\s*\||\\right\s*\\[lr]?Vert(?![a-zA-Z])"), r"\\right\\|"),
    (re.compile(r"(?<![\\|])\|\|(?!\|)|\\Vert(?![a-zA-Z])"), r"\\|"),
    (re.compile(rf"(\\\||\\rVert)\s*_\s*(?:\{{\s*)?{_WORD}\s*\{{\s*F\s*\}}(?:\s*\}})?"), r"\1_F"),
    (re.compile(r"(\\(?:boldsymbol|mathbf))\s*(\\[a-zA-Z]+)"), r"\1{\2}"),
    (re.compile(r"\\space(?![a-zA-Z])"), r"\\ "),
    # A word as a label: \sigma_\mathrm{sig}.
    (re.compile(rf"_\s*{_WORD}\s*\{{\s*([a-zA-Z]{{2,}})\s*\}}"), r"_{\\text{\1}}"),
    (re.compile(rf"_\s*\{{\s*{_WORD}\s*\{{\s*([a-zA-Z]{{2,}})\s*\}}\s*\}}"), r"_{\\text{\1}}"),
    # P_{k|k-1}: of step k, given what is known until the one before.
    (re.compile(rf"_\s*\{{\s*({_STEP})\s*(?:\||\\mid(?![a-zA-Z])|\\vert(?![a-zA-Z]))\s*({_STEP})\s*\}}"), r"_{\\text{\1 given \2}}"),
    # \\sum_{1 \\le i < j \\le n} and \\sum_{i,j: i<j}, over both letters.
    (re.compile(rf"\\sum\s*_\s*\{{\s*1\s*{_UP_TO}\s*([a-zA-Z])\s*(<|{_UP_TO})\s*([a-zA-Z])\s*{_UP_TO}\s*([a-zA-Z])\s*\}}"), r"\\sum_{\3=1}^{\4} \\sum_{\1 \2 \3}"),
    (re.compile(rf"\\sum\s*_\s*\{{\s*([a-zA-Z])\s*,\s*([a-zA-Z])\s*{_SUCH}\s*\1\s*(<|>|{_UP_TO}|\\neq?)\s*\2\s*\}}"), r"\\sum_{\2} \\sum_{\1 \3 \2}"),
    # What prints the same in the other order: \sum^n_{k=1}, and \|x\|^2_2.
    (re.compile(rf"(\\(?:sum|prod|bigodot))\s*\^\s*({_ONE})\s*_\s*({_ONE})"), r"\1_\3^\2"),
    # A minus sign just behind the limits of a sum is that of the summand.
    (re.compile(rf"(\\sum(?:\s*[_^]\s*(?:{_BRACED}|{_ONE}))+)(?:\s|\\[,;:! ]|~)*-"), r"\1 (-1) "),
    (re.compile(r"(\\\||\\rVert)\s*\^\s*(?:2|\{\s*2\s*\})\s*_\s*([2F]|\{\s*[2F]\s*\})"), r"\1_\2^2"),
    (re.compile(r"\\mathop\s*\{\s*(\\nabla)\s*\}"), r"\1 "),
    (re.compile(r"(\\partial)\s*\{\s*\}"), r"\1"),
    (re.compile(r"(\\m(?:ax|in))\s*(\\left\s*)?\\\{([^{}]*)(?(2)\\right\s*)\\\}"), r"\1(\3)"),
)  # fmt: skip
_BEFORE_STEP = re.compile(
    r"_\s*(?:\{\s*([a-z])\s*\}|([a-z]))\s*\^\s*(?:([+-])(?!\w|\s*\d)|\{\s*([+-])\s*\})"
)


def is_bound(letter: str, formula: str) -> bool:
    """Whether a letter is the index of a sum or a product of a formula, or of what a
    derivative is taken by, so that it is not a label there."""
    index = rf"_\s*\{{?[^{{}}=]*?(?<![a-zA-Z\\]){letter}(?![a-zA-Z])"
    return bool(
        re.search(rf"\\(?:sum|prod|max|min)\s*(?:\\limits\s*)?{index}", formula)
        or re.search(rf"\\partial\s*\\?[a-zA-Z]+\s*{index}", formula)
    )


def _with_steps(text: Text) -> Text:
    """Return a text with a label for P_k^-, unless k is an index."""
    for match in reversed([*_BEFORE_STEP.finditer(text.characters)]):
        letter, sign = match[1] or match[2], match[3] or match[4]
        if not is_bound(letter, text.characters):
            text = _put(text, *match.span(), rf"_{{\text{{{letter}{sign}}}}}")
    return text


_SIGN = r"(?:=|<|>|\\(?:neq?|leq?|geq?|lt|gt)(?![a-zA-Z]))"
_HAS_SIGN = (
    rf"\s*(?:_\s*\{{(?:\\[{{}}]|[^{{}}])*{_SIGN}|(?:\\left\s*)?(?:\[|\()[^()\[\]]*{_SIGN}"
    rf"|(?:\\left\s*)?\\\{{[^{{}}]*{_SIGN})"
)
_ONES = re.compile(
    r"\\mathbb\s*(?:\{\s*1\s*\}|1)|\\mathbbm\s*\{\s*1\s*\}|\\mathds\s*\{\s*1\s*\}"
    # A number or a letter only with a condition: 1_{i=k}, 1(i = k), and I(i = k).
    rf"|(?:\\(?:mathbf|boldsymbol)\s*(?:\{{\s*1\s*\}}|1)|(?<![\w^_{{}}.\\])1)(?={_HAS_SIGN})"
    rf"|(?:\\mathbb\s*\{{\s*I\s*\}}|(?<![\w^_{{}}.\\])I)(?=\s*(?:\\left\s*)?[(\[][^()\[\]]*{_SIGN})"
)
_COMPARES = re.compile(r"<|>|\\(?:leq?|geq?|lt|gt)(?![a-zA-Z])")
_EQUAL = re.compile(r"\s*([a-zA-Z])\s*(==?|\\neq?)\s*([a-zA-Z])\s*")
_ENCLOSED = re.compile(r"\s*(?:[(\[]|\\\{)([^()\[\]{}]*?)(?:[)\]]|\\\})\s*")
_CONDITION = re.compile(
    r"\s*(?:_\s*\{(?P<below>(?:\\[{}]|[^{}\\]|\\[a-zA-Z]+)*)\}|\\left\s*(?P<left>[(\[]|\\\{)|(?P<plain>[(\[]|\\\{))"
)
_CLOSING = {"(": ")", "[": "]", r"\{": r"\}"}
_BARS = re.compile(
    r"\\left\s*(?:\||\\lvert(?![a-zA-Z]))|\\right\s*(?:\||\\rvert(?![a-zA-Z]))"
    r"|\\[lr]vert(?![a-zA-Z])|(?<!\\)\|"
)
# What stands before an opening bar, and before none that closes.
_BEGINS = re.compile(r"(?:\A|[=+\-/(\[{,]|\\(?:cdot|times|odot|log|exp|left))\s*\Z")
_UNFINISHED = re.compile(r"(?:[=+\-/(\[{,]|\\(?:cdot|times|odot|log|exp))\s*\Z")


# \frac{\partial y}{\partial x} \Big|_{x=0}, with a bar of its own.
_BAR_BELOW = re.compile(
    rf"(?<!\\left\.)(?<!\\left\. )\\[dt]?frac\s*{_BRACED}\s*{_BRACED}\s*"
    r"(?P<bar>(?:\\[bB]igg?[lr]?\s*)?(?:\||\\[rl]?vert(?![a-zA-Z])))(?=\s*_\s*\{[^{}]*=)"
)

# A function of several arguments: \pi(a|s), and p_\theta(x|z; \mu).
_CALL = re.compile(
    r"(?<![a-zA-Z\\])(?:[a-zA-Z]|\\(?!(?:log|ln|exp|max|min|abs|left|right)\b)[a-zA-Z]+"
    r"(?:\{[a-zA-Z]\})?)(?:\s*_\s*(?:\w|\\[a-zA-Z]+|\{[^{}]*\}))?'*\s*(?:\\left\s*)?\("
)
_SEPARATOR = re.compile(r"\|(?!\s*_)|;|\\mid(?![a-zA-Z])")


def _with_arguments(text: Text) -> Text:
    """Return a text with a comma for each bar or semicolon between two arguments. Two
    bars are an absolute value."""
    characters = text.characters
    found: list[tuple[int, int]] = []
    for call in _CALL.finditer(characters):
        begins = call.end()
        places: list[tuple[int, int]] = []
        for at in outside(characters[begins:]):
            if characters.startswith(")", begins + at):
                break
            if match := _SEPARATOR.match(characters, begins + at):
                places.append(match.span())
        else:
            continue
        bars = [one for one in places if characters[one[0]] != ";"]
        if len(bars) < 2 and r"\|" not in characters[begins : begins + at]:
            found += places
    for first, last in sorted({*found}, reverse=True):
        text = _put(text, first, last, ", ")
    return text


def usual(text: Text) -> Text:
    """Return a text with its marks in the notation of derivations, where they have one
    meaning."""
    text = _with_steps(_with_values_at(_with_arguments(text)))
    for pattern, by in _PLAIN:
        text = text.replaced(pattern, by)
    for match in reversed([*_ONES.finditer(text.characters)]):
        text = _with_indicator(text, match)
    return _with_absolute_values(text)


def _with_values_at(text: Text) -> Text:
    """Return a text with \\left. and \\right| round a derivative before a bar with
    values below it."""
    for match in reversed([*_BAR_BELOW.finditer(text.characters)]):
        first, last = match.span("bar")
        text = _put(text, first, last, r"\right|")
        text = _put(text, match.start(), match.start(), r"\left. ")
    return text


def _put(text: Text, first: int, last: int, new: str) -> Text:
    """Return a text with other characters in a place."""
    origin = text.origins[first]
    return text[:first] + Text(new, (origin,) * len(new)) + text[last:]


def _with_indicator(text: Text, match: re.Match[str]) -> Text:
    """Return a text with [x > 0] for an indicator of x > 0, \\delta_{ij} for one of
    i = j, 1 minus it for one of i \\ne j, and \\mathbf{1} for a sign without a
    condition."""
    first, last = match.span()
    condition = _CONDITION.match(text.characters, last)
    inside, end = "", last
    if condition and condition["below"] is not None:
        inside, end = condition["below"], condition.end()
        if enclosed := _ENCLOSED.fullmatch(inside):
            inside = enclosed[1]
    elif condition:
        opening = condition["left"] or condition["plain"]
        begins = condition.end()
        for at in outside(text.characters[begins:]):
            end = begins + at
            if text.characters.startswith(_CLOSING[opening], end):
                break
        else:
            return text
        inside = text.characters[begins:end]
        if condition["left"]:
            inside = re.sub(r"\\right\s*\Z", "", inside)
        end += len(_CLOSING[opening])
    if _COMPARES.search(inside):
        new = inside.replace(r"\lt", "<").replace(r"\gt", ">")
        return _put(text, first, end, f"[{new}]")
    if equal := _EQUAL.fullmatch(inside):
        delta = rf"\delta_{{{equal[1]}{equal[3]}}}"
        if equal[2].startswith("\\"):
            delta = rf"\left(1 - {delta}\right)"
        return _put(text, first, end, delta)
    return _put(text, first, last, r"\mathbf{1}")


def _with_absolute_values(text: Text) -> Text:
    """Return a text with \\abs(x) for |x|, unless its bars may pair in several ways."""
    bars = [*_BARS.finditer(text.characters)]
    if len(bars) % 2 or not bars:
        return text
    pairs = [*zip(bars[::2], bars[1::2], strict=True)]
    for number, (first, last) in enumerate(pairs):
        before = text.characters[: first.start()]
        if number and not (
            _BEGINS.search(before)
            or before.rstrip() == before[: bars[2 * number - 1].end()]
        ):
            return text
        inside = text.characters[first.end() : last.start()]
        if not _is_balanced(inside) or _UNFINISHED.search(inside):
            return text
    for first, last in reversed(pairs):
        text = _put(text, *last.span(), ")")
        text = _put(text, *first.span(), r"\abs(")
    return text


def _is_balanced(text: str) -> bool:
    depth = 0
    for sign in re.findall(r"\\[a-zA-Z]+|\\.|[{}()\[\]]", text):
        depth += (sign in "{([") - (sign in "})]")
        if depth < 0:
            return False
    return depth == 0
