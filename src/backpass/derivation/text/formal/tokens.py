"""The signs of a formula as it is printed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from backpass.derivation.language.functions import WORD_BEFORE_BRACKET
from backpass.derivation.text.formal.trees import Groups, Unclear

_TOKEN = re.compile(r"\\text\{[^{}]*\}|\\[a-zA-Z]+\*?|\\.|\d+(?:\.\d+)?|\S", re.S)
_WORD = re.compile(
    r"\\(?:text(?:rm|bf|it|sf|tt|normal)?|mathrm|operatorname\*?|mbox|rm)\s*\{\s*([^{}\\$]*?)\s*\}"
)
_NOTHING = re.compile(
    r"(?<!\\)\\\Z|"
    r"\\(?:left|right|middle|[bB]igg?[lrm]?|displaystyle|textstyle|limits|nolimits|quad|qquad"
    r"|nonumber|mathstrut|mathop|mathrel|mathord)(?![a-zA-Z])|\\[,;:!\s]|[~&]"
    r"|\\hspace\*?\{[^{}]*\}"
)
_BRACED = r"\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
_FUNCTIONS = "Cov|Var|Corr|Pr|Prob|KL|MSE|ReLU|Loss|loss|Softmax|Attention"
# The old commands for faces, which hold for the rest of their braces.
_SWITCHES = {
    "rm": "mathrm", "bf": "mathbf", "it": "mathit", "cal": "mathcal", "sf": "mathsf",
    "tt": "mathtt", "bold": "mathbf",
}  # fmt: skip
_SWITCHED = re.compile(
    rf"\{{\s*\\({'|'.join(_SWITCHES)})(?![a-zA-Z])\s*(\w+?|\\[a-zA-Z]+)\s*"
    r"((?:_(?:\w|\{[^{}]*\}))?)\s*\}"
)


def _switched(match: re.Match[str]) -> str:
    """Write {\\cal Y} as \\mathcal{Y}; with an index, it remains in braces."""
    name = rf"\{_SWITCHES[match[1]]}{{{match[2]}}}"
    return rf"{{{name}{match[3]}}}" if match[3] else name


_PLAIN: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (_SWITCHED, _switched),
    (re.compile(rf"\\mathop\s*{_BRACED}"), r"\1"),
    (re.compile(rf"\\underset\s*{_BRACED}\s*{_BRACED}"), r"\2_{\1}"),
    (
        re.compile(rf"\\(?:cancel|bcancel|boxed|mathclose|mathopen)\s*{_BRACED}"),
        r"{\1}",
    ),
    (re.compile(rf"\\(?:under|over)brace\s*{_BRACED}\s*[_^]\s*{_BRACED}"), r"{\1}"),
    (re.compile(r"\\(?:left|[bB]igg?l?)\s*(?:\||\\vert(?![a-zA-Z]))"), r"\\lvert "),
    (re.compile(r"\\(?:right|[bB]igg?r?)\s*(?:\||\\vert(?![a-zA-Z]))"), r"\\rvert "),
    (re.compile(r"\\(?:left|[bB]igg?l?)\s*\\\|"), r"\\lVert "),
    (re.compile(r"\\(?:right|[bB]igg?r?)\s*\\\|"), r"\\rVert "),
    (re.compile(r"\\in\s*\\mathbb\s*\{?\s*R.*\Z", re.S), ""),
    (re.compile(r"\\E(?![a-zA-Z])"), r"\\mathbb{E}"),
    (re.compile(r"(?<=\d)\{,\}(?=\d{3}(?!\d))"), ""),  # 1{,}000
    (re.compile("−"), "-"),
    (re.compile(r"\\(?:mid|vert)\s*\\(?:mid|vert)(?![a-zA-Z])"), r"\\parallel "),
    (re.compile(r"\\(?:leftroot|uproot)\s*\{[^{}]*\}"), ""),
    (re.compile(r"\{\s*\}(?=\s*'|\s*[(),+\-|=]|\s*\Z)"), ""),
    # Markdown's \_ for _, behind a name or a bracket.
    (
        re.compile(r"(\\[a-zA-Z]+|(?<![a-zA-Z])[a-zA-Z]|[)}\]|])\\_(?=[a-zA-Z\d{])"),
        r"\1_",
    ),
    (
        re.compile(rf"(?<![a-zA-Z\\_^{{])({_FUNCTIONS})(?=\s*(?:\\left\s*)?[(\[])"),
        r"\\text{\1}",
    ),
)
_END = re.compile(r"(?:[\s.,;]|\\(?:\\|blacksquare|square|qed))+\Z")
FACES = {
    "mathbf", "boldsymbol", "bm", "mathcal", "mathbb", "mathsf", "mathit", "mathfrak",
    "hat", "bar", "tilde", "vec", "dot", "ddot", "overline", "widehat", "widetilde",
    "underline", "check", "breve", "mathscr", "pmb", "overrightarrow", "mathring", "mean",
}  # fmt: skip
BOLD = {"mathbf", "boldsymbol", "bm", "mathit", "pmb"}
CALLS = {
    "log", "ln", "exp", "sin", "cos", "tan", "tanh", "sinh", "cosh", "arctan", "erf",
    "sqrt", "sgn", "sign", "det", "tr", "diag", "dim", "rank", "vec",
}  # fmt: skip
BIGS = {
    "sum": "sum", "prod": "prod", "int": "int", "iint": "int", "max": "max",
    "min": "min", "sup": "sup", "inf": "inf", "lim": "lim", "argmax": "argmax",
    "argmin": "argmin", "arg": "arg", "oint": "int",
}  # fmt: skip
NAMED = {
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta",
    "vartheta", "iota", "kappa", "lambda", "mu", "nu", "xi", "pi", "varpi", "rho",
    "varrho", "sigma", "varsigma", "tau", "upsilon", "phi", "varphi", "chi", "psi",
    "omega", "Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi",
    "Psi", "Omega", "ell", "infty", "hbar", "imath", "jmath", "N", "Pr", "Re", "emptyset",
}  # fmt: skip
TOPS = {"T", r"\top", r"\intercal", r"\mathsf{T}", r"\text{T}", r"\mathbf{T}"}
DOTS = {r"\dots", r"\ldots", r"\cdots", r"\vdots", r"\ddots", r"\dotsc", r"\dotsb"}
TIMES = {r"\cdot", r"\times", "*", r"\ast", r"\cdotp", r"\bullet"}
EACH = {r"\odot", r"\circ", r"\circledast"}
BARS = {"|", r"\mid", r"\vert", r"\lvert", r"\rvert", r"\given"}
NORMS = {r"\|", r"\lVert", r"\rVert", r"\Vert", r"\parallel"}
COMPARED = {
    "=", "<", ">", r"\le", r"\leq", r"\ge", r"\geq", r"\ne", r"\neq", r"\in", r"\leqslant",
    r"\geqslant", r"\to", r"\sim", r"\succ", r"\prec", r"\approx",
}  # fmt: skip
SEPARATORS = {",", ";", *BARS, *NORMS, ":"}
CLOSE = {
    "(": ")", "[": "]", r"\{": r"\}", r"\lbrack": r"\rbrack", r"\lbrace": r"\rbrace",
}  # fmt: skip
_BOLD_MACRO = re.compile(
    r"b([a-zA-Z]|alpha|beta|gamma|delta|epsilon|eta|theta|lambda|mu|nu|xi|pi|rho|sigma|tau|phi"
    r"|psi|omega|Sigma|Lambda|Theta|Phi|Psi|Omega|Gamma|Delta)"
)
CLOSED = {*CLOSE.values()}
PROSE = re.compile(
    r"\A(?:if|for|when|with|and|or|since|because|as|by|using|from|at|otherwise|so|then|else"
    r"|s\.?t|let|the|that|which|of|in)\b|\b(?:is|are|we|hence|thus|if|where)\b"
)
LABEL = re.compile(r"([a-zA-Z]|\\ell)(?:[+-]\d+|[+-][a-zA-Z])?")


# Between the rows and the cells of a matrix.
ROW, CELL = r"\rowmark", r"\cellmark"
_GRID = re.compile(
    r"\\begin\s*\{(\w*matrix|array)\}(?:(?!\\begin).)*?\\end\s*\{\1\}", re.S
)


def _marked(grid: re.Match[str]) -> str:
    text = re.sub(r"\\\\(?:\[[^\]]*\])?|\\cr(?![a-zA-Z])", rf" \{ROW} ", grid[0])
    return re.sub(r"(?<!\\)&", rf" \{CELL} ", text)


def tokens_of(text: str) -> list[str]:
    """Return the signs of a formula, without what prints nothing. Raises `Unclear`."""
    if r"\left." in text or r"\right." in text:
        raise Unclear("a value at a place")
    for pattern, by in _PLAIN:
        text = pattern.sub(by, text)
    if r"\rvert" not in text:  # a condition
        text = text.replace(r"\lvert", r"\mid ")
    text = _GRID.sub(_marked, text)
    text = _WORD.sub(r"\\text{\1}", text)
    text = WORD_BEFORE_BRACKET.sub(r"\\text{\g<word>}", text)
    text = _END.sub("", _NOTHING.sub(" ", text))
    found = _TOKEN.findall(text)
    if not found:
        raise Unclear("nothing")
    return found


def joined(tokens: list[str], words: frozenset[str]) -> list[str]:
    """Return the signs of a formula with one sign for each word of single letters."""
    found: list[str] = []
    for token in tokens:
        found.append(token)
        for word in words:
            if token == word[-1] and found[-len(word) :] == [*word]:
                found[-len(word) :] = [rf"\text{{{word}}}"]
                break
    return found


def mark_of(tokens: list[str]) -> int:
    """Return how many tokens the d of a derivative has; 0 if there is none."""
    return int(tokens[:1] in ([r"\partial"], ["d"], [r"\text{d}"]))


def bound_by(below: list[str]) -> Groups:
    """Return the letters over which a sum with these limits runs."""
    letters = [one for one in below if re.fullmatch(r"[a-zA-Z]|\\[a-zA-Z]+", one)]
    if not letters:
        return ()
    first = below[0]
    if not re.fullmatch(r"[a-zA-Z]|\\(?:tau|alpha|beta|ell|mu|nu)", first):
        raise Unclear("over what does the sum run?")
    found, rest = [first], below[1:]
    while len(rest) > 1 and rest[0] == "," and re.fullmatch("[a-zA-Z]", rest[1]):
        found.append(rest[1])
        rest = rest[2:]
    return tuple((one,) for one in found)


def groups_of(tokens: list[str]) -> Groups:
    """Return the indices that a subscript has."""
    if not tokens:
        raise Unclear("an empty subscript")
    if "," in tokens:
        groups, current = [], []
        for token in [*tokens, ","]:
            if token == ",":
                groups.append(tuple(current))
                current = []
            else:
                current.append(token)
        return tuple(groups)
    if tokens == ["i", "n"]:
        return (("in",),)  # a word
    if len(tokens) == 2 and all(re.fullmatch("[a-z]", one) for one in tokens):
        return tuple((one,) for one in tokens)
    if all(re.fullmatch("[a-zA-Z]", one) for one in tokens) and len(tokens) > 1:
        return (("".join(tokens),),)
    return (tuple(tokens),)


def macro(name: str, operands: frozenset[str]) -> str:
    """Return the name that stands for a command which the text does not define, such as
    that of its site: \\bx is \\mathbf{x}. "" if it may be a sign of LaTeX."""
    if name in _SWITCHES:
        return ""
    if bold := _BOLD_MACRO.fullmatch(name):
        inside = bold[1] if len(bold[1]) == 1 else rf"\{bold[1]}"
        return rf"\mathbf{{{inside}}}"
    return rf"\text{{{name}}}" if name in operands else ""


_KNOWN = {
    *(one[1:] for one in COMPARED | BARS | NORMS | DOTS | TOPS | TIMES | EACH),
    *(one[1:] for one in CLOSE if one[0] == "\\"),
    *(one[1:] for one in CLOSED if one[0] == "\\"),
    *(FACES | CALLS | NAMED | {*BIGS, *_SWITCHES}),
}
_ENDED = {"", ",", ";", "=", *CLOSED - {"}"}}
_ABOVE = re.compile(r"T|\\top|\\intercal|\{(?:T|-1|\\top|\\intercal|\\math\w+\{T\})\}")


def operands_of(formulas: Iterable[str]) -> frozenset[str]:
    """Return the commands, other than those that are known here, that occur in some
    formula where only an operand can: behind no ^ or _, and at its end, before a
    closing bracket or a transpose, or below an accent. A sign between operands, or
    before one, never occurs so."""
    found: set[str] = set()
    for formula in formulas:
        if "\\" not in formula:
            continue
        try:
            tokens = tokens_of(formula)
        except Unclear:
            continue
        for at, token in enumerate(tokens):
            name = token[1:]
            if token[0] != "\\" or not name.isalpha() or name in _KNOWN | found:
                continue
            is_bracket = name[0] == "r" and rf"\l{name[1:]}" in tokens
            if not is_bracket and _is_operand(tokens, at):
                found.add(name)
    return frozenset(found)


def _is_operand(tokens: list[str], at: int) -> bool:
    before = ["", "", *tokens][at : at + 2]
    following = [*tokens, ""][at + 1]
    if following == "^":
        return _ABOVE.match("".join(tokens[at + 2 :])) is not None
    if before[1] == "{":
        return before[0][1:] in FACES and following == "}"
    return before[1] not in ("^", "_") and following in _ENDED
