"""The original transformer: an encoder, whose output is the memory, and a decoder, each
of whose layers attends to the memory.

``backpass.models`` describes the interface. As in ``encoder``, there are neither tokens
nor a loss: the inputs are the source's and the target's embedded rows. The names and
layouts of the parameters are those of ``torch.nn.Transformer``, whose weights are
``[out, in]``; ``encoder_layer`` and ``decoder_layer`` transpose them where they call an
operation, and their gradients where they receive them. A norm follows the last layer of
both stacks, as in PyTorch. Otherwise the architecture is that of Vaswani et al.,
"Attention Is All You Need" (2017).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from backpass.contract.arrays import Array
from backpass.contract.shapes import (
    Kind,
    check_cotangent,
    check_inputs,
    check_saved,
    kind,
)
from backpass.contract.values import check_bool, check_eps
from backpass.contract.wanted import Wanted
from backpass.models import encoder
from backpass.models._hugging_face import check_numbers
from backpass.models._parameters import (
    Names,
    Shapes,
    check_config,
    check_unused,
    chosen,
    chosen_own,
    names_in_layer,
    read,
    runs,
    shapes_in_layer,
    through,
    wanted_in_parts,
)
from backpass.models.layers import decoder_layer
from backpass.models.layers.calls import Part, call
from backpass.models.layers.kernel import implementation
from backpass.models.layers.recomputed import Recompute, divided, stacked
from backpass.ops import fork, layer_norm

SHAPES = "norm1[h], source[*, t>0, h], target[*, s>0, h] -> y[*, s, h]"
ENCODER = "encoder."
NORM = {"w": "decoder.norm.weight", "b": "decoder.norm.bias"}


@dataclass(frozen=True)
class Config:
    """The sizes of an encoder and a decoder, and where their norms stand.

    Raises ValueError if a size is not an integer of at least 1 or ``heads`` does not
    divide ``width``; TypeError if ``norm_first`` is not a bool.
    """

    width: int
    encoder_layers: int
    decoder_layers: int
    heads: int
    feed_forward: int  # the width inside the feed-forward blocks
    eps: float = 1e-5
    norm_first: bool = False  # whether norms stand before the blocks

    def __post_init__(self) -> None:
        sizes = ("width", "encoder_layers", "decoder_layers", "heads", "feed_forward")
        check_numbers(self, *sizes)
        check_eps(self.eps)
        check_bool(norm_first=self.norm_first)
        if self.width % self.heads:
            raise ValueError(
                f"heads: expected a divisor of width = {self.width}; got {self.heads}"
            )

    @property
    def encoder_config(self) -> encoder.Config:
        """The encoder's configuration."""
        sizes = (self.width, self.encoder_layers, self.heads, self.feed_forward)
        return encoder.Config(*sizes, self.eps, self.norm_first, final_norm=True)


def parameter_shapes(config: Config) -> Shapes:
    """Return the shape of each parameter, by its name."""
    c, h = config, config.width
    in_layer = shapes_in_layer(decoder_layer, {"h": h, "p": 3 * h, "f": c.feed_forward})
    shapes = {
        ENCODER + name: shape
        for name, shape in encoder.parameter_shapes(c.encoder_config).items()
    }
    for layer in _layers(c):
        shapes |= {layer[argument]: shape for argument, shape in in_layer.items()}
    return shapes | dict.fromkeys(NORM.values(), (h,))


class Saved(NamedTuple):
    """What the encoder saved, and what each part of the decoder saved, in the order of
    the forward. ``backward`` empties both lists."""

    encoded: encoder.Saved
    parts: list[Any]
    config: Config
    given: dict[str, str]  # the names that the parameters were given under
    wanted: frozenset[str]
    shape: tuple[int, ...]  # of y
    kind: Kind


