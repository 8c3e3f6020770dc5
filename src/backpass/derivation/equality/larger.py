"""Compare at a larger size where the usual sizes may say little.

An equation in which n is a number may hold at the sizes 2, 3, and 4 alone, as
n^3 + 26 n = 9 n^2 + 24 does. A fourth size, drawn from 5 to 9, refutes it. A sum over
five indices in increasing order, or up to n-4, has no term at the usual sizes. There,
the fourth size is one at which it has several.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random

from lark import Token, Tree

from backpass.derivation.equality.check import Chain, Sizes
from backpass.derivation.language.evaluate import Evaluator
from backpass.derivation.language.indices import letter_of
from backpass.derivation.language.names import Expression, Reference, Scope

LARGER = range(5, 10)
# Two lengths differ by at least 3, because their difference may be a factor too.
_PAIRS = ((5, 8), (5, 9), (6, 9))
LOW, HIGH = 2, 9  # a polynomial of degree 2 that is 0 at 2, 3, and 4 is 0
_FEW = 3  # with 3 indices above another one, or up to n-3, a sum has one term at size 4
# The names whose values depend on a length, or on an index as a number.
_COUNTING = ("index", "identity", "ones", "delta")


@dataclass(frozen=True)
class OneCase(Chain):
    """A chain at one value of each free index, drawn at random."""

    def cases(self, evaluator: Evaluator) -> Iterator[dict[str, int]]:
        cases = [*super().cases(evaluator)]
        if cases:
            yield Random(str(evaluator.sizes)).choice(cases)


def larger_sizes(
    scope: Scope, chain: Chain, definitions: Iterable[Expression]
) -> Sizes:
    """Return a size from 5 to 9 for each dimension that occurs as a number, and 2 for
    the others; {} if none does, or only in a polynomial of so low a degree that three
    sizes determine it."""
    expressions = (*chain.expressions, *definitions)
    used = {r.name for e in expressions for r in e.used if r.kind == "dimension"}
    if any(degree_of(one, scope) > LOW for one in chain.expressions):
        used |= _counted(scope, chain, expressions)
    as_numbers = [side for side in scope.dimensions if side in used]
    least = _least_sizes(scope, expressions)
    if not (as_numbers or least):
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
    return {
        side: max(found.get(side, LOW), least.get(side, LOW))
        for side in scope.dimensions
    }


def _least_sizes(scope: Scope, expressions: Iterable[Expression]) -> dict[str, int]:
    """Return the sizes at which each sum or product has several terms, for the
    dimensions of those that may have none, or one, at the usual sizes."""
    found: dict[str, int] = {}

    def visit(one: Expression, tree: Tree, depth: int) -> None:
        if tree.data == "big" and id(tree) in one.ranges:
            pairs = one.ranges[id(tree)]
            depth += _is_bounded(tree, {letter for letter, _ in pairs}, scope)
            left_out = max(depth, _cut_off(tree))
            for _, side in pairs:
                if left_out >= _FEW and side in scope.dimensions:
                    found[side] = max(found.get(side, 0), left_out + 2)
        for child in tree.children:
            if isinstance(child, Tree):
                visit(one, child, depth)

    for one in (part for whole in expressions for part in whole.parts):
        visit(one, one.tree, 0)
    return found


def _is_bounded(tree: Tree, own: set[str], scope: Scope) -> bool:
    """Whether the range of a sum depends on an index outside it."""
    tokens = [
        token
        for limits in tree.children[1:-1]
        for token in limits.scan_values(lambda one: isinstance(one, Token))
        if token.type in ("INDEX", "SHIFTED", "LETTER")
    ]
    letters = {letter_of(token).strip() for token in tokens}
    return any(
        not one.isdigit() and one not in own and one not in scope.dimensions
        for one in letters
    )


def _cut_off(tree: Tree) -> int:
    """Return by how much a sum ends before its last index: 2 for n-2."""
    (*_, upper, _) = tree.children
    if not (isinstance(upper, Tree) and upper.data == "upper"):
        return 0
    sign, number = ([None, None, *upper.children])[-2:]
    return int(str(number)) if sign == "-" else 0


def _counted(scope: Scope, chain: Chain, expressions: Iterable[Expression]) -> set[str]:
    """Return the dimensions on which a number may depend: those of indices that occur
    as numbers, of identities, and of ones."""
    found: set[str] = set()
    for one in (part for whole in expressions for part in whole.parts):
        sides = {**scope.times, **chain.free}
        sides |= {
            letter: side for pairs in one.ranges.values() for letter, side in pairs
        }
        counting = [r for r in one.references.values() if r.kind in _COUNTING]
        for reference in counting:
            names = [reference.name, *map(letter_of, reference.indices)]
            found |= {sides.get(name, name) for name in names}
        if not counting or any(r.kind == "delta" for r in counting):
            found |= {*sides.values()}
    return found


def degree_of(
    expression: Expression, scope: Scope, known: dict[int, int] | None = None
) -> int:
    """Return a bound of the degree of an expression as a polynomial in the lengths and
    indices that it depends on, at most `HIGH`; `HIGH` if it may not be one.

    An element of an array counts as a number that does not depend on its length.
    """
    return min(_Degrees(expression, scope, {} if known is None else known).of(), HIGH)


class _Degrees:
    def __init__(
        self, expression: Expression, scope: Scope, known: dict[int, int]
    ) -> None:
        self.expression, self.scope, self.known = expression, scope, known

    def of(self) -> int:
        key = id(self.expression)
        if key not in self.known:
            self.known[key] = 0  # in a recurrence
            self.known[key] = self.visit(self.expression.tree)
        return self.known[key]

    def visit(self, tree: Tree) -> int:
        found = self.expression.references.get(id(tree))
        if found is not None:
            return self._of_name(found)
        degrees = [self.visit(one) for one in tree.children if isinstance(one, Tree)]
        first, last = (degrees[0], degrees[-1]) if degrees else (0, 0)
        if tree.data == "sum" and id(tree) not in self.expression.sums:
            return max(degrees)
        if tree.data == "power":
            return self._of_power(tree, first, last)
        if tree.data == "big":
            return self._of_big(tree, last)
        if tree.data == "call" or id(tree) in self.expression.calls:
            # What is differentiated may not have been called itself.
            calls = self.expression.calls.get(id(tree))
            if sum(degrees) or not calls:
                return HIGH
            return max(degree_of(one.body, self.scope, self.known) for one in calls)
        if tree.data == "apply" and last:
            name = str(tree.children[0].children[0])
            return last if name.endswith(("{tr}", "{diag}")) else HIGH
        if tree.data == "norm":
            return HIGH if first else 0
        return min(sum(degrees), HIGH)

    def _of_name(self, found: Reference) -> int:
        if found.kind in _COUNTING:
            return 1
        variable = self.scope.variables.get(found.name)
        if found.kind != "variable" or variable is None or not variable.definition:
            return 0
        return degree_of(variable.definition, self.scope, self.known)

    def _of_power(self, tree: Tree, base: int, exponent: int) -> int:
        written = tree.children[1]
        if exponent:
            return HIGH
        if written.data == "number":
            return base * int(float(str(written.children[0])))
        is_array = written.data in ("top", "letter_and_top")
        return base if is_array else HIGH * bool(base)

    def _of_big(self, tree: Tree, body: int) -> int:
        letters = [letter for letter, _ in self.expression.ranges[id(tree)]]
        tokens = {*map(letter_of, tree.children[-1].scan_values(lambda one: True))}
        constant = not all(letter in tokens for letter in letters)
        if tree.children[0] == r"\sum":
            return body + len(letters) * (bool(body) or constant)
        return HIGH * (bool(body) or constant)
