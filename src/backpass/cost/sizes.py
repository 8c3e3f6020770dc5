"""Networks by their sizes: a model with its configuration, which may be a preset's or
that of a ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from pathlib import PurePath
from types import ModuleType
from typing import Any, NamedTuple

from backpass.contract.arrays import size
from backpass.contract.stems import entry, no_such
from backpass.models import encoder, gpt2, llama, seq2seq
from backpass.models._hugging_face import check_type

MODELS = {"gpt2": gpt2, "llama": llama, "encoder": encoder, "seq2seq": seq2seq}

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

# The letter of a field, in symbols.
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

# Classes of Hugging Face that have an output head, by the ends of their names.
HEADS = ("ForCausalLM", "LMHeadModel")


def presets() -> dict[str, Any]:
    """Return the configurations that have a name, by name."""
    return {**gpt2.PRESETS, **llama.PRESETS, **OTHERS}


class Network(NamedTuple):
    """A model of ``backpass.models`` with its configuration."""

    model: ModuleType
    config: Any

    @property
    def family(self) -> str:
        """The name of the model."""
        return self.model.__name__.rpartition(".")[2]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the parameters, by name."""
        return self.model.parameter_shapes(self.config)

    @property
    def parameters(self) -> int:
        """The number of the parameters. A tied one counts once."""
        return sum(map(size, self.shapes.values()))

    @property
    def has_head(self) -> bool:
        """Whether it maps tokens to a loss, through an output head."""
        return hasattr(self.model, "FAMILY")

    def having(self, **fields: Any) -> Network:
        """Return the network whose configuration has these fields instead."""
        return self._replace(config=replace(self.config, **fields))


def network_of(config: Any) -> Network:
    """Return the network of a configuration, or of the preset of that name. Raises
    LookupError for an unknown name, TypeError for another type."""
    config = _preset(config) if isinstance(config, str) else config
    for model in MODELS.values():
        if isinstance(config, model.Config):
            return Network(model, config)
    raise TypeError(
        "config: expected a Config of a model of backpass.models, or the name of a "
        f"preset; got {type(config).__name__}{_hint(config)}"
    )


def configuration(config: Any) -> Any:
    """Return the configuration of that name, or a configuration unchanged. Raises
    LookupError for an unknown name, TypeError for another type."""
    return network_of(config).config


def model_named(name: str) -> ModuleType:
    """Return the model of that name. Raises LookupError, with the closest name."""
    return entry("model", name, MODELS)


def example(name: str) -> Any:
    """Return a small configuration of the model of that name, with the default of every
    field that has one. Raises LookupError for an unknown model."""
    own = model_named(name).Config
    sizes = (field.name for field in fields(own) if field.default is MISSING)
    return own(**{size: 2 if "width" in size else 1 for size in sizes})


def flags_of(name: str) -> dict[str, bool]:
    """Return the boolean fields of a model's configuration, with their defaults. Raises
    LookupError for an unknown model."""
    defaults = ((each.name, each.default) for each in fields(model_named(name).Config))
    return {name: value for name, value in defaults if isinstance(value, bool)}


def _preset(name: str) -> Any:
    known = presets()
    if name not in known:
        fault = no_such("preset", name, known)
        is_path = name.endswith(".json") or PurePath(name).name != name
        raise LookupError(f"{fault}; {_OF_A_FILE}" if is_path else fault)
    return known[name]


_OF_A_FILE = "for a file, pass cost.from_hugging_face(json.loads(text)) of its text"


def _hint(config: object) -> str:
    """Return how to pass what describes a network of Hugging Face."""
    if isinstance(config, Mapping):
        return "; for a config.json, pass cost.from_hugging_face(config)"
    if isinstance(config, PurePath):
        return f"; {_OF_A_FILE}"
    if callable(getattr(config, "to_dict", None)):
        return "; pass cost.from_hugging_face(config.to_dict())"
    return ""


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
    rejects a sliding window. Hugging Face's Mistral has its own defaults for keys that
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
