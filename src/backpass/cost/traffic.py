"""The bytes that a network reads and writes, as data: one row for each array of a call.

The sizes come from the operations' SHAPES and from what the operations save. Under four
assumptions, the sum is the least that the calls of a step move.

- A call reads each of its arrays once and writes each of its results once, whatever it
  computes in between. In fact, FlashAttention reads keys and values again for each
  tile.
- Nothing stays in a cache from one call to the next.
- An array that two calls read counts for both. An array that a call uses twice counts
  once.
- Copies and casts between the calls are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from backpass.contract.shapes import axis_length, parse
from backpass.contract.stems import no_such
from backpass.contract.values import check_one_of
from backpass.cost.again import calls_again
from backpass.cost.calls import calls_of, symbolic_calls
from backpass.cost.networks import WIDTHS
from backpass.cost.shown import Sheet, Shown
from backpass.cost.tally import sheet_of, times
from backpass.cost.terms import (
    BACKWARD,
    FORWARD,
    RECOMPUTATION,
    WAYS,
    calls_of_feed_forward,
)
from backpass.models.layers.calls import Call, Part
from backpass.models.layers.recomputed import Recompute
from backpass.operation import Operation

# What an array holds: numbers of the network's dtype; the same, but float32 for half
# precision; integers; booleans.
OWN, WIDE, INTEGERS, BOOLEANS = "own", "wide", "integers", "booleans"


class Access(NamedTuple):
    """One array that a call reads or writes, forward or backward."""

    call: str
    stem: str
    way: str
    array: str  # such as "x", "dy", or "rstd"
    written: bool
    parameter: bool  # a parameter, its gradient, or a constant such as RoPE's cosines
    numbers: Any
    width: int  # of one number, in bytes

    @property
    def bytes(self) -> Any:
        return self.numbers * self.width


class Row(NamedTuple):
    """An access in each of ``repeats`` equal parts of a network."""

    part: str
    repeats: Any
    access: Access

    @property
    def bytes(self) -> Any:
        """The bytes in all repeats."""
        return self.repeats * self.access.bytes


class _Kept(NamedTuple):
    """A saved array: an input, the output, or an array with these ``axes`` that the
    forward computes in order to save it. It is saved if one of the gradients in
    ``needed`` is wanted or, by default, if any gradient is wanted."""

    array: str
    needed: str = ""
    axes: tuple[str, ...] | None = None
    holds: str = OWN


_OF_ROW = ("m",)
_SAVED: dict[str, tuple[_Kept, ...]] = {
    "attention": (
        _Kept("q", "k", ("m", "g", "n_kv", "s_q", "d")),  # scaled
        _Kept("k", "q"),
        _Kept("v", "q k"),
        _Kept("a", "", ("m", "g", "n_kv", "s_q", "s_k")),
    ),
    "cross_entropy": (
        _Kept("p", "", ("m", "V"), WIDE),
        _Kept("t", "", _OF_ROW, INTEGERS),  # −1 where ignored
    ),
    "dropout": (_Kept("mask", "", _OF_ROW, BOOLEANS),),
    "embedding": (_Kept("t"),),
    "flash_attention": (
        _Kept("q"),
        _Kept("k"),
        _Kept("v", "q k"),
        _Kept("y", "q k"),
        _Kept("lse", "", ("m", "g", "n_kv", "s_q"), WIDE),
    ),
    "fork": (),
    "gelu": (_Kept("x"),),
    "layer_norm": (
        _Kept("x_hat", "x w", ("m", "n")),
        _Kept("rstd", "x", _OF_ROW, WIDE),
        _Kept("w", "x"),
    ),
    "linear": (_Kept("x", "w"), _Kept("w", "x")),
    "linear_cross_entropy": (
        _Kept("dx", "x", ("m", "h")),
        _Kept("dw", "w", ("h", "V"), WIDE),
    ),
    "position_embedding": (),
    "relu": (_Kept("y"),),
    "residual": (),
    "rms_norm": (
        _Kept("x_hat", "", ("m", "n")),
        _Kept("rstd", "x", _OF_ROW, WIDE),
        _Kept("w", "x"),
    ),
    "rope": (_Kept("cos"), _Kept("sin")),
    "swiglu": (_Kept("g"), _Kept("u", "g")),
}
_MASK = _Kept("mask", "", ("m", "g", "n_kv", "s_q", "s_k"), BOOLEANS)
# The shape of the rows that a call reads from a table, which may be longer.
_ROWS = {"embedding": ("m", "h"), "position_embedding": ("s", "h")}
# The inputs whose gradient is dy itself, so nothing moves.
_HANDED_ON = {"residual": "x f", "position_embedding": "x"}


def accesses_of(each: Call, dtype: str = "float32") -> list[Access]:
    """Return what a call reads and writes, forward and backward; for a feed-forward
    block, what its inner calls read and write."""
    if _stem(each) == "feed_forward":
        return [
            access for part in parts_of(each) for access in accesses_of(part, dtype)
        ]
    return [*_forward(_Arrays(each, dtype)), *_backward(_Arrays(each, dtype))]


def parts_of(each: Call) -> list[Call]:
    """Return the calls in a feed-forward block; any other call alone."""
    return [*calls_of_feed_forward(each)] if _stem(each) == "feed_forward" else [each]


class _Arrays:
    """The arrays of a call, with the count and the width of their numbers."""

    def __init__(self, each: Call, dtype: str) -> None:
        self.call, self.stem, self.lengths = each, _stem(each), each.lengths
        if self.stem not in _SAVED:
            raise LookupError(
                no_such("operation with known traffic", self.stem, _SAVED)
            )
        operation = Operation(each.operation)
        shapes = parse(each.operation.SHAPES)
        (self.output,) = (spec.name for spec in shapes.outputs)
        self.specs = {spec.name: spec for spec in (*shapes.inputs, *shapes.outputs)}
        self.fixed = {*operation.parameters, *operation.constants}
        own, wide = WIDTHS[dtype], max(WIDTHS[dtype], 4)
        self.widths = {OWN: own, WIDE: wide, INTEGERS: 8, BOOLEANS: 1}
        # For an operation with one gradient, ``wanted`` may hold other names.
        alone = tuple(spec.name for spec in operation.differentiable)
        self.wanted = each.wanted if operation.takes_wanted else alone
        self.wanted = self.wanted if each.wanted else ()
        saved = [
            *_SAVED[self.stem],
            *([_MASK] if self.lengths.get("dropout_p") else []),
        ]
        self.saved = [
            kept
            for kept in saved
            if {*self.wanted} & {*(kept.needed.split() or self.wanted)}
        ]

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs that are given."""
        return [
            name
            for name, spec in self.specs.items()
            if name != self.output
            and not (spec.optional and not self.lengths.get(f"has_{name}", True))
        ]

    def access(
        self, way: str, name: str, written: bool, *, of: str = "", rows: bool = False
    ) -> Access:
        """Return the access to an input or the output, or to the gradient ``of`` one of
        them. With ``rows``, only the rows of a table that the call reads count."""
        spec = of or name
        numbers = self._product(_ROWS[self.stem]) if rows else self._whole(spec)
        width = self.widths[self._holds(spec)]
        return self._access(way, name, written, spec in self.fixed, numbers, width)

    def access_to(self, way: str, kept: _Kept, written: bool) -> Access:
        """Return the access to a saved array."""
        if kept.axes is None:
            return self.access(way, kept.array, written)
        numbers, width = self._product(kept.axes), self.widths[kept.holds]
        fixed = kept.array.removeprefix("d") in self.fixed
        return self._access(way, kept.array, written, fixed, numbers, width)

    def _access(self, way: str, *facts: Any) -> Access:
        return Access(self.call.name, self.stem, way, *facts)

    def _whole(self, name: str) -> Any:
        """Return the size of an input or the output. A network has one of what its
        sequences and heads may share."""
        spec, m = self.specs[name], self.lengths["m"]
        return math.prod(
            (1 if spec.shared else m)
            if axis == "*"
            else axis_length(axis, self.lengths)
            for axis in spec.axes
        )

    def _product(self, letters: Iterable[str]) -> Any:
        return math.prod(self.lengths[letter] for letter in letters)

    def _holds(self, name: str) -> str:
        if self.specs[name].integer:
            return INTEGERS
        if self.specs[name].boolean:
            return BOOLEANS
        of_loss = self.stem == "linear_cross_entropy" and name == self.output
        return WIDE if of_loss or self.stem == "cross_entropy" else OWN


