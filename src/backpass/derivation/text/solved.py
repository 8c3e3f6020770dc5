"""Derivatives that a text sets to 0 and solves below, though no sentence says so.

Such a line does not hold everywhere. It is asked about if a line below it in its
section is right because an equation above that line holds with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from backpass.derivation.text.contents import Document, Heading
from backpass.derivation.text.imposed import ASKS, ZERO
from backpass.derivation.text.verdict import Verdict

_HOLDS = re.compile(r"\bholds(?: with it)?\Z")
_HAT = re.compile(r"\\(?:wide)?hat\s*|[{}\s]|\^\s*\{?\s*(?:\*|\\star|\\ast)\s*\}?")


def asked_if_solved(document: Document, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the verdicts on a text, in which a refused derivative that is set to 0 and
    solved below is asked about."""
    heads = [one.start for one in document.items if isinstance(one, Heading)]
    solved = [
        (one.display, _HAT.sub("", one.left))
        for one in verdicts
        if one.kind in ("definition", "equal") and any(map(_HOLDS.search, one.inferred))
    ]

    def is_solved(verdict: Verdict) -> bool:
        sides = verdict.left, verdict.latex, verdict.compared
        if verdict.kind != "refused" or not any(map(ZERO.fullmatch, sides)):
            return False
        return any(
            max((at for at in heads if at < start), default=0)
            <= verdict.display
            <= start
            and _by(name).search(" ".join(sides)) is not None
            for start, name in solved
            if name
        )

    return [
        replace(one, kind="not readable", message=ASKS, counterexample=None)
        if is_solved(one)
        else one
        for one in verdicts
    ]


def _by(name: str) -> re.Pattern[str]:
    """Return a pattern for a derivative by a name."""
    return re.compile(
        r"(?:\\partial(?![a-zA-Z])|\\nabla\s*_|(?<![a-zA-Z])d)\s*\{?\s*"
        rf"(?:\\(?:mathbf|boldsymbol)\s*\{{\s*)?{re.escape(name)}(?![a-zA-Z])"
    )
