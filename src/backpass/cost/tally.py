"""The FLOPs of a network as data: one row for each term, under any convention.

The rows come from the network's ``calls``, so their sum is what is counted when the
network runs. A convention turns the same rows into a number in its own way.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from backpass.contract.stems import entry
from backpass.cost.calls import calls_of, symbolic_calls
from backpass.cost.itemised import Itemised, items_of
from backpass.cost.shown import Sheet
from backpass.cost.terms import (
    BACKWARD,
    FORWARD,
    RECOMPUTATION,
    WAYS,
    Product,
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


def _products(flops: Callable[[Product], Any]) -> Callable[[Row], Any]:
    """Count the FLOPs of the products and nothing else."""

    def of(row: Row) -> Any:
        product = row.term.product
        return 0 if product is None else row.repeats * flops(product)

    return of


# products-halved counts 1 FLOP for each multiplication under a mask: an integer.
CONVENTIONS = {
    "counted": Convention("what runs: a sum of n counts n − 1", lambda row: row.flops),
    "sum-n": Convention(
        "what runs: a sum of n counts n, so a product 2mnp",
        lambda row: row.repeats * (row.term.flops + row.term.sums),
    ),
    "products": Convention(
        "2mnp for each product that runs", _products(lambda p: 2 * p.run)
    ),
    "products-whole": Convention(
        "products with all of attention's scores", _products(lambda p: 2 * p.whole)
    ),
    "products-halved": Convention(
        "products with half of the scores if causal",
        _products(lambda p: p.whole if p.masked else 2 * p.whole),
    ),
    "products-triangle": Convention(
        "products with the scores that the mask leaves",
        _products(lambda p: 2 * p.visible),
    ),
}


@dataclass(frozen=True, repr=False)
class Tally(Itemised):
    """The FLOPs of a network at given sizes: numbers, or SymPy symbols."""

    parameters: Any  # their number; a tied one counts once

    def flops(self, convention: str = "counted") -> dict[str, Any]:
        """Return the FLOPs of the forward, the backward, and the recomputation. Raises
        LookupError for an unknown convention."""
        of = entry("convention", convention, CONVENTIONS).of
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

    def without(self, *parts: str) -> Tally:
        """Return the tally without these parts, such as "embedding" and "output head".
        Raises LookupError for a part that the network lacks."""
        known = dict.fromkeys(row.part for row in self.rows)
        for part in parts:
            entry("part", part, known)
        return self.only(lambda row: row.part not in parts)

    def model(self) -> Tally:
        """Return the tally without what is computed twice: model FLOPs, not hardware
        FLOPs."""
        return self.only(
            lambda row: row.term.way != RECOMPUTATION and not row.term.again
        )

    def by(self, key: Callable[[Row], str], convention: str = "counted") -> dict:
        """Return the FLOPs of each way, grouped by what ``key`` returns for a row."""
        return self._by(key, lambda of: of.flops(convention))

    def csv(self) -> str:
        """Return the rows as comma-separated values, with a heading."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow((*_FACTS, *CONVENTIONS))
        for row in self.rows:
            term, product = row.term, row.term.product
            of_call = term.call, term.stem, term.way, term.what, term.needs
            shape = ("",) * 4 if product is None else (*product[1:4], product.times)
            counts = (convention.of(row) for convention in CONVENTIONS.values())
            writer.writerow((row.part, row.repeats, *of_call, *shape, *counts))
        return out.getvalue()

    def _in_text(self) -> Sheet:
        return self._sheet(Tally.flops)

    def _in_page(self) -> Sheet:
        return self._in_text()._replace(title=f"{self.name}: counted FLOPs")


_FACTS = "part repeats call operation way term reads m k n products".split()


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
        for term in items_of(part, terms_of, recompute):
            again = term.again or term.way == RECOMPUTATION
            found.append(Row(part.name, part.repeats, term._replace(again=again)))
    return tuple(found)
