"""The FLOPs of a network as data: one row for each term, under any convention.

The rows come from the network's ``calls``, so their sum is what is counted when the
network runs. A convention is another way to turn the same rows into a number.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

from backpass.arrays import size
from backpass.cost.networks import MODELS, model_of
from backpass.cost.terms import (
    BACKWARD,
    FORWARD,
    RECOMPUTATION,
    WAYS,
    Term,
    terms_of,
)
from backpass.models import gpt2, llama
from backpass.models.layers.calls import Part
from backpass.stems import no_such
from backpass.table import aligned, page
from backpass.wanted import Wanted

# GPT-2 by the number of its parameters, and a network that no model's presets have: its
# rotations are scaled, which the models do not support and which costs nothing.
SIZES = {
    "gpt2-124m": gpt2.PRESETS["gpt2"],
    "gpt2-355m": gpt2.PRESETS["gpt2-medium"],
    "gpt2-774m": gpt2.PRESETS["gpt2-large"],
    "gpt2-1.5b": gpt2.PRESETS["gpt2-xl"],
    "llama-3.1-405b": llama.Config(
        128256, 16384, 126, 128, 8, 128, 53248, 1e-5, 500000.0
    ),
}


class Row(NamedTuple):
    """A term of a network: of each of ``repeats`` equal parts."""

    part: str
    repeats: Any
    term: Term

    @property
    def flops(self) -> Any:
        """The FLOPs that are counted, in all repeats."""
        return self.repeats * self.term.flops


class Convention(NamedTuple):
    """A way to count: ``of`` turns a row into its FLOPs."""

    says: str
    of: Callable[[Row], Any]


def _products(multiplications: Callable[[Any], Any]) -> Callable[[Row], Any]:
    """Count two FLOPs for each multiplication of the products and nothing else."""

    def of(row: Row) -> Any:
        product = row.term.product
        return 0 if product is None else 2 * row.repeats * multiplications(product)

    return of


# Halving makes a fraction of an odd number, so the products are doubled, then halved.
CONVENTIONS = {
    "counted": Convention("what runs: a sum of n is n − 1", lambda row: row.flops),
    "sum-n": Convention(
        "a sum of n is n, a product 2mnp",
        lambda row: row.repeats * (row.term.flops + row.term.sums),
    ),
    "products": Convention("2mnp of the products that run", _products(lambda p: p.run)),
    "products-whole": Convention("of all scores", _products(lambda p: p.whole)),
    "products-halved": Convention(
        "of half of them under a causal mask", lambda row: _halved(row)
    ),
    "products-triangle": Convention(
        "of those that the mask leaves", _products(lambda p: p.visible)
    ),
}


def _halved(row: Row) -> Any:
    product = row.term.product
    if product is None:
        return 0
    multiplications = row.repeats * product.whole
    return multiplications if product.masked else 2 * multiplications


@dataclass(frozen=True)
class Tally:
    """The rows of a network at given sizes: numbers, or SymPy symbols."""

    name: str
    rows: tuple[Row, ...]
    parameters: Any  # how many, a tied one once

    def flops(self, convention: str = "counted") -> dict[str, Any]:
        """Return the FLOPs of the forward, the backward and the recomputation. Raises
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
        """Return the backward's FLOPs, with what it recomputes, over the forward's."""
        flops = self.flops(convention)
        return (flops[BACKWARD] + flops[RECOMPUTATION]) / flops[FORWARD]

    def only(self, chosen: Callable[[Row], bool]) -> Tally:
        """Return the tally of the rows for which ``chosen`` is true."""
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
        """Return the tally without what is computed twice: of the model's FLOPs and not
        of the hardware's."""
        return self.only(
            lambda row: row.term.way != RECOMPUTATION and not row.term.again
        )

    def by(self, key: Callable[[Row], str], convention: str = "counted") -> dict:
        """Return the FLOPs of each way, by what ``key`` says of a row."""
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

    def __repr__(self) -> str:
        headings, *rows = self._table()
        right = range(1, len(headings))
        return "\n".join([self.name, *aligned([headings, *rows], right=right)])

    def _repr_html_(self) -> str:
        headings, *rows = self._table()
        return page(headings, rows, caption=f"{self.name}: counted FLOPs")

    def _table(self) -> list[tuple[str, ...]]:
        """Return the headings, the counts by operation, and the totals."""
        totals = self.flops()
        ways = [way for way in WAYS if way != RECOMPUTATION or totals[way] != 0]
        groups = self.by(called) | {"total": totals}
        rows = (
            (name, *(_grouped(each[way]) for way in ways))
            for name, each in groups.items()
        )
        return [("operation", *ways), *rows]


def called(row: Row) -> str:
    """Return what the row's call is for, and how many there are in the network."""
    name = row.term.call
    return name if row.repeats == 1 else f"{row.repeats} × {name}"


_FACTS = ("way", "term", "reads", "m", "k", "n", "products")


def _facts(row: Row) -> tuple:
    term, product = row.term, row.term.product
    shape = ("",) * 4 if product is None else (*product[1:4], product.times)
    return term.way, term.what, term.needs, *shape


def _grouped(number: Any) -> str:
    return f"{number:,}" if isinstance(number, int) else str(number)


