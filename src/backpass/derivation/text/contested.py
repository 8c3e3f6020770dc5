"""Names that a comment declares, and that an equation of the text may define.

After `given z`, the display z = w x + b neither defines z nor follows from anything. If
it is meant as a definition, lines below it may be right although their sides differ as
functions of z. Such a line is refused only if it is wrong with the definition, too.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace

from backpass.derivation.equality.check import Chain
from backpass.derivation.equality.comparing import Refused
from backpass.derivation.language.parse import Line, Part, Unreadable, parse
from backpass.derivation.text.columns import lists_its_entries
from backpass.derivation.text.contents import Heading
from backpass.derivation.text.displays import Display
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.members import Equation, equality
from backpass.derivation.text.passages import Text
from backpass.derivation.text.shown import redeclared
from backpass.derivation.text.verdict import Verdict, unread, verdict_on

FAR = 2  # displays between which a sentence may go on to a definition


def contest(known: Knowledge, head: Part, part: Part) -> None:
    """Note that an equation may define a name that a comment declares."""
    if (name := is_input(known, head)) and not lists_its_entries(head, part):
        known.contested.setdefault(name, Line("let", head, part))


def is_input(known: Knowledge, head: Part) -> str:
    """Return the name on a left side, if it is declared and not defined; otherwise
    ""."""
    try:
        found = known.scope.resolve(parse(head, "moved"))
    except Unreadable:
        return ""
    if found is None or found.kind != "variable" or found.accent:
        return ""
    return found.name if known.scope.variables[found.name].kind != "defined" else ""


def doubted(
    known: Knowledge, equation: Equation, member: Text, part: Part, chain: Chain
) -> Verdict | None:
    """Return the verdict on members that differ, if they use declared names that
    equations above may define: "equal" if these only introduce the names, and the
    members are equal with them; None if they differ with these definitions, too."""
    variables = known.scope.variables
    declared = {name for name, one in variables.items() if one.kind != "defined"}
    used = known.used(chain.expressions) & known.contested.keys() & declared
    names = sorted(
        name
        for name in used - known.inferred_names
        if not _is_far_below(known, part, known.contested[name])
    )
    if not names:
        return None
    before = known.now
    lines, basis = before.lines, None
    with suppress(Unreadable):
        for name in names:
            lines = redeclared(lines, name, known.contested[name])
        try:
            known.now = replace(before, lines=lines)
            first, anchor = equation.first, equation.anchor
            basis = equality(known, first, anchor, part, equation.beside)
        except Refused:
            return None
        finally:
            known.now = before
    document = known.document
    above = document.line(equation.anchor.start)
    places = {one: _place(known, one) for one in names}
    if basis and known.infers and all(_introduces(known, one) for one in names):
        words = tuple(
            f"{one} is as defined in {where}" for one, where in places.items()
        )
        equal = verdict_on(document, "equal", member, above, basis=basis)
        return replace(equal, inferred=words)
    (name, *_) = names
    message = (
        f"{name} is declared, and {places[name]} may define it: leave {name} out of the "
        "declarations if it does"
    )
    return unread(document, member, message, above)


def _is_far_below(known: Knowledge, part: Part, line: Line) -> bool:
    """Whether a line is in a later section than a side, or after FAR displays: then
    the side is meant for any value of the name."""
    assert line.left is not None
    between = [
        one for one in known.document.items if part.start < one.start <= line.left.start
    ]
    displays = [one for one in between if isinstance(one, Display)]
    return len(displays) > FAR or any(isinstance(one, Heading) for one in between)


def _place(known: Knowledge, name: str) -> str:
    line = known.contested[name]
    assert line.left is not None
    return known.document.where(known.document.line(line.left.start))


def _introduces(known: Knowledge, name: str) -> bool:
    """Whether an equation gives a name a value that is not a number, and no display
    above it has the name."""
    line = known.contested[name]
    assert line.left is not None and line.right is not None
    if not re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", line.right.text)):
        return False
    plain = re.sub(r"[\s{}]", "", line.left.text)
    shown = (
        "".join(row.characters.split())
        for item in known.document.items
        if isinstance(item, Display) and item.start < line.left.start
        for row in item.rows
        if row.origins[0] < line.left.start
    )
    name_there = re.compile(rf"(?<![a-zA-Z\\]){re.escape(plain)}(?![a-zA-Z])")
    above = [re.sub(r"[{}]", "", one) for one in shown]
    return not any(name_there.search(one) for one in above)
