"""Functions: `let f(x) = …` defines one for all arguments, and `f(…)` is its value.

A function is applied by evaluating its body with the argument in place of the
parameter, so nothing is known of it but its definition. A name before a bracket is a
function's only if a definition or `BUILT_IN` says so; a product is never read as a
call.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from lark import Token, Tree
from lark.tree import Meta

from backpass.derivation.language.names import (
    Function,
    Scope,
    is_special,
)
from backpass.derivation.language.parse import Line, Part, Unreadable, parse, tokens_of
from backpass.derivation.language.written import (
    accent_and_name,
    canonical,
    subscripts_of,
    with_label,
)

# The functions of a column that are the same in all texts, by their names without
# capitals and underscores. The text's own names do not change their meaning: i and j
# stand for letters that it does not use, and e may be one of its names.
BUILT_IN = {
    "softmax": r"_i = \frac{\exp(x_i)}{\sum_j \exp(x_j)}",
    "logsoftmax": r"_i = x_i - \log \sum_j \exp(x_j)",
    "logsumexp": r" = \log \sum_j \exp(x_j)",
    "sigmoid": r" = \frac{1}{1 + \exp(-x)}",
    "relu": r" = \max(0, x)",
    "sign": " = [x > 0] - [x < 0]",
    "sgn": " = [x > 0] - [x < 0]",
    "mean": r" = \frac{\sum_i x_i}{\sum_i x_i^0}",
}

# Words that print as functions, also in italics, with the command for each; "" if the
# language has none.
WORDS = {
    **{
        word: rf"\{word}"
        for word in "exp log ln tanh sinh cosh sin cos tan det max min".split()
    },
    "tr": r"\operatorname{tr}",
    "diag": r"\operatorname{diag}",
    **dict.fromkeys("norm rank gelu argmax argmin var cov sqrt abs".split(), ""),
    **{word: rf"\text{{{word}}}" for word in BUILT_IN},
}
WORD_BEFORE_BRACKET = re.compile(
    rf"(?<![a-zA-Z\\])(?P<word>{'|'.join(sorted(WORDS, key=len, reverse=True))})"
    r"(?=\s*(?:\\left\s*)?[(\[])"
)

_POWERS = ("power_of_name", "transposed")  # x in \\partial x^2 and \\partial x^\\top
NAMES_OF_MOMENTS = {r"\text{var}": "variance", r"\text{cov}": "covariance"}
MOMENTS = {"variance": 1, "covariance": 2}  # with the number of their arguments


# A function may not have the name of these; a built-in function gives way to them.
_DECLARED = ("variable", "dimension")


def define_function(scope: Scope, line: Line) -> None:
    """Add the function that a line defines to the scope. Raises `Unreadable`."""
    assert line.left is not None and line.right is not None
    name, parameters, letters = head_of(line.left)
    if line.conditions:
        raise Unreadable("a definition cannot have conditions", line.conditions)
    if name in scope.variables or name in scope.dimensions or name in scope.functions:
        raise Unreadable(f"{name} is already declared", line.left)
    if hidden := [one for one in parameters if one in scope.dimensions]:
        raise Unreadable(
            f"{hidden[0]} is a dimension, so it cannot be a parameter", line.left
        )
    for one in parameters:
        if any(other.startswith(f"{one}_{{") for other in scope.variables) or (
            is_special(one)
        ):
            raise Unreadable(
                f"{one} has another meaning, so it cannot be a parameter", line.left
            )
    uses: set[str] = set()
    # The body uses only names defined above, so no function is recursive.
    for node in called(
        parse(line.right), line.right.text, scope, parameters
    ).iter_subtrees():
        if node.data not in ("reference", "scalar"):
            continue
        accent, used = accent_and_name(node)
        if used in parameters and not accent:
            continue
        written = line.right.text[node.meta.start_pos : node.meta.end_pos]
        reference, function = scope.resolve(node), find(scope, node, parameters)
        if accent or not (reference or function):
            message = f"{written} is neither a parameter of {name} nor defined above"
            raise Unreadable(message, line.right, node.meta.start_pos or 0)
        above: set[str] = set(function[0].uses) if function else set()
        if reference and reference.kind == "variable":
            above = scope.upstream([scope.variables[reference.name]])
        if more := sorted(above & {*parameters}):
            raise Unreadable(
                f"{written} is defined by {more[0]}, a parameter of {name}: write its "
                "definition out here",
                line.right,
                node.meta.start_pos or 0,
            )
        uses |= above
    scope.functions[name] = Function(
        name, parameters, letters, line.right, frozenset(uses)
    )


class Head(NamedTuple):
    """The left side of a function's definition."""

    name: str
    parameters: tuple[str, ...]
    letters: tuple[str, ...]


