"""Conditions on numbers beside an equation, such as x > 0, x < 0, and x > y.

For x < 0, the sides are compared with -x in place of x, where x is positive; for x > y,
with y + x.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from backpass.derivation.language.analysis import Analysis
from backpass.derivation.language.parse import Part, Unreadable, parse, span_of
from backpass.derivation.language.written import subscripts_of
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.passages import Text

_SIGN = re.compile(
    r"\s*(?:(?P<name>[^<>=,]+?)\s*(?:>|\\geq?(?![a-zA-Z]))\s*0"
    r"|0\s*(?:<|\\leq?(?![a-zA-Z]))\s*(?P<last>[^<>=,]+?))\s*"
)
_SIDE = r"(?:[^<>=,\\]|\\(?!(?:[lg]eq?|neq?)(?![a-zA-Z])))+?"
_BELOW = r"(?:<|\\leq?(?![a-zA-Z]))"
_ABOVE = r"(?:>|\\geq?(?![a-zA-Z]))"
_ORDER = re.compile(
    rf"\s*(?P<first>{_SIDE})\s*(?:(?P<below>{_BELOW})|{_ABOVE})\s*(?P<second>{_SIDE})\s*"
)
_UNLIKE = re.compile(r"\s*([^<>=,]+?)\s*\\neq?(?![a-zA-Z])\s*([^<>=,]+?)\s*")


def without_signs(
    known: Knowledge, condition: Text, members: Iterable[Text]
) -> tuple[Text, tuple[str, ...], dict[str, str]]:
    """Return a condition without the comparisons of declared names with 0, and with
    numbers; the names that are positive, and what is in place of some of them.

    Sides are compared only where these names are positive. A name that differs from 0,
    or from another one, needs no condition, because single points are not compared.
    """
    left: list[Text] = []
    positive: list[str] = []
    instead: dict[str, str] = {}
    for piece in condition.split(","):
        if match := _SIGN.fullmatch(piece.characters):
            name = _declared(known, match["name"] or match["last"], members)
            if name:
                positive.append(name)
                continue
        elif match := _UNLIKE.fullmatch(piece.characters):
            one, other = match.groups()
            if _declared(known, one, ()) and (
                other == "0" or _declared(known, other, ())
            ):
                continue
        if new := _in_order(known, piece.characters):
            if not {*new} & {*positive, *instead}:
                instead |= new
                continue
        left.append(piece)
    if len(left) == len(condition.split(",")):
        return condition, (), {}
    whole = Text("", ())
    for piece in left:
        whole = whole + (
            Text(",", piece.origins[:1]) + piece if whole.characters else piece
        )
    return whole, tuple(positive), instead


def _in_order(known: Knowledge, piece: str) -> dict[str, str]:
    """Return what is in place of a declared number for a comparison with another one
    or with a numeral; {} if a piece is not one."""
    match = _ORDER.fullmatch(piece)
    if match is None:
        return {}
    first, second, is_below = match["first"], match["second"], bool(match["below"])
    if not _is_number(known, first):
        first, second, is_below = second, first, not is_below
    is_numeral = re.fullmatch(r"[0-9]+", second) is not None
    if not _is_number(known, first) or first == second:
        return {}
    if not (is_numeral or _is_number(known, second)):
        return {}
    if is_numeral and int(second) == 0:
        second = ""
    return {first: f"{second} {'-' if is_below else '+'} {first}"}


def _is_number(known: Knowledge, written: str) -> bool:
    name = _declared(known, written, ())
    return name == written and not known.scope.variables[name].shape


def with_names(known: Knowledge, part: Part, instead: Mapping[str, str]) -> Part:
    """Return a side with what is in place of some names. Raises `Unreadable` where a
    definition needs one of them."""
    scope = known.scope
    (expression,) = Analysis(scope).run([part])
    bodies = {r.name for one in expression.parts[1:] for r in one.references.values()}
    for name in known.used([expression]) - {*instead}:
        bodies |= scope.upstream([scope.variables[name]]) - {name}
    if bodies & {*instead}:
        name = min(bodies & {*instead})
        raise Unreadable(f"a condition on {name} does not hold in definitions", part)
    found = []
    for node in parse(part).iter_subtrees():
        if node.data in ("reference", "scalar"):
            reference = scope.resolve(node)
            if reference is not None and reference.name in instead:
                found.append((*span_of(node), instead[reference.name]))
    text = part.text
    for start, end, new in sorted({*found}, reverse=True):
        text = rf"{text[:start]}\left({new}\right){text[end:]}"
    return replace(part, text=text)


def _declared(known: Knowledge, written: str, members: Iterable[Text]) -> str:
    """Return the declared name that is compared, as an array or by all its elements;
    "" if it is not one, or if only one of its elements may be meant."""
    try:
        tree = parse(Part(written, 0, written), "moved")
    except Unreadable:
        return ""
    found = known.scope.resolve(tree)
    if found is None or found.kind != "variable" or found.accent:
        return ""
    variable = known.scope.variables[found.name]
    if variable.kind not in ("given", "constant"):
        return ""
    letters = [str(token) for token in subscripts_of(tree)] if found.indices else []
    if letters and not all(
        _has_only(known, member, found.name, letters) for member in members
    ):
        return ""
    return found.name


def _has_only(known: Knowledge, member: Text, name: str, letters: list[str]) -> bool:
    """Whether a member uses of a name only the element with these indices."""
    scope = known.scope
    try:
        nodes = [*parse(known.part(member)).iter_subtrees()]
    except Unreadable:
        return False
    for node in nodes:
        if node.data not in ("reference", "scalar", "power_of_name", "power"):
            continue
        found = scope.resolve(node)
        if found is None:
            continue
        if found.kind == "loss" or found.accent:
            return False
        if found.kind != "variable":
            continue
        if found.name == name and [str(one) for one in found.indices] != letters:
            return False
        if found.name != name and name in scope.upstream([scope.variables[found.name]]):
            return False
    return True
