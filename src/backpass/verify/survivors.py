"""Find the single changes of a backward that a test does not notice.

This shows whether the test reaches every sign, factor, axis and sum of the backward.
"""

from __future__ import annotations

import ast
import copy
import inspect
import itertools
import json
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from backpass.text import terminal
from backpass.text.progress import Progress
from backpass.verify.checking import check
from backpass.verify.mutation import compiled, mutants, reached
from backpass.verify.report import NOT_RUN, PASSED, VerificationError, file_shown
from backpass.verify.subject import called, load

# Quick methods first: one comparison of gradients catches most changes. All methods run
# before a change counts as a survivor.
METHODS_BY_SPEED = (
    "pytorch",
    "autograd",
    "contract",
    "complex_step",
    "finite_difference",
    "symbolic",
)
_IF_SURVIVED = (
    "A change that survives has no effect at these inputs, or computes the same. Try "
    "other inputs; list the changes that compute the same as equivalent."
)


@dataclass(frozen=True)
class Change:
    """One change, with its function, its statement, and its place in a file."""

    function: str
    line: str
    change: str
    file: str
    number: int


@dataclass(frozen=True)
class Survey:
    """How many changes were made, and which ones the test did not notice.

    ``equivalent`` are changes that were not noticed and are listed as computing the
    same; ``survivors`` are the others.
    """

    name: str
    made: int
    survivors: tuple[Change, ...]
    equivalent: tuple[Change, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the test noticed every change that is not listed as equivalent."""
        return not self.survivors

    @property
    def summary(self) -> str:
        """How many changes were noticed, and how many were not."""
        noticed = self.made - len(self.survivors) - len(self.equivalent)
        summary = f"{noticed} of {self.made} changes noticed"
        for listed, how in (
            (self.equivalent, "listed as equivalent"),
            (self.survivors, "survived"),
        ):
            summary += f", {len(listed)} {how}" if listed else ""
        return summary

    def to_json(self, indent: int | None = 2) -> str:
        """Return the survey as JSON, in ASCII."""
        plain = {"name": self.name, "passed": self.passed, "summary": self.summary}
        return json.dumps({**plain, **asdict(self)}, indent=indent)

    def __repr__(self) -> str:
        lines: list[str] = []
        by_line = itertools.groupby(
            sorted(self.survivors, key=attrgetter("file", "number")),
            key=attrgetter("file", "number", "function", "line"),
        )
        for (file, number, function, line), survivors in by_line:
            lines += [f"✗ {file}:{number}, in {function}: {line}"]
            lines += [f"    {survivor.change}" for survivor in survivors]
        lines += [f"{'✓' if self.passed else '✗'} {self.name}: {self.summary}"]
        lines += [_IF_SURVIVED] * bool(self.survivors)
        return "\n".join(
            part for line in lines for part in terminal.folded(line, terminal.width())
        )


def mutate(
    op: object,
    test: Callable[[Any], object],
    *,
    equivalent: Sequence[Mapping[str, str]] = (),
) -> Survey:
    """Change one place of the backward at a time, and call ``test`` each time.

    The test notices a change if it raises an exception; a ``check`` in it is quicker
    with ``explain=False``. ``op`` is a pair ``(forward, backward)``, a module, a class
    or an object with both, or a ``torch.autograd.Function``. For a pair, the test
    receives an object with both. Functions of its module that the backward calls are
    changed too. ``equivalent`` lists changes that compute the same, each with its
    ``function``, ``line`` and ``change``.

    Raises TypeError if the backward has no source that can be changed, and whatever the
    test raises for the unchanged backward.
    """
    op = load(op)
    name = called(op, "backward")
    listed = {(of["function"], of["line"], of["change"]) for of in equivalent}
    survivors: list[Change] = []
    made = 0
    with Progress(f"checking {name}") as progress:
        test(_unchanged(op))
        for change, changed in changes(op):
            made += 1
            progress.now(f"change {made}, {len(survivors)} survived")
            if not _raises(test, changed):
                survivors.append(change)
    known = tuple(c for c in survivors if (c.function, c.line, c.change) in listed)
    others = tuple(change for change in survivors if change not in known)
    return Survey(name, made, others, known)


def by_check(
    drawn: Sequence[tuple[Sequence[object], Mapping[str, object]]],
    methods: Sequence[str] = METHODS_BY_SPEED,
    **keywords: Any,
) -> Callable[[object], None]:
    """Return a test for ``mutate`` that runs ``check`` at several inputs and options.

    ``keywords`` are passed on to ``check``.
    """

    def test(op: object) -> None:
        for method in methods:
            for inputs, options in drawn:
                # A changed backward may overwrite its inputs.
                given = copy.deepcopy(tuple(inputs))
                report = check(
                    op,
                    *given,
                    methods=[method],
                    options=options,
                    explain=False,
                    raises=False,
                    **keywords,
                )
                if any(row.verdict not in (PASSED, NOT_RUN) for row in report.rows):
                    raise VerificationError(report)

    return test


def changes(op: object) -> Iterator[tuple[Change, object]]:
    """Yield each single change, with the changed ``op``.

    The changes are of the backward, and of the functions of its module that it calls.
    """
    backward = _function(op)
    module = sys.modules[backward.__module__]
    found = [reached(module, name) for name in backward.__code__.co_names]
    helpers = {name: of for each in found for name, of in each.items()}
    others = [function for function in helpers.values() if function is not backward]
    for function in (backward, *others):
        for mutant in mutants(function):
            scope = compiled(mutant, module, inspect.getclosurevars(function).nonlocals)
            made = (
                scope["backward"]
                if function is backward
                else _compiled_in(scope, backward)
            )
            change = Change(
                f"{called(op, 'backward')}.{function.__name__}".removeprefix(
                    "backward."
                ),
                mutant.line,
                mutant.change,
                file_shown(function.__code__.co_filename),
                function.__code__.co_firstlineno + mutant.number - 1,
            )
            yield change, _with_backward(op, made)


def _unchanged(op: object) -> object:
    """Return ``op`` with its backward compiled from its source, unchanged."""
    backward = _function(op)
    module = sys.modules[backward.__module__]
    return _with_backward(op, _compiled_in({**vars(module)}, backward))


def _compiled_in(scope: dict[str, object], function: FunctionType) -> object:
    """Compile the function, with decorators, to look names up in ``scope``."""
    scope.update(inspect.getclosurevars(function).nonlocals)
    source = textwrap.dedent(inspect.getsource(function))
    exec(compile(source, f"<{function.__name__}>", "exec"), scope)
    return scope[function.__name__]


def _function(op: object) -> FunctionType:
    """Return the function of ``op.backward``, without decorators.

    Raises TypeError if its source cannot be changed.
    """
    backward: Any = getattr(op, "backward", None)
    function = inspect.unwrap(backward)
    function = getattr(function, "__func__", function)
    try:
        (parsed,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (TypeError, OSError, SyntaxError):
        parsed = None
    if not isinstance(parsed, ast.FunctionDef):
        raise TypeError(
            f"op: expected {called(op, 'backward')}.backward to be a function written with def in a "
            "file or cell"
        )
    return function


def _with_backward(op: object, backward: object) -> object:
    if isinstance(op, (ModuleType, SimpleNamespace)):
        return SimpleNamespace(**{**vars(op), "backward": backward})
    if isinstance(op, type):
        return type(op.__name__, (op,), {"backward": backward})
    changed = copy.copy(op)
    changed.__class__ = type(type(op).__name__, (type(op),), {"backward": backward})
    return changed


def _raises(test: Callable[[Any], object], op: object) -> bool:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            test(op)
        except Exception:
            return True
    return False
