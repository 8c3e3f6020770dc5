"""Judge the displayed mathematics of a text, line by line.

Each side of an equation is compared with the last side of its chain that was right, so
a mistake is blamed once, on its own line. If a line may have several meanings, none is
guessed: the verdict is "not readable" and says what would make the meaning certain.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from lark import Token, Tree

from backpass.derivation.document import directives
from backpass.derivation.equality.check import (
    Chain,
    Sizes,
    counterexample,
    first_mistake,
    scope_of,
)
from backpass.derivation.equality.comparing import (
    DRAWS,
    Holding,
    Refused,
    Where,
    compare,
    elsewhere,
    evaluators_of,
    members_chain,
    of_both_results,
    of_loss,
    sum_to_one,
)
from backpass.derivation.language.functions import (
    called,
    find,
    function_of,
    parameters_of,
)
from backpass.derivation.language.names import (
    LOSS,
    Expression,
    Scope,
    canonical,
    shape_of,
    subscripts_of,
)
from backpass.derivation.language.parse import (
    DECLARING,
    Line,
    Misfit,
    Part,
    Unreadable,
    parse,
    read,
    span_of,
    tokens_of,
)
from backpass.derivation.text.contents import Comment, Document, Heading
from backpass.derivation.text.limit import TooLong, limited
from backpass.derivation.text.notation import Notation, notation
from backpass.derivation.text.passages import Passage, Text, relocated
from backpass.derivation.text.rewriting import (
    CONDITION_WORDS,
    FOR_ALL,
    INDEX_RANGE,
    LABEL,
    MEMBERSHIP,
    PROSE,
    ROUND,
    depends_on_layout,
    not_an_equation,
    parsed,
    rewritten,
)
from backpass.derivation.text.statements import Statement, statements
from backpass.derivation.text.verdict import Basis, Counterexample, Verdict

T = TypeVar("T")


@dataclass(frozen=True)
class Known:
    """What is declared at a place of the text.

    `implied` are the definitions made by displays. `losses` are the names of the loss,
    and `accents` the accents whose meaning is known. `notations` are the text's own.
    `total` says whether partial derivatives go through all definitions, and `kept`
    whether definitions hold beyond the end of their section.
    """

    lines: tuple[Line, ...] = ()
    implied: frozenset[Line] = frozenset()
    losses: frozenset[str] = frozenset()
    accents: frozenset[str] = frozenset()
    notations: tuple[Notation, ...] = ()
    total: bool = False
    kept: bool = False

    @property
    def scope(self) -> Scope:
        return scope_of(list(self.lines))[0]


def judge(
    document: Document,
    definitions: str = "",
    progress: Callable[[int], None] = lambda line: None,
    seconds: float = 0,
) -> list[Verdict]:
    """Return the verdicts on the displayed lines of a document, in order.

    - `definitions`: declarations and definitions that hold for the whole text.
    - `progress`: called with the number of each line before it is judged.
    - `seconds`: a line that takes more CPU time is not readable; 0 sets no limit.

    Raises `Unreadable` for `definitions` that cannot be read.
    """
    judging = _Judging(document, progress, seconds)
    for text in directives(definitions):
        judging.direct(text, definitions, 0)
    judging.start_over = judging.known
    return list(judging.verdicts())


@dataclass
class _Judging:
    document: Document
    progress: Callable[[int], None]
    seconds: float
    known: Known = Known()
    start_over: Known = Known()
    condition: Text | None = None  # of the next display
    # The headings around a place, each with what was known before it.
    outer: list[tuple[int, Known]] = field(default_factory=list)
    defined_on: dict[Line, int] = field(default_factory=dict)
    # The ranges of indices that are written beside the current statement.
    ranges: dict[str, str] = field(default_factory=dict)
    # Names defined in a section that has ended, with the line of each definition.
    ended: dict[str, int] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return self.document.source

    def verdicts(self) -> Iterator[Verdict]:
        for item in self.document.items:
            if isinstance(item, Heading):
                while self.outer and self.outer[-1][0] >= item.level:
                    outer = self.outer.pop()[1]
                    self._end_section(outer)
                self.outer.append((item.level, self.known))
            elif isinstance(item, Comment):
                yield from self._comment(item)
            else:
                for statement in statements(item):
                    for verdict in self._statement(statement):
                        yield replace(verdict, display=item.start)
                self.condition = None

    def _end_section(self, outer: Known) -> None:
        """Forget what a section has defined, unless that is kept."""
        if self.known.kept:
            return
        for line in self.known.lines:
            if line not in outer.lines and line.left is not None:
                name = line.left.text.partition("(")[0].strip()
                self.ended[name] = self.defined_on[line]
        self.known = outer

    # ---- definitions -----------------------------------------------------------------

    def _comment(self, comment: Comment) -> Iterator[Verdict]:
        for text in comment.directives:
            line = self.document.line(text.origins[0])
            try:
                self.direct(text, self.source, line)
            except Unreadable as error:
                latex = " ".join(text.characters.split())
                message = self.document.explained(error)
                yield Verdict("not readable", line, latex, 0, message, display=-1)

    def direct(self, text: Text, source: str, line_number: int) -> None:
        """Follow one directive. Raises `Unreadable`."""
        word, _, rest = text.characters.partition(" ")
        rest = rest.strip()
        known = self.known
        if word == "restart" and not rest:
            self.known = self.start_over
        elif word == "loss" and rest:
            self.known = replace(known, losses=known.losses | {rest})
        elif (word, rest) in (("bar", "gradient"), ("dot", "differential")):
            self.known = replace(known, accents=known.accents | {word})
        elif (word, rest) == ("keep", "definitions"):
            self.known = replace(known, kept=True)
        elif (word, rest) == ("partial", "total"):
            self.known = replace(known, total=True)
        elif (word, rest) == ("partial", "applied"):
            part = text.part(source)
            self._add(Line("applied", None, part, None, ""), line_number)
        elif word == "when" and rest:
            self.condition = text[text.characters.index(rest) :]
        elif word == "read" and rest:
            found = notation(text[text.characters.index(rest) :], source)
            self.known = replace(known, notations=(*known.notations, found))
        elif word in DECLARING:
            text = self._rewritten(text, source)
            try:
                (line,) = read(text.characters)
            except Unreadable as error:
                raise relocated(error, text, source) from None
            self._add(_placed(line, text, source), line_number)
            accents = {w for w in ("bar", "dot") if f"\\{w}" in text.characters}
            self.known = replace(self.known, accents=self.known.accents | accents)
        else:
            raise Unreadable(
                "expected given, constant, let, assume, slice, factor, layout, read, loss, when, "
                "restart, keep definitions, bar gradient, dot differential, partial "
                "total or partial applied",
                text.part(source),
            )

    def _add(self, line: Line, number: int, implied: bool = False) -> None:
        lines = (*self.known.lines, line)
        scope_of(list(lines))  # raises if it does not fit
        self.defined_on[line] = number
        self.known = replace(
            self.known,
            lines=lines,
            implied=self.known.implied | ({line} if implied else frozenset()),
        )

    def _forget(self, line: Line) -> None:
        """Remove a definition, and the definitions that need it."""
        kept: list[Line] = []
        for one in self.known.lines:
            if one == line:
                continue
            try:
                scope_of([*kept, one])
            except Unreadable:
                continue
            kept.append(one)
        self.known = replace(self.known, lines=tuple(kept))

    def _rewritten(self, text: Text, source: str = "") -> Text:
        """Return a text in the notation of derivations. Raises `Unreadable`."""
        for one in self.known.notations:
            text = one.applied(text, source or self.source)
        return rewritten(text, self.known.scope, self.known.losses)

    # ---- statements ------------------------------------------------------------------

    def _statement(self, statement: Statement) -> Iterator[Verdict]:
        """Judge the members, each against the last one that was right."""
        left = statement.members[0]
        rest = statement.members[1:]
        why = statement.fault
        try:
            for member in statement.members:
                self._rewritten(member)
        except Unreadable as error:
            why = why or self.document.explained(error)
        if not why and not rest and (declared := self._declared(left)):
            yield declared
            return
        if not rest:
            why = why or not_an_equation(left.characters)
        try:
            condition = self._condition(statement)
        except Unreadable as error:
            condition, why = None, why or self.document.explained(error)
        if not why and not left.characters:
            why = "it begins with =: what stands on its left?"
        if why:
            for member in rest or (left,):
                yield self._verdict("not readable", member, message=why)
            return
        doubt = ""
        if any(map(_is_prose, statement.beside)) or LABEL.match(left.characters):
            doubt = (
                "this line is wrong unless the words beside it restrict it: write the "
                r"condition in symbols, such as j \ne i"
            )
        elif statement.conditional:
            doubt = "this line is wrong unless a premise restricts it: write it without the arrow"
        if doubt and self._defines(self._part(left)):
            message = (
                "a definition cannot have words or an arrow beside it: write it alone"
            )
            for member in rest:
                yield self._verdict("not readable", member, message=message)
            return
        for verdict in self._chain(left, rest, condition):
            if verdict.kind in ("refused", "follows") and doubt:
                line, latex = verdict.line, verdict.latex
                verdict = Verdict("not readable", line, latex, verdict.against, doubt)
            yield verdict

    def _chain(
        self, left: Text, rest: tuple[Text, ...], condition: Part | None
    ) -> Iterator[Verdict]:
        head = self._part(left)
        first, anchor, blamed = head, head, None
        defining = self._defines(head)
        for member in rest:
            self.progress(self._line(member))
            part, membership = self._without_membership(member)
            if defining:
                verdict = self._define(member, head, part, condition, membership)
                defining = verdict.kind != "definition"
                yield verdict
                anchor = part if not defining else anchor
                continue
            compare = partial(self._compare, first, anchor, part, condition, membership)
            explain = partial(self._unequal, member, head, first, anchor, blamed, part)
            try:
                try:
                    basis = self._in_time(part, compare)
                except Refused as refused:
                    verdict = self._in_time(part, partial(explain, condition, refused))
                    is_wrong = verdict.kind in ("refused", "follows")
                    blamed = part if is_wrong else blamed
                    yield verdict
                    continue
            except Unreadable as error:
                yield self._unread(member, self._line_of(anchor), error)
                if error.part == anchor:
                    first = anchor = part
            else:
                yield self._verdict("equal", member, self._line_of(anchor), basis=basis)
                anchor, blamed = part, None

    def _unread(self, member: Text, line: int, error: Unreadable) -> Verdict:
        """Return the verdict on a member without a meaning: "refused" if only its
        declared shapes do not fit."""
        basis = self._misfit(error) if isinstance(error, Misfit) else None
        if match := re.match(r"(.+) is not declared or defined above$", error.message):
            more = self._ended(match[1])
            error = Unreadable(error.message + more, error.part, error.position)
        kind = "refused" if basis else "not readable"
        return self._verdict(kind, member, line, error, basis)

    def _misfit(self, error: Misfit) -> Basis | None:
        """Return the definitions by which shapes do not fit; None if the shapes depend
        on the layout of a derivative."""
        scope = self.known.scope
        expressions = []
        for part in (error.part, error.other):
            if part is not None:
                tree = parse(part)
                found = {
                    id(node): reference
                    for node in tree.iter_subtrees()
                    if node.data in ("reference", "power_of_name", "scalar")
                    and (reference := scope.resolve(node)) is not None
                }
                expressions.append(Expression(part, tree, references=found))
        basis = self._basis(expressions, (), 0)
        for name, _ in basis.definitions:
            if definition := scope.variables[name].definition:
                expressions.append(definition)
        return None if any(map(depends_on_layout, expressions)) else basis

    def _in_time(self, part: Part, judge: Callable[[], T]) -> T:
        """Return a result. Raises `Unreadable` if that takes too long."""
        try:
            with limited(self.seconds):
                return judge()
        except TooLong:
            scope_of(list(self.known.lines))[1].clear()  # some may be incomplete
            message = (
                f"it took longer than {self.seconds:g} s: write it in smaller steps"
            )
            raise Unreadable(message, part) from None

    def _unequal(
        self,
        member: Text,
        head: Part,
        first: Part,
        anchor: Part,
        blamed: Part | None,
        part: Part,
        condition: Part | None,
        refused: Refused,
    ) -> Verdict:
        """Return the verdict on two members that differ: "follows" if the second equals
        the refused member before it."""
        if blamed and self._agree(first, blamed, part, condition):
            line = self._line_of(blamed)
            message = (
                f"it follows from line {self.document.place(line)}, which is refused"
            )
            if line == self._line(member):
                message = "it equals an earlier side of this line, which is refused"
            return self._verdict("follows", member, line, message)
        return self._refusal(member, head, anchor, part, condition, refused)

    def _define(
        self,
        member: Text,
        head: Part,
        part: Part,
        condition: Part | None,
        membership: Part | None,
    ) -> Verdict:
        """Take an equation as the definition of a name that has none."""
        try:
            if not part.text:
                raise Unreadable("there is nothing on the right of =", part)
            if condition:
                raise Unreadable("a definition cannot have conditions", condition)
            self._certain(part, called(parsed(part), part.text, self.known.scope))
            if _is_function(head):
                return self._define_function(member, head, part)
            line = Line("let", head, part, None, "")
            self._add(line, self._line(member), implied=True)
            name = canonical(parse(head, "moved"))
            variable = next(
                v for v in self.known.scope.variables.values()
                if v.definition and v.definition.part == part
            )  # fmt: skip
            assert variable.definition is not None
            self._certain_names(variable.definition)
            axes = zip(variable.letters, variable.axes, strict=False)
            self._range_over(dict(axes), part)
            if membership:
                self._fits(membership, variable.definition, line)
        except Unreadable as error:
            return self._unread(member, 0, error)
        message = f"{name} is taken as defined here"
        return self._verdict(
            "definition", member, message=message,
            basis=self._basis([variable.definition], (), 0),
        )  # fmt: skip

    def _define_function(self, member: Text, head: Part, part: Part) -> Verdict:
        """Take an equation as the definition of a function. Raises `Unreadable`."""
        line = Line("function", head, part, None, "")
        self._add(line, self._line(member), implied=True)
        message = f"{head.text.partition('(')[0].strip()} is taken as defined here"
        basis = Basis(((function_of(head), self._line(member)),), (), 0)
        return self._verdict("definition", member, message=message, basis=basis)

    def _declared(self, text: Text) -> Verdict | None:
        """Take x \\in \\mathbb{R}^n as a declaration; None if it is not one."""
        if r"\in" not in text.characters:
            return None
        part = self._part(text)
        try:
            tokens = parse(part, "declarations").scan_values(lambda one: True)
            is_slice = any(token.type == "ALL" for token in tokens)
            kind = "slice" if is_slice else "given"
            self._add(Line(kind, None, part, None, ""), self._line(text), True)
        except Unreadable as error:
            return self._verdict("not readable", text, message=error)
        return self._verdict("definition", text, message="its shape is taken from here")

    def _defines(self, head: Part) -> bool:
        """Whether the left side of an equation is a name that has no meaning yet, or
        the value of a function that has none."""
        if _is_function(head):
            name = parse(head, "head").children[0]
            scope = self.known.scope
            return scope.resolve(name) is None and find(scope, name) is None
        try:
            tree = parse(head, "moved")
        except Unreadable:
            return False
        if re.match(r"\\(?:bar|overline|dot)(?![a-zA-Z])", head.text):
            return False
        if tree.data == "power_of_name" and self.known.scope.resolve(tree.children[0]):
            return False  # a power, as in \sigma^2 = …, where \sigma is known
        found = self.known.scope.resolve(tree)
        return found is None or (found.kind == "loss" and not found.accent)

    def _condition(self, statement: Statement) -> Part | None:
        """Return the conditions of a statement. Raises `Unreadable`."""
        self.ranges.clear()
        found = [piece for piece in statement.beside if not self._is_known(piece)]
        # A condition for the whole display applies to statements with all its indices.
        if self.condition is not None:
            letters = re.findall(
                r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])", self.condition.characters
            )
            left = statement.members[0].characters
            if all(
                re.search(rf"(?<![a-zA-Z\\]){a}(?![a-zA-Z])", left) for a in letters
            ):
                found.append(self.condition)
        if not found:
            return None
        if len(found) > 1:
            raise Unreadable(
                "several conditions: join them by commas", found[1].part(self.source)
            )
        part = found[0].replaced(CONDITION_WORDS).part(self.source)
        if part.text.startswith("(") and part.text.endswith(")"):
            part = found[0].replaced(CONDITION_WORDS).replaced(ROUND).part(self.source)
        try:
            parse(part, "conditions")
        except Unreadable:
            raise Unreadable(
                r"what stands beside the equation is not a condition such as j \ne i",
                part,
            ) from None
        return part

    def _is_known(self, piece: Text) -> bool:
        """Whether what stands beside an equation is prose, the range of an index, or a
        shape that is already declared."""
        if _is_prose(piece):
            return True
        part, scope = self._part(piece), self.known.scope
        if match := INDEX_RANGE.fullmatch(part.text):
            self.ranges[match[1]] = match[2].strip()
            return match[2].strip() in scope.dimensions
        if FOR_ALL.fullmatch(part.text):
            return True
        try:
            declarations = parse(part, "declarations").children
        except Unreadable:
            return False
        for declaration in declarations:
            *names, reals, space = declaration.children
            stated = shape_of(space), str(reals).endswith(r"_{>0}")
            for name in names:
                variable = scope.variables.get(canonical(name))
                if variable is None or (variable.shape, variable.positive) != stated:
                    return False
        return True

    # ---- comparing -------------------------------------------------------------------

    def _part(self, text: Text) -> Part:
        return self._rewritten(text).part(self.source)

    def _without_membership(self, member: Text) -> tuple[Part, Part | None]:
        """Split \\in \\mathbb{R}^n off the end of a member."""
        text = self._rewritten(member)
        if match := MEMBERSHIP.search(text.characters):
            return (
                text[: match.start()].part(self.source),
                text[match.start() :].part(self.source),
            )
        return text.part(self.source), None

    def _compare(
        self,
        first: Part,
        anchor: Part,
        part: Part,
        condition: Part | None,
        membership: Part | None = None,
    ) -> Basis:
        """Return what the equality of two members rests on. Raises `Refused` if they
        differ, and `Unreadable` if that cannot be decided."""
        if not part.text:
            raise Unreadable("there is nothing on the right of =", part)
        scope, known = scope_of(list(self.known.lines))
        for one in dict.fromkeys((first, anchor, part)):
            self._certain(one, called(parsed(one), one.text, scope))
        chain = members_chain(scope, first, anchor, part, condition)
        for expression in chain.expressions:
            self._certain_names(expression)
            self._certain_loss(expression)
        self._range_over(chain.free, part)
        if membership:
            self._fits(membership, chain.expressions[1])
        evaluators = evaluators_of(scope, known, chain)
        compare(chain, evaluators)
        definitions = self._definitions(self._used(chain.expressions))
        expressions = (*chain.expressions, *definitions)
        for evaluator in of_both_results(scope, known, expressions, evaluators):
            compare(chain, [evaluator])
        sizes = tuple({tuple(e.sizes.items()): e.sizes for e in evaluators}.values())
        points = 0
        if evaluators[0].draw is not None:
            points = DRAWS
            for evaluator in elsewhere(scope, known, expressions, evaluators):
                compare(chain, [evaluator])
                points += 1
        return self._basis(chain.expressions, sizes, points)

    def _agree(
        self, first: Part, above: Part, part: Part, condition: Part | None
    ) -> bool:
        try:
            self._compare(first, above, part, condition)
        except (Refused, Unreadable):
            return False
        return True

    def _refusal(
        self,
        member: Text,
        head: Part,
        anchor: Part,
        part: Part,
        condition: Part | None,
        refused: Refused,
    ) -> Verdict:
        """Return the verdict on two members that differ: "not readable" if they would
        be equal in another reading, otherwise "refused"."""
        line = self._line_of(anchor)
        message = ""
        if anchor == head:
            message = self._not_a_claim(head)
        message = message or _summed_twice(refused.chain)
        message = message or self._held(refused.chain)
        message = message or _other_reading(refused.chain)
        if not message and not self.known.scope.layout:
            message = self._other_layout(head, anchor, part, condition)
        if message:
            return self._verdict("not readable", member, line, message)
        where, expected, found = counterexample(refused.mistake, refused.evaluator)
        verdict = self._verdict(
            "refused",
            member,
            line,
            self._hint(refused),
            self._basis(refused.chain.expressions, (refused.evaluator.sizes,), 0),
            Counterexample(tuple(where), expected, found),
        )
        compared = " ".join(anchor.text.split())
        return replace(verdict, compared=compared, to_left=anchor == head)

    def _not_a_claim(self, head: Part) -> str:
        """Return why a false equation may not be a claim, or "" if it is one."""
        if _is_function(head):
            name, scope = function_of(head), self.known.scope
            function = scope.functions.get(name)
            parameters = parameters_of(head)
            if function is None or (
                parameters != function.parameters and {*parameters} & {*scope.variables}
            ):
                return ""  # the value at a declared name
            return self._defined_differently(name, head)
        try:
            tree = parse(head, "moved")
        except Unreadable:
            return ""
        found = self.known.scope.resolve(tree)
        if found is None or found.accent:
            return ""
        if found.kind == "dimension":
            return f"{found.name} is a dimension, and every size is tried"
        if found.kind != "variable":
            return ""
        variable = self.known.scope.variables[found.name]
        if variable.kind != "defined":
            return (
                f"{found.name} is declared, so this neither defines it nor follows from "
                f"anything. Leave {found.name} out of the declarations if this defines it"
            )
        assert variable.definition is not None
        return self._defined_differently(found.name, variable.definition.part)

    def _defined_differently(self, name: str, definition: Part) -> str:
        """Return which display defined a name, and forget it; "" if none did."""
        for line in self.known.implied:
            same = line.kind == "function" and _is_function(definition) and (
                line.left is not None and function_of(line.left) == name
            )  # fmt: skip
            if same or line.right == definition:
                number = self.document.place(self.defined_on[line])
                self._forget(line)
                return (
                    f"line {number} defined {name} differently. For a new "
                    f"{name}, write restart before it. If it is a claim, define "
                    f"{name} in a comment: let"
                )
        return ""

    def _held(self, chain: Chain) -> str:
        """Return why a partial derivative is ambiguous, if the members are equal when
        it holds other definitions constant; otherwise ""."""
        if self.known.total:
            return ""
        partials = [
            tree
            for expression in chain.expressions
            for one in expression.parts
            for tree in one.tree.iter_subtrees()
            if tree.data in ("partial", "differentiate", "directional", "nabla_of")
            and not of_loss(one, tree)
        ]
        scope = self.known.scope
        choices = itertools.chain.from_iterable(
            itertools.combinations(partials, count)
            for count in range(1, len(partials) + 1)
        )
        for held in itertools.islice(choices, 32):
            holding = frozenset(map(id, held))

            def hold(
                sizes: Sizes, draw: int | None, ids: frozenset[int] = holding
            ) -> Holding:
                return Holding(scope, sizes, draw, ids)

            try:
                compare(chain, evaluators_of(scope, {}, chain, hold))
            except (Refused, Unreadable):
                continue
            return (
                "it holds if a partial derivative holds other definitions constant, and "
                "not if it goes through them. Use one name for what is differentiated, "
                "or say: partial total"
            )
        return ""

    def _other_layout(
        self, head: Part, anchor: Part, part: Part, condition: Part | None
    ) -> str:
        """Return what to say if the members are equal in numerator layout; otherwise
        ""."""
        if r"\partial" not in f"{anchor.text} {part.text}":
            return ""
        known = self.known
        words = Part("numerator", 0, "numerator")
        try:
            self.known = replace(
                known, lines=(Line("layout", None, words, None, ""), *known.lines)
            )
            if self._agree(head, anchor, part, condition):
                return "it holds only in numerator layout: say layout numerator"
        finally:
            self.known = known
        return ""

    def _hint(self, refused: Refused) -> str:
        """Return which condition on two indices, or which sum, would make the members
        equal; "" if none would."""
        chain = refused.chain
        if name := sum_to_one(chain, refused.evaluator):
            equation = rf"\sum_i {name}_i = 1"
            return (
                f"it holds if {equation}; if that is meant, declare constant {name} and say: "
                f"assume {equation}"
            )
        if chain.conditions is not None:
            return ""
        for a, b in itertools.combinations(chain.free, 2):
            if chain.free[a] != chain.free[b]:
                continue
            for relation, holds in ((r"\ne", False), ("=", True)):
                there = Where(
                    chain.expressions,
                    chain.lines,
                    chain.conditions,
                    chain.free,
                    a,
                    b,
                    holds,
                )
                if first_mistake(there, refused.evaluator) is None:
                    extra = (
                        "" if holds else rf"; if that is meant, say: when {a} \ne {b}"
                    )
                    return f"it holds where {a} {relation} {b}{extra}"
        return ""

    # ---- certainty -------------------------------------------------------------------

    def _certain(self, part: Part, tree: Tree) -> None:
        """Raise `Unreadable` for notation whose meaning differs between texts."""
        for node in tree.iter_subtrees():
            if node.data == "product":
                for before, factor in itertools.pairwise(node.children):
                    self._certain_product(part, before, factor)
            if node.data == "differential":
                call, direction = node.children
                if part.text[span_of(call)[1] : span_of(direction)[0]].strip():
                    raise Unreadable(
                        r"is the bracket a direction or a factor? Write a factor with \cdot, "
                        "and a direction without a space",
                        part,
                        span_of(direction)[0],
                    )
        written = self.document.written(part.start, _end_of(part))
        for word, meaning in (("bar", "gradient"), ("dot", "differential")):
            command = r"(?:bar|overline)" if word == "bar" else "dot"
            if word not in self.known.accents and (
                match := re.search(rf"\\{command}(?![a-zA-Z])\s*\{{?(\\?\w+)", written)
            ):
                name = rf"\{word}{{{match[1]}}}"
                if not any(
                    one.startswith(rf"\{word}") for one in self.known.scope.variables
                ):
                    raise Unreadable(
                        f"is {name} a {meaning}? Declare one, or say: {word} {meaning}",
                        part,
                    )

    def _certain_product(self, part: Part, before: Tree, factor: Tree) -> None:
        assert before.meta.end_pos is not None and factor.meta.start_pos is not None
        between = part.text[before.meta.end_pos : factor.meta.start_pos]
        if between.strip():
            return
        if (
            factor.data == "bracket"
            and before.data == "reference"
            and subscripts_of(before)
        ):
            inside = factor.children[0]
            if isinstance(inside, Tree) and inside.data == "reference":
                raise Unreadable(
                    r"a function's value, or a product? Write the product with \cdot",
                    part,
                    before.meta.start_pos or 0,
                )
        d = self.known.scope.variables.get("d")
        is_factor = "d" in self.known.scope.factors or (d is not None and d.shape)
        if (
            _is_named(before, "d")
            and factor.data in ("reference", "scalar", "power")
            and not is_factor
        ):
            raise Unreadable(
                r"a differential or derivative, or a product with d? If it is a product, "
                r"say: factor d. A differential is written \dot{x}, a derivative with "
                r"\partial",
                part,
                before.meta.start_pos or 0,
            )

    def _certain_names(self, expression: Expression) -> None:
        for body in expression.parts[1:]:
            self._certain_names(body)
        powers = {
            id(tree.children[0])
            for tree in expression.tree.iter_subtrees()
            if tree.data == "power"
        }
        for node in expression.tree.iter_subtrees():
            found = expression.references.get(id(node))
            if found and found.kind == "euler" and id(node) not in powers:
                raise Unreadable(
                    "is e Euler's number? If it is, write \\exp(1); if not, declare it",
                    expression.part,
                    node.meta.start_pos or 0,
                )

    def _range_over(self, free: Mapping[str, str], part: Part) -> None:
        """Raise `Unreadable` unless the indices run over what stands beside them."""
        for letter, side in self.ranges.items():
            if (found := free.get(letter, side)) != side:
                raise Unreadable(f"{letter} runs over {found} here, not {side}", part)

    def _certain_loss(self, expression: Expression) -> None:
        """Raise `Unreadable` for a gradient of a loss whose definition has ended."""
        if LOSS not in self.ended or LOSS in self.known.scope.variables:
            return
        for reference in expression.used:
            if reference.accent == "bar" or reference.kind == "loss":
                raise Unreadable(f"the loss has no definition here{self._ended(LOSS)}",
                                 expression.part)  # fmt: skip

    def _ended(self, written: str) -> str:
        """Say where a name was defined if its section has ended; otherwise return
        ""."""
        for name, line in self.ended.items():
            if re.fullmatch(rf"{re.escape(name.partition('_')[0])}(?:_.*)?", written):
                place = self.document.place(line)
                return (
                    f"; line {place} defined it, but that section has ended. If the "
                    "definition still holds, say: keep definitions"
                )
        return ""

    def _fits(
        self, membership: Part, expression: Expression, line: Line | None = None
    ) -> None:
        """Raise `Unreadable` unless an expression has the shape stated beside it, and
        forget the line that defined a name by it."""
        text = f"x {membership.text}"
        (declaration,) = parse(Part(text, 0, text), "declarations").children
        if shape_of(declaration.children[-1]) != expression.shape:
            if line:
                self._forget(line)
            raise Unreadable("the stated shape is not the expression's", membership)

    # ---- reporting -------------------------------------------------------------------

    def _basis(
        self, expressions: list[Expression] | tuple[Expression, ...],
        sizes: tuple[Sizes, ...], points: int,
    ) -> Basis:  # fmt: skip
        scope = self.known.scope
        used = self._used(expressions)
        functions = {
            call.function.name
            for expression in (*expressions, *self._definitions(used))
            for one in expression.parts
            for calls in one.calls.values()
            for call in calls
        }
        numbers: dict[str, int] = {}
        for count in range(len(self.known.lines)):
            line = self.known.lines[count]
            then = scope_of(list(self.known.lines[: count + 1]))[0]
            for name in (*then.variables, *then.functions):
                numbers.setdefault(name, self.defined_on.get(line, 0))
        names = [name for name in scope.variables if name in used]
        names += [name for name in scope.functions if name in functions]
        lines = tuple((name, numbers[name]) for name in names)
        return Basis(lines, sizes, points)

    def _used(self, expressions: Iterable[Expression]) -> set[str]:
        """Return the names that expressions depend on."""
        scope = self.known.scope
        references = [r for e in expressions for r in e.used]
        found = {r.name for r in references if r.kind == "variable"}
        if any(r.accent == "bar" or r.kind == "loss" for r in references):
            found |= {v.name for v in scope.outputs()}
        return scope.upstream([scope.variables[name] for name in found])

    def _definitions(self, names: set[str]) -> list[Expression]:
        variables = [self.known.scope.variables[name] for name in sorted(names)]
        return [v.definition for v in variables if v.definition]

    def _line(self, text: Text) -> int:
        return self.document.line(text.origins[0]) if text.origins else 0

    def _line_of(self, part: Part) -> int:
        return self.document.line(part.start)

    def _verdict(
        self,
        kind: str,
        member: Text,
        against: int = 0,
        message: str | Unreadable = "",
        basis: Basis | None = None,
        example: Counterexample | None = None,
    ) -> Verdict:
        if isinstance(message, Unreadable):
            message = self.document.explained(message)
        latex = " ".join(member.characters.split())
        return Verdict(
            kind, self._line(member), latex, against, message, basis, example
        )


def _placed(line: Line, text: Text, source: str) -> Line:
    """Return a line that was read from a text, at its places in the source."""

    def placed(part: Part | None) -> Part | None:
        if part is None:
            return None
        return text[part.start : part.start + len(part.text)].part(source)

    return replace(
        line,
        left=placed(line.left),
        right=placed(line.right),
        conditions=placed(line.conditions),
    )


def _end_of(part: Part) -> int:
    if isinstance(part, Passage) and part.origins:
        return part.origins[-1] + 1
    return part.start + len(part.text)


def _summed_twice(chain: Chain) -> str:
    """Return why a sum over i \\ne j may also run over j, if j occurs only in the sum;
    otherwise ""."""
    for here, other in itertools.permutations(chain.expressions[-2:]):
        for tree in here.tree.iter_subtrees():
            if tree.data != "big" or not any(
                token.type == "RELATION" for token in tokens_of(tree.children[1])
            ):
                continue
            second = tokens_of(tree.children[1])[2]
            if second in here.free - other.free:
                return (
                    f"does the sum run over {second} as well? Write one sum for each letter, or "
                    f"{second} on both sides"
                )
    return ""


def _other_reading(chain: Chain) -> str:
    """Return what else a derivative with a bracket may mean; "" if its meaning is
    certain."""
    for expression in chain.expressions:
        for node in expression.tree.iter_subtrees():
            if node.data in ("jacobian", "nabla"):
                argument = node.children[0].children[-1]
                while argument.data == "bracket":
                    argument = argument.children[0]
                if argument.data not in ("reference", "scalar"):
                    return (
                        "is this the derivative of the function at that point, or that of "
                        "its value with respect to a name? Write the latter with elements"
                    )
            if node.data == "product":
                for before, factor in itertools.pairwise(node.children):
                    between = expression.part.text[
                        span_of(before)[1] : span_of(factor)[0]
                    ]
                    if (
                        before.data == "partial"
                        and factor.data == "bracket"
                        and not between.strip()
                        and not of_loss(expression, before)
                    ):
                        return (
                            "is the bracket after the derivative a factor, or the point at "
                            r"which it is taken? Write a factor with \cdot"
                        )
    return ""


def _is_prose(piece: Text) -> bool:
    """Whether a piece beside an equation consists of words."""
    return PROSE.fullmatch(piece.characters) is not None


def _is_function(head: Part) -> bool:
    """Whether a left side is a function's value for any argument, such as f(x)."""
    try:
        return parse(head, "head").children[0].data == "reference"
    except Unreadable:
        return False


def _is_named(tree: Tree | Token, name: str) -> bool:
    return (
        isinstance(tree, Tree)
        and tree.data in ("reference", "scalar")
        and canonical(tree) == name
    )
