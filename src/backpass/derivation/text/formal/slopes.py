"""Derivatives of formulas, by rules that hold for all functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from backpass.derivation.text.formal.algebra import (
    Algebra,
    Form,
    Powers,
)
from backpass.derivation.text.formal.kinds import is_array, is_vector
from backpass.derivation.text.formal.layers import gradient, is_loss
from backpass.derivation.text.formal.rewrites import differential_of
from backpass.derivation.text.formal.trees import (
    Node,
    Unclear,
    number,
    power,
    product,
)
from backpass.derivation.text.formal.turns import scalars, turned_of

ZERO, ONE = number(0), number(1)
_DEPTH = 14


@dataclass(frozen=True)
class Meaning:
    """What a text says of its names.

    `value` is the formula that defines a name or the value of a function, or None;
    `is_input` says whether nothing in the text depends on a name's being computed;
    `users` are the names whose definitions contain a name, or None if that is unknown.
    `fact` is the value that a line of the text shows a derivative to have.
    """

    value: Callable[[Node], Node | None]
    is_input: Callable[[Node], bool]
    users: Callable[[Node], list[Node] | None]
    fact: Callable[[Node], Node | None]


def base(node: Node) -> tuple[str, tuple[str, ...]]:
    """Return a name without its indices."""
    return node.value, node.sups


def names(node: Node) -> set[tuple[str, tuple[str, ...]]]:
    return {base(one) for one in node.walk() if one.kind == "name"}


class Calculus(Algebra):
    """Computes forms with derivatives.

    - `expand`: whether names stand for the formulas that define them.
    - `through`: whether a name without a definition depends on others through all
      names that are computed from these.
    - `kept`: names that do not stand for formulas. If they are given, gradients of
      losses by arrays go through the layers that are computed from these.
    """

    def __init__(
        self,
        meaning: Meaning,
        ordered: bool,
        expand: bool,
        through: bool = False,
        columns: bool = False,
        identity: bool = False,
        kept: frozenset[str] | None = None,
    ) -> None:
        super().__init__(ordered, columns, identity)
        self.kept = kept or frozenset()
        self.layers = kept is not None and ordered and columns
        self.meaning, self.expand, self.through = meaning, expand, through
        self.used: dict[str, Node] = {}  # names that were expanded
        self.inputs: set[str] = set()  # names of which a derivative is 0
        self.outputs: set[tuple[Node, Node, Node]] = set()
        self.facts: list[Node] = []
        self.shaped = False  # whether a gradient by an array has its shape
        self._depth = 0

    # ---- names -----------------------------------------------------------------------

    def value(self, node: Node) -> Node | None:
        """Return the formula that a name, or a function's value, stands for."""
        if not self.expand or node.value in self.kept:
            return None
        found = self.meaning.value(node)
        if found is not None:
            name = node if node.kind == "name" else node.parts[0]
            self.used.setdefault(name.value, name)
        return found

    def _expanded(self, node: Node) -> Form | None:
        found = self.value(node)
        if found is None:
            return None
        self._depth += 1
        if self._depth > _DEPTH:
            raise Unclear("definitions that go round")
        try:
            return self.form(found)
        finally:
            self._depth -= 1

    def _of_name(self, node: Node) -> Form:
        return self._expanded(node) or super()._of_name(node)

    def _of_apply(self, node: Node) -> Form:
        return self._expanded(node) or super()._of_apply(node)

    # ---- derivatives -----------------------------------------------------------------

    def _of_slope(self, node: Node) -> Form:
        of, by = node.parts
        if (fact := self.meaning.fact(node)) is not None and self.expand:
            self.facts.append(node)
            return self.form(fact)
        if self.ordered:
            return self._linear_slope(of, by)
        found = self.slope(of, by)
        if found.kind == "slope" and found.parts[1] == by:
            of = found.parts[0]
            if of.kind not in ("name", "slope"):
                found = replace(found, parts=(self._inside(of), by))
            return self._atom(found)
        if found == ZERO and self.inputs:
            raise Unclear(
                "the text does not say that one of the names depends on the other"
            )
        return self.form(found)

    def _inside(self, of: Node) -> Node:
        if of.kind == "apply":
            name, *rest = of.parts
            return replace(of, parts=(name, *map(self.canonical, rest)))
        return of

    def _linear_slope(self, of: Node, by: Node) -> Form:
        """Return the form of a derivative of arrays: of numbers such as x^\\top A y, in
        the shape of what it is taken by; otherwise, it is only linear."""
        found: Form = {}
        for (powers, sequence), count in self.form(of).items():
            term: Form = {(powers, sequence): Fraction(1)}
            one = self._of_scalar(powers, sequence, by)
            if one is None:
                one = self._within(term, by)
            if one is None and self.layers and not powers:
                one = self._by_layer(sequence, by)
            if one is None:
                one = self._atom(Node("slope", "", (self.node_of(term), by)))
            found = self.added(found, one, count)
        if not found and self.inputs:
            raise Unclear(
                "the text does not say that one of the names depends on the other"
            )
        return found

    def _by_layer(self, sequence: tuple[Node, ...], by: Node) -> Form | None:
        """Return the gradient of a loss by an array through all that is computed from
        it; None if that is not known."""
        if len(sequence) != 1 or not is_loss(sequence[0]) or by.kind != "name":
            return None
        (loss,) = sequence
        users = self.meaning.users(by)
        if not users or any(base(one) in (base(by), base(loss)) for one in users):
            return None
        self._depth += 1
        if self._depth > _DEPTH:
            raise Unclear("definitions that go round")
        found: Form = {}
        for one in users:
            value = self.meaning.value(one)
            if value is None:
                return None
            plain = Algebra(True, True, self.identity)
            try:
                node = gradient(loss, one, by, plain.form(value))
            except Unclear:
                self._depth -= 1
                return None
            self.outputs.add((loss, by, one))
            found = self.added(found, self.form(node))
        self._depth -= 1
        return found

    def _within(self, term: Form, by: Node) -> Form | None:
        """Return the derivative of an integral as an integral; None for other terms."""
        node = self.node_of(term)
        if node.kind != "big" or node.value != "int":
            return None
        if (split := differential_of(node)) is None:
            return None
        body, mark, variable = split
        if variable == by:
            return None
        inside = _times(Node("slope", "", (body, by)), mark, variable)
        return self.form(replace(node, parts=(inside,)))

    def _of_scalar(
        self, powers: Powers, sequence: tuple[Node, ...], by: Node
    ) -> Form | None:
        """Return the derivative of a number by a vector or a matrix in it; None if it
        is not one for which there is a rule."""
        if not self.columns or by.kind != "name":
            return None
        pieces = scalars(sequence) if sequence else ()
        if pieces is None or not all(
            self._is_apart(one, by) for one in [atom for atom, _ in powers]
        ):
            return None
        if not (is_vector(by) or is_array(by)):
            return None
        found: Form = {}
        self.shaped = True
        for number_, piece in enumerate(pieces):
            rest = [one for at, one in enumerate(pieces) if at != number_]
            others = tuple(node for one in rest for node in one)
            for at, node in enumerate(piece):
                inner = node.parts[0] if node.kind == "top" else node
                if inner != by:
                    if not self._is_apart(inner, by):
                        return None
                    continue
                before, after = piece[:at], piece[at + 1 :]
                if rest and not is_vector(by):
                    return None
                made = self._gradient(before, after, node.kind == "top")
                term = (
                    self._key(dict(powers), made + others)
                    if others
                    else (
                        powers,
                        made,
                    )
                )
                found = self.added(found, {term: Fraction(1)})
        return found

    def _gradient(
        self, before: tuple[Node, ...], after: tuple[Node, ...], is_top: bool
    ) -> tuple[Node, ...]:
        """Return the derivative of p X q by X, which is p^\\top q^\\top, or that of
        p X^\\top q, which is q p."""
        if is_top:
            return after + before
        turned = [tuple(turned_of(one) for one in reversed(a)) for a in (before, after)]
        return turned[0] + turned[1]

    def _is_apart(self, node: Node, by: Node) -> bool:
        """Whether a node surely does not depend on a name."""
        for one in node.walk():
            if one.kind in ("slope", "apply"):
                return False
            if one.kind == "name":
                if base(one) == base(by) or not (
                    self.meaning.is_input(one) or one.value == "e"
                ):
                    return False
                self.inputs.add(one.value)
        return True

    def slope(self, of: Node, by: Node) -> Node:
        """Return a derivative as a formula. Raises `Unclear`."""
        if of == by:
            if is_array(by):
                raise Unclear("an array by itself")
            return ONE
        method = getattr(self, f"_by_{of.kind}", None)
        if method is None:
            raise Unclear(f"the derivative of a {of.kind}")
        found: Node = method(of, by)
        return found

    def _by_number(self, of: Node, by: Node) -> Node:
        return ZERO

    def _by_name(self, of: Node, by: Node) -> Node:
        if by.kind == "name" and base(of) == base(by):
            delta = _deltas(of, by)
            if delta == ZERO:  # h_3 may be computed from h_2
                if not self.meaning.is_input(of):
                    return Node("slope", "", (of, by))
                self.inputs.add(of.value)
            return delta
        if by.value in of.tokens:  # \\pi_\\theta depends on \\theta
            return Node("slope", "", (of, by))
        if (value := self.value(of)) is not None:
            self._depth += 1
            if self._depth > _DEPTH:
                raise Unclear("definitions that go round")
            try:
                return self.slope(value, by)
            finally:
                self._depth -= 1
        if self.meaning.is_input(of):
            self.inputs.add(of.value)
            return ZERO
        if self.through and (found := self._through(of, by)) is not None:
            return found
        return Node("slope", "", (of, by))

    def _through(self, of: Node, by: Node) -> Node | None:
        """Return the derivative of a name without a definition by the chain rule;
        None if nothing is computed from the other name."""
        if by.kind != "name" or is_array(by):
            return None
        users = self.meaning.users(by)
        if not users or any(base(one) == base(of) for one in users):
            return None
        terms = []
        for one in users:
            self.outputs.add((of, by, one))
            self._depth += 1
            if self._depth > _DEPTH:
                raise Unclear("definitions that go round")
            first = self._by_name(of, one)
            second = self._by_name(one, by)
            self._depth -= 1
            terms.append(_times(first, second))
        return _plus(*terms)

    def _by_minus(self, of: Node, by: Node) -> Node:
        found = self.slope(of.parts[0], by)
        return ZERO if found == ZERO else Node("minus", "", (found,))

    def _by_sum(self, of: Node, by: Node) -> Node:
        return _plus(*(self.slope(part, by) for part in of.parts))

    def _by_product(self, of: Node, by: Node) -> Node:
        terms = []
        for at, part in enumerate(of.parts):
            one = self.slope(part, by)
            terms.append(_times(*of.parts[:at], one, *of.parts[at + 1 :]))
        return _plus(*terms)

    _by_hadamard = _by_product

    def _by_quotient(self, of: Node, by: Node) -> Node:
        above, below = of.parts
        return self.slope(product(above, power(below, number(-1))), by)

    def _by_power(self, of: Node, by: Node) -> Node:
        below, above = of.parts
        if below == Node("name", "e"):
            return _times(of, self.slope(above, by))
        first, second = self.slope(below, by), self.slope(above, by)
        terms = []
        if first != ZERO:
            less = Node("sum", "", (above, number(-1)))
            terms.append(_times(above, power(below, less), first))
        if second != ZERO:
            terms.append(_times(of, Node("call", "log", (below,)), second))
        return _plus(*terms)

    def _by_call(self, of: Node, by: Node) -> Node:
        (inside,) = of.parts
        first = self.slope(inside, by)
        if first == ZERO:
            return ZERO
        if of.sups or of.value not in _RULES:
            raise Unclear(f"the derivative of {of.value}")
        return _times(_RULES[of.value](of, inside), first)

    def _by_apply(self, of: Node, by: Node) -> Node:
        if by.kind == "apply" and self.canonical(of) == self.canonical(by):
            return ONE
        if (value := self.value(of)) is not None:
            return self.slope(value, by)
        name, *arguments = of.parts
        if by.kind != "name":
            return Node("slope", "", (of, by))
        own = {token for group in name.subs for token in group}
        if by.value in own or {by.value} & {*name.sups}:
            return Node("slope", "", (of, by))
        if len(arguments) > 1:
            if self.meaning.is_input(name) and all(
                self.slope(one, by) == ZERO for one in arguments
            ):
                return ZERO
            return Node("slope", "", (of, by))
        first = self.slope(arguments[0], by)
        if first == ZERO:
            if self.meaning.is_input(name):
                return ZERO
            return Node("slope", "", (of, by))
        primed = replace(name, sups=(*name.sups, "'"))
        return _times(Node("apply", of.value, (primed, *arguments)), first)

    def _by_big(self, of: Node, by: Node) -> Node:
        if of.value == "E":  # also what is random may depend on the name
            return Node("slope", "", (of, by))
        if of.value not in ("sum", "int") or by.value in " ".join(of.sups).split():
            raise Unclear(f"the derivative of {of.value}")
        if {token for group in of.subs for token in group} & by.tokens:
            raise Unclear("an index has two meanings")
        if of.value == "int" and (split := differential_of(of)) is not None:
            body, mark, variable = split
            if variable == by:
                raise Unclear("a derivative by what is integrated over")
            inside = _times(self.slope(body, by), mark, variable)
            return ZERO if inside == ZERO else replace(of, parts=(inside,))
        inside = self.slope(of.parts[0], by)
        return ZERO if inside == ZERO else replace(of, parts=(inside,))

    def _by_slope(self, of: Node, by: Node) -> Node:
        inner = self.slope(*of.parts)
        if inner.kind == "slope":
            return Node("slope", "", (inner, by))
        return self.slope(inner, by)


