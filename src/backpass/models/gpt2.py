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
from functools import partial
from typing import Any, NamedTuple

from backpass.contract.arrays import Array, namespace
from backpass.contract.shapes import check_inputs, check_saved
from backpass.contract.values import (
    check_bool,
    check_eps,
    check_loss_scale,
    check_natural,
    check_probability,
)
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
from backpass.models.layers import check_no_dropout, gpt2_layer, output_head, seed_of
from backpass.models.layers.calls import Part, call
from backpass.models.layers.kernel import (
    implementation,
    scheme_for,
    shapes_for,
    unwrapped,
)
from backpass.models.layers.recomputed import Recompute, divided, stacked
from backpass.ops import dropout, embedding, layer_norm, position_embedding

SHAPES = "tokens[*, s>0]:int, targets[*, s]:int, table[V>0, h] -> loss[]"
PREFIX = "transformer."
TABLE, POSITIONS = "wte.weight", "wpe.weight"
NORM = {"w": "ln_f.weight", "b": "ln_f.bias"}


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
        sizes = ("vocabulary", "positions", "width", "layers", "heads", "feed_forward")
        _hugging_face.check_numbers(self, *sizes)
        check_eps(self.eps)
        check_bool(tied=self.tied)
        check_probability(**{name: getattr(self, name) for name in RATES.values()})
        if self.width % self.heads:
            raise ValueError(
                f"heads: expected a divisor of width = {self.width}; got {self.heads}"
            )

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
        needed = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")
        _hugging_face.check_keys(json, needed, ACCEPTED, optional=("n_inner",))
        vocabulary, positions, width, layers, heads = (json[key] for key in needed)
        feed_forward = json.get("n_inner")
        rates = {name: json.get(key, 0.1) for key, name in RATES.items()}
        return cls(
            vocabulary,
            positions,
            width,
            layers,
            heads,
            4 * width if feed_forward is None else feed_forward,
            json.get("layer_norm_epsilon", 1e-5),
            json.get("tie_word_embeddings", True),
            **rates,
        )


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