def _forward(arrays: _Arrays) -> Iterator[Access]:
    if arrays.stem == "fork" or _is_nothing(arrays):  # copies of a fork are views
        return
    for name in arrays.inputs:
        of_table = name == "w" and arrays.stem in _ROWS
        yield arrays.access(FORWARD, name, False, rows=of_table)
    yield arrays.access(FORWARD, arrays.output, True)
    for kept in arrays.saved:
        if kept.axes is not None:
            yield arrays.access_to(FORWARD, kept, True)


def _backward(arrays: _Arrays) -> Iterator[Access]:
    handed_on = _HANDED_ON.get(arrays.stem, "").split()
    gradients = [name for name in arrays.wanted if name not in handed_on]
    if not gradients or _is_nothing(arrays):
        return
    yield arrays.access(BACKWARD, "dy", False, of=arrays.output)
    for kept in arrays.saved:
        yield arrays.access_to(BACKWARD, kept, False)
    for name in gradients:
        # The gradient of a tied table is added to the rows of the head's.
        onto = name == "w" and arrays.lengths.get("tied", False)
        if onto:
            yield arrays.access(BACKWARD, "dw", False, of="w", rows=True)
        yield arrays.access(BACKWARD, f"d{name}", True, of=name, rows=onto)


def _is_nothing(arrays: _Arrays) -> bool:
    """Return whether the call returns its input: dropout with rate 0 does."""
    return arrays.stem == "dropout" and arrays.lengths["p"] == 0


