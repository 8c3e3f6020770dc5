"""Reject what has a different meaning in different texts, rather than guess it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping

from lark import Token, Tree

from backpass.derivation.language.functions import WORD_BEFORE_BRACKET, WORDS, called
from backpass.derivation.language.indices import letter_of
from backpass.derivation.language.names import (
    LOSS,
    Expression,
    Variable,
    shape_of,
)
from backpass.derivation.language.parse import (
    Part,
    Unreadable,
    parse,
    span_of,
    tokens_of,
)
from backpass.derivation.language.written import (
    canonical,
    subscripts_of,
)
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.passages import Text
from backpass.derivation.text.rewriting import parsed

# What is differentiated, and by what.
DERIVATIVES: dict[str, Callable[[Tree], tuple[Tree, Tree]]] = {
    "partial": lambda node: (node.children[0], node.children[1]),
    "nabla_of": lambda node: (node.children[1], node.children[0]),
    "differentiate": lambda node: (node.children[1], node.children[0].children[0]),
}


def reject_uncertain(known: Knowledge, part: Part) -> None:
    """Raise `Unreadable` for notation whose meaning differs between texts."""
    _reject_uncertain_words(part)
    tree = called(parsed(part), part.text, known.scope)
    for node in tree.iter_subtrees():
        if node.data == "product":
            for before, factor in itertools.pairwise(node.children):
                _reject_uncertain_product(known, part, before, factor)
        if node.data == "differential":
            call, direction = node.children
            if part.between(call, direction).strip():
                raise Unreadable(
                    r"is the bracket a direction or a factor? Write a factor with \cdot, "
                    "and a direction without a space",
                    part,
                    span_of(direction)[0],
                )
    written = known.document.written(part.start, part.place(len(part.text)))
    written = known.in_own_notation(
        Text(written, (part.start,) * len(written))
    ).characters
    for word, meaning in (("bar", "gradient"), ("dot", "differential")):
        command = r"(?:bar|overline)" if word == "bar" else "dot"
        if word not in known.now.accents and (
            match := re.search(rf"\\{command}(?![a-zA-Z])\s*\{{?(\\?\w+)", written)
        ):
            name = rf"\{word}{{{match[1]}}}"
            if not any(one.startswith(rf"\{word}") for one in known.scope.variables):
                raise Unreadable(
                    f"is {name} a {meaning}? Declare one, or say: {word} {meaning}",
                    part,
                )


def _reject_uncertain_words(part: Part) -> None:
    """Raise `Unreadable` for max(x), which prints like a function's value."""
    if match := WORD_BEFORE_BRACKET.search(part.text):
        word = match["word"]
        written = WORDS[word] or rf"\text{{{word}}}"
        raise Unreadable(
            f"is {word} a function or a product? Write {written}, or a product with "
            r"\cdot before the bracket",
            part,
            match.start(),
        )


def _reject_uncertain_product(
    known: Knowledge, part: Part, before: Tree, factor: Tree
) -> None:
    if part.between(before, factor).strip():
        return
    if (
        factor.data == "bracket"
        and before.data == "reference"
        and subscripts_of(before)
    ):
        inside = factor.children[0]
        if isinstance(inside, Tree) and inside.data == "reference":
            raise Unreadable(
                r"a function's value, or a product? Write the product with \cdot",
                part,
                before.meta.start_pos or 0,
            )
    d = known.scope.variables.get("d")
    is_factor = "d" in known.scope.factors or (d is not None and d.shape)
    if (
        _is_named(before, "d")
        and factor.data in ("reference", "scalar", "power")
        and not is_factor
    ):
        raise Unreadable(
            r"a differential or derivative, or a product with d? If it is a product, "
            r"say: factor d. A differential is written \dot{x}, a derivative with "
            r"\partial",
            part,
            before.meta.start_pos or 0,
        )


def _is_named(tree: Tree | Token, name: str) -> bool:
    return (
        isinstance(tree, Tree)
        and tree.data in ("reference", "scalar")
        and canonical(tree) == name
    )


def reject_uncertain_names(expression: Expression) -> None:
    """Raise `Unreadable` for an e that may be Euler's number or a name."""
    for body in expression.parts[1:]:
        reject_uncertain_names(body)
    powers = {
        id(tree.children[0])
        for tree in expression.tree.iter_subtrees()
        if tree.data == "power"
    }
    for node in expression.tree.iter_subtrees():
        found = expression.references.get(id(node))
        if found and found.kind == "euler" and id(node) not in powers:
            raise Unreadable(
                "is e Euler's number? If it is, write \\exp(1); if not, declare it",
                expression.part,
                node.meta.start_pos or 0,
            )


