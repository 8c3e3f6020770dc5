r"""Derivatives by a name in place of an input: for r = x^2 and s = x^3, ds/dr = 3x/2.

The definition of s does not contain r, so its derivative by r is 0 as it is defined. A
text may nevertheless mean r as the variable. Then the chain rule holds for its claim:
ds/dx = (ds/dr) (dr/dx).
"""

from __future__ import annotations

from collections.abc import Iterator

from lark import Tree

from backpass.derivation.language.names import Reference, Scope, Variable
from backpass.derivation.language.parse import Part, Unreadable, parse, span_of
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.members import Equation, agree

_LETTERS = "abcdghklmnopqrstuvw"


def by_substitution(known: Knowledge, equation: Equation, part: Part) -> str:
    """Return a question if a derivative by a defined name is right when this name
    replaces an input; otherwise ""."""
    head = equation.head
    if equation.anchor != head:
        return ""
    try:
        derivative = parse(head)
    except Unreadable:
        return ""
    if derivative.data != "partial":
        return ""
    above, below = derivative.children
    found = known.scope.resolve(below)
    if found is None or found.kind != "variable" or found.accent:
        return ""
    variable = known.scope.variables[found.name]
    if variable.definition is None or len(found.indices) != len(variable.axes):
        return ""
    if found.name in _upstream(known.scope, above) and not _is_of_one_number(
        known.scope, variable
    ):
        return ""
    rules = [*_chain_rules(known, head, part, above, below, found, variable)]
    if not rules or not all(
        agree(known, left, left, right, equation.beside) for left, right in rules
    ):
        return ""
    name = head.text[slice(*span_of(below))].strip()
    return (
        f"it is wrong with the definitions above, but holds if {name} is the variable in place "
        f"of the names that define it: if that is meant, define them by {name}"
    )


def _upstream(scope: Scope, tree: Tree) -> set[str]:
    """Return the names on which those in a tree depend."""
    names = [
        found.name
        for node in tree.iter_subtrees()
        if node.data in ("reference", "power_of_name", "power", "scalar")
        and (found := scope.resolve(node)) is not None
        and found.name in scope.variables
    ]
    return scope.upstream([scope.variables[name] for name in names])


def _is_of_one_number(scope: Scope, variable: Variable) -> bool:
    """Whether a name is a number that one number determines, so that the chain rule
    determines a derivative by it."""
    names = scope.upstream([variable])
    inputs = [scope.variables[name] for name in names]
    inputs = [one for one in inputs if one.kind == "given"]
    return not variable.axes and len(inputs) == 1 and not inputs[0].axes


def _chain_rules(
    known: Knowledge,
    head: Part,
    part: Part,
    above: Tree,
    below: Tree,
    found: Reference,
    variable: Variable,
) -> Iterator[tuple[Part, Part]]:
    """Yield both sides of the chain rule for each input."""
    scope = known.scope
    of, by = (head.text[slice(*span_of(tree))] for tree in (above, below))
    letters = [str(letter) for letter in found.indices]
    if len({*letters}) != len(letters) or not all(map(str.isalpha, letters)):
        return
    sums = "".join(rf"\sum_{{{letter}}} " for letter in letters)
    for name in sorted(scope.upstream([variable])):
        one = scope.variables[name]
        if one.kind != "given":
            continue
        free = _unused(scope, f"{head.text} {part.text}", len(one.axes))
        if len(free) < len(one.axes):
            return
        with_indices = name + (f"_{{{''.join(free)}}}" if free else "")
        left = rf"\frac{{\partial {of}}}{{\partial {with_indices}}}"
        factor = rf"\frac{{\partial {by}}}{{\partial {with_indices}}}"
        right = rf"{sums}\left( {part.text} \right) {factor}"
        yield Part(head.source, head.start, left), Part(head.source, part.start, right)


def _unused(scope: Scope, text: str, count: int) -> list[str]:
    """Return letters that neither a text nor a name has."""
    used = {*text, *"".join((*scope.variables, *scope.dimensions, *scope.functions))}
    return [letter for letter in _LETTERS if letter not in used][:count]