def _deltas(of: Node, by: Node) -> Node:
    """Return the derivative of one element of an array by another."""
    if len(of.subs) != len(by.subs):
        raise Unclear("an element and a whole")
    factors = []
    for first, second in zip(of.subs, by.subs, strict=True):
        if first == second:
            continue
        if len(first) > 1 or len(second) > 1:
            raise Unclear("indices that are computed")
        if first[0].isdigit() and second[0].isdigit():
            return ZERO
        if not (_is_index(first[0]) and _is_index(second[0])):
            raise Unclear("labels or indices")
        factors.append(Node("name", r"\delta", (), (first, second)))
    return product(*factors) if factors else ONE


def _is_index(token: str) -> bool:
    return len(token) == 1 or token.startswith("#")


def _times(*factors: Node) -> Node:
    if ZERO in factors:
        return ZERO
    kept = tuple(one for one in factors if one != ONE)
    return product(*kept) if kept else ONE


def _plus(*terms: Node) -> Node:
    kept = tuple(one for one in terms if one != ZERO)
    if not kept:
        return ZERO
    return kept[0] if len(kept) == 1 else Node("sum", "", kept)


def _call(name: str, inside: Node) -> Node:
    return Node("call", name, (inside,))


_RULES: dict[str, Callable[[Node, Node], Node]] = {
    "log": lambda of, x: power(x, number(-1)),
    "sin": lambda of, x: _call("cos", x),
    "cos": lambda of, x: Node("minus", "", (_call("sin", x),)),
    "tanh": lambda of, x: Node(
        "sum", "", (ONE, Node("minus", "", (power(of, number(2)),)))
    ),
}
