"""Print the formulas of a tally as JavaScript, for the page ``cost/calculator``.

The script has a function for each distinct formula. It is exact at any size: numbers
are BigInts, and a fraction is one division, which must leave no remainder. A row of the
script is a row of ``symbolic_tally``, with its formula under each convention.

FlashAttention computes whole tiles of the scores. Their number depends on the sizes, so
its formulas have three more letters, which the page computes: under a causal mask, the
``scores`` in a head and the ``tiles`` that its queries meet; without one, the number of
tiles across the keys, ``key_tiles``.

The work of each call is that of ``duration``, and the bytes of the arrays that the
backward needs are those of ``symbolic_activations``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import sympy
from sympy.printing.jscode import JavascriptCodePrinter

from backpass.contract.arrays import size
from backpass.cost.activations import FEW, symbolic_activations
from backpass.cost.activations import Row as Activation
from backpass.cost.calls import symbolic_calls
from backpass.cost.cluster import CLUSTERS, COLLECTIVES, GRADIENT
from backpass.cost.duration import (
    FLOPS_OF_ADAMW,
    MACHINES,
    Machine,
    adamw_width,
    works_of,
)
from backpass.cost.letters import LAYERS
from backpass.cost.mesh_memory import INDEX
from backpass.cost.networks import TABLES
from backpass.cost.sizes import (
    HEADS,
    LETTERS,
    MODELS,
    example,
    flags_of,
    network_of,
    presets,
)
from backpass.cost.tally import CONVENTIONS, rows_of
from backpass.models import gpt2, llama
from backpass.models._parameters import shapes_in_layer
from backpass.models.layers import gpt2_layer
from backpass.models.layers.calls import Call, Part
from backpass.ops import attention, flash_attention

_PACKAGE = Path(__file__).resolve().parents[1]
_NAME = "calculator_formulas.js"
_CHECKOUT = _PACKAGE.parents[1] / "assets/site/_static" / _NAME
# The committed result of ``script()``, which a page links to. An installed package has
# a copy.
SCRIPT = _CHECKOUT if _CHECKOUT.is_file() else _PACKAGE / _NAME
HEADED = ("gpt2", "llama")  # the families with an output head
FLAGS = {family: [*flags_of(family)] for family in MODELS}
# The letters of the formulas. Of the L layers, the first L_f may be frozen.
SYMBOLS = {
    name: sympy.Symbol(name, positive=True, integer=True)
    for name in (*"bst", *LETTERS.values(), "L_f", "scores", "tiles", "key_tiles")
}

# The dtypes of the page differ by their width: float16 is as wide as bfloat16.
DTYPES = ("bfloat16", "float32")
HEAD, CHUNKED = "output head", "chunked head"
NORM, FIRST_NORM = "last norm", "first trained norm"
DECODER, MEMORY = "decoder layer", "memory"
FROZEN, FIRST, LAYER = "frozen layer", "first trained layer", "layer"

# The parts that save arrays, by their names in the models. The loss is the head's.
SAVING = {
    "wte": "embedding",
    "embed_tokens": "embedding",
    "h.i": LAYER,
    "layers.i": LAYER,
    "ln_f": NORM,
    "norm": NORM,
    "lm_head": HEAD,
    "loss": HEAD,
    "encoder.layers.i": "encoder layer",
    "encoder.norm": NORM,
    "decoder.layers.i": DECODER,
    "decoder.norm": NORM,
    TABLES: TABLES,
}


def script() -> str:
    """Return the script, which sets ``backpassCost``."""
    formulas = _Formulas()
    # Each word, row, and work of a call in JSON, and its number.
    words, rows, works = ({} for _ in range(3))
    variants, timed, counts, saved, meshes = {}, {}, {}, {}, {}
    for family, flags in FLAGS.items():
        for given in itertools.product((False, True), repeat=len(flags)):
            chosen = dict(zip(flags, given, strict=True))
            key = _key(family, chosen)
            counts[key] = [formulas.number(n) for n in _parameters(family, chosen)]
            if family in HEADED:
                with _tiles_as_symbols():
                    local = _works(_local_parts(family, chosen), formulas, words)
                    meshes[key] = {
                        "works": _numbered(local, works),
                        "arrays": {
                            where: [*map(formulas.number, sizes)]
                            for where, sizes in _local_sizes(family, chosen).items()
                        },
                    }
            for flash in (False, True):
                saved[f"{key} flash" if flash else key] = [
                    [part, *map(formulas.number, each)]
                    for part, *each in _saved(family, chosen, flash)
                ]
            for training in ("all", "some", "last") if family in HEADED else ("all",):
                found = _parts(family, training, chosen)
                name = f"{key} {training}"
                with _tiles_as_symbols():
                    variants[name] = _numbered(_rows(found, formulas, words), rows)
                    timed[name] = _numbered(_works(found, formulas, words), works)
    facts = {
        "conventions": {name: each.says for name, each in CONVENTIONS.items()},
        "letters": [*SYMBOLS],
        "flags": FLAGS,
        "presets": {names[0]: setting(config) for names, config in _presets()},
        "aliases": {first: others for (first, *others), _ in _presets() if others},
        "accepted": {"gpt2": gpt2.ACCEPTED, "llama": llama.ACCEPTED},
        "heads": HEADS,
        "tiles": [
            flash_attention.LARGEST_TILE,
            flash_attention.LEAST_TILE,
            flash_attention.LARGEST_ARRAY,
        ],
        "machines": {name: _rates(each) for name, each in MACHINES.items()},
        "clusters": {
            name: [each.inside, each.between, each.node, each.latency]
            for name, each in CLUSTERS.items()
        },
        "mesh": {"gradient": GRADIENT, "index": INDEX, **COLLECTIVES},
        "adamw": [FLOPS_OF_ADAMW, *map(adamw_width, DTYPES)],
        "parameters": counts,
        "variants": variants,
        "timed": timed,
        "saved": saved,
        "meshes": meshes,
        "texts": formulas.texts(),
    }
    lines = (f"{name}: {_dump(value)}," for name, value in facts.items())
    return "\n".join(
        (
            "globalThis.backpassCost = {",
            *lines,
            f"words: [\n{_joined(words)}\n],",
            f"rows: [\n{_joined(rows)}\n],",
            f"works: [\n{_joined(works)}\n],",
            f"formulas: ({', '.join(SYMBOLS)}) => [\n{_joined(formulas.functions())}\n],",
            "};",
        )
    )


def page(static: str) -> str:
    """Return the HTML of the calculators. ``static`` is the folder with their style and
    their scripts, as the page would link to it. ``script()`` takes seconds, so its
    result is one of the files. The tests compare both; ``make records`` writes it."""
    return f"""<link rel="stylesheet" href="{static}/calculator.css">
