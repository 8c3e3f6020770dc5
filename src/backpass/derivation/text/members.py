"""Whether two members of an equation are equal, and what that rests on."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from backpass.derivation.equality.check import evaluators_in
from backpass.derivation.equality.comparing import (
    Refused,
    compare,
    elsewhere,
    evaluators_of,
    members_chain,
    of_both_results,
)
from backpass.derivation.equality.larger import OneCase, larger_sizes
from backpass.derivation.equality.sizes import defined_at
from backpass.derivation.language.analysis import Analysis
from backpass.derivation.language.parse import Part, Undefined, Unreadable
from backpass.derivation.language.values.points import DRAWS
from backpass.derivation.text.beside import Beside
from backpass.derivation.text.certainty import (
    has_stated_shape,
    reject_ended_loss,
    reject_other_ranges,
    reject_uncertain,
    reject_uncertain_names,
    reject_values_at_points,
)
from backpass.derivation.text.imposed import ZERO
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.signs import with_names
from backpass.derivation.text.verdict import Basis


@dataclass
class Equation:
    """An equation as it is judged, member by member.

    `anchor` is the last member that was right, at first the left one, and `blamed` a
    refused one after it. The free indices are those of `first`.
    """

    head: Part
    beside: Beside
    first: Part
    anchor: Part
    blamed: Part | None = None

    def enter(self, beside: Beside) -> None:
        """Go on with what stands beside the next member. A further case of conditions
        is compared with the left side."""
        if beside is not self.beside and self.beside.words:
            self.first = self.anchor = self.head
            self.blamed = None
        self.beside = beside


def equality(
    known: Knowledge,
    first: Part,
    anchor: Part,
    part: Part,
    beside: Beside,
    membership: Part | None = None,
) -> Basis:
    """Return what the equality of two members, `anchor` and `part`, rests on; their
    free indices are those of the member `first`. Raises `Refused` if they differ, and
    `Unreadable` if that cannot be decided."""
    if not part.text:
        raise Unreadable("there is nothing on the right of =", part)
    if beside.instead:
        first, anchor, part = (
            with_names(known, one, beside.instead) for one in (first, anchor, part)
        )
    with known.where_positive((*beside.positive, *beside.instead)):
        try:
            basis = _equality(known, first, anchor, part, beside, membership)
        except Unreadable:
            zeros = _with_zeros(known, first, anchor, part)
            if zeros is None:
                raise
            basis = _equality(known, *zeros, beside, membership)
    return replace(basis, condition=beside.words)


def _with_zeros(
    known: Knowledge, first: Part, anchor: Part, part: Part
) -> tuple[Part, Part, Part] | None:
    """Return members with an array of zeros in place of a 0 that is set equal to an
    array; None if there is none."""
    is_zero = [ZERO.fullmatch(one.text) is not None for one in (anchor, part)]
    if is_zero[0] == is_zero[1]:
        return None
    other = part if is_zero[0] else anchor
    analysis = Analysis(known.scope)
    try:
        (expression,) = analysis.run([other])
    except Unreadable:
        return None
    if not expression.shape:
        return None
    zero = replace(
        anchor if is_zero[0] else part, text=rf"0 \cdot \left( {other.text} \right)"
    )
    if is_zero[0]:
        return (zero if first == anchor else first), zero, part
    return first, anchor, zero


def _equality(
    known: Knowledge,
    first: Part,
    anchor: Part,
    part: Part,
    beside: Beside,
    membership: Part | None,
) -> Basis:
    created = evaluators_in(known.now.lines)
    for one in dict.fromkeys((first, anchor, part)):
        reject_uncertain(known, one)
    chain = members_chain(created.scope, first, anchor, part, beside.condition)
    for expression in chain.expressions:
        reject_uncertain_names(expression)
        reject_ended_loss(known, expression)
        reject_values_at_points(known, expression)
    reject_other_ranges(beside.ranges, chain.free, part)
    if membership and not has_stated_shape(membership, chain.expressions[1]):
        raise Unreadable("the stated shape is not the expression's", membership)
    evaluators = evaluators_of(created, chain)
    try:
        compare(chain, evaluators)
    except Undefined:
        evaluators = defined_at(created, chain, evaluators)
        compare(chain, evaluators)
    definitions = known.definitions(known.used(chain.expressions))
    expressions = (*chain.expressions, *definitions)
    for evaluator in of_both_results(created, expressions, evaluators):
        compare(chain, [evaluator])
    sizes = tuple({tuple(e.sizes.items()): e.sizes for e in evaluators}.values())
    if larger := larger_sizes(created.scope, chain, definitions):
        draws = (None,) if evaluators[0].draw is None else range(4)
        there = [created.at(larger, draw) for draw in draws]
        with suppress(Undefined):
            compare(OneCase(**vars(chain)), there)
            sizes += (larger,)
    points = 0
    if evaluators[0].draw is not None:
        points = DRAWS
        for evaluator in elsewhere(created, expressions, evaluators):
            compare(chain, [evaluator])
            points += 1
    return known.basis(chain.expressions, sizes, points)


def agree(
    known: Knowledge, first: Part, above: Part, part: Part, beside: Beside
) -> bool:
    """Whether two members are equal."""
    try:
        equality(known, first, above, part, beside)
    except (Refused, Unreadable):
        return False
    return True