def parameter_shapes(config: Config) -> Shapes:
    """Return the shape of each parameter, by its name without the prefix."""
    c, h = config, config.width
    shapes: Shapes = {TABLE: (c.vocabulary, h), POSITIONS: (c.positions, h)}
    lengths = {"h": h, "q": h, "p": 3 * h, "f": c.feed_forward}
    in_layer = shapes_in_layer(gpt2_layer, lengths)
    for layer in layer_names(c):
        shapes |= {layer[argument]: shape for argument, shape in in_layer.items()}
    shapes |= dict.fromkeys(NORM.values(), (h,))
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
    masks: Sequence[int] | None = None,
    kernels: Any = None,
    recompute: Recompute = None,
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return the mean cross-entropy ``loss[]`` of the targets ``[*, s]``, which stand
    beside the tokens ``[*, s]``; −100 is ignored. In half precision it is float32.

    ``flash`` and ``chunked`` are options of ``gpt2_attention`` and ``output_head``.
    ``masks`` are the integers that determine the masks of dropout, such as a seed, the
    number of the step, and that of the micro-batch: each mask is drawn from them, its
    layer, and its place. None is for evaluation: nothing is dropped. ``kernels`` is
    ``backpass.kernels``, to run its kernels where there are any. ``recompute`` chooses
    what the backward runs again instead of saving it: an integer k, for k layers at a
    time, or names among "attention", "feed_forward", and "norms". ``wanted`` names the
    parameters to train.

    Raises ValueError for parameters that do not fit the configuration, naming all of
    them; for shapes that do not fit, for more tokens than positions, and if weights of
    attention are to be dropped with ``flash``. Raises TypeError if ``parameters`` is
    not a mapping, ``tokens`` or ``targets`` is not an integer array, or libraries or
    devices differ; IndexError for a token or a target outside the vocabulary.
    """
    check_config(config, Config)
    c, tied_to = config, TABLE if config.tied else None
    shapes = shapes_for(kernels, parameter_shapes(c))
    w, given = read(parameters, shapes, prefix=PREFIX, tied_to=tied_to)
    wanted = chosen(wanted, given, tied_to)
    check_inputs(SHAPES, tokens=tokens, targets=targets, table=w[TABLE])
    if tokens.shape[-1] > c.positions:
        raise ValueError(
            f"tokens: expected at most {c.positions} in a sequence, the number of "
            f"positions; got {tokens.shape[-1]}"
        )
    layers, head = layer_names(c), tied_to or HEAD
    of_positions, *of_layers, of_norm, of_head = _wanted_in_parts(c, wanted)
    parts: list[Any] = [None] * (len(layers) + 5)
    rates, (of_rows, *seeds) = _dropout(c, masks, flash)
    every, in_layers = divided(recompute, kernels)

    options: dict[str, Any] = {"heads": c.heads, "eps": c.eps, **rates}
    options |= {"flash": flash, "kernels": in_layers}
    x, parts[0] = scheme_for(embedding, kernels).forward(tokens, w[TABLE])
    added = scheme_for(position_embedding, kernels)
    x, parts[1] = added.forward(x, w[POSITIONS], wanted=of_positions)
    x, parts[2] = scheme_for(dropout, kernels).forward(
        x, p=c.embedding_dropout, seed=of_rows, training=masks is not None
    )
    forwards = [
        partial(
            gpt2_layer.forward,
            **{argument: w[name] for argument, name in layer.items()},
            **options,
            seed=seeds[i],
            wanted=of_layers[i],
        )
        for i, layer in enumerate(layers)
    ]
    x, parts[3:-2] = stacked(forwards, x, every)
    scale, shift = w[NORM["w"]], w[NORM["b"]]
    norm = implementation(layer_norm, kernels)
    x, parts[-2] = norm.forward(x, scale, shift, eps=c.eps, wanted=of_norm)
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
    check_unused(parts, len(layers) + 5)
    d: dict[str, Any] = {}

    dloss = namespace(loss).full_like(loss, scale)
    head, saved_head = unwrapped(output_head, parts.pop())
    dx, dhead = head.backward_once(dloss, saved_head)
    del saved_head
    dx, d[NORM["w"]], d[NORM["b"]] = through(layer_norm, dx, parts.pop())
    for layer in reversed(layers):
        dx, *dw = through(gpt2_layer, dx, parts.pop())
        d |= zip(layer.values(), dw, strict=True)
    dropped = parts.pop()
    dx = None if dx is None else dropout.backward(dx, dropped)
    dx, d[POSITIONS] = through(position_embedding, dx, parts.pop())
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
    return [names_in_layer(gpt2_layer, f"h.{i}.") for i in range(c.layers)]


def _wanted_in_parts(c: Config, wanted: frozenset[str]) -> list[tuple[str, ...]]:
    """Return the wanted gradients of the positions, of each layer, of the last norm,
    and of the head."""
    head = {"w": TABLE if c.tied else HEAD}
    names = [{"w": POSITIONS}, *layer_names(c), NORM, head]
    return wanted_in_parts(names, wanted, x=TABLE in wanted)


def _dropout(
    c: Config, masks: Sequence[int] | None, flash: bool
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
    check_no_dropout(flash, attention_dropout=c.attention_dropout)
    rates = {
        "attention_dropout": c.attention_dropout,
        "residual_dropout": c.residual_dropout,
    }
    return rates, [seed_of(*masks, i) for i in range(1 + c.layers)]


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
    """Return the operations that ``forward`` and ``backward`` call, with the lengths in
    them, for ``batch`` sequences of ``sequence`` tokens.

    ``masks`` says whether there is dropout. ``distinct`` is the number of distinct
    tokens: the first gradient of a row of the table is not added to anything, unless
    the table is the head too. 0 counts an addition for each token. If all gradients are
    wanted, sizes may be symbols. The other options are those of ``forward``.

    Raises TypeError or ValueError for a ``distinct`` that is not possible, and
    ValueError if weights of attention are to be dropped with ``flash``.
    """
    c, h, m = config, config.width, batch * sequence
    own = frozenset({TABLE})
    of_parts: list[Names] = [("x", "w"), ("x", "w", "b"), ("x", "w")]
    if wanted is not None:
        own = chosen_own(wanted, parameter_shapes(c), TABLE if c.tied else None)
        of_parts = _wanted_in_parts(c, own)
    of_positions, *of_layers, of_norm, of_head = of_parts
    rates = dict.fromkeys(("attention_dropout", "residual_dropout"), 0.0)
    check_bool(masks=masks)
    if masks:
        rates = {name: getattr(c, name) for name in rates}
        check_no_dropout(flash, attention_dropout=c.attention_dropout)
    p = c.embedding_dropout if masks else 0.0
    added = {"m": batch, "s": sequence, "r": c.positions - sequence, "h": h}
    sizes = {"m": batch, "s": sequence, "h": h, "q": h, "f": c.feed_forward}
    sizes["heads"] = c.heads
    layers = [
        Part(
            "layer",
            repeats,
            gpt2_layer.calls(**sizes, flash=flash, **rates, wanted=of_layer),
        )
        for repeats, of_layer in runs(wanted, c.layers, of_layers)
    ]
    embedded = (
        token_embedding(c, m, distinct, TABLE in own),
        call("position embedding", position_embedding, of_positions, **added),
        call("dropout", dropout, of_positions, m=m * h, p=p),
    )
    headed = output_head.calls(m, h, c.vocabulary, chunked, of_head)
    return [
        Part("embedding", 1, embedded),
        *layers,
        Part("last norm", 1, (call("last norm", layer_norm, of_norm, m=m, n=h),)),
        Part("output head", 1, headed),
    ]


def part_names(config: Config) -> list[str]:
    """Return the name of each part, in the order of the forward and of ``Saved.parts``.
    It is the name of Hugging Face's module, with which the names of the part's
    parameters begin."""
    layers = [f"h.{i}" for i in range(config.layers)]
    return ["wte", "wpe", "drop", *layers, "ln_f", "lm_head"]


def to_hugging_face(config: Config) -> dict[str, Any]:
    """Return the ``config.json`` that ``Config.from_hugging_face`` reads."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocabulary,
        "n_positions": config.positions,
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": config.feed_forward,
        "layer_norm_epsilon": config.eps,
        "tie_word_embeddings": config.tied,
        "activation_function": "gelu_new",
        **{key: getattr(config, name) for key, name in RATES.items()},
        "bos_token_id": None,
        "eos_token_id": None,
    }