<div id="calculator"><p>The calculators need JavaScript, and the files of the built book.</p></div>
<script src="{static}/{SCRIPT.name}"></script>
<script src="{static}/calculator_core.js"></script>
<script src="{static}/calculator_mesh.js"></script>
<script src="{static}/calculator.js"></script>"""


def _key(family: str, flags: dict[str, bool]) -> str:
    return " ".join((family, *(name for name, given in flags.items() if given)))


def _numbered(found: Iterable[Any], known: dict[str, int]) -> list[int]:
    """Return the number of each item, counting those that are not ``known`` on."""
    return [known.setdefault(_dump(each), len(known)) for each in found]


def _rates(machine: Machine) -> list[Any]:
    """Return the rates of a machine as the page has them: those of products by dtype,
    of everything else, and of memory, the seconds of a call, and the bytes of its
    memory."""
    products = [machine.product_rates[dtype] for dtype in DTYPES]
    rates = machine.element_rate, machine.bandwidth, machine.call_seconds
    return [machine.name, products, *rates, machine.capacity]


def _presets() -> list[tuple[list[str], Any]]:
    """Return each configuration once, with all its names, ordered by the first word of
    the first name and by the number of parameters."""
    known: dict[Any, list[str]] = {}
    for name, config in presets().items():
        known.setdefault(config, []).append(name)

    def place(item: tuple[Any, list[str]]) -> tuple[str, int]:
        config, (first, *_) = item
        return first.partition("-")[0], network_of(config).parameters

    return [(names, config) for config, names in sorted(known.items(), key=place)]


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _joined(lines: Iterable[str]) -> str:
    return ",\n".join(lines)


def setting(config: Any) -> dict[str, Any]:
    """Return the letters and flags of a configuration, as the page has them."""
    family = network_of(config).family
    sizes = {
        letter: str(getattr(config, name))
        for name, letter in LETTERS.items()
        if hasattr(config, name)
    }
    flags = {name: getattr(config, name) for name in FLAGS[family]}
    return {"family": family, **sizes, **flags}


def _parts(family: str, training: str, flags: dict[str, bool]) -> list[Part]:
    """Return the parts of a network with all options: a call of plain attention is
    followed by FlashAttention's, and the calls of the whole head by the chunked one's.

    ``training`` is "all"; "some" if the embeddings and L_f layers are frozen, but not
    all layers; "last" if all layers are.
    """
    L, L_f = SYMBOLS["L"], SYMBOLS["L_f"]
    options: dict[str, Any] = dict(flags)
    layers: dict[Any, tuple[str, Any]] = {}
    if family == "seq2seq":
        options["source"] = SYMBOLS["t"]
    if training == "some":  # of six layers three are frozen
        options |= {"layers": 6, "wanted": _trained(family, flags, 3, layers=6)}
        layers = {3: (FROZEN, L_f), 1: (FIRST, 1), 2: (LAYER, L - L_f - 1)}
    elif training == "last":
        options |= {"layers": 1, "wanted": _trained(family, flags, 1, layers=1)}
        layers = {1: (FROZEN, L)}
    parts = symbolic_calls(family, **options).parts
    if family in HEADED:
        *_, chunked = symbolic_calls(family, chunked=True, **options).parts
        parts[-1] = parts[-1]._replace(calls=(*parts[-1].calls, *chunked.calls))
    found = []
    for part in parts:
        name, repeats = part.name, part.repeats
        if name == LAYER:
            name, repeats = layers.get(repeats, (name, repeats))
        found.append(Part(name, repeats, tuple(_with_flash(part.calls))))
    return found


def _local_parts(family: str, flags: dict[str, bool]) -> list[Part]:
    """Return the parts of a network on a rank of a tensor axis, whose letters are then
    those of the rank. The heads of a GPT-2 there have n_h·d columns, not h."""
    parts = _parts(family, "all", flags)
    if family != "gpt2":
        return parts
    b, s, h, f, n_h, d = (SYMBOLS[x] for x in ("b", "s", "h", "f", "n_h", "d"))
    calls = gpt2_layer.calls(b, s, h, n_h * d, f, n_h, flash=False)
    layer = tuple(_with_flash(calls))
    return [p._replace(calls=layer) if p.name == LAYER else p for p in parts]


def _local_sizes(family: str, flags: dict[str, bool]) -> dict[str, list[Any]]:
    """Return the sizes of a rank's arrays: those of a layer, and those before and after
    the layers, of which the table of tokens is the first."""
    model = MODELS[family]
    width = SYMBOLS["n_h"] * SYMBOLS["d"]
    lengths = {"h": SYMBOLS["h"], "q": width, "p": 3 * width, "f": SYMBOLS["f"]}
    shapes = _shapes(family, flags, layers=1)
    if family == "gpt2":
        layer = [*shapes_in_layer(gpt2_layer, lengths).values()]
    else:
        layer = [x for name, x in shapes.items() if name.startswith("layers.0.")]
    ends = {n: x for n, x in shapes.items() if not n.startswith(("h.0.", "layers.0."))}
    first = [ends.pop(n) for n in (model.TABLE, gpt2.POSITIONS) if n in ends]
    found = {"layer": layer, "first": first, "last": [*ends.values()]}
    return {name: [_halved(size(x)) for x in of] for name, of in found.items()}


def _with_flash(calls: Iterable[Call]) -> Iterator[Call]:
    for each in calls:
        yield each
        if each.operation is attention:
            yield each._replace(operation=flash_attention)


def _trained(
    family: str, flags: dict[str, bool], frozen: int, layers: int
) -> list[str]:
    """Return the names of the parameters that are trained."""
    names, prefixes = _shapes(family, flags, layers=layers), _frozen(family, frozen)
    return [name for name in names if not name.startswith(prefixes)]


def _frozen(family: str, layers: int) -> tuple[str, ...]:
    """Return the prefixes of the names of the embeddings and of the first layers."""
    layer, tables = {
        "gpt2": ("h.", (gpt2.TABLE, gpt2.POSITIONS)),
        "llama": ("layers.", (llama.TABLE,)),
    }[family]
    return (*tables, *(f"{layer}{i}." for i in range(layers)))


def _shapes(family: str, flags: dict[str, bool], **layers: int) -> dict[str, Any]:
    """Return the shapes of the parameters. Sizes are symbols, except the numbers of
    layers."""
    sizes = {name: SYMBOLS[letter] for name, letter in LETTERS.items()}
    config = SimpleNamespace(**sizes | layers, **flags)
    if family == "seq2seq":
        of_encoder = {"layers": config.encoder_layers, "final_norm": True}
        config.encoder_config = SimpleNamespace(**vars(config) | of_encoder)
    return MODELS[family].parameter_shapes(config)


def _parameters(family: str, flags: dict[str, bool]) -> tuple[Any, Any, Any, Any]:
    """Return the number of all parameters, those of the embeddings, those of a layer,
    and those of all layers' matrices."""
    fields = MODELS[family].Config.__dataclass_fields__
    stacks = [name for name in LAYERS if name in fields]

    def count(of: tuple[str, ...] = ("",), axes: int = 1, /, **layers: int) -> Any:
        shapes = _shapes(family, flags, **dict.fromkeys(stacks, 1) | layers)
        sizes = [
            size(shape)
            for name, shape in shapes.items()
            if name.startswith(of) and len(shape) >= axes
        ]
        return _halved(sympy.Add(*sizes))

    layer = {name: count(**{name: 2}) - count() for name in stacks}
    others = sum((SYMBOLS[LETTERS[name]] - 1) * layer[name] for name in stacks)
    embeddings = count(_frozen(family, 0)) if family in HEADED else 0
    matrices = 0
    if family in HEADED:
        matrices = SYMBOLS["L"] * (count(("",), 2, layers=2) - count(("",), 2))
    return count() + others, embeddings, layer.get("layers", 0), matrices


