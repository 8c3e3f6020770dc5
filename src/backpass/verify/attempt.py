"""Judge an answer to an exercise in one line."""

from __future__ import annotations

import html
from typing import Any

from backpass.verify.checking import check
from backpass.verify.page import report_html, summary
from backpass.verify.report import Report


class Attempt:
    """The verdict on an answer. ``right`` is whether its ``report`` passed."""

    def __init__(self, report: Report) -> None:
        self.report = report

    @property
    def right(self) -> bool:
        """Whether every check passed."""
        return self.report.passed

    @property
    def verdict(self) -> str:
        """The verdict in one line."""
        if self.right:
            return f"✓ Right: {summary(self.report)}."
        wrong = "; ".join(
            f"{where}: {what}" for _, where, what in self.report.remarks()
        )
        return f"✗ Not yet. {wrong or self.report.summary}"

    def __repr__(self) -> str:
        return self.verdict

    def _repr_html_(self) -> str:
        return (
            f'<div class="backpass-attempt"><p>{html.escape(self.verdict)}</p>'
            f"{report_html(self.report, shown=False)}</div>"
        )


def attempt(op: object, *inputs: Any, **options: Any) -> Attempt:
    """Check an answer to an exercise, and say in one line whether it is right.

    Takes what ``check`` takes. A wrong answer raises nothing; the line says which
    gradient is wrong and how, and the table of all checks is folded below it.
    """
    return Attempt(check(op, *inputs, raises=False, **options))
