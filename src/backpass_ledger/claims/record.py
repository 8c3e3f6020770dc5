"""A claim of a text, as a function: its docstring says what the text claims and what is
right, its decorator says where and with which verdict, and its body checks both.

::

    @claim("§2", FALSE, topic="softmax", page="operations/softmax", harm=3)
    def F7(it: Evidence) -> None:
        r\"\"\"The entries of softmax's Jacobian are positive.

        Those off the diagonal are negative.
        \"\"\"
        a = softmax(numbers(5))
        jacobian = np.diag(a) - np.outer(a, a)
        it.as_printed((jacobian > 0).all())
        it.right((jacobian - np.diag(np.diag(jacobian)) <= 0).all())

The name is the claim's number. The first paragraph of the docstring is the claim, in
our words; the others say what is right. Each number of three or more digits, or with a
decimal point, has to be in the body too, so that a check holds it.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from backpass_ledger.claims.evidence import UNCHECKABLE, VERDICTS, Evidence, Verdict

TOPICS = (
    "activations",
    "attention",
    "chain rule",
    "clipping",
    "debugging",
    "embeddings",
    "feed-forward",
    "flash",
    "FLOPs",
    "loss",
    "matmul",
    "memory",
    "norms",
    "notation",
    "optimiser",
    "parallel",
    "positions",
    "precision",
    "recomputation",
    "residual",
    "softmax",
    "time",
    "training",
)
_NAME = re.compile(r"[A-Z][1-9]\d*")
# 1,024 and 1{,}024 and 1\,024 are one number; x_{12} and 2^{-10} have too few digits.
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\}|\\,|\u202f)(?=\d{3}(?!\d))")
_FIGURE = re.compile(r"(?<![\w.])(?:\d+\.\d+|\d{3,})(?![\w]*\d)")
_YEAR = re.compile(r"\((?:19|20)\d\d\)")

Check = Callable[[Evidence], None]


class WrongVerdict(Exception):
    """What a claim's check found is not the verdict that its record gives."""


@dataclass(frozen=True)
class Claim:
    """One claim. ``harm`` is from 0 to 10: what believing it costs a reader."""

    name: str
    where: str  # in the text
    verdict: Verdict
    topic: str
    page: str  # the chapter with the right derivation, below chapters/
    harm: int
    says: str
    truth: str  # "" where nothing has to be added
    shown_by: tuple[str, ...]  # tests, as file::name below tests/
    check: Check

    def run(self) -> Evidence:
        """Run the check. Raises WrongVerdict unless it supports the verdict."""
        found = Evidence()
        self.check(found)
        if found.verdict is not self.verdict:
            raise WrongVerdict(
                f"{self.name}: the record says {self.verdict.words}; its check finds "
                f"{found.verdict.words}: {found}"
            )
        return found

    @property
    def number(self) -> int:
        """The number in the name."""
        return int(self.name[1:])

    @cached_property
    def code(self) -> str:
        """The body of the check, without its docstring."""
        lines = inspect.getsource(self.check).split("\n")
        function = ast.parse(textwrap.dedent("\n".join(lines))).body[0]
        assert isinstance(function, ast.FunctionDef)
        body = function.body[1:]
        if not body:
            return ""
        first = function.body[0].end_lineno or 0
        return textwrap.dedent("\n".join(lines[first : body[-1].end_lineno])).strip(
            "\n"
        )

    def unchecked_figures(self) -> list[str]:
        """Return the numbers of the text that do not occur in the body of the check."""
        known = {
            abs(float(node.value))
            for node in ast.walk(ast.parse(self.code))
            if isinstance(node, ast.Constant)
            and isinstance(node.value, int | float)
            and not isinstance(node.value, bool)
        }
        return [
            figure
            for figure in figures(f"{self.says}\n{self.truth}")
            if float(figure) not in known
        ]


def figures(text: str) -> list[str]:
    """Return the numbers in a text that have three or more digits or a decimal point.
    Years in parentheses and code are left out."""
    text = _THOUSANDS.sub("", _YEAR.sub("", re.sub(r"`[^`]*`", "", text)))
    return _FIGURE.findall(text)


def _in_one_line(paragraph: str) -> str:
    """Join the lines of a paragraph, so that none begins as an item of a list does: a
    formula may go on with a minus. Lists, tables, and blocks keep their lines."""
    if paragraph.lstrip().startswith(("- ", "1. ", "|", "```", "$$")):
        return paragraph
    return " ".join(paragraph.split())


def claim(
    where: str,
    verdict: Verdict,
    *,
    topic: str,
    page: str,
    harm: int = 0,
    shown_by: tuple[str, ...] = (),
) -> Callable[[Check], Claim]:
    """Make a claim of a check. Raises ValueError for a record that is not complete."""

    def made(check: Check) -> Claim:
        name = check.__name__
        text = inspect.cleandoc(check.__doc__ or "")
        says, *truths = map(_in_one_line, text.split("\n\n"))
        truth = "\n\n".join(truths)

        def refuse(what: str, expected: object, got: object) -> None:
            raise ValueError(f"{name}: {what}: expected {expected}; got {got!r}")

        if not _NAME.fullmatch(name):
            refuse("name", "a capital and a number, such as F41", name)
        if verdict not in VERDICTS:
            refuse("verdict", "one of VERDICTS", verdict)
        if topic not in TOPICS:
            refuse("topic", f"one of {', '.join(TOPICS)}", topic)
        if not 0 <= harm <= 10:
            refuse("harm", "0 to 10", harm)
        if not says:
            refuse("docstring", "the claim, in our words", says)
        if verdict.needs_truth and not truth:
            refuse("docstring", "a second paragraph that says what is right", truth)
        found = Claim(
            name,
            where,
            verdict,
            topic,
            page,
            harm,
            says,
            truth,
            shown_by,
            check,
        )
        if bool(found.code) == (verdict is UNCHECKABLE):
            refuse("body", "a check, unless the claim cannot be checked", found.code)
        return found

    return made
