"""Take equations and memberships as the definitions of names that have none."""

from __future__ import annotations

import re

from lark import Token

from backpass.derivation.language.functions import find, head_of, is_function
from backpass.derivation.language.parse import Line, Part, Unreadable, parse
from backpass.derivation.language.written import (
    canonical,
)
from backpass.derivation.text.beside import Beside
from backpass.derivation.text.braces import GROUPS
from backpass.derivation.text.certainty import (
    has_stated_shape,
    reject_other_ranges,
    reject_uncertain,
    reject_uncertain_names,
)
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.losses import arguments_of_loss
from backpass.derivation.text.passages import Text
from backpass.derivation.text.verdict import Basis, Verdict, unread, verdict_on


def defines(known: Knowledge, head: Part) -> bool:
    """Whether the left side of an equation is a name that has no meaning yet, or
    the value of a function that has none."""
    if arguments_of_loss(head.text, known.scope):
        return True
    if is_function(head):
        name = parse(head, "head").children[0]
        scope = known.scope
        return scope.resolve(name) is None and find(scope, name) is None
    try:
        tree = parse(head, "moved")
    except Unreadable:
        return False
    if re.match(r"\\(?:bar|overline|dot)(?![a-zA-Z])", head.text):
        return False
    if tree.data == "power_of_name" and known.scope.resolve(tree.children[0]):
        return False  # a power, as in \sigma^2 = …, where \sigma is known
    found = known.scope.resolve(tree)
    if found is not None and found.kind == "variable":
        return known.scope.variables[found.name].kind == "promised"
    return found is None or (found.kind == "loss" and not found.accent)


def declared(known: Knowledge, text: Text) -> Verdict | None:
    """Take x \\in \\mathbb{R}^n as a declaration; None if it is not one."""
    if r"\in" not in text.characters:
        return None
    part = known.part(text)
    try:
        tokens = parse(part, "declarations").scan_values(
            lambda one: isinstance(one, Token) and one.type == "ALL"
        )
        is_slice = any(True for _ in tokens)
        kind = "slice" if is_slice else "given"
        known.add(Line(kind, right=part), known.document.line_of(text), True)
    except Unreadable as error:
        return unread(known.document, text, error)
    return verdict_on(
        known.document, "definition", text, message="its shape is taken from here"
    )


def define(
    known: Knowledge,
    member: Text,
    head: Part,
    part: Part,
    beside: Beside,
    membership: Part | None,
) -> Verdict:
    """Take an equation as the definition of a name that has none. Raises
    `Unreadable`."""
    if not part.text:
        raise Unreadable("there is nothing on the right of =", part)
    if beside.condition:
        raise Unreadable("a definition cannot have conditions", beside.condition)
    if beside.positive:
        name = beside.positive[0]
        raise Unreadable(
            f"a definition cannot have conditions: declare {name} "
            r"\in \mathbb{R}_{>0}, and write the definition alone",
            part,
        )
    if {head, part} & known.grouped.keys():
        raise Unreadable(GROUPS, part)
    reject_uncertain(known, part)
    number = known.document.line_of(member)
    head = known.without_arguments(head)
    if is_function(head):
        known.add(Line("function", head, part), number, implied=True)
        name = head.text.partition("(")[0].strip()
        basis = Basis(((head_of(head).name, number),), (), 0)
    else:
        line = Line("let", head, part)
        known.add(line, number, implied=True)
        name = canonical(parse(head, "moved"))
        variable = known.scope.defined_as(part)
        assert variable.definition is not None
        reject_uncertain_names(variable.definition)
        axes = zip(variable.letters, variable.axes, strict=False)
        reject_other_ranges(beside.ranges, dict(axes), part)
        if membership and not has_stated_shape(membership, variable.definition):
            known.forget(line)
            raise Unreadable("the stated shape is not the expression's", membership)
        basis = known.basis([variable.definition], (), 0)
    message = f"{name} is taken as defined here"
    return verdict_on(
        known.document, "definition", member, message=message, basis=basis
    )
