"""The FLOPs of a network as data: one row for each term, under any convention.

The rows come from the network's ``calls``, so their sum is what is counted when the
network runs. A convention turns the same rows into a number in its own way.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from backpass.contract.stems import no_such
from backpass.cost.again import calls_again
from backpass.cost.calls import calls_of, symbolic_calls
from backpass.cost.shown import Sheet, Shown
from backpass.cost.terms import (
    BACKWARD,
    FORWARD,
    RECOMPUTATION,
    WAYS,
    Term,
    terms_of,
)
from backpass.models.layers.calls import Part
from backpass.models.layers.recomputed import Recompute


class Row(NamedTuple):
    """A term in each of ``repeats`` equal parts of a network."""

    part: str
    repeats: Any
    term: Term

    @property
    def flops(self) -> Any:
        """The FLOPs that are counted, in all repeats."""
        return self.repeats * self.term.flops


class Convention(NamedTuple):
    """A way to count: ``of`` returns the FLOPs of a row."""

    says: str
    of: Callable[[Row], Any]


def _products(multiplications: Callable[[Any], Any]) -> Callable[[Row], Any]:
    """Count two FLOPs for each multiplication of the products and nothing else."""

    def of(row: Row) -> Any:
        product = row.term.product
        return 0 if product is None else 2 * row.repeats * multiplications(product)

    return of


# products-halved counts 1 FLOP for each multiplication under a mask: an integer.
CONVENTIONS = {
    "counted": Convention("what runs: a sum of n counts n − 1", lambda row: row.flops),
    "sum-n": Convention(
        "what runs: a sum of n counts n, so a product 2mnp",
        lambda row: row.repeats * (row.term.flops + row.term.sums),
    ),
    "products": Convention(
        "2mnp for each product that runs", _products(lambda p: p.run)
    ),
    "products-whole": Convention(
        "products with all of attention's scores", _products(lambda p: p.whole)
    ),
    "products-halved": Convention(
        "products with half of the scores if causal", lambda row: _halved(row)
    ),
    "products-triangle": Convention(
        "products with the scores that the mask leaves", _products(lambda p: p.visible)
    ),
}


def _halved(row: Row) -> Any:
    product = row.term.product
    if product is None:
        return 0
    multiplications = row.repeats * product.whole
    return multiplications if product.masked else 2 * multiplications


@dataclass(frozen=True, repr=False)
class Tally(Shown):
    """The rows of a network at given sizes: numbers, or SymPy symbols."""

    name: str
    rows: tuple[Row, ...]
    parameters: Any  # their number; a tied one counts once

    def flops(self, convention: str = "counted") -> dict[str, Any]:
        """Return the FLOPs of the forward, the backward, and the recomputation. Raises
        LookupError for an unknown convention."""
        if convention not in CONVENTIONS:
            raise LookupError(no_such("convention", convention, CONVENTIONS))
        of = CONVENTIONS[convention].of
        found: dict[str, Any] = dict.fromkeys(WAYS, 0)
        for row in self.rows:
            found[row.term.way] += of(row)
        return found

    def total(self, convention: str = "counted") -> Any:
        """Return the FLOPs of a step, without the optimiser's."""
        return sum(self.flops(convention).values())

    def ratio(self, convention: str = "counted") -> Any:
        """Return the backward's FLOPs, with recomputation, over the forward's."""
        flops = self.flops(convention)
        return (flops[BACKWARD] + flops[RECOMPUTATION]) / flops[FORWARD]

    def only(self, chosen: Callable[[Row], bool]) -> Tally:
        """Return the tally of the rows for which ``chosen`` returns True."""
        return replace(self, rows=tuple(row for row in self.rows if chosen(row)))

    def without(self, *parts: str) -> Tally:
        """Return the tally without these parts, such as "embedding" and "output head".
        Raises LookupError for a part that the network lacks."""
        known = dict.fromkeys(row.part for row in self.rows)
        for part in parts:
            if part not in known:
                raise LookupError(no_such("part", part, known))
        return self.only(lambda row: row.part not in parts)

    def model(self) -> Tally:
        """Return the tally without what is computed twice: model FLOPs, not hardware
        FLOPs."""
        return self.only(
            lambda row: row.term.way != RECOMPUTATION and not row.term.again
        )

    def by(self, key: Callable[[Row], str], convention: str = "counted") -> dict:
        """Return the FLOPs of each way, grouped by what ``key`` returns for a row."""
        groups = dict.fromkeys(key(row) for row in self.rows)
        return {
            group: self.only(lambda row: key(row) == group).flops(convention)  # noqa: B023
            for group in groups
        }

    def csv(self) -> str:
        """Return the rows as comma-separated values, with a heading."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("part", "repeats", "call", "operation", *_FACTS, *CONVENTIONS))
        for row in self.rows:
            counts = (convention.of(row) for convention in CONVENTIONS.values())
            facts = (*_facts(row), *counts)
            term = row.term
            writer.writerow((row.part, row.repeats, term.call, term.stem, *facts))
        return out.getvalue()

    def _in_text(self) -> Sheet:
        return sheet_of(self.name, self.by(called), self.flops())

    def _in_page(self) -> Sheet:
        return self._in_text()._replace(title=f"{self.name}: counted FLOPs")


def called(row: Row) -> str:
    """Return the name of the row's call, and how often the call occurs."""
    return times(row.repeats, row.term.call)


