"""Declare random names: `random`, `independent`, `identical`, `mean`, and `variance`.

Nothing else is known of a random name. A name that is not declared to be random is a
constant to an expectation.
"""

from __future__ import annotations

import re

from backpass.derivation.language.analysis import Analysis
from backpass.derivation.language.names import Reference, Scope
from backpass.derivation.language.parse import (
    Contradicted,
    Line,
    Part,
    Unreadable,
    parse,
)
from backpass.derivation.language.written import accent_and_name, subscripts_of


def declare_random(scope: Scope, line: Line) -> None:
    """Declare random names with their shapes, or names above as random. Raises
    `Unreadable`."""
    assert line.right is not None
    if r"\in" in re.sub(r"\\(?:inf|int)", "", line.right.text):
        before = {*scope.variables}
        scope.declare(line)
        scope.chances.random |= {*scope.variables} - before
        return
    for name, _ in _names_in(scope, line, known=False):
        if scope.variables[name].kind == "defined":
            raise Unreadable(
                f"{name} is defined above: it is random if a name that it depends on is",
                line.right,
            )
        scope.chances.random.add(name)


def declare_independent(scope: Scope, line: Line) -> None:
    """Declare names, or the elements of one, independent of each other."""
    found = _names_in(scope, line)
    for name, has_index in found:
        if has_index:
            scope.chances.apart.add(name)
    names = frozenset(name for name, _ in found)
    if len(names) == 1 and not any(has_index for _, has_index in found):
        raise Unreadable(
            "of what? Write two names, or the elements of one, such as x_i", line.right
        )
    scope.chances.independent.append(names)


def declare_identical(scope: Scope, line: Line) -> None:
    """Declare that the elements of a name have the same distribution."""
    for name, has_index in _names_in(scope, line):
        if not has_index:
            raise Unreadable("write the elements of a name, such as x_i", line.right)
        scope.chances.identical.add(name)


def declare_moment(scope: Scope, line: Line) -> None:
    """Declare a mean or a variance: `mean x = \\mu`, `variance x_i = \\sigma^2`, and,
    for the covariances of a vector's elements, `variance x = \\Sigma`."""
    assert line.left is not None and line.right is not None
    if line.conditions:
        raise Unreadable(f"a {line.kind} cannot have conditions", line.conditions)
    analysis = Analysis(scope)
    left, right = analysis.run([line.left, line.right])
    found = left.references.get(id(left.tree))
    if found is None or found.accent or found.name not in scope.chances.random:
        raise Unreadable(f"a {line.kind} is that of a random name", line.left)
    if scope.variables[found.name].positive:
        raise Unreadable(
            f"{found.name} is positive: its {line.kind} cannot be declared", line.left
        )
    axes = scope.variables[found.name].axes
    of_vector = line.kind == "variance" and bool(left.shape)
    if of_vector and (len(axes) != 1 or right.shape != axes * 2):
        raise Unreadable(
            "write the variance of an element, such as x_i, or a matrix of the covariances "
            "of a vector's elements",
            line.left,
        )
    if not of_vector and right.shape and right.shape != left.shape:
        raise Unreadable("the two sides have different shapes", line.right)
    names = [r.name for r in right.used if r.kind == "variable"]
    if scope.are_random(names) or right.free - left.free:
        raise Unreadable(f"a {line.kind} must not be random", line.right)
    chances = scope.chances
    of_elements = chances.covariances if of_vector else chances.variances
    facts = chances.means if line.kind == "mean" else of_elements
    for other, value, _ in facts:
        above = other.references[id(other.tree)]
        if above.name == found.name and not _are_apart(above, found):
            if _without_spaces(value.part.text) != _without_spaces(right.part.text):
                written = other.part.text
                error = Contradicted(
                    f"the {line.kind} of {written} is already declared: it is "
                    f"{value.part.text}",
                    line.left,
                )
                error.value = value.part
                raise error
    facts.append((left, right, analysis.dimensions_of(left)))


def _are_apart(one: Reference, other: Reference) -> bool:
    """Whether two references are to different elements, such as x_1 and x_2."""
    return any(
        a.isdigit() and b.isdigit() and a != b
        for a, b in zip(one.indices, other.indices, strict=False)
    )


def _without_spaces(text: str) -> str:
    return "".join(text.split())


def _names_in(scope: Scope, line: Line, known: bool = True) -> list[tuple[str, bool]]:
    """Return the names on a line, and whether each has an index."""
    assert line.right is not None
    found = []
    for text in re.split(r"\s*,\s*(?![^{]*\})", line.right.text):
        tree = parse(Part(text, 0, text), "moved")
        reference = scope.resolve(tree)
        if (
            reference is None
            or reference.kind != "variable"
            or accent_and_name(tree)[0]
        ):
            raise Unreadable(
                f"{text} is not declared above: say random {text} \\in \\mathbb{{R}}",
                line.right,
            )
        if known and reference.name not in scope.chances.random:
            raise Unreadable(f"{text} is not random: say random {text}", line.right)
        tokens = subscripts_of(tree)
        has_index = bool(reference.indices)
        if has_index and not all(token.isalpha() for token in tokens):
            raise Unreadable(f"write a letter as the index of {text}", line.right)
        found.append((reference.name, has_index))
    return found
