"""Networks by their sizes: presets, a ``config.json``, and SymPy symbols."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from numbers import Integral
from pathlib import PurePath
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from backpass.contract.arrays import size
from backpass.contract.stems import no_such
from backpass.contract.values import check_bool
from backpass.contract.wanted import Wanted
from backpass.cost.letters import LAYERS, check_length, lengths_of
from backpass.cost.networks import model_named, model_of
from backpass.models import gpt2, llama
from backpass.models._hugging_face import check_type
from backpass.models._parameters import chosen_own
from backpass.models.layers.calls import Part

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

# Classes of Hugging Face that have an output head, by the ends of their names.
HEADS = ("ForCausalLM", "LMHeadModel")


def presets() -> dict[str, Any]:
    """Return the configurations that have a name, by name."""
    return {**gpt2.PRESETS, **llama.PRESETS, **OTHERS}


def configuration(config: Any) -> Any:
    """Return the configuration of that name, or a configuration unchanged. Raises
    LookupError for an unknown name, TypeError for another type."""
    if not isinstance(config, str):
        _check_is_read(config)
        model_of(config)
        return config
    known = presets()
    if config not in known:
        fault = no_such("preset", config, known)
        is_path = config.endswith(".json") or PurePath(config).name != config
        raise LookupError(f"{fault}; {_OF_A_FILE}" if is_path else fault)
    return known[config]


_OF_A_FILE = "for a file, pass cost.from_hugging_face(json.loads(text)) of its text"


def _check_is_read(config: object) -> None:
    """Raise TypeError for what describes a network of Hugging Face."""
    if isinstance(config, Mapping):
        hint = "for a config.json, pass cost.from_hugging_face(config)"
    elif isinstance(config, PurePath):
        hint = _OF_A_FILE
    elif callable(getattr(config, "to_dict", None)):
        hint = "pass cost.from_hugging_face(config.to_dict())"
    else:
        return
    raise TypeError(
        "config: expected a Config of a model of backpass.models, or the name of a "
        f"preset; got {type(config).__name__}; {hint}"
    )


def from_hugging_face(json: Mapping[str, Any]) -> Any:
    """Return the configuration that a ``config.json`` describes.

    A Mistral without a sliding window is a Llama. The scaling of rotations is ignored,
    because it does not change the cost. Without ``architectures`` the network has the
    output head of a language model. Raises TypeError unless ``json`` is a mapping;
    ValueError for another type, another head, or none, and for what is not supported,
    naming every fault.
    """
    kind = check_type(json, ("gpt2", "llama", "mistral", "qwen2", "qwen3"))
    _check_head(json.get("architectures"))
    if kind == "gpt2":
        return gpt2.Config.from_hugging_face(json)
    if kind == "mistral":
        json = _as_llama(json)
    kept = {key: value for key, value in json.items() if key not in llama.ROTATIONS}
    for rotation in (json.get(key) for key in reversed(llama.ROTATIONS)):
        if isinstance(rotation, Mapping):
            own = (llama.FRACTION, llama.BASE)  # no scaling
            kept |= {key: rotation[key] for key in own if rotation.get(key) is not None}
    return llama.Config.from_hugging_face(kept, without_dropout=True)


def _as_llama(json: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same ``config.json`` of a Mistral as that of a Llama, whose reader
    refuses a sliding window. Hugging Face's Mistral has its own defaults for keys that
    are missing, and does not read ``use_sliding_window``."""
    defaults = {"sliding_window": 4096, "num_key_value_heads": 8}
    kept = {key: value for key, value in json.items() if key != "use_sliding_window"}
    return {**defaults, **kept, "model_type": "llama"}