def head_of(part: Part) -> Head:
    """Read the left side of a function's definition. Raises `Unreadable`."""
    tree = parse(part, "head")
    of, *rest = tree.children
    if of.data != "reference":
        raise Unreadable("the name of a function cannot have a power", part)
    name = _function_name(of)
    subscript = rest.pop() if rest[-1].data == "subscript" else None
    parameters = tuple(canonical(one) for one in rest)
    letters = tuple(map(str, tokens_of(subscript))) if subscript else ()
    if any(
        one.data != "reference" or subscripts_of(one) or accent_and_name(one)[0]
        for one in rest
    ):
        raise Unreadable(
            "a parameter cannot have an index, a power, a bar, or a dot", part
        )
    if len({*parameters, *letters}) < len(parameters) + len(letters):
        raise Unreadable("a letter occurs twice", part)
    if any(not letter.isalpha() and not letter.startswith("\\") for letter in letters):
        raise Unreadable("the indices of a function's value are letters", part)
    return Head(name, parameters, letters)


def is_definable(head: Part) -> bool:
    """Whether a left side that is a function's value can be that of its definition; the
    arguments of G(m_k) are values instead."""
    try:
        head_of(head)
    except Unreadable:
        return False
    return True


def _function_name(tree: Tree) -> str:
    accent, name = accent_and_name(tree)
    return f"\\{accent}{{{name}}}" if accent else with_label(name, subscripts_of(tree))


def is_function(head: Part) -> bool:
    """Whether a left side is a function's value for any argument, such as f(x)."""
    try:
        return parse(head, "head").children[0].data == "reference"
    except Unreadable:
        return False


def find(
    scope: Scope, tree: Tree, parameters: Collection[str] = ()
) -> tuple[Function, list[Token]] | None:
    """Return the function that a name means, and the indices of its value that stand at
    the name; None if it does not mean a function. A parameter hides a function."""
    if tree.data != "reference":
        return None
    name, indices = _function_name(tree), subscripts_of(tree)
    found = scope.resolve(tree)
    if found is not None and (found.kind in _DECLARED or name not in scope.functions):
        return None
    if name in parameters or accent_and_name(tree)[1] in parameters:
        return None
    if name in scope.functions:
        return scope.functions[name], []
    accent, base = accent_and_name(tree)
    if not accent and base in scope.functions:
        return scope.functions[base], indices
    word = re.fullmatch(r"\\text\{(\w+)\}", base)
    definition = BUILT_IN.get(word[1].lower()) if word and not accent else None
    if definition is None:
        return None
    i, j = _unused_letters(scope)
    definition = re.sub(
        r"(?<=_)[ij]", lambda one: i if one[0] == "i" else j, definition
    )
    letters, _, body = definition.partition(" = ")
    letter = tuple(letters[1:])
    return Function(base, ("x",), letter, Part(body, 0, body)), indices


def _unused_letters(scope: Scope) -> tuple[str, str]:
    """Return two letters for indices that have no other meaning in the text."""
    free = [
        one
        for one in _INDICES
        if one not in scope.times and not scope.other_meaning(one)
    ]
    first, second, *_ = [*free, *"ij"]
    return first, second


_INDICES = "ijklmnpqrstuvwyzabcdfghABCDFGHJKLMNOPQRSTUVWXYZ"


def moment(scope: Scope, tree: Tree) -> str:
    """Return "variance" or "covariance" if a name means one: names are random, and it
    is not defined; otherwise ""."""
    if tree.data != "reference" or not scope.chances.random or scope.resolve(tree):
        return ""
    accent, name = accent_and_name(tree)
    if accent or subscripts_of(tree) or name in scope.functions:
        return ""
    return NAMES_OF_MOMENTS.get(name.lower(), "")


