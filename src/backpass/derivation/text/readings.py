"""Other readings of an equation, in which its members may be equal."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

from backpass.derivation.equality.check import Chain, evaluators_in
from backpass.derivation.equality.comparing import (
    Refused,
    compare,
    evaluators_of,
    members_chain,
    of_loss,
)
from backpass.derivation.equality.moments import undeclared_fact
from backpass.derivation.language.analysis import Analysis
from backpass.derivation.language.names import LOSS
from backpass.derivation.language.parse import (
    Line,
    Part,
    Unreadable,
    parse,
    span_of,
    tokens_of,
)
from backpass.derivation.language.shapes.names import is_square
from backpass.derivation.text.einstein import is_denied, with_sums, writes_sums_over
from backpass.derivation.text.held import other_partials
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.members import Equation, agree, equality
from backpass.derivation.text.pairs import without_pairs
from backpass.derivation.text.shown import through_equalities
from backpass.derivation.text.substituted import by_substitution
from backpass.derivation.text.sums import reaching_further


def other_reading(
    known: Knowledge, equation: Equation, part: Part, chain: Chain, summed: bool = True
) -> str:
    """Return what to ask or to say if a member that differs from the last right one may
    equal it in another reading; otherwise "". `summed` says whether sums may be left
    out."""
    return (
        _summed_twice(chain)
        or _for_each(known, equation, part)
        or _of_elements(known, equation, part)
        or undeclared_fact(evaluators_in(known.now.lines), chain)
        or _double_sums(known, equation, part)
        or _of_unread_loss(known, chain)
        or other_partials(known, chain)
        or through_equalities(known, equation, part, chain)
        or (summed and implied_sum(known, equation, part))
        or _at_a_point(chain)
        or _grouped(known, equation, part)
        or _other_layout(known, equation, part)
        or reaching_further(known, equation, part)
        or by_substitution(known, equation, part)
    )


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


def _for_each(known: Knowledge, equation: Equation, part: Part) -> str:
    """Return what to ask if the members are equal for each i where a sum over j < i
    runs over both letters; otherwise ""."""
    first, anchor = equation.first, equation.anchor
    sides = first, anchor, part
    letter, plain = without_pairs(sides)
    if not letter:
        return ""
    created = evaluators_in(known.now.lines)
    condition = equation.beside.condition
    try:
        one, above, here = plain
        chain = members_chain(created.scope, one, above, here, condition, loose=True)
        compare(chain, evaluators_of(created, chain))
    except (Refused, Unreadable):
        return ""
    return f"it holds for each {letter}: if {letter} is not summed over, write it on both sides"


def _of_elements(known: Knowledge, equation: Equation, part: Part) -> str:
    """Return what to say if the members are equal where a power of a square matrix is
    that of its elements; otherwise ""."""
    sides = equation.first, equation.anchor, part
    first, anchor, here = (_with_elements(known, side) for side in sides)
    is_new = (first, anchor, here) != sides
    if is_new and agree(known, first, anchor, here, equation.beside):
        return r"it holds if a power is that of each element: write it as A^{\odot 2}"
    return ""


def _with_elements(known: Knowledge, part: Part) -> Part:
    """Return a side with powers of the elements in place of those of matrices."""
    try:
        (expression,) = Analysis(known.scope).run([part])
    except Unreadable:
        return part
    text, variables = part.text, known.scope.variables
    shapes = [
        variables[one.name].shape for one in expression.used if one.name in variables
    ]
    if not any(map(is_square, shapes)):
        return part
    nodes = [
        node
        for node in expression.tree.iter_subtrees()
        if node.data in ("power", "power_of_name")
        and id(node) not in expression.references
        and _COUNT.search(text[slice(*span_of(node))])
    ]
    for node in sorted(nodes, key=lambda one: -span_of(one)[1]):
        start, end = span_of(node)
        each = _COUNT.sub(r"^{\\odot \1}", text[start:end])
        text = text[:start] + each + text[end:]
    return replace(part, text=text)


_COUNT = re.compile(r"\^\s*\{?\s*([2-9])\s*\}?\Z")


def _double_sums(known: Knowledge, equation: Equation, part: Part) -> str:
    """Return what to ask if the members are equal where each sum over i < j runs over j
    as well; otherwise ""."""
    sides = equation.first, equation.anchor, part
    first, anchor, here = map(_with_double_sums, sides)
    is_new = (first, anchor, here) != sides
    if is_new and agree(known, first, anchor, here, equation.beside):
        return "it holds if each sum over two letters runs over both: write one sum for each"
    return ""


def _with_double_sums(part: Part) -> Part:
    """Return a side with a sum over j before each sum over i < j."""
    try:
        nodes = [*parse(part).iter_subtrees()]
    except Unreadable:
        return part
    found: list[tuple[int, str]] = []
    for node in nodes:
        if node.data != "big":
            continue
        tokens = tokens_of(node.children[1])
        if len(tokens) == 3 and tokens[1].type == "RELATION":
            found.append((span_of(node)[0], rf"\sum_{{{tokens[2]}}} "))
    text = part.text
    for at, sign in sorted(found, reverse=True):
        text = text[:at] + sign + text[at:]
    return replace(part, text=text) if found else part


def not_single(known: Knowledge, chain: Chain) -> str:
    """Return another reading of members that is left where every dimension has length
    1; "" if there is none."""
    return _of_unread_loss(known, chain) or _at_a_point(chain)


def _of_unread_loss(known: Knowledge, chain: Chain) -> str:
    """Return why a gradient may have another value, if the definition of the loss could
    not be read; otherwise ""."""
    if not known.now.loss_unread or LOSS in known.scope.variables:
        return ""
    if any(
        reference.accent == "bar" or reference.kind == "loss"
        for expression in chain.expressions
        for reference in expression.used
    ):
        return "it may hold for the loss of this text, whose definition cannot be read"
    return ""


def implied_sum(known: Knowledge, equation: Equation, part: Part) -> str:
    """Return what to ask if the members are equal, perhaps with other names held
    constant, when repeated indices are summed over; otherwise ""."""
    sides = equation.first, equation.anchor, part
    summed = with_sums(*sides)
    if known.now.summed or summed == sides or is_denied(known.source):
        return ""
    try:
        equality(known, *summed, equation.beside)
    except Unreadable:
        return ""
    except Refused as refused:
        more = other_partials(known, refused.chain)
        if not more:
            return ""
        more = f". With these sums, {more}"
    else:
        more = ""
    letters = sorted({*_SUM.findall(summed[1].text + summed[2].text)})
    written = {*_SUM.findall(sides[1].text + sides[2].text)}
    left_out = [one for one in letters if one not in written]
    around = known.elsewhere, known.nearby
    if not known.infers and all(writes_sums_over(one, *around) for one in left_out):
        return ""
    return (
        f"does it have a sum over {' and '.join(left_out)}? Write \\sum, or if the text sums over "
        f"repeated indices, say: sums implied{more}"
    )


_SUM = re.compile(r"\\sum_\{(\w)\}")


def _at_a_point(chain: Chain) -> str:
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
                    if (
                        before.data == "partial"
                        and factor.data == "bracket"
                        and not expression.part.between(before, factor).strip()
                        and not of_loss(expression, before)
                    ):
                        return (
                            "is the bracket after the derivative a factor, or the point at "
                            r"which it is taken? Write a factor with \cdot"
                        )
    return ""


def _grouped(known: Knowledge, equation: Equation, part: Part) -> str:
    """Return what to say if the members are equal with brackets in place of braces;
    otherwise ""."""
    first, anchor = equation.first, equation.anchor
    choices = [
        {one, known.grouped.get(one, one)} for one in (equation.first, anchor, part)
    ]
    if all(len(choice) == 1 for choice in choices):
        return ""
    for anchor, part in itertools.product(*choices[1:]):
        first = anchor if equation.first == equation.anchor else first
        if agree(known, first, anchor, part, equation.beside):
            return (
                "it holds only if braces group, but they print nothing: write brackets"
            )
    return ""


def _other_layout(known: Knowledge, equation: Equation, part: Part) -> str:
    """Return what to say if the members are equal in numerator layout; otherwise
    ""."""
    head, anchor = equation.head, equation.anchor
    if known.scope.layout or r"\partial" not in f"{anchor.text} {part.text}":
        return ""
    words = Part("numerator", 0, "numerator")
    with known.supposing(Line("layout", right=words)):
        if agree(known, head, anchor, part, equation.beside):
            return "it holds only in numerator layout: say layout numerator"
    return ""
