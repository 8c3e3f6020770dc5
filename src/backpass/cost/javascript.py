"""Print the formulas of a tally as JavaScript, for the page ``cost/calculator``.

The script has a function for each distinct formula. It is exact at any size: numbers
are BigInts, and a fraction is one division, which must leave no remainder. A row of the
script is a row of ``symbolic_tally``, with its formula under each convention.

FlashAttention computes whole tiles of the scores. Their number depends on the sizes, so
its formulas have two more letters, ``scores`` and ``tiles``, which the page computes.

The bytes of the arrays that the backward needs are those of ``symbolic_activations``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import sympy
from sympy.printing.jscode import JavascriptCodePrinter

from backpass.arrays import size
from backpass.cost import sizes
from backpass.cost.activations import EXAMPLES, symbolic_activations
from backpass.cost.networks import TABLES
from backpass.cost.tally import CONVENTIONS, Row, symbolic_tally
from backpass.cost.terms import BACKWARD, RECOMPUTATION, Term, terms_of
from backpass.models import gpt2, llama
from backpass.models.layers.calls import call
from backpass.ops import flash_attention

FAMILIES = {"gpt2": gpt2, "llama": llama}
# The fields of a configuration that are sizes, and their letters.
LETTERS = {
    name: letter
    for name, letter in sizes.LETTERS.items()
    if any(name in model.Config.__dataclass_fields__ for model in FAMILIES.values())
}
FLAGS = {"gpt2": ("tied",), "llama": ("tied", "biases", "query_key_norm")}
# The letters of the formulas. Of the L layers, the first L_f may be frozen.
SYMBOLS = {
    name: sympy.Symbol(name, positive=True, integer=True)
    for name in ("b", "s", *LETTERS.values(), "L_f", "scores", "tiles")
}

FROZEN, FIRST, LAYER = "frozen layer", "first trained layer", "layer"

# The parts that save arrays, by their names in the models. The loss is the head's.
SAVING = {
    "wte": "embedding",
    "embed_tokens": "embedding",
    "h.i": LAYER,
    "layers.i": LAYER,
    "ln_f": "last norm",
    "norm": "last norm",
    "lm_head": "output head",
    "loss": "output head",
    TABLES: TABLES,
}
MERGED = "attended.out.x"  # attention's output, merged from the heads


def script() -> str:
    """Return the script, which sets ``backpassCost``."""
    formulas = _Formulas()
    rows: dict[str, int] = {}  # each row in JSON, and its number
    variants, counts, saved = {}, {}, {}
    for family, flags in FLAGS.items():
        for given in itertools.product((False, True), repeat=len(flags)):
            chosen = dict(zip(flags, given, strict=True))
            key = _key(family, chosen)
            counts[key] = [formulas.number(n) for n in _parameters(family, chosen)]
            for flash in (False, True):
                saved[f"{key} flash" if flash else key] = [
                    [part, *map(formulas.number, each)]
                    for part, *each in _saved(family, chosen, flash)
                ]
            for training in ("all", "some", "last"):
                found = (
                    json.dumps(_as_data(row, formulas), ensure_ascii=False)
                    for row in _rows(family, training, chosen)
                )
                variants[f"{key} {training}"] = [
                    rows.setdefault(row, len(rows)) for row in found
                ]
    facts = {
        "conventions": {name: each.says for name, each in CONVENTIONS.items()},
        "letters": [*SYMBOLS],
        "flags": FLAGS,
        "presets": {name: setting(config) for name, config in sizes.presets().items()},
        "accepted": {"gpt2": gpt2.ACCEPTED, "llama": llama.ACCEPTED},
        "heads": sizes.HEADS,
        "tiles": [
            flash_attention.LARGEST_TILE,
            flash_attention.LEAST_TILE,
            flash_attention.LARGEST_ARRAY,
        ],
        "parameters": counts,
        "variants": variants,
        "saved": saved,
        "texts": formulas.texts(),
    }
    lines = (f"{name}: {_dump(value)}," for name, value in facts.items())
    return "\n".join(
        (
            "globalThis.backpassCost = {",
            *lines,
            f"rows: [\n{_joined(rows)}\n],",
            f"formulas: ({', '.join(SYMBOLS)}) => [\n{_joined(formulas.functions())}\n],",
            "};",
        )
    )


def page(static: str) -> str:
    """Return the HTML of the calculators. ``static`` is the folder with their style and
    their two scripts, as the page would link to it."""
    return f"""<link rel="stylesheet" href="{static}/calculator.css">
