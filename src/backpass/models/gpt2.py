"""GPT-2: learned positions, layers with biases, tanh-GELU, and dropout, and an output
head that usually shares the token embedding's table.

``backpass.models`` describes the interface. The names and layouts of the parameters are
those of Hugging Face's ``GPT2LMHeadModel``, whose ``Conv1D`` stores ``[in, out]``. The
architecture is that of Radford et al., "Language Models are Unsupervised Multitask
Learners" (2019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backpass.contract.arrays import Array
from backpass.contract.values import check_bool, check_natural, check_probability
from backpass.contract.wanted import Wanted
from backpass.models import _hugging_face, language_model
from backpass.models._hugging_face import Accepted
from backpass.models._parameters import Names, preset_in
from backpass.models.language_model import Family, Saved
from backpass.models.layers import gpt2_layer, seed_of
from backpass.models.layers.calls import Call, Part, call
from backpass.models.layers.recomputed import Recompute
from backpass.models.stacks import Stack, piece
from backpass.ops import dropout, layer_norm, position_embedding

PREFIX = "transformer."
TABLE, POSITIONS = "wte.weight", "wpe.weight"


@dataclass(frozen=True)
class Config:
    """The sizes of a GPT-2, whether the output head is the table of tokens, and the
    rates of dropout in training.

    Raises ValueError if a size is not an integer of at least 1, ``heads`` does not
    divide ``width``, or a rate is outside 0 to 1; TypeError if a rate is not a number.
    """

    vocabulary: int
    positions: int  # the longest sequence
    width: int
    layers: int
    heads: int
    feed_forward: int  # the width inside the feed-forward block
    eps: float = 1e-5
    tied: bool = True
    embedding_dropout: float = 0.0  # of the rows that enter the first layer
    attention_dropout: float = 0.0  # of the weights of attention
    residual_dropout: float = 0.0  # of the output of each block

    def __post_init__(self) -> None:
        _hugging_face.check_fields(self)
        check_probability(**{name: getattr(self, name) for name in RATES.values()})
        _hugging_face.check_divides(self, "heads", "width")

    @classmethod
    def preset(cls, name: str) -> Config:
        """Return the configuration of a published model. Raises LookupError."""
        return preset_in(PRESETS, name)

    @classmethod
    def from_hugging_face(cls, json: Mapping[str, Any]) -> Config:
        """Return the configuration that a ``config.json`` describes.

        Raises TypeError unless ``json`` is a mapping; ValueError, naming every fault,
        if it lacks a size or asks for something that is not supported.
        """
        _hugging_face.check_type(json, ("gpt2",))
        _hugging_face.check_keys(json, NEEDED, ACCEPTED, optional=("n_inner",))
        keys = {**KEYS, **RATES}
        given = {name: json[key] for key, name in keys.items() if key in json}
        if given.get("feed_forward") is None:
            given["feed_forward"] = 4 * given["width"]
        return cls(**PUBLISHED | given)


# The fields, by Hugging Face's key, and the keys that a file must have.
KEYS = {
    "vocab_size": "vocabulary",
    "n_positions": "positions",
    "n_embd": "width",
    "n_layer": "layers",
    "n_head": "heads",
    "n_inner": "feed_forward",
    "layer_norm_epsilon": "eps",
    "tie_word_embeddings": "tied",
}
NEEDED = [*KEYS][:5]
# The accepted values, by key; the first is Hugging Face's default.
ACCEPTED: Accepted = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "quantization_config": (None,),
    "is_causal": (True, None),
}
# The rates of dropout, by Hugging Face's key.
RATES = {
    "embd_pdrop": "embedding_dropout",
    "attn_pdrop": "attention_dropout",
    "resid_pdrop": "residual_dropout",
}

PUBLISHED: dict[str, Any] = dict.fromkeys(RATES.values(), 0.1)
PRESETS = {
    "gpt2": Config(50257, 1024, 768, 12, 12, 3072, **PUBLISHED),
    "gpt2-medium": Config(50257, 1024, 1024, 24, 16, 4096, **PUBLISHED),
    "gpt2-large": Config(50257, 1024, 1280, 36, 20, 5120, **PUBLISHED),
    "gpt2-xl": Config(50257, 1024, 1600, 48, 25, 6400, **PUBLISHED),
}


def stack(
    c: Config, *, flash: bool = True, masks: Sequence[int] | None = None
) -> Stack:
    """Return learned positions and dropout, the layers, and a layer norm. ``masks`` are
    those of ``forward``."""
    h, (rates, (of_rows, *seeds)) = c.width, _dropout(c, masks)
    rows = {"p": c.embedding_dropout, "seed": of_rows, "training": masks is not None}
    lengths = {"h": h, "q": h, "p": 3 * h, "f": c.feed_forward}
    options = {"heads": c.heads, "eps": c.eps, "flash": flash, **rates}
    before = (
        piece("wpe", position_embedding, {"s": c.positions, "r": 0, "h": h}, {}),
        piece("drop", dropout, {}, rows),
    )
    layers = [
        piece(f"h.{i}", gpt2_layer, lengths, {**options, "seed": seed})
        for i, seed in enumerate(seeds)
    ]
    return Stack(before, layers, [piece("ln_f", layer_norm, {"n": h}, {"eps": c.eps})])


def _dropout(
    c: Config, masks: Sequence[int] | None
) -> tuple[dict[str, float], list[int]]:
    """Return the rates of dropout in a layer, and the seeds of the embedding's mask and
    of each layer. Raises TypeError or ValueError."""
    if masks is None:
        return {}, [0] * (1 + c.layers)
    if isinstance(masks, str) or not isinstance(masks, Sequence):
        raise TypeError(
            "masks: expected integers such as (seed, step), or None for no dropout; "
            f"got {masks!r}"
        )
    check_natural(**{f"masks[{i}]": number for i, number in enumerate(masks)})
    names = ("attention_dropout", "residual_dropout")
    rates = {name: getattr(c, name) for name in names}
    return rates, [seed_of(*masks, i) for i in range(1 + c.layers)]


FAMILY = Family(Config, PREFIX, TABLE, stack)
parameter_shapes, layer_names = FAMILY.parameter_shapes, FAMILY.layer_names
part_names = FAMILY.part_names
backward = FAMILY.bound(language_model.backward)


def forward(
    parameters: Mapping[str, Array],
    tokens: Array,
    targets: Array,
    *,
    config: Config,
    flash: bool = True,
    chunked: bool = True,
    masks: Sequence[int] | None = None,
    kernels: Any = None,
    recompute: Recompute = None,
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return what ``language_model.forward`` returns, which describes the options.

    ``masks`` are the integers that determine the masks of dropout, such as a seed, the
    number of the step, and that of the micro-batch: each mask is drawn from them, its
    layer, and its place. None is for evaluation: nothing is dropped.
    """
    options: dict[str, Any] = {"flash": flash, "chunked": chunked, "kernels": kernels}
    options |= {"config": config, "recompute": recompute, "wanted": wanted}
    options |= {"masks": masks}
    return language_model.forward(FAMILY, parameters, tokens, targets, **options)