def called(
    tree: Tree, text: str, scope: Scope, parameters: Collection[str] = ()
) -> Tree:
    """Return the tree with each function's name and the bracket after it joined into a
    call. If `scope.applied`, a derivative and the bracket after it become a directional
    derivative."""
    if not scope.applied and not any(
        find(scope, node, parameters) or moment(scope, node)
        for node in tree.iter_subtrees()
    ):
        return tree
    return _called(tree, text, scope, parameters)


def _called(tree: Tree, text: str, scope: Scope, parameters: Collection[str]) -> Tree:
    children = [
        _called(child, text, scope, parameters) if isinstance(child, Tree) else child
        for child in tree.children
    ]
    if tree.data in ("partial", "nabla", "nabla_of", "nabla_second", "second"):
        children = _at_its_parameters(tree.data, children, scope)
    if tree.data == "applied" and find(scope, children[0], parameters):
        return _call(children[0], children[1], scope)
    if tree.data == "product":
        joined: list[Tree | Token] = []
        for child in children:
            before = joined[-1] if joined else None
            if not isinstance(before, Tree) or not isinstance(child, Tree):
                joined.append(child)
                continue
            between = text[before.meta.end_pos : child.meta.start_pos]
            if re.search(r"\\(?:cdot|times)", between):
                joined.append(child)
            elif call := _call_or_none(before, child, scope, parameters):
                joined[-1] = call
            elif scope.applied and (before.data, child.data) == ("partial", "bracket"):
                both = [*before.children, child]
                joined[-1] = _tree("directional", both, before, child)
            else:
                joined.append(child)
        children = joined
        if len(children) == 1 and isinstance(children[0], Tree):
            return children[0]
    return Tree(tree.data, children, tree.meta)


def _at_its_parameters(
    rule: str, children: list[Tree | Token], scope: Scope
) -> list[Tree | Token]:
    """Return a derivative's parts, with L(w) for a function L that was defined as L(w):
    in \\nabla L, and in derivatives by w, if w is a declared name."""
    at = len(children) - 1 if rule in ("nabla_of", "nabla_second") else 0
    name, others = children[at], children[:at] + children[at + 1 :]
    if not isinstance(name, Tree) or (found := find(scope, name)) is None:
        return children
    parameters = found[0].parameters
    by = [
        accent_and_name(one.children[0] if one.data in _POWERS else one)[1]
        for one in others
        if isinstance(one, Tree)
    ]
    if not {*parameters} <= {*scope.variables} or not {*by} <= {*parameters}:
        return children
    if not by and len(parameters) > 1:
        return children
    arguments: list[Tree | Token] = [
        _placed(parse(Part(one, 0, one), "moved"), name.meta) for one in parameters
    ]
    call = _call(name, Tree("arguments", arguments, name.meta), scope)
    return [*children[:at], call, *children[at + 1 :]]


def _placed(tree: Tree, meta: Meta) -> Tree:
    """Return a tree that stands for what is at another place."""
    children = [
        _placed(child, meta) if isinstance(child, Tree) else child
        for child in tree.children
    ]
    return Tree(tree.data, children, meta)


def _call_or_none(
    before: Tree, factor: Tree, scope: Scope, parameters: Collection[str]
) -> Tree | None:
    rule = moment(scope, before)
    if before.data != "reference" or not (rule or find(scope, before, parameters)):
        return None
    base, *exponent = factor.children if factor.data == "power" else [factor]
    if base.data not in ("bracket", "arguments", "element"):
        return None
    if rule:
        if len(base.children) != MOMENTS[rule] or base.data == "element":
            return None
        call = _tree(rule, [*base.children], before, base)
    else:
        call = _call(before, base, scope)
    return _tree("power", [call, *exponent], before, factor) if exponent else call


def _call(name: Tree, factor: Tree, scope: Scope) -> Tree:
    if factor.data == "element":
        inner, subscript = factor.children
        call = _call(name, inner, scope)
        return _tree("element", [call, subscript], name, factor)
    call = _tree("call", [name, *factor.children], name, factor)
    found = find(scope, name)
    if found and found[1]:  # f_i(x) is an element of f(x)
        subscript = name.children[-1]
        return _tree("element", [call, subscript], name, factor)
    return call


def _tree(rule: str, children: list[Tree | Token], first: Tree, last: Tree) -> Tree:
    """Return a tree that extends from the beginning of one to the end of another."""
    meta = Meta()
    meta.empty = False
    meta.start_pos, meta.end_pos = first.meta.start_pos, last.meta.end_pos
    return Tree(rule, children, meta)