<div id="calculator"><p>The calculators need JavaScript, and the files of the built book.</p></div>
<script>{script()}</script>
<script src="{static}/calculator_core.js"></script>
<script src="{static}/calculator.js"></script>"""


def _key(family: str, flags: dict[str, bool]) -> str:
    return " ".join((family, *(name for name, given in flags.items() if given)))


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _joined(lines: Iterable[str]) -> str:
    return ",\n".join(lines)


def setting(config: Any) -> dict[str, Any]:
    """Return the letters and flags of a configuration, as the page has them."""
    family = next(
        name for name, module in FAMILIES.items() if type(config) is module.Config
    )
    sizes = {
        letter: str(getattr(config, name))
        for name, letter in LETTERS.items()
        if hasattr(config, name)
    }
    return {
        "family": family,
        **sizes,
        **{name: getattr(config, name) for name in FLAGS[family]},
    }


def _rows(family: str, training: str, flags: dict[str, bool]) -> Iterator[Row]:
    """Return the rows with all options: plain attention and FlashAttention, and the
    recomputation.

    ``training`` is "all"; "some" if the embeddings and L_f layers are frozen, but not
    all layers; "last" if all layers are.
    """
    L, L_f = SYMBOLS["L"], SYMBOLS["L_f"]
    options: dict[str, Any] = dict(flags)
    parts = {L: (LAYER, L)}
    if training == "some":  # of six layers three are frozen
        options |= {"layers": 6, "wanted": _trained(family, flags, 6, 3)}
        parts = {3: (FROZEN, L_f), 1: (FIRST, 1), 2: (LAYER, L - L_f - 1)}
    elif training == "last":
        options |= {"layers": 1, "wanted": _trained(family, flags, 1, 1)}
        parts = {1: (FROZEN, L)}
    for row in _with_flash(
        family, symbolic_tally(family, recompute="layers", **options).rows
    ):
        part, repeats = parts[row.repeats] if row.part == LAYER else (row.part, 1)
        # A frozen layer has no backward, so nothing of it is computed again.
        again = part == FROZEN and row.term.way == RECOMPUTATION
        if not again and sympy.expand(row.term.flops) != 0:
            yield Row(part, repeats, row.term)


def _trained(
    family: str, flags: dict[str, bool], layers: int, frozen: int
) -> list[str]:
    """Return the names of the parameters that are trained."""
    return [
        name
        for name in FAMILIES[family].parameter_shapes(_symbolic(family, flags, layers))
        if not name.startswith(_frozen(family, frozen))
    ]


def _frozen(family: str, layers: int) -> tuple[str, ...]:
    """Return the prefixes of the names of the embeddings and of the first layers."""
    layer, tables = {
        "gpt2": ("h.", (gpt2.TABLE, gpt2.POSITIONS)),
        "llama": ("layers.", (llama.TABLE,)),
    }[family]
    return (*tables, *(f"{layer}{i}." for i in range(layers)))


def _symbolic(family: str, flags: dict[str, bool], layers: int) -> SimpleNamespace:
    """Return a configuration whose sizes are symbols, but for the number of layers."""
    sizes = {name: SYMBOLS[letter] for name, letter in LETTERS.items()}
    return SimpleNamespace(**sizes | {"layers": layers}, **flags)


def _parameters(family: str, flags: dict[str, bool]) -> tuple[Any, Any, Any]:
    """Return the number of all parameters, those of the embeddings, and those of a
    layer."""

    def count(layers: int, of: tuple[str, ...] = ("",)) -> Any:
        shapes = FAMILIES[family].parameter_shapes(_symbolic(family, flags, layers))
        sizes = [size(shape) for name, shape in shapes.items() if name.startswith(of)]
        return sympy.Add(*sizes).replace(sympy.floor, lambda half: half)  # d is even

    layer = count(2) - count(1)
    return count(1) + (SYMBOLS["L"] - 1) * layer, count(1, _frozen(family, 0)), layer


def _saved(
    family: str, flags: dict[str, bool], flash: bool
) -> Iterator[tuple[str, Any, Any]]:
    """Yield each part with the bytes that it saves in half precision and in float32.
    One layer is a part.

    "input" is the input of a layer. "merged" is the input of attention's last
    projection; it is FlashAttention's output itself if no merge of the heads copies it.
    """
    config = replace(EXAMPLES[family], **flags | {"tied": False})  # saves the same
    kept = symbolic_activations(config, dtype="bfloat16", flash=flash, chunked=False)
    b, s, h = (SYMBOLS[letter] for letter in "bsh")
    half, single = {"input": 2 * b * s * h}, {"input": 4 * b * s * h}
    for row in kept.rows:
        wider = 2 if row.dtype == "bfloat16" else 1
        parts = [SAVING[row.part]]
        if flash and row.array == MERGED:
            parts.append("merged")
        for part in parts:
            half[part] = half.get(part, 0) + row.formula
            single[part] = single.get(part, 0) + wider * row.formula
    yield from ((part, half[part], single[part]) for part in half)


def _with_flash(family: str, rows: Iterable[Row]) -> Iterator[Row]:
    """Return the rows; those of an attention are followed by FlashAttention's."""
    for plain, group in itertools.groupby(
        rows, lambda row: row.term.stem == "attention"
    ):
        found = list(group)
        yield from found
        if plain:
            ways = {row.term.way for row in found}
            terms = _flash_terms(family, BACKWARD in ways)
            if RECOMPUTATION in ways:
                terms = [term._replace(way=RECOMPUTATION, again=True) for term in terms]
            yield from (found[0]._replace(term=term) for term in terms)


