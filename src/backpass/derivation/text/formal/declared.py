"""Whether the rules for any names hold for what comments declare.

These rules know a name by its letter: a capital letter is a matrix, and a lower-case
letter beside one is a column. A formula in which a declared name is of another kind, or
has a meaning that a comment gives it, is not judged by them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from backpass.derivation.language.names import axes_of, sliced
from backpass.derivation.language.parse import Line, Part, Unreadable, parse
from backpass.derivation.language.written import canonical
from backpass.derivation.text.formal.kinds import (
    IDENTITY,
    is_array,
    is_matrix,
    is_of_numbers,
    is_scalar,
    is_vector,
)
from backpass.derivation.text.formal.trees import Node, Unclear, number
from backpass.derivation.text.knowledge import Knowledge, Known

Axes = tuple[str, ...]
# Lines that give derivatives a meaning of their own.
_OF_SLOPES = ("layout", "direct", "applied", "range")
_LETTER = re.compile(r"\\[a-zA-Z]+(?:\{\\?[a-zA-Z]+\})?|[a-zA-Z]")
_ROW, _SLICE = "row", "slice"


def of_comments(known: Knowledge) -> tuple[Line, ...]:
    """Return the lines that comments add at a place."""
    return tuple(
        line
        for line in known.now.lines
        if line in known.commented and line.kind != "broadcast"
    )


class Declared:
    """The names that comments declare or define at a place of a text."""

    def __init__(self, known: Knowledge) -> None:
        self._known: Known = known.now
        lines = of_comments(known)
        self.constant: set[str] = set()
        self._names: set[str] = set()
        for line in lines:
            if line.kind in ("given", "constant", "random") and line.right is not None:
                names = _declared_in(line)
                self._names |= names
                self.constant |= names if line.kind == "constant" else set()
        # Letters to which a comment gives a value.
        self.defined = {
            letter
            for line in lines
            if line.kind in ("let", "function") and line.left is not None
            for letter in _LETTER.findall(re.split(r"[_^(]", line.left.text)[0])
        }
        self._moves_slopes = any(line.kind in _OF_SLOPES for line in lines)
        self._found: dict[Node, Axes | None] = {}

    def __bool__(self) -> bool:
        return bool(self._names or self.defined)

    # ---- one name --------------------------------------------------------------------

    def axes(self, node: Node) -> Axes | None:
        """Return the axes of a declared name with its indices, which begin with "row"
        for a row, and with "slice" for a slice; None if it is not declared. Raises
        `Unclear` if that is uncertain."""
        if node not in self._found:
            self._found[node] = self._axes(node)
        return self._found[node]

    def _axes(self, node: Node) -> Axes | None:
        scope, letter = self._known.scope, node.value
        same = {name for name in self._names if _letter_of(name) == letter}
        if not same or node.sups in (("*",), (r"\ast",), (r"\star",)):
            return None
        subs = ", ".join(" ".join(group) for group in node.subs)
        text = f"{letter}_{{{subs}}}" if subs else letter
        text += "".join(f"^{{{one}}}" for one in node.sups)
        try:
            found = scope.resolve(parse(Part(text, 0, text), "moved"))
        except Unreadable:
            found = None
        if found is not None and found.kind == "variable" and found.name in same:
            variable = scope.variables[found.name]
            if len(found.indices) > len(variable.axes):
                raise Unclear("too many indices")
            if found.indices:
                rest = sliced(variable.axes, found.indices)[1]
                return (_SLICE, *rest) if rest else ()
            row = variable.shape[:1] == ("1",)
            return (_ROW, *variable.axes) if row else variable.axes
        if letter in same or letter in scope.variables:
            raise Unclear("a declared name with other indices")
        shapes = {axes_of(scope.variables[name].shape) for name in same}
        if len(shapes) > 1 or not subs:
            raise Unclear("names that differ in their labels")
        return shapes.pop()  # as its neighbours: x_{k-1} beside x_k

    def marked(self, tree: Node | None) -> Node | None:
        """Return a formula in which the declared numbers are known to be numbers."""
        if tree is None or not self._names:
            return tree
        changed = tree.mapped(lambda part: self.marked(part) or part)
        try:
            is_number = changed.kind == "name" and self.axes(changed) == ()
        except Unclear:
            is_number = False
        return replace(changed, counts=True) if is_number else changed

    def is_array(self, node: Node) -> bool:
        """Whether a name is declared as an array. Raises `Unclear`."""
        return node.kind == "name" and bool(self.axes(node))

    def has_array(self, trees: Iterable[Node]) -> bool:
        """Whether formulas have a name that is declared as an array."""
        return any(self.is_array(node) for tree in trees for node in tree.walk())

    def sign(self, node: Node) -> str | None:
        """Return "positive" if a declared number is, "" if it may be negative; None if
        the name is not declared."""
        same = {name for name in self._names if _letter_of(name) == node.value}
        variables = self._known.scope.variables
        if not same:
            return None
        return "positive" if all(variables[one].positive for one in same) else ""

    # ---- formulas --------------------------------------------------------------------

    def fit(self, trees: Iterable[Node], columns: bool) -> bool:
        """Whether the rules hold for formulas; `columns` says whether lower-case
        letters are columns there."""
        if not self:
            return True
        try:
            return all(
                self._fits(node, columns) for one in trees for node in one.walk()
            )
        except Unclear:
            return False

    def _fits(self, node: Node, columns: bool) -> bool:
        names, scope = self._names, self._known.scope
        if node.kind == "name":
            return self._name_fits(node, columns)
        if node.kind == "apply":
            return node.parts[0].value not in {*scope.variables}
        if node.kind == "slope":
            return not self._moves_slopes and "d" not in names
        if node.kind == "big":
            return node.value != "E" or "E" not in names
        if node.kind == "top":
            time = scope.variables.get("T")
            return "T" not in scope.dimensions and (time is None or bool(time.shape))
        if node.kind == "quotient":
            return not is_matrix(node.parts[1], self.is_array)
        if node.kind == "power":
            return self._power_fits(node)
        if node.value.startswith("array"):
            letters = set(_LETTER.findall(node.value))
            return letters.isdisjoint(map(_letter_of, names))
        return True

    def _name_fits(self, node: Node, columns: bool) -> bool:
        bare = not node.subs and node.value in self._names
        if bare and (node.value == "e" or IDENTITY.fullmatch(node.value)):
            return False
        accent = re.match(r"\\(bar|dot)\{", node.value)
        if accent and accent[1] in self._known.accents:
            return False
        if node.value in self.defined:
            return False
        axes = self.axes(node)
        if node.value == r"\delta" and axes is not None and len(node.subs) == 2:
            return False
        if not axes:
            return True
        if is_scalar(node) or len(axes) > 2 + (axes[0] in (_ROW, _SLICE)):
            return False
        if len(axes) == 1:  # a column
            return is_vector(node) or is_array(node)
        if is_vector(node):
            return axes[0] == _SLICE or (axes[0] == _ROW and not columns)
        return is_array(node)

    def _power_fits(self, node: Node) -> bool:
        base, exponent = node.parts
        if exponent == number(-1) or exponent.kind == "minus":
            return not self._is_thin(base)
        if base.kind == "name" and self.is_array(base):
            whole = exponent.kind == "number" and exponent.value.isdigit()
            return whole and not self._is_thin(base)
        return not (is_of_numbers(base) and self.has_array([base]))

    def _is_thin(self, node: Node) -> bool:
        """Whether a name, or the product with which a formula ends, is not a square
        matrix."""
        if node.kind != "name" or not self.is_array(node):
            return False
        axes = self.axes(node) or ()
        return len(axes) != 2 or axes[0] != axes[1]


def _declared_in(line: Line) -> set[str]:
    assert line.right is not None
    try:
        declarations = parse(line.right, "declarations").children
    except Unreadable:
        return set()
    return {canonical(name) for one in declarations for name in one.children[:-2]}


def _letter_of(name: str) -> str:
    """Return a name without its labels."""
    return re.split(r"[_^]", name, maxsplit=1)[0]
