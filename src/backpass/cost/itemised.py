"""Itemise a network: what its calls do in a step, a row for each item, and the table of
the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from backpass.cost.shown import Sheet, Shown
from backpass.cost.terms import FORWARD, RECOMPUTATION, WAYS
from backpass.models.layers.calls import Call, Part
from backpass.models.layers.recomputed import Recompute, divided


def calls_again(part: Part, recompute: Recompute) -> tuple[Call, ...]:
    """Return the calls of a part whose forward runs again: those of a layer that has a
    backward, for an integer; for names, the calls of these operations in a layer that
    have a backward. Raises TypeError or ValueError for an invalid ``recompute``."""
    every, chosen = divided(recompute, None)
    if "layer" not in part.name or not any(each.wanted for each in part.calls):
        return ()
    if every is not None:
        return part.calls
    stems = () if chosen is None else chosen.operations
    return tuple(each for each in part.calls if each.wanted and each.stem in stems)


def items_of(
    part: Part, of_call: Callable[[Call], Iterable[Any]], recompute: Recompute
) -> Iterator[Any]:
    """Yield the items of a part's calls, then those of the forwards that run again.
    Each has a ``way``. Raises what ``calls_again`` raises."""
    again = calls_again(part, recompute)
    for each in part.calls:
        yield from of_call(each)
    for each in again:
        for item in of_call(each):
            if item.way == FORWARD:
                yield item._replace(way=RECOMPUTATION)


@dataclass(frozen=True, repr=False)
class Itemised(Shown):
    """The rows of a network at given sizes: integers or SymPy expressions. The fields
    of a row are a part, its repeats, and an item of one of its calls."""

    name: str
    rows: tuple[Any, ...]

    def only(self, chosen: Callable[[Any], bool]) -> Self:
        """Return a copy with only the rows for which ``chosen`` returns True."""
        return replace(self, rows=tuple(row for row in self.rows if chosen(row)))

    def _by(self, key: Callable[[Any], str], sums: Callable[[Self], Any]) -> dict:
        """Return the sums of the rows, grouped by what ``key`` returns for a row."""
        groups = dict.fromkeys(map(key, self.rows))
        return {
            group: sums(self.only(lambda row: key(row) == group))  # noqa: B023
            for group in groups
        }

    def _sheet(self, sums: Callable[[Self], dict[str, Any]]) -> Sheet:
        """Return the table of each call's sums by way, and of the totals."""
        totals = sums(self)
        ways = [way for way in WAYS if way != RECOMPUTATION or totals[way] != 0]
        rows = [
            (name, *(_grouped(each[way]) for way in ways))
            for name, each in {**self._by(called, sums), "total": totals}.items()
        ]
        right = range(1, 1 + len(ways))
        return Sheet(self.name, ("operation", *ways), rows, right)


def called(row: Any) -> str:
    """Return the name of a row's call, and how often the call occurs."""
    _, repeats, item = row
    return times(repeats, item.call)


def times(repeats: Any, call: str) -> str:
    """Return the name of a call, and how often it occurs if that is not once."""
    return call if repeats == 1 else f"{repeats} × {call}"


def _grouped(number: Any) -> str:
    """Return an integer with commas, or a formula unchanged."""
    return f"{number:,}" if isinstance(number, int) else str(number)
