"""Partial derivatives that hold other names constant, or go through their definitions.

In y = x v with v = x^2, \\partial y / \\partial x may be v or 3 x^2. The first is the
derivative of the definition of y itself, the second the total derivative.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from functools import partial

from lark import Tree

from backpass.derivation.equality.check import Chain, Evaluators
from backpass.derivation.equality.comparing import (
    HOLDING,
    Holding,
    Refused,
    compare,
    evaluators_of,
    of_loss,
    of_loss_by_state,
)
from backpass.derivation.language.names import LOSS, Scope
from backpass.derivation.language.parse import Unreadable
from backpass.derivation.text.knowledge import Knowledge

CHOICES = 32  # at most so many choices of derivatives are tried
NAMES = 4  # of at most so many names

# Also as an array: 0 \cdot X.
_ZERO = re.compile(r"\s*0\s*(?:\\cdot|\Z)")

Choice = tuple[tuple[Tree, ...], frozenset[str]]


def other_partials(known: Knowledge, chain: Chain) -> str:
    """Return why a partial derivative is ambiguous, if the members are equal when it
    holds other names constant, or goes through them although the text says that it
    does not; otherwise ""."""
    scope = known.scope
    for held, names in choices_of_held(known, chain):
        hold = partial(Holding, holding=frozenset(map(id, held)), names=names)
        try:
            compare(chain, evaluators_of(Evaluators(scope, hold), chain))
        except (Refused, Unreadable):
            continue
        if scope.direct:
            return (
                "it holds only if a partial derivative goes through the definitions of "
                "other names; if that is meant, say: partial total"
            )
        return (
            "it is right if a partial derivative holds other definitions constant"
            f"{_listed(names)}, but wrong if it goes through them. Use one name for what "
            "is differentiated, or say: partial total, if it goes through them"
            f"{_or_direct(chain, scope)}"
        )
    return ""


def _or_direct(chain: Chain, scope: Scope) -> str:
    """Return the word for the other reading, unless it is of a loss by a state."""
    by_state = any(
        tree.data in HOLDING and of_loss_by_state(one, tree, scope)
        for expression in chain.expressions
        for one in expression.parts
        for tree in one.tree.iter_subtrees()
    )
    return "" if by_state else "; partial direct, if it holds them constant"


def _listed(names: frozenset[str]) -> str:
    return f" ({', '.join(sorted(names))})" if names else ""


def choices_of_held(known: Knowledge, chain: Chain) -> Iterator[Choice]:
    """Yield which partial derivatives hold other names constant, and which names; no
    names if it is all those of the definition."""
    direct = known.scope.direct
    if known.now.total:
        return
    partials = [
        tree
        for expression in chain.expressions
        for one in expression.parts
        for tree in one.tree.iter_subtrees()
        if tree.data in HOLDING
        and (not of_loss(one, tree) or of_loss_by_state(one, tree, known.scope))
    ]
    if not partials:
        return
    counts = range(len(partials)) if direct else range(1, len(partials) + 1)
    some = itertools.chain.from_iterable(
        itertools.combinations(partials, count) for count in counts
    )
    for held in itertools.islice(some, CHOICES):
        yield held, frozenset()
    # The derivative of what is held is 0.
    if direct or any(_ZERO.match(one.part.text) for one in chain.expressions):
        return
    variables = known.scope.variables
    names = sorted(
        name
        for name in known.used(chain.expressions)
        if variables[name].kind == "defined" and name != LOSS
    )
    for count in (1, 2) if len(names) <= NAMES else (1,):
        for chosen in itertools.combinations(names[: 2 * NAMES], count):
            yield tuple(partials), frozenset(chosen)
