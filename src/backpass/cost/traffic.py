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
from dataclasses import dataclass
from typing import Any, NamedTuple

from backpass.contract.shapes import parse
from backpass.contract.spec import axis_length
from backpass.contract.stems import entry
from backpass.contract.values import check_one_of
from backpass.cost.calls import calls_of, symbolic_calls
from backpass.cost.itemised import Itemised, items_of
from backpass.cost.networks import WIDTHS
from backpass.cost.shown import Sheet
from backpass.cost.terms import BACKWARD, FORWARD, WAYS, calls_of_feed_forward
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


# The arrays that each operation saves, with the axes of those that the forward computes
# in order to save them; the others are inputs, or the output.
_SAVED = {
    "attention": {"q": "m g n_kv s_q d", "k": "", "v": "", "a": "m g n_kv s_q s_k"},
    "cross_entropy": {"p": "m V", "t": "m"},
    "dropout": {},  # it draws its mask again
    "embedding": {"t": ""},
    "flash_attention": {"q": "", "k": "", "v": "", "y": "", "lse": "m g n_kv s_q"},
    "fork": {},
    "gelu": {"x": ""},
    "layer_norm": {"x_hat": "m n", "rstd": "m", "w": ""},
    "linear": {"x": "", "w": ""},
    "linear_cross_entropy": {"dx": "m h", "dw": "h V"},
    "position_embedding": {},
    "relu": {"y": ""},
    "residual": {},
    "rms_norm": {"x_hat": "m n", "rstd": "m", "w": ""},
    "rope": {"cos": "", "sin": ""},
    "swiglu": {"g": "", "u": ""},
}
# What computed arrays hold, if not numbers of the network's dtype.
_HOLD = {"p": WIDE, "lse": WIDE, "rstd": WIDE, "dw": WIDE}
# The gradients that need a saved array, for an operation without NEEDS.
_NEEDS = {"dx": "x", "dw": "w"}
# The shape of the rows that a call reads from a table, which may be longer.
_ROWS = {"embedding": ("m", "h"), "position_embedding": ("s", "h")}
# The inputs whose gradient is dy itself, so nothing moves.
_HANDED_ON = {"residual": "x f", "position_embedding": "x"}


def accesses_of(each: Call, dtype: str = "float32") -> list[Access]:
    """Return what a call reads and writes, forward and backward; for a feed-forward
    block, what its inner calls read and write."""
    arrays = [_Arrays(part, dtype) for part in parts_of(each)]
    return [access for own in arrays for access in (*_forward(own), *_backward(own))]


def parts_of(each: Call) -> list[Call]:
    """Return the calls in a feed-forward block; any other call alone."""
    return [*calls_of_feed_forward(each)] if each.stem == "feed_forward" else [each]


class _Arrays:
    """The arrays of a call, with the count and the width of their numbers."""

    def __init__(self, each: Call, dtype: str) -> None:
        self.call, self.stem, self.lengths = each, each.stem, each.lengths
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
        saved = dict(entry("operation with known traffic", self.stem, _SAVED))
        needs = getattr(each.operation, "NEEDS", _NEEDS)
        self.saved = {
            name: axes.split()
            for name, axes in saved.items()
            if {*self.wanted} & {*needs.get(name, " ".join(self.wanted)).split()}
        }

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
        self,
        way: str,
        name: str,
        written: bool,
        *,
        of: str = "",
        axes: Iterable[str] = (),
    ) -> Access:
        """Return the access to an array: an input, the output, the gradient ``of`` one
        of them, or a saved array. With ``axes``, an array of these axes counts."""
        spec, sizes = of or name, [self.lengths[letter] for letter in axes]
        numbers = math.prod(sizes) if sizes else self._whole(spec)
        fixed = spec.removeprefix("d") in self.fixed
        width = self.widths[self._holds(spec)]
        about = self.call.name, self.stem, way, name, written
        return Access(*about, fixed, numbers, width)

    def _whole(self, name: str) -> Any:
        """Return the size of an input or the output. A network has one of what its
        sequences and heads may share."""
        spec = self.specs[name]
        lengths = self.lengths | {"*": 1 if spec.shared else self.lengths["m"]}
        return math.prod(axis_length(axis, lengths) for axis in spec.axes)

    def _holds(self, name: str) -> str:
        if name not in self.specs:
            return _HOLD.get(name, OWN)
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
        rows = _ROWS.get(arrays.stem, ()) if name == "w" else ()
        yield arrays.access(FORWARD, name, False, axes=rows)
    yield arrays.access(FORWARD, arrays.output, True)
    for name, axes in arrays.saved.items():
        if axes:
            yield arrays.access(FORWARD, name, True, axes=axes)


def _backward(arrays: _Arrays) -> Iterator[Access]:
    handed_on = _HANDED_ON.get(arrays.stem, "").split()
    gradients = [name for name in arrays.wanted if name not in handed_on]
    if not gradients or _is_nothing(arrays):
        return
    yield arrays.access(BACKWARD, "dy", False, of=arrays.output)
    for name, axes in arrays.saved.items():
        yield arrays.access(BACKWARD, name, False, axes=axes)
    for name in gradients:
        # The gradient of a tied table is added to the rows of the head's.
        onto = name == "w" and arrays.lengths.get("tied", False)
        rows = _ROWS[arrays.stem] if onto else ()
        if onto:
            yield arrays.access(BACKWARD, "dw", False, of="w", axes=rows)
        yield arrays.access(BACKWARD, f"d{name}", True, of=name, axes=rows)


def _is_nothing(arrays: _Arrays) -> bool:
    """Return whether the call returns its input: dropout with rate 0 does."""
    return arrays.stem == "dropout" and arrays.lengths["p"] == 0


@dataclass(frozen=True, repr=False)
class Traffic(Itemised):
    """The bytes that a network moves at given sizes: integers or SymPy expressions."""

    def bytes(self) -> dict[str, Any]:
        """Return the bytes of the forward, the backward, and the recomputation."""
        found: dict[str, Any] = dict.fromkeys(WAYS, 0)
        for row in self.rows:
            found[row.access.way] += row.bytes
        return found

    def total(self) -> Any:
        """Return the bytes of a step, without the optimiser's."""
        return sum(self.bytes().values())

    def parameters(self) -> Traffic:
        """Return the traffic of parameters, their gradients, and constants."""
        return self.only(lambda row: row.access.parameter)

    def activations(self) -> Traffic:
        """Return the traffic of all other arrays, including activations' gradients."""
        return self.only(lambda row: not row.access.parameter)

    def by(self, key: Callable[[Row], str]) -> dict[str, dict[str, Any]]:
        """Return the bytes of each way, grouped by what ``key`` returns for a row."""
        return self._by(key, Traffic.bytes)

    def _in_text(self) -> Sheet:
        return self._sheet(Traffic.bytes)

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
    return tuple(
        Row(part.name, part.repeats, access)
        for part in parts
        for access in items_of(part, lambda each: accesses_of(each, dtype), recompute)
    )