def _halved(count: Any) -> Any:
    """Return a number of elements in which d, which is even, is halved exactly."""
    return sympy.sympify(count).replace(sympy.floor, lambda half: half)


def _saved(
    family: str, flags: dict[str, bool], flash: bool
) -> Iterator[tuple[str, Any, Any]]:
    """Yield each part with the bytes that it saves in half precision and in float32.
    One layer is a part, and so is a chunked head.

    "input" is the input of a layer. "memory" is what the first layer of a decoder saves
    for all. The first layer or norm that is trained has a part of its own, because
    nothing before it needs a gradient, and so has a head whose table is frozen.
    """
    config = replace(example(family), **flags)
    if family in HEADED:
        config = replace(config, tied=False)  # saves the same
    b, s, h = (SYMBOLS[letter] for letter in "bsh")
    half, single = {"input": 2 * b * s * h}, {"input": 4 * b * s * h}

    def add(part: str, row: Activation, sign: int = 1) -> None:
        wider = 2 if row.dtype == "bfloat16" else 1
        half[part] = half.get(part, 0) + sign * row.formula
        single[part] = single.get(part, 0) + sign * wider * row.formula

    for row in _kept(config, flash, chunked=False):
        if row.part == "decoder.layers.0":
            add(MEMORY, row)
            continue
        part = SAVING[row.part]
        add(part, row)
        if part == DECODER:
            add(MEMORY, row, -1)
    if family in HEADED:
        untied = flags | {"tied": False}
        frozen = {n: _trained(family, untied, n, layers=FEW) for n in (0, FEW)}
        for row in _kept(config, flash, False, frozen[0]):
            if row.part.endswith(".0"):
                add(FIRST, row)
        for row in _kept(config, flash, False, frozen[FEW]):
            if SAVING.get(row.part) == NORM:
                add(FIRST_NORM, row)
        tied = replace(example(family), tied=True)
        names = _trained(family, flags_of(family) | {"tied": True}, 0, layers=FEW)
        for chunked, part in ((False, HEAD), (True, CHUNKED)):
            for row in _kept(tied, False, chunked, names):
                if SAVING.get(row.part) == HEAD:
                    add(f"frozen {part}", row)
        for row in _kept(example(family), False, chunked=True):
            if SAVING[row.part] == HEAD:
                add(CHUNKED, row)
    yield from ((part, half[part], single[part]) for part in half)


