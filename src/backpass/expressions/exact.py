"""Decide exactly whether SymPy expressions are equal, in a finite field.

`is_zero(expr)` and `equal(a, b)` decide whether an expression is identically zero. They
neither simplify nor round: the expression is evaluated modulo a prime at random points,
which takes microseconds where `simplify` takes seconds.

**Polynomials and fractions.** Every symbol becomes a random residue modulo p, a prime
of 127 bits, and + − × ÷ and integer powers are those of the field. A rational function
that is not zero vanishes at a random point with a probability of at most degree / p
(Schwartz–Zippel). Positive symbols and exponentials are drawn only from the
q = (p − 1)/2 squares, where the bound is degree / q: about 1e-38 for each degree. If a
denominator is zero, a new point is drawn.

**Roots.** p ≡ 3 (mod 4), so −1 is not a square, and exactly one of ±r is a square. √u
is the root of u that is itself a square, which makes √ a function with √a·√b = √(ab).
If u is not a square, a new point is drawn; positive symbols are drawn from the squares.
If √u is not a rational function, A + B√u ≠ 0 has a norm A² − B²u ≠ 0, to which
Schwartz–Zippel applies; likewise for more roots. If it is one, u = v², then √u is v at
the half of the points where v is a square, and −v at the others. If an expression
wrongly takes √u for v, each point shows that with a probability of only 1/2. So an
expression with a root of anything other than a monomial in positive symbols is
evaluated at ROOT_POINTS = 64 points instead of 3.

**Exponentials.** exp(u) and exp(v) multiply to exp(u + v) and are otherwise
independent: exponentials of functions whose differences are not constant are linearly
independent over the rational functions, and for constants this is the
Lindemann–Weierstrass theorem. So exp must map sums to products, and linearly
independent exponents to independent random elements. p = 2q + 1 with q prime, hence the
squares modulo p form a group of prime order q, and

    exp(u) = 4^φ(u),     φ(u) = r₁ u(x₁) + … + r_T u(x_T)   (mod q),

where x_t are T = 12 random points and r_t random weights modulo q. φ is additive, and
on up to T linearly independent functions its values are independent and uniform,
because the matrix of their values at the x_t is regular (Schwartz–Zippel, applied to
its determinant). Exponents may be any rational functions, and in the group of squares
rational powers exist too. Inside an exponent, tanh is drawn from its argument's value,
as erf is everywhere.

**Sines and cosines.** cos(u) + i sin(u) = exp(iu), and modulo p, where −1 is not a
square, i is adjoined as it is to the reals. The elements c + is with c² + s² = 1 form a
group of order p + 1, which has a subgroup of prime order r > 2⁸⁰, and exp(iu) is a
power of its generator as exp(u) is of 4, with φ modulo r. So the addition formulas
hold, also for rational multiples of an angle. What does not follow from them does not
hold, except with a probability of degree / r. A rational multiple of π as a summand has
an algebraic sine, and is rejected unless SymPy itself evaluates it.

**Logarithms.** The log of a product, a power or an exponential is taken apart. The log
of a sum Σ t_k is log t_k plus an element drawn from the value of the sum over t_k,
which is the same however the sum is scaled. exp(log u) = u. `erf` is 0 at 0, odd, and
drawn from its argument's value; hyperbolic functions are written with exp; π is a
positive symbol.

**What "equal" means.** Symbols are real, and two expressions are compared where both
are defined: every radicand and every argument of log is positive, and no denominator
vanishes. This grants √(xy) = √x √y, (√x)² = x and log(x²) = 2 log x, which hold for
positive x and y, the only ones for which their right sides are defined. It does not
grant √(x²) = x, because √(x²) is also defined for a negative x.

**How sure.** For expressions of degree d, "equal" is wrong with a probability of at
most d/q at one point and (d/q)³ at three; if it depends on sines, r replaces q. If it
depends on the sign of one root of a square, it is wrong with a probability of 2⁻⁶⁴,
about 5e-20. If a difference appears for one in 2ᵏ combinations of the signs of k such
roots, the probability is (1 − 2⁻ᵏ)⁶⁴: 1e-8 for k = 2. "Not equal" is certain, except
for identities of log, of erf, and of tanh in an exponent beyond those above, and for
√(v²) = v with a sum v that is positive but not a square, such as 1 + x².

An expression without an image here (a rounded float, |x|, max, an exponential or a sine
of an exponential) raises `NotRepresentable`, which names the sub-expression.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property, lru_cache, partial

import sympy
from sympy.functions.elementary.hyperbolic import HyperbolicFunction

# A safe prime: (P − 1)/2 is prime too. Both are ≡ 3 (mod 4), and 2, 3, 5, 7, 11 and 13
# are squares modulo both.
P = 2**127 - 9_461_889
Q = (P - 1) // 2
R = 1_624_022_287_732_670_192_939_651  # a prime that divides P + 1; ≡ 3 (mod 4)
EXPONENT_POINTS = 12
POINTS = 3
ROOT_POINTS = 64  # if a root may have the other sign
# Each of r independent roots exists at half of the points: ROOT_POINTS · 2^r draws are
# needed.
MAX_DRAWS = 2**14
FEW_DRAWS = 8  # without roots, a point has no value only where a denominator is 0
LONGEST = 100_000  # nodes of an expression that is expanded
MEMORY = 10_000  # values that a point remembers before it forgets all of them


class NotRepresentable(ValueError):
    """Raised for an expression that has no image in the field. ``part`` is the part
    without one, and ``reason`` says why."""

    def __init__(self, part, reason: str) -> None:
        text = str(part)
        super().__init__(f"{text if len(text) <= 200 else text[:200] + ' …'}: {reason}")
        self.part, self.reason = part, reason


class _NoValueHere(Exception):
    """Raised if the point is a pole, or a root does not exist there."""


def is_zero(expr) -> bool:
    """Whether a SymPy expression (or a number) is zero wherever it is defined.

    Raises `NotRepresentable`.
    """
    return equal(expr, sympy.S.Zero)


def equal(a, b) -> bool:
    """Whether two SymPy expressions (or numbers) are equal wherever both are defined.

    Raises `NotRepresentable`.
    """
    a, b = sympy.sympify(a), sympy.sympify(b)
    if a == b:
        if a.has(sympy.nan, sympy.zoo):
            raise NotRepresentable(a, "it divides by 0 everywhere")
        return True
    is_unsure = _has_unsure_root(a) or _has_unsure_root(b)
    draws = MAX_DRAWS if _has_root(a) or _has_root(b) else FEW_DRAWS
    return _agree(a, b, _point, ROOT_POINTS if is_unsure else POINTS, draws)


def _agree(
    a, b, point_of: Callable[[int], _MainPoint], needed: int, draws: int = MAX_DRAWS
) -> bool:
    """Whether two expressions have the same value at ``needed`` points."""
    agreed = 0
    for draw in range(draws):
        point = point_of(draw)
        try:
            if point.value(a) != point.value(b):
                return False
        except _NoValueHere:
            continue
        agreed += 1
        if agreed == needed:
            return True
    raise NotRepresentable(
        a - b,
        f"it has no value at any of {draws} points (a root of a negative number, or "
        "1/0?)",
    )


def _none(symbol: sympy.Symbol) -> None:
    """Return None: every symbol stands for itself."""


class Definitions:
    """Equality of expressions whose symbols stand for expressions.

    ``definition_of(symbol)`` returns what a symbol stands for, or None if it stands for
    itself. ``expand(expr)`` replaces every such symbol. Evaluating definitions takes
    less time than expanding them, so only expressions whose value depends on the form
    of an argument, such as a root's or a log's, are expanded.
    """

    def __init__(
        self,
        definition_of: Callable[[sympy.Symbol], sympy.Expr | None],
        expand: Callable[[sympy.Expr], sympy.Expr],
    ) -> None:
        self.definition_of, self.expand = definition_of, expand
        self._goes_by_form = lru_cache(maxsize=MEMORY)(self._has_root_or_log)
        self._point = cache(partial(_MainPoint, definition_of=definition_of))
        nested = partial(_MainPoint, definition_of=definition_of, nests=True)
        self._nesting_point = cache(nested)
        self._unsure = lru_cache(maxsize=MEMORY)(self._is_unsure)
        self._length = lru_cache(maxsize=MEMORY)(self._length_of)

    def is_zero(self, expr: sympy.Expr) -> bool:
        """Whether an expression is zero wherever it is defined.

        Raises `NotRepresentable`.
        """
        return self.equal(expr, sympy.S.Zero)

    def equal(self, a: sympy.Expr, b: sympy.Expr) -> bool:
        """Whether two expressions are equal wherever both are defined.

        An exponential inside an exponent is an unknown function of its own exponent.
        Expressions that are equal for every such function are equal; of others nothing
        is known. Raises `NotRepresentable`.
        """
        if a == b:
            return equal(a, b)
        by_form = self._goes_by_form(a) or self._goes_by_form(b)
        if not by_form:
            try:
                return _agree(a, b, self._point, POINTS, FEW_DRAWS)
            except NotRepresentable:
                pass  # what has no image may cancel in the expansion
            try:
                if _agree(a, b, self._nesting_point, POINTS, FEW_DRAWS):
                    return True
            except NotRepresentable:
                pass
        if max(self._length(a), self._length(b)) > LONGEST:
            with suppress(NotRepresentable):
                if equal(a, b):  # also if each symbol stands for itself
                    return True
            raise NotRepresentable(a - b, "it is too long with its definitions")
        return equal(self.expand(a), self.expand(b))

    def _length_of(self, expr: sympy.Expr) -> int:
        """Return how many nodes an expression has when its definitions are expanded."""
        if expr.is_Symbol and (definition := self.definition_of(expr)) is not None:
            return self._length(definition)
        return 1 + sum(map(self._length, expr.args))

    def is_unsure(self, expr: sympy.Expr) -> bool:
        """Whether an expression that was found to differ from another may equal it: it
        has a log, a root of a sum, or a tanh inside an exponent or another tanh."""
        return self._unsure(expr, False)

    def _is_unsure(self, expr: sympy.Expr, in_exponent: bool) -> bool:
        if expr.is_Symbol and (definition := self.definition_of(expr)) is not None:
            return self._unsure(definition, in_exponent)
        root = expr.is_Pow and not expr.exp.is_Integer
        if root and not _is_square_everywhere(expr.base):
            return True
        if isinstance(expr, sympy.log):
            return True
        if isinstance(expr, sympy.exp | HyperbolicFunction):
            if in_exponent:
                return True
            in_exponent = True
        return any(self._unsure(argument, in_exponent) for argument in expr.args)

    def _has_root_or_log(self, expr: sympy.Expr) -> bool:
        if expr.is_Symbol and (definition := self.definition_of(expr)) is not None:
            return self._goes_by_form(definition)
        if isinstance(expr, sympy.log | sympy.cos | sympy.sin):
            return True
        if expr.is_Pow and not expr.exp.is_Integer:
            used = map(self.definition_of, expr.base.free_symbols)
            if any(found is not None for found in used) or not _is_square_everywhere(
                expr.base
            ):
                return True
        return any(map(self._goes_by_form, expr.args))


@cache
def _point(draw: int) -> _MainPoint:
    return _MainPoint(draw)


class _Point:
    """A random point over the field of `prime` elements.

    It remembers the values of expressions there.
    """

    def __init__(self, prime: int, seed: str, definition_of=_none) -> None:
        self.prime, self.seed, self.definition_of = prime, seed, definition_of
        # The number of non-zero squares, which is odd because prime ≡ 3 (mod 4).
        self.squares = (prime - 1) // 2
        # By id: the expression, kept so that no other gets its id, and its value.
        self._known: dict = {}

    def random(self, name: str) -> int:
        digest = hashlib.blake2b(
            f"{self.seed} {name}".encode(), digest_size=32
        ).digest()
        return int.from_bytes(digest, "big") % self.prime

    def value(self, expr) -> int:
        # Remembered by identity: to find an equal expression, SymPy would compare whole
        # trees, which takes longer.
        if (found := self._known.get(id(expr))) is not None:
            if found[1] is None:
                raise _NoValueHere
            return found[1]
        if len(self._known) > MEMORY:
            self._known.clear()
        try:
            value = self._compute(expr)
        except _NoValueHere:
            self._known[id(expr)] = expr, None
            raise
        self._known[id(expr)] = expr, value
        return value

    def _compute(self, expr) -> int:
        if expr.is_Add:
            return sum(map(self.value, expr.args)) % self.prime
        if expr.is_Mul:
            product = 1
            for factor in expr.args:
                product = product * self.value(factor) % self.prime
            return product
        if expr.is_Symbol:
            if (definition := self.definition_of(expr)) is not None:
                return self.value(definition)
            value = self.random(_identity(expr))
            return value * value % self.prime if expr.is_positive else value
        if expr.is_Rational:
            return int(expr.p) * self.inverse(int(expr.q)) % self.prime
        if expr.is_Float:
            raise NotRepresentable(expr, "a float is rounded; write a Rational")
        if isinstance(expr, sympy.exp) or expr is sympy.E:
            return self.exp(expr)
        if expr.is_Pow:
            return self.power(expr)
        if expr is sympy.pi:
            return pow(self.random("pi"), 2, self.prime)
        if isinstance(expr, sympy.log):
            return self.log(expr.args[0])
        if isinstance(expr, sympy.erf):
            return self.odd(expr)
        if isinstance(expr, sympy.cos | sympy.sin):
            return self.cos_and_sin(expr.args[0])[isinstance(expr, sympy.sin)]
        if isinstance(expr, HyperbolicFunction):
            return self.hyperbolic(expr)
        raise NotRepresentable(expr, f"{type(expr).__name__} has no image in the field")

    def odd(self, expr) -> int:
        """Return an element drawn from the value of an odd function's argument."""
        argument = self.value(expr.args[0])
        if argument == 0:
            return 0
        sign, key = (
            (1, argument) if argument <= self.squares else (-1, self.prime - argument)
        )
        return sign * self.random(f"{type(expr).__name__} {key}") % self.prime

    def hyperbolic(self, expr) -> int:
        return self.value(expr.rewrite(sympy.exp))

    def exp(self, expr) -> int:
        raise NotImplementedError

    def cos_and_sin(self, angle) -> tuple[int, int]:
        raise NotImplementedError

    def inverse(self, value: int) -> int:
        if value % self.prime == 0:
            raise _NoValueHere
        return pow(value, -1, self.prime)

    def power(self, expr) -> int:
        base, exponent = expr.args
        if exponent.is_Integer:
            value = self.value(base)
            return (
                pow(value, int(exponent), self.prime)
                if exponent >= 0
                else pow(self.inverse(value), -int(exponent), self.prime)
            )
        if exponent.is_Rational:
            if any(
                factor.is_Add and factor.is_number
                for factor in sympy.Mul.make_args(base)
            ):
                raise NotRepresentable(
                    expr, "a root of a number must be of a rational number or π"
                )
            return self.root(expr, self.value(base), exponent)
        raise NotRepresentable(
            expr, "the exponent of a power must be a rational number"
        )

    def root(self, expr, value: int, exponent) -> int:
        """Return value^exponent in the group of squares, which must contain value."""
        if value == 0 or pow(value, self.squares, self.prime) != 1:
            if not expr.free_symbols:
                raise NotRepresentable(
                    expr, "the root has no value modulo the prime in use"
                )
            raise _NoValueHere
        return pow(
            value,
            int(exponent.p) * pow(int(exponent.q), -1, self.squares) % self.squares,
            self.prime,
        )

    def log(self, argument) -> int:
        if argument.is_Mul:
            return sum(self.log(factor) for factor in argument.args) % self.prime
        if isinstance(argument, sympy.exp):
            return self.value(argument.args[0])
        if argument.is_Pow:
            return self.log(argument.base) * self.value(argument.exp) % self.prime
        if argument.is_Rational and not argument.is_Integer:
            return (
                self.log(sympy.Integer(argument.p))
                - self.log(sympy.Integer(argument.q))
            ) % self.prime
        if argument.is_Integer and argument > 0:
            factors = sympy.factorint(argument)
            return (
                sum(
                    times * self.random(f"log {prime}")
                    for prime, times in factors.items()
                )
                % self.prime
            )
        if argument.is_Add:
            return self.log_of_sum(argument)
        if argument.is_Number:
            raise NotRepresentable(
                sympy.log(argument, evaluate=False),
                "the logarithm needs a positive argument",
            )
        return self.random(f"log {self.value(argument)}")

    def log_of_sum(self, argument) -> int:
        """Return log t + (an element drawn from the value of argument / t), where t is
        the term for which that value is smallest."""
        total = self.value(argument)
        positive = [
            term for term in argument.args if term.as_coeff_Mul()[0].is_positive
        ]
        ratios = [
            (total * self.inverse(self.value(term)) % self.prime, term)
            for term in positive
        ]
        if not ratios:
            return self.random(f"log {total}")
        ratio, term = min(ratios, key=lambda pair: pair[0])
        return (self.log(term) + self.random(f"log {ratio}")) % self.prime


