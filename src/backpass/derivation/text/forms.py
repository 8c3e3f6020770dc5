"""What is wrong in form: a line that no reading gives a meaning, or the right value.

Shapes are tried in every convention, and an index without a partner in every reading of
it. If one of them makes the line right, or cannot be decided, nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import sympy
from lark import Tree

from backpass.derivation.equality.check import Chain, evaluators_in, first_mistake
from backpass.derivation.equality.comparing import (
    HOLDING,
    Refused,
    compare,
    evaluators_of,
    members_chain,
    of_loss,
)
from backpass.derivation.equality.conventions import Square, fit
from backpass.derivation.language.evaluate import Evaluator
from backpass.derivation.language.functions import is_function
from backpass.derivation.language.indices import letter_of
from backpass.derivation.language.names import Expression, Scope
from backpass.derivation.language.parse import (
    Loose,
    Misfit,
    Part,
    Unbound,
    Unfinished,
    Unreadable,
    parse,
    span_of,
    tokens_of,
)
from backpass.derivation.language.written import (
    accent_and_name,
    canonical,
    subscripts_of,
)
from backpass.derivation.text.einstein import (
    DECLARED,
    LEAVES_OUT,
    is_letter,
    sums_over,
    writes_sums_over,
)
from backpass.derivation.text.imposed import ZERO
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.members import Equation, agree, equality
from backpass.derivation.text.readings import other_reading
from backpass.derivation.text.single import AsNumbers, differs_as_number
from backpass.expressions import exact

MENDS = 24  # at most so many changes of one sign are tried
DEPTH = 3  # at most so many errors are set aside, one after the other
_ZERO_WITHIN = re.compile(r"(?<![\w.,^_{])0(?![\w.,}])")
Edit = tuple[int, int, str]  # start, end, and what is written there


def ill_formed(
    known: Knowledge,
    equation: Equation | None,
    part: Part,
    error: Unreadable,
    depth: int = 0,
) -> Unreadable | None:
    """Return what is wrong with the form of a member, with what would mend it; None if
    a reading may make it right. A definition has no equation.

    `depth` is the number of readings within which this one is tried.
    """
    if _ZERO_WITHIN.search(part.text) and not ZERO.fullmatch(part.text):
        return None  # this 0 may be an array
    fault = _ill_formed(known, equation, part, error, depth)
    own = error.part == part and not isinstance(error, Unfinished)
    if fault is None and equation is not None and own and not depth:
        is_new = equation.anchor == equation.head and _may_be_new(known, equation.head)
        sides = (part, equation.first, equation.anchor)
        is_new |= not known.infers and _has_shape_of_text(known, sides)
        if not is_new and differs_as_number(known, equation, part):
            message = f"{error.message}; the sides differ as numbers, too"
            return AsNumbers(message, error.part, error.position)
    return fault


def _ill_formed(
    known: Knowledge,
    equation: Equation | None,
    part: Part,
    error: Unreadable,
    depth: int,
) -> Unreadable | None:
    sides = (part, equation.first, equation.anchor) if equation else (part,)
    if depth > DEPTH or _has_shape_of_text(known, sides):
        return None
    if isinstance(error, Misfit):
        return _of_misfit(known, equation, part, error)
    if equation is None or error.part != part:
        return None
    if equation.anchor == equation.head and _may_be_new(known, equation.head):
        return None
    fault: Unreadable | None = None
    if isinstance(error, Loose):
        fault = _of_loose(known, equation, part, error, depth)
    elif isinstance(error, Unbound):
        fault = _of_unbound(known, equation, part, error, depth)
    if fault is None or depth:
        return fault
    assert isinstance(error, Loose | Unbound)
    return _with_mend(fault, _mended(known, equation, part, error.letter))


def _has_shape_of_text(known: Knowledge, sides: tuple[Part, ...]) -> bool:
    """Whether a name in some sides has its shape from a display: the text may mean
    another one by that name here, without saying so in a display."""
    declared = {
        canonical(name)
        for line in known.now.implied
        if line.kind == "given" and line.right is not None
        for declaration in parse(line.right, "declarations").children
        for name in declaration.children[:-2]
    }
    if not declared:
        return False
    scope = known.scope
    found = set()
    for side in sides:
        try:
            nodes = parse(side).iter_subtrees()
        except Unreadable:
            continue
        for node in nodes:
            if node.data in ("reference", "power_of_name", "power", "scalar"):
                reference = scope.resolve(node)
                if reference is not None and reference.kind == "variable":
                    found.add(reference.name)
    used = scope.upstream([scope.variables[name] for name in found])
    return not declared.isdisjoint(used)


def _of_misfit(
    known: Knowledge, equation: Equation | None, part: Part, error: Misfit
) -> Unreadable | None:
    """Return the error for shapes that do not fit; None if they fit in a convention."""
    if error.ranges and equation is not None:
        if not _differs_if_square(known, equation, part, error.diagonal):
            return None
        return _with_mend(error, _mended(known, equation, part))
    if equation is None and error.diagonal:
        return None
    if equation is None:
        return None if fit(known.scope, [part], None, False) else error
    parts = [*dict.fromkeys((equation.first, equation.anchor, part))]
    fits = fit(known.scope, parts, equation.beside.condition, len(parts) > 1)
    mended = _mended(known, equation, part)
    if fits and not _tells_rows_from_columns(known, parts, mended):
        return None
    return _with_mend(error, mended)


_DYADS = re.compile(r"\bdyad|\b(?:tensor|outer) product", re.I)


def _tells_rows_from_columns(
    known: Knowledge, parts: Sequence[Part], mended: str
) -> bool:
    """Whether an equation that holds with the transpose of a name writes this transpose
    elsewhere, so that the name alone is not a row, unless the text has products of two
    columns that are matrices."""
    match = re.fullmatch(r"it holds with (.+)\^\\top", mended)
    if match is None or _DYADS.search(known.source):
        return False
    return any(
        node.data == "power"
        and node.children[1].data == "top"
        and one.text[slice(*span_of(node.children[0]))].strip() == match[1].strip()
        for one in parts
        for node in parse(one).iter_subtrees()
    )


def _with_mend(error: Unreadable, mended: str) -> Unreadable:
    if not mended:
        return error
    return Unreadable(f"{error.message}; {mended}", error.part, error.position)


def _may_be_new(known: Knowledge, side: Part) -> bool:
    """Whether a side is only a name that the equation may give another meaning: one
    that is declared, or that a display defines."""
    if is_function(side):
        return True
    try:
        found = known.scope.resolve(parse(side, "moved"))
    except Unreadable:
        return False
    if found is None or found.kind != "variable":
        return True
    if found.accent or found.name.startswith(r"\bar"):
        return False
    definition = known.scope.variables[found.name].definition
    return definition is None or any(
        line.right == definition.part for line in known.now.implied
    )


def differs(known: Knowledge, equation: Equation, part: Part, depth: int) -> bool:
    """Whether a member differs from the last right one in every reading."""
    first, anchor = equation.first, equation.anchor
    try:
        equality(known, first, anchor, part, equation.beside)
    except Refused as refused:
        return not other_reading(known, equation, part, refused.chain)
    except Unreadable as error:
        return ill_formed(known, equation, part, error, depth + 1) is not None
    return False


def _differs_if_square(
    known: Knowledge, equation: Equation, part: Part, unheld: bool
) -> bool:
    """Whether a member differs from the last right one even where all dimensions have
    the same length.

    If `unheld`, nothing is said where a derivative may hold other names constant.
    """
    first, anchor, beside = equation.first, equation.anchor, equation.beside
    scope = known.scope
    try:
        chain = members_chain(scope, first, anchor, part, beside.condition, kind=Square)
        if unheld and any(
            tree.data in HOLDING
            and not of_loss(one, tree)
            and not _holds_nothing(one, tree, scope)
            for expression in chain.expressions
            for one in expression.parts
            for tree in one.tree.iter_subtrees()
        ):
            return False
        signs = evaluators_of(evaluators_in(known.now.lines), chain)[0].draw is not None
        sizes = dict.fromkeys(scope.dimensions, 3)
        evaluator = Evaluator(scope, sizes, 0 if signs else None)
        return first_mistake(chain, evaluator) is not None
    except (Unreadable, LookupError, ArithmeticError, RecursionError, ValueError):
        return False


def _holds_nothing(expression: Expression, tree: Tree, scope: Scope) -> bool:
    """Whether a derivative is of one name that is defined by inputs alone, so that it
    has no other definition to hold constant."""
    found = expression.references.get(id(tree.children[0]))
    if found is None or found.kind != "variable" or found.accent:
        return False
    variable = scope.variables[found.name]
    return variable.definition is not None and all(
        one.definition is None for one in scope.used_by(variable)
    )


def _written(part: Part, *edits: Edit) -> Part:
    """Return a part with some of its text replaced."""
    text = part.text
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return Part(part.source, part.start, text)


# ---- an index on one side only -------------------------------------------------------


def _of_loose(
    known: Knowledge, equation: Equation, part: Part, error: Loose, depth: int
) -> Unreadable | None:
    """Return the error for an index on one side only; None if the member may hold for
    all its values, or for one, or with a sum that is not written."""
    letter = error.letter
    if not known.now.summed and DECLARED.search(known.source):
        return None
    written = not depth and _writes_sums(known, part, letter)
    if not _holds_nowhere(known, equation, part, written):
        return None
    message = f"the index {letter} is on this side only"
    if sums := sums_over(parse(part), letter):
        summed = _written(
            part,
            *(
                (a, b, rf"\left( \sum_{{{letter}}} {part.text[a:b]} \right)")
                for a, b in sums
            ),
        )
        if not differs(known, equation, summed, depth):
            if not written:
                return None
            message += ": other sums of this text are written"
    return Unreadable(message, error.part, error.position)


def _writes_sums(known: Knowledge, part: Part, letter: str) -> bool:
    """Whether a member has the sign of a sum over a repeated index, or the text has
    such signs for this letter elsewhere, and no words of the text leave signs out."""
    names = {accent_and_name(one)[1] for one in parse(part).find_data("reference")}
    if names & known.inferred_names or LEAVES_OUT.search(known.source):
        return False
    return writes_sums_over(letter, known.elsewhere, known.nearby) or any(
        sums_over(tree.children[-1], letter)
        for tree in parse(part).find_data("big")
        if tree.children[0] == r"\sum"
        for letter in [*map(letter_of, tokens_of(tree.children[1]))][:1]
    )


def _holds_nowhere(
    known: Knowledge, equation: Equation, part: Part, written: bool
) -> bool:
    """Whether a member with an index of its own differs from the last right one for
    some values of it, also where a vector is 1 at that index and 0 elsewhere, and
    unless sums are `written`, where they are left out."""
    created = evaluators_in(known.now.lines)
    condition, first = equation.beside.condition, equation.first
    try:
        chain = members_chain(
            created.scope, first, equation.anchor, part, condition, loose=True
        )
        evaluators = evaluators_of(created, chain)
        compare(chain, evaluators)
    except Refused as refused:
        return not _holds_at_a_label(chain, refused) and not (
            other_reading(known, equation, part, chain, not written)
        )
    except Unreadable:
        pass
    return False


def _holds_at_a_label(chain: Chain, refused: Refused) -> bool:
    """Whether members are equal if a vector is 1 at an index that only one has, and 0
    elsewhere, as a label is."""
    above, here = chain.expressions
    evaluator = refused.evaluator
    calculus = evaluator.calculus
    for letter in here.free - above.free:
        for variable in evaluator.scope.variables.values():
            if variable.kind == "defined" or variable.axes != (chain.free[letter],):
                continue
            if any(reference.name == variable.name for reference in here.used):
                continue
            if all(
                _is_zero(calculus.expand(one - other).xreplace(
                    {
                        calculus.element(variable, at): sympy.Integer(at[0] == indices[letter])
                        for at in calculus.positions(variable)
                    }
                ))
                for indices in chain.cases(evaluator)
                for one, other in zip(
                    *(
                        np.ravel(evaluator.value(e, indices, chain.still))
                        for e in chain.expressions
                    ),
                    strict=True,
                )
            ):  # fmt: skip
                return True
    return False


def _is_zero(value) -> bool:
    try:
        return exact.is_zero(value)
    except exact.NotRepresentable:
        return True


# ---- a sum whose letter means nothing, or something else -----------------------------


def _is_in_sum_over(part: Part, letter: str, at: int) -> bool:
    """Whether a place is in what a sum over a letter adds up."""
    return any(
        span_of(one.children[-1])[0] <= at < span_of(one.children[-1])[1]
        for one in parse(part).find_data("big")
        if any(is_letter(token, letter) for token in tokens_of(one.children[1]))
    )


def _of_unbound(
    known: Knowledge, equation: Equation, part: Part, error: Unbound, depth: int
) -> Unreadable | None:
    """Return the error for a sum over a letter that is also used outside it, or does
    not occur in it; None if the member may be right."""
    letter, (start, end) = error.letter, error.limits
    written = part.text[start:end]
    if error.reused:
        if _is_in_sum_over(part, letter, start):
            return None  # \\sum_i x_i^2 \\sum_i y_i^2 is a product
        fresh = next(
            one
            for one in "jklabcpqrstuvwmn"
            if not _is_used(known, equation, part, one)
        )
        readings = [
            _written(part, *(
                (at, at + len(letter), fresh)
                for token in parse(part).scan_values(lambda one: is_letter(one, letter))
                if error.limits[0] <= (at := span_of(token)[0]) < error.body[1]
            ))
        ]  # fmt: skip
        message = f"the index {letter} is also used outside this sum"
    else:
        if written.strip("_{} ") != letter:
            return None
        readings = [
            _written(part, (start, end, rf"_{{{letter}=1}}^{{{side}}} "))
            for side in known.scope.dimensions
        ]
        message = f"the sum over {letter} has no {letter} in it"
    if not all(differs(known, equation, one, depth) for one in readings):
        return None
    return Unreadable(message, error.part, error.position)


def _is_used(known: Knowledge, equation: Equation, part: Part, letter: str) -> bool:
    texts = (equation.first.text, equation.anchor.text, part.text)
    word = re.compile(rf"(?<![a-zA-Z\\]){letter}(?![a-zA-Z])")
    scope = known.scope
    names = (*scope.variables, *scope.dimensions, *scope.functions)
    return any(map(word.search, (*texts, *names)))


# ---- what would mend it --------------------------------------------------------------


def _mended(known: Knowledge, equation: Equation, part: Part, letter: str = "") -> str:
    """Return in words which transpose, or which exchange of indices, makes a member
    equal to the last right one; "" if none does."""
    edits = _other_letters(known, equation, part, letter) if letter else _turned(part)
    for number, (edit, words) in enumerate(edits):
        if number == MENDS:
            break
        if agree(
            known,
            equation.first,
            equation.anchor,
            _written(part, edit),
            equation.beside,
        ):
            return words
    return ""


def _turned(part: Part) -> Iterator[tuple[Edit, str]]:
    """Yield the changes of one transpose, and the exchanges of two indices."""
    try:
        tree = parse(part)
    except Unreadable:
        return
    nodes = sorted(tree.iter_subtrees(), key=lambda node: node.meta.start_pos or 0)
    for node in nodes:
        if node.data == "power" and node.children[1].data == "top":
            start, end = span_of(node.children[0])[1], span_of(node)[1]
            written = part.text[slice(*span_of(node.children[0]))]
            yield (start, end, " "), f"it holds with {written}, without its transpose"
    for node in nodes:
        if node.data not in ("reference", "partial", "power_of_name"):
            continue
        start, end = span_of(node)
        written = part.text[start:end]
        tokens = subscripts_of(node) if node.data != "partial" else []
        if len(tokens) == 2 and tokens[0] != tokens[1]:
            (a, b), (c, d) = map(span_of, tokens)
            between = part.text[b:c]
            new = f"{tokens[1]}{between}{tokens[0]}"
            whole = part.text[start:a] + new + part.text[d:end]
            yield (a, d, new), f"it holds with {whole} in place of {written}"
        elif not tokens and not re.match(r"\s*[\^_(]", part.text[end:]):
            turned = rf"{written}^\top"
            if node.data == "partial":
                turned = rf"\left( {written} \right)^\top"
            yield (start, end, turned), f"it holds with {turned}"


def _other_letters(
    known: Knowledge, equation: Equation, part: Part, letter: str
) -> Iterator[tuple[Edit, str]]:
    """Yield the changes of one occurrence of an index to another letter."""
    others = sorted(
        {
            str(token)
            for side in (equation.first, part)
            for node in parse(side).iter_subtrees()
            if node.data in ("reference", "scalar")
            for token in subscripts_of(node)
            if len(token) == 1 and token.isalpha() and token != letter
        }
    )
    for node in parse(part).iter_subtrees():
        if node.data not in ("reference", "scalar"):
            continue
        for token in tokens_of(node) + subscripts_of(node):
            if token != letter:
                continue
            a, b = span_of(token)
            start, end = span_of(node)
            for other in others:
                whole = part.text[start:a] + other + part.text[b:end]
                written = part.text[start:end]
                yield (a, b, other), f"it holds with {whole} in place of {written}"
