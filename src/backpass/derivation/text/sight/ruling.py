"""Why a line waits for a declaration although it can be read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from backpass.derivation.language.names import Scope
from backpass.derivation.text.certainty import DERIVATIVES
from backpass.derivation.text.sight.inference import Read
from backpass.derivation.text.sight.names import names_in
from backpass.derivation.text.sight.sides import Found
from backpass.derivation.text.statements import Statement
from backpass.derivation.text.verdict import Verdict

WAITS = "it waits for a declaration"
NOT_SUMMED = "it does not hold with sums over repeated indices, as other lines do"
NOT_LAID = "it does not hold in numerator layout, in which other lines hold"
ONLY_NUMERATOR = "it holds only in numerator layout"
_TURNED = re.compile(r"this is (\S+) × (\S+), but it is set equal to (\S+) × (\S+)")
NOT_SAID = "it holds if partial derivatives hold other names constant, which the text does not say"
NOT_HELD = "it does not hold if partial derivatives go through other names, as above"
SUM = re.compile(r"it holds if (\\sum_i (.+?)_i = 1)[;:]")
JUDGED = ("equal", "definition")
RIGHT = (*JUDGED, "nothing claimed")


@dataclass
class Reasons:
    """What is inferred for one statement besides names, in words."""

    others: list[str] = field(default_factory=list)
    loss: str = ""
    directives: set[str] = field(default_factory=set)

    def copy(self) -> Reasons:
        """Return the same reasons, to which others may be added."""
        return replace(self, others=[*self.others], directives={*self.directives})


def held_apart(scope: Scope, own: Read | None, declared: set[str]) -> str | None:
    """Return an inferred name whose derivative is only 0 because nothing defines it;
    None if there is none."""
    for tree in own.trees if own else ():
        for node in tree.iter_subtrees():
            if node.data not in DERIVATIVES:
                continue
            of, by = DERIVATIVES[node.data](node)
            names = [name for name, _, _ in names_in(of)]
            variables = [
                variable
                for key, variable in scope.variables.items()
                if any(key == n or key.startswith((f"{n}^", f"{n}_{{")) for n in names)
            ]
            upstream = scope.upstream(variables)
            inferred = [
                name for name in (*names, *sorted(upstream)) if name in declared
            ]
            wanted = {name for name, _, _ in names_in(by)}
            if inferred and not wanted & upstream:
                return inferred[0]
    return None


def differentiates_by(own: Read, name: str) -> bool:
    """Whether each derivative of a line is with respect to this name."""
    found = [by for _, by in slopes_of(own)]
    return bool(found) and all(by == {name} for by in found)


def slopes_of(read: Read) -> list[tuple[set[str], set[str]]]:
    """Return the names of what an equation differentiates, each with those by which."""
    nodes = [node for tree in read.trees for node in tree.iter_subtrees()]
    found = [DERIVATIVES[node.data](node) for node in nodes if node.data in DERIVATIVES]
    for node in nodes:
        if node.data == "second":
            found += [(node.children[0], by) for by in node.children[1:]]
        if node.data == "second_of":
            found += [(node.children[-1], by) for by in node.children[:-1]]
    return [
        ({one for one, _, _ in names_in(of)}, {one for one, _, _ in names_in(by)})
        for of, by in found
    ]


def differentiated(reads: list[Read], own: Read | None, used: list[str]) -> str | None:
    """Return an inferred name that another equation differentiates by what this one
    does; None if there is none."""
    if own is None:
        return None
    by = {name for _, names in slopes_of(own) for name in names}
    others = [slope for read in reads if read is not own for slope in slopes_of(read)]
    for name in used:
        if name not in by and any(of == {name} and by & one for of, one in others):
            return name
    return None


def recurs(reads: list[Read], own: Read | None, name: str) -> bool:
    """Whether another equation gives a name by itself, as a recurrence does."""
    return any(
        read.head == name and name in read.left and name in read.right
        for read in reads
        if read is not own
    )


def waiting(verdict: Verdict, why: str, names: tuple[str, ...]) -> Verdict:
    """Return the verdict on a line that waits for names to be declared."""
    return replace(
        verdict,
        kind="not readable",
        message=f"{WAITS}: {why}",
        basis=None,
        counterexample=None,
        compared="",
        to_left=False,
        waits=names,
    )


def beyond_loss(reasons: Reasons) -> list[str]:
    """Return what is inferred besides names and the loss, in words."""
    return [one for one in reasons.others if one != f"{reasons.loss} is the loss"]


def doubts(reasons: Reasons, verdict: Verdict) -> list[str]:
    """Return what is inferred besides names and may make a line wrong that is right
    without it."""
    if verdict.certain == "numbers":
        return []
    return [one for one in reasons.others if " is an element of " not in one]


def is_sure(found: Found | None, verdict: Verdict) -> bool:
    """Whether another shape of a name does not make a line right. A function without a
    definition has none, and may be one for which the line holds."""
    if found is None:
        return False
    is_number = verdict.certain == "indices" and found.rank == 0
    is_shown = found.strength in ("stated", "index")
    return is_shown or is_number or verdict.certain == "numbers"


def is_claim(own: Read, verdict: Verdict) -> bool:
    """Whether a wrong line is a claim, and no condition makes it right."""
    if verdict.kind == "ill-formed":
        return own.derives
    return not verdict.message and (own.derives or not verdict.to_left)


def names_of(own: Read, verdict: Verdict) -> set[str]:
    """Return the names that a line and its definitions use."""
    used = verdict.basis.definitions if verdict.basis else ()
    return {*own.names, *(name for name, _ in used)}


def is_turned(message: str) -> bool:
    """Whether a message says that two sides have each other's transposed shape."""
    match = _TURNED.match(message)
    return match is not None and match[1] == match[4] and match[2] == match[3]


def is_partial(statement: Statement) -> bool:
    """Whether the derivatives of a statement are fractions, which have a layout."""
    text = " ".join(member.characters for member in statement.members)
    return r"\nabla" not in text and bool(
        re.search(r"\\frac\s*\{\s*(?:\\partial|\\?d)(?![a-z])", text)
    )


def may_be_read(verdict: Verdict) -> bool:
    """Whether an inference may give a line another verdict."""
    return verdict.kind == "not readable" or (
        verdict.kind == "refused" and SUM.match(verdict.message) is not None
    )


def score(verdicts: list[Verdict]) -> tuple[int, int]:
    """Return how many lines are right, and how many are not judged, as a negative."""
    return (
        sum(verdict.kind in JUDGED for verdict in verdicts),
        -sum(verdict.kind == "not readable" for verdict in verdicts),
    )
