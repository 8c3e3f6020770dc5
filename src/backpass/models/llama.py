"""Llama: rotary positions, RMS norms, query heads that share key heads, and SwiGLU.

Qwen2 and Qwen3 are configurations of it: Qwen2 has a bias on queries, keys, and values;
Qwen3 normalises each query and each key, and the width of its heads is free.

``backpass.models`` describes the interface. The names and layouts of the parameters are
those of Hugging Face's ``LlamaForCausalLM``, ``Qwen2ForCausalLM``, and
``Qwen3ForCausalLM``, whose ``Linear`` stores ``[out, in]``. The architectures are those
of Touvron et al., "LLaMA: Open and Efficient Foundation Language Models" (2023), and of
the technical reports of Qwen2 (2024) and Qwen3 (2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from backpass.contract.arrays import Array
from backpass.models import _hugging_face, language_model
from backpass.models._hugging_face import Accepted
from backpass.models._parameters import preset_in
from backpass.models.language_model import Family
from backpass.models.layers import llama_layer
from backpass.models.layers.calls import quotient
from backpass.models.layers.kernel import scheme_for
from backpass.models.stacks import Stack, piece
from backpass.ops import rms_norm, rope

PREFIX = "model."
TABLE = "embed_tokens.weight"


@dataclass(frozen=True)
class Config:
    """The sizes of a Llama, and the parts in which its relatives differ.

    Raises ValueError if a size is not an integer of at least 1, ``key_heads`` does not
    divide ``heads``, ``head_width`` is odd, or ``base`` is not above 0.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    key_heads: int  # each is shared by heads / key_heads query heads
    head_width: int
    feed_forward: int  # the width inside the feed-forward block
    eps: float = 1e-6
    base: float = 10000.0  # of the rotary positions' frequencies
    tied: bool = False  # whether the output head is the table of tokens
    biases: bool = False  # on queries, keys, and values: Qwen2
    query_key_norm: bool = False  # Qwen3

    def __post_init__(self) -> None:
        _hugging_face.check_fields(self)
        _hugging_face.check_divides(self, "key_heads", "heads")
        if self.head_width % 2:
            raise ValueError(
                f"head_width: expected an even number; got {self.head_width}"
            )
        if not isinstance(self.base, Real):
            raise TypeError(
                f"base: expected a real number; got {type(self.base).__name__}"
            )
        if not self.base > 0:
            raise ValueError(f"base: expected a number above 0; got {self.base}")

    @classmethod
    def preset(cls, name: str) -> Config:
        """Return the configuration of a published model. Raises LookupError."""
        return preset_in(PRESETS, name)

    @classmethod
    def from_hugging_face(
        cls, json: Mapping[str, Any], *, without_dropout: bool = False
    ) -> Config:
        """Return the configuration that a ``config.json`` describes.

        Dropout is not supported; with ``without_dropout``, a file's rates of dropout
        are ignored, as in evaluation. ``pad_token_id`` is not read: Hugging Face leaves
        that token's row of the table without a gradient. Raises TypeError unless
        ``json`` is a mapping; ValueError, naming every fault, if it lacks a size or
        asks for something that is not supported.
        """
        kind = _hugging_face.check_type(json, ("llama", "qwen2", "qwen3"))
        rotations = {key: json.get(key) for key in ROTATIONS}
        for key, value in rotations.items():
            if value is not None and not isinstance(value, Mapping):
                raise ValueError(
                    f"{key}: expected a mapping; got {type(value).__name__}"
                )
        rotation = next(filter(None, rotations.values()), {})
        bases = (given.get(BASE) for given in (rotation, json))
        facts = {
            **json,
            "rope_type": rotation.get("rope_type", rotation.get("type", "default")),
            "layer_types": _different(json.get("layer_types")),
            BASE: next((base for base in bases if base is not None), 10000.0),
        }
        if FRACTION in rotation:
            facts[FRACTION] = rotation[FRACTION]
        if json.get("use_sliding_window", kind == "llama") is False:
            facts["sliding_window"] = None  # Qwen2's files give an unused width
        accepted = ACCEPTED if without_dropout else {**ACCEPTED, **DROPOUTS}
        own = ("num_key_value_heads", "head_dim")
        _hugging_face.check_keys(facts, SIZES, accepted, optional=own, positive=(BASE,))
        given = {name: facts[key] for key, name in KEYS.items() if key in facts}
        width, heads, head_width = given["width"], given["heads"], json.get("head_dim")
        if given.get("key_heads") is None:
            given["key_heads"] = heads
        if head_width is None and kind == "qwen3":
            head_width = 128
        elif head_width is None:
            if width % heads:
                raise ValueError(
                    "hidden_size: expected a multiple of num_attention_heads = "
                    f"{heads} where head_dim is missing; got {width}"
                )
            head_width = width // heads
        given["head_width"] = head_width
        return cls(**given, biases=kind == "qwen2", query_key_norm=kind == "qwen3")


