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
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

from backpass.contract.arrays import Array, namespace
from backpass.contract.shapes import check_inputs, check_saved
from backpass.contract.values import check_bool, check_eps, check_loss_scale
from backpass.contract.wanted import Wanted
from backpass.models import _hugging_face
from backpass.models._calls import token_embedding
from backpass.models._hugging_face import Accepted
from backpass.models._parameters import (
    HEAD,
    Names,
    Shapes,
    check_config,
    check_unused,
    chosen,
    chosen_own,
    names_in_layer,
    preset_in,
    read,
    runs,
    shapes_in_layer,
    through,
    wanted_in_parts,
)
from backpass.models.layers import llama_layer, output_head
from backpass.models.layers.calls import Part, call, quotient
from backpass.models.layers.kernel import (
    implementation,
    scheme_for,
    shapes_for,
    unwrapped,
)
from backpass.models.layers.recomputed import Recompute, divided, stacked
from backpass.ops import embedding, rms_norm, rope

SHAPES = "tokens[*, s>0]:int, targets[*, s]:int, table[V>0, h] -> loss[]"
PREFIX = "model."
TABLE, NORM = "embed_tokens.weight", "norm.weight"


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
        sizes = ("vocabulary", "width", "layers", "heads", "key_heads", "head_width")
        _hugging_face.check_numbers(self, *sizes, "feed_forward")
        check_eps(self.eps)
        flags = ("tied", "biases", "query_key_norm")
        check_bool(**{name: getattr(self, name) for name in flags})
        if self.heads % self.key_heads:
            raise ValueError(
                f"key_heads: expected a divisor of heads = {self.heads}; "
                f"got {self.key_heads}"
            )
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
        vocabulary, width, layers, heads, feed_forward = (json[key] for key in SIZES)
        key_heads, head_width = (json.get(key) for key in own)
        if head_width is None and kind == "qwen3":
            head_width = 128
        elif head_width is None:
            if width % heads:
                raise ValueError(
                    "hidden_size: expected a multiple of num_attention_heads = "
                    f"{heads} where head_dim is missing; got {width}"
                )
            head_width = width // heads
        return cls(
            vocabulary,
            width,
            layers,
            heads,
            heads if key_heads is None else key_heads,
            head_width,
            feed_forward,
            json.get("rms_norm_eps", 1e-6),
            facts[BASE],
            json.get("tie_word_embeddings", False),
            biases=kind == "qwen2",
            query_key_norm=kind == "qwen3",
        )


SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
)
ROTATIONS = ("rope_parameters", "rope_scaling")
BASE = "rope_theta"  # in a file's rotations or in the file itself
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


