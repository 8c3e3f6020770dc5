"""Choose some cases of a test that has several choices: enough for any two values to meet in one of them.

If the tested code has changed, and in ``make test-all``, every case runs. Otherwise a few further cases run, which rotate
with the commit, as ``proofs`` draws them.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterable
from pathlib import Path

import proofs


def pairs(*choices: Iterable, of: Iterable[str] = (), meet: int = 2, more: int = 1) -> list[tuple]:
    """Return cases, each with one value of each choice, so that any ``meet`` values of different choices occur together.

    With ``meet=1`` each value occurs. ``more`` of the other cases are added, in rotation. If one of the modules ``of``, or
    a module that they import, has changed, all cases are returned; without ``of``, ``make test-all`` alone runs them.
    """
    choices = [list(values) for values in choices]
    every = [*itertools.product(*(range(len(values)) for values in choices))]
    path = Path(sys._getframe(1).f_code.co_filename)  # of the test
    key = f"pairs:{path.stem}:{'+'.join(of)}:{'x'.join(str(len(values)) for values in choices)}"
    whole = proofs.product_is_whole(key, of, path) if of else proofs.proving() == "all"
    if not whole:
        chosen = _covering(every, meet)
        others = [case for case in every if case not in chosen]
        every = sorted({*chosen, *proofs.sample(key, others, min(1, more / max(1, len(others))))})
    return [tuple(values[at] for values, at in zip(choices, case, strict=True)) for case in every]


def _covering(every: list[tuple[int, ...]], meet: int) -> set[tuple[int, ...]]:
    """Choose cases greedily and reproducibly: always the one in which most values meet that have not met before."""
    parts = {
        case: {*itertools.combinations(enumerate(case), meet)}
        for case in random.Random(0).sample(every, len(every))
    }
    missing, chosen = set().union(*parts.values()), set()
    while missing:
        best = max(parts, key=lambda case: len(parts[case] & missing))
        chosen.add(best)
        missing -= parts[best]
    return chosen
