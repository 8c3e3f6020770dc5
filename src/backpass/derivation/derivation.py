"""`derive`: a derivation, read, checked, and ready to be shown."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterator
from functools import cached_property

from backpass.derivation import flips, show
from backpass.derivation.check import (
    Chain,
    Sizes,
    chains_of,
    mistakes,
    report,
    scope_of,
    trial_sizes,
)
from backpass.derivation.evaluate import Evaluator
from backpass.derivation.flips import Flip, Survivor
from backpass.derivation.names import Scope
from backpass.derivation.operation import Operation
from backpass.derivation.parse import DerivationError, Line, Part, Unreadable, read
from backpass.derivation.steps import Changes, changes


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
    """Read and check a derivation, and return what shows it.

    - `text`: its lines, as `backpass.derivation.parse` describes them.
    - `name`: of its anchors (#softmax-3) and its error messages: letters, digits and hyphens.
    - `after`: an earlier derivation, whose declarations and definitions go on.
    - `operation`: a stem of `backpass.ops`, whose `forward` the output's definition and whose `backward` the last line
      for each input must be; `names` maps its names to the derivation's (`{"x": "Q"}`), `options` gives forward's
      options, a string being a name of the derivation (`{"eps": r"\\epsilon"}`).
    - `forward`: a stem whose `forward` alone the output's definition must be, where no gradient is derived.
    - `sizes`: the sizes of the dimensions to check at, each at least 2, instead of three trials of 2, 3 and 4.

    Lines number through the notebook: a derivation begins where the last new one ended, and keeps its numbers when its
    cell is run again.

    Raises `Unreadable` for text that cannot be read or has no meaning, and `DerivationError` for wrong lines. Its message
    reports each of them, and its `derivation` shows them marked.
    """
    derivation = Derivation(
        text, name, after, operation, forward, names, options, sizes
    )
    derivation.first_number = _first_number(derivation)
    try:
        derivation.check()
    except DerivationError:
        del _numbered[
            derivation.name, derivation.text
        ]  # what is refused takes no numbers
        raise
    return derivation


_numbered: dict[
    tuple[str, str], tuple[int, int]
] = {}  # of this process: each name and text, first number, count


def _first_number(derivation: Derivation) -> int:
    key = derivation.name, derivation.text
    if key not in _numbered:
        taken = sum(count for _, count in _numbered.values())
        _numbered[key] = taken + 1, sum(line.numbered for line in derivation.lines)
    return _numbered[key][0]


POINTS = 4  # around which the cases of a derivation are checked: two at random, and their opposites


class Derivation:
    """A derivation. In a notebook it shows itself typeset; `str` gives its LaTeX; `lines` are its own lines."""

    def __init__(
        self,
        text: str,
        name: str,
        after: Derivation | None = None,
        operation: str | None = None,
        forward: str | None = None,
        names: dict[str, str] | None = None,
        options: dict[str, object] | None = None,
        sizes: list[Sizes] | None = None,
    ) -> None:
        if not isinstance(text, str):
            raise TypeError(
                f"text: expected a derivation's lines; got {type(text).__name__}"
            )
        if after is not None and not isinstance(after, Derivation):
            raise TypeError(
                f"after: expected an earlier derivation, what derive returned; got {after!r}"
            )
        if not (
            sizes is None
            or (isinstance(sizes, list) and all(isinstance(one, dict) for one in sizes))
        ):
            raise TypeError(
                f"sizes: expected a list such as [{{'n': 2}}, {{'n': 3}}]; got {sizes!r}"
            )
        if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            raise ValueError(
                f"name: expected small letters, digits and hyphens, for anchors; got {name!r}"
            )
        self.text, self.name, self.after = (
            textwrap.dedent(text).strip("\n"),
            name,
            after,
        )
        self.operation, self.forward, self.names, self.options = (
            operation,
            forward,
            names or {},
            options or {},
        )
        self.sizes = sizes if sizes is not None or after is None else after.sizes
        self.wrong: frozenset[Part] = frozenset()  # the right sides found wrong
        self.lines = self._named(lambda: read(self.text))
        self.first_number = 1 + sum(
            line.numbered for line in (after.all_lines if after else [])
        )
        if not self.lines:
            raise ValueError(f"{name}: expected lines of a derivation; got none")

    @property
    def all_lines(self) -> list[Line]:
        """The lines of the derivations before this one, then its own."""
        return [*(self.after.all_lines if self.after else []), *self.lines]

    @property
    def places(self) -> list[tuple[str, int]]:
        """For each of `all_lines`, the name of its derivation and its number there, or that of the next numbered line."""
        found, number = [], self.first_number
        for line in self.lines:
            found.append((self.name, number))
            number += line.numbered
        return [*(self.after.places if self.after else []), *found]

    @cached_property
    def steps(self) -> dict[int, tuple[int, Changes]]:
        """For each of `all_lines` that is a step, by position: the position of the line that it follows from, and what
        changed between the two."""
        found = {}
        for chain in self.chains:
            for at, (above, here) in enumerate(
                itertools.pairwise(chain.lines), start=1
            ):
                found[here] = above, changes(*chain.expressions[at : at + 2])
        return found

    @cached_property
    def defined(self) -> tuple[Scope, dict[tuple[int, ...], Evaluator]]:
        """What it declares and defines, and the evaluators made for that so far."""
        return scope_of(self.all_lines)

    @property
    def scope(self) -> Scope:
        """What it declares and defines."""
        return self.defined[0]

    @cached_property
    def chains(self) -> list[Chain]:
        """All statements with their steps, those of the derivations before it included."""
        return chains_of(self.all_lines, self.scope)

    @property
    def _comparisons(self) -> list[tuple[Part, int]]:
        """Each \\max(a, b) and [a > b], by its part and position."""
        defined = [v.definition for v in self.scope.variables.values() if v.definition]
        expressions = [
            *defined,
            *(expression for chain in self.chains for expression in chain.expressions),
        ]
        return [
            (expression.part, tree.meta.start_pos)
            for expression in expressions
            for tree in expression.comparisons
        ]

    def evaluators(self) -> list[Evaluator]:
        """One for each assignment of sizes; where a line goes by a sign, one for each of several points as well."""
        draws = range(POINTS) if self._comparisons else [None]
        trials = self.sizes or trial_sizes(self.scope)
        return [self.evaluator(sizes, draw) for sizes in trials for draw in draws]

    def evaluator(self, sizes: Sizes, draw: int | None) -> Evaluator:
        """The evaluator at some sizes around a point, shared among derivations with the same definitions."""
        scope, known = self.defined
        if sizes.keys() != set(scope.dimensions) or min(sizes.values(), default=2) < 2:
            raise DerivationError(
                f"sizes: expected at least 2 for each of {scope.dimensions}; got {sizes}"
            )
        key = (*sizes.items(), draw)
        if key not in known:
            known[key] = Evaluator(scope, sizes, draw)
        return known[key]

    def check(self) -> None:
        """Check every line of its own and, if it is bound to one, the operation. Raises `DerivationError`."""
        self.check_lines(len(self.all_lines) - len(self.lines))
        if self.operation or self.forward:
            self.verify_operation()
        self._named(self._refuse_one_sided)

    def _refuse_one_sided(self) -> None:
        """Raise `Unreadable` where a comparison came out the same way at every point: one of its cases went unchecked."""
        evaluators = self.evaluators()
        for part, position in self._comparisons:
            met = set().union(
                *(
                    evaluator.signs.get((part, position), set())
                    for evaluator in evaluators
                )
            )
            if met in ({1}, {-1}):
                way = "positive" if 1 in met else "negative"
                message = f"this difference is {way} at all {len(evaluators)} points tried: one case went unchecked"
                raise Unreadable(message, part, position)

    def check_lines(self, first: int = 0) -> None:
        """Check the statements of all lines from the `first` on."""

        def check() -> None:
            evaluators = self.evaluators()
            reports: dict[Part, str] = {}
            try:
                for chain in self.chains:
                    if chain.lines[-1] >= first:
                        self._check_chain(chain, evaluators, reports)
            except Unreadable as error:
                if not reports:
                    raise
                reports[error.part] = str(error)
            if reports:
                self.wrong = frozenset(reports)
                raise DerivationError("\n\n".join(reports.values()))

        self._named(check)

    def _check_chain(
        self, chain: Chain, evaluators: list[Evaluator], reports: dict[Part, str]
    ) -> None:
        """Add a report for each wrong line, in their order."""
        if not any(True for evaluator in evaluators for _ in chain.cases(evaluator)):
            raise Unreadable("no indices meet the conditions", chain.conditions.part)
        found: dict[Part, str] = {}
        try:
            for evaluator in evaluators:
                for mistake in mistakes(chain, evaluator):
                    if mistake.part not in found:
                        found[mistake.part] = report(mistake, evaluator)
        finally:
            reports |= {
                e.part: found[e.part] for e in chain.expressions if e.part in found
            }

    def verify_operation(self) -> None:
        """Check that the output's definition is `forward` and, unless only that is bound, that the last lines are
        `backward`, exactly."""
        stem = self.operation or self.forward
        if not stem:
            raise DerivationError(
                f"{self.name}: not bound to an operation; give operation=…"
            )

        def verify() -> None:
            bound = Operation(stem, self.scope, self.names, self.options)
            for evaluator in self.evaluators():
                if self.operation:
                    bound.verify(evaluator, self.chains)
                else:
                    bound.verify_forward(evaluator)

        self._named(verify)

    def flips(self) -> Iterator[Flip]:
        """Every single mistake in its lines, and in those of the derivations before it."""
        return flips.flips(self)

    def survivors(self) -> list[Survivor]:
        """The flips that no check notices, each with whether it changes no value."""
        return flips.survivors(self)

    def _named(self, work):
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
