"""Judge lines at first sight: where a text declares nothing, by what it implies.

The verdict says what was inferred. A line that is equal under an inferred reading
is equal; one that is not equal is refused only if the text itself states what the
reading rests on, and otherwise waits for a declaration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from backpass.derivation.language.names import without_accent
from backpass.derivation.language.parse import Line, Part, Unreadable, read
from backpass.derivation.text.contents import Heading
from backpass.derivation.text.directives import follow
from backpass.derivation.text.knowledge import Knowledge, Known
from backpass.derivation.text.passages import Text
from backpass.derivation.text.sight.elements import Reading, readings
from backpass.derivation.text.sight.inference import (
    Inference,
    Read,
    all_statements,
)
from backpass.derivation.text.sight.names import name_of
from backpass.derivation.text.sight.prose import prose_of
from backpass.derivation.text.sight.ruling import (
    DERIVATIVES,
    SUM,
    WAITS,
    Reasons,
    differentiates_by,
    held_apart,
    may_be_read,
    recurs,
    score,
    waiting,
)
from backpass.derivation.text.statements import Statement
from backpass.derivation.text.verdict import Verdict

Judge = Callable[[Statement], list[Verdict]]
_UNDECLARED = re.compile(
    r"(.+?) is (?:not declared or defined above|neither a parameter of)"
)
_LABELS = re.compile(
    r"\b(?:one-?hot|labels?|targets?|distributions?|probabilit(?:y|ies)|sums? to (?:1|one))\b",
    re.I,
)
_FACTOR = re.compile(r"(.+?)\(…\) prints like a function of")
_RIGHT = ("equal", "definition", "nothing claimed")


class Sight:
    """Judges statements, also by what is inferred of their names."""

    def __init__(self, known: Knowledge, judge: Judge) -> None:
        self.known, self._judge = known, judge
        self._inference: Inference | None = None
        self._whole: Inference | None = None
        self._sections: dict[int, Inference] = {}
        self._readings: tuple[Reading, ...] | None = None
        self._lines = known.inferred  # the declarations that are inferred
        self._sources: dict[Line, Inference] = {}  # what each of them is inferred from
        # What a comment would have to declare for the lines that were read or tried.
        self.suggested: dict[str, None] = {}
        self.missing: dict[str, None] = {}  # names of which nothing is inferred
        self._layout = ""
        self._ahead: dict[Statement, list[Verdict]] = {}
        self._busy: set[Statement] = set()
        self._last: list[Verdict] = []  # those of the last attempt
        self._failed: set[Statement] = set()  # that define nothing
        self._identities: dict[Statement, bool] = {}
        self._of: dict[Statement, Read] = {}

    # ---- one statement ---------------------------------------------------------------

    def judged(self, statement: Statement) -> list[Verdict]:
        """Return the verdicts on a statement."""
        known = self.known
        ahead = self._ahead.pop(statement, None)
        if ahead is not None and self._is_known(self._of[statement].head):
            return ahead
        self._release(statement)
        before = known.now
        found = self._judge(statement)
        if not any(may_be_read(verdict) for verdict in found):
            self._lay_out(statement)
            return self._ruled(statement, found, Reasons())
        after, known.now = known.now, before
        self._start()
        if not self._may_help(statement, found):
            known.now = after
            return self._ruled(statement, found, Reasons())
        self._busy.add(statement)
        best, reasons, then = found, Reasons(), after
        for inference in self._inferences(statement):
            self._inference, known.now = inference, before
            best, reasons, then = self._read(statement, best, reasons, then)
            known.now = before
            if all(verdict.kind in _RIGHT for verdict in best):
                break
        self._busy.discard(statement)
        if best is found and len(self._last) == len(found):
            # What is wrong although names have a meaning says more.
            pairs = zip(found, self._last, strict=True)
            best = found = [
                new if new.kind == old.kind == "not readable" else old
                for old, new in pairs
            ]
        defines = any(verdict.kind == "definition" for verdict in best)
        known.now = then
        ruled = self._ruled(statement, best, reasons)
        self._lay_out(statement)
        self._inference = self._whole
        known.now = then if defines or best is found else before
        return ruled

    def _may_help(self, statement: Statement, found: list[Verdict]) -> bool:
        """Whether an inference may help: a text that cannot be parsed needs at least
        another notation."""
        text = " ".join(member.characters for member in statement.members)
        return any(one.pattern.search(text) for one in self._readings or ()) or any(
            may_be_read(one) and not one.message.startswith("cannot read this")
            for one in found
        )

    def _lay_out(self, statement: Statement) -> None:
        """Note the layout of gradients by whole arrays, which have the array's shape
        without a layout."""
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

    def _inferences(self, statement: Statement) -> Iterator[Inference]:
        """Yield what is inferred from the whole text, and then from the section."""
        assert self._whole is not None
        yield self._whole
        own = self._of.get(statement)
        if own is None or len({one.section for one in self._whole.reads}) == 1:
            return
        if own.section not in self._sections:
            whole = self._whole
            made = Inference(self.known, whole.prose, own.section)
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
        verdicts = best
        for _ in range(8):
            start = known.now
            verdicts = self._last = self._judge(statement)
            if score(verdicts) > score(best):
                best, then = verdicts, known.now
                best_reasons = replace(reasons, others=[*reasons.others])
            known.now = start
            if all(verdict.kind in _RIGHT for verdict in verdicts):
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
        prose = prose_of(known.document)
        self._inference = self._whole = Inference(known, prose)
        self._of = {one.statement: one for one in self._inference.reads}

    def _with_readings(self, wanted: tuple[Reading, ...]) -> None:
        for one in wanted:
            text = Text(one.directive, (0,) * len(one.directive))
            follow(self.known, text, one.directive, 0)

    def _suggest(self, *directives: str) -> None:
        if self._inference is self._whole:
            self.suggested.update(dict.fromkeys(directives))

    def _add_readings(self, statement: Statement, reasons: Reasons) -> None:
        text = " ".join(member.characters for member in statement.members)
        wanted = tuple(o for o in self._readings or () if o.pattern.search(text))
        known = self.known.now.notations
        self._with_readings(wanted)
        self.known.now = replace(
            self.known.now, notations=(*known, *(
                n for n in self.known.now.notations if n not in known
            ))
        )  # fmt: skip
        reasons.others += [one.reason for one in wanted]
        self._suggest(*(one.directive for one in wanted))

    def _add_names(self, statement: Statement, reasons: Reasons) -> None:
        """Declare the names of a statement that have no meaning, as inferred."""
        assert self._inference is not None
        if (own := self._of.get(statement)) is None:
            return
        inference = self._inference
        self._add_loss(own, reasons)
        for name in sorted(own.names):
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
        """Whether another statement of the section defines a name, which then has this
        meaning."""
        assert self._inference is not None
        others = [
            one
            for one in self._inference.reads
            if one.head == name
            and one.section == own.section
            and one.statement not in self._busy
            and one.statement != own.statement
            and one.statement not in self._failed
        ]
        others.sort(key=lambda one: (one.line > own.line, abs(one.line - own.line)))
        for one in others:
            before = self.known.now
            verdicts = self.judged(one.statement)
            if verdicts and verdicts[0].kind == "definition":
                if one.line >= own.line:
                    self._ahead[one.statement] = verdicts
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
                self._sources[line] = self._inference
        except Unreadable:
            self.known.now = before
            return False
        if lines and not any(one.head == name for one in self._inference.reads):
            self._suggest(*self._inference.suggestions(name))
        return bool(lines)

    # ---- what a statement still needs ------------------------------------------------

    def _met(
        self,
        statement: Statement,
        verdicts: list[Verdict],
        reasons: Reasons,
        tried: set[str],
    ) -> bool:
        """Whether something that a message asks for is now inferred."""
        for verdict in verdicts:
            if self._sums_to_one(verdict, reasons):
                return True
            if verdict.kind != "not readable":
                continue
            directive, reason = self._wanted(verdict.message)
            if directive and directive not in tried:
                tried.add(directive)
                text = Text(directive, (0,) * len(directive))
                try:
                    follow(self.known, text, directive, 0)
                except Unreadable:
                    continue
                reasons.others.append(reason)
                self._suggest(directive)
                return True
        return False

    def _sums_to_one(self, verdict: Verdict, reasons: Reasons) -> bool:
        """Whether the elements of an inferred name sum to 1, as a word of the text
        says, and a line needs it."""
        assert self._inference is not None
        match = SUM.match(verdict.message)
        if match is None or not _LABELS.search(self._inference.prose.words):
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

    def _wanted(self, message: str) -> tuple[str, str]:
        assert self._inference is not None
        first = message.partition("\n")[0]
        if first.startswith("a differential or derivative, or a product with d?"):
            return "d differential", "d marks a differential"
        if match := _FACTOR.match(first):
            name = match[1]
            if name in self._inference.factors - self._inference.functions:
                return f"factor {name}", f"{name} is a factor before a bracket"
        return "", ""

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
            "layout numerator" in verdict.message for verdict in verdicts
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
                if all(verdict.kind in _RIGHT for verdict in found):
                    self._layout = layout
                    self._suggest(f"layout {layout}")
                    break
        known.now = start
        return best, then, best_reasons

    # ---- what a verdict rests on, and whether it may be given ------------------------

    def _ruled(
        self, statement: Statement, found: list[Verdict], reasons: Reasons
    ) -> list[Verdict]:
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
        words = (
            *(self._source(name).reason(name) for name in used),
            *(
                f"{n} is defined below, in {self.known.document.where(k)}"
                for n, k in below
            ),
            *reasons.others,
        )
        if not words:
            return verdict
        if verdict.kind == "definition":
            return replace(verdict, inferred=words)
        derives = own is not None and own.derives
        heads = {read.head for read in inference.reads if read is not own}
        heads = (heads | inference.prose.dependent) - {""}
        bound = [name for name in used if without_accent(name) in heads]
        bound += [name for name in used if self._is_restricted(name, own)]
        if reasons.loss in heads:
            bound.append(reasons.loss)
        if verdict.kind == "equal":
            if (free := held_apart(self.known.scope, own, declared)) is not None:
                why = f"{free} has no definition, so its derivative would be 0"
                return waiting(verdict, why, (free,))
            if derives and bound and not self._is_free(own, bound, used):
                why = f"{bound[0]} seems to depend on other names, so define it in a comment"
                return waiting(verdict, why, tuple(bound))
            return replace(verdict, inferred=words)
        if verdict.kind == "ill-formed" and own is not None:
            others = below + [
                one for one in reasons.others if one != f"{reasons.loss} is the loss"
            ]
            if (
                not others
                and reasons.loss not in heads
                and all(self._is_stated_beside(name, own) for name in used)
            ):
                return replace(verdict, inferred=words)
        if verdict.kind == "refused" and not (reasons.others or bound or below):
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
            self._identities[read.statement] = found.kind in _RIGHT or (
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
            and not verdict.message
            and (own.derives or not verdict.to_left)
            and all(
                self._source(name).found[name].strength in ("stated", "index")
                for name in used
            )
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