BASE = "rope_theta"  # in a file's rotations or in the file itself
SIZES = {
    "vocab_size": "vocabulary",
    "hidden_size": "width",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "intermediate_size": "feed_forward",
}
# The fields, by Hugging Face's key; a file must have the sizes.
KEYS = {
    **SIZES,
    "num_key_value_heads": "key_heads",
    "head_dim": "head_width",
    "rms_norm_eps": "eps",
    BASE: "base",
    "tie_word_embeddings": "tied",
}
ROTATIONS = ("rope_parameters", "rope_scaling")
FRACTION = "partial_rotary_factor"  # of each head, which rotates
# The accepted values, by key; the first is Hugging Face's default.
ACCEPTED: Accepted = {
    "hidden_act": ("silu", "swish"),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "rope_type": ("default",),
    FRACTION: (1.0, None),
    "use_sliding_window": (False,),
    "sliding_window": (None,),
    "layer_types": ([], ["full_attention"]),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "quantization_config": (None,),
    "is_causal": (True, None),
}
DROPOUTS: Accepted = {"attention_dropout": (0,)}

PRESETS = {
    "llama-2-7b": Config(32000, 4096, 32, 32, 32, 128, 11008, 1e-5),
    "llama-3-8b": Config(128256, 4096, 32, 32, 8, 128, 14336, 1e-5, 500000.0),
    "llama-3-70b": Config(128256, 8192, 80, 64, 8, 128, 28672, 1e-5, 500000.0),
    "tinyllama-1.1b": Config(32000, 2048, 22, 32, 4, 64, 5632, 1e-5),
    "qwen2-0.5b": Config(
        151936, 896, 24, 14, 2, 64, 4864, 1e-6, 1e6, tied=True, biases=True
    ),
    "qwen3-0.6b": Config(
        151936, 1024, 28, 16, 8, 128, 3072, 1e-6, 1e6, tied=True, query_key_norm=True
    ),
    "qwen3-8b": Config(
        151936, 4096, 36, 32, 8, 128, 12288, 1e-6, 1e6, query_key_norm=True
    ),
}


def _different(kinds: Any) -> Any:
    """Return each kind of layer once, or what is not a list as it is."""
    if not isinstance(kinds, list | tuple):
        return [] if kinds is None else kinds
    return [kind for i, kind in enumerate(kinds) if kind not in kinds[:i]]


def stack(c: Config, *, flash: bool = True) -> Stack:
    """Return the layers, and an RMS norm."""
    h, q, p = c.width, c.heads * c.head_width, c.key_heads * c.head_width
    lengths = {
        "h": h,
        "q": q,
        "p": p,
        "k": quotient(c.head_width, 2),
        "f": c.feed_forward,
    }
    biases, norms = ("b_q", "b_k", "b_v"), ("norm_q_w", "norm_k_w")
    absent = (*(() if c.biases else biases), *(() if c.query_key_norm else norms))
    eps = {"eps": c.eps}
    layers = [
        piece(f"layers.{i}", llama_layer, lengths, {**eps, "flash": flash}, absent)
        for i in range(c.layers)
    ]
    return Stack((), layers, [piece("norm", rms_norm, {"n": h}, eps)])


def angles(c: Config, x: Array, kernels: Any) -> dict[str, Array]:
    """Return RoPE's tables for the rows ``x[*, s, h]``, which all layers share."""
    tables = scheme_for(rope, kernels).tables
    cos, sin = tables(x.shape[-2], c.head_width, base=c.base, like=x)
    return {"cos": cos, "sin": sin}


FAMILY = Family(Config, PREFIX, TABLE, stack, angles)
parameter_shapes, layer_names = FAMILY.parameter_shapes, FAMILY.layer_names
part_names = FAMILY.part_names
forward = FAMILY.bound(language_model.forward)
backward = FAMILY.bound(language_model.backward)
calls = FAMILY.bound(language_model.calls)


def to_hugging_face(config: Config) -> dict[str, Any]:
    """Return the ``config.json`` that ``Config.from_hugging_face`` reads.

    Raises ValueError for biases together with query-key norms, since Qwen2 has only the
    former and Qwen3 only the latter.
    """
    c = config
    if c.biases and c.query_key_norm:
        raise ValueError(
            "config: expected biases or query_key_norm; got both, which none of Llama, "
            "Qwen2, and Qwen3 has"
        )
    kind = "Qwen2" if c.biases else "Qwen3" if c.query_key_norm else "Llama"
    return {
        "architectures": [f"{kind}ForCausalLM"],
        "model_type": kind.lower(),
        **_hugging_face.fields_under(KEYS, c),
        "rope_parameters": {"rope_type": "default", BASE: c.base},
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
    }
