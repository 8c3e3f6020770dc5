"""Write a text's mathematics in the notation of derivations where its meaning is
unambiguous; elsewhere, say what would help."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lark import Tree

from backpass.derivation.language.names import Expression, Scope
from backpass.derivation.language.parse import Part, Unreadable, parse
from backpass.derivation.text.passages import Text


def rewritten(text: Text, scope: Scope, losses: Iterable[str]) -> Text:
    """Return the text in the notation of derivations, where that is certain."""
    names = {*scope.variables, *scope.dimensions}
    text = text.replaced(LABEL)
    for pattern, by in _CASES:
        text = text.replaced(pattern, by)
    if "T" not in names:
        text = text.replaced(_TRANSPOSED, r"^\\top ")
        text = text.replaced(_INVERSE_TRANSPOSED, r"^{-\\top}")
    if "d" not in names and "d" not in scope.factors:
        text = text.replaced(_UPRIGHT_D, "d")
        text = text.replaced(_D_BY_D, r"\\frac{\\partial \1}{\\partial \2}")
        text = text.replaced(_D_BY, r"\\frac{\\partial}{\\partial \1}")
    for name in losses:
        end = "" if name.endswith("}") else "(?![a-zA-Z])"
        loss = rf"(?<!\\mathcal\{{)(?<![a-zA-Z\\]){re.escape(name)}{end}"
        text = text.replaced(re.compile(loss), r"\\mathcal{L}")
    text = text.replaced(_ACCENT, r"\\\1{\2}\3")
    text = text.replaced(_BARS, r"\\lVert \1 \\rVert")
    text = text.replaced(_NABLA_BELOW, r"\\nabla_{\1}")
    text = text.replaced(_BELOW, r"\\frac{\\partial \\mathcal{L}}{\\partial \1}")
    return text.replaced(_NABLA, r"\\bar{\1\3}\2")


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


def depends_on_layout(expression: Expression) -> bool:
    """Whether the shape of an expression may depend on the layout of a derivative."""
    derivatives = {"partial", "jacobian", "nabla", "nabla_of"}
    return bool(_GRADIENT.search(expression.part.text)) or any(
        node.data in derivatives for node in expression.tree.iter_subtrees()
    )


def not_an_equation(text: str) -> str:
    for sign in _RELATIONS:
        if re.search(rf"{sign}(?![a-zA-Z])", text):
            return (
                f"only = is judged, and this has {sign.replace(chr(92) * 2, chr(92))}"
            )
    return "there is no = in it, so there is nothing to judge"


_RELATIONS = (
    r"\\approx", r"\\simeq", r"\\equiv", r"\\propto", r"\\le", r"\\leq", r"\\ge", r"\\geq",
    r"\\to", r"\\rightarrow", r"\\implies", r"\\Rightarrow", r"\\sim",
)  # fmt: skip
_BRACED_OR = r"(?:[^{}\\]|\\.|\{(?:[^{}]|\{[^{}]*\})*\})+"
_NO_INDEX = r"(?!\s*[_^'])\s*"
_TRANSPOSED = re.compile(
    r"(?<!\\mathbb\{R\})\^\s*(?:T(?![a-zA-Z])|\{\s*(?:T|\\intercal|\\(?:mathsf|mathrm|text|top)\s*\{T\})\s*\}"
    r"|\\intercal(?![a-zA-Z])|\\(?:mathsf|mathrm)\s*(?:\{T\}|\s+T(?![a-zA-Z])))"
)
_INVERSE_TRANSPOSED = re.compile(
    r"\^\s*\{\s*-\s*(?:T|\\intercal|\\(?:mathsf|mathrm|text|top)\s*\{T\})\s*\}"
)
# ‖x‖ with the same sign on both sides.
_BARS = re.compile(
    r"(?<!\\left)(?<!\\right)\\\|((?:(?!\\\|).)*?)(?<!\\right)\\\|", re.S
)
LABEL = re.compile(  # \text{In words: }
    r"\A\s*\\(?:text(?:rm|bf|it|normal)?|mbox)\s*\{[^{}]*:\s*\}"
)
_CASES = (
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
# \frac{d y}{d x}, the derivative through all definitions, as \partial is.
_UPRIGHT_D = re.compile(
    r"(?<=\{)\s*\\(?:mathrm|text|operatorname|rm)\s*(?:\{d\}|d(?![a-zA-Z]))"
)
_D_BY_D = re.compile(
    rf"\\[dt]?frac\s*\{{\s*d{_NO_INDEX}({_BRACED_OR})\}}\s*\{{\s*d{_NO_INDEX}({_BRACED_OR})\}}"
)
_D_BY = re.compile(
    rf"\\[dt]?frac\s*(?:\{{\s*d\s*\}}|d)\s*\{{\s*d{_NO_INDEX}({_BRACED_OR})\}}"
)
# \dot{Q_m} as \dot{Q}_m.
_ACCENT = re.compile(
    r"\\(bar|overline|dot|hat|widehat|tilde|underline)\s*"
    r"\{\s*(\\?[a-zA-Z]+|\\[a-z]+\s*\{[^{}]*\})\s*(_\s*(?:\w|\{[^{}]*\}))\s*\}"
)
_BELOW = re.compile(  # \partial_{x_i} \mathcal{L}
    r"\\partial_\s*\{((?:[^{}]|\{[^{}]*\})*)\}\s*\\mathcal\s*\{L\}"
)
_NABLA_BELOW = re.compile(  # \nabla_x and \nabla_\theta, as \nabla_{x}
    r"\\nabla\s*_\s*(?=[a-zA-Z\\])(\\(?:mathbf|boldsymbol|underline)\s*\{[^{}]*\}|\\[a-zA-Z]+|[a-zA-Z])\s*"
)
_NABLA = re.compile(
    r"\\nabla_\s*(?:\{\s*(\\?[a-zA-Z]+)\s*(_\s*(?:\w|\{[^{}]*\}))?\s*\}|([a-zA-Z]))"
    r"\s*\\mathcal\s*\{L\}"
)
# What may be a gradient or a loss, and is a row in some texts and a column in others.
_GRADIENT = re.compile(r"\\(?:bar|overline|dot|mathcal)(?![a-zA-Z])")
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
_REASON = r"[ (]*(?:by|since|as|because|using|from) "
PROSE = re.compile(
    rf"\s*(?:\((?:\s*{_TEXT}{_WORDS})+\s*\)|{_TEXT}{_REASON}{_WORDS})[\s.,;]*"
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
