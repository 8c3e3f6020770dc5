"""`derive` reads a derivation, checks it, and returns an object that shows it."""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from backpass.derivation.book import flips, show
from backpass.derivation.book.flips import Flip, Survivor
from backpass.derivation.book.operation import Operation
from backpass.derivation.book.steps import Changes, changes
from backpass.derivation.equality.check import (
    Chain,
    Evaluators,
    Sizes,
    chains_of,
    evaluators_in,
    mistakes,
    reject_empty,
    report,
    trial_sizes,
)
from backpass.derivation.equality.comparing import elsewhere, of_both_results
from backpass.derivation.language.evaluate import Evaluator
from backpass.derivation.language.names import Expression, Scope
from backpass.derivation.language.parse import (
    DerivationError,
    Line,
    Part,
    Unreadable,
    read,
)

_Result = TypeVar("_Result")


def derive(
    text: str,
    *,
    name: str,
    after: Derivation | None = None,
    operation: str | None = None,
    forward: str | None = None,
    names: dict[str, str] | None = None,
    options: dict[str, object] | None = None,
    sizes: list[Sizes] | None = None,
) -> Derivation:
    """Read and check a derivation; return an object that shows it.

    - `text`: its lines, as `backpass.derivation.language.parse` describes them.
    - `name`: the name in its anchors (#softmax-3) and error messages: small letters,
      digits and hyphens.
    - `after`: an earlier derivation, whose declarations and definitions remain valid.
    - `operation`: a stem of `backpass.ops`. The output's definition must be its
      `forward`, and the last line for each input its `backward`.
    - `names`: a dict from the operation's names to the derivation's (`{"x": "Q"}`).
    - `options`: forward's options; a string among them is a name of the derivation
      (`{"eps": r"\\epsilon"}`).
    - `forward`: a stem whose `forward` the output's definition must be, if no gradient
      is derived.
    - `sizes`: the sizes of the dimensions to check at, each at least 2, instead of
      three trials with sizes 2, 3 and 4.

    Line numbers run through the notebook: a derivation continues after the last new
    one, and keeps its numbers when its cell is run again.

    Raises `Unreadable` for text that cannot be read or has no meaning, and
    `DerivationError` for wrong lines; its message reports each of them, and its
    `derivation` shows them marked.
    """
    derivation = Derivation(
        text, name, after, operation, forward, names, options, sizes
    )
    derivation.first_number = _first_number(derivation)
    try:
        derivation.check()
    except DerivationError:
        # A wrong derivation does not use up numbers.
        del _numbered[derivation.name, derivation.text]
        raise
    return derivation


# The first number and the count of the lines of each derivation of this process, by its
# name and text.
_numbered: dict[tuple[str, str], tuple[int, int]] = {}


def _first_number(derivation: Derivation) -> int:
    key = derivation.name, derivation.text
    if key not in _numbered:
        taken = sum(count for _, count in _numbered.values())
        _numbered[key] = taken + 1, sum(line.numbered for line in derivation.lines)
    return _numbered[key][0]


# The points around which the cases of a derivation are checked: two random ones, and
# their opposites.
POINTS = 4