def _kept(
    config: Any, flash: bool, chunked: bool, wanted: Iterable[str] | None = None
) -> tuple[Activation, ...]:
    names = None if wanted is None else [*wanted]
    options: dict[str, Any] = {"flash": flash, "chunked": chunked, "wanted": names}
    return symbolic_activations(config, dtype="bfloat16", **options).rows


@contextmanager
def _tiles_as_symbols() -> Iterator[None]:
    """Let the counts of FlashAttention's tiles be symbols."""
    of_numbers = flash_attention.tiling_of

    def tiling_of(s_q: Any, s_k: Any, heads: Any, causal: bool, *_: Any) -> Any:
        counts = s_q, SYMBOLS["scores"], SYMBOLS["tiles"]
        if not causal:
            counts = s_q, s_q * s_k, s_q * SYMBOLS["key_tiles"]
        return SimpleNamespace(counts=lambda: counts)

    flash_attention.tiling_of = tiling_of  # type: ignore
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


def _rows(
    parts: list[Part], formulas: _Formulas, words: dict[str, int]
) -> Iterator[list[Any]]:
    """Yield each row of the tally as the page has it, with the numbers of its words and
    of its formulas: those of its product, and of one part under each convention."""
    for row in rows_of(parts, recompute=1):
        term, product, once = row.term, row.term.product, row._replace(repeats=1)
        texts = row.part, term.call, term.stem, term.way, term.what, term.needs
        shape = () if product is None else (product.times, *product[1:4])
        if sympy.expand(term.flops) != 0:
            yield [
                _numbered(texts, words),
                term.again,
                formulas.number(row.repeats),
                [formulas.number(length) for length in shape],
                [formulas.number(each.of(once)) for each in CONVENTIONS.values()],
            ]


def _works(
    parts: list[Part], formulas: _Formulas, words: dict[str, int]
) -> Iterator[list[Any]]:
    """Yield the work of each call as the page has it, with the numbers of its words and
    of its formulas: FLOPs of products and of everything else, and bytes in DTYPES."""
    found = (works_of(parts, dtype, recompute=1) for dtype in DTYPES)
    for each in zip(*found, strict=True):
        (part, repeats, *of_call), work = each[0]
        numbers = work.products, work.elements, *(one.bytes for _, one in each)
        yield [
            _numbered((part, *of_call), words),
            formulas.number(repeats),
            [formulas.number(number) for number in numbers],
        ]
