"""Networks by their sizes: presets, a ``config.json``, and SymPy symbols."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from backpass.arrays import size
from backpass.cost.letters import lengths_of
from backpass.cost.networks import model_named, model_of
from backpass.models import gpt2, llama
from backpass.models._parameters import chosen
from backpass.models.layers.calls import Part
from backpass.stems import no_such
from backpass.wanted import Wanted

# GPT-2 by its number of parameters, and a network that is not among a model's presets:
# its rotations are scaled, which the models do not support and which is not counted.
OTHERS = {
    "gpt2-124m": gpt2.PRESETS["gpt2"],
    "gpt2-355m": gpt2.PRESETS["gpt2-medium"],
    "gpt2-774m": gpt2.PRESETS["gpt2-large"],
    "gpt2-1.5b": gpt2.PRESETS["gpt2-xl"],
    "llama-3.1-405b": llama.Config(
        128256, 16384, 126, 128, 8, 128, 53248, 1e-5, 500000.0
    ),
}


def presets() -> dict[str, Any]:
    """Return the configurations that have a name, by name."""
    return {**gpt2.PRESETS, **llama.PRESETS, **OTHERS}


def configuration(config: Any) -> Any:
    """Return the configuration of that name, or a configuration unchanged. Raises
    LookupError for an unknown name, TypeError for another type."""
    if not isinstance(config, str):
        model_of(config)
        return config
    known = presets()
    if config not in known:
        raise LookupError(no_such("preset", config, known))
    return known[config]


def from_hugging_face(json: Mapping[str, Any]) -> Any:
    """Return the configuration that a ``config.json`` describes.

    The scaling of rotations is ignored, because it does not change the cost. Raises
    TypeError unless ``json`` is a mapping; ValueError for what is not supported, naming
    every fault.
    """
    if not isinstance(json, Mapping):
        raise TypeError(f"config: expected a mapping; got {type(json).__name__}")
    if json.get("model_type") == "gpt2":
        return gpt2.Config.from_hugging_face(json)
    free = ("rope_scaling", "rope_parameters")
    kept = {key: value for key, value in json.items() if key not in free}
    return llama.Config.from_hugging_face(kept, without_dropout=True)


class Network(NamedTuple):
    """The calls of a network at given sizes."""

    name: str
    parts: list[Part]
    parameters: Any  # their number, a tied one once; None in symbols
    trained: Any  # the number whose gradient is wanted; None in symbols


def network(
    config: Any,
    batch: int,
    sequence: int,
    *,
    flash: bool = False,
    chunked: bool = False,
    wanted: Wanted = None,
    **options: Any,
) -> Network:
    """Return the calls of a network. The arguments and the errors are those of
    ``cost.tally``."""
    config = configuration(config)
    model = model_of(config)
    lengths_of(config, batch, sequence)
    options |= {"flash": flash, "wanted": wanted}
    if model in (gpt2, llama):
        options["chunked"] = chunked
    parts = model.calls(config, batch, sequence, **options)
    shapes = model.parameter_shapes(config)
    tied_to = model.TABLE if getattr(config, "tied", False) else None
    trained = chosen(wanted, {name: name for name in shapes}, tied_to)
    return Network(
        f"{model.__name__.rpartition('.')[2]}, batch {batch}, sequence {sequence}",
        parts,
        sum(map(size, shapes.values())),
        sum(size(shapes[name]) for name in trained),
    )


def symbolic_network(family: str, **options: Any) -> Network:
    """Return the calls of a family of models in SymPy symbols, with plain attention and
    the whole head. ``options`` are those of the model's ``calls``, and fields of the
    configuration. Raises LookupError for an unknown family."""
    import sympy

    model, config = model_named(family), SimpleNamespace(**_FLAGS[family])
    fields = model.Config.__dataclass_fields__
    for name, letter in LETTERS.items():
        if name in fields:
            setattr(config, name, sympy.Symbol(letter, positive=True, integer=True))
    for name in [name for name in options if name in fields]:
        setattr(config, name, options.pop(name))
    if family == "seq2seq":
        layers = {"layers": config.encoder_layers, "final_norm": True}
        config.encoder_config = SimpleNamespace(**vars(config), **layers)
    if family in ("gpt2", "llama"):
        options["chunked"] = False
    b, s = sympy.symbols("b s", positive=True, integer=True)
    parts = model.calls(config, b, s, flash=False, **options)
    return Network(f"{family}, in symbols", parts, None, None)


LETTERS = {
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
_STACK = {"eps": 1e-5, "norm_first": False}
_FLAGS: dict[str, dict[str, Any]] = {
    "gpt2": {"eps": 1e-5, "tied": True},
    "llama": {"eps": 1e-5, "tied": False, "biases": False, "query_key_norm": False},
    "encoder": {**_STACK, "final_norm": False},
    "seq2seq": _STACK,
}
