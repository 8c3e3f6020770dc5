"""Write conditional probabilities, divergences, and expectations in one form.

p(x | y) is p(x, y) / p(y); KL(q ‖ p) is the expectation of log q - log p under q; an
expectation under q(z) leaves alone what does not depend on z; and the integral of
p(x, z) over z is p(x).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from backpass.derivation.text.formal.algebra import Algebra, Form
from backpass.derivation.text.formal.reader import read_formula
from backpass.derivation.text.formal.reading import Manner
from backpass.derivation.text.formal.rewrites import differential_of
from backpass.derivation.text.formal.trees import Node, number, power, product

_LAW = re.compile(
    r"[pPqQ]|\\(?:Pr|mathbb\{P\}|mathcal\{P\}|mathrm\{P\})|\\text\{(?:Pr|P|p)\}"
)
JOINT = "conditional probabilities are quotients of joint ones"
_DATA = r"\mathcal{D}"


def with_laws(
    trees: list[Node], manner: Manner, is_apart: Callable[[Node, Node], bool]
) -> list[Node] | None:
    """Return formulas in which probabilities are joint ones; None if no formula has a
    conditional probability or a divergence. Raises `Unclear`."""
    nodes = [node for tree in trees for node in tree.walk()]
    if not any(
        _given(node) is not None or _is_divergence(node) or _is_mean(node)
        for node in nodes
    ):
        return None
    laws = _Laws(manner, is_apart)
    return [laws.changed(tree) for tree in trees]


class _Laws:
    def __init__(self, manner: Manner, is_apart: Callable[[Node, Node], bool]) -> None:
        self.manner, self.is_apart = manner, is_apart

    def changed(self, node: Node) -> Node:
        if _is_divergence(node):
            return self.divergence(node)
        if (given := _given(node)) is not None:
            name, every, rest = given
            return Node("quotient", "", (_joint(name, every), _joint(name, rest)))
        if node.kind == "apply":
            return _sorted(node) or node
        node = node.mapped(self.changed)
        if node.kind == "big" and node.value == "E":
            return self.expectation(node)
        if node.kind == "big" and node.value == "int":
            return self.marginal(node)
        return node

    def divergence(self, node: Node) -> Node:
        """Return a divergence as an expectation."""
        _, first, second = node.parts
        logs = [Node("call", "log", (self.changed(one),)) for one in (first, second)]
        body = Node("sum", "", (logs[0], Node("minus", "", (logs[1],))))
        return self.mean(body, first, first.parts[1])

    def expectation(self, node: Node) -> Node:
        if len(node.sups) != 1:
            return node
        before, sign, after = node.sups[0].rpartition(r"\sim")
        law = read_formula(after, self.manner)
        if law.kind != "apply":
            return node
        random = read_formula(before, self.manner) if sign else law.parts[1]
        if law.parts[1] != random or random.kind != "name":
            return node
        return self.mean(node.parts[0], law, random)

    def mean(self, body: Node, law: Node, random: Node) -> Node:
        """Return an expectation without the terms that do not depend on what is
        random in it."""
        algebra = Algebra(False)
        inside: Form = {}
        outside: Form = {}
        several = bool(law.value.partition("|")[0])
        given = [node.value for one in law.parts[2:] for node in one.walk()]
        for term, count in algebra.form(body).items():
            one = algebra.node_of({term: count})
            apart = not several and self._is_apart(one, random, given)
            (outside if apart else inside)[term] = count
        whole = Node("big", "E", (algebra.node_of(inside),), (), (_written(law),))
        terms = [algebra.node_of(outside)] if outside else []
        terms += [whole] if inside else []
        return terms[0] if len(terms) == 1 else Node("sum", "", tuple(terms))

    def _is_apart(self, node: Node, random: Node, given: Iterable[str] = ()) -> bool:
        """Whether a term surely does not depend on a name; what is given is fixed, and
        so are data."""
        known = {"e", _DATA, *given} - {random.value}
        for one in node.walk():
            if one.kind in ("slope", "other") or one.value == "E":
                return False
            if one.kind == "name" and one.value not in known:
                if not (_LAW.fullmatch(one.value) or self.is_apart(one, random)):
                    return False
        return True

    def _is_fixed(self, atom: Node, variable: Node) -> bool:
        """Whether a factor does not depend on a name that is integrated over: a
        probability depends on its arguments only."""
        return self._is_apart(atom, variable) or (
            _is_law(atom) and _differs(atom, variable)
        )

    def marginal(self, node: Node) -> Node:
        """Return the integral of a joint probability over one of its arguments."""
        if node.sups or (split := differential_of(node)) is None:
            return node
        body, _, variable = split
        algebra = Algebra(False)
        if len(form := algebra.form(body)) != 1:
            return node
        (((powers, sequence), count),) = form.items()
        holds = [one for one in powers if not self._is_fixed(one[0], variable)]
        if len(holds) != 1 or sequence:
            return node
        atom, times = holds[0]
        if times != 1 or not _is_law(atom) or "|" in atom.value:
            return node
        name, *every = atom.parts
        if every.count(variable) != 1 or not all(
            one == variable or _differs(one, variable) for one in every
        ):
            return node
        rest = [one for one in every if one != variable]
        others = [power(one, number(n)) for one, n in powers if one != atom]
        kept = [_joint(name, rest)] if rest else []
        return product(number(count), *others, *kept)


def _differs(argument: Node, variable: Node) -> bool:
    """Whether an argument of a probability is not a name that is integrated over."""
    return variable.value not in {one.value for one in argument.walk()}


def _is_law(node: Node) -> bool:
    """Whether a node is a probability of names or events, which all differ."""
    if node.kind != "apply" or not _LAW.fullmatch(node.parts[0].value):
        return False
    if not {*node.value} <= {",", "|"}:
        return False
    arguments = node.parts[1:]
    letters = [one.value for one in arguments if one.kind == "name"]
    primed = [one.value for one in arguments for n in one.walk() if n.sups]
    return (
        len({*arguments}) == len(arguments)
        and all(
            one.kind in ("name", "apply") or one.value == "event =" for one in arguments
        )
        and not any(letters.count(one) > 1 for one in primed)
    )


def _given(node: Node) -> tuple[Node, list[Node], list[Node]] | None:
    """Return a conditional probability's name, all its arguments, and those that are
    given; None for other nodes."""
    if node.kind != "apply" or node.value.count("|") != 1 or not _is_law(node):
        return None
    name, *every = node.parts
    first = node.value.index("|") + 1
    return name, every, every[first:]


def _joint(name: Node, arguments: list[Node]) -> Node:
    found = tuple(sorted(arguments, key=repr))
    return Node("apply", "," * (len(found) - 1), (name, *found))


def _sorted(node: Node) -> Node | None:
    if _is_law(node) and "|" not in node.value:
        return _joint(node.parts[0], [*node.parts[1:]])
    return None


def _is_divergence(node: Node) -> bool:
    if node.kind != "apply" or node.value != "‖":
        return False
    name, *laws = node.parts
    called = (
        name.value == r"\text{KL}"
        or ("KL",) in name.subs
        or (r"\text{KL}",) in name.subs
    )
    return bool(called) and all(one.kind == "apply" and _is_law(one) for one in laws)


def _is_mean(node: Node) -> bool:
    return node.kind == "big" and node.value == "E" and "(" in " ".join(node.sups)


def _written(law: Node) -> str:
    """Return a law as one sign, so that laws which are equal are written alike."""
    text = " ".join(one.value for one in law.walk() if one.value)
    subs = " ".join(" ".join(group) for one in law.walk() for group in one.subs)
    return f"{text} ; {subs}" if subs else text
