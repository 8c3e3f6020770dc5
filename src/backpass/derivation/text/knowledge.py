"""What is known at a place of a text: its declarations, definitions, and notation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

from backpass.derivation.equality.check import Sizes, scope_of
from backpass.derivation.language.names import LOSS, Expression, Scope
from backpass.derivation.language.parse import Contradicted, Line, Part, Unreadable
from backpass.derivation.text.braces import GROUPS, with_brackets, without_braces
from backpass.derivation.text.contents import Aside, Document, Heading
from backpass.derivation.text.differentials import with_dots
from backpass.derivation.text.displays import Display
from backpass.derivation.text.imposed import ZERO, Imposed, paragraph_above
from backpass.derivation.text.losses import arguments_of_loss
from backpass.derivation.text.notation import Notation
from backpass.derivation.text.passages import Text
from backpass.derivation.text.restrictions import Restrictions
from backpass.derivation.text.rewriting import MEMBERSHIP
from backpass.derivation.text.rewriting import rewritten as in_notation
from backpass.derivation.text.verdict import Basis

_DERIVE = re.compile(r"<!--.*?-->|^\s*(?:%|\.\.) derive:[^\n]*", re.S | re.M)
_NUMBERS = Part("numbers", 0, "numbers")
_OF_LABEL = re.compile(
    r"(what does (\w) run over\? Say range \w = 1, …, n), or declare the shape of "
    r"\\bar\{([^{}]*)\}(?!\S)"
)
_IS_ZERO = re.compile(r"([^=,;&]+?)\s*&?=\s*0(?![\d.])")
_CLASH = re.compile(r"(\S+) (?:is already declared|cannot be told apart from (\S+))")


@dataclass(frozen=True)
class Known:
    """What is declared at a place of the text.

    `loss_of` are the arguments with which the loss was defined, as written, and
    `loss_unread` says whether its definition could not be read.

    `implied` are the definitions made by displays. `losses` are the names of the loss,
    and `accents` the accents whose meaning is known. `notations` are the text's own.
    `total` says whether partial derivatives go through all definitions, `kept` whether
    definitions hold beyond the end of their section, and `summed` whether repeated
    indices are summed over. `varied` are the names that the text may have
    redefined, each with its other definition.
    """

    # In 1 - y, with an array y, the 1 is subtracted from each element.
    lines: tuple[Line, ...] = (Line("broadcast", right=_NUMBERS),)
    implied: frozenset[Line] = frozenset()
    losses: frozenset[str] = frozenset()
    accents: frozenset[str] = frozenset()
    notations: tuple[Notation, ...] = ()
    total: bool = False
    kept: bool = False
    summed: bool = False
    loss_of: str = ""
    loss_unread: bool = False
    varied: tuple[tuple[str, Line], ...] = ()

    @cached_property
    def scope(self) -> Scope:
        """The names that are declared."""
        return scope_of(self.lines)


class Knowledge:
    """What is known as a text is read, and the lines that made it known."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.now = self.at_start = Known()
        self.condition: Text | None = None  # of the next display
        self.infers = False  # whether undeclared names have a meaning, too
        self.short = False  # whether to leave out why a line is wrong
        # Whether all equations above in the display hold everywhere.
        self.follows_from_identities = False
        # The headings around a place, each with what was known before it.
        # What the sentence before the display imposes; also of the displays above.
        self.imposed = Imposed()
        # The left sides that the text sets to 0, and the inputs on which they depend.
        self.set_to_zero: dict[str, set[str]] = {}
        self.here = (0, 0)  # where the display begins and ends
        self._imposed: dict[int, Imposed] = {}
        self._outer: list[tuple[int, Known]] = []
        self._defined_on: dict[Line, int] = {}
        self.commented: set[Line] = set()  # the lines of comments
        # The inferred declarations, each with the name that it declares.
        self.inferred: dict[Line, str] = {}
        # Names defined in a section that has ended, with the line of each definition.
        self._ended: dict[str, int] = {}
        # Members with braces that may have been meant to group, each with brackets.
        self.grouped: dict[Part, Part] = {}
        # The notations in comments, and those that a formula has used.
        self.notations: dict[Notation, Text] = {}
        self.matched: set[Notation] = set()
        # Pairs of members that were found equal, where they stand.
        self.shown: list[tuple[Part, Part]] = []
        # Declared names that an equation may define, each with this definition.
        self.contested: dict[str, Line] = {}
        self.restrictions = Restrictions(document)
        # Texts in the notation of derivations, as long as nothing more is known.
        self._rewritten: tuple[Known, dict[tuple[Text, str], Text]] = (self.now, {})

    @property
    def source(self) -> str:
        return self.document.source

    @property
    def scope(self) -> Scope:
        return self.now.scope

    # ---- sections --------------------------------------------------------------------

    def enter(self, heading: Heading) -> None:
        """Begin a section, and end those that end there."""
        while self._outer and self._outer[-1][0] >= heading.level:
            self._end_section(self._outer.pop()[1])
        self._outer.append((heading.level, self.now))

    def _end_section(self, outer: Known) -> None:
        """Forget what a section has defined, unless that is kept."""
        if self.now.kept:
            return
        for line in self.now.lines:
            if line not in outer.lines and line.left is not None:
                name = line.left.text.partition("(")[0].strip()
                self._ended[name] = self._defined_on[line]
        self.now = outer

    def where_ended(self, written: str) -> str:
        """Say where a name was defined, if its section has ended; otherwise ""."""
        for name, line in self._ended.items():
            if re.fullmatch(rf"{re.escape(name.partition('_')[0])}(?:_.*)?", written):
                return (
                    f"; {self.document.where(line)} defined it, but that section has ended. If the "
                    "definition still holds, say: keep definitions"
                )
        return ""

    def where_below(self, written: str, use: Text) -> str:
        """Say which display below a use defines a name; "" if none does."""
        at = use.origins[0] if use.origins else 0
        head = re.compile(
            rf"{re.escape(written.partition('_')[0])}(?:_(?:\w|\{{[^{{}}]*\}}))?\s*:?="
        )
        for item in self.document.items:
            for row in item.rows if isinstance(item, Display) else ():
                if row.origins[0] > at and head.match(row.characters):
                    where = self.document.where(self.document.line_of(row))
                    return (
                        f"; {where} defines it, below: move that display up, or define it "
                        "in a comment, with let"
                    )
        return ""

    @property
    def has_lost_its_loss(self) -> bool:
        """Whether the loss was defined in a section that has ended."""
        return LOSS in self._ended and LOSS not in self.scope.variables

    @property
    def prose(self) -> str:
        """The prose of the text, without displays and comments."""
        return self.prose_between(0, len(self.source))

    def prose_above(self, start: int) -> str:
        """Return the prose of a section above a place, with its heading."""
        headings = [
            one.start
            for one in self.document.items
            if isinstance(one, Heading) and one.start < start
        ]
        return self.prose_between(max(headings, default=0), start)

    def prose_between(self, at: int, end: int) -> str:
        """Return the prose between two places, without displays and comments."""
        pieces = []
        for item in self.document.items:
            if at <= item.start < end and isinstance(item, Display):
                pieces.append(self.source[at : item.start])
                at = item.end
        return _DERIVE.sub(" ", " ".join([*pieces, self.source[at:end]]))

    # ---- displays --------------------------------------------------------------------

    def begin(self, display: Display) -> None:
        """Begin a display, with what the sentence before it imposes."""
        above = [
            one
            for one in self.document.items
            if one.start < display.start and not isinstance(one, Aside)
        ]
        last = above[-1] if above else None
        imposed = Imposed()
        end = 0
        if isinstance(last, Display):
            imposed, end = replace(self._imposed[last.start]), last.end
        prose = self.source[max(end, display.start - 400) : display.start]
        has_zero = any(
            ZERO.fullmatch(side.characters.strip(" .,;&"))
            for row in display.rows
            for side in row.split("=")
        )
        imposed.enter(paragraph_above(prose), has_zero)
        if imposed.by_sentence:
            for row in display.rows:
                for left in _IS_ZERO.findall(row.characters):
                    self.set_to_zero.setdefault("".join(left.split()), set())
        self.imposed = self._imposed[display.start] = imposed
        self.here = display.start, display.end

    @property
    def elsewhere(self) -> str:
        """The text without the display."""
        start, end = self.here
        return self.source[:start] + self.source[end:]

    @property
    def nearby(self) -> str:
        """The paragraph before the display, and some text behind it."""
        start, end = self.here
        above = re.split(r"\n\s*\n", self.prose_above(start)[-400:].rstrip())
        return (
            above[-1]
            + re.split(r"\$\$|\n\s*\n|\\begin", self.source[end : end + 200])[0]
        )

    def impose(self, member: Text) -> None:
        """Note that an equation of the display may be imposed."""
        start, end = self.here
        if member.origins and start <= member.origins[0] < end:
            self.imposed.here = True

    # ---- definitions -----------------------------------------------------------------

    def add(self, line: Line, number: int, implied: bool = False) -> None:
        """Add a line. Raises `Unreadable` if it does not fit.

        If the line declares a name, inferences about the name are forgotten.
        """
        while True:
            lines = (*self.now.lines, line)
            try:
                scope_of(lines)
            except Contradicted as error:  # neither of the two is known to be meant
                for one in self.now.lines:
                    if one.kind == line.kind and one.right == error.value:
                        self.forget(one)
                raise
            except Unreadable as error:
                if implied or not self._give_way(error.message):
                    raise
            else:
                break
        self._defined_on[line] = number
        self.now = replace(
            self.now,
            lines=lines,
            implied=self.now.implied | ({line} if implied else frozenset()),
        )

    @property
    def inferred_names(self) -> set[str]:
        """The inferred names, without those that a comment declares here."""
        here = {self.inferred.get(line) for line in self.now.lines}
        declared = {*self.scope.variables} - here
        return {*self.inferred.values()} - declared

    def _give_way(self, message: str) -> bool:
        """Forget the inferences about names in a message about clashing declarations;
        return whether there are any."""
        if not (match := _CLASH.match(message)):
            return False
        before, names = self.now, {*match.groups()}
        for line in before.lines:
            if line in self.inferred:
                self.forget(line)
        lost = [line for line in before.lines if line not in self.now.lines]
        self.now = before
        clashing = [
            line
            for line in lost
            if (self.inferred.get(line) or _name_defined(line)) in names
        ]
        for line in clashing:
            self.forget(line)
        return bool(clashing)

    def forget(self, line: Line) -> None:
        """Remove a definition, and the definitions that need it."""
        kept: list[Line] = []
        for one in self.now.lines:
            if one == line:
                continue
            try:
                scope_of([*kept, one])
            except Unreadable:
                continue
            kept.append(one)
        self.now = replace(self.now, lines=tuple(kept))

    def through_definitions(self) -> None:
        """Let partial derivatives go through all definitions."""
        lines = tuple(line for line in self.now.lines if line.kind != "direct")
        self.now = replace(self.now, lines=lines, total=True)

    def number_of(self, line: Line) -> int:
        """Return the number of the text's line that declares or defines something."""
        return self._defined_on.get(line, 0)

    @contextmanager
    def supposing(self, line: Line) -> Iterator[None]:
        """Let a line hold within a block, as if it stood above all others."""
        before = self.now
        self.now = replace(before, lines=(line, *before.lines))
        try:
            yield
        finally:
            self.now = before

    @contextmanager
    def in_short(self) -> Iterator[None]:
        """Leave out slow explanations within a block."""
        before, self.short = self.short, True
        try:
            yield
        finally:
            self.short = before

    @contextmanager
    def where_positive(self, names: Iterable[str]) -> Iterator[None]:
        """Let declared names be positive within a block."""
        lines = [Line("positive", right=Part(name, 0, name)) for name in names]
        self.now = replace(self.now, lines=(*self.now.lines, *lines))
        try:
            yield
        finally:
            kept = tuple(line for line in self.now.lines if line not in lines)
            self.now = replace(self.now, lines=kept)

    # ---- notation --------------------------------------------------------------------

    @property
    def brackets(self) -> frozenset[str]:
        """The signs in the text's own notations, which are not relations there."""
        return frozenset(sign for one in self.now.notations for sign in one.pattern)

    def rewritten(self, text: Text, source: str = "") -> Text:
        """Return a text in the notation of derivations. Raises `Unreadable`."""
        now, known = self._rewritten
        if now is not self.now:
            self._rewritten = self.now, (known := {})
        if (text, source) not in known:
            plain = without_braces(self.in_own_notation(text, source))
            known[text, source] = self._in_notation(plain)
        return known[text, source]

    def _in_notation(self, text: Text) -> Text:
        now, scope = self.now, self.scope
        text = in_notation(text, scope, now.losses, now.loss_of)
        return with_dots(text, scope, now.losses) if "d" in now.accents else text

    def in_own_notation(self, text: Text, source: str = "") -> Text:
        """Return a text with what the text's own notations are read as."""
        for one in self.now.notations:
            before, text = text, one.applied(text, source or self.source)
            if text != before and text.origins[0] > one.place:
                again = (n for n in self.now.notations if n.pattern == one.pattern)
                self.matched.update(again)
        return text

    def part(self, text: Text) -> Part:
        """Return a text in the notation of derivations, as a piece of the source."""
        return self._placed(text, self.rewritten(text))

    def _placed(self, text: Text, rewritten: Text) -> Part:
        """Return a text as a piece of the source, and record it with brackets in place
        of braces that may have been meant to group."""
        part = rewritten.part(self.source)
        if grouped := with_brackets(self.in_own_notation(text)):
            self.grouped[part] = self._in_notation(grouped).part(self.source)
        return part

    def in_its_words(self, message: str) -> str:
        """Return a message with the text's own names: that of the loss, and no gradient
        that the text does not write."""
        if r"\bar" not in self.source:
            message = _OF_LABEL.sub(
                r"\1, or if \2 is only a label, say: read \3_\2 as \3", message
            )
        if len(self.now.losses) != 1 or LOSS in self.source:
            return message
        (name,) = self.now.losses
        return message.replace(LOSS, name)

    def without_arguments(self, head: Part) -> Part:
        """Return the left side of a definition, that of \\mathcal{L}(w) as
        \\mathcal{L}, and record the arguments."""
        if arguments := arguments_of_loss(head.text, self.scope):
            self.now = replace(self.now, loss_of=arguments)
            return replace(head, text=LOSS)
        return head

    def miss_loss(self, head: Text) -> None:
        """Record that an equation cannot be read, if it would define the loss."""
        name, _, arguments = self.rewritten(head).characters.partition("(")
        is_loss = name.strip() == LOSS and arguments.rstrip()[-1:] in ("", ")")
        if is_loss and LOSS not in self.scope.variables:
            self.now = replace(self.now, loss_unread=True)

    def defining(self, text: Text, source: str) -> Text:
        """Return a definition in the notation of derivations. Raises `Unreadable` if
        its braces may have been meant to group."""
        if with_brackets(self.in_own_notation(text, source)):
            raise Unreadable(GROUPS, text.part(source))
        return self.rewritten(text, source)

    def without_membership(self, member: Text) -> tuple[Part, Part | None]:
        """Split \\in \\mathbb{R}^n off the end of a member."""
        text = self.rewritten(member)
        if match := MEMBERSHIP.search(text.characters):
            return (
                text[: match.start()].part(self.source),
                text[match.start() :].part(self.source),
            )
        return self._placed(member, text), None

    # ---- what a verdict rests on -----------------------------------------------------

    def basis(
        self, expressions: list[Expression] | tuple[Expression, ...],
        sizes: tuple[Sizes, ...], points: int,
    ) -> Basis:  # fmt: skip
        """Return the definitions that expressions use, with the sizes and points."""
        scope = self.scope
        used = self.used(expressions)
        functions = {
            call.function.name
            for expression in (*expressions, *self.definitions(used))
            for one in expression.parts
            for call in one.called
        }
        numbers: dict[str, int] = {}
        for count, line in enumerate(self.now.lines, start=1):
            then = scope_of(self.now.lines[:count])
            for name in (*then.variables, *then.functions):
                numbers.setdefault(name, self.number_of(line))
        names = [name for name in scope.variables if name in used]
        names += [name for name in scope.functions if name in functions]
        lines = tuple((name, numbers[name]) for name in names)
        return Basis(lines, sizes, points)

    def used(self, expressions: Iterable[Expression]) -> set[str]:
        """Return the names that expressions depend on."""
        scope = self.scope
        references = [r for e in expressions for r in e.used]
        found = {r.name for r in references if r.kind == "variable"}
        if any(r.accent == "bar" or r.kind == "loss" for r in references):
            found |= {v.name for v in scope.outputs()}
        return scope.upstream([scope.variables[name] for name in found])

    def definitions(self, names: set[str]) -> list[Expression]:
        """Return the definitions of names."""
        variables = [self.scope.variables[name] for name in sorted(names)]
        return [v.definition for v in variables if v.definition]


def _name_defined(line: Line) -> str:
    """Return the name that a definition defines, without its indices."""
    return line.left.text.partition("_")[0].strip() if line.left else ""