def times(repeats: Any, call: str) -> str:
    """Return the name of a call, and how often it occurs if that is not once."""
    return call if repeats == 1 else f"{repeats} × {call}"


def sheet_of(
    title: str, by_call: dict[str, dict[str, Any]], totals: dict[str, Any]
) -> Sheet:
    """Return the table of the numbers of each call in each way, and of the totals."""
    ways = [way for way in WAYS if way != RECOMPUTATION or totals[way] != 0]
    rows = [
        (name, *(grouped(each[way]) for way in ways))
        for name, each in {**by_call, "total": totals}.items()
    ]
    return Sheet(title, ("operation", *ways), rows, right=range(1, 1 + len(ways)))


_FACTS = ("way", "term", "reads", "m", "k", "n", "products")


def _facts(row: Row) -> tuple:
    term, product = row.term, row.term.product
    shape = ("",) * 4 if product is None else (*product[1:4], product.times)
    return term.way, term.what, term.needs, *shape


def grouped(number: Any) -> str:
    """Return an integer with commas, or a formula unchanged."""
    return f"{number:,}" if isinstance(number, int) else str(number)


def tally(
    config: Any,
    batch: int,
    sequence: int,
    *,
    recompute: Recompute = None,
    **options: Any,
) -> Tally:
    """Return the tally of a step of a network on ``batch`` sequences of ``sequence``
    tokens.

    ``config`` is a configuration of a model of ``backpass.models``, or the name of a
    preset. ``recompute`` is that of ``gpt2.forward``: an integer k, if k layers at a
    time save one input and their forward runs again, or a collection of the operations
    that run again in each layer, among "attention", "feed_forward", and "norms".
    ``options`` are those of the model's ``calls``, such as ``wanted``; ``flash`` and
    ``chunked`` are False by default. With ``chunked`` the gradients of the output head
    count in the forward, which computes them.

    Raises LookupError for an unknown preset; TypeError or ValueError for invalid sizes
    or options.
    """
    of = calls_of(config, batch, sequence, **options)
    return Tally(of.name, rows_of(of.parts, recompute), of.parameters)


def symbolic_tally(
    family: str, *, recompute: Recompute = None, **options: Any
) -> Tally:
    """Return the tally of a family of models in SymPy symbols, with plain attention: b
    sequences of s tokens, width h, n_h heads of width d, feed-forward width f,
    vocabulary V, and L layers. ``options`` are those of ``tally``, and fields of the
    configuration, such as ``tied=True``. Raises LookupError for an unknown family."""
    of = symbolic_calls(family, **options)
    return Tally(of.name, rows_of(of.parts, recompute), None)


def rows_of(parts: Iterable[Part], recompute: Recompute = None) -> tuple[Row, ...]:
    """Return the rows of a network's calls. Raises TypeError or ValueError for an
    invalid ``recompute``."""
    found = []
    for part in parts:
        terms = [term for each in part.calls for term in terms_of(each)]
        terms += [
            term._replace(way=RECOMPUTATION, again=True)
            for each in calls_again(part, recompute)
            for term in terms_of(each)
            if term.way == FORWARD
        ]
        found += [Row(part.name, part.repeats, term) for term in terms]
    return tuple(found)