class _MainPoint(_Point):
    """A point modulo P, with points modulo Q for the exponents and modulo R for the
    angles."""

    def __init__(self, draw: int, definition_of=_none, nests: bool = False) -> None:
        super().__init__(P, f"main {draw}", definition_of)
        self.draw, self.nests = draw, nests

    @cached_property
    def exponent_points(self) -> list[_ExponentPoint]:
        return self._points(Q, "exponent")

    @cached_property
    def angle_points(self) -> list[_ExponentPoint]:
        return self._points(R, "angle")

    def _points(self, prime: int, what: str) -> list[_ExponentPoint]:
        seeds = (f"{what} {self.draw} {t}" for t in range(EXPONENT_POINTS))
        return [
            _ExponentPoint(prime, seed, self.definition_of, self.nests)
            for seed in seeds
        ]

    def exp(self, expr) -> int:
        exponent = expr.args[0] if expr.args else sympy.S.One
        product, total = 1, 0
        for term in sympy.Add.make_args(exponent):
            coefficient, rest = term.as_coeff_Mul()
            if isinstance(rest, sympy.log):
                product = product * self.value(sympy.Pow(rest.args[0], coefficient)) % P
            else:
                total += sum(
                    point.weight * point.value(term) for point in self.exponent_points
                )
        return product * pow(4, total % Q, P) % P

    def cos_and_sin(self, angle) -> tuple[int, int]:
        for term in sympy.Add.make_args(angle):
            if term.as_coeff_Mul()[1] is sympy.pi:
                raise NotRepresentable(
                    term, "an angle must not have a multiple of π as a summand"
                )
        return _turned(
            _TURN,
            sum(point.weight * point.value(angle) for point in self.angle_points) % R,
        )