def _stem(each: Call) -> str:
    return each.operation.__name__.rpartition(".")[2]


@dataclass(frozen=True, repr=False)
class Traffic(Shown):
    """The bytes that a network moves at given sizes: integers or SymPy expressions."""

    name: str
    rows: tuple[Row, ...]

    def bytes(self) -> dict[str, Any]:
        """Return the bytes of the forward, the backward, and the recomputation."""
        found: dict[str, Any] = dict.fromkeys(WAYS, 0)
        for row in self.rows:
            found[row.access.way] += row.bytes
        return found

    def total(self) -> Any:
        """Return the bytes of a step, without the optimiser's."""
        return sum(self.bytes().values())

    def only(self, chosen: Callable[[Row], bool]) -> Traffic:
        """Return the traffic of the rows for which ``chosen`` returns True."""
        return replace(self, rows=tuple(row for row in self.rows if chosen(row)))

    def parameters(self) -> Traffic:
        """Return the traffic of parameters, their gradients, and constants."""
        return self.only(lambda row: row.access.parameter)

    def activations(self) -> Traffic:
        """Return the traffic of all other arrays, including activations' gradients."""
        return self.only(lambda row: not row.access.parameter)

    def by(self, key: Callable[[Row], str]) -> dict[str, dict[str, Any]]:
        """Return the bytes of each way, grouped by what ``key`` returns for a row."""
        groups = dict.fromkeys(key(row) for row in self.rows)
        return {
            group: self.only(lambda row: key(row) == group).bytes()  # noqa: B023
            for group in groups
        }

    def _in_text(self) -> Sheet:
        by_call = self.by(lambda row: times(row.repeats, row.access.call))
        return sheet_of(self.name, by_call, self.bytes())

    def _in_page(self) -> Sheet:
        return self._in_text()._replace(title=f"{self.name}: bytes read and written")


def traffic(
    config: Any,
    batch: int,
    sequence: int,
    *,
    dtype: str = "float32",
    recompute: Recompute = None,
    **options: Any,
) -> Traffic:
    """Return the least bytes that a step of a network reads and writes, on ``batch``
    sequences of ``sequence`` tokens.

    ``dtype`` is that of parameters and activations; tokens are int64. The other
    arguments are those of ``cost.tally``, and so are the errors. Also raises ValueError
    for an unknown dtype.
    """
    of = calls_of(config, batch, sequence, **options)
    return Traffic(f"{of.name}, {dtype}", rows_of(of.parts, dtype, recompute))


def symbolic_traffic(
    family: str,
    *,
    dtype: str = "float32",
    recompute: Recompute = None,
    **options: Any,
) -> Traffic:
    """Return the same for a family of models, in the SymPy symbols of
    ``cost.symbolic_tally``, and S for the number of positions."""
    of = symbolic_calls(family, **options)
    return Traffic(f"{of.name}, {dtype}", rows_of(of.parts, dtype, recompute))


def rows_of(
    parts: Iterable[Part], dtype: str = "float32", recompute: Recompute = None
) -> tuple[Row, ...]:
    """Return the rows of a network's calls. Raises TypeError or ValueError for an
    invalid ``dtype`` or ``recompute``."""
    check_one_of("dtype", dtype, tuple(WIDTHS))
    found = []
    for part in parts:
        moved = [access for each in part.calls for access in accesses_of(each, dtype)]
        moved += [
            access._replace(way=RECOMPUTATION)
            for each in calls_again(part, recompute)
            for access in accesses_of(each, dtype)
            if access.way == FORWARD
        ]
        found += [Row(part.name, part.repeats, access) for access in moved]
    return tuple(found)
