"""A claim of a text has a row in a table and a function. The row gives the claim's
place and verdict. The docstring of the function says what the text claims and what is
right; the body checks both.

::

    CLAIMS = '''
    F7  false  3  softmax  operations/softmax  §2
    '''

    def F7(it: Evidence) -> None:
        '''The entries of softmax's Jacobian are positive.

        Those off the diagonal are negative.
        '''
        a = softmax(numbers(5))
        jacobian = np.diag(a) - np.outer(a, a)
        it.as_printed((jacobian > 0).all())
        it.right((jacobian - np.diag(np.diag(jacobian)) <= 0).all())

A row has the claim's number; its verdict; its harm, from 0 to 10, which is what
believing it costs a reader; its topic; the chapter with the right derivation; and its
place in the text. Two or more spaces separate the fields. In the function, the first
paragraph of the docstring is the claim, in our words; the other paragraphs say what is
right. Each number of three or more digits, or with a decimal point, must also occur in
the body, so that it cannot change without the check. ``it.derives(…)`` judges the
equations of the docstring as they stand. A module may have ``SHOWN_BY``: each line
names a test of the project, as ``file::name`` below ``tests/``, and the claims that it
demonstrates.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

from backpass_ledger.claims.evidence import (
    UNCHECKABLE,
    VERDICTS,
    Evidence,
    Verdict,
    equations_of,
)

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
    """The verdict of a claim's check differs from the recorded one."""


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
        found = Evidence(says=self.says, truth=self.truth)
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
        says, truth = self.says, self.truth
        if "it.derives(" in self.code:
            says = _without_equations(says)
        if "it.derives_right(" in self.code:
            truth = _without_equations(truth)
        return [
            figure
            for figure in figures(f"{says}\n{truth}")
            if float(figure) not in known
        ]


def _without_equations(text: str) -> str:
    """Return a text without the equations that its check judges as they stand."""
    for equation in equations_of(text):
        text = text.replace(f"${equation}$", "")
    return text


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


def claims_of(module: ModuleType) -> list[Claim]:
    """Return the claims of a module, in the order of its table. Raises ValueError for
    an incomplete row or docstring, a row without a function, or a function without a
    row."""
    shown: dict[str, list[str]] = {}
    for line in getattr(module, "SHOWN_BY", "").strip().splitlines():
        test, *names = line.split()
        for name in names:
            shown.setdefault(name, []).append(test)
    rows = (re.split(r" {2,}", line) for line in module.CLAIMS.strip().splitlines())
    found = [_claim(row, module, shown) for row in rows]
    listed = {claim.name for claim in found}
    for name, value in vars(module).items():
        own = getattr(value, "__module__", None) == module.__name__
        if own and _NAME.fullmatch(name) and name not in listed and value.__doc__:
            raise ValueError(f"{name}: expected a row in CLAIMS of {module.__name__}")
    return found


def _claim(
    row: Sequence[str], module: ModuleType, shown: Mapping[str, Sequence[str]]
) -> Claim:
    """Return the claim of a row of the table."""
    name = row[0]

    def reject(what: str, expected: object, got: object) -> None:
        raise ValueError(f"{name}: {what}: expected {expected}; got {got!r}")

    if len(row) != 6:
        reject(
            "row", "number, verdict, harm, topic, chapter, and place", "  ".join(row)
        )
    _, key, harm, topic, page, where = row
    if not _NAME.fullmatch(name):
        reject("number", "a capital letter and a number, such as F41", name)
    verdicts = {verdict.key: verdict for verdict in VERDICTS}
    if key not in verdicts:
        reject("verdict", f"one of {', '.join(verdicts)}", key)
    if topic not in TOPICS:
        reject("topic", f"one of {', '.join(TOPICS)}", topic)
    if not harm.isdecimal() or int(harm) > 10:
        reject("harm", "0 to 10", harm)
    if not hasattr(module, name):
        reject("check", f"a function {name} in {module.__name__}", None)
    check: Check = getattr(module, name)
    verdict, text = verdicts[key], inspect.cleandoc(check.__doc__ or "")
    says, *truths = map(_in_one_line, text.split("\n\n"))
    truth, tests = "\n\n".join(truths), tuple(shown.get(name, ()))
    if not says:
        reject("docstring", "the claim, in our words", says)
    if verdict.needs_truth and not truth:
        reject("docstring", "a second paragraph that says what is right", truth)
    found = Claim(
        name, where, verdict, topic, page, int(harm), says, truth, tests, check
    )
    if bool(found.code) == (verdict is UNCHECKABLE):
        reject("body", "a check, unless the claim cannot be checked", found.code)
    return found
