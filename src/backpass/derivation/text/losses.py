"""A loss that is written as a function of declared names: \\mathcal{L}(w) is its value.

It is defined as a number, so that derivatives go through the definitions in it.
"""

from __future__ import annotations

import re

from backpass.derivation.language.functions import is_function
from backpass.derivation.language.names import LOSS, Scope
from backpass.derivation.language.parse import Part, Unreadable, parse
from backpass.derivation.text.passages import Text

_HEAD = re.compile(
    rf"\s*({re.escape(LOSS)})\s*(?:\\left\s*)?\(([^()=]*)(?:\\right\s*)?\)\s*"
)


def arguments_of_loss(head: str, scope: Scope) -> str:
    """Return the arguments of \\mathcal{L} on the left side of its definition, as
    written; "" if it is not defined there as a function of declared names."""
    match = _HEAD.fullmatch(head)
    part = Part(head, 0, head.strip())
    if match is None or LOSS in scope.variables or not is_function(part):
        return ""
    is_declared = all(_is_declared(one, scope) for one in match[2].split(","))
    return match[2].strip() if is_declared else ""


def _is_declared(argument: str, scope: Scope) -> bool:
    part = Part(argument, 0, argument.strip())
    try:
        found = scope.resolve(parse(part, "moved"))
    except Unreadable:
        return False
    return found is not None and found.kind == "variable" and not found.indices


def without_arguments(text: Text, arguments: str) -> Text:
    """Return a text with \\mathcal{L} for \\mathcal{L}(w), and with the gradient by w
    for \\nabla \\mathcal{L}(w) and \\nabla \\mathcal{L}."""
    inside = re.sub(r"(?:\\ )+", r"\\s*", re.escape(" ".join(arguments.split())))
    value = rf"{re.escape(LOSS)}\s*(?:\\left\s*)?\(\s*{inside}\s*(?:\\right\s*)?\)"
    if "," not in arguments:
        gradient = rf"\\nabla\s*(?:{value}|{re.escape(LOSS)}(?!\s*[(^_]))"
        by = arguments.replace("\\", "\\\\")
        text = text.replaced(re.compile(gradient), rf"\\nabla_{{{by}}} {_LOSS}")
        square = r"\s*\^\s*(?:2|\{\s*2\s*\})"
        hessian = gradient.replace(r"\nabla", rf"\nabla{square}", 1)
        text = text.replaced(re.compile(hessian), rf"\\nabla^2_{{{by}}} {_LOSS}")
    return text.replaced(re.compile(value), _LOSS)


_LOSS = LOSS.replace("\\", "\\\\")