def parameter_shapes(config: Config) -> Shapes:
    """Return the shape of each parameter, by its name without the prefix."""
    c, h = config, config.width
    q, p = c.heads * c.head_width, c.key_heads * c.head_width
    lengths = {"h": h, "q": q, "p": p, "k": c.head_width // 2, "f": c.feed_forward}
    in_layer = shapes_in_layer(llama_layer, lengths)
    shapes: Shapes = {TABLE: (c.vocabulary, h)}
    for layer in layer_names(c):
        shapes |= {name: in_layer[argument] for argument, name in layer.items()}
    shapes |= {NORM: (h,)}
    return shapes if c.tied else {**shapes, HEAD: (c.vocabulary, h)}


class Saved(NamedTuple):
    """What each part saved, in the order of the forward. ``backward`` empties the
    list."""

    parts: list[Any]
    loss: Array
    config: Config
    given: dict[str, str]  # the names that the parameters were given under
    wanted: frozenset[str]


def forward(
    parameters: Mapping[str, Array],
    tokens: Array,
    targets: Array,
    *,
    config: Config,
    flash: bool = True,
    chunked: bool = True,
    kernels: Any = None,
    recompute: Recompute = None,
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return the mean cross-entropy ``loss[]`` of the targets ``[*, s]``, which stand
    beside the tokens ``[*, s]``; −100 is ignored. In half precision it is float32.

    ``flash`` and ``chunked`` are options of ``llama_attention`` and ``output_head``.
    ``kernels`` is ``backpass.kernels``, to run its kernels where there are any, or the
    ranks of ``backpass.parallel``.
    ``recompute`` is that of ``gpt2.forward``. ``wanted`` names the parameters to train.

    Raises ValueError for parameters that do not fit the configuration, naming all of
    them, and for shapes that do not fit; TypeError if ``parameters`` is not a mapping,
    ``tokens`` or ``targets`` is not an integer array, or libraries or devices differ;
    IndexError for a token or a target outside the vocabulary.
    """
    check_config(config, Config)
    c, tied_to = config, TABLE if config.tied else None
    shapes = shapes_for(kernels, parameter_shapes(c))
    w, given = read(parameters, shapes, prefix=PREFIX, tied_to=tied_to)
    wanted = chosen(wanted, given, tied_to)
    check_inputs(SHAPES, tokens=tokens, targets=targets, table=w[TABLE])
    layers, head = layer_names(c), tied_to or HEAD
    *of_layers, of_norm, of_head = _wanted_in_parts(c, wanted)
    parts: list[Any] = [None] * (len(layers) + 3)

    every, in_layers = divided(recompute, kernels)

    options: dict[str, Any] = {"eps": c.eps, "flash": flash, "kernels": in_layers}
    x, parts[0] = scheme_for(embedding, kernels).forward(tokens, w[TABLE])
    tables = scheme_for(rope, kernels).tables
    cos, sin = tables(x.shape[-2], c.head_width, base=c.base, like=x)
    options |= {"cos": cos, "sin": sin}
    forwards = [
        partial(
            llama_layer.forward,
            **{argument: w[name] for argument, name in layer.items()},
            **options,
            wanted=of_layers[i],
        )
        for i, layer in enumerate(layers)
    ]
    x, parts[1:-2] = stacked(forwards, x, every)
    norm = implementation(rms_norm, kernels)
    x, parts[-2] = norm.forward(x, w[NORM], eps=c.eps, wanted=of_norm)
    loss, parts[-1] = scheme_for(output_head, kernels).forward(
        x,
        w[head],
        targets,
        chunked=chunked,
        wide=True,
        kernels=kernels,
        wanted=of_head,
    )
    return loss, Saved(parts, loss, c, given, wanted)


def backward(saved: Saved, *, scale: float = 1) -> dict[str, Array]:
    """Return the gradient of the loss with respect to each parameter that was wanted,
    by the name under which it was given. Frees what forward saved.

    ``scale`` multiplies the loss, and so every gradient: ``backpass.training.scaling``
    says when float16 needs it.

    Raises TypeError unless ``saved`` is what forward returned second and ``scale`` a
    real number; ValueError if backward has already run, or for a ``scale`` that is not
    above 0 and finite.
    """
    parts, loss, c, given, wanted = check_saved(saved, Saved)
    check_loss_scale(scale)
    layers = layer_names(c)
    check_unused(parts, len(layers) + 3)
    d: dict[str, Any] = {}

    dloss = namespace(loss).full_like(loss, scale)
    head, saved_head = unwrapped(output_head, parts.pop())
    dx, dhead = head.backward_once(dloss, saved_head)
    del saved_head
    dx, d[NORM] = through(rms_norm, dx, parts.pop())
    for layer in reversed(layers):
        dx, *dw = through(llama_layer, dx, parts.pop())
        by_argument = dict(zip(llama_layer.PARAMETERS, dw, strict=True))
        d |= {name: by_argument[argument] for argument, name in layer.items()}
    table, tokens = unwrapped(embedding, parts.pop())

    # In the forward pass a tied table was read twice, by the tokens and by the output
    # head; so now both gradients are added.
    if c.tied and TABLE in wanted:
        d[TABLE] = table.backward_onto(dhead, dx, tokens)
    elif TABLE in wanted:
        d[TABLE] = table.backward(dx, tokens)
    if not c.tied:
        d[HEAD] = dhead
    return {name: d[own] for own, name in given.items() if own in wanted}


def layer_names(c: Config) -> list[dict[str, str]]:
    """Return the name of each parameter of each layer, by the layer's argument."""
    biases, norms = ("b_q", "b_k", "b_v"), ("norm_q_w", "norm_k_w")
    absent = (*(() if c.biases else biases), *(() if c.query_key_norm else norms))
    layers = [names_in_layer(llama_layer, f"layers.{i}.") for i in range(c.layers)]
    return [
        {argument: name for argument, name in layer.items() if argument not in absent}
        for layer in layers
    ]


def _wanted_in_parts(c: Config, wanted: frozenset[str]) -> list[tuple[str, ...]]:
    """Return the wanted gradients of each layer, of the last norm, and of the head."""
    head = {"w": TABLE if c.tied else HEAD}
    return wanted_in_parts(
        [*layer_names(c), {"w": NORM}, head], wanted, x=TABLE in wanted
    )


def calls(
    config: Config,
    batch: Any,
    sequence: Any,
    *,
    flash: bool = True,
    chunked: bool = True,
    distinct: Any = 0,
    wanted: Wanted = None,
) -> list[Part]:
    """Return the operations that ``forward`` and ``backward`` call, with the lengths in
    them, for ``batch`` sequences of ``sequence`` tokens. The options are those of
    ``gpt2.calls``."""
    c, h, m, d = config, config.width, batch * sequence, config.head_width
    own = frozenset({TABLE})
    of_parts: list[Names] = [("x", "w"), ("x", "w")]
    if wanted is not None:
        own = chosen_own(wanted, parameter_shapes(c), TABLE if c.tied else None)
        of_parts = _wanted_in_parts(c, own)
    *of_layers, of_norm, of_head = of_parts
    sizes = {"m": batch, "s": sequence, "h": h, "k": quotient(d, 2)}
    sizes |= {"q": c.heads * d, "p": c.key_heads * d, "f": c.feed_forward}
    given = dict.fromkeys(("has_b_q", "has_b_k", "has_b_v"), c.biases)
    given |= dict.fromkeys(("has_norm_q_w", "has_norm_k_w"), c.query_key_norm)
    layers = [
        Part(
            "layer",
            repeats,
            llama_layer.calls(**sizes, **given, flash=flash, wanted=of_layer),
        )
        for repeats, of_layer in runs(wanted, c.layers, of_layers)
    ]
    headed = output_head.calls(m, h, c.vocabulary, chunked, of_head)
    return [
        Part("embedding", 1, (token_embedding(c, m, distinct, TABLE in own),)),
        *layers,
        Part("last norm", 1, (call("last norm", rms_norm, of_norm, m=m, n=h),)),
        Part("output head", 1, headed),
    ]


def part_names(config: Config) -> list[str]:
    """Return the name of each part, in the order of the forward and of ``Saved.parts``.
    It is the name of Hugging Face's module, with which the names of the part's
    parameters begin."""
    layers = [f"layers.{i}" for i in range(config.layers)]
    return ["embed_tokens", *layers, "norm", "lm_head"]


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
        "vocab_size": c.vocabulary,
        "hidden_size": c.width,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.key_heads,
        "head_dim": c.head_width,
        "intermediate_size": c.feed_forward,
        "rms_norm_eps": c.eps,
        BASE: c.base,
        "rope_parameters": {"rope_type": "default", BASE: c.base},
        "tie_word_embeddings": c.tied,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
    }
