"""Take equations and memberships as the definitions of names that have none."""

from __future__ import annotations

import re

from lark import Token

from backpass.derivation.language.analysis import Analysis
from backpass.derivation.language.functions import (
    find,
    head_of,
    is_definable,
    is_function,
    moment,
)
from backpass.derivation.language.names import BUILT_IN
from backpass.derivation.language.parse import Line, Part, Unreadable, parse
from backpass.derivation.language.written import canonical
from backpass.derivation.text.beside import Beside, is_declared
from backpass.derivation.text.braces import GROUPS
from backpass.derivation.text.certainty import (
    has_stated_shape,
    reject_idle_sums,
    reject_other_ranges,
    reject_uncertain,
    reject_uncertain_names,
)
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.losses import arguments_of_loss
from backpass.derivation.text.members import agree
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
        known_name = scope.resolve(name) or find(scope, name) or moment(scope, name)
        return not known_name
    try:
        tree = parse(head, "moved")
    except Unreadable:
        return False
    if re.match(r"\\(?:bar|overline|dot)(?![a-zA-Z])", head.text):
        return False
    is_power = tree.data == "power_of_name" and str(tree.children[1]) not in ("+", "-")
    if is_power and known.scope.resolve(tree.children[0]):
        return False  # a power, as in \sigma^2 = …, where \sigma is known
    found = known.scope.resolve(tree)
    if found is not None and found.kind == "variable":
        return known.scope.variables[found.name].kind == "promised"
    return found is None or (found.kind == "loss" and not found.accent)


def overloaded(known: Knowledge, head: Part) -> str:
    """Return a question if the left side of an equation is the value of a function that
    a display defines for another variable; otherwise ""."""
    if not is_function(head) or not is_definable(head):
        return ""
    name, parameters, _ = head_of(head)
    for line in known.now.implied & {*known.now.lines}:
        if line.kind == "function" and line.left is not None:
            first = head_of(line.left)
            if first.name == name and first.parameters != parameters:
                where = known.document.where(known.number_of(line))
                return (
                    f"{where} defines {name} as a function of {', '.join(first.parameters)}. Is "
                    "this another function? If it is, write it with another letter"
                )
    return ""


def replaces(known: Knowledge, head: Part, part: Part) -> str:
    """Return which built-in meaning of e, I, \\pi, or \\delta an equation replaces by a
    definition; "" if it does not.

    It does not if it holds for the built-in meaning, or if that may be meant: the right
    side is a number or a matrix like the built-in one, or uses it.
    """
    scope = known.scope
    try:
        tree, right = parse(head, "moved"), parse(part)
    except Unreadable:
        return ""
    found = scope.resolve(tree)
    if found is None or found.accent or found.kind not in BUILT_IN:
        return ""
    tokens = [str(token) for token in found.indices]
    if found.kind == "delta" and len(tokens) > 1:
        return ""
    if found.kind == "identity" and ({*tokens} & {*scope.dimensions} or "1" in tokens):
        return ""
    used = [
        reference
        for node in right.iter_subtrees()
        if node.data in ("reference", "scalar", "power_of_name")
        and (reference := scope.resolve(node))
    ]
    exponential = found.kind == "euler" and r"e^" in "".join(part.text.split())
    if not any(one.kind == "variable" for one in used) or (
        any(one.name == found.name for one in used) and not exponential
    ):
        return ""
    if not tokens and (found.kind == "identity") and _is_square(known, part):
        return ""
    if agree(known, head, head, part, Beside()):
        return ""
    return BUILT_IN[found.kind]


def _is_square(known: Knowledge, part: Part) -> bool:
    try:
        (expression,) = Analysis(known.scope).run([part])
    except Unreadable:
        return True
    shape = expression.shape
    return len(shape) == 2 and "1" not in shape


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
        if is_declared(known, part):
            return verdict_on(known.document, "nothing claimed", text)
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
    replaced: str = "",
) -> Verdict:
    """Take an equation as the definition of a name that has none, or in place of the
    built-in meaning that is `replaced`. Raises `Unreadable`."""
    if not part.text:
        raise Unreadable("there is nothing on the right of =", part)
    if beside.condition:
        raise Unreadable(
            "a definition cannot have conditions: write it for all indices, perhaps with "
            r"\begin{cases}",
            beside.condition,
        )
    if limited := (*beside.positive, *beside.instead):
        name = limited[0]
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
        reject_idle_sums(part, head_of(head).letters)
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
    if replaced:
        message += f", in place of {replaced}"
    return verdict_on(
        known.document, "definition", member, message=message, basis=basis
    )
