"""The arrays that the backward of a whole network needs, as formulas and in bytes.

    cost.activations(config, batch=8, sequence=1024)  # each array, in bytes
    cost.symbolic_activations("gpt2")  # for any lengths, in SymPy symbols

This module does not list arrays. The network's own forward runs on NumPy arrays whose
small lengths tell the letters apart, and the formulas are read from what it saved.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from backpass.contract.values import check_one_of
from backpass.cost.letters import (
    LAYERS,
    Probes,
    in_latex,
    in_text,
    lengths_of,
    probes_for,
    resized,
    symbol,
)
from backpass.cost.networks import (
    WIDTHS,
    Found,
    by_storage,
    forward,
    inputs_of,
    layer_of,
    named_parts,
    storages_in,
)
from backpass.cost.shown import Sheet, Shown, typeset
from backpass.cost.sizes import Network, example, network_of
from backpass.models.layers.recomputed import Recompute, Segment, divided
from backpass.text.table import Cell

FEW = 3  # layers to run; the last of them represents any further ones


@dataclass(frozen=True)
class Row:
    """One storage that the backward needs, described by its first array."""

    part: str  # the name of the model's part, such as "h.0"
    operation: str  # the operation, or the layer, in whose Saved the array is
    array: str  # its path in what the part saved, such as "attended.qkv.x"
    shape: tuple[Any, ...]  # of the array, in SymPy symbols
    dtype: str
    formula: Any  # the bytes of the storage, in SymPy symbols
    bytes: Any = None  # the same as an integer; None without lengths
    others: tuple[str, ...] = ()  # further arrays in the same storage
    constant: bool = False  # whether it is a table, such as RoPE's cosines
    times: Any = 1  # the number of such storages

    @property
    def label(self) -> str:
        """The array with its shape, as SHAPES writes it."""
        return f"{self.array}[{', '.join(map(in_text, self.shape))}]"


@dataclass(frozen=True, repr=False)
class Activations(Shown):
    """The storages that a network's forward saves for its backward, each once.
    Constants are listed, but do not count as activations; parameters are not listed."""

    title: str
    rows: tuple[Row, ...]
    lengths: Mapping[str, int] | None = None  # by letter; None in symbols
    # If segments of layers run again, for each of them: the bytes that its layers save
    # then, and the bytes of all activations that are alive then.
    segments: tuple[tuple[int, int], ...] = ()

    @property
    def bytes(self) -> int | None:
        """The bytes of the activations that are held when the forward ends; None
        without lengths."""
        return self._sum(constant=False)

    @property
    def again(self) -> int:
        """The most bytes that the layers of one segment save in the backward, when they
        run again; 0 without segments."""
        return max((own for own, _ in self.segments), default=0)

    @property
    def most(self) -> int | None:
        """The most bytes of activations at any moment of the step; None without
        lengths.

        The forward and the backward of the head may hold the most, or a segment of
        layers that has run again. What an operation that ``recompute`` names saves
        while its backward runs does not count.
        """
        held = self.bytes
        return None if held is None else max(held, *(n for _, n in self.segments), 0)

    @property
    def constants(self) -> int | None:
        """The bytes of the constants; None without lengths."""
        return self._sum(constant=True)

    @property
    def formula(self) -> Any:
        """The bytes of all activations in SymPy symbols."""
        each: dict[Any, Any] = {}
        for row in self.rows:
            if not row.constant:
                each[row.formula] = each.get(row.formula, 0) + row.times
        return sum(
            (formula * times for formula, times in each.items()), symbol("b") * 0
        )

    def by_part(self) -> dict[str, Any]:
        """Return the bytes of each part's activations, in the order of the forward; as
        formulas if there are no lengths. Parts with constants alone are omitted."""
        parts: dict[str, Any] = {}
        for row in self.rows:
            own = row.formula * row.times if self.lengths is None else row.bytes
            if not row.constant:
                parts[row.part] = parts.get(row.part, 0) + own
        return parts

    def _sum(self, constant: bool) -> int | None:
        if self.lengths is None:
            return None
        return sum(row.bytes for row in self.rows if row.constant is constant)

    def _lines(self) -> list[tuple[str, Row, int | None]]:
        """Return each row with its part and its bytes. Successive layers that save the
        same arrays are joined."""
        joined: list[tuple[str, str, tuple[Row, ...], int]] = []
        for part, own in itertools.groupby(self.rows, key=lambda row: row.part):
            rows = tuple(own)
            first, last, before, count = joined[-1] if joined else ("", "", (), 0)
            if _are_alike(before, rows) and _number(part) == _number(last) + 1:
                joined[-1] = first, part, before, count + 1
            else:
                joined.append((part, part, rows, 1))
        return [
            (
                first if first == last else f"{first} … {last}",
                row,
                None if row.bytes is None else row.bytes * count,
            )
            for first, last, rows, count in joined
            for row in rows
        ]

    def _in_text(self) -> Sheet:
        return self._sheet("formula", in_text)

    def _in_page(self) -> Sheet:
        last = "bytes of one" if self.lengths is None else "formula"
        return self._sheet(last, lambda formula: typeset(rf"\({in_latex(formula)}\)"))

    def _sheet(self, last: str, written: Callable[[Any], str | Cell]) -> Sheet:
        numbers = "number" if self.lengths is None else "bytes"
        headings = ("part", "operation", "array", "dtype", numbers, last)
        rows = []
        for part, row, count in self._lines():
            operation = row.operation + (", constant" if row.constant else "")
            number = "" if row.times == 1 else f"{row.times} ×"
            number = number if count is None else f"{count:,}"
            cells = part, operation, row.label, row.dtype, number
            rows.append((*cells, written(row.formula)))
        title = self.title
        return Sheet(title, headings, rows, (4,), below=self._end, label=title)

    @property
    def _end(self) -> str:
        if self.bytes is None:
            return f"Total: {in_text(self.formula)} bytes"
        held = f"Total: {self.bytes:,} bytes = {mebibytes(self.bytes)}"
        if not self.segments:
            return held
        return (
            f"{held} when the forward ends; at most {self.most:,} bytes = "
            f"{mebibytes(self.most or 0)} at any moment"
        )


def activations(
    config: Any,
    batch: int,
    sequence: int | tuple[int, int],
    *,
    dtype: str = "float32",
    flash: bool = True,
    chunked: bool = True,
    wanted: Collection[str] | None = None,
    dropout: bool = False,
    recompute: Recompute = None,
) -> Activations:
    """Return the arrays that the forward of this network leaves for its backward, with
    their bytes: what is held when the forward ends.

    ``config`` is a configuration of a model, or the name of a preset. ``sequence`` is
    the number of tokens in a sequence; for ``seq2seq`` it may be a pair
    of the source's and the target's. ``dtype`` is that of the parameters; tokens are
    int64. The other options are those of the model's forward; with ``dropout``, GPT-2
    draws masks at its configuration's rates.

    If ``recompute`` is a number of layers, the rows contain the inputs of the segments,
    but not the arrays that the layers of one segment save when they run again.
    ``again`` of the result is the bytes of these, and ``most`` is the most bytes that
    are saved at any moment. ``cost.timeline`` follows them over the step.

    Raises LookupError for an unknown preset; TypeError or ValueError for a
    configuration, a length, or an option that is invalid.
    """
    network = network_of(config)
    lengths = lengths_of(network, batch, sequence)
    check_one_of("dtype", dtype, tuple(WIDTHS))
    options: dict[str, Any] = {"flash": flash, "chunked": chunked, "dropout": dropout}
    every, _ = divided(recompute, None)
    options["recompute"] = _hashable(recompute) if every is None else every
    names = _hashable(wanted)
    alike = names is None and every is None  # all layers
    few = _with_few_layers(network) if alike else network
    probes = probes_for(network, lengths)
    rows, segments = _run(few, probes, dtype, names, again=True, **options)
    general, _ = _run(few, probes_for(network), dtype, names, **options)
    symbols = {symbol(letter): length for letter, length in lengths.items()}
    ones = {x: 1 for x, length in symbols.items() if length == 1}
    if [_at(row, ones) for row in rows] == [_at(row, ones) for row in general]:
        rows = general  # their formulas contain every letter
    formulas = {row.formula for row in rows}.union(*itertools.chain(*segments))
    values = {formula: int(formula.subs(symbols)) for formula in formulas}
    rows = tuple(replace(row, bytes=values[row.formula]) for row in rows)
    rows = tuple(_unfolded(rows, network.config)) if alike else rows
    at = ", ".join(f"{letter} = {length:,}" for letter, length in lengths.items())
    title = f"{network.family} in {dtype} at {at}"

    def total(counts: Counter[Any]) -> int:
        return sum(n * values[formula] for formula, n in counts.items())

    sizes = tuple((total(own), total(alive)) for own, alive in segments)
    return Activations(title, rows, lengths, sizes)


def symbolic_activations(
    family: Any,
    *,
    dtype: str = "float32",
    flash: bool = True,
    chunked: bool = True,
    wanted: Collection[str] | None = None,
    dropout: bool = False,
) -> Activations:
    """Return the arrays that the backward of such a network needs, in symbols.

    ``family`` is the name of a model, or a configuration, whose lengths and number of
    layers are ignored. The formulas hold for lengths above 1. ``wanted`` names the
    parameters to train, of a network with three layers; None is all.
    The letters are b, s, h, n_h, n_kv, d, f, V, and L. For ``seq2seq``, t is the
    source's length, and L_e and L_d are the numbers of layers. ``times`` of a row is
    the number of layers that save such a storage. The first layer has its own rows if
    it saves an array that the other layers share, or if what is before it is frozen.

    Raises LookupError for an unknown name, and TypeError or ValueError for an invalid
    option.
    """
    if isinstance(family, str):
        family = example(family)
    network = network_of(family)
    network = network.having(**dict.fromkeys(_stacks(network.config).values(), FEW))
    check_one_of("dtype", dtype, tuple(WIDTHS))
    options = {"flash": flash, "chunked": chunked, "dropout": dropout}
    names = _hashable(wanted)
    rows, _ = _run(network, probes_for(network), dtype, names, **options)
    title = f"{network.family} in {dtype}, in symbols"
    return Activations(title, tuple(_folded(rows, network.config)))


def mebibytes(count: float) -> str:
    """Return a number of bytes in MiB, 2²⁰ bytes, with the unit."""
    return f"{count / 2**20:,.1f} MiB"


class _Segment(NamedTuple):
    """A segment that has run again: how many storages have each formula."""

    own: Counter[Any]  # of those that its layers save
    alive: Counter[Any]  # of all that are alive, its own among them


@cache
def _run(
    network: Network,
    probes: Probes,
    dtype: str,
    wanted: tuple[str, ...] | str | None,
    *,
    again: bool = False,
    **options: Any,
) -> tuple[tuple[Row, ...], tuple[_Segment, ...]]:
    """Run the network at the probes' lengths, and read what its forward saved; with
    ``again``, then run each segment again."""
    network, lengths = resized(network, probes.lengths), probes.lengths
    # NumPy does not have bfloat16. With float16, the same arrays are in float32.
    stand_in = "float16" if dtype == "bfloat16" else dtype

    def array(shape: tuple[int, ...], integer: bool) -> np.ndarray:
        return np.zeros(shape, np.int64 if integer else stand_in)

    parameters = {name: array(x, False) for name, x in network.shapes.items()}
    inputs, _ = inputs_of(network, lengths, array)
    names = {stand_in: dtype}
    with np.errstate(all="ignore"):
        saved = forward(network, parameters, inputs, wanted=wanted, **options)
        storages = {
            key: (_row(x, probes, names.get(x.dtype, x.dtype)), x.kind)
            for key, x in by_storage(network, saved, parameters).items()
        }
        found = _segments(network, saved, storages, probes) if again else ()
        segments = tuple(found)
    rows = [row for row, kind in storages.values() if kind != "parameter"]
    return tuple(sorted(rows, key=lambda row: not row.constant)), segments


def _segments(
    network: Network,
    saved: Any,
    storages: Mapping[int, tuple[Row, str]],
    probes: Probes,
) -> Iterator[_Segment]:
    """Run each segment again, in the order of the forward. At that moment the parts
    after the segment are freed, but the loss is not."""
    parts = [*named_parts(network, saved)]
    of_loss = storages_in(getattr(saved, "loss", None))
    by_part: dict[str, Counter[Any]] = {name: Counter() for name, _ in parts}
    alive: Counter[Any] = Counter()
    for key, (row, kind) in storages.items():
        if kind == "saved":
            (alive if key in of_loss else by_part[row.part])[row.formula] += 1
    for (name, part), (_, after) in itertools.pairwise([*parts, ("", None)]):
        alive += by_part[name]
        if isinstance(part, Segment) and after is not part:  # its last layer
            part.run_again()
            found = storages_in(part.parts).items()
            own = Counter(
                _formula(size, dtype, probes)
                for key, (size, dtype) in found
                if key not in storages
            )
            part.parts.clear()
            yield _Segment(own, alive + own)


def _hashable(names: Any) -> Any:
    """Return a collection of names as a tuple, and anything else as it is."""
    collected = isinstance(names, Collection) and not isinstance(names, str)
    return tuple(names) if collected else names


def _row(x: Found, probes: Probes, dtype: str) -> Row:
    return Row(
        x.part,
        x.operation,
        x.array,
        tuple(map(probes.read, x.shape)),
        dtype,
        _formula(x.bytes, x.dtype, probes),
        others=x.others,
        constant=x.kind == "constant",
    )


def _formula(size: int, dtype: str, probes: Probes) -> Any:
    """Return the bytes of a storage in symbols."""
    width = np.dtype(dtype).itemsize
    return width * probes.read(size // width)


def _at(row: Row, lengths: Mapping[Any, int]) -> tuple[str, str, Any]:
    return row.part, row.array, row.formula.subs(lengths)


def _stacks(config: Any) -> dict[str, str]:
    """Return the configuration's field for the number of layers, by the prefix of the
    layers' names."""
    if hasattr(config, "layers"):
        return {"": "layers"}
    return {"encoder.": "encoder_layers", "decoder.": "decoder_layers"}


