"""Compare at a larger size where a length occurs as a number.

An equation in which n is a number may hold at the sizes 2, 3, and 4 alone, as
n^3 + 26 n = 9 n^2 + 24 does. A fourth size, drawn from 5 to 9, refutes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random

from backpass.derivation.equality.check import Chain, Sizes
from backpass.derivation.language.evaluate import Evaluator
from backpass.derivation.language.names import Expression, Scope

LARGER = range(5, 10)
# Two lengths differ by at least 3, because their difference may be a factor too.
_PAIRS = ((5, 8), (5, 9), (6, 9))


@dataclass(frozen=True)
class OneCase(Chain):
    """A chain at one value of each free index, drawn at random."""

    def cases(self, evaluator: Evaluator) -> Iterator[dict[str, int]]:
        cases = [*super().cases(evaluator)]
        if cases:
            yield Random(str(evaluator.sizes)).choice(cases)


def larger_sizes(scope: Scope, expressions: Iterable[Expression]) -> Sizes:
    """Return a size from 5 to 9 for each dimension that occurs as a number, and 2 for
    the others; {} if none does."""
    used = {r.name for e in expressions for r in e.used if r.kind == "dimension"}
    as_numbers = [side for side in scope.dimensions if side in used]
    if not as_numbers:
        return {}
    random = Random(" ".join(scope.dimensions))
    pair = list(random.choice(_PAIRS))
    random.shuffle(pair)
    others = [size for size in LARGER if size not in pair]
    random.shuffle(others)
    drawn = [*pair, *others, *LARGER]
    found = {
        side: drawn[k] if k < len(drawn) else LARGER[k % len(LARGER)]
        for k, side in enumerate(as_numbers)
    }
    return {side: found.get(side, 2) for side in scope.dimensions}