@dataclass(eq=False, repr=False)
class Derivation:
    """A derivation. A notebook shows it typeset, and `str` returns its LaTeX.

    `lines` are its own lines, without those of the derivations before it. `derive`
    describes the fields.
    """

    text: str
    name: str
    after: Derivation | None = None
    operation: str | None = None
    forward: str | None = None
    names: dict[str, str] | None = None
    options: dict[str, object] | None = None
    sizes: list[Sizes] | None = None

    def __post_init__(self) -> None:
        text, name, after, sizes = self.text, self.name, self.after, self.sizes
        if not isinstance(text, str):
            raise TypeError(
                f"text: expected a derivation's lines; got {type(text).__name__}"
            )
        if after is not None and not isinstance(after, Derivation):
            raise TypeError(
                "after: expected an earlier derivation, as derive returns it; "
                f"got {after!r}"
            )
        if not (
            sizes is None
            or (isinstance(sizes, list) and all(isinstance(one, dict) for one in sizes))
        ):
            raise TypeError(
                "sizes: expected a list such as [{'n': 2}, {'n': 3}]; "
                f"got {sizes!r}"
            )
        if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            raise ValueError(
                "name: expected small letters, digits and hyphens, for anchors; "
                f"got {name!r}"
            )
        self.text = textwrap.dedent(text).strip("\n")
        if sizes is None and after is not None:
            self.sizes = after.sizes
        self.wrong: frozenset[Part] = frozenset()  # the wrong right sides
        self.lines: list[Line] = self._named(lambda: read(self.text))
        before = after.all_lines if after else []
        self.first_number = 1 + sum(line.numbered for line in before)
        if not self.lines:
            raise ValueError(f"{name}: expected lines of a derivation; got none")

    @property
    def pieces(self) -> list[Derivation]:
        """The derivations before this one, in order, and this one."""
        return [*(self.after.pieces if self.after else []), self]

    @property
    def all_lines(self) -> list[Line]:
        """The lines of the derivations before this one, then its own."""
        return [line for piece in self.pieces for line in piece.lines]

    @property
    def places(self) -> list[tuple[str, int]]:
        """The name of the derivation and the number of each of `all_lines`.

        A line without a number has that of the next numbered line.
        """
        places = []
        for piece in self.pieces:
            number = piece.first_number
            for line in piece.lines:
                places.append((piece.name, number))
                number += line.numbered
        return places

    @cached_property
    def steps(self) -> dict[int, tuple[int, Changes]]:
        """For each step, by its position in `all_lines`: the position of the line that
        it follows from, and what changed between the two."""
        steps = {}
        for chain in self.chains:
            for at, (above, here) in enumerate(
                itertools.pairwise(chain.lines), start=1
            ):
                steps[here] = above, changes(*chain.expressions[at : at + 2])
        return steps

    @cached_property
    def known(self) -> Evaluators:
        """The evaluators created so far for the derivation's definitions."""
        return evaluators_in(self.all_lines)

    @property
    def scope(self) -> Scope:
        """The derivation's declarations and definitions."""
        return self.known.scope

    @cached_property
    def chains(self) -> list[Chain]:
        """All statements with their steps, also of the derivations before it."""
        return chains_of(self.all_lines, self.scope)

    @property
    def _comparing(self) -> list[Expression]:
        """The definitions and members that contain \\max(a, b) or [a > b]."""
        members = [e for chain in self.chains for e in chain.expressions]
        return [e for e in (*self.scope.definitions, *members) if e.compared]

    def evaluators(self) -> list[Evaluator]:
        """Return an evaluator for each assignment of sizes.

        If a line depends on a sign, there is one for each of several points as well.
        """
        draws = range(POINTS) if self._comparing else [None]
        trials = self.sizes or trial_sizes(self.scope)
        return [self.evaluator(sizes, draw) for sizes in trials for draw in draws]

    def evaluator(self, sizes: Sizes, draw: int | None) -> Evaluator:
        """Return the evaluator for these sizes and this point.

        Derivations with the same definitions share evaluators. Raises `DerivationError`
        unless there is a size of at least 2 for each dimension.
        """
        scope = self.scope
        if sizes.keys() != set(scope.dimensions) or min(sizes.values(), default=2) < 2:
            raise DerivationError(
                f"sizes: expected at least 2 for each of {', '.join(scope.dimensions)}; "
                f"got {sizes}"
            )
        return self.known.at(sizes, draw)

    def everywhere(self) -> Iterator[Evaluator]:
        """Yield all evaluators, the smallest sizes first, then those at further points
        if a line depends on a sign. Evaluate at each before you take the next."""
        evaluators = self.evaluators()
        evaluators.sort(key=lambda evaluator: math.prod(evaluator.sizes.values()))
        yield from evaluators
        # A copy, so that the next flip does not evaluate at this one's points.
        copy = replace(self.known, known={**self.known.known})
        yield from elsewhere(copy, self._comparing, evaluators)

    def at(self, evaluator: Evaluator) -> Evaluator:
        """Return this derivation's evaluator for the sizes and the point of an
        evaluator of a different derivation."""
        if evaluator.point is None:
            return self.evaluator(evaluator.sizes, None)
        found = Evaluator(self.scope, evaluator.sizes, evaluator.draw)
        assert found.point is not None
        found.point.update(evaluator.point)
        return found

    def check(self) -> None:
        """Check its own lines and, if it is bound to an operation, the operation.

        Raises `DerivationError`.
        """
        self._named(self._check)

    def _check(self) -> None:
        evaluators = self.evaluators()
        self._check_at(evaluators)
        for chain in self.chains:
            reject_empty(chain, evaluators)
        for further in (of_both_results, elsewhere):
            for evaluator in further(self.known, self._comparing, evaluators):
                self._check_at([evaluator])

    def _check_at(self, evaluators: Sequence[Evaluator]) -> None:
        self._check_lines(evaluators)
        if self.operation or self.forward:
            self._verify_operation(evaluators)

    def _check_lines(self, evaluators: Sequence[Evaluator]) -> None:
        """Check the statements of its own lines."""
        first = len(self.all_lines) - len(self.lines)
        reports: dict[Part, str] = {}
        try:
            for chain in self.chains:
                if chain.lines[-1] >= first:
                    self._check_chain(chain, evaluators, reports)
        except Unreadable as error:
            if not reports or error.part is None:
                raise
            reports[error.part] = str(error)
        if reports:
            self.wrong = frozenset(reports)
            raise DerivationError("\n\n".join(reports.values()))

    def _check_chain(
        self, chain: Chain, evaluators: Sequence[Evaluator], reports: dict[Part, str]
    ) -> None:
        """Add a report for each wrong line to `reports`, in order."""
        wrong: dict[Part, str] = {}
        try:
            for evaluator in evaluators:
                for mistake in mistakes(chain, evaluator):
                    if mistake.part not in wrong:
                        wrong[mistake.part] = report(mistake, evaluator)
        finally:
            reports |= {
                e.part: wrong[e.part] for e in chain.expressions if e.part in wrong
            }

    def verify_operation(self) -> None:
        """Check that the output's definition is `forward` exactly and, unless only
        `forward` is bound, that the last lines are `backward`."""
        self._named(lambda: self._verify_operation(self.everywhere()))

    def _verify_operation(self, evaluators: Iterable[Evaluator]) -> None:
        stem = self.operation or self.forward
        if not stem:
            raise DerivationError("not bound to an operation; give operation=…")
        for evaluator in evaluators:
            bound = Operation(stem, evaluator, self.names or {}, self.options or {})
            if self.operation:
                bound.verify(self.chains)
            else:
                bound.verify_forward()

    def flips(self) -> Iterator[Flip]:
        """Yield every flip of its lines and of those of the derivations before it."""
        return flips.flips(self)

    def survivors(self) -> list[Survivor]:
        """Return the flips that no check notices, with equivalent ones marked."""
        return flips.survivors(self)

    def _named(self, work: Callable[[], _Result]) -> _Result:
        """Return what ``work`` returns, with the derivation's name in its errors."""
        try:
            return work()
        except DerivationError as error:
            named = (Unreadable if isinstance(error, Unreadable) else DerivationError)(
                f"{self.name}: {error}"
            )
            named.derivation = self
            raise named from None

    def __str__(self) -> str:
        return show.text(self)

    def __repr__(self) -> str:
        return f"<derivation {self.name}, {len(self.lines)} lines>"

    def _repr_html_(self) -> str:
        return show.html(self)
