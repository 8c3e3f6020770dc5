"""Judge lines at first sight: where a text declares nothing, by what it implies.

The verdict says what was inferred. A line that is equal under an inferred reading
is equal; one that is not equal is refused only if the text itself states what the
reading rests on, and otherwise waits for a declaration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from backpass.derivation.language.names import without_accent
from backpass.derivation.language.parse import Line, Unreadable, parse, read
from backpass.derivation.text.contents import Heading
from backpass.derivation.text.directives import follow
from backpass.derivation.text.imposed import is_result
from backpass.derivation.text.knowledge import Knowledge, Known
from backpass.derivation.text.notation import Notation
from backpass.derivation.text.passages import Text
from backpass.derivation.text.sight.apart import without_apart
from backpass.derivation.text.sight.conventions import SUMS, TEXTS
from backpass.derivation.text.sight.elements import readings
from backpass.derivation.text.sight.inference import Inference, Read, all_statements
from backpass.derivation.text.sight.names import name_of
from backpass.derivation.text.sight.needs import Judge, Needs
from backpass.derivation.text.sight.prose import prose_of
from backpass.derivation.text.sight.ruling import (
    NOT_SUMMED,
    RIGHT,
    WAITS,
    Reasons,
    beyond_loss,
    differentiated,
    differentiates_by,
    doubts,
    held_apart,
    is_claim,
    is_sure,
    may_be_read,
    names_of,
    recurs,
    score,
    waiting,
)
from backpass.derivation.text.sight.upper import Reading
from backpass.derivation.text.statements import Statement
from backpass.derivation.text.verdict import Verdict

_UNDECLARED = re.compile(
    r"(.+?) is (?:not declared or defined above|neither a parameter of)"
)


def _is_of(line: Line, name: str) -> bool:
    """Whether a line defines a name."""
    assert line.left is not None
    try:
        named = name_of(parse(line.left, "moved"))
    except Unreadable:
        return False
    return line.kind == "let" and named is not None and named[0] == name


class Sight(Needs):
    """Judges statements, also by what is inferred of their names."""

    def __init__(self, known: Knowledge, judge: Judge) -> None:
        super().__init__(known, judge)
        self._sections: dict[int, Inference] = {}
        self._readings: tuple[Reading, ...] | None = None
        self._order: dict[Notation, int] = {}  # the order of application
        self.missing: dict[str, None] = {}  # names of which nothing is inferred
        self._ahead: dict[Statement, list[Verdict]] = {}
        self._busy: set[Statement] = set()
        # Names, each with the line in a section above that defines it.
        self._carried: set[tuple[str, int]] = set()
        self._last: list[Verdict] = []  # those of the last attempt
        self._failed: set[Statement] = set()  # that define nothing
        self._contested: set[str] = set()  # names that the text defines in two ways
        self._identities: dict[Statement, bool] = {}

    # ---- one statement ---------------------------------------------------------------

    def judged(self, statement: Statement) -> list[Verdict]:
        """Return the verdicts on a statement."""
        known = self.known
        ahead = self._ahead.pop(statement, None)
        if ahead is not None and self._is_known(self._of[statement].head):
            return ahead
        self._release(statement)
        before = known.now
        reasons = Reasons()
        found = self._by_convention(statement, reasons) or self._judge(statement)
        if not reasons.directives and self._sums(statement):
            found = [
                waiting(one, NOT_SUMMED, ()) if one.kind == "equal" else one
                for one in found
            ]
        if not any(may_be_read(verdict) for verdict in found):
            self._lay_out(statement)
            ruled = self._ruled(statement, found, reasons)
            return self._after(statement, ruled, before, known.now, reasons)
        after, known.now = known.now, before
        self._start()
        if not self._may_help(statement, found):
            known.now = after
            return self._ruled(statement, found, Reasons())
        self._busy.add(statement)
        best, reasons, then = found, Reasons(), after
        for inference in self._inferences(statement):
            self._inference, known.now = inference, before
            condition = known.condition
            best, reasons, then = self._read(statement, best, reasons, then)
            known.now, known.condition = before, condition
            if all(verdict.kind in RIGHT for verdict in best):
                break
        self._busy.discard(statement)
        if best is found and len(self._last) == len(found):
            # What is wrong although names have a meaning says more.
            pairs = zip(found, self._last, strict=True)
            best = found = [
                new if new.kind == old.kind == "not readable" else old
                for old, new in pairs
            ]
        known.now = then
        ruled = self._ruled(statement, best, reasons)
        self._lay_out(statement)
        self._inference = self._whole
        if best is found:
            return ruled
        return self._after(statement, ruled, before, then, reasons)

    def _after(
        self,
        statement: Statement,
        ruled: list[Verdict],
        before: Known,
        then: Known,
        reasons: Reasons,
    ) -> list[Verdict]:
        """Keep those premises of a statement that also hold below it."""
        known = self.known
        if self._inference is None:
            return ruled
        right = all(verdict.kind in RIGHT for verdict in ruled)
        if right and (why := self._why_waits(statement, then, reasons)):
            known.now = before
            return [waiting(verdict, why, ()) for verdict in ruled]
        if right and reasons.directives & TEXTS.keys():
            self._usual.add(frozenset(reasons.directives & TEXTS.keys()))
        if any(verdict.kind == "definition" for verdict in ruled):
            # Guesses hold for this statement only.
            lines = then.lines
            if not before.scope.direct:
                lines = tuple(line for line in lines if line.kind != "direct")
            known.now = replace(then, lines=lines, summed=before.summed)
        else:
            known.now = before
        if all(verdict.kind == "equal" for verdict in ruled):
            self._restate(statement, then, reasons)
        return ruled

    def _restate(self, statement: Statement, then: Known, reasons: Reasons) -> None:
        """Give a name its new definition, if this uses names that the old one does not
        use: partial derivatives are then by these names.

        `then` is the knowledge with which the statement was judged.
        """
        known, own = self.known, self._of.get(statement)
        scope, before = known.scope, known.now
        old = scope.variables.get(own.head) if own else None
        if own is None or old is None or old.kind != "defined":
            return
        new = {
            name
            for name in own.right
            if name in scope.variables and scope.variables[name].kind == "defined"
        }
        if not new - scope.upstream([old]):
            return
        lines = [one for one in then.lines if one.left and _is_of(one, own.head)]
        if len(lines) != 1 or lines[0] not in then.implied | known.inferred.keys():
            return  # a comment declares it
        known.now = replace(then, summed=SUMS in reasons.directives)
        known.forget(lines[0])
        moved = [one for one in then.lines if one not in known.now.lines]
        try:
            if self._judge(statement)[0].kind != "definition":
                raise Unreadable("it has no definition")
            for line in moved:
                if line != lines[0]:
                    known.add(line, known.number_of(line), line in before.implied)
        except Unreadable:
            known.now = before
        known.now = replace(known.now, summed=before.summed)

    def _may_help(self, statement: Statement, found: list[Verdict]) -> bool:
        """Whether an inference may help: a text that cannot be parsed needs at least
        another notation."""
        text = " ".join(member.characters for member in statement.members)
        return any(one.pattern.search(text) for one in self._readings or ()) or any(
            may_be_read(one) and not one.message.startswith("cannot read this")
            for one in found
        )

    def _inferences(self, statement: Statement) -> Iterator[Inference]:
        """Yield what is inferred from the whole text, and then from the section."""
        assert self._whole is not None
        yield self._whole
        own = self._of.get(statement)
        if own is None or len({one.section for one in self._whole.reads}) == 1:
            return
        if own.section not in self._sections:
            whole, before = self._whole, self.known.now
            self._with_readings(self._readings or ())
            made = Inference(self.known, whole.prose, own.section)
            self.known.now = before
            self._sections[own.section] = made
        yield self._sections[own.section]

    def _is_known(self, name: str) -> bool:
        scope = self.known.scope
        return any(
            one == name or one.startswith(f"{name}^")
            for one in (*scope.variables, *scope.functions)
        )

    def _release(self, statement: Statement) -> None:
        """Forget what was inferred of a name that a statement defines."""
        if not self._lines:
            return
        read = self._of.get(statement)
        if read is None or not read.head:
            return
        for line in self.known.now.lines:
            if self._lines.get(line) == read.head:
                self.known.forget(line)

    # ---- reading ---------------------------------------------------------------------

    def _read(
        self,
        statement: Statement,
        best: list[Verdict],
        best_reasons: Reasons,
        then: Known,
    ) -> tuple[list[Verdict], Reasons, Known]:
        """Judge a statement by what is inferred; return the best verdicts, what they
        rest on, and what is then known."""
        known, reasons = self.known, Reasons()
        self._add_readings(statement, reasons)
        self._add_names(statement, reasons)
        tried: set[str] = set()
        if (verdicts := self._by_convention(statement, reasons)) is not None:
            return verdicts, reasons, known.now
        verdicts = best
        if self._sums(statement):
            self._follow(SUMS, TEXTS[SUMS], reasons)
        for _ in range(8):
            start = known.now
            verdicts = self._last = self._judge(statement)
            if score(verdicts) > score(best):
                best, then = verdicts, known.now
                best_reasons = reasons.copy()
            known.now = start
            if all(verdict.kind in RIGHT for verdict in verdicts):
                break
            if not self._met(statement, verdicts, reasons, tried):
                break
        best, then, best_reasons = self._in_layouts(
            statement, best, then, best_reasons, verdicts, reasons
        )
        return best, best_reasons, then

    def _start(self) -> None:
        """Infer what the text says, once."""
        if self._inference is not None:
            return
        known = self.known
        formulas = "\n".join(
            member.characters
            for _, statement in all_statements(known.document)
            for member in statement.members
        )
        names = {*known.scope.variables}
        mine = {one.pattern for one in known.now.notations}
        self._readings = tuple(
            one
            for one in readings(formulas, names)
            if not any(
                pattern[:1] == (one.directive.split()[1][:1],) for pattern in mine
            )
        )
        self._with_readings(self._readings)
        self._order = {one: k for k, one in enumerate(known.now.notations)}
        prose = prose_of(known.document)
        self._inference = self._whole = Inference(known, prose)
        self._of = {one.statement: one for one in self._inference.reads}

    def _with_readings(self, wanted: tuple[Reading, ...]) -> None:
        for one in wanted:
            text = Text(one.directive, (0,) * len(one.directive))
            follow(self.known, text, one.directive, 0)

    def _add_readings(self, statement: Statement, reasons: Reasons) -> None:
        text = " ".join(member.characters for member in statement.members)
        wanted = tuple(o for o in self._readings or () if o.pattern.search(text))
        self._with_readings(wanted)
        # One notation may apply to the result of another.
        notations = dict.fromkeys(self.known.now.notations)
        ordered = sorted(notations, key=lambda one: self._order.get(one, -1))
        self.known.now = replace(self.known.now, notations=(*ordered,))
        reasons.others += [one.reason for one in wanted]
        self._suggest(*(one.directive for one in wanted))

    def _add_names(self, statement: Statement, reasons: Reasons) -> None:
        """Declare the names of a statement that have no meaning, as inferred."""
        assert self._inference is not None
        if (own := self._of.get(statement)) is None:
            return
        inference = self._inference
        self._add_loss(own, reasons)
        counted = inference.counted
        reasons.others += [counted[name] for name in sorted(own.names & {*counted})]
        for name in inference.with_divisors(own.names):
            if not self._is_missing(name, inference):
                continue
            if name == own.head and len(statement.members) > 1:
                continue
            if name != own.head and self._define_ahead(name, own):
                continue
            if not self._declare(name) and name != own.head:
                self.missing[name] = None

    def _is_missing(self, name: str, inference: Inference) -> bool:
        scope = self.known.scope
        if name in scope.variables or name in scope.dimensions:
            return False
        if name in scope.functions or name == "d" or name in inference.losses:
            return False
        return name not in inference.lengths and name not in self.known.now.losses

    def _add_loss(self, own: Read, reasons: Reasons) -> None:
        assert self._inference is not None
        known = self.known
        for name in sorted(own.names & self._inference.losses):
            if name in known.scope.variables or name in known.scope.functions:
                continue
            if any(one.head == name for one in self._inference.reads):
                if name != own.head:
                    self._define_ahead(name, own)
                continue
            if not known.now.losses and name != r"\mathcal{L}":
                known.now = replace(known.now, losses=known.now.losses | {name})
            reasons.loss = name
            self._suggest(f"loss {name}")
            reasons.others.append(f"{name} is the loss")

    def _define_ahead(self, name: str, own: Read) -> bool:
        """Whether another statement of the section defines a name."""
        if (inference := self._inference) is None or name in self._contested:
            return False
        source, above = self.known.source, own.statement.members
        others = [
            one
            for one in inference.reads
            if one.head == name
            and (one.section == own.section or one.line < own.line)
            and one.statement not in {own.statement, *self._busy, *self._failed}
            and not (
                own.line < one.line
                and one.names <= own.names
                and is_result(source, above, one.statement.members)
            )
        ]

        def distance(one: Read) -> tuple[bool, bool, int]:
            lines = one.line - own.line
            return one.section != own.section, lines > 0, abs(lines)

        for one in sorted(others, key=distance):
            before = self.known.now
            verdicts = self.judged(one.statement)
            if verdicts and verdicts[0].kind == "definition":
                if one.line >= own.line:
                    self._ahead[one.statement] = verdicts
                if one.section != own.section:
                    self._carried.add((name, one.line))
                return True
            self._failed.add(one.statement)
            self.known.now = before
        return False

    def _declare(self, name: str) -> bool:
        """Whether a name is now declared as inferred."""
        assert self._inference is not None
        before = self.known.now
        found = self._inference.found.get(name)
        lines = self._inference.declarations(name)
        try:
            for directive in lines:
                (line,) = read(directive)
                stated = found is not None and found.strength == "stated"
                self.known.add(line, found.line if found else 0, not stated)
                self._lines[line] = name
                self._sources.setdefault(line, self._inference)
        except Unreadable:
            self.known.now = before
            return False
        if lines and not any(one.head == name for one in self._inference.reads):
            self._suggest(*self._inference.suggestions(name))
        return bool(lines)

    # ---- what a verdict rests on, and whether it may be given ------------------------

    def _ruled(
        self, statement: Statement, found: list[Verdict], reasons: Reasons
    ) -> list[Verdict]:
        own = self._of.get(statement)
        if own and any(
            "differently. For a new" in verdict.message for verdict in found
        ):
            self._contested.add(own.head)
        if self._inference is None:
            return found
        return [self._rule(statement, verdict, reasons) for verdict in found]

    def _rule(
        self, statement: Statement, verdict: Verdict, reasons: Reasons
    ) -> Verdict:
        assert self._inference is not None
        inference = self._inference
        if verdict.kind == "nothing claimed":
            return verdict
        if (
            verdict.kind == "equal"
            and SUMS not in reasons.directives
            and not self.known.now.summed
            and self._sums(statement)
        ):
            return waiting(verdict, NOT_SUMMED, ())
        if verdict.kind == "not readable":
            undeclared = _UNDECLARED.match(verdict.message)
            return replace(verdict, waits=(undeclared[1],) if undeclared else ())
        declared = self.known.inferred_names
        own = self._of.get(statement)
        if verdict.basis:
            used = [name for name, _ in verdict.basis.definitions if name in declared]
        else:
            used = []
        if not verdict.basis or verdict.kind == "definition":
            used = sorted({*used, *(declared & (own.names if own else frozenset()))})
        below = [
            (name, line)
            for name, line in (verdict.basis.definitions if verdict.basis else ())
            if own is not None and line > verdict.line > 0 and name not in used
        ]
        carried = [
            (name, line)
            for name, line in (verdict.basis.definitions if verdict.basis else ())
            if (name, line) in self._carried and line < verdict.line
        ]
        words = (
            *verdict.inferred,
            *(self._source(name).reason(name) for name in used),
            *(
                f"{n} is defined below, in {self.known.document.where(k)}"
                for n, k in below
            ),
            *(
                f"{n} is as defined in {self.known.document.where(k)}"
                for n, k in carried
            ),
            *reasons.others,
        )
        if not words or verdict.kind == "definition":
            return replace(verdict, inferred=words)
        derives = own is not None and own.derives
        heads = {read.head for read in inference.reads if read is not own}
        heads = (heads | inference.prose.dependent) - {""}
        bound = [name for name in used if without_accent(name) in heads]
        if verdict.kind == "equal" and own is not None:
            bound, more = without_apart(inference, own, bound)
            words += more
        bound += [name for name in used if self._is_restricted(name, own)]
        if reasons.loss in heads:
            bound.append(reasons.loss)
        if verdict.kind == "equal":
            free = held_apart(self.known.scope, own, declared) or differentiated(
                inference.reads, own, used
            )
            if free is not None:
                why = f"{free} has no definition, so its derivative would be 0"
                return waiting(verdict, why, (free,))
            if derives and bound and not self._is_free(own, bound, used):
                why = f"{bound[0]} seems to depend on other names, so define it in a comment"
                return waiting(verdict, why, tuple(bound))
            return replace(verdict, inferred=words)
        if verdict.kind == "ill-formed" and own is not None:
            others = [*below, *carried, *beyond_loss(reasons)]
            if (
                not others
                and reasons.loss not in heads
                and all(self._is_stated_beside(name, own) for name in used)
            ):
                return replace(verdict, inferred=words)
        if (verdict.kind == "refused" or verdict.certain) and not (
            doubts(reasons, verdict) or bound or below or carried
        ):
            if self._may_be_refused(own, used, verdict):
                return replace(verdict, inferred=words)
        why = verdict.message or "it is not equal if " + "; ".join(words)
        return waiting(verdict, why, tuple(used))

    def _source(self, name: str) -> Inference:
        """Return the inference that a name's declaration comes from: the text's or a
        section's."""
        lines = [line for line, declared in self._lines.items() if declared == name]
        now = [line for line in lines if line in self.known.now.lines]
        return self._sources[(now or lines)[-1]]

    def _is_stated_beside(self, name: str, own: Read) -> bool:
        """Whether the text states a name's shape in the section of a line."""
        assert self._inference is not None
        found = self._source(name).found[name]
        headings = (i for i in self.known.document.items if isinstance(i, Heading))
        line = self.known.document.line
        section = sum(line(heading.start) <= found.line for heading in headings)
        return found.strength == "stated" and section == own.section

    def _is_free(self, own: Read | None, bound: list[str], used: list[str]) -> bool:
        """Whether a name that depends on others is all that a line differentiates by,
        so that no other name's derivative may pass through it."""
        assert self._inference is not None
        name = bound[0]
        return (
            set(bound) == {name}
            and not recurs(self._inference.reads, own, name)
            and (used == [name] or not self._is_restricted(name, own))
            and own is not None
            and differentiates_by(own, name)
        )

    def _is_restricted(self, name: str, own: Read | None) -> bool:
        """Whether another equation that is not an identity has a name on its left."""
        assert self._inference is not None
        return any(
            name in read.left and not self._is_identity(read)
            for read in self._inference.reads
            if read is not own and not read.head and not read.derives
        )

    def _is_identity(self, read: Read) -> bool:
        if read.statement not in self._identities:
            self._identities[read.statement] = False
            before = self.known.now
            found = self.judged(read.statement)[0]
            self.known.now = before
            self._identities[read.statement] = found.kind in RIGHT or (
                found.kind == "not readable"
                and not found.message.startswith(WAITS)
                and bool(read.right)
                and read.left <= read.right
            )
        return self._identities[read.statement]

    def _may_be_refused(
        self, own: Read | None, used: list[str], verdict: Verdict
    ) -> bool:
        """Whether a line is wrong however the text may be meant: its shapes are stated
        or shown by indices, and nothing else seems to restrict its names."""
        assert self._inference is not None
        inference = self._inference
        return (
            own is not None
            and is_claim(own, verdict)
            and self._contested.isdisjoint(names_of(own, verdict))
            and all(name in self._source(name).found for name in used)
            and all(is_sure(self._source(name).found[name], verdict) for name in used)
            and not inference.prose.restricting
            and not (
                inference.prose.deriving
                and any(
                    self._source(name).found[name].strength != "stated" for name in used
                )
            )
            and not any(
                not read.head and not read.derives and read.names & {*used}
                for read in inference.reads
                if read is not own
            )
        )
