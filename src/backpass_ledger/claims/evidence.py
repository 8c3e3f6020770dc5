"""What a check finds about a claim, and the verdict that follows from it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from backpass_ledger.claims.tools import derives


@dataclass(frozen=True)
class Verdict:
    """A verdict on a claim, with a sign that stands beside its words on a page."""

    key: str
    words: str
    sign: str
    needs_truth: bool = True


TRUE = Verdict("true", "true", "✓", needs_truth=False)
CAVEAT = Verdict("caveat", "true with a caveat", "≈")
FALSE = Verdict("false", "false", "✗")
INCONSISTENT = Verdict("inconsistent", "inconsistent within the source", "≠")
LEFT_OUT = Verdict("left-out", "left out of its own accounting", "−")
UNCHECKABLE = Verdict("uncheckable", "cannot be checked here", "?")
VERDICTS = (TRUE, CAVEAT, FALSE, INCONSISTENT, LEFT_OUT, UNCHECKABLE)


@dataclass
class Evidence:
    """Collects what a check finds. Each method takes one finding.

    A claim is *true* if it holds as printed wherever it was tried; *true with a caveat*
    if it holds in the text's own setting and fails ``elsewhere``; *false* if it fails
    as printed and another statement is ``right``; *inconsistent* if it ``clashes`` with
    another place of the same text; *left out* if the text's own accounting lacks
    something that is not 0. A sentence that says *always*, *any*, *all*, *exactly*,
    *only*, or *cannot* is false if there is a counterexample, whatever the setting.
    Raises TypeError for a finding that is not a truth value.

    ``says`` and ``truth`` are the record's own sentences, whose equations ``derives``
    and ``derives_right`` judge: what the page shows is then what is checked.
    """

    says: str = field(default="", repr=False)
    truth: str = field(default="", repr=False)
    printed: list[bool] = field(default_factory=list)
    mended: list[bool] = field(default_factory=list)
    beyond: list[bool] = field(default_factory=list)
    clashing: list[bool] = field(default_factory=list)
    missing: list[Any] = field(default_factory=list)

    def as_printed(self, holds: Any) -> None:
        """Note whether the claim holds as printed."""
        self.printed.append(_truth(holds))

    def right(self, holds: Any) -> None:
        """Note whether the statement that we call right holds."""
        self.mended.append(_truth(holds))

    def elsewhere(self, holds: Any) -> None:
        """Note whether the claim holds in a case outside the text's setting, in which
        we say that it does not hold."""
        self.beyond.append(_truth(holds))

    def clashes(self, differ: Any) -> None:
        """Note whether two places of the same text differ."""
        self.clashing.append(_truth(differ))

    def left_out(self, amount: Any) -> None:
        """Note what the text's own accounting lacks: a number or a formula."""
        self.missing.append(amount)

    def derives(self, definitions: str = "") -> None:
        """Note whether ``backpass derive`` accepts the equations of the claim.
        ``definitions`` declares their names, in the syntax of the command's
        comments."""
        self.as_printed(derives(_display(self.says), definitions))

    def derives_right(self, definitions: str = "") -> None:
        """Do the same for the equations of the right statement."""
        self.right(derives(_display(self.truth), definitions))

    @property
    def verdict(self) -> Verdict:
        """The verdict that the findings support. Raises ValueError if they support
        none, because what we call right is wrong, or a finding is missing."""
        if not all(self.mended):
            raise ValueError(f"what the record calls right does not hold: {self}")
        if self.clashing:
            return self._only(INCONSISTENT, all(self.clashing))
        if self.missing:
            return self._only(LEFT_OUT, all(amount != 0 for amount in self.missing))
        if self.beyond:
            holds = bool(self.printed) and all(self.printed) and not any(self.beyond)
            return self._only(CAVEAT, holds)
        if not all(self.printed):
            return self._only(FALSE, bool(self.mended))
        return TRUE if self.printed else UNCHECKABLE

    def _only(self, verdict: Verdict, supported: bool) -> Verdict:
        if not supported:
            raise ValueError(f"the findings do not support “{verdict.words}”: {self}")
        return verdict


def equations_of(text: str) -> list[str]:
    """Return the formulas of a text that have an equals sign outside all braces. Raises
    ValueError if there is none."""
    formulas = re.findall(r"\$([^$]+)\$", text)
    found = [formula for formula in formulas if "=" in _outside_braces(formula)]
    if not found:
        raise ValueError(f"expected an equation between dollar signs; got {text!r}")
    return found


def _display(text: str) -> str:
    return r" \\ ".join(equations_of(text))


def _outside_braces(formula: str) -> str:
    depth, outside = 0, ""
    for sign in formula:
        depth += (sign == "{") - (sign == "}")
        outside += "" if depth else sign
    return outside


def _truth(holds: Any) -> bool:
    if not isinstance(holds, bool | np.bool_):
        raise TypeError(f"expected True or False; got {holds!r}")
    return bool(holds)
