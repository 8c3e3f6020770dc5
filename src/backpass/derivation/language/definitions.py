"""Add what a line defines or assumes to a scope."""

from __future__ import annotations

from lark import Token

from backpass.derivation.language.analysis import Analysis
from backpass.derivation.language.names import (
    Scope,
    Shape,
    Variable,
    gradient_of,
    in_words,
)
from backpass.derivation.language.parse import Line, Unreadable, parse
from backpass.derivation.language.sequences import (
    assume_zero,
    promise,
    shape_of_sequence,
)
from backpass.derivation.language.written import (
    accent_and_name,
    subscripts_of,
    with_label,
)


def define(scope: Scope, line: Line) -> None:
    """Add the definition of a `let` line to the scope. Raises `Unreadable`.

    Its left side is a name, or a name with one letter for each index.
    """
    assert line.left is not None and line.right is not None
    left = parse(line.left, "moved")
    accent, name = accent_and_name(left)
    tokens = subscripts_of(left)
    if tokens and all(
        token.isdigit() or scope.is_label(token) or _is_name(scope, name, token)
        for token in tokens
    ):
        name, tokens = with_label(name, tokens), []  # f_0 is a name of its own
    letters = [str(token) for token in tokens]
    if accent:
        raise Unreadable(rf"\{accent} is derived, not defined", line.left)
    if len(set(letters)) < len(letters):
        raise Unreadable("an index occurs twice on the left of a definition", line.left)
    if any(token.isdigit() or token.type in ("WORD", "ALL") for token in tokens):
        raise Unreadable(
            "a definition is for all elements: its indices must be letters, or only "
            "numbers, which are part of the name",
            line.left,
        )
    if line.conditions:
        raise Unreadable("a definition cannot have conditions", line.conditions)
    if letters:
        promise(scope, line.right)
    analysis = Analysis(scope)
    analysis.is_definition = True
    analysis.begin(line.left, left)
    gradient = scope.variables.get(gradient_of(name))
    indices = [analysis.index(token) for token in tokens]
    for index, side in zip(indices, gradient.axes if gradient else (), strict=False):
        index.runs_over(side)
    (definition,) = analysis.run([line.right])
    for letter in definition.free:
        if letter not in letters:
            raise Unreadable(f"the index {letter} is only on the right", line.right)
    sides: Shape = ()
    for letter, index in zip(letters, indices, strict=True):
        if index.dimension is None:
            raise Unreadable(
                f"what does {letter} run over? Say range {letter} = 1, …, n, or declare "
                f"the shape of {gradient_of(name)}",
                line.left,
            )
        sides += (index.dimension,)
    if len(letters) > 1 and definition.shape:
        raise Unreadable(
            "the right side is a matrix, but the left side is an element", line.right
        )
    shape = shape_of_sequence(sides, definition.shape) if letters else definition.shape
    if letters and definition.shape:
        scope.slices[name, "i"] = definition.shape
    for promised, index in analysis.promised.items():
        variable = scope.variables[promised]
        if index.dimension is None:
            raise Unreadable(
                f"how long is {promised}? Say range t = 1, …, T", line.right
            )
        variable.shape = (index.dimension, *variable.shape[1:])
    if gradient and gradient.shape != shape:
        message = (
            f"this is {in_words(shape)}, but {gradient_of(name)} is declared as "
            f"{in_words(gradient.shape)}"
        )
        raise Unreadable(message, line.left)
    backward = scope.is_backward(definition)
    positive = definition.tree.data == "root"  # so that \sqrt{s^2} is s
    scope.add(
        Variable(
            name, shape, "defined", positive, tuple(letters), definition, backward
        ),
        line.left,
    )


def _is_name(scope: Scope, name: str, subscript: Token) -> bool:
    """Whether a subscript is a name declared above, as in \\mu_x, below one that is not
    declared and so has no elements."""
    meaning = scope.other_meaning(str(subscript))
    return meaning == "is a name declared above" and name not in scope.variables


def assume(scope: Scope, line: Line) -> None:
    """Add what a line assumes of constants to the scope. Raises `Unreadable`."""
    assert line.left is not None and line.right is not None
    if line.conditions:
        raise Unreadable("an assumption cannot have conditions", line.conditions)
    if assume_zero(scope, line):
        return
    analysis = Analysis(scope)
    left, right = analysis.run([line.left, line.right])
    if left.shape != right.shape and line.right.text != "0":
        raise Unreadable(
            f"{in_words(left.shape)} is not {in_words(right.shape)}", line.right
        )
    for expression in (left, right):
        for reference in expression.used:
            variable = scope.variables.get(reference.name)
            if reference.accent or (variable and variable.kind != "constant"):
                raise Unreadable(
                    f"an assumption may use only constants: declare constant {reference.name}",
                    expression.part,
                )
    if more := sorted(right.free - left.free):
        raise Unreadable(f"the index {more[0]} is only on the right", line.right)
    scope.assumptions.append((left, right, analysis.dimensions_of(left)))
