"""Write a text's mathematics in the notation of derivations where its meaning is
unambiguous; elsewhere, say what would help."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lark import Tree

from backpass.derivation.document import Text
from backpass.derivation.names import Scope
from backpass.derivation.parse import Part, Unreadable, parse


def rewritten(text: Text, scope: Scope, losses: Iterable[str]) -> Text:
    """Return the text in the notation of derivations, where that is certain."""
    names = {*scope.variables, *scope.dimensions}
    if "T" not in names:
        text = text.replaced(_TRANSPOSED, r"^\\top ")
    for name in losses:
        end = "" if name.endswith("}") else "(?![a-zA-Z])"
        pattern = rf"(?<!\\mathcal\{{)(?<![a-zA-Z\\]){re.escape(name)}{end}"
        text = text.replaced(re.compile(pattern), r"\\mathcal{L}")
    text = text.replaced(_BARS, r"\\lVert \1 \\rVert")
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
_TRANSPOSED = re.compile(
    r"\^\s*(?:T(?![a-zA-Z])|\{\s*(?:T|\\intercal|\\(?:mathsf|mathrm|text|top)\s*\{T\})\s*\}"
    r"|\\intercal(?![a-zA-Z])|\\(?:mathsf|mathrm)\s*(?:\{T\}|\s+T(?![a-zA-Z])))"
)
# ‖x‖ with the same sign on both sides.
_BARS = re.compile(
    r"(?<!\\left)(?<!\\right)\\\|((?:(?!\\\|).)*?)(?<!\\right)\\\|", re.S
)
_BELOW = re.compile(  # \partial_{x_i} \\mathcal{L}
    r"\\partial_\s*\{((?:[^{}]|\{[^{}]*\})*)\}\s*\\mathcal\s*\{L\}"
)
_NABLA = re.compile(
    r"\\nabla_\s*(?:\{\s*(\\?[a-zA-Z]+)\s*(_\s*(?:\w|\{[^{}]*\}))?\s*\}|([a-zA-Z]))"
    r"\s*\\mathcal\s*\{L\}"
)
DERIVATIVE = re.compile(r"\\(?:partial|nabla|bar|overline|dot|mathcal)(?![a-zA-Z])")
MEMBERSHIP = re.compile(
    r"\\in\s*\\mathbb\s*(?:\{R\}|R)(?:\s*\^\s*(?:\w|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}))?\s*$"
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