def _with_few_layers(network: Network) -> Network:
    config = network.config
    fields = {name: getattr(config, name) for name in _stacks(config).values()}
    return network.having(**{name: min(FEW, n) for name, n in fields.items()})


def _unfolded(rows: Iterable[Row], config: Any) -> Iterable[Row]:
    """Repeat the last of a few layers, up to the number of layers."""
    for part, own in itertools.groupby(rows, key=lambda row: row.part):
        stack, number = layer_of(part)
        last, of_layer = number == FEW - 1, tuple(own)
        field = _field(part, config)
        stop = getattr(config, field) if last else (number or 0) + 1
        for i in range(number or 0, stop):
            name = part if number is None else f"{stack}{i}"
            yield from (replace(row, part=name) for row in of_layer)


def _folded(rows: Iterable[Row], config: Any) -> Iterable[Row]:
    """Replace the few layers of each stack, in symbols: by one layer, or by the first
    and one for all others."""
    by_part = {
        part: tuple(own) for part, own in itertools.groupby(rows, key=lambda r: r.part)
    }
    for part, own in by_part.items():
        stack, number = layer_of(part)
        if number is None:
            yield from own
            continue
        first, second, third = (by_part[f"{stack}{i}"] for i in range(FEW))
        if not _are_alike(second, third):
            raise ValueError(f"{part}: expected layers that save the same arrays")
        L = symbol(LAYERS[_field(part, config)])
        alike = _are_alike(first, second)
        if number == 0:
            times = L if alike else 1
            yield from (
                replace(r, part=f"{stack}i" if alike else part, times=times)
                for r in own
            )
        elif number == 1 and not alike:
            yield from (replace(r, part=f"{stack}i", times=L - 1) for r in own)


def _field(part: str, config: Any) -> str:
    return next(x for start, x in _stacks(config).items() if part.startswith(start))


def _are_alike(a: tuple[Row, ...], b: tuple[Row, ...]) -> bool:
    """Whether these are the rows of two layers of a stack that save the same arrays."""
    stacks = {layer_of(row.part)[0] for row in (*a, *b)}
    numbered = all(layer_of(row.part)[1] is not None for row in (*a, *b))
    first, second = ([replace(x, part="", others=()) for x in rows] for rows in (a, b))
    return len(stacks) == 1 and numbered and first == second


def _number(layer: str) -> int:
    """Return the number in a layer's name."""
    return int(layer.rpartition(".")[2])
