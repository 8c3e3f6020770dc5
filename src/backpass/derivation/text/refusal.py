"""The verdict on two members of an equation that differ."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import replace

from backpass.derivation.equality.check import (
    counterexample,
    first_mistake,
    holds_if_positive,
)
from backpass.derivation.equality.comparing import (
    Refused,
    Where,
    sum_to_one,
    uses_states,
)
from backpass.derivation.language.functions import (
    head_of,
    is_definable,
    is_function,
    moment,
)
from backpass.derivation.language.names import BUILT_IN
from backpass.derivation.language.parse import Part, Unreadable, parse
from backpass.derivation.text.assumed import with_assumptions
from backpass.derivation.text.beside import Beside
from backpass.derivation.text.contested import contest, doubted
from backpass.derivation.text.imposed import HINT, ZERO
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.members import Equation, agree
from backpass.derivation.text.passages import Text
from backpass.derivation.text.readings import other_reading
from backpass.derivation.text.single import certainty
from backpass.derivation.text.starred import is_starred
from backpass.derivation.text.stated import (
    Hint,
    asked,
    asked_of_interval,
    of_indices,
    of_signs,
    of_sum,
)
from backpass.derivation.text.surroundings import asked_of_prose
from backpass.derivation.text.verdict import Counterexample, Verdict, unread, verdict_on


def refusal(
    known: Knowledge,
    equation: Equation,
    member: Text,
    part: Part,
    refused: Refused,
    below: Beside,
) -> Verdict:
    """Return the verdict on a member that differs from the last right one: "follows" if
    it equals the refused member before it, "not readable" or "equal" if it would be
    right in another reading, otherwise "refused".

    A definition that may not have been meant is forgotten. `below` stands beside the
    last row of the chain.
    """
    document, anchor, blamed = known.document, equation.anchor, equation.blamed
    if blamed and agree(known, equation.first, blamed, part, equation.beside):
        line = document.line(blamed.start)
        message = f"it follows from {document.where(line)}, which is refused"
        if line == document.line_of(member):
            message = "it equals an earlier side of this line, which is refused"
        return verdict_on(document, "follows", member, line, message)
    line, to_left = document.line(anchor.start), anchor == equation.head
    message = _not_a_claim(known, anchor, part) if to_left else ""
    if message:
        return unread(document, member, message, line)
    if verdict := doubted(known, equation, member, part, refused.chain):
        return verdict
    used = known.used(refused.chain.expressions)
    if asks := _of_starred(known, used):
        return unread(document, member, asks, line)
    if verdict := with_assumptions(known, equation, member, part, used):
        return verdict
    hint = Hint()
    message = other_reading(known, equation, part, refused.chain)
    message = message or _restricted_below(known, equation, part, below)
    if not message:
        hint = _hint(refused)
        message = asked(known, hint, part)
    certain = certainty(known, equation, part, refused.chain)
    differs = bool(certain) or used.isdisjoint(known.inferred_names)
    if differs:  # otherwise it waits for a declaration
        message = message or asked_of_interval(known, used)
        message = message or asked_of_prose(
            known, refused, equation.head, part, to_left
        )
    if not message and to_left and _is_pi(known, anchor):
        message = _usual_meaning(known, anchor)
    if message:
        return replace(unread(document, member, message, line), differs=differs)
    where, expected, found = counterexample(refused.mistake, refused.evaluator)
    basis = known.basis(refused.chain.expressions, (refused.evaluator.sizes,), 0)
    basis = replace(basis, condition=equation.beside.words)
    example = Counterexample(tuple(where), expected, found)
    words = hint.words
    if not words and ZERO.fullmatch(part.text):
        words = HINT
    if not words and to_left:
        words = _usual_meaning(known, anchor)
    verdict = verdict_on(document, "refused", member, line, words, basis, example)
    return replace(
        verdict,
        compared=" ".join(anchor.text.split()),
        to_left=to_left,
        certain=certain,
    )


def _of_starred(known: Knowledge, used: set[str]) -> str:
    """Return what to ask if members that differ use a declared name with a star; "" if
    none does."""
    variables = known.scope.variables
    found = [one for one in sorted(used) if is_starred(one)]
    for name in (one for one in found if variables[one].kind != "defined"):
        return (
            f"it holds for no other {name} than one that satisfies an equation, "
            "such as a minimiser, or an adjoint: if it is one, define it with let"
        )
    return ""


def _restricted_below(
    known: Knowledge, equation: Equation, part: Part, below: Beside
) -> str:
    """Return what to ask if the members are equal under a condition that stands on a
    row below; otherwise ""."""
    if equation.beside.words or not below.words:
        return ""
    if not agree(known, equation.first, equation.anchor, part, below):
        return ""
    return (
        f"it holds where {below.words}, which stands on a row below: if it holds for this row "
        "too, write it on the first row"
    )


def _not_a_claim(known: Knowledge, head: Part, part: Part) -> str:
    """Return why a false equation may not be a claim, or "" if it is one."""
    if is_function(head):
        if moment(known.scope, parse(head, "head").children[0]):
            return ""
        if not is_definable(head):
            return ""
        name, parameters, _ = head_of(head)
        scope = known.scope
        function = scope.functions.get(name)
        if function is None or (
            parameters != function.parameters and {*parameters} & {*scope.variables}
        ):
            return ""  # the value at a declared name
        return _defined_differently(known, name, head)
    try:
        tree = parse(head, "moved")
    except Unreadable:
        return ""
    found = known.scope.resolve(tree)
    if found is None or found.accent:
        return ""
    if found.kind == "dimension":
        return f"{found.name} is a dimension, and every size is tried"
    if found.kind != "variable":
        return ""
    variable = known.scope.variables[found.name]
    if variable.kind != "defined":
        contest(known, head, part)
        return (
            f"{found.name} is declared, so this neither defines it nor follows from "
            f"anything. Leave {found.name} out of the declarations if this defines it"
        )
    assert variable.definition is not None
    return _defined_differently(known, found.name, variable.definition.part)


def _defined_differently(known: Knowledge, name: str, definition: Part) -> str:
    """Return which display defined a name, and forget it; "" if none did."""
    for line in known.now.implied:
        same = line.kind == "function" and is_function(definition) and (
            line.left is not None and head_of(line.left).name == name
        )  # fmt: skip
        if same or line.right == definition:
            where = known.document.where(known.number_of(line))
            known.forget(line)
            return (
                f"{where} defined {name} differently. For a new "
                f"{name}, write restart before it. If it is a claim, define "
                f"{name} in a comment: let"
            )
    return ""


def _is_pi(known: Knowledge, head: Part) -> bool:
    """Whether a left side is π alone: a text rarely claims a value of π, and often has
    it as a name."""
    with suppress(Unreadable):
        found = known.scope.resolve(parse(head, "moved"))
        return found is not None and found.kind == "pi"
    return False


def _usual_meaning(known: Knowledge, head: Part) -> str:
    """Return how to define the letter on the left side, if it has its usual meaning;
    otherwise ""."""
    try:
        found = known.scope.resolve(parse(head, "moved"))
    except Unreadable:
        return ""
    if found is None or found.kind not in BUILT_IN:
        return ""
    return (
        f"{found.name} is {BUILT_IN[found.kind]} here; if this defines it, write the "
        f"definition in a comment: let {head.text} = …"
    )


def _hint(refused: Refused) -> Hint:
    """Return which condition on two indices, which sum, or which signs would make the
    members equal; an empty hint if none would."""
    chain, evaluator = refused.chain, refused.evaluator
    is_short = not uses_states(chain, evaluator.scope)
    if is_short and (name := sum_to_one(chain, evaluator)):
        return of_sum(name)
    if is_short and holds_if_positive(refused.mistake, evaluator):
        return of_signs()
    if chain.conditions is not None:
        return Hint()
    for a, b in itertools.combinations(chain.free, 2):
        if chain.free[a] != chain.free[b]:
            continue
        for equal in (False, True):
            there = Where(**vars(chain), a=a, b=b, equal=equal)
            if first_mistake(there, evaluator) is None:
                return of_indices(a, b, equal)
    return Hint()