def _turned(turn: tuple[int, int], times: int) -> tuple[int, int]:
    """Return (c + is)^times modulo P."""
    c, s = 1, 0
    for bit in f"{times:b}":
        c, s = (c * c - s * s) % P, 2 * c * s % P
        if bit == "1":
            c, s = (c * turn[0] - s * turn[1]) % P, (c * turn[1] + s * turn[0]) % P
    return c, s


# Of order R: (3 + 4i)/5 lies on the unit circle, whose group has P + 1 elements.
_TURN = _turned((3 * pow(5, -1, P) % P, 4 * pow(5, -1, P) % P), (P + 1) // R)


class _ExponentPoint(_Point):
    """A point for exponents or angles, with its weight.

    It has no transcendental functions, and only roots of numbers and positive symbols.
    If it `nests`, an exponential is drawn from the value of its exponent.
    """

    def __init__(self, prime: int, seed: str, definition_of, nests: bool) -> None:
        super().__init__(prime, seed, definition_of)
        self.nests = nests
        self.weight = self.random("weight")

    def root(self, expr, value: int, exponent) -> int:
        if not _is_square_everywhere(expr.base):
            raise NotRepresentable(
                expr,
                "inside an exponent or angle, a root must be of numbers and positive "
                "symbols",
            )
        return super().root(expr, value, exponent)

    def log(self, argument) -> int:
        raise NotRepresentable(
            sympy.log(argument),
            "a logarithm inside an angle, or inside an exponent but not a summand of it",
        )

    def hyperbolic(self, expr) -> int:
        return self.odd(expr) if expr.func is sympy.tanh else super().hyperbolic(expr)

    def exp(self, expr) -> int:
        if not self.nests:
            raise NotRepresentable(expr, "an exponential inside an exponent or angle")
        exponent = self.value(expr.args[0]) if expr.args else 1
        if exponent <= self.squares:
            return self.random(f"exp {exponent}") if exponent else 1
        return self.inverse(self.random(f"exp {self.prime - exponent}"))

    def cos_and_sin(self, angle) -> tuple[int, int]:
        raise NotRepresentable(
            sympy.cos(angle), "a sine or cosine inside an exponent or angle"
        )


@cache
def _identity(symbol) -> str:
    """Return a string that identifies a symbol: its class, name and assumptions."""
    return sympy.srepr(symbol)


@lru_cache(maxsize=MEMORY)
def _has_unsure_root(expr) -> bool:
    """Whether an expression has a root that may differ in sign from the real one."""
    if expr.is_Pow and not expr.exp.is_Integer and not _is_square_everywhere(expr.base):
        return True
    if isinstance(expr, sympy.exp) and expr.has(sympy.log):  # exp(log(u) / 2) is a root
        return True
    return any(map(_has_unsure_root, expr.args))


@lru_cache(maxsize=MEMORY)
def _has_root(expr) -> bool:
    """Whether an expression may have no value at many points because of a root."""
    if isinstance(expr, sympy.log) or (expr.is_Pow and not expr.exp.is_Integer):
        return True
    return any(map(_has_root, expr.args))


def _is_square_everywhere(radicand) -> bool:
    """Whether a radicand is positive, and a square at every point: a monomial in
    positive symbols."""
    if radicand.is_Mul:
        return all(map(_is_square_everywhere, radicand.args))
    if radicand.is_Pow:
        return _is_square_everywhere(radicand.base)
    return bool(
        radicand.is_number
        or isinstance(radicand, sympy.exp)
        or (radicand.is_Symbol and radicand.is_positive)
    )
