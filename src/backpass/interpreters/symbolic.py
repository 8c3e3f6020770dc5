"""Arrays of SymPy expressions over the real numbers.

    x = symbolic.array("x", (2, 3))        # x_0_0 … x_1_2
    with symbolic.session() as s:
        y, saved = softmax.forward(x)
    y.to_numpy()                           # an object array of expressions
    s.fresh                                # {max_0: (x_0_0, x_0_1, x_0_2), …}

``max`` returns a fresh symbol that stands for any number. If a derivative with respect
to x holds it fixed, it remains to prove that the derivative with respect to the fresh
symbol vanishes. Comparisons are decided where they are certain (a real symbol is not
−∞, a sum of exponentials is positive), and raise ``Undecided`` where they are not. A
session with a point decides these too, and lists them:

    with symbolic.session(point) as s:     # {x_0: 1/2, x_1: -3/7}
        y, saved = relu.forward(x)
    s.decided                              # {x_0: 1, x_1: -1}, the signs

The results hold wherever the listed expressions have these signs: on an open region
around the point. An equation that is not an identity holds only on a boundary, and is
false in any session. Python's integers stay integers. A float such as 0.1 is read as
the decimal it was written as, 1/10.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral, Rational, Real
from typing import Any

import numpy as np
import sympy

from backpass.expressions import exact
from backpass.interpreters.closed_world import Array, DType, Namespace


class Undecided(ValueError):
    """Raised for a comparison whose result depends on the symbols' values."""


Point = Mapping[sympy.Symbol, sympy.Rational]


class Session:
    """A record of maxima and comparisons.

    ``fresh`` has the symbols that stand for maxima, each with the expressions of which
    it is the maximum. With a point, ``decided`` has the expressions whose signs there
    decided a comparison.
    """

    def __init__(self, point: Point | None = None) -> None:
        self.fresh: dict[sympy.Symbol, tuple[sympy.Expr, ...]] = {}
        self.point = point
        self.decided: dict[sympy.Expr, int] = {}

    def _maximum_of(self, values: tuple[sympy.Expr, ...]) -> sympy.Symbol:
        symbol = sympy.Dummy(f"max_{len(self.fresh)}", real=True)
        self.fresh[symbol] = values
        return symbol

    def _knows(self, difference: sympy.Expr) -> bool:
        """Whether the difference depends on inputs only. Which input a maximum equals
        is not known."""
        return (
            bool(difference.free_symbols)
            and not difference.free_symbols & self.fresh.keys()
        )

    def _sign(self, difference: sympy.Expr) -> int:
        """Return and record the sign that decides a comparison.

        It is 0 if there is no point, or the point does not decide the comparison.
        """
        if self.point is None or not self._knows(difference):
            return 0
        sign = sign_at(difference, self.point)
        if sign:
            self.decided[difference] = sign
        return sign


_session: ContextVar[Session | None] = ContextVar("session", default=None)


@contextmanager
def session(point: Point | None = None) -> Iterator[Session]:
    """Record the maxima and comparisons of the block.

    ``fresh`` has the symbols that ``max`` creates, and ``decided`` the expressions that
    were compared at the point.
    """
    opened = Session(point)
    token = _session.set(opened)
    try:
        yield opened
    finally:
        _session.reset(token)


def sign_at(expr: sympy.Expr, point: Point) -> int:
    """Return an expression's sign at a point: 1, −1, or 0 if it is 0 or unsigned."""
    value = expr.xreplace(
        {symbol: point[symbol] for symbol in sorted(expr.free_symbols, key=str)}
    )
    return 1 if value.is_extended_positive else -1 if value.is_extended_negative else 0


# How a relation is written, and the sign that the difference a − b must have, as
# SymPy's three-valued predicates of the extended reals.
_RELATIONS = {
    operator.eq: ("==", "is_zero"),
    operator.lt: ("<", "is_extended_negative"),
    operator.le: ("<=", "is_extended_nonpositive"),
    operator.gt: (">", "is_extended_positive"),
    operator.ge: (">=", "is_extended_nonnegative"),
}


class _Expressions:
    """The symbolic interpreter's scalars: real SymPy expressions, exact numbers, ±∞."""

    name = "backpass.interpreters.symbolic"
    dtype = DType("real", "real floating")
    pi = sympy.pi

    def constant(self, value: object) -> sympy.Expr:
        if isinstance(value, sympy.Expr):
            if value.has(sympy.Float):
                raise TypeError(
                    f"expected an exact expression; got {value}, in which a number is "
                    "rounded"
                )
            return value
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(
                f"expected a real number or a SymPy expression; got {value!r}"
            )
        if isinstance(value, Integral):
            return sympy.Integer(int(value))
        if isinstance(value, Rational):
            return sympy.Rational(value.numerator, value.denominator)
        number: Any = value  # `Real` promises neither an order nor NumPy's functions
        if np.isfinite(number):
            return sympy.Rational(repr(float(number)))
        return sympy.nan if np.isnan(number) else sympy.oo if number > 0 else -sympy.oo

    def function(self, name: str, x: sympy.Expr) -> sympy.Expr:
        return getattr(sympy, name)(x)

    def compare(self, relation: Callable, a: sympy.Expr, b: sympy.Expr) -> bool:
        if relation is operator.ne:
            return not self.compare(operator.eq, a, b)
        difference = sympy.Integer(0) if a == b else a - b  # so that ∞ equals ∞
        written, predicate = _RELATIONS[relation]
        truth = getattr(difference, predicate)
        if truth is not None:
            return truth
        current = _session.get()
        if relation is operator.eq and current and current._knows(difference):
            return exact.is_zero(difference)
        sign = current._sign(difference) if current else 0
        if sign == 0:
            raise Undecided(
                f"{a} {written} {b} depends on the symbols' values; run a branch "
                "on it with numbers, or with symbols at a point: "
                "`with symbolic.session(point)`"
            )
        return relation(sign, 0)

    def maximum(self, values: Sequence[sympy.Expr]) -> sympy.Expr:
        if all(value.is_number for value in values):
            return sympy.Max(*values)
        if sympy.oo in values:
            return sympy.oo
        current = _session.get()
        if current is None:
            raise RuntimeError(
                "the max of symbols is a fresh symbol, which must be recorded to prove "
                "that nothing depends on it: run this within "
                "`with symbolic.session() as s:`, which lists it in `s.fresh`"
            )
        return current._maximum_of(tuple(values))

    def export(self, values: np.ndarray) -> np.ndarray:
        return values.copy()


xp = Namespace(_Expressions())


def array(name: str, shape: tuple[int, ...], *, positive: bool = False) -> Array:
    """Return an array of real symbols ``x_0``, ``x_1``, …, an index for each axis.

    Without axes, the symbol is ``x``. With ``positive``, the symbols are known to be
    positive. Raises TypeError unless ``name`` is a string.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"name: expected a string such as 'x'; got {name!r}")
    known = {"positive": True} if positive else {"real": True}
    symbols = np.empty(shape, dtype=object)
    for index in np.ndindex(symbols.shape):
        symbols[index] = sympy.Symbol("_".join((name, *map(str, index))), **known)
    return xp.asarray(symbols)