def _flash_terms(family: str, backward: bool) -> list[Term]:
    """Return the terms of FlashAttention in a layer, without a backward if it is
    frozen."""
    of = SYMBOLS
    heads = {"g": 1, "n_kv": of["n_h"], "d": of["h"] / of["n_h"]}
    if family == "llama":
        heads = {"g": of["n_h"] / of["n_kv"], "n_kv": of["n_kv"], "d": of["d"]}
    lengths = {"m": of["b"], **heads, "s_q": of["s"], "s_k": of["s"], "d_v": heads["d"]}
    wanted = ("q", "k", "v") if backward else ()
    with _tiles_as_symbols():
        return terms_of(
            call("attention", flash_attention, wanted, **lengths, causal=True)
        )


@contextmanager
def _tiles_as_symbols() -> Iterator[None]:
    """Let the counts of FlashAttention's tiles be symbols."""
    counts = SYMBOLS["s"], SYMBOLS["scores"], SYMBOLS["tiles"]
    of_numbers = flash_attention.tiling_of
    flash_attention.tiling_of = lambda *_: SimpleNamespace(counts=lambda: counts)  # type: ignore
    try:
        yield
    finally:
        flash_attention.tiling_of = of_numbers


class _Formulas:
    """The distinct formulas, numbered as they come."""

    def __init__(self) -> None:
        self.numbers: dict[sympy.Expr, int] = {}

    def number(self, formula: Any) -> int:
        return self.numbers.setdefault(
            _factored(sympy.sympify(formula)), len(self.numbers)
        )

    def functions(self) -> Iterator[str]:
        """Return a JavaScript function of no arguments for each formula."""
        for formula in self.numbers:
            over, under = map(_BigInts().doprint, sympy.fraction(formula))
            yield f"() => {over}" if under == "1n" else f"() => exact({over}, {under})"

    def texts(self) -> list[str]:
        """Return each formula as a reader would write it."""
        return [_text(formula) for formula in self.numbers]


@cache
def _factored(formula: sympy.Expr) -> sympy.Expr:
    found = sympy.factor(formula)
    return sympy.expand(found) if found.could_extract_minus_sign() else found


class _BigInts(JavascriptCodePrinter):
    """Prints integers as BigInts, and powers as products: Math.pow takes no BigInts."""

    def _print_Integer(self, expr: sympy.Integer) -> str:
        return f"{int(expr)}n"

    def _print_Pow(self, expr: sympy.Pow) -> str:
        return "*".join([self.parenthesize(expr.base, 100)] * int(expr.exp))


def _text(formula: sympy.Expr) -> str:
    text = str(formula).replace("**2", "²").replace("*", "·")
    return text.replace("-", "−").replace("/", " / ")


def _as_data(row: Row, formulas: _Formulas) -> list[Any]:
    """Return a row as the page has it, with the numbers of its formulas: those of its
    product, and of one part under each convention."""
    term, product = row.term, row.term.product
    shape = () if product is None else (product.times, product.m, product.k, product.n)
    once = row._replace(repeats=1)
    return [
        row.part,
        formulas.number(row.repeats),
        *(term.call, term.stem, term.way, term.what, term.needs, term.again),
        [formulas.number(length) for length in shape],
        [formulas.number(each.of(once)) for each in CONVENTIONS.values()],
    ]