def calls(
    config: Config,
    batch: Any,
    sequence: Any,
    *,
    flash: bool = True,
    chunked: bool = True,
    masks: bool = False,
    distinct: Any = 0,
    wanted: Wanted = None,
) -> list[Part]:
    """Return what ``language_model.calls`` returns, which describes the options.

    ``masks`` says whether there is dropout.
    """
    check_bool(masks=masks)
    c, h, p = config, config.width, config.embedding_dropout if masks else 0.0
    added = {"m": batch, "s": sequence, "r": c.positions - sequence, "h": h}
    dropped = {"m": batch * sequence * h, "p": p}

    def before(of_positions: Names, of_rows: Names) -> tuple[Call, ...]:
        return (
            call("position embedding", position_embedding, of_positions, **added),
            call("dropout", dropout, of_rows, **dropped),
        )

    options: dict[str, Any] = {
        "flash": flash,
        "masks": (0,) if masks else None,
        "chunked": chunked,
    }
    options |= {"distinct": distinct, "wanted": wanted, "before": before}
    return language_model.calls(FAMILY, config, batch, sequence, **options)


def to_hugging_face(config: Config) -> dict[str, Any]:
    """Return the ``config.json`` that ``Config.from_hugging_face`` reads."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        **_hugging_face.fields_under(KEYS, config),
        "activation_function": "gelu_new",
        **_hugging_face.fields_under(RATES, config),
        "bos_token_id": None,
        "eos_token_id": None,
    }