def reject_idle_sums(part: Part, letters: tuple[str, ...]) -> None:
    """Raise `Unreadable` for a sum over k of w_i alone, if nothing binds i; what is
    defined has these letters."""
    _reject_idle_sums(part, parse(part), {*letters})


def _reject_idle_sums(part: Part, tree: Tree, bound: set[str]) -> None:
    if tree.data == "big":
        limits = [letter_of(one) for one in tokens_of(tree.children[1])]
        over = {*limits}
        body = tree.children[-1]
        used = {
            letter_of(token)
            for node in body.find_data("subscript")
            for token in tokens_of(node)
            if token.type in ("INDEX", "SHIFTED")
        }
        inner = {
            letter_of(token)
            for node in body.find_data("limits")
            for token in tokens_of(node)
        }
        free = sorted(one for one in used - bound - inner if not one.isdigit())
        letters = {
            letter_of(token)
            for token in body.scan_values(lambda one: isinstance(one, Token))
        }
        if free and over.isdisjoint(letters):
            raise Unreadable(
                f"the index {free[0]} is only on the right, in a sum over "
                f"{limits[0]} in which {limits[0]} does not occur",
                part,
                span_of(tree)[0],
            )
        bound = bound | over
    for child in tree.children:
        if isinstance(child, Tree):
            _reject_idle_sums(part, child, bound)


def reject_values_at_points(known: Knowledge, expression: Expression) -> None:
    """Raise `Unreadable` for a derivative of a name that a display sets equal to
    numbers only: they may be its value at one point; or of one that is declared, and
    that an equation may define nevertheless."""
    for body in expression.parts[1:]:
        reject_values_at_points(known, body)
    scope = known.scope
    for node in expression.tree.iter_subtrees():
        if node.data not in DERIVATIVES:
            continue
        of, by = (
            _variables(known, expression, one) for one in DERIVATIVES[node.data](node)
        )
        upstream = scope.upstream(of)
        if not by or upstream & {one.name for one in by}:
            continue
        for name in sorted(upstream):
            if _is_value(known, name):
                raise Unreadable(
                    f"{name} is set equal to numbers above: are they its value at one "
                    "point? Define it as a function of its inputs",
                    expression.part,
                    span_of(node)[0],
                )
            if name in known.contested:
                raise Unreadable(
                    f"{name} is declared, and an equation above may define it. Leave "
                    f"{name} out of the declarations if it does",
                    expression.part,
                    span_of(node)[0],
                )


def _variables(known: Knowledge, expression: Expression, tree: Tree) -> list[Variable]:
    found = [expression.references.get(id(one)) for one in tree.iter_subtrees()]
    variables = known.scope.variables
    return [variables[one.name] for one in found if one and one.name in variables]


def _is_value(known: Knowledge, name: str) -> bool:
    """Whether a display defines a name without using another name."""
    variable = known.scope.variables[name]
    if variable.definition is None or known.scope.used_by(variable):
        return False
    return any(
        line.kind == "let"
        and line.left
        and canonical(parse(line.left, "moved")) == name
        for line in known.now.implied
        if line in known.now.lines
    )


def reject_ended_loss(known: Knowledge, expression: Expression) -> None:
    """Raise `Unreadable` for a gradient of a loss whose definition has ended."""
    if not known.has_lost_its_loss:
        return
    for reference in expression.used:
        if reference.accent == "bar" or reference.kind == "loss":
            raise Unreadable(f"the loss has no definition here{known.where_ended(LOSS)}",
                             expression.part)  # fmt: skip


def reject_other_ranges(
    ranges: Mapping[str, str], free: Mapping[str, str], part: Part
) -> None:
    """Raise `Unreadable` unless the indices run over what stands beside them."""
    for letter, side in ranges.items():
        if (found := free.get(letter, side)) != side:
            raise Unreadable(f"{letter} runs over {found} here, not {side}", part)


def has_stated_shape(membership: Part, expression: Expression) -> bool:
    """Whether an expression has the shape stated beside it."""
    text = f"x {membership.text}"
    (declaration,) = parse(Part(text, 0, text), "declarations").children
    return shape_of(declaration.children[-1]) == expression.shape
