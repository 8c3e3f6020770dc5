"""Judge the displayed mathematics of a text, line by line.

Each side of an equation is compared with the last side of its chain that was right, so
a mistake is blamed once, on its own line. If a line may have several meanings, none is
guessed: the verdict is "not readable" and says what would make the meaning certain.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import TypeVar

from backpass.derivation.document import directives
from backpass.derivation.equality.check import evaluators_in
from backpass.derivation.equality.comparing import Refused
from backpass.derivation.language.names import Expression
from backpass.derivation.language.parse import (
    Loose,
    Misfit,
    Part,
    Unbound,
    Unfinished,
    Unreadable,
    parse,
)
from backpass.derivation.text.beside import Beside, besides_of, doubt_of
from backpass.derivation.text.clauses import on_aside, with_definitions_below
from backpass.derivation.text.contents import Aside, Comment, Document, Heading
from backpass.derivation.text.contested import contest, is_input
from backpass.derivation.text.defining import (
    declared,
    define,
    defines,
    overloaded,
    replaces,
)
from backpass.derivation.text.directives import follow_all
from backpass.derivation.text.einstein import is_declared, with_sums, with_sums_beside
from backpass.derivation.text.formal.judging import Formal
from backpass.derivation.text.forms import ill_formed
from backpass.derivation.text.imposed import ASKS, FOLLOWS, ZERO
from backpass.derivation.text.inner import with_products
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.limit import TooLong, limited
from backpass.derivation.text.members import Equation, equality
from backpass.derivation.text.misnamed import misnamed
from backpass.derivation.text.notation import Notation
from backpass.derivation.text.pairs import (
    NONE,
    Letters,
    letters_of_pairs,
    with_pairs,
    without_pairs,
)
from backpass.derivation.text.passages import Text
from backpass.derivation.text.printed import as_printed
from backpass.derivation.text.readings import implied_sum
from backpass.derivation.text.refusal import refusal
from backpass.derivation.text.relations import assigns, declares, imposes
from backpass.derivation.text.rewriting import (
    claims_nothing,
    not_an_equation,
    only_equality,
)
from backpass.derivation.text.sight.first import Sight
from backpass.derivation.text.sight.rounded import with_rounded
from backpass.derivation.text.sight.suggestion import Suggestion, suggestion_of
from backpass.derivation.text.single import AsNumbers
from backpass.derivation.text.solutions import Solutions
from backpass.derivation.text.solved import asked_if_solved
from backpass.derivation.text.stale import with_stale
from backpass.derivation.text.statements import Statement
from backpass.derivation.text.sums import reaching_further
from backpass.derivation.text.surroundings import asked_of_new_names
from backpass.derivation.text.torn import TORN, is_torn, may_end
from backpass.derivation.text.variants import Variant
from backpass.derivation.text.verdict import Basis, Verdict, unread, verdict_on

T = TypeVar("T")


def judge(
    document: Document,
    definitions: str = "",
    progress: Callable[[int], None] = lambda line: None,
    seconds: float = 0,
    infer: bool = False,
) -> list[Verdict]:
    """Return the verdicts on the displayed lines of a document, in order.

    - `definitions`: declarations and definitions that hold for the whole text.
    - `progress`: called with the number of each line before it is judged.
    - `seconds`: a line that takes more CPU time is not readable; 0 sets no limit.
    - `infer`: whether names without a declaration have the shapes that the text
      implies; the verdicts then say what was inferred.

    Raises `Unreadable` for `definitions` that cannot be read.
    """
    return as_printed(_judge(document, definitions, progress, seconds, infer)[0])


def suggest(
    document: Document,
    definitions: str = "",
    progress: Callable[[int], None] = lambda line: None,
    seconds: float = 0,
) -> tuple[list[Verdict], Suggestion]:
    """Return the verdicts, and what a comment would declare."""
    verdicts, sight = _judge(document, definitions, progress, seconds, True)

    def again(more: str) -> list[Verdict]:
        whole = f"{definitions}\n{more}"
        return _judge(document, whole, progress, seconds, True)[0]

    return as_printed((verdicts, suggestion_of(sight, document, verdicts, again)))


def _judge(
    document: Document,
    definitions: str,
    progress: Callable[[int], None],
    seconds: float,
    infer: bool,
) -> tuple[list[Verdict], Sight]:
    known = Knowledge(document)
    given = directives(definitions)
    for _, error in follow_all(known, given, definitions, lambda text: 0):
        raise error
    known.at_start = known.now
    known.commented |= {*known.now.lines}
    verdicts: list[Verdict] = []
    judge_one: Callable[[Statement], list[Verdict]]
    judge_one = partial(_judged, known, progress, seconds)
    sight = Sight(known, judge_one)
    known.infers = infer
    plain = judge_one
    if infer:
        judge_one = partial(_inferred, sight, Formal(known))
    judge_one = Solutions(known, judge_one, plain).judged
    below: list[Verdict] = []  # on a display that defines names of the one above it
    for item, following in zip_longest(document.items, document.items[1:]):
        if isinstance(item, Heading):
            known.enter(item)
        elif isinstance(item, Comment):
            verdicts += _on_comment(known, item)
        elif isinstance(item, Aside):
            verdicts += on_aside(known, item)
        elif below:
            verdicts, below = verdicts + below, []
        else:
            found, below = with_definitions_below(known, item, following, judge_one)
            verdicts += found
            known.condition = None
            if found and all(one.kind == "equal" for one in found):
                known.imposed.holds()
    for notation, verdict in _on_idle_notations(known):
        until = _next_restart(document, verdict.line)
        verdicts = with_stale(verdicts, notation, verdict.line, until, known.matched)
        after = [at for at, one in enumerate(verdicts) if one.line > verdict.line]
        verdicts.insert(after[0] if after else len(verdicts), verdict)
    return asked_if_solved(document, verdicts), sight


def _inferred(sight: Sight, formal: Formal, statement: Statement) -> list[Verdict]:
    """Judge a statement by what is inferred, and then by rules for any names."""
    return formal.judged(statement, with_rounded(sight.judged(statement)))


def _judged(
    known: Knowledge,
    progress: Callable[[int], None],
    seconds: float,
    statement: Statement,
) -> list[Verdict]:
    found = list(_on_statement(known, statement, progress, seconds))
    if found[0].kind == "not readable":
        with suppress(Unreadable):
            known.miss_loss(statement.members[0])
    left = " ".join(statement.members[0].characters.split())
    return [
        replace(
            one,
            left=left,
            message=known.in_its_words(one.message),
            compared=known.in_its_words(one.compared),
        )
        for one in found
    ]


def _on_comment(known: Knowledge, comment: Comment) -> Iterator[Verdict]:
    """Follow the directives of a comment; yield verdicts on those without a meaning."""
    if comment.open:
        text = comment.directives[0]
        fault = unread(known.document, text, "this comment has no end: write -->")
        yield replace(fault, display=-1)
        return
    line_of, before = known.document.line_of, {*known.now.lines}
    for text, error in follow_all(known, comment.directives, known.source, line_of):
        fault = unread(known.document, text, error)
        yield replace(fault, message=known.in_its_words(fault.message), display=-1)
    known.commented |= {*known.now.lines} - before


def _next_restart(document: Document, line: int) -> float:
    """Return the line of the first restart below a line; infinity if there is none."""
    lines = (
        document.line_of(one)
        for item in document.items
        if isinstance(item, Comment)
        for one in item.directives
        if one.characters.strip() == "restart"
    )
    return min((at for at in lines if at > line), default=math.inf)


def _on_idle_notations(known: Knowledge) -> Iterator[tuple[Notation, Verdict]]:
    """Yield each notation in a comment that no formula uses, with a verdict on it."""
    for one, text in known.notations.items():
        if one not in known.matched:
            why = (
                "no formula below this line contains the symbols before the word as; the "
                "read lines above it apply first"
            )
            error = Unreadable(why, text.part(known.source))
            fault = unread(known.document, text, error)
            yield one, replace(fault, display=-1)


def _on_statement(
    known: Knowledge,
    statement: Statement,
    progress: Callable[[int], None],
    seconds: float,
) -> Iterator[Verdict]:
    """Judge the members, each against the last one that was right."""
    document = known.document
    left, *rest = statement.members
    if rest and rest[-1].characters.strip(" ~.") == "?":  # a question
        if rest[1:]:
            shorter = replace(
                statement,
                members=statement.members[:-1],
                conditions=statement.conditions[:-1],
            )
            yield from _on_statement(known, shorter, progress, seconds)
        yield verdict_on(document, "nothing claimed", rest[-1])
        return
    why, doubt = statement.fault, doubt_of(known, statement)
    try:
        for member in statement.members:
            known.rewritten(member)
        if not rest:
            if statement.relation:
                yield _on_relation(known, statement)
                return
            if not why and (verdict := declared(known, left)):
                yield verdict
                return
            text = left.characters
            if not why and (claims_nothing(text) or assigns(text) or declares(text)):
                yield verdict_on(document, "nothing claimed", left)
                return
            why = why or not_an_equation(left.characters)
        besides = besides_of(known, statement)
    except Unreadable as error:
        why = why or document.explained(error)
    if not why and not left.characters:
        why = "it begins with =: what stands on its left?"
    if not why and doubt and defines(known, known.part(left)):
        why = "a definition cannot have words or an arrow beside it: write it alone"
    if why:
        for member in rest or (left,):
            yield unread(document, member, why)
        return
    torn, variant = is_torn(known, left), Variant(known, known.part(left))
    for member, beside, verdict in zip(
        rest,
        besides[1:],
        _on_members(known, left, rest, besides, progress, seconds),
        strict=True,
    ):
        if torn and verdict.kind in ("refused", "ill-formed", "follows"):
            verdict = unread(document, member, TORN, verdict.against)
        torn = torn or (verdict.kind == "not readable" and may_end(member))
        if verdict.kind == "not readable" and ZERO.fullmatch(member.characters):
            known.impose(member)  # the rows below may solve it
        if verdict.kind in ("refused", "ill-formed", "follows") and doubt:
            against = verdict.against
            verdict = replace(unread(document, member, doubt, against), differs=True)
        has_zero = any(ZERO.fullmatch(one.characters) for one in (left, member))
        verdict = _unless_imposed(known, member, verdict, has_zero)
        yield variant.instead(member, beside, verdict)


def _unless_imposed(
    known: Knowledge, member: Text, verdict: Verdict, has_zero: bool
) -> Verdict:
    """Return the verdict on a member, but none that it is wrong where it is imposed or
    may follow from what is. `has_zero` says whether it or the first member is 0."""
    if verdict.kind not in ("refused", "ill-formed", "follows"):
        return verdict
    imposed = known.imposed
    if imposed.by_sentence and has_zero:
        imposed.here = True
        return verdict_on(known.document, "nothing claimed", member)
    if imposed.perhaps and has_zero:
        imposed.here = True  # the rows below may follow from it
        return unread(known.document, member, ASKS, verdict.against)
    if imposed.follows:
        return unread(known.document, member, FOLLOWS, verdict.against)
    return verdict


def _on_relation(known: Knowledge, statement: Statement) -> Verdict:
    """Return the verdict on a relation between two equations of a chain."""
    (whole,), sign = statement.members, statement.relation
    if assigns(sign):
        known.imposed.here |= imposes(sign)
        return verdict_on(known.document, "nothing claimed", whole)
    if declares(whole.characters):
        return verdict_on(known.document, "nothing claimed", whole)
    return unread(known.document, whole, only_equality(sign))


_CLAIMED = (
    "the side before it, which is not readable, defines the left side: declare its "
    "names, or define the left side in a comment, with let"
)


def _on_members(
    known: Knowledge,
    left: Text,
    rest: list[Text],
    besides: list[Beside],
    progress: Callable[[int], None],
    seconds: float,
) -> Iterator[Verdict]:
    """Judge the members after the left one, each with what stands beside it."""
    document, head = known.document, known.part(left)
    if known.now.summed:
        head, *_ = with_sums(head, head, known.without_membership(rest[0])[0])
    pairs, perhaps = _pairs(known, head, rest, besides)
    head = with_pairs(head, pairs)
    equation = Equation(head, besides[0], head, head)
    replaced = replaces(known, head, known.without_membership(rest[0])[0])
    defining = bool(replaced) or defines(known, head)
    torn = False  # whether another equation may have begun
    at_left = is_input(known, head)
    unread_first = False  # whether the first side after the left one is not readable
    for member, beside in zip(rest, besides[1:], strict=True):
        progress(document.line_of(member))
        if known.short and equation.blamed:
            yield verdict_on(document, "follows", member)
            continue
        equation.enter(beside)
        part, membership = known.without_membership(member)
        part = with_pairs(part, pairs)
        if known.now.summed:
            part = with_sums_beside(head, part)
        if defining and torn:
            yield unread(document, member, TORN)
            continue
        if defining and (why := known.restrictions.against((left, *rest))):
            yield unread(document, member, why)
            defining, unread_first = False, True
            continue
        if defining:
            torn = may_end(member)
            if is_declared(known.source) and not known.now.summed:
                _, _, part = with_sums(head, head, part)
            try:
                yield define(known, member, head, part, beside, membership, replaced)
            except Unreadable as error:
                yield _without_meaning(known, None, member, part, error, seconds)
                unread_first = not torn
                defining = torn
            else:
                defining, equation.anchor = False, part
            continue
        if unread_first:
            yield unread(document, member, _CLAIMED)
            continue
        first, anchor = equation.first, equation.anchor
        line = document.line(anchor.start)
        sides = first, anchor, part
        compare = partial(_compared, known, *sides, beside, membership, perhaps)
        try:
            try:
                basis = _in_time(known, part, seconds, compare)
            except Refused as refused:
                if known.short:
                    equation.blamed = part
                    yield verdict_on(document, "refused", member, line)
                    continue
                explain = partial(
                    refusal, known, equation, member, part, refused, besides[-1]
                )
                verdict = _in_time(known, part, seconds, explain)
                if verdict.kind in ("refused", "follows"):
                    equation.blamed = part
                elif verdict.kind == "equal":
                    equation.anchor, equation.blamed = part, None
                elif at_left and anchor == head:
                    equation.first = equation.anchor = part
                yield verdict
                continue
        except Unreadable as error:
            yield _without_meaning(known, equation, member, part, error, seconds)
            if known.short:
                equation.blamed = part
            if error.part == anchor:
                equation.first = equation.anchor = part
        else:
            yield verdict_on(document, "equal", member, line, basis=basis)
            if not beside.words:
                known.shown += [(one, part) for one in dict.fromkeys((head, anchor))]
            equation.anchor, equation.blamed = part, None


def _pairs(
    known: Knowledge, head: Part, rest: list[Text], besides: list[Beside]
) -> tuple[Letters, Letters]:
    """Return the letters of an equation over which its sums over pairs run, too, and
    those over which they may."""
    has_sums = any(r"\sum" in one for one in (head.text, *(t.characters for t in rest)))
    if not has_sums or known.now.summed or any(one.words for one in besides):
        return NONE, NONE
    members = [known.without_membership(member)[0] for member in rest]
    return letters_of_pairs([head, *members])


def _compared(
    known: Knowledge,
    first: Part,
    anchor: Part,
    part: Part,
    beside: Beside,
    membership: Part | None,
    pairs: Letters,
) -> Basis:
    """Return what the equality of two members rests on, perhaps with the sums that a
    summation convention leaves out, or with sums over `pairs`. Raises `Refused` and
    `Unreadable`."""
    sides = first, anchor, part
    letter, plain = without_pairs(sides)
    if letter:
        with suppress(Refused, Unreadable):
            one, above, here = plain
            return equality(known, one, above, here, beside, membership)
    if pairs:
        with suppress(Refused, Unreadable):
            one, above, here = (with_pairs(side, pairs) for side in sides)
            return equality(known, one, above, here, beside, membership)
    stated = is_declared(known.source) and not known.now.summed
    summed = with_sums(*sides) if stated else sides
    if summed == sides:
        try:
            return equality(known, *sides, beside, membership)
        except Misfit as error:
            return _with_dots(known, sides, beside, membership, error)
    try:
        basis = equality(known, *sides, beside, membership)
    except (Refused, Unreadable) as error:
        try:
            return equality(known, *summed, beside, membership)
        except Refused:
            raise error from None
        except Unreadable as unreadable:
            raise (unreadable if isinstance(error, Refused) else error) from None
    try:
        equality(known, *summed, beside, membership)
    except (Refused, Unreadable):
        message = (
            "it does not hold with the sums of the summation convention: write them"
        )
        raise Unreadable(message, part) from None
    return basis


def _with_dots(
    known: Knowledge,
    sides: tuple[Part, Part, Part],
    beside: Beside,
    membership: Part | None,
    error: Misfit,
) -> Basis:
    """Return what the equality of two members rests on if \\cdot between columns is an
    inner product. Raises `Refused` if they also differ where it is the product of the
    elements, and otherwise the error."""

    def equal(is_inner: bool) -> Basis:
        one, above, here = (with_products(p, known.scope, is_inner) for p in sides)
        if (one, above, here) == sides:
            raise error
        return equality(known, one, above, here, beside, membership)

    try:
        return equal(True)
    except Unreadable:
        raise error from None
    except Refused as refused:
        try:
            equal(False)
        except (Misfit, Refused):
            raise refused from None
        except Unreadable:
            pass
        raise error from None


def _in_time(known: Knowledge, part: Part, seconds: float, judge: Callable[[], T]) -> T:
    """Return a result. Raises `Unreadable` if that takes too long."""
    try:
        with limited(seconds):
            return judge()
    except TooLong:
        evaluators_in(known.now.lines).known.clear()  # some may be incomplete
        message = f"it took longer than {seconds:g} s: write it in smaller steps"
        raise Unfinished(message, part) from None


def _without_meaning(
    known: Knowledge,
    equation: Equation | None,
    member: Text,
    part: Part,
    error: Unreadable,
    seconds: float,
) -> Verdict:
    """Return the verdict on a member without a meaning: "ill-formed" if no reading
    makes it right."""
    document, line = known.document, 0
    if equation is not None:
        line = document.line(equation.anchor.start)
    if known.short:
        return unread(document, member, error, line)
    try:
        judge_form = partial(ill_formed, known, equation, part, error)
        fault = _in_time(known, part, seconds, judge_form)
        if fault is None and equation is not None:
            find_slip = partial(misnamed, known, equation, part, error)
            fault = _in_time(known, part, seconds, find_slip)
        if equation is not None and isinstance(error, Loose | Unbound):
            find = partial(reaching_further, known, equation, part)
            if meant := _in_time(known, part, seconds, find):
                fault, error = None, Unreadable(meant, error.part, error.position)
    except Unreadable:
        fault = None
    if fault is not None:
        sides = (equation.head, part) if equation is not None else (part,)
        asked = overloaded(known, equation.head) if equation is not None else ""
        if asked := asked or asked_of_new_names(known, sides):
            fault, error = None, Unreadable(asked, part)
    if fault is not None:
        parts = (fault.part, getattr(error, "other", None))
        basis = _named(known, [one for one in parts if one is not None])
        verdict = verdict_on(document, "ill-formed", member, line, fault, basis)
        return replace(
            verdict, certain="numbers" if isinstance(fault, AsNumbers) else ""
        )
    if match := re.match(r"(.+) is not declared or defined above$", error.message):
        more = known.where_ended(match[1]) or known.where_below(match[1], member)
        error = Unreadable(error.message + more, error.part, error.position)
    elif isinstance(error, Loose) and equation is not None:
        if asked := implied_sum(known, equation, part):
            error = Unreadable(asked, error.part, error.position)
    if equation is not None and equation.anchor == equation.head:
        contest(known, equation.head, part)
    no_guess = known.inferred.keys().isdisjoint(known.now.lines)
    differs = no_guess and isinstance(error, Misfit | Loose | Unbound)
    return replace(unread(document, member, error, line), differs=differs)


def _named(known: Knowledge, parts: list[Part]) -> Basis:
    """Return the definitions of the names in parts, whether or not they have a
    meaning."""
    scope = known.scope
    expressions = []
    for part in parts:
        tree = parse(part)
        found = {
            id(node): reference
            for node in tree.iter_subtrees()
            if node.data in ("reference", "power_of_name", "scalar")
            and (reference := scope.resolve(node)) is not None
        }
        expressions.append(Expression(part, tree, references=found))
    return known.basis(expressions, (), 0)
