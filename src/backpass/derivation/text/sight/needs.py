"""Guess the declarations that a statement still needs, from the verdicts on it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from backpass.derivation.language.parse import Line, Part, Unreadable, read
from backpass.derivation.text.certainty import DERIVATIVES
from backpass.derivation.text.directives import follow
from backpass.derivation.text.knowledge import Knowledge, Known
from backpass.derivation.text.passages import Text
from backpass.derivation.text.sight.conventions import (
    DIRECT,
    SUMS,
    TEXTS,
    holds_by,
    may_hold,
    that_matter,
    wanted,
)
from backpass.derivation.text.sight.inference import Inference, Read
from backpass.derivation.text.sight.labels import is_label
from backpass.derivation.text.sight.names import name_of
from backpass.derivation.text.sight.ruling import (
    NOT_HELD,
    NOT_LAID,
    NOT_SAID,
    ONLY_NUMERATOR,
    RIGHT,
    SUM,
    Reasons,
    is_partial,
    is_turned,
    score,
    slopes_of,
)
from backpass.derivation.text.statements import Statement
from backpass.derivation.text.verdict import Verdict

Judge = Callable[[Statement], list[Verdict]]
_FACTOR = re.compile(r"(.+?)\(…\) prints like a function of")
_BAR = re.compile(r"is \\(?:bar|overline)\{.*\} a gradient\? .*say: bar gradient")


class Needs:
    """Guesses the declarations that the verdicts on a statement ask for."""

    def __init__(self, known: Knowledge, judge: Judge) -> None:
        self.known, self._judge = known, judge
        self._inference: Inference | None = None
        self._whole: Inference | None = None
        self._lines = known.inferred  # the declarations that are inferred
        self._sources: dict[Line, Inference] = {}  # the source of each of them
        # Directives that a comment would need for the lines that were read or tried.
        self.suggested: dict[str, None] = {}
        self._layout = ""
        self._turned = False  # whether gradients of numbers are rows or transposed
        self._of: dict[Statement, Read] = {}
        self._usual: set[frozenset[str]] = set()  # conventions of right lines
        # Right lines whose partial derivatives go through other names, with what was
        # known then.
        self._through: list[tuple[Statement, Known]] = []

    def _suggest(self, *directives: str) -> None:
        if self._inference is self._whole:
            self.suggested.update(dict.fromkeys(directives))

    def _by_convention(
        self, statement: Statement, reasons: Reasons
    ) -> list[Verdict] | None:
        """Judge a statement as other lines of the text are; None if it is not right."""
        known, before = self.known, self.known.now
        if not self._usual:
            return None
        choices = {frozenset(), *self._usual}
        if self._sums(statement):
            choices = {one for one in choices if SUMS in one}
        for conventions in sorted(choices, key=len):
            known.now = before
            if not that_matter(conventions, known, statement):
                continue
            for one in sorted(conventions):
                follow(known, Text(one, (0,) * len(one)), one, 0)
            with known.in_short():
                found = self._judge(statement)
            if found and all(verdict.kind in RIGHT for verdict in found):
                reasons.directives |= conventions
                reasons.others += [TEXTS[one] for one in sorted(conventions)]
                self._suggest(*sorted(conventions))
                return found
        known.now = before
        return None

    def _note_through(self, statement: Statement, then: Known) -> None:
        text = " ".join(member.characters for member in statement.members)
        if may_hold(text):
            self._through.append((statement, then))

    def _goes_through(self) -> bool:
        """Whether a line above is right, and would be wrong if its partial derivatives
        held other names constant."""
        known, before = self.known, self.known.now
        for statement, then in self._through:
            known.now = then
            try:
                follow(known, Text(DIRECT, (0,) * len(DIRECT)), DIRECT, 0)
                with known.in_short():
                    found = self._judge(statement)
            except Unreadable:
                continue
            finally:
                known.now = before
            if not all(verdict.kind in RIGHT for verdict in found):
                self._through = [(statement, then)]
                return True
        self._through = []
        return False

    def _why_waits(self, statement: Statement, then: Known, reasons: Reasons) -> str:
        """Return why a right line waits, because it contradicts other lines or rests on
        a convention that the text does not mention; "" if it does not wait."""
        if not self._is_as_others(statement, then):
            return NOT_LAID
        if DIRECT in reasons.directives:
            return self._why_total(statement)
        self._note_through(statement, then)
        return ""

    def _why_total(self, statement: Statement) -> str:
        """Return why partial derivatives of a statement may go through other names; ""
        if nothing says so."""
        if self._goes_through():
            return NOT_HELD
        assert self._inference is not None
        own, reads = self._of.get(statement), self._inference.reads
        heads = {one.head for one in reads}
        by = {name for _, names in slopes_of(own) for name in names} if own else set()
        formulas = (m.characters for one in reads for m in one.statement.members)
        if holds_by(by - heads, [*formulas], self._inference.prose):
            return ""
        return NOT_SAID

    def _sums(self, statement: Statement) -> bool:
        """Whether a statement has sums that other lines of the text leave out."""
        return any(SUMS in one for one in self._usual) and that_matter(
            frozenset({SUMS}), self.known, statement
        )

    def _met(
        self,
        statement: Statement,
        verdicts: list[Verdict],
        reasons: Reasons,
        tried: set[str],
    ) -> bool:
        """Whether a declaration that a message asks for is now inferred."""
        met = False
        for verdict in verdicts:
            if self._sums_to_one(verdict, reasons):
                return True
            directive, reason = self._wanted(verdict)
            if directive and directive not in tried:
                tried.add(directive)
                try:
                    self._follow(directive, reason, reasons)
                except Unreadable:
                    continue
                met = True
        return met

    def _follow(self, directive: str, reason: str, reasons: Reasons) -> None:
        """Follow a guessed directive. Raises `Unreadable`."""
        text = Text(directive, (0,) * len(directive))
        follow(self.known, text, directive, 0)
        reasons.others.append(reason)
        reasons.directives.add(directive)
        self._suggest(directive)

    def _sums_to_one(self, verdict: Verdict, reasons: Reasons) -> bool:
        """Whether a line needs the elements of an inferred name to sum to 1, and a word
        of the text suggests it."""
        assert self._inference is not None
        match = SUM.match(verdict.message)
        if match is None or not is_label(match[2], self.known.source):
            return False
        name, known = match[2], self.known
        mine = [line for line in known.now.lines if self._lines.get(line) == name]
        if len(mine) != 1:
            return False
        constant = replace(mine[0], kind="constant")
        lines = (constant if line == mine[0] else line for line in known.now.lines)
        (assumed,) = read(f"assume {match[1]}")
        before = known.now
        known.now = replace(before, lines=(*lines,))
        self._lines[constant] = name
        self._sources[constant] = self._sources[mine[0]]
        try:
            known.add(assumed, 0, True)
        except Unreadable:
            known.now = before
            return False
        reasons.others.append(f"{match[1]}, as for labels")
        self.suggested = {
            f"constant{one[5:]}" if one.startswith(f"given {name} ") else one: None
            for one in self.suggested
        }
        self._suggest(f"assume {match[1]}")
        return True

    def _wanted(self, verdict: Verdict) -> tuple[str, str]:
        assert self._inference is not None
        convention = wanted(
            verdict,
            self.known,
            self._inference.prose,
            any(SUMS in one for one in self._usual),
        )
        if convention or verdict.kind != "not readable":
            return convention, TEXTS.get(convention, "")
        first = verdict.message.partition("\n")[0]
        if first.startswith("a differential or derivative, or a product with d?"):
            return "d differential", "d marks a differential"
        if _BAR.match(first) and self._inference.losses:
            return "bar gradient", "a bar marks a gradient of the loss"
        if match := _FACTOR.match(first):
            name = match[1]
            if name in self._inference.factors - self._inference.functions:
                return f"factor {name}", f"{name} is a factor before a bracket"
        return "", ""

    def _lay_out(self, statement: Statement) -> None:
        """Record the layout of gradients by whole arrays; without a layout, they have
        the array's shape."""
        own = self._of.get(statement)
        scope = self.known.scope
        if self._layout or scope.layout or own is None:
            return
        for node in (n for tree in own.trees for n in tree.iter_subtrees()):
            if node.data in ("partial", "nabla_of"):
                named = name_of(DERIVATIVES[node.data](node)[1])
                variable = (
                    scope.variables.get(named[0]) if named and not named[1] else None
                )
                if variable is not None and variable.axes:
                    self._layout = "denominator"

    def _is_as_others(self, statement: Statement, then: Known) -> bool:
        """Whether a right line also holds in the layout of the text's derivatives of
        numbers by arrays."""
        known, before = self.known, self.known.now
        known.now = then
        try:
            if not self._turned or known.scope.layout or not is_partial(statement):
                return True
            part = Part("numerator", 0, "numerator")
            known.add(Line("layout", right=part), 0, True)
            with known.in_short():
                found = self._judge(statement)
        finally:
            known.now = before
        return all(verdict.kind in RIGHT for verdict in found)

    def _in_layouts(
        self,
        statement: Statement,
        best: list[Verdict],
        then: Known,
        best_reasons: Reasons,
        verdicts: list[Verdict],
        reasons: Reasons,
    ) -> tuple[list[Verdict], Known, Reasons]:
        """Judge a statement in the layouts in which it may be meant."""
        known = self.known
        if known.scope.layout or not any(
            "layout numerator" in verdict.message
            or (is_turned(verdict.message) and is_partial(statement))
            for verdict in verdicts
        ):
            return best, then, best_reasons
        start = known.now
        for layout in (self._layout,) if self._layout else ("denominator", "numerator"):
            line = Line("layout", right=Part(layout, 0, layout))
            known.now = start
            known.add(line, 0, True)
            found = self._judge(statement)
            if score(found) > score(best):
                best, then = found, known.now
                best_reasons = replace(
                    reasons,
                    others=[*reasons.others, f"derivatives are in {layout} layout"],
                )
                if all(verdict.kind in RIGHT for verdict in found):
                    self._layout = layout
                    self._turned |= layout == "numerator" and any(
                        ONLY_NUMERATOR in verdict.message or is_turned(verdict.message)
                        for verdict in verdicts
                    )
                    self._suggest(f"layout {layout}")
                    break
        known.now = start
        return best, then, best_reasons
