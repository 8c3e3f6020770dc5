"""Whether an equation is wrong in every layout, and for all shapes of its names.

Where every dimension has length 1, these readings agree. An equation that is wrong
there is wrong in each of them.
"""

from __future__ import annotations

from backpass.derivation.equality.check import Chain
from backpass.derivation.equality.single import differ_as_numbers, single_chain
from backpass.derivation.language.parse import Line, Part, Unreadable
from backpass.derivation.text.certainty import (
    reject_ended_loss,
    reject_uncertain,
    reject_uncertain_names,
    reject_values_at_points,
)
from backpass.derivation.text.held import Choice, choices_of_held
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.members import Equation
from backpass.derivation.text.readings import not_single
from backpass.derivation.text.stated import SUMS_TO_ONE


class AsNumbers(Unreadable):
    """Raised for members that have no common shape, and differ as numbers, too."""


_ANY_LAYOUT = Line("layout", right=Part("denominator", 0, "denominator"))


def differs_as_number(known: Knowledge, equation: Equation, part: Part) -> bool:
    """Whether a member differs from the last right one where every dimension has length
    1, in each reading that is left there."""
    if equation.beside.words or SUMS_TO_ONE.search(known.prose):
        return False
    if known.scope.layout:
        return _differs(known, equation, part)
    with known.supposing(_ANY_LAYOUT):
        return _differs(known, equation, part)


def introduces_nothing(known: Knowledge, chain: Chain) -> bool:
    """Whether the last member uses no name on which the one before it does not depend,
    so that it introduces none."""
    above, here = chain.expressions
    return known.used((here,)) <= known.used((above,))


def certainty(known: Knowledge, equation: Equation, part: Part, chain: Chain) -> str:
    """Return why members that differ also do so for other shapes of inferred names:
    "numbers", "indices", or ""."""
    if not (known.infers and introduces_nothing(known, chain)):
        return ""
    if differs_as_number(known, equation, part):
        return "numbers"
    variables = known.scope.variables
    definitions = known.definitions(known.used(chain.expressions))
    indexed = all(
        len(one.indices) == len(variables[one.name].axes)
        for expression in (*chain.expressions, *definitions)
        for one in expression.used
        if one.kind == "variable"
    )
    return "indices" if indexed else ""


def _differs(known: Knowledge, equation: Equation, part: Part) -> bool:
    parts = (equation.first, equation.anchor, part)
    if any(one in known.grouped for one in parts):
        return False
    scope = known.scope
    try:
        for one in parts:
            reject_uncertain(known, one)
        chain = single_chain(scope, parts, equation.beside.condition)
        for expression in chain.expressions:
            reject_uncertain_names(expression)
            reject_ended_loss(known, expression)
            reject_values_at_points(known, expression)
        if known.infers and not introduces_nothing(known, chain):
            return False
        if not_single(known, chain) or known.used(chain.expressions) & {
            *known.contested
        }:
            return False
        choices: list[Choice] = [((), frozenset()), *choices_of_held(known, chain)]
        return all(
            differ_as_numbers(chain, scope, frozenset(map(id, held)), names)
            for held, names in choices
        )
    except (
        Unreadable, ArithmeticError, AttributeError, LookupError, RecursionError,
        TypeError, ValueError,
    ):  # fmt: skip
        return False  # it has no value there
