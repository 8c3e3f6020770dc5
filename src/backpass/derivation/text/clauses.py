"""Judge statements with clauses: in z = 2 u, where u = 3 x, the clause is read first.

A clause that defines a name, or states what is known, restricts nothing. Any other
clause is a restriction, which stands beside its statement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from backpass.derivation.language.parse import Unreadable, parse
from backpass.derivation.text.contents import Aside, Item
from backpass.derivation.text.displays import Display
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.statements import Statement
from backpass.derivation.text.statements import statements as statements_of
from backpass.derivation.text.verdict import Verdict, verdict_on

_WHERE = re.compile(r"[\s.,;]*(?:[Ww]here|[Ww]ith|[Hh]ere)[\s,:]*")
Judge = Callable[[Statement], list[Verdict]]


def with_definitions_below(
    known: Knowledge, display: Display, following: Item | None, judge: Judge
) -> tuple[list[Verdict], list[Verdict]]:
    """Return the verdicts on a display, and those on the following one if "where"
    stands between them and it defines names that the display needs; otherwise none."""
    before = known.now
    found = on_display(known, display, judge)
    if not isinstance(following, Display) or not _WHERE.fullmatch(
        known.document.source, display.end, following.start
    ):
        return found, []
    if all(verdict.kind != "not readable" for verdict in found):
        return found, []
    after, known.now = known.now, before
    below = on_display(known, following, judge)
    again = on_display(known, display, judge)
    if (
        any(verdict.kind != "definition" for verdict in below)
        or not below
        or all(verdict.kind == "not readable" for verdict in again)
    ):
        known.now = after
        return found, []
    return again, below


def on_display(known: Knowledge, display: Display, judge: Judge) -> list[Verdict]:
    """Judge the statements of a display, each after what its clauses define."""
    first = known.document.line(display.start)
    known.begin(display)
    return [
        replace(verdict, display=display.start, line=verdict.line or first)
        for verdict in _judged(known, statements_of(display, known.brackets), judge)
    ]


def on_aside(known: Knowledge, aside: Aside) -> Iterator[Verdict]:
    """Yield the verdicts on what claims nothing."""
    for row in aside.display.rows:
        one = verdict_on(known.document, "nothing claimed", row)
        yield replace(one, display=aside.start)


def _judged(
    known: Knowledge, statements: list[Statement], judge: Judge
) -> Iterator[Verdict]:
    at = 0
    holds = True  # whether all equations above hold everywhere
    while at < len(statements):
        first, at = at, at + 1
        while at < len(statements) and statements[at].introduced:
            at += 1
        known.follows_from_identities = first > 0 and holds
        found = (
            judge(statements[first])
            if at - first == 1
            else [*_with_clauses(known, statements[first:at], judge)]
        )
        holds &= all(map(_holds_everywhere, found))
        yield from found


def _holds_everywhere(verdict: Verdict) -> bool:
    is_restricted = verdict.basis is not None and verdict.basis.condition
    return verdict.kind in ("equal", "definition") and not is_restricted


def _with_clauses(
    known: Knowledge, statements: list[Statement], judge: Judge
) -> Iterator[Verdict]:
    found: dict[int, list[Verdict]] = {}
    _judge_clauses(known, statements, judge, found)
    before, main = known.now, statements[0]
    found[0] = judge(main)
    _judge_clauses(known, statements, judge, found)
    if all(map(_holds_everywhere, found[0])):
        _judge_claims(known, statements, judge, found)
    rest = [one for number, one in enumerate(statements) if number not in found]
    beside = tuple(one.clause for one in rest if one.clause is not None)
    if beside:
        known.now = before
        found[0] = judge(replace(main, beside=(*main.beside, *beside)))
    for number, statement in enumerate(statements):
        if number in found:
            yield from found[number]
        elif statement.clause is None:
            yield from judge(statement)


def _judge_claims(
    known: Knowledge,
    statements: list[Statement],
    judge: Judge,
    found: dict[int, list[Verdict]],
) -> None:
    """Add the verdicts on the clauses that give a defined name another value. They are
    claims, because their statement holds without them."""
    for number, statement in enumerate(statements):
        if number in found or not _restates(known, statement):
            continue
        before = known.now
        verdicts = judge(statement)
        if {verdict.kind for verdict in verdicts} <= {"equal", "refused", "follows"}:
            found[number] = verdicts
        else:
            known.now = before


def _restates(known: Knowledge, statement: Statement) -> bool:
    """Whether a statement sets a name that a comment defines equal to a formula."""
    left, first, *_ = (*statement.members, statement.members[0])
    if not re.search(r"[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", first.characters)):
        return False
    try:
        found = known.scope.resolve(parse(known.part(left), "moved"))
    except Unreadable:
        return False
    if found is None or found.kind != "variable" or found.accent:
        return False
    definition = known.scope.variables[found.name].definition
    return definition is not None and any(
        line.right == definition.part for line in known.commented
    )


def _judge_clauses(
    known: Knowledge,
    statements: list[Statement],
    judge: Judge,
    found: dict[int, list[Verdict]],
) -> None:
    """Add the verdicts on the clauses that define a name or state what is known."""
    waiting = [number for number in range(1, len(statements)) if number not in found]
    count = len(waiting) + 1
    while len(waiting) < count:
        count = len(waiting)
        for number in waiting:
            before = known.now
            verdicts = judge(statements[number])
            kinds = [verdict.kind for verdict in verdicts]
            # A derivative is a claim, and not a restriction.
            claims = r"\partial" in statements[number].members[0].characters
            if kinds[0] in ("definition", "equal") and (
                claims or not {"refused", "ill-formed"} & {*kinds}
            ):
                found[number] = verdicts
            else:
                known.now = before
        waiting = [number for number in waiting if number not in found]
