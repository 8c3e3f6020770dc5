"""Random points, at which comparisons have signs."""

from __future__ import annotations

from random import Random
from typing import TypeAlias

import sympy

# The scales of the numbers of points, and the draws with each of them.
SCALES = (1, sympy.Rational(1, 8), 8, sympy.Rational(1, 64))
DRAWS_OF_A_SCALE = 4
DRAWS = DRAWS_OF_A_SCALE * len(SCALES)
STEPS = 10**6  # numbers are multiples of scale / STEPS, so few are equal

Place: TypeAlias = dict[sympy.Symbol, sympy.Expr]  # a number for each symbol


class Point(dict):
    """A random number for each symbol, drawn when it is first used.

    An odd `draw` has the numbers of the even draw before it with the opposite sign;
    positive symbols have new positive numbers. The scale changes every
    `DRAWS_OF_A_SCALE` draws, in the order of `SCALES`.
    """

    def __init__(self, draw: int, sizes: dict[str, int]) -> None:
        self.draw, self.sizes = draw, sizes

    def __missing__(self, symbol: sympy.Symbol) -> sympy.Rational:
        draw, opposite = (self.draw, 0) if symbol.is_positive else divmod(self.draw, 2)
        least = 0 if symbol.is_positive else -STEPS
        value = SCALES[self.draw // DRAWS_OF_A_SCALE % len(SCALES)] * sympy.Rational(
            2 * Random(f"{symbol} {draw} {self.sizes}").randint(least, STEPS - 1) + 1,
            STEPS,
        )
        self[symbol] = -value if opposite else value
        return self[symbol]
