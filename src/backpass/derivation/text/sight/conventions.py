"""Conventions that a text may follow without saying so: implied sums, and partial
derivatives that hold other names constant."""

from __future__ import annotations

import re
from collections.abc import Iterable

from backpass.derivation.language.parse import Unreadable
from backpass.derivation.text.einstein import is_denied, with_sums
from backpass.derivation.text.knowledge import Knowledge
from backpass.derivation.text.sight.prose import Prose
from backpass.derivation.text.statements import Statement
from backpass.derivation.text.verdict import Verdict

SUMS = "sums implied"
DIRECT = "partial direct"
TEXTS = {
    SUMS: "repeated indices are summed over",
    DIRECT: "a partial derivative holds other names constant",
}
# A text that sums over repeated indices names such a notation, or contains no sum.
_INDICES = re.compile(
    r"\b(?:index|indicial|tensor|component)[\s-]+(?:notation|calculus)"
    r"|\bsum\w*\s+over\s+(?:\w+\s+){0,3}ind(?:ex|ices)\b|\btensor\s+(?:product|contraction)s?\b",
    re.I,
)
_SUM = re.compile(r"\\(?:sum|prod|int)(?![a-zA-Z])")
_ASKS_FOR_SUMS = re.compile(
    r"does it have a sum over|the index \w+ is (?:only on the|not on the left)"
    r"|the index \w+ is on this side only"
)
_PARTIAL = re.compile(r"\\partial(?![a-zA-Z])")
_HELD = re.compile(
    r"\b(?:hold|held|keep|kept|treat|fix|leav)\w*\b[^.]{0,60}?\b(?:constant|fixed|independent)\b"
    r"|\blocal (?:gradient|derivative|partial)s?\b|\btotal derivatives?\b",
    re.I,
)
# A derivative by d or by a nabla goes through every definition.
_TOTAL = re.compile(r"\\nabla(?![a-zA-Z])|\{\s*(?:d|\\mathrm\s*\{?\s*d)(?![a-zA-Z])")


def wanted(verdict: Verdict, known: Knowledge, prose: Prose, usual: bool) -> str:
    """Return the directive of the convention that may make a line right; "" if none.

    `usual` says whether repeated indices are summed over in other lines.
    """
    now = known.now
    first = verdict.message.partition("\n")[0]
    if verdict.kind == "not readable" and _ASKS_FOR_SUMS.search(first):
        return SUMS if not now.summed and may_imply_sums(known, prose) else ""
    holds = may_hold(verdict.left + verdict.latex)
    if verdict.kind == "not readable" and holds and "partial total" in first:
        return "" if now.total or known.scope.direct else DIRECT
    if verdict.kind == "refused" and usual and not now.summed:
        return SUMS
    if verdict.kind == "refused" and holds:
        return "" if now.total or known.scope.direct else DIRECT
    return ""


def may_hold(text: str) -> bool:
    """Whether a formula may hold names constant that depend on what it differentiates
    by: all of its derivatives are partial."""
    return bool(_PARTIAL.search(text)) and not _TOTAL.search(text)


def holds_by(variables: set[str], formulas: Iterable[str], prose: Prose) -> bool:
    """Whether a text says that partial derivatives by some names hold others constant:
    it writes derivatives by them as sums over paths, or says so in words."""
    if _HELD.search(prose.words):
        return True
    added = [one for one in formulas if "+" in one]
    return all(
        any(len(_by(name).findall(one)) > 1 for one in added) for name in variables
    )


def _by(name: str) -> re.Pattern[str]:
    return re.compile(
        rf"\\frac\s*\{{\s*\\partial(?:[^{{}}]|\{{[^{{}}]*\}})*\}}"
        rf"\s*\{{\s*\\partial\s*\{{?\s*{re.escape(name)}(?![a-zA-Z])"
    )


def may_imply_sums(known: Knowledge, prose: Prose) -> bool:
    """Whether a text may sum over repeated indices without a sum sign."""
    if is_denied(known.source):
        return False
    if not _SUM.search(known.source):
        return True
    return bool(_INDICES.search(prose.words))


def that_matter(
    conventions: frozenset[str], known: Knowledge, statement: Statement
) -> bool:
    """Whether each of several conventions may change the meaning of a statement."""
    text = " ".join(member.characters for member in statement.members)
    if DIRECT in conventions and not may_hold(text):
        return False
    if SUMS not in conventions:
        return True
    try:
        first, *rest = (
            known.without_membership(member)[0] for member in statement.members
        )
    except Unreadable:
        return False
    return any(with_sums(first, first, one) != (first, first, one) for one in rest)
