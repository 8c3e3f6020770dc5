"""The encoder of the original transformer, or one whose norms stand before the blocks:
layers of attention in which every row sees every row, and feed-forward blocks with
ReLU.

``backpass.models`` describes the interface. A stack of layers has neither tokens nor a
loss: its input and its output are rows ``[*, s, h]``, and ``backward`` receives the
gradient of the output. The names and layouts of the parameters are those of
``torch.nn.TransformerEncoder``, whose weights are ``[out, in]``; ``in_proj_weight`` has
the queries' rows, then the keys', then the values'. ``encoder_layer`` transposes the
weights where it calls an operation, and their gradients where it receives them. The
architecture is that of Vaswani et al., "Attention Is All You Need" (2017); Xiong et
al., "On Layer Normalization in the Transformer Architecture" (2020), compare both
orders.
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
from backpass.models.layers import encoder_layer
from backpass.models.layers.calls import Part, call
from backpass.models.layers.kernel import implementation
from backpass.models.layers.recomputed import Recompute, divided, stacked
from backpass.ops import layer_norm

SHAPES = "norm1[h], x[*, s>0, h] -> y[*, s, h]"
NORM = {"w": "norm.weight", "b": "norm.bias"}


@dataclass(frozen=True)
class Config:
    """The sizes of an encoder, and where its norms stand.

    Raises ValueError if a size is not an integer of at least 1 or ``heads`` does not
    divide ``width``; TypeError if a flag is not a bool.
    """

    width: int
    layers: int
    heads: int
    feed_forward: int  # the width inside the feed-forward block
    eps: float = 1e-5
    norm_first: bool = False  # whether norms stand before the blocks
    final_norm: bool = False  # whether a norm follows the last layer

    def __post_init__(self) -> None:
        check_numbers(self, "width", "layers", "heads", "feed_forward")
        check_eps(self.eps)
        check_bool(norm_first=self.norm_first, final_norm=self.final_norm)
        if self.width % self.heads:
            raise ValueError(
                f"heads: expected a divisor of width = {self.width}; got {self.heads}"
            )


def parameter_shapes(config: Config) -> Shapes:
    """Return the shape of each parameter, by its name."""
    c, h = config, config.width
    in_layer = shapes_in_layer(encoder_layer, {"h": h, "p": 3 * h, "f": c.feed_forward})
    shapes: Shapes = {}
    for layer in _layers(c):
        shapes |= {layer[argument]: shape for argument, shape in in_layer.items()}
    return shapes | dict.fromkeys(NORM.values(), (h,)) if c.final_norm else shapes


class Saved(NamedTuple):
    """What each part saved, in the order of the forward. ``backward`` empties the
    list."""

    parts: list[Any]
    config: Config
    given: dict[str, str]  # the names that the parameters were given under
    wanted: frozenset[str]
    shape: tuple[int, ...]  # of y
    kind: Kind


def forward(
    parameters: Mapping[str, Array],
    x: Array,
    *,
    config: Config,
    flash: bool = True,
    kernels: Any = None,
    recompute: Recompute = None,
    wanted: Wanted = None,
) -> tuple[Array, Saved]:
    """Return ``y[*, s, h]`` for the embedded rows ``x[*, s, h]``.

    ``flash`` is an option of ``transformer_attention``. ``kernels`` is
    ``backpass.kernels``, to run its kernels where there are any. ``recompute`` is that
    of ``gpt2.forward``. ``wanted`` names the parameters to train.

    Raises ValueError for parameters that do not fit the configuration, naming all of
    them, and for a shape of ``x`` that does not fit; TypeError if ``parameters`` is not
    a mapping, ``x`` is not a floating-point array, or its library, device, or dtype
    differs from the parameters'.
    """
    check_config(config, Config)
    c, layers = config, _layers(config)
    w, given = read(parameters, parameter_shapes(c), prefix="", tied_to=None)
    wanted = chosen(wanted, given, None)
    check_inputs(SHAPES, norm1=w[layers[0]["norm_1_w"]], x=x)
    *of_layers, of_norm = wanted_in_parts([*layers, NORM], wanted, x=True)
    parts: list[Any] = [None] * (len(layers) + c.final_norm)

    every, in_layers = divided(recompute, kernels)
    options: dict[str, Any] = {"heads": c.heads, "norm_first": c.norm_first}
    options |= {"eps": c.eps, "flash": flash, "kernels": in_layers}
    forwards = [
        partial(
            encoder_layer.forward,
            **{argument: w[name] for argument, name in layer.items()},
            **options,
            wanted=of_layers[i],
        )
        for i, layer in enumerate(layers)
    ]
    x, parts[: len(layers)] = stacked(forwards, x, every)
    if c.final_norm:
        scale, shift = w[NORM["w"]], w[NORM["b"]]
        norm = implementation(layer_norm, kernels)
        x, parts[-1] = norm.forward(x, scale, shift, eps=c.eps, wanted=of_norm)
    return x, Saved(parts, c, given, wanted, tuple(x.shape), kind(x))


def backward(dy: Array, saved: Saved) -> tuple[Array, dict[str, Array]]:
    """Return ``dx[*, s, h]``, and the gradient of each parameter that was wanted by the
    name under which it was given, from ``dy[*, s, h]``. Frees what forward saved.

    Raises TypeError unless ``saved`` is what forward returned second, and ValueError if
    backward has already run.
    """
    parts, c, given, wanted, shape, like = check_saved(saved, Saved)
    layers = _layers(c)
    check_unused(parts, len(layers) + c.final_norm)
    check_cotangent(dy, shape, like)
    d: dict[str, Any] = {}

    dx = dy
    if c.final_norm:
        dx, d[NORM["w"]], d[NORM["b"]] = through(layer_norm, dx, parts.pop())
    for layer in reversed(layers):
        dx, *dw = through(encoder_layer, dx, parts.pop())
        d |= zip(layer.values(), dw, strict=True)
    return dx, {name: d[own] for own, name in given.items() if own in wanted}


def _layers(c: Config) -> list[dict[str, str]]:
    """Return the name of each parameter of each layer, by the layer's argument."""
    return [names_in_layer(encoder_layer, f"layers.{i}.") for i in range(c.layers)]


def calls(
    config: Config,
    batch: Any,
    sequence: Any,
    *,
    flash: bool = True,
    wanted: Wanted = None,
) -> list[Part]:
    """Return the operations that ``forward`` and ``backward`` call, with the lengths in
    them, for ``batch`` sequences of ``sequence`` rows. If all gradients are wanted,
    sizes may be symbols."""
    c, h = config, config.width
    of_parts: list[Names] = [("x", "w", "b")]
    if wanted is not None:
        own = chosen_own(wanted, parameter_shapes(c))
        of_parts = wanted_in_parts([*_layers(c), NORM], own, x=True)
    *of_layers, of_norm = of_parts
    sizes = {"m": batch, "s": sequence, "h": h, "f": c.feed_forward, "heads": c.heads}
    options = {"norm_first": c.norm_first, "flash": flash}
    layers = [
        Part("layer", repeats, encoder_layer.calls(**sizes, **options, wanted=of_layer))
        for repeats, of_layer in runs(wanted, c.layers, of_layers)
    ]
    norm = call("last norm", layer_norm, of_norm, m=batch * sequence, n=h)
    return [*layers, *([Part("last norm", 1, (norm,))] if c.final_norm else [])]
