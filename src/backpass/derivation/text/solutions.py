"""Solutions of equations: a value of a name with which the equations above hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from backpass.derivation.language.analysis import Analysis
from backpass.derivation.language.parse import Line, Part, Unreadable
from backpass.derivation.text.contents import Heading
from backpass.derivation.text.displays import Display
from backpass.derivation.text.imposed import CONCLUDES, Imposed
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.passages import Text
from backpass.derivation.text.restrictions import (
    Members,
    gives_number,
    has_derivative,
    name_in,
    names_of,
)
from backpass.derivation.text.shown import with_value
from backpass.derivation.text.sight.prose import prose_of
from backpass.derivation.text.statements import Statement
from backpass.derivation.text.statements import statements as statements_of
from backpass.derivation.text.verdict import Verdict

_NEAR = 60  # characters of words between an equation and its solution
Judge = Callable[[Statement], list[Verdict]]


class Solutions:
    """Judges statements, also those that are held because equations above restrict the
    name on their left."""

    def __init__(self, known: Knowledge, judge: Judge, plain: Judge) -> None:
        self._known, self._judge, self._plain = known, judge, plain
        prose = prose_of(known.document)
        for text in (*prose.equations, *prose.supposed):
            members = tuple(side.strip() for side in text.split("="))
            known.restrictions.note(members, [""] * (len(members) - 1))

    def judged(self, statement: Statement) -> list[Verdict]:
        """Return the verdicts on a statement: a held one is a definition if all that
        restricts its name holds with it, and refused if something does not."""
        known, members = self._known, statement.members
        found = self._judge(statement)
        above = known.restrictions.held.get(members)
        if above and found[0].kind in ("not readable", "equal"):
            found = self._tested(statement, found, above)
        if not (statement.relation or statement.introduced):
            kinds = [verdict.kind for verdict in found]
            known.restrictions.note(members, kinds)
        return found

    def _tested(
        self, statement: Statement, found: list[Verdict], above: tuple[Members, ...]
    ) -> list[Verdict]:
        known = self._known
        first, *rest = found
        alone = [self._kinds(sides, [statement]) for sides in above]
        others = self._values_below(statement, above)
        several = [statement, *others] if "" in alone and others else [statement]
        kinds = alone if several[1:] == [] else [self._kinds(o, several) for o in above]
        if "refused" in kinds:
            sides = above[kinds.index("refused")]
            why = f"{self._place(sides)} does not hold with it"
            if several[1:]:
                why += f" and with {self._place(others[0].members)}"
            sure = not several[1:] and {*kinds} == {"refused"}
            sure &= self._is_concluded(statement, sides)
            kind = "refused" if sure else "not readable"
            return [replace(first, kind=kind, message=why, waits=()), *rest]
        if first.kind != "equal" and {*kinds} != {"equal"}:
            return found
        known.restrictions.allow(statement.members)
        again = self._judge(statement)
        if again[0].kind != "definition":
            return found
        if first.kind == "equal":
            return [first, *again[1:]]
        places = dict.fromkeys(map(self._place, above))
        words = tuple(f"{place} holds with it" for place in places)
        return [replace(again[0], inferred=again[0].inferred + words), *again[1:]]

    def _place(self, sides: Members) -> str:
        document = self._known.document
        return document.where(document.line(_start(sides)))

    def _kinds(self, sides: Members, statements: list[Statement]) -> str:
        """Return the verdict on the sides that an equation above sets equal, with the
        values that statements give names: "equal", "refused", or ""."""
        known = self._known
        before, shown, imposed = known.now, [*known.shown], known.imposed
        compared = [side for side in sides if not has_derivative(side.characters)]
        compared = compared if len(compared) > 1 else [*sides]
        found: set[str] = set()
        try:
            lines = tuple(
                line
                for line in before.lines
                if line.left is None or line.left.start != _start(sides)
            )
            for one in statements:
                right = known.part(one.members[1])
                name = name_in(one.members, sides)
                lines = with_value(lines, Line("let", Part(name, 0, name), right))
            known.now = replace(before, lines=lines)
            known.imposed = Imposed()
            with known.in_short():
                for pair in pairwise(compared):
                    found |= {one.kind for one in self._plain(Statement(pair))}
            if "refused" in found:
                return "" if self._has_inputs(compared) else "refused"
        except Unreadable:
            return ""
        finally:
            known.now, known.shown[:], known.imposed = before, shown, imposed
        return "equal" if "equal" in found else ""

    def _has_inputs(self, sides: list[Text]) -> bool:
        """Whether formulas depend on names that have no value. Raises `Unreadable`."""
        known = self._known
        analysis = Analysis(known.scope)
        used = known.used(analysis.run([known.part(side) for side in sides]))
        return any(known.scope.variables[one].kind != "defined" for one in used)

    def _values_below(
        self, statement: Statement, above: tuple[Members, ...]
    ) -> list[Statement]:
        """Return the statements below in the section that give numbers as values to
        names of equations above."""
        known, start = self._known, _start(statement.members)
        inside = names_of(" ".join(s.characters for sides in above for s in sides))
        found = []
        for item in known.document.items:
            if isinstance(item, Heading) and item.start > start:
                break
            if isinstance(item, Display) and item.end > start:
                found += [
                    one
                    for one in statements_of(item, known.brackets)
                    if _start(one.members) > start and gives_number(one.members, inside)
                ]
        return found

    def _is_concluded(self, statement: Statement, above: Members) -> bool:
        """Whether only words of a conclusion stand between two equations."""
        known = self._known
        start, end = (_start(one) for one in (above, statement.members))
        ends = [
            one.end
            for one in known.document.items
            if isinstance(one, Display) and one.start <= start < one.end
        ]
        prose = known.prose_between(max(ends, default=start), end).strip(" .,;:\n$")
        return not statement.beside and (
            not re.search("[a-zA-Z]", prose)
            or (len(prose) < _NEAR and CONCLUDES.search(prose) is not None)
        )


def _start(members: Members) -> int:
    return next((one.origins[0] for one in members if one.origins), 0)
