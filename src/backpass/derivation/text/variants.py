"""Variants: a text may redefine a name after it announces a choice.

After "some variants use 1 - f_t instead, and the update would be", an equation
redefines the name, and claims nothing about the first definition.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

from backpass.derivation.equality.comparing import Refused
from backpass.derivation.language.functions import head_of, is_function
from backpass.derivation.language.parse import Line, Part, Unreadable, parse
from backpass.derivation.text.beside import Beside
from backpass.derivation.text.contents import Heading
from backpass.derivation.text.displays import Display
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.members import equality
from backpass.derivation.text.passages import Text
from backpass.derivation.text.shown import redefined
from backpass.derivation.text.verdict import Verdict, unread

ACCUSING = ("refused", "ill-formed", "follows")
_KIND = (
    "choice|option|definition|version|convention|possibility|parametri[sz]ation"
    "|formulation|model|variety|flavou?r|update|rule|loss|cost|objective|design|setting"
)
_ANNOUNCES = re.compile(
    r"\bvariants?\b|\bvariations? (?:of|on|is|are|uses?)\b|\balternat(?:iv\w*|ely)\b"
    r"|\binstead\b|\brather than\b|\bredefin\w+"
    rf"|\b(?:another|different|modified|simplified|simpler|generali[sz]ed|extended"
    rf"|newer|later|earlier|second|popular|common) (?:\w+ )?(?:{_KIND})s?\b"
    r"|\bwould (?:\w+ )?(?:be|become|read|use|have)\b"
    r"|\b(?:can|could|may|might|is|are) (?:also |often |sometimes |simply |then )*be(?:en)?"
    r" (?:replaced|defined|chosen|exchanged|swapped)\b"
    r"|\b(?:is|are|was|were) (?:\w+ )?(?:replaced|exchanged|swapped)\b"
    r"|\bcould (?:\w+ )?(?:use|define|choose|take|set|have)\b"
    r"|\b(?:some|other|many|most|several) (?:\w+ )?(?:authors|texts|books|papers|libraries"
    r"|frameworks|implementations|versions|people|definitions|conventions)\b"
    r"|\bif (?:we|one|you) (?:\w+ )?(?:replaced?|chose|choose|changed?|dropp?(?:ed)?|omit\w*"
    r"|used?|swap\w*|defined?)\b",
    re.I,
)
_GOES_ON = 80  # the most characters between displays of one sentence


MOST = 4  # variants of which each combination is tried


class Variant:
    """An equation whose left side is already defined. If the prose above announces a
    variant, the equation may redefine the name."""

    def __init__(self, known: Knowledge, head: Part) -> None:
        self.known, self.head = known, head
        self.name = _defined_name(known, head)
        self.words = _announced(known, head.start) if self.name else ""
        self.asked = False  # whether a question replaced a verdict on a member

    def instead(self, member: Text, beside: Beside, verdict: Verdict) -> Verdict:
        """Return the verdict on a member. A question replaces an accusation if this
        variant may explain the difference, or if it does not hold with one above."""
        known, document = self.known, self.known.document
        if verdict.kind == "equal":
            self.words = ""  # the rest of the chain is a claim
        if verdict.kind not in ACCUSING:
            return verdict
        if self.words or (self.asked and verdict.kind == "follows"):
            self.asked = True
            other = Line("let", self.head, known.without_membership(member)[0])
            varied = (*known.now.varied, (self.name, other))
            known.now = replace(known.now, varied=varied)
            message = (
                f"it differs from the definition of {self.name}, and “{self.words}” above "
                f"may announce a variant. For a new {self.name}, write restart before it. If "
                "it is a claim, write it in a paragraph without these words"
            )
            return unread(document, member, message, verdict.against)
        used = {name for name, _ in verdict.basis.definitions} if verdict.basis else {}
        for name, other in known.now.varied:
            follows = self.asked and verdict.kind == "follows"
            if follows or (name in used and self._may_hold(member, beside)):
                self.asked = True
                assert other.right is not None
                line = document.line(other.right.start)
                message = (
                    f"is {name} meant as in {document.where(line)}, which may define a variant? "
                    "If it is, write restart before that line"
                )
                return unread(document, member, message, verdict.against)
        return verdict

    def _may_hold(self, member: Text, beside: Beside) -> bool:
        """Whether a member may equal the left side with some of the variants above."""
        known = self.known
        before, part = known.now, known.without_membership(member)[0]
        if len(before.varied) > MOST:
            return True
        for count in range(len(before.varied), 0, -1):
            for chosen in itertools.combinations(before.varied, count):
                try:
                    lines = before.lines
                    for name, other in chosen:
                        lines = redefined(lines, name, other)
                    known.now = replace(before, lines=lines)
                    equality(known, self.head, self.head, part, beside)
                except Refused:
                    continue
                except Unreadable:
                    pass
                finally:
                    known.now = before
                return True
        return False


def _defined_name(known: Knowledge, head: Part) -> str:
    """Return the declared or defined name, or the function, that a left side consists
    of, or ""."""
    scope = known.scope
    try:
        if is_function(head):
            name, parameters, _ = head_of(head)
            is_value = {*parameters} & {*scope.variables}
            return name if name in scope.functions and not is_value else ""
        found = scope.resolve(parse(head, "moved"))
    except Unreadable:
        return ""
    is_name = found is not None and found.kind == "variable" and not found.accent
    return found.name if found is not None and is_name else ""


def _announced(known: Knowledge, place: int) -> str:
    """Return the words that announce a variant, in the paragraph before the display at
    a place or in its heading, or ""."""
    above = [one for one in known.document.items if one.start <= place]
    headings = [one.start for one in above if isinstance(one, Heading)]
    start = max(headings, default=0)
    title = known.source[start:].partition("\n")[0] if headings else ""
    displays = [one for one in above if isinstance(one, Display) and one.start >= start]
    prose = " ".join([title, *_before(known, displays, start)])
    found = _ANNOUNCES.search(prose)
    return " ".join(found[0].split()) if found else ""


def _before(known: Knowledge, displays: list[Display], start: int) -> Iterator[str]:
    """Yield the paragraph before the last of some displays, and those before the
    displays that are part of the same sentence. The section begins at `start`."""
    ends = [start, *(one.end for one in displays)]
    for display, end in zip(displays[::-1], ends[-2::-1], strict=True):
        between = known.prose_between(end, display.start).strip()
        yield re.split(r"\n[ \t>]*\n(?=\s*\S)", between)[-1]
        if len(between) > _GOES_ON:
            return
