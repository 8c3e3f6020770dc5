"""Write a text's mathematics in the notation of derivations where its meaning is
unambiguous; elsewhere, say what would help."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from lark import Tree

from backpass.derivation.language.brackets import outside
from backpass.derivation.language.functions import WORD_BEFORE_BRACKET, WORDS
from backpass.derivation.language.names import Scope
from backpass.derivation.language.parse import Part, Unreadable, parse
from backpass.derivation.text.columns import as_row
from backpass.derivation.text.displays import IMPLIES
from backpass.derivation.text.losses import without_arguments
from backpass.derivation.text.marks import usual
from backpass.derivation.text.passages import Text
from backpass.derivation.text.reach import with_reach
from backpass.derivation.text.reasons import OTHER_OVER_EQUAL
from backpass.derivation.text.relations import chain


def rewritten(
    text: Text, scope: Scope, losses: Iterable[str], arguments: str = ""
) -> Text:
    """Return the text in the notation of derivations, where that is certain. The loss
    may be written as a function of its `arguments`."""
    names = {*scope.variables, *scope.dimensions}
    text = usual(text.replaced(LABEL))
    for pattern, by in _CASES:
        text = text.replaced(pattern, by)
    time = scope.variables.get("T")
    if "T" not in names or (time is not None and time.shape):  # no power is an array
        text = text.replaced(_TRANSPOSED, r"^\\top ")
        text = text.replaced(_INVERSE_TRANSPOSED, r"^{-\\top}")
    text = as_row(text)
    text = text.replaced(_WORD_E, r"\\mathbb{E}")
    text = with_functions(_with_two_indices(text, scope), scope)
    if "E" not in names:
        text = text.replaced(_LETTER_E, r"\\mathbb{E}")
        if scope.chances.random:
            text = text.replaced(_E_OF, r"\\mathbb{E}")
    text = text.replaced(_OVER, r"\\mathbb{E}_{\1}")
    if "e" not in names:
        text = text.replaced(_UPRIGHT_E, "e")
    text = _with_indices_first(text, names)
    if "d" not in names and "d" not in scope.factors:
        text = text.replaced(_UPRIGHT_D, "d")
        text = text.replaced(_D2_BY, r"\\frac{\\partial^2\1}{\\partial \2}")
        text = text.replaced(_D_BY_D, r"\\frac{\\partial \1}{\\partial \2}")
        text = text.replaced(_D_BY, r"\\frac{\\partial}{\\partial \1}")
    if r"\delta" not in names:
        text = text.replaced(_VARIATION, r"\\frac{\\partial \1}{\\partial \2}")
        text = text.replaced(_VARIATION_BY, r"\\frac{\\partial}{\\partial \1}")
    for name in losses:
        end = "" if name.endswith("}") else "(?![a-zA-Z])"
        loss = rf"(?<!\\mathcal\{{)(?<![a-zA-Z\\]){re.escape(name)}{end}"
        text = text.replaced(re.compile(loss), r"\\mathcal{L}")
    for name in scope.dimensions:
        length = (
            rf"(?<![a-zA-Z\\_^])({re.escape(name)}(?:\s*\^\s*[0-9])?)(?=\s*{_OPENS})"
        )
        text = text.replaced(re.compile(length), r"\1\\,")
    if arguments:
        text = without_arguments(text, arguments)
    text = text.replaced(_ACCENT, r"\\\1{\2}\3")
    text = text.replaced(_BARS, r"\\lVert \1 \\rVert")
    text = text.replaced(_NABLA_SQUARED, r"\\nabla^2_{\1\2}")
    text = text.replaced(_NABLA_BELOW, r"\\nabla_{\1}")
    text = text.replaced(_NABLA_OF_ONE, r"\1 \\left(\2\\right)")
    text = text.replaced(_BELOW, r"\\frac{\\partial \\mathcal{L}}{\\partial \1}")
    text = text.replaced(_NABLA, r"\\bar{\1\3}\2")
    return _with_brackets(with_reach(text, scope))


def with_functions(text: Text, scope: Scope) -> Text:
    """Return a text with \\exp(x) for exp(x), unless it may be a product of names."""
    names = {*scope.variables, *scope.dimensions, *scope.functions}
    for match in reversed([*WORD_BEFORE_BRACKET.finditer(text.characters)]):
        word = match["word"]
        if WORDS[word] and not names.issuperset(word):
            made = Text(WORDS[word], (text.origins[match.start()],) * len(WORDS[word]))
            text = text[: match.start()] + made + text[match.end() :]
    return text


def _with_two_indices(text: Text, scope: Scope) -> Text:
    """Return a text with x_{i, 1} for x_{i1}, if x has two indices."""
    for name, variable in scope.variables.items():
        if len(variable.axes) == 2 and "_" not in name:
            end = "" if name.endswith("}") else "(?![a-zA-Z])"
            element = (
                rf"(?<![a-zA-Z\\])({re.escape(name)}{end}\s*_\s*\{{)"
                r"\s*(?:([a-z])([0-9])|([0-9])([a-z]))\s*\}"
            )
            text = text.replaced(re.compile(element), r"\1\2\4, \3\5}")
    return text


def _with_indices_first(text: Text, names: set[str]) -> Text:
    """Return a text with u_k^\\top for u^\\top_k, if u_k is a name."""
    for match in reversed([*_TOP_FIRST.finditer(text.characters)]):
        name, label = match[1], match[2].strip("{} ")
        if f"{name}_{{{label}}}" in names:
            new = rf"{name}_{{{label}}}^\top "
            made = Text(new, (text.origins[match.start()],) * len(new))
            text = text[: match.start()] + made + text[match.end() :]
    for match in reversed([*_LAYER_FIRST.finditer(text.characters)]):
        name, written, label = match.groups()
        layer = "".join(written.split())
        if re.fullmatch(r"\{(?:\w|\\[a-z]+)\}", layer):  # {L}
            layer = layer[1:-1]
        if f"{name}^{layer}" in names:  # W_{jk}^L for W^L_{jk}
            new = rf"{name}_{label}^{layer} "
            made = Text(new, (text.origins[match.start()],) * len(new))
            text = text[: match.start()] + made + text[match.end() :]
    return text


def _with_brackets(text: Text) -> Text:
    """Return a text with brackets round a product of which a derivative is taken:
    \\frac{\\partial (a^\\top x)}{\\partial x}."""
    for match in reversed([*_OF_PRODUCT.finditer(text.characters)]):
        first, last = match.span(1)
        if not match[1].strip(" {}"):
            continue  # \frac{\partial }{\partial x}
        if _LOOSE.search("".join(_outside(match[1]))) or _is_read(match[0]):
            continue
        opening, closing = (
            Text(one, (text.origins[first],) * len(one))
            for one in (r"\left(", r"\right)")
        )
        text = text[:first] + opening + text[first:last] + closing + text[last:]
    return text


def _outside(text: str) -> Iterator[str]:
    """Yield the characters outside all brackets, commands as one."""
    for at in outside(text):
        found = re.match(r"\\[a-zA-Z]+|.", text[at:], re.S)
        yield found[0] if found else ""


def _is_read(derivative: str) -> bool:
    try:
        parse(Part(derivative, 0, derivative))
    except Unreadable:
        return False
    return True


def parsed(part: Part) -> Tree:
    """Parse a member. Its error says what would help, if that is known."""
    try:
        return parse(part)
    except Unreadable as error:
        at = part.text[error.position :].lstrip()
        if at.startswith(("(", "_")) and (
            word := _WORD_BEFORE.search(part.text[: error.position])
        ):
            at = word[0]
        for start, help_ in _HELP:
            if re.match(start, at):
                raise Unreadable(help_, part, error.position) from None
        raise


def claims_nothing(text: str) -> bool:
    """Whether a formula without = at its top level has neither a relation nor words."""
    for _ in range(3):
        text = _SCRIPT.sub(" ", text)
    return not _CLAIM.search(text)


def only_equality(sign: str) -> str:
    """Say that a relation is not judged."""
    if OTHER_OVER_EQUAL.fullmatch(sign):
        return (
            f"what does {sign} claim? Only = is judged, also below a label or a reason"
        )
    return f"only = is judged, so the two sides of {sign} are not compared"


def not_an_equation(text: str) -> str:
    """Say why a formula without = is not judged."""
    if signs := [link.sign for link in chain(Text(text, (0,) * len(text)))[1:]]:
        return only_equality(signs[0])
    if match := IMPLIES.search(text):
        return f"only = is judged, and this has {match[0]}"
    return "there is no = in it, so there is nothing to judge"


_LAW = r"(?:_\s*(?:\{(?:[^{}]|\{[^{}]*\})*\}|\\?[a-zA-Z]+)\s*)?"
_LETTER_E = re.compile(  # E[…]
    rf"(?<![a-zA-Z\\{{_^])E(?=\s*{_LAW}(?:\\(?:left|[bB]igg?l?)\s*)?\[)"
)
_E_OF = re.compile(_LETTER_E.pattern.replace(r"\[)", r"\()"))  # E(…)
_WORD_E = re.compile(
    r"\\(?:operatorname|mathrm|text|mathbf|mathsf)\s*\{E\}"
    rf"(?=\s*{_LAW}(?:\\(?:left|[bB]igg?l?)\s*)?[\[(])"
)
_OVER = re.compile(r"\\mathbb\s*\{E\}\s*_\s*([a-zA-Z]|\\[a-zA-Z]+)")
_SCRIPT = re.compile(r"[_^]\s*\{[^{}]*\}")
# A sign that relates two sides, also one in braces, or words, which may do so.
_CLAIM = re.compile(
    r"[=<>:]|\\(?:[a-zA-Z]*(?:eq|[aA]rrow)[a-zA-Z]*|n?(?:approx|cong|sim|subset|supset)"
    r"|asymp|ge|gets|gg|gtrsim|iff|implies|in|le|leadsto|lesssim|ll|mapsto|mathrel|mid"
    r"|models|ne|ni|not|notin|overset|parallel|perp|prec|propto|stackrel|succ|to|underset"
    r"|vdash|because|therefore|forall|exists)(?![a-zA-Z])"
    r"|\\(?:text[a-z]*|mbox|mathrm|intertext)\s*\{[^{}]*(?:\s|\\)[^{}]*\}|\s[a-zA-Z]{4,}\s"
)
_BRACED_OR = r"(?:[^{}\\]|\\.|\{(?:[^{}]|\{[^{}]*\})*\})+"
_NO_INDEX = r"(?!\s*[_^'])\s*"
_T_IN_BRACES = (
    r"(?:T|\\intercal|\\(?:mathsf|mathrm|mathbf|text(?:rm|sf|normal)?|top)\s*\{T\}"
    r"|\\(?:mathrm|mathsf|mathbf|rm|sf|bf)\s+T)\s*\}"
)
_TRANSPOSED = re.compile(
    rf"(?<!\\mathbb\{{R\}})\^\s*(?:T|\{{\s*{_T_IN_BRACES}"
    r"|\\intercal(?![a-zA-Z])|\\(?:mathsf|mathrm|mathbf|text(?:rm|sf|normal)?)\s*(?:\{T\}|\s+T(?![a-zA-Z])))"
)
_INVERSE_TRANSPOSED = re.compile(rf"\^\s*\{{\s*-\s*{_T_IN_BRACES}")
# ‖x‖ with the same sign on both sides.
_BARS = re.compile(
    r"(?<!\\left)(?<!\\right)\\\|((?:(?!\\\|).)*?)(?<!\\right)\\\|", re.S
)
LABEL = re.compile(  # \text{In words: }
    r"\A\s*\\(?:text(?:rm|bf|it|normal)?|mbox)\s*\{[^{}]*:\s*\}"
)
_IF = r"(?:if|for|when|where)?"
_CASES = (
    (  # \text{if $i = j$} and \text{i $\ne$ j}
        re.compile(rf"(?<=&)(\s*)\\text\s*\{{\s*{_IF}\s*\$([^$]*)\$\s*[.,;]?\s*\}}"),
        r"\1 \2",
    ),
    (
        re.compile(
            rf"(?<=&)(\s*)\\text\s*\{{\s*{_IF}\s*\b([a-zA-Z])\s*"
            r"\$\s*(=|<|>|\\[a-z]+)\s*\$\s*([a-zA-Z])\s*[.,;]?\s*\}"
        ),
        r"\1 \2 \3 \4",
    ),
    (  # \text{if i = j}
        re.compile(
            rf"(?<=&)(\s*)\\text\s*\{{\s*{_IF}\s*\b([a-zA-Z])\s*(=|<|>)\s*([a-zA-Z])"
            r"\s*[.,;]?\s*\}"
        ),
        r"\1 \2 \3 \4",
    ),
    (
        re.compile(r"\\(?:left)?\s*\\\{\s*\\begin\s*\{array\}\s*\{[^{}]*\}"),
        r"\\begin{cases}",
    ),
    (re.compile(r"\\end\s*\{array\}\s*\\right\b\s*\.?"), r"\\end{cases}"),
    (re.compile(r"(\\(?:begin|end)\{)[dr]?cases\*?\}"), r"\1cases}"),
    (
        re.compile(
            r"(?<=&)(\s|~|\\[,;: ]|\\q?quad(?![a-zA-Z]))*"
            r"\\(?:text(?:rm|normal)?|mbox|mathrm)\s*\{\s*(?:if|for|when|where)\s*\}"
        ),
        " ",
    ),
    (
        re.compile(
            r"\\(?:text(?:rm|normal)?|mbox|mathrm)\s*\{\s*(?:otherwise|else)\s*[.,;]?\s*\}"
        ),
        r"\\text{otherwise}",
    ),
    (re.compile(r"[.,;](?=\s*(?:\\\\|\\end\{cases\}))"), " "),
)
# A length before a bracket, as in n (n + 1), is a factor.
_OPENS = r"(?:\\left\s*|\\[bB]igg?l?\s*)?\("
# \frac{d y}{d x}, the derivative through all definitions, as \partial is.
_TOP_FIRST = re.compile(
    r"((?<![a-zA-Z\\])[a-zA-Z]|\\[a-zA-Z]+(?:\{[a-zA-Z]\})?)\s*\^\s*(?:\\top|\{\s*\\top\s*\})"
    r"\s*_\s*(\w|\{\s*\w+\s*\})"
)
_LAYER_FIRST = re.compile(
    r"((?<![a-zA-Z\\])[a-zA-Z]|\\[a-zA-Z]+(?:\{[a-zA-Z]\})?)\s*\^\s*([a-zA-Z0-9]"
    r"|\\ell(?![a-zA-Z])|\{\s*\(?\s*(?:\w|\\[a-z]+)\s*(?:[+-]\s*\d+\s*)?\)?\s*\})"
    r"\s*_\s*(\w|\{[^{}]*\})"
)
_UPRIGHT_E = re.compile(r"\\mathrm\s*(?:\{\s*e\s*\}|\s+e)(?=\s*\^)")
_OF_PRODUCT = re.compile(
    rf"\\[dt]?frac\s*\{{\s*\\partial(?![a-zA-Z])(?!\s*\^)\s*({_BRACED_OR})\}}\s*"
    rf"\{{\s*\\partial(?![a-zA-Z])\s*{_BRACED_OR}\}}"
)
_LOOSE = re.compile(r"[+\-=/,]|\\(?:partial|pm|mp|nabla)")
_UPRIGHT_D = re.compile(
    r"(?<=\{)\s*\\(?:mathrm|text|operatorname|rm)\s*(?:\{d\}|d(?![a-zA-Z]))"
)
_D_BY_D = re.compile(
    rf"\\[dt]?frac\s*\{{\s*d{_NO_INDEX}({_BRACED_OR})\}}\s*\{{\s*d{_NO_INDEX}({_BRACED_OR})\}}"
)
_D2_BY = re.compile(
    rf"\\[dt]?frac\s*\{{\s*d\s*\^\s*(?:2|\{{\s*2\s*\}})((?:{_BRACED_OR})?)\}}"
    rf"\s*\{{\s*d{_NO_INDEX}({_BRACED_OR})\}}"
)
_D_BY = re.compile(
    rf"\\[dt]?frac\s*(?:\{{\s*d\s*\}}|d)\s*\{{\s*d{_NO_INDEX}({_BRACED_OR})\}}"
)
# \frac{\delta f}{\delta x}, unless \delta has an index and so is Kronecker's.
_VARIATION = re.compile(
    rf"\\[dt]?frac\s*\{{\s*\\delta(?![a-zA-Z]){_NO_INDEX}({_BRACED_OR})\}}"
    rf"\s*\{{\s*\\delta(?![a-zA-Z]){_NO_INDEX}({_BRACED_OR})\}}"
)
_VARIATION_BY = re.compile(
    rf"\\[dt]?frac\s*\{{\s*\\delta\s*\}}\s*\{{\s*\\delta(?![a-zA-Z]){_NO_INDEX}({_BRACED_OR})\}}"
)
# \dot{Q_m} as \dot{Q}_m.
_ACCENT = re.compile(
    r"\\(bar|overline|dot|hat|widehat|tilde|widetilde|check|breve|mean|vec|underline)\s*"
    r"\{\s*(\\?[a-zA-Z]+|\\[a-z]+\s*\{[^{}]*\})\s*(_\s*(?:\w|\{[^{}]*\}))\s*\}"
)
_BELOW = re.compile(  # \partial_{x_i} \mathcal{L}
    r"\\partial_\s*\{((?:[^{}]|\{[^{}]*\})*)\}\s*\\mathcal\s*\{L\}"
)
_SQUARE = r"\^\s*(?:2|\{\s*2\s*\})"
_NABLA_SQUARED = re.compile(  # \nabla_x^2 and \nabla^2_x, as \nabla^2_{x}
    rf"\\nabla\s*(?:{_SQUARE}\s*_|_(?=\s*(?:\{{[^{{}}]*\}}|\\?[a-zA-Z]+)\s*{_SQUARE}))\s*"
    rf"(?:\{{([^{{}}]*)\}}|(\\[a-zA-Z]+|[a-zA-Z]))\s*(?:{_SQUARE})?"
)
_NABLA_BELOW = re.compile(  # \nabla_x and \nabla_\theta, as \nabla_{x}
    r"\\nabla\s*_\s*(?=[a-zA-Z\\])(\\(?:mathbf|boldsymbol|underline)\s*\{[^{}]*\}|\\[a-zA-Z]+|[a-zA-Z])\s*"
)
# A gradient of the whole term, which is a number times a trace or a norm.
_DEEP = (
    r"(?:[^{}()]|\{(?:[^{}]|\{[^{}]*\})*\}|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*?"
)
_NABLA_OF_ONE = re.compile(
    r"(\\nabla\s*_\s*\{[^{}]*\})\s*((?:[0-9]+\s*|\\[dt]?frac\s*(?:[0-9]{2}|\{\s*[0-9]+\s*\}\s*"
    r"\{\s*[0-9]+\s*\})\s*)?"
    rf"(?:\\operatorname\{{tr\}}\s*(?:\\left\s*)?\({_DEEP}\)"
    r"|\\lVert(?:(?!\\[lr]Vert).)*\\rVert(?:_\{?[2F]\}?)?\s*\^\s*(?:2|\{2\})))"
    r"(?=\s*(?:\Z|[=+\-,.;)\]}&]|\\right))",
    re.S,
)
_NABLA = re.compile(
    r"\\nabla_\s*(?:\{\s*(\\?[a-zA-Z]+)\s*(_\s*(?:\w|\{[^{}]*\}))?\s*\}|([a-zA-Z]))"
    r"\s*\\mathcal\s*\{L\}"
)
MEMBERSHIP = re.compile(
    r"\\in\s*\\mathbb\s*(?:\{R\}|R)(?:\s*\^\s*(?:\w|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}))?\s*$"
)
_FOR = r"(?:\\(?:text|mbox)\s*\{\s*(?:for|for all|where|with)\s*\}|\\forall)?\s*"
INDEX_RANGE = re.compile(  # j = 1, \dots, n
    rf"{_FOR}\(?\s*([a-zA-Z])\s*=\s*1\s*,\s*(?:2\s*,\s*)?(?:\\[cl]?dots|\.\.\.)\s*,?"
    r"(.*?)\)?\s*",
    re.S,
)
FOR_ALL = re.compile(  # \forall i, j
    r"(?:\\forall|\\(?:text|mbox)\s*\{\s*for (?:all|every|each)\s*\})\s*"
    r"[a-zA-Z](?:\s*,\s*[a-zA-Z])*"
)
# A remark in brackets, or a reason.
_TEXT = r"\\(?:text(?:rm|bf|it|normal)?|mbox)\s*\{"
_WORDS = r"[^{}$\\]*\}"
_REASON = r"[ (,]*(?:by|since|as|because|using|from|via) "
PROSE = re.compile(
    rf"\s*(?:\((?:\s*{_TEXT}{_WORDS})+\s*\)|{_TEXT}{_REASON}{_WORDS}"
    rf"|{_TEXT}\s*[(\[]{_WORDS}"
    rf"|{_TEXT}[ (]*(?:by|since|as|because|using|from)\s*\}}.*)[\s.,;]*",
    re.S,
)
CONDITION_WORDS = re.compile(
    r"\A\s*\(?\s*\\text\s*\{\s*(?:if|for|where|when|with|for all)\s*\}|[.,;]\s*\Z"
)
_WORD_BEFORE = re.compile(
    r"\\(?:text|operatorname|mathrm)\s*\{\w+\}\s*(?:\([^()]*\)\s*)?\Z"
)
ROUND = re.compile(r"\A\s*\(|\)\s*\Z")
_HELP = (
    (r"\\text|\\operatorname|\\mathrm|\\softmax", "this name cannot be read: write one letter, or a word as \\text{name}"),
    (r"\\nabla", r"a gradient of what, with respect to what? Write \frac{\partial \mathcal{L}}{\partial X}, or say which name is the loss: loss L"),
    (r"\\begin|&", "a matrix is read as a bmatrix or pmatrix"),
    (r"\\[cvdl]?dots", "dots are read in a sum or a matrix, before its last term"),
    (r"\\partial", r"a derivative is read as \frac{\partial y_j}{\partial x_i}"),
    (r"'", r"a prime is not read: write the derivative as \frac{\partial y}{\partial x}"),
    (r"\\quad|\\qquad", "text beside the equation cannot be read"),
)  # fmt: skip