def forward(
    parameters: Mapping[str, Array],
    source: Array,
    target: Array,
    *,
    config: Config,
    flash: bool = True,
    kernels: Any = None,
    recompute: Recompute = None,
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return ``y[*, s, h]`` for the embedded rows ``source[*, t, h]`` and
    ``target[*, s, h]``. Row i of the target sees all rows of the source, and those of
    the target up to i.

    ``flash`` is an option of ``transformer_attention``. ``kernels`` is
    ``backpass.kernels``, to run its kernels where there are any. ``recompute`` is that
    of ``gpt2.forward``. ``wanted`` names the parameters to train.

    Raises ValueError for parameters that do not fit the configuration, naming all of
    them, and for shapes that do not fit; TypeError if ``parameters`` is not a mapping,
    the rows are not floating-point arrays, or their library, device, or dtype differs
    from the parameters'.
    """
    check_config(config, Config)
    c, layers = config, _layers(config)
    w, given = read(parameters, parameter_shapes(c), prefix="", tied_to=None)
    wanted = chosen(wanted, given, None)
    norm1 = w[layers[0]["norm_1_w"]]
    check_inputs(SHAPES, norm1=norm1, source=source, target=target)
    *of_layers, of_norm = wanted_in_parts([*layers, NORM], wanted, x=True)
    parts: list[Any] = [None] * (len(layers) + 1)

    memory, encoded = encoder.forward(
        {n.removeprefix(ENCODER): w[n] for n in w if n.startswith(ENCODER)},
        source,
        config=c.encoder_config,
        flash=flash,
        kernels=kernels,
        recompute=recompute,
        wanted=[n.removeprefix(ENCODER) for n in wanted if n.startswith(ENCODER)],
    )
    every, in_layers = divided(recompute, kernels)
    options: dict[str, Any] = {"heads": c.heads, "norm_first": c.norm_first}
    options |= {"eps": c.eps, "flash": flash, "kernels": in_layers, "memory": memory}
    forwards = [
        partial(
            decoder_layer.forward,
            **{argument: w[name] for argument, name in layer.items()},
            **options,
            wanted=("memory", *of_layers[i]),
        )
        for i, layer in enumerate(layers)
    ]
    x, parts[:-1] = stacked(forwards, target, every)
    scale, shift = w[NORM["w"]], w[NORM["b"]]
    norm = implementation(layer_norm, kernels)
    y, parts[-1] = norm.forward(x, scale, shift, eps=c.eps, wanted=of_norm)
    return y, Saved(encoded, parts, c, given, wanted, tuple(y.shape), kind(y))


def backward(dy: Array, saved: Saved) -> tuple[Array, Array, dict[str, Array]]:
    """Return ``dsource[*, t, h]``, ``dtarget[*, s, h]``, and the gradient of each
    parameter that was wanted by the name under which it was given, from
    ``dy[*, s, h]``. Frees what forward saved.

    Raises TypeError unless ``saved`` is what forward returned second, and ValueError if
    backward has already run.
    """
    encoded, parts, c, given, wanted, shape, like = check_saved(saved, Saved)
    layers = _layers(c)
    check_unused(parts, len(layers) + 1)
    check_cotangent(dy, shape, like)
    d: dict[str, Any] = {}

    dx, d[NORM["w"]], d[NORM["b"]] = through(layer_norm, dy, parts.pop())
    dmemory = None
    for layer in reversed(layers):
        dx, share, *dw = through(decoder_layer, dx, parts.pop())
        d |= zip(layer.values(), dw, strict=True)
        # In the forward pass every layer read the memory; so now its gradient is the
        # sum over the layers.
        dmemory = share if dmemory is None else dmemory + share
    dsource, of_encoder = encoder.backward(dmemory, encoded)
    d |= {ENCODER + name: gradient for name, gradient in of_encoder.items()}
    return dsource, dx, {name: d[own] for own, name in given.items() if own in wanted}


def _layers(c: Config) -> list[dict[str, str]]:
    """Return the name of each parameter of each layer of the decoder, by the layer's
    argument."""
    return [
        names_in_layer(decoder_layer, f"decoder.layers.{i}.")
        for i in range(c.decoder_layers)
    ]


def calls(
    config: Config,
    batch: Any,
    sequence: Any,
    *,
    source: Any = None,
    flash: bool = True,
    wanted: Wanted = None,
) -> list[Part]:
    """Return the operations that ``forward`` and ``backward`` call, with the lengths in
    them, for ``batch`` targets of ``sequence`` rows and sources of ``source`` rows, or
    of as many. If all gradients are wanted, sizes may be symbols."""
    c, h, t = config, config.width, sequence if source is None else source
    of_encoder: Wanted = None
    of_parts: list[Names] = [("x", "w", "b")]
    if wanted is not None:
        own = chosen_own(wanted, parameter_shapes(c))
        of_encoder = [n.removeprefix(ENCODER) for n in own if n.startswith(ENCODER)]
        of_parts = wanted_in_parts([*_layers(c), NORM], own, x=True)
    *of_layers, of_norm = of_parts
    encoded = encoder.calls(c.encoder_config, batch, t, flash=flash, wanted=of_encoder)
    sizes = {"m": batch, "s": sequence, "t": t, "h": h, "f": c.feed_forward}
    options = {"heads": c.heads, "norm_first": c.norm_first, "flash": flash}
    layers = [
        Part(
            "decoder layer", repeats, decoder_layer.calls(**sizes, **options, wanted=of)
        )
        for repeats, of in runs(
            wanted, c.decoder_layers, [("memory", *names) for names in of_layers]
        )
    ]
    shares = {"m": batch * t * h, "k": c.decoder_layers}
    norm = call("last norm", layer_norm, of_norm, m=batch * sequence, n=h)
    return [
        *(part._replace(name=f"encoder {part.name}") for part in encoded),
        Part(
            "memory",
            1,
            (call("memory: every layer's gradient", fork, ("x",), **shares),),
        ),
        *layers,
        Part("last norm", 1, (norm,)),
    ]
