"""Conditions on the signs of names beside an equation, such as x > 0."""

from __future__ import annotations

import re
from collections.abc import Iterable

from backpass.derivation.language.parse import Part, Unreadable, parse
from backpass.derivation.language.written import subscripts_of
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.passages import Text

_SIGN = re.compile(
    r"\s*(?:(?P<name>[^<>=,]+?)\s*(?:>|\\geq?(?![a-zA-Z]))\s*0"
    r"|0\s*(?:<|\\leq?(?![a-zA-Z]))\s*(?P<last>[^<>=,]+?))\s*"
)
_UNLIKE = re.compile(r"\s*([^<>=,]+?)\s*\\neq?(?![a-zA-Z])\s*([^<>=,]+?)\s*")


def without_signs(
    known: Knowledge, condition: Text, members: Iterable[Text]
) -> tuple[Text, tuple[str, ...]]:
    """Return a condition without the comparisons of declared names with 0, and the
    names that it makes positive.

    Sides are compared only where these names are positive. A name that differs from 0,
    or from another one, needs no condition, because single points are not compared.
    """
    left: list[Text] = []
    positive: list[str] = []
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
        left.append(piece)
    if len(left) == len(condition.split(",")):
        return condition, ()
    whole = Text("", ())
    for piece in left:
        whole = whole + (
            Text(",", piece.origins[:1]) + piece if whole.characters else piece
        )
    return whole, tuple(positive)


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