def tally(
    config: Any,
    batch: Any,
    sequence: Any,
    *,
    flash: bool = False,
    chunked: bool = False,
    recompute: str | None = None,
    wanted: Wanted = None,
    **options: Any,
) -> Tally:
    """Return the tally of a step of a network on ``batch`` sequences of ``sequence``
    tokens.

    ``config`` is a configuration of a model of ``backpass.models``, or the name of a
    preset. ``flash``, ``chunked`` and ``wanted`` are options of its forward; others are
    those of its ``calls``. With ``chunked`` the gradients of the output head are
    computed in the forward, as they are when it runs. ``recompute`` is None or
    "layers": then only the input of a layer is saved, and its forward runs again before
    its backward.

    Raises LookupError for an unknown preset; TypeError or ValueError for wrong sizes or
    options.
    """
    config = configuration(config)
    module = model_of(config)
    _check_lengths(batch=batch, sequence=sequence)
    if recompute not in (None, "layers"):
        raise ValueError(f"recompute: expected None or 'layers'; got {recompute!r}")
    chosen = {"flash": flash, "wanted": wanted, **options}
    if module in (gpt2, llama):
        chosen["chunked"] = chunked
    rows = rows_of(module.calls(config, batch, sequence, **chosen), recompute)
    count = sum(map(size, module.parameter_shapes(config).values()))
    stem = module.__name__.rpartition(".")[2]
    name = f"{stem}, batch {batch}, sequence {sequence}"
    return Tally(name, rows, count)


def symbolic_tally(family: str, **options: Any) -> Tally:
    """Return the tally of a family of models in SymPy symbols, with plain attention and
    the whole head: b sequences of s tokens, width h, heads n_h, width of a head d, f, V
    and L. ``options`` are those of ``tally``, and fields of the configuration, such as
    ``tied=True``. Raises LookupError for an unknown family."""
    if family not in MODELS:
        raise LookupError(no_such("family", family, MODELS))
    import sympy

    module, config = MODELS[family], SimpleNamespace(**_DEFAULTS[family])
    letters = {
        "width": "h",
        "layers": "L",
        "encoder_layers": "L_e",
        "decoder_layers": "L_d",
        "heads": "n_h",
        "key_heads": "n_kv",
        "head_width": "d",
        "feed_forward": "f",
        "vocabulary": "V",
        "positions": "S",
    }
    fields = module.Config.__dataclass_fields__
    for name, letter in letters.items():
        if name in fields:
            setattr(config, name, sympy.Symbol(letter, positive=True, integer=True))
    for name in [*options]:
        if name in fields:
            setattr(config, name, options.pop(name))
    if family == "seq2seq":
        config.encoder_config = SimpleNamespace(
            **vars(config), layers=config.encoder_layers, final_norm=True
        )
    b, s = sympy.symbols("b s", positive=True, integer=True)
    recompute = options.pop("recompute", None)
    if family in ("gpt2", "llama"):
        options["chunked"] = False
    calls = module.calls(config, b, s, flash=False, **options)
    return Tally(f"{family}, in symbols", rows_of(calls, recompute), None)


_FLAGS = {"eps": 1e-5, "norm_first": False}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gpt2": {"eps": 1e-5, "tied": True},
    "llama": {"eps": 1e-5, "tied": False, "biases": False, "query_key_norm": False},
    "encoder": {**_FLAGS, "final_norm": False},
    "seq2seq": _FLAGS,
}


def rows_of(parts: Iterable[Part], recompute: str | None = None) -> tuple[Row, ...]:
    """Return the rows of a network's calls."""
    found = []
    for part in parts:
        terms = [term for each in part.calls for term in terms_of(each)]
        if recompute == "layers" and "layer" in part.name:
            terms += [
                term._replace(way=RECOMPUTATION, again=True)
                for term in terms
                if term.way == FORWARD
            ]
        found += [Row(part.name, part.repeats, term) for term in terms]
    return tuple(found)


def presets() -> dict[str, Any]:
    """Return the configurations that have a name."""
    return {**gpt2.PRESETS, **llama.PRESETS, **SIZES}


def configuration(config: Any) -> Any:
    """Return the preset of that name; a configuration of a model is returned as it is.

    Raises LookupError for an unknown name, naming the nearest, and TypeError.
    """
    if isinstance(config, str):
        known = presets()
        if config not in known:
            raise LookupError(no_such("preset", config, known))
        return known[config]
    model_of(config)
    return config


def from_hugging_face(json: Mapping[str, Any]) -> Any:
    """Return the configuration that a ``config.json`` describes.

    What costs nothing, such as the scaling of rotations, is ignored. Raises ValueError
    for what the tally does not model, naming every fault.
    """
    if not isinstance(json, Mapping):
        raise TypeError(f"config: expected a mapping; got {type(json).__name__}")
    if json.get("model_type") == "gpt2":
        return gpt2.Config.from_hugging_face(json)
    free = ("rope_scaling", "rope_parameters")
    kept = {key: value for key, value in json.items() if key not in free}
    return llama.Config.from_hugging_face(kept, without_dropout=True)


def _check_lengths(**lengths: Any) -> None:
    for name, length in lengths.items():
        if not isinstance(length, int) or isinstance(length, bool):
            raise TypeError(f"{name}: expected an integer; got {type(length).__name__}")
        if length < 1:
            raise ValueError(f"{name}: expected at least 1; got {length}")
