"""Whether a decimal number is the value of a formula, rounded."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from backpass.derivation.text.formal.reader import read_formula
from backpass.derivation.text.formal.reading import Manner
from backpass.derivation.text.formal.trees import Node, Unclear

_DECIMAL = re.compile(r"\s*(-?)\s*(\d+(?:\{,\}\d{3})*)(?:\.(\d+))?[\s.,;]*")
_CALLS: dict[str, Callable[[float], float]] = {
    "log": math.log,
    "sin": math.sin,
    "cos": math.cos,
    "tanh": math.tanh,
}


def is_rounded(formula: str, number: str) -> bool:
    """Whether a decimal number is the value of a formula of numbers, rounded to the
    digits that it has. Raises `Unclear` if the formula has names."""
    match = _DECIMAL.fullmatch(number)
    if match is None:
        return False
    sign, whole, digits = match.groups()
    shown = float(f"{sign}{whole.replace('{,}', '')}.{digits or 0}")
    value = _value(read_formula(formula, Manner(lambda name: False)))
    return abs(value - shown) <= 0.5001 * 10.0 ** -len(digits or "")


def _value(node: Node) -> float:
    if node.kind == "number":
        above, _, below = node.value.partition("/")
        return int(above) / int(below or 1)
    if node == Node("name", "e"):
        return math.e
    if node == Node("name", r"\pi"):
        return math.pi
    values = [_value(one) for one in node.parts]
    if node.kind == "minus":
        return -values[0]
    if node.kind == "sum":
        return sum(values)
    if node.kind == "product":
        return math.prod(values)
    if node.kind == "quotient":
        return values[0] / values[1]
    try:
        if node.kind == "power":
            return math.pow(*values)
        if node.kind == "call" and not node.sups and node.value in _CALLS:
            return _CALLS[node.value](values[0])
    except ValueError as error:
        raise Unclear("a value that is not a number") from error
    raise Unclear("not a number")