def _check_head(architectures: object) -> None:
    """Raise ValueError unless every class has the output head of a language model."""
    names = [] if architectures is None else architectures
    if not isinstance(names, list | tuple):
        raise ValueError(f"architectures: expected a list of names; got {names!r}")
    for name in names:
        if not isinstance(name, str) or not name.endswith(HEADS):
            raise ValueError(
                f"architectures: expected names that end in {' or '.join(HEADS)}, "
                f"which have the output head that is counted; got {name!r}"
            )


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
    _check_options(options, model, _options_of(model))
    check_bool(flash=flash, chunked=chunked)
    check_length("sequence", sequence)  # a pair is not one
    if options.get("source") is not None:
        check_length("source", options["source"])
    lengths_of(config, batch, sequence)
    options |= {"flash": flash, "wanted": wanted, **_of_head(model, chunked)}
    parts = model.calls(config, batch, sequence, **options)
    shapes = model.parameter_shapes(config)
    tied_to = model.TABLE if getattr(config, "tied", False) else None
    trained = chosen_own(wanted, shapes, tied_to)
    return Network(
        f"{model.__name__.rpartition('.')[2]}, batch {batch}, sequence {sequence}",
        parts,
        sum(map(size, shapes.values())),
        sum(size(shapes[name]) for name in trained),
    )


def symbolic_network(family: str, **options: Any) -> Network:
    """Return the calls of a family of models in SymPy symbols, with plain attention,
    no dropout, and the whole head unless ``chunked``. ``options`` are those of the
    model's ``calls``, and fields of the configuration; ``wanted`` requires numbers of
    layers among them. Raises LookupError for an unknown family, TypeError or ValueError
    for options that symbols do not have."""
    import sympy

    model, config = model_named(family), SimpleNamespace(**_FLAGS[family])
    fields = model.Config.__dataclass_fields__
    for name, letter in LETTERS.items():
        if name in fields:
            setattr(config, name, sympy.Symbol(letter, positive=True, integer=True))
    for name in [name for name in options if name in fields]:
        setattr(config, name, options.pop(name))
    for name, why in _NUMBERS_ONLY.items():
        given = options.pop(name, False)
        check_bool(**{name: given})
        if given:
            raise ValueError(f"{name}: expected False in symbols, {why}; got True")
    chunked = options.pop("chunked", False)
    check_bool(chunked=chunked)
    known = [name for name in _options_of(model) if name not in _NUMBERS_ONLY]
    _check_options(options, model, [*known, *fields])
    if options.get("wanted") is not None:
        for name in (name for name in LAYERS if name in fields):
            if not isinstance(getattr(config, name), Integral):
                raise ValueError(
                    "wanted: expected None, for all gradients, where the number of "
                    f"layers is a symbol; give {name} a number"
                )
    if family == "seq2seq":
        layers = {"layers": config.encoder_layers, "final_norm": True}
        config.encoder_config = SimpleNamespace(**vars(config), **layers)
    b, s = sympy.symbols("b s", positive=True, integer=True)
    of_head = _of_head(model, chunked)
    parts = model.calls(config, b, s, flash=False, **of_head, **options)
    return Network(f"{family}, in symbols", parts, None, None)


def _options_of(model: ModuleType) -> list[str]:
    """Return the names of the options of a model's ``calls``."""
    parameters = inspect.signature(model.calls).parameters.values()
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]


def _check_options(
    options: Collection[str], model: ModuleType, known: Collection[str]
) -> None:
    """Raise TypeError for an option that is not among those ``known`` of the model."""
    for name in options:
        if name not in known:
            family = model.__name__.rpartition(".")[2]
            raise TypeError(no_such(f"option of {family}", name, known))


def _of_head(model: Any, chunked: bool) -> dict[str, bool]:
    """Return the option for a model's output head. Raises ValueError for a chunked head
    of a model without one."""
    if model in (gpt2, llama):
        return {"chunked": chunked}
    if chunked:
        raise ValueError(
            "chunked: expected False for a stack of layers, which has no output head; "
            "got True"
        )
    return {}


_NUMBERS_ONLY = {
    "flash": "because FlashAttention's tiles depend on the numbers",
    "masks": "which have no dropout",
}
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
