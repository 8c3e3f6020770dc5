"""Write formulas in one form, in which equal formulas are equal.

A form is a sum of terms, each a number times powers of atoms, and, where the order of
factors matters, times a sequence of atoms. An atom is a piece of a formula of which
nothing more is known. Sums, expectations, and integrals are linear; a logarithm of a
product is a sum; transposes reverse products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from backpass.derivation.text.formal.bounds import (
    apart,
    closed,
    is_mean,
    is_whole,
    letters_of,
)
from backpass.derivation.text.formal.counts import USUAL
from backpass.derivation.text.formal.fractions import primes, root
from backpass.derivation.text.formal.inverses import IDENTITY, without_inverses
from backpass.derivation.text.formal.kinds import (
    is_array,
    is_identity,
    is_of_numbers,
    is_scalar,
    is_vector,
)
from backpass.derivation.text.formal.positive import absolute, rooted, simplified
from backpass.derivation.text.formal.trees import (
    Node,
    Unclear,
    number,
    power,
    product,
    renamed,
)
from backpass.derivation.text.formal.turns import scalars, turned_in_trace, turned_of

Powers = tuple[tuple[Node, Fraction], ...]
Term = tuple[Powers, tuple[Node, ...]]
Form = dict[Term, Fraction]

ONE: Term = ((), ())
LINEAR = ("sum", "E", "int")
E = Node("name", "e")
_MOST = 250  # terms


def is_ordered(nodes: list[Node]) -> bool:
    """Whether the order of factors matters in formulas: one is a transpose, or a
    product has a name that may be a matrix beside one that may be an array."""
    for tree in nodes:
        for node in tree.walk():
            if node.kind in ("top", "hadamard"):
                return True
            if node.kind == "power" and _normed(node.parts[0]) is not None:
                return True
            if node.kind == "other" and node.value in ("inner", "kronecker"):
                return True
            if node.kind == "other" and node.value.startswith("array"):
                return True
            if node.kind not in ("product", "quotient", "power"):
                continue
            pieces = [one for part in node.parts for one in _factors(part)]
            arrays = [one for one in pieces if one.kind == "name" and is_array(one)]
            open_ = [one for one in pieces if not is_scalar(one)]
            if arrays and len(open_) > 1:
                return True
    return False


def _factors(node: Node) -> list[Node]:
    if node.kind in ("product", "minus", "sum", "quotient", "big"):
        return [one for part in node.parts for one in _factors(part)]
    if node.kind == "power":
        return _factors(node.parts[0])
    return [node]


class Algebra:
    """Computes the forms of formulas; `ordered` says whether the order of factors
    matters, and `columns` whether lower-case letters are then columns, and `identity`
    whether I is the identity matrix."""

    def __init__(
        self, ordered: bool, columns: bool = False, identity: bool = False
    ) -> None:
        self.ordered, self.columns, self.identity = ordered, columns, identity
        self.dropped = False  # whether an identity matrix was left out
        self._forms: dict[Node, Form] = {}
        # Why a piece is positive, and what was supposed of names, in words.
        self.why_positive: Callable[[Node], str] = lambda node: ""
        self.supposed: set[str] = set()

    def form(self, node: Node) -> Form:
        """Return the form of a formula. Raises `Unclear`."""
        if node not in self._forms:
            found = getattr(self, f"_of_{node.kind}", self._atom)(node)
            if len(found) > _MOST:
                raise Unclear("too many terms")
            self._forms[node] = found
        return self._forms[node]

    # ---- sums and products of forms --------------------------------------------------

    def added(self, a: Form, b: Form, times: Fraction = Fraction(1)) -> Form:
        found = dict(a)
        for term, count in b.items():
            found[term] = found.get(term, Fraction(0)) + times * count
            if not found[term]:
                del found[term]
        return found

    def times(self, a: Form, b: Form) -> Form:
        if len(a) * len(b) > 4 * _MOST:
            raise Unclear("too many terms")
        found: Form = {}
        for (first, before), m in a.items():
            for (second, after), n in b.items():
                powers = dict(first)
                for atom, count in second:
                    powers[atom] = powers.get(atom, Fraction(0)) + count
                key = self._key(
                    simplified(powers), self._without_identity(before + after)
                )
                found[key] = found.get(key, Fraction(0)) + m * n
        return {term: count for term, count in found.items() if count}

    def _without_identity(self, sequence: tuple[Node, ...]) -> tuple[Node, ...]:
        """Return a product without inverses and identity matrices, unless it is one."""
        sequence = without_inverses(sequence)
        if not self.identity or len(sequence) < 2:
            return sequence
        kept = tuple(one for one in sequence if not is_identity(one))
        self.dropped |= len(kept) < len(sequence)
        return kept or sequence[:1]

    def _key(self, powers: dict[Node, Fraction], sequence: tuple[Node, ...]) -> Term:
        """Return a term; a number such as x^\\top y is also y^\\top x."""
        if self.columns and sequence and (pieces := scalars(sequence)):
            chosen = []
            for piece in pieces:
                turned = tuple(turned_of(one) for one in reversed(piece))
                chosen.append(min(piece, turned, key=repr))
            sequence = tuple(one for piece in sorted(chosen, key=repr) for one in piece)
        return _term(powers, sequence)

    def _atom(self, node: Node, count: Fraction = Fraction(1)) -> Form:
        if self.ordered and not is_scalar(node) and not self._commutes(node):
            if count.denominator == 1 and 0 < count < 4:
                return {((), (node,) * int(count)): Fraction(1)}
            if count != 1:
                node = power(node, number(count))
            return {((), (node,)): Fraction(1)}
        return {(((node, count),), ()): Fraction(1)}

    def _commutes(self, node: Node) -> bool:
        """Whether the value of a formula, which is not a name, is a number."""
        if node.kind == "big":
            return node.value in ("max", "min") or not any(
                term[1] for term in self.form(node.parts[0])
            )
        if node.kind == "sum":
            return not any(term[1] for term in self.form(node))
        if node.kind == "power":
            if node.parts[1].value.endswith("/2") and is_of_numbers(node.parts[0]):
                return True
            return all(self._commutes(one) for one in node.parts)
        return node.kind == "number" or is_scalar(node)

    # ---- nodes -----------------------------------------------------------------------

    def _of_number(self, node: Node) -> Form:
        value = Fraction(node.value)
        return {ONE: value} if value else {}

    def _of_name(self, node: Node) -> Form:
        if self.ordered and self.identity and is_identity(node) and not node.subs:
            node = IDENTITY
        if node.value == r"\delta" and len(node.subs) == 2:
            node = replace(node, subs=tuple(sorted(node.subs)))
            if node.subs[0] == node.subs[1]:
                return {ONE: Fraction(1)}
        return self._atom(node)

    def _of_sum(self, node: Node) -> Form:
        found: Form = {}
        for part in node.parts:
            found = self.added(found, self.form(part))
        return found

    def _of_minus(self, node: Node) -> Form:
        return self.added({}, self.form(node.parts[0]), Fraction(-1))

    def _of_product(self, node: Node) -> Form:
        found: Form = {ONE: Fraction(1)}
        for part in node.parts:
            found = self.times(found, self.form(part))
        return found

    def _of_quotient(self, node: Node) -> Form:
        above, below = node.parts
        return self.times(self.form(above), self.form(power(below, number(-1))))

    def _of_hadamard(self, node: Node) -> Form:
        """Return the form of an element-wise product, which commutes and is linear."""
        if not self.ordered:
            return self._of_product(node)
        found: Form = {}
        first, second = (self.form(part) for part in node.parts)
        for (powers, before), m in first.items():
            for (others, after), n in second.items():
                sides = [
                    self.node_of({((), side): Fraction(1)}) for side in (before, after)
                ]
                flat = [one for side in sides for one in _elements(side)]
                flat = sorted((o for o in flat if o != number(1)), key=repr)
                atom = (
                    tuple(flat[:1])
                    if len(flat) < 2
                    else (Node("hadamard", "", tuple(flat)),)
                )
                key = ((), atom)
                scaled = self.times({(powers, ()): m}, {(others, ()): n})
                found = self.added(found, self.times(scaled, {key: Fraction(1)}))
        return found

    def _of_top(self, node: Node) -> Form:
        found: Form = {}
        for (powers, sequence), count in self.form(node.parts[0]).items():
            turned = tuple(turned_of(one) for one in reversed(sequence))
            found[self._key(dict(powers), turned)] = count
        return found

    def _of_power(self, node: Node) -> Form:
        base, exponent = node.parts
        if exponent == number(2) and self.ordered and (inside := _normed(base)):
            return self.form(product(Node("top", "", (inside,)), inside))
        above = self.form(exponent)
        if base == E:
            return self._exponential(above)
        below = self.form(base)
        if set(above) <= {ONE}:
            return self._raised(below, above.get(ONE, Fraction(0)))
        if any(term[1] for term in (*below, *above)):
            return self._atom(power(self.node_of(below), self.node_of(above)))
        if len(below) == 1:
            core, count = self._core(below)
        else:  # a sum, as it is
            core, count = ((self.node_of(below), Fraction(1)),), Fraction(1)
        if count != 1:
            raise Unclear("a power of a number")
        found: Form = {ONE: Fraction(1)}
        for term, times in above.items():
            if term == ONE:
                found = self.times(found, self._raised(below, times))
                continue
            shown = self.node_of({term: Fraction(1)})
            powers = {power(atom, shown): one * times for atom, one in core}
            found = self.times(found, {_term(powers, ()): Fraction(1)})
        return found

    def _exponential(self, above: Form) -> Form:
        if any(one and one[0].kind != "top" for _, one in above):
            return self._atom(power(E, self.node_of(above)))
        powers: dict[Node, Fraction] = {}
        logs: Form = {ONE: Fraction(1)}
        for term, count in above.items():
            if (inside := _only_log(term)) is not None:
                logs = self.times(logs, self.form(power(inside, number(count))))
                continue
            atom = power(E, self.node_of({term: Fraction(1)})) if term != ONE else E
            powers[atom] = powers.get(atom, Fraction(0)) + count
        return self.times(logs, {_term(powers, ()): Fraction(1)})

    def _raised(self, below: Form, count: Fraction) -> Form:
        if count.denominator == 1 and 0 <= count <= 6:
            found: Form = {ONE: Fraction(1)}
            for _ in range(int(count)):
                found = self.times(found, below)
            return found
        if any(term[1] for term in below):
            if len(below) == 1 and count.denominator == 1:
                return self._scaled_inverse(below, count)
            return self._power_of(self.node_of(below), count)
        if not below:
            raise Unclear("division by zero")
        core, factor = self._core(below)
        raised = root(factor, count)
        return {_term(rooted(dict(core), count, self._is_positive), ()): raised}

    def _is_positive(self, atom: Node) -> bool:
        """Whether a piece of a formula is not negative."""
        if atom == E or atom.kind == "number":
            return True
        if atom.kind == "power" and atom.parts[0] == E:
            return True
        if atom.kind == "other" and atom.value in ("absolute", "norm"):
            return True
        why = self.why_positive(atom)
        if " " in why:
            self.supposed.add(why)
        return bool(why)

    def _scaled_inverse(self, below: Form, count: Fraction) -> Form:
        """Return a power of a number times a matrix."""
        (((powers, sequence), factor),) = below.items()
        outside = _term(rooted(dict(powers), count, self._is_positive), ())
        if self.identity and sequence == (IDENTITY,):
            inside: Form = {((), sequence): Fraction(1)}
        else:
            inside = self._power_of(product(*sequence), count)
        return self.times({outside: root(factor, count)}, inside)

    def _power_of(self, base: Node, count: Fraction) -> Form:
        if base.kind == "power" and base.parts[1].kind == "number":
            inner = Fraction(base.parts[1].value)
            if count.denominator % 2 or inner.numerator % 2:
                base, count = base.parts[0], count * inner
        return self._atom(power(base, number(count)))

    def _core(self, form: Form) -> tuple[Powers, Fraction]:
        """Split a form into powers and a number. Several terms are one atom."""
        if len(form) == 1:
            (((powers, _), count),) = form.items()
            return powers, count
        first = min(form, key=repr)
        count = form[first]
        core = {term: one / count for term, one in form.items()}
        return ((self.node_of(core), Fraction(1)),), count

    # ---- functions -------------------------------------------------------------------

    def canonical(self, node: Node) -> Node:
        """Return a node in which equal formulas are written alike."""
        return self.node_of(self.form(node))

    def _of_apply(self, node: Node) -> Form:
        name, *arguments = node.parts
        made = tuple(self.canonical(one) for one in arguments)
        return self._atom(replace(node, parts=(name, *made)))

    def _of_call(self, node: Node) -> Form:
        inside = self.form(node.parts[0])
        if node.value == "log":
            return self._logarithm(inside, node)
        if node.value == "sqrt":
            return self._raised(inside, Fraction(1, 2))
        if node.value == "tr" and self.ordered and inside:
            return self._trace(inside, node)
        return self._atom(replace(node, parts=(self.node_of(inside),)))

    def _trace(self, inside: Form, node: Node) -> Form:
        """Return a trace, which is linear, and in which products may be turned."""
        found: Form = {}
        for (powers, sequence), count in inside.items():
            turned, is_number_ = turned_in_trace(sequence, self.columns)
            if is_number_:
                one: Form = {self._key({}, turned): Fraction(1)}
            else:
                whole = product(*turned) if turned else number(1)
                one = self._atom(replace(node, parts=(whole,)))
            found = self.added(found, self.times({(powers, ()): count}, one))
        return found

    def _logarithm(self, inside: Form, node: Node) -> Form:
        if any(term[1] for term in inside) or not inside:
            return self._atom(replace(node, parts=(self.node_of(inside),)))
        core, count = self._core(inside)
        if count < 0:
            whole = self.node_of(inside)
            return self._atom(replace(node, parts=(whole,)))
        found: Form = {}
        for prime, exponent in primes(count):
            log = replace(node, parts=(number(prime),))
            found = self.added(found, self._atom(log), Fraction(exponent))
        for atom, times in core:
            if times.numerator % 2 == 0 and not self._is_positive(atom):
                atom = absolute(atom)
            found = self.added(found, self._log_of(atom, node), times)
        return found

    def _log_of(self, atom: Node, node: Node) -> Form:
        if atom == E and not node.sups:
            return {ONE: Fraction(1)}
        if atom.kind == "power" and atom.parts[0] == E and not node.sups:
            return self.form(atom.parts[1])
        if atom.kind == "power":
            inner = self._log_of(atom.parts[0], node)
            return self.times(self.form(atom.parts[1]), inner)
        if atom.kind == "big" and atom.value == "prod":
            log = replace(node, parts=atom.parts)
            return self.form(replace(atom, value="sum", parts=(log,)))
        return self._atom(replace(node, parts=(atom,)))

    def _of_slope(self, node: Node) -> Form:
        return self._atom(node)

    def _of_other(self, node: Node) -> Form:
        if node.value == "dots":
            raise Unclear("dots")
        if node.value == "inner" and len(node.parts) == 2 and self.ordered:
            first, second = node.parts
            return self.form(product(Node("top", "", (first,)), second))
        made = tuple(self.canonical(one) for one in node.parts)
        if node.value in ("norm", "absolute") and len(made) == 1:
            opposite = self.node_of(self.added({}, self.form(made[0]), Fraction(-1)))
            made = (min(made[0], opposite, key=repr),)
        return self._atom(replace(node, parts=made))

    # ---- operators that run over indices ---------------------------------------------

    def _of_big(self, node: Node) -> Form:
        if len(node.subs) > 1:
            inner = replace(node, subs=node.subs[1:])
            node = replace(node, subs=node.subs[:1], parts=(inner,))
        if node.value not in LINEAR:
            made = self.canonical(node.parts[0])
            return self._atom(closed(node, made))
        letters = {group[0] for group in node.subs}
        bound = node.value != "sum" or not letters  # nothing but numbers is pulled out
        found: Form = {}
        for (powers, sequence), count in self.form(node.parts[0]).items():
            out: dict[Node, Fraction] = {}
            inside: dict[Node, Fraction] = {}
            for atom, times in powers:
                free = (not bound and not letters & letters_of(atom)) or (
                    node.value == "E" and is_mean(atom, node)
                )
                (out if free else inside)[atom] = times
            first, sequence, last = apart(node, sequence)
            if letters and (one := self._collapsed(node, inside, sequence)):
                rest: Form = one
            else:
                rest = self._summed(node, inside, sequence)
            if first or last:
                rest = self.times(
                    self.times({((), first): Fraction(1)}, rest),
                    {((), last): Fraction(1)},
                )
            scaled = self.times({_term(out, ()): count}, rest)
            found = self.added(found, scaled)
        return found

    def _collapsed(
        self, node: Node, inside: dict[Node, Fraction], sequence: tuple[Node, ...]
    ) -> Form | None:
        """Return the one term of a sum that a Kronecker delta leaves; None if the term
        has none."""
        letter = node.subs[0]
        if not is_whole(node):
            return None
        for atom in inside:
            if atom.value == r"\delta" and letter in atom.subs and len(atom.subs) == 2:
                (other,) = (one for one in atom.subs if one != letter)
                if len(other) != 1 or inside[atom] != 1:
                    return None
                rest = {one: count for one, count in inside.items() if one != atom}
                whole = self.node_of({_term(rest, sequence): Fraction(1)})
                return self.form(renamed(whole, letter[0], other[0]))
        return None

    def _summed(
        self, node: Node, inside: dict[Node, Fraction], sequence: tuple[Node, ...]
    ) -> Form:
        if node.value == "E" and not inside and not sequence:
            return {ONE: Fraction(1)}
        if node.value == "sum" and not inside and not sequence:
            limits = node.sups
            letter = node.subs[0][0] if node.subs else ""
            if len(limits) == 2 and limits[0] == f"{letter} = 1":
                upper = limits[1].split()
                if len(upper) == 1:
                    name = upper[0]
                    if name.isdigit():
                        return {ONE: Fraction(name)}
                    return self._atom(Node("name", name, counts=name in USUAL))
        body = self.node_of({_term(inside, sequence): Fraction(1)})
        whole = closed(node, body)
        if sequence and self.ordered:
            return {((), (whole,)): Fraction(1)}
        return {(((whole, Fraction(1)),), ()): Fraction(1)}

    # ---- from a form to a formula ----------------------------------------------------

    def node_of(self, form: Form) -> Node:
        """Return a form as a formula, in a fixed order."""
        terms = []
        for (powers, sequence), count in sorted(form.items(), key=repr):
            factors = [number(count)] if count != 1 else []
            for atom, times in powers:
                factors.append(atom if times == 1 else power(atom, number(times)))
            factors += sequence
            terms.append(product(*factors) if factors else number(1))
        if not terms:
            return number(0)
        return terms[0] if len(terms) == 1 else Node("sum", "", tuple(terms))

    # ---- comparing -------------------------------------------------------------------

    def is_zero(self, form: Form) -> bool:
        """Whether a form is 0 after its divisors are multiplied out."""
        for _ in range(8):
            if not form:
                return True
            cores = sorted(
                {
                    atom
                    for powers, _ in form
                    for atom, _ in powers
                    if atom.kind == "sum"
                },
                key=repr,
            )
            if not cores:
                return False
            form = self.without(cores[0], form)
        return False

    def without(self, core: Node, form: Form) -> Form:
        """Multiply a form by a power of a sum, so that only powers to expand remain."""
        counts = [dict(powers).get(core, Fraction(0)) for powers, _ in form]
        least = min(counts)
        if any((one - least).denominator != 1 for one in counts):
            raise Unclear("roots of a sum")
        found: Form = {}
        for ((powers, sequence), count), times in zip(
            form.items(), counts, strict=True
        ):
            rest = {atom: one for atom, one in powers if atom != core}
            expanded = self._raised(self.form(core), times - least)
            term = {_term(rest, sequence): count}
            found = self.added(found, self.times(expanded, term))
            if len(found) > _MOST:
                raise Unclear("too many terms")
        return found


def _term(powers: dict[Node, Fraction], sequence: tuple[Node, ...]) -> Term:
    kept = [(atom, count) for atom, count in powers.items() if count]
    return tuple(sorted(kept, key=repr)), sequence


def _only_log(term: Term) -> Node | None:
    """Return what a term is the logarithm of; None if it is none."""
    powers, sequence = term
    if len(powers) != 1 or sequence:
        return None
    ((atom, times),) = powers
    is_log = atom.kind == "call" and atom.value == "log" and not atom.sups
    return atom.parts[0] if is_log and times == 1 else None


def _normed(node: Node) -> Node | None:
    """Return the vector whose length a node is; None if it is none."""
    if node.kind == "other" and node.value == "element" and node.subs == (("2",),):
        node = node.parts[0]
    if node.kind != "other" or node.value != "norm":
        return None
    (inside,) = node.parts
    names = [one for one in inside.walk() if one.kind == "name"]
    return inside if any(map(is_vector, names)) else None


def _elements(node: Node) -> tuple[Node, ...]:
    return node.parts if node.kind == "hadamard" else (node,)
