"""Judge statements by rules that hold whatever their names are.

A line is equal if it follows from the line above it by these rules alone, or by these
and the definitions of the text. No line is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from backpass.derivation.language.parse import Unreadable
from backpass.derivation.text.formal.algebra import is_ordered
from backpass.derivation.text.formal.chains import steps
from backpass.derivation.text.formal.claims import (
    DIFFERS,
    has_names_of,
    holds_above,
    is_aim,
    is_derived,
    is_next,
    is_update,
    losses_in,
    may_stand,
)
from backpass.derivation.text.formal.declared import Declared, of_comments
from backpass.derivation.text.formal.following import follows
from backpass.derivation.text.formal.grids import Grids, has_grid, paired
from backpass.derivation.text.formal.heads import is_named_last
from backpass.derivation.text.formal.kinds import is_array, is_matrix
from backpass.derivation.text.formal.laws import JOINT, with_laws
from backpass.derivation.text.formal.limits import LIMIT, is_limit
from backpass.derivation.text.formal.meanings import Meanings, Read
from backpass.derivation.text.formal.ordering import holds, is_false
from backpass.derivation.text.formal.positive import positive_in
from backpass.derivation.text.formal.reader import read_formula
from backpass.derivation.text.formal.reads import displayed, in_prose
from backpass.derivation.text.formal.rewrites import with_integrals, with_whole_sums
from backpass.derivation.text.formal.rounding import is_rounded
from backpass.derivation.text.formal.routes import name_of
from backpass.derivation.text.formal.slopes import Calculus
from backpass.derivation.text.formal.spelled import GRADIENT, spelled
from backpass.derivation.text.formal.trees import Node, Unclear
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.passages import Text
from backpass.derivation.text.relations import chain
from backpass.derivation.text.rewriting import with_functions
from backpass.derivation.text.sight.prose import Prose, matrices_of, prose_of
from backpass.derivation.text.statements import Statement
from backpass.derivation.text.verdict import Verdict

_CLAIMS = re.compile(
    r"[=<>]|\\(?:[a-zA-Z]*(?:eq|leqslant|geqslant|[aA]rrow)|n?(?:approx|sim|cong)|[lg]e|[lg]g"
    r"|propto|iff|implies|to|mapsto|notin|subset|supset|prec|succ|equiv)(?![a-zA-Z])"
)
_CLAIMED = (
    "the side before it, in which a name is not declared, defines the left side: declare "
    "its names"
)
_FALSE = "the number on one side is not as small, or as large, as this says"
_ABSURD = re.compile(r"\b(?:contradict|absurd|impossib|false|wrong|paradox)", re.I)
_IF = re.compile(
    r"\b(?:if|when\w*|unless|whether|suppose|assum\w+|until|while)\b", re.I
)
_FAR = 24  # equations above a conclusion
# Words, and not the name of a function; and words that state something.
_WORD_GROUP = re.compile(
    r"\\(?:text(?:rm|bf|it|normal)?|mbox|q?quad)(?![a-zA-Z])"
    r"\s*(?:\{(?:[^{}$]*[\s:)][^{}$]*)\})?|\\[,;:! ]"
)
_STATES = re.compile(
    r"\b(?:is|are|equals?|has|have|depends?|must|means|becomes?|if|for|when|where|iff|satisf\w+|not|no)\b"
)


class Formal:
    """Judges statements that could not be read, or that wait for a declaration."""

    def __init__(self, known: Knowledge) -> None:
        self.known = known
        self._meanings: Meanings | None = None
        self._declared = Declared(known)
        self._key: tuple[object, ...] = ()  # what the meanings rest on
        self._spelled = ""  # the layout of derivatives that are written out
        self._prose: Prose | None = None
        self._matrices: set[str] = set()  # as prose states
        self._of: dict[tuple[Text, ...], Read] = {}
        # What is noted when the text is read, and the equations so far that hold.
        self._waiting: list[tuple[tuple[Text, ...], list[Verdict], bool]] = []
        self._noted: list[tuple[tuple[Text, ...], list[Verdict], bool]] = []
        self._above: list[tuple[Read, tuple[Node, Node]]] = []
        # The displayed statement before each one in its section, and the verdicts.
        self._before: dict[tuple[Text, ...], tuple[Text, ...]] = {}
        self._found: dict[tuple[Text, ...], list[Verdict]] = {}

    def judged(self, statement: Statement, found: list[Verdict]) -> list[Verdict]:
        """Return the verdicts on a statement, some of which may now be given."""
        members = statement.members
        if len(members) == len(found) == 1:
            if statement.sides and found[0].kind == "not readable":
                return [self._related(statement, found[0], *statement.sides)]
            return [self._without_claim(found[0], members[0])]
        if len(found) != len(members) - 1 or statement.fault:
            return found
        if all(one.kind != "not readable" for one in found):
            self._note(statement, found)
            return found
        self._prepare()
        if (read := self._of.get(members)) is None:
            return found
        read.held = members in self.known.restrictions.held
        read, above = self._continued(members, read)
        if not self._fits(read):
            self._note(statement, found)
            return found
        verdicts = [*above, *found]
        for number, verdict in enumerate(verdicts):
            if number < len(above):
                continue
            if number and verdict.kind == "definition" == verdicts[0].kind:
                # The first right side is the definition, and this one a claim.
                verdict = replace(verdict, kind="not readable", message=_CLAIMED)
                verdicts[number] = verdict
            if verdict.kind != "not readable":
                continue
            if verdict.differs and self._declared:
                continue
            made = None
            if not DIFFERS.search(verdict.message):
                made = self._defined(statement, read, number) or self._compared(
                    read, verdicts, number
                )
            elif read.defines is None:
                made = self._defined(statement, read, number)
            made = made or self._concluded(read, number)
            if made is not None:
                verdicts[number] = self._with_words(verdict, *made)
        self._note(statement, verdicts)
        return verdicts[len(above) :]

    def _continued(
        self, members: tuple[Text, ...], read: Read
    ) -> tuple[Read, list[Verdict]]:
        """Return the whole chain of which a statement that begins with = is the end,
        and the verdicts on its beginning, which the display above it shows."""
        before = self._before.get(members, ())
        above, verdicts = self._of.get(before), self._found.get(before)
        if members[0].characters.strip() or not above or not verdicts:
            return read, []
        if not (above.stands and above.section == read.section and read.stands):
            return read, []
        whole = replace(
            read,
            members=above.members + read.members[1:],
            trees=above.trees + read.trees[1:],
        )
        self._of[members] = whole
        return whole, verdicts

    def _related(
        self, statement: Statement, verdict: Verdict, left: Text, right: Text
    ) -> Verdict:
        """Return the verdict on a relation: of a number that is approximately another
        one, and of an inequality that holds for all numbers, or for none."""
        with suppress(Unclear, RecursionError, OverflowError, ZeroDivisionError):
            sign = chain(statement.members[0])[-1].sign
            if sign == r"\approx":
                if is_rounded(left.characters, right.characters):
                    words = ("its right side is rounded",)
                    return self._with_words(verdict, "equal", verdict.line, words)
            elif not (statement.beside or statement.fault):
                return self._ordered(statement, verdict, sign, left, right)
        return verdict

    def _ordered(
        self,
        statement: Statement,
        verdict: Verdict,
        sign: str,
        left: Text,
        right: Text,
    ) -> Verdict:
        self._prepare()
        if (read := self._of.get(statement.members)) is None:
            return verdict
        assert self._meanings is not None
        manner = self._meanings.manner
        a, b = (read_formula(one.characters, manner) for one in (left, right))
        ordered, columns = self._is_ordered([a, b]), self._meanings.columns
        for expand in (False, True):
            calculus = Calculus(
                self._meanings.at(read), ordered, expand, False, columns
            )
            calculus.why_positive = self._positive([a, b])
            reason = holds(calculus, sign, a, b)
            if reason is not None:
                words = self._words(calculus, read) + ((reason,) if reason else ())
                return self._with_words(verdict, "equal", verdict.line, words)
        source, start = self.known.source, left.origins[0]
        is_claimed = not (
            _ABSURD.search(source) or _IF.search(source[max(0, start - 400) : start])
        )
        if is_claimed and is_false(calculus, sign, a, b):
            return replace(verdict, kind="refused", message=_FALSE)
        return verdict

    def _fits(self, read: Read) -> bool:
        """Whether the names of a statement, and those in its definitions, are of the
        kinds that comments declare, and that prose states of matrices."""
        assert self._meanings is not None
        if not (self._declared or self._matrices):
            return True
        trees = [tree for tree in read.trees if tree is not None]
        trees += self._meanings.reached(trees, read)
        if self._matrices and any(
            (node.value in self._matrices and not is_array(node))
            or (node.kind == "quotient" and is_matrix(node.parts[1], self._is_stated))
            for tree in trees
            for node in tree.walk()
        ):
            return False
        return self._declared.fit(trees, self._meanings.columns)

    def _is_stated(self, name: Node) -> bool:
        return name.value in self._matrices

    def _without_claim(self, verdict: Verdict, member: Text) -> Verdict:
        """Return the verdict on a formula without =: none is claimed if it can be read,
        or says of what kind a name is."""
        if verdict.kind != "not readable" or _CLAIMS.search(member.characters):
            return verdict
        self._prepare()
        assert self._meanings is not None
        claimed = replace(verdict, kind="nothing claimed", message="")
        words = _WORD_GROUP.findall(member.characters)
        text = member.characters
        if words and not any(map(_STATES.search, words)):
            text = _WORD_GROUP.sub(" ", text)
            if not text.strip(" .,;&"):
                return claimed
        pieces = text.split(r"\in ")
        if len(pieces) > 2:
            return verdict
        try:
            read_formula(pieces[0], self._meanings.manner)
        except (Unclear, RecursionError):
            return verdict
        return claimed

    def _with_words(
        self, verdict: Verdict, kind: str, against: int, words: tuple[str, ...]
    ) -> Verdict:
        return replace(
            verdict, kind=kind, against=against, message="", waits=(), inferred=words
        )

    # ---- the text --------------------------------------------------------------------

    def _prepare(self) -> None:
        """Read the text, again where a comment has changed what its signs mean."""
        now = self.known.now
        accents = tuple(sorted(now.accents))
        mine = tuple(one for one in now.notations if one in self.known.notations)
        key = (of_comments(self.known), mine, accents, now.summed)
        if self._meanings is not None and key == self._key:
            return
        self._key, self._declared = key, Declared(self.known)
        self._start()
        self._above, self._spelled = [], ""
        self._waiting = [*self._noted]
        self._note_waiting()

    def _start(self) -> None:
        known, document = self.known, self.known.document
        self._prose = prose = prose_of(document)
        self._matrices = matrices_of(document, prose)
        reads = [*displayed(known), *in_prose(known, prose)]
        reads.sort(
            key=lambda one: [at for text in one.members for at in text.origins][:1]
        )
        self._of = {one.members: one for one in reads if one.shown}
        self._before = {after: before for before, after in pairwise(self._of)}
        for one in reads:
            try:
                one.members = tuple(
                    with_functions(known.in_own_notation(text), known.scope)
                    for text in one.members
                )
            except Unreadable:
                self._of.pop(one.members, None)
                one.certain = one.stands = one.usable = False
        formulas = [text.characters for one in reads for text in one.members]
        expects = re.search(r"\bexpect(?:ation|ed)", prose.words, re.I) is not None
        expects |= any(line.kind == "random" for line in known.now.lines)
        self._meanings = Meanings(
            reads,
            formulas,
            prose.dependent | self._declared.defined,
            expects,
            document.expanded.characters,
            self._declared.marked,
        )

    # ---- verdicts --------------------------------------------------------------------

    def _defined(
        self, statement: Statement, read: Read, number: int
    ) -> tuple[str, int, tuple[str, ...]] | None:
        """Return a definition, if a statement begins with one."""
        imposed = self.known.imposed
        left, right = read.trees[:2]
        if (
            number
            or read.held
            or not read.certain
            or imposed.follows
            or imposed.by_sentence
        ):
            return None
        if read.defines is None:
            return self._named_last(read)
        if imposed.perhaps and not (
            left and right and (is_update(left, right) or is_aim(left, right))
        ):
            return None
        meanings = self._meanings
        if left is not None and meanings and is_derived(meanings, left, right):
            return None
        if right is None or (
            left and meanings and meanings.has_free_index(left, right)
        ):
            return None
        return "definition", 0, ("the names on its right may be anything",)

    def _named_last(self, read: Read) -> tuple[str, int, tuple[str, ...]] | None:
        """Return a definition, if an equation names the formula on its left."""
        left, right = read.trees[:2]
        if left is None or right is None or len(read.trees) > 2:
            return None
        assert self._meanings is not None
        if self._meanings.has_free_index(right, left) or not read.introduced:
            return None
        if not is_named_last(left, right, self.known.source[: read.begins]):
            return None
        return "definition", 0, (f"{right.value} is new: it is the left side",)

    def _compared(
        self, read: Read, verdicts: list[Verdict], number: int
    ) -> tuple[str, int, tuple[str, ...]] | None:
        """Compare a member with those before it, the nearest first."""
        tree = read.trees[number + 1]
        if tree is None:
            return None
        is_right = [one.kind in ("equal", "definition") for one in verdicts[:number]]
        for at in range(number, -1, -1):
            other = read.trees[at]
            if other is None or (at and not may_stand(verdicts[at - 1])):
                continue
            if at and not is_right[at - 1] and any(is_right):
                shown = max(k for k, right in enumerate(is_right) if right)
                before = read.trees[min(shown + 1, at - 1)]
                if at < number or before is None or has_names_of(before, other):
                    continue  # it is not shown to equal those before it
            if (words := self._agree(other, tree, read)) is not None:
                line = self.known.document.line_of(read.members[at])
                if at and verdicts[at - 1].kind == "not readable":
                    words += (f"{self.known.document.where(line)} holds",)
                return "equal", line, words
        return None

    def _concluded(
        self, read: Read, number: int
    ) -> tuple[str, int, tuple[str, ...]] | None:
        """Return the verdict on an equation that follows from one above it."""
        assert self._meanings is not None
        left, right = read.trees[number], read.trees[number + 1]
        if left is None or right is None or not read.stands:
            return None
        for other, sides in reversed(self._above[-_FAR:]):
            if other.section != read.section or other is read:
                continue
            words = self._following(sides, (left, right), read)
            if words is not None:
                where = self.known.document.where(other.line)
                return "equal", read.line, (*words, f"{where} holds")
        return None

    def _following(
        self, above: tuple[Node, Node], here: tuple[Node, Node], read: Read
    ) -> tuple[str, ...] | None:
        assert self._meanings is not None
        ordered = self._is_ordered([*above, *here])
        columns, identity = self._meanings.columns, self._meanings.identity
        meaning = self._meanings.at(read)
        calculus = Calculus(meaning, ordered, False, False, columns, identity)
        calculus.why_positive = self._positive([*above, *here])
        with suppress(Unclear, RecursionError, OverflowError, ZeroDivisionError):
            extra = follows(calculus, above, here)
            if extra is not None:
                words = self._words(calculus, read)
                return (*words, extra) if extra else words
        return None

    def _agree(self, a: Node, b: Node, read: Read) -> tuple[str, ...] | None:
        """Return what the equality of two members rests on, in words; None if it is
        not shown."""
        assert self._meanings is not None
        if (words := self._by_chain_rule(a, b, read)) is not None:
            return words
        if layout := spelled(a, b, self._meanings.manner):
            if self._spelled and layout not in (GRADIENT, self._spelled):
                return None
            self._spelled = self._spelled if layout == GRADIENT else layout
            return (layout,)
        if is_limit(a, b, self._meanings.manner):
            return (LIMIT,)
        for expand, through in ((False, False), (True, False), (True, True)):
            for written in (with_whole_sums, self._integrated, self._joint):
                try:
                    if (both := written([a, b])) is None:
                        continue
                    first, second = both
                    words = self._by_rules(first, second, read, expand, through)
                except (Unclear, RecursionError, OverflowError, ZeroDivisionError):
                    continue
                if words is not None:
                    return (*words, JOINT) if written == self._joint else words
        with suppress(Unclear, RecursionError, OverflowError, ZeroDivisionError):
            if (words := self._by_rules(a, b, read, True, False, layers=True)) is None:
                return self._by_entries(a, b, read)
            return words
        return None

    def _is_ordered(self, trees: list[Node]) -> bool:
        """Whether the order of factors matters in formulas."""
        return is_ordered(trees) or self._declared.has_array(trees)

    def _positive(self, trees: list[Node]) -> Callable[[Node], str]:
        assert self._prose is not None
        return positive_in(trees, self._declared, self._prose)

    def _by_entries(self, a: Node, b: Node, read: Read) -> tuple[str, ...] | None:
        """Compare formulas with matrices that are written out entry by entry."""
        meanings = self._meanings
        assert meanings is not None
        if not any(map(has_grid, (a, b, *meanings.reached((a, b), read)))):
            return None
        grids = Grids(meanings.manner, meanings.at(read).value)
        first, second = grids.value(a), grids.value(b)
        pairs = paired(first, second)
        words: tuple[str, ...] = ("entries of matrices are numbers",)
        for one, other in pairs:
            found = self._by_rules(one, other, read, True, False)
            if found is None:
                return None
            words += found
        return tuple(dict.fromkeys(words)) if pairs else None

    def _integrated(self, trees: list[Node]) -> list[Node] | None:
        assert self._meanings is not None
        return with_integrals(trees, self._meanings.manner)

    def _joint(self, trees: list[Node]) -> list[Node] | None:
        assert self._meanings is not None
        return with_laws(trees, self._meanings.manner, self._meanings.is_apart)

    def _by_rules(
        self,
        a: Node,
        b: Node,
        read: Read,
        expand: bool,
        through: bool,
        layers: bool = False,
    ) -> tuple[str, ...] | None:
        assert self._meanings is not None
        meaning = self._meanings.at(read)
        trees = [a, b, *(self._meanings.reached((a, b), read) if expand else ())]
        ordered = self._is_ordered(trees)
        calculus = Calculus(
            meaning,
            ordered,
            expand,
            through and not ordered,
            self._meanings.columns,
            self._meanings.identity,
            losses_in((a, b)) if layers else None,
        )
        if layers and not calculus.layers:
            return None
        calculus.why_positive = self._positive(trees)
        first, second = calculus.form(a), calculus.form(b)
        if not calculus.is_zero(calculus.added(first, second, Fraction(-1))):
            return None
        return self._words(calculus, read)

    def _words(self, calculus: Calculus, read: Read) -> tuple[str, ...]:
        assert self._meanings is not None
        are_declared = self._meanings.has_only_numbers(read)
        words = [] if are_declared else ["names are numbers"]
        if calculus.ordered:
            words = ["products keep their order"]
            if calculus.columns:
                words = ["products keep their order; lower-case letters are columns"]
        if calculus.shaped:
            words.append("gradients have the shape of what they are taken by")
        if calculus.dropped:
            words.append("I is the identity matrix")
        for name in calculus.used.values():
            defined = self._meanings.definition(name, read)
            if defined is not None:
                where = self.known.document.where(defined.line)
                words.append(f"{name.value} is as defined in {where}")
        words += sorted(calculus.supposed)
        words += [
            f"{name} does not depend on other names" for name in sorted(calculus.inputs)
        ]
        words += [
            f"{of} depends on {by} only through {one}"
            for of, by, one in sorted(
                (*map(name_of, nodes),) for nodes in calculus.outputs
            )
        ]
        return tuple(words)

    def _by_chain_rule(self, a: Node, b: Node, read: Read) -> tuple[str, ...] | None:
        assert self._meanings is not None
        words: tuple[str, ...] = ()
        if (paths := steps(a, b)) is None:
            paths, words = self._by_function(a, b)
        if paths is None:
            return None
        of, by = (one if one.kind == "name" else one.parts[0] for one in a.parts)
        ends = [one for path in paths for one in path]
        inner = [one if one.kind == "name" else one.parts[0] for one in ends]
        if self._declared.has_array([of, by, *inner]):
            return None
        if not self._meanings.only_through(of, by, paths):
            return None
        through = " and ".join(dict.fromkeys(map(name_of, inner)))
        return (
            *words,
            f"{name_of(of)} depends on {name_of(by)} only through {through}",
        )

    def _by_function(
        self, a: Node, b: Node
    ) -> tuple[list[list[Node]] | None, tuple[str, ...]]:
        """Return the steps of a chain rule that begins with a function, where the text
        says that the name which is differentiated is its value, and in words so."""
        assert self._meanings is not None
        if a.kind == "slope" and a.parts[0].kind == "name":
            for one, *arguments in self._meanings.functions(a.parts[0]):
                paths = steps(replace(a, parts=(one, a.parts[1])), b)
                if paths is not None:
                    inner = {node for path in paths for node in path}
                    if {*arguments} <= inner or any(node.subs for node in inner):
                        return paths, (f"{a.parts[0].value} is a value of {one.value}",)
        return None, ()

    def _note(self, statement: Statement, verdicts: list[Verdict]) -> None:
        """Note what a statement shows, for those below it."""
        known = self.known.imposed
        imposed = known.by_sentence or known.perhaps or known.here
        self._waiting.append((statement.members, verdicts, imposed))
        self._noted.append(self._waiting[-1])
        self._found[statement.members] = verdicts
        if self._meanings is not None:
            self._note_waiting()

    def _note_waiting(self) -> None:
        for members, found, is_imposed in self._waiting:
            if (read := self._of.get(members)) is not None:
                read.held = members in self.known.restrictions.held
                self._note_read(read, found, is_imposed)
        self._waiting = []

    def _note_read(self, read: Read, verdicts: list[Verdict], imposed: bool) -> None:
        assert self._meanings is not None
        if read.held or not self._fits(read):
            return
        for number, verdict in enumerate(verdicts if read.stands else ()):
            a, b = read.trees[number], read.trees[number + 1]
            if (
                a is not None
                and b is not None
                and holds_above(verdict, number, a, b, imposed)
                and not is_next(a, b)
            ):
                self._above.append((read, (a, b)))
        if read.trees[0] is None or read.trees[0].kind != "slope":
            return
        for verdict, tree in zip(verdicts, read.trees[1:], strict=True):
            if verdict.kind == "equal" and tree is not None:
                self._meanings.add_fact(read.trees[0], tree)
