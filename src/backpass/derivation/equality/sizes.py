"""Choose sizes at which a line has a value.

With more columns than rows, X has no inverse of X^\\top X. A size at which a line
inverts a singular matrix, or divides by 0, says nothing of the line, so other sizes are
tried in its place.
"""

from __future__ import annotations

import itertools
from random import Random

from backpass.derivation.equality.check import (
    TRIALS,
    Chain,
    Evaluators,
    Sizes,
    first_mistake,
)
from backpass.derivation.equality.larger import OneCase
from backpass.derivation.language.evaluate import Evaluator
from backpass.derivation.language.indices import LARGEST
from backpass.derivation.language.parse import Undefined

MOST = 24  # at most so many sizes are tried instead


def defined_at(
    known: Evaluators, chain: Chain, evaluators: list[Evaluator]
) -> list[Evaluator]:
    """Return evaluators like some others, at sizes at which a chain has a value.

    Raises `Undefined` if it has none at any size that is tried.
    """
    draws = [*dict.fromkeys(one.draw for one in evaluators)]
    left = [*{tuple(one.sizes.items()): one.sizes for one in evaluators}.values()]
    usual = len(left)
    left += _others(left)
    one_case = OneCase(**vars(chain))
    found: list[Sizes] = []
    undefined = None
    while left and len(found) < TRIALS:
        number = 0 if usual else _next(found, left)
        usual = max(usual - 1, 0)
        sizes = left.pop(number)
        try:
            first_mistake(one_case, known.at(sizes, draws[0]))
        except Undefined as error:
            undefined = error
        else:
            found.append(sizes)
    if not found:
        assert undefined is not None
        message = f"{undefined.message} at the sizes tried, which are 2, 3, and 4"
        raise Undefined(message, undefined.part, undefined.position)
    if equal := _always_equal(found):
        a, b = equal[0]
        message = f"both sides are defined only where {a} = {b}"
        raise Undefined(message, chain.expressions[-1].part)
    return [known.at(sizes, draw) for sizes in found for draw in draws]


def _always_equal(found: list[Sizes]) -> list[tuple[str, str]]:
    """Return the pairs of dimensions that have the same length in all sizes."""
    return [
        pair
        for pair in itertools.combinations(found[0], 2)
        if all(one[pair[0]] == one[pair[1]] for one in found)
    ]


def _others(usual: list[Sizes]) -> list[Sizes]:
    """Return further sizes, those with few equal lengths first."""
    sides = [*usual[0]]
    random = Random(" ".join(sides))
    drawn: list[tuple[int, ...]] = []
    if len(sides) <= 3:
        drawn += itertools.product(range(2, LARGEST + 1), repeat=len(sides))
    else:
        drawn += [
            tuple(random.randint(2, LARGEST) for _ in sides) for _ in range(4 * MOST)
        ]
    random.shuffle(drawn)
    drawn.sort(key=lambda lengths: -len({*lengths}))
    known = [tuple(one.values()) for one in usual]
    left = [one for one in dict.fromkeys(drawn) if one not in known]
    return [dict(zip(sides, one, strict=True)) for one in left[:MOST]]


def _next(found: list[Sizes], left: list[Sizes]) -> int:
    """Return which sizes distinguish most pairs of lengths that were always equal."""
    pairs = _always_equal(found) if found else [*itertools.combinations(left[0], 2)]

    def distinguished(number: int) -> int:
        return sum(left[number][a] != left[number][b] for a, b in pairs)

    return max(range(len(left)), key=distinguished)
