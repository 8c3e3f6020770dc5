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
from typing import Any, NamedTuple

from backpass.contract.arrays import Array
from backpass.contract.shapes import (
    Kind,
    check_cotangent,
    check_inputs,
    check_saved,
    kind,
)
from backpass.contract.wanted import Wanted
from backpass.models import encoder, stacks
from backpass.models._hugging_face import check_divides, check_fields
from backpass.models._parameters import (
    Shapes,
    check_config,
    check_unused,
    chosen_own,
    read,
)
from backpass.models.layers import decoder_layer
from backpass.models.layers.calls import Part, call
from backpass.models.layers.recomputed import Recompute
from backpass.models.stacks import Stack
from backpass.ops import fork

SHAPES = "norm1[h], source[*, t>0, h], target[*, s>0, h] -> y[*, s, h]"
ENCODER = "encoder."
MEMORY = "encoder output"  # its name beside those of the parameters


@dataclass(frozen=True)
class Config:
    """The sizes of an encoder and a decoder, and where their norms are.

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
        check_fields(self)
        check_divides(self, "heads", "width")

    @property
    def encoder_config(self) -> encoder.Config:
        """The encoder's configuration."""
        sizes = (self.width, self.encoder_layers, self.heads, self.feed_forward)
        return encoder.Config(*sizes, self.eps, self.norm_first, final_norm=True)


def stack(c: Config, *, flash: bool = True) -> Stack:
    """Return the decoder's layers, each of which reads the memory, and a layer norm."""
    own = encoder.stack_of(decoder_layer, c, c.decoder_layers, flash, prefix="decoder.")
    reading = [
        layer._replace(names={"memory": MEMORY, **layer.names}) for layer in own.layers
    ]
    return own._replace(layers=reading)


def parameter_shapes(config: Config) -> Shapes:
    """Return the shape of each parameter, by its name."""
    of_encoder = encoder.parameter_shapes(config.encoder_config).items()
    in_encoder = {ENCODER + name: shape for name, shape in of_encoder}
    return in_encoder | stack(stacks.complete(config, Config)).shapes


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
    of ``language_model.forward``. ``wanted`` names the parameters to train.

    Raises ValueError for parameters that do not fit the configuration, naming all of
    them, and for shapes that do not fit; TypeError if ``parameters`` is not a mapping,
    the rows are not floating-point arrays, or their library, device, or dtype differs
    from the parameters'.
    """
    check_config(config, Config)
    c, decoder = config, stack(config, flash=flash)
    w, given, wanted = read(parameters, parameter_shapes(c), wanted)
    norm1 = w[decoder.layers[0].names["norm_1_w"]]
    check_inputs(SHAPES, norm1=norm1, source=source, target=target)

    running: dict[str, Any] = {"kernels": kernels, "recompute": recompute}
    in_encoder = {n: n.removeprefix(ENCODER) for n in w if n.startswith(ENCODER)}
    memory, encoded = encoder.forward(
        {own: w[name] for name, own in in_encoder.items()},
        source,
        config=c.encoder_config,
        flash=flash,
        wanted=[own for name, own in in_encoder.items() if name in wanted],
        **running,
    )
    of_parts = stacks.wanted_in(decoder.pieces, {*wanted, MEMORY})
    w |= {MEMORY: memory}
    y, parts = stacks.forward(decoder, target, w, of_parts, **running)
    return y, Saved(encoded, parts, c, given, wanted, tuple(y.shape), kind(y))


def backward(dy: Array, saved: Saved) -> tuple[Array, Array, dict[str, Array]]:
    """Return ``dsource[*, t, h]``, ``dtarget[*, s, h]``, and the gradient of each
    parameter that was wanted by the name under which it was given, from
    ``dy[*, s, h]``. Frees what forward saved.

    Raises TypeError unless ``saved`` is what forward returned second, and ValueError if
    backward has already run.
    """
    encoded, parts, c, given, wanted, shape, like = check_saved(saved, Saved)
    pieces = stack(c).pieces
    check_unused(parts, len(pieces))
    check_cotangent(dy, shape, like)
    d: dict[str, Any] = {}

    dx = dy
    for each in reversed(pieces):
        dx = stacks.backward(each, dx, parts.pop(), d)
    # Every layer has added its share to the memory's gradient, which the encoder's
    # backward receives.
    dsource, of_encoder = encoder.backward(d.pop(MEMORY), encoded)
    d |= {ENCODER + name: gradient for name, gradient in of_encoder.items()}
    return dsource, dx, {name: d[own] for own, name in given.items() if own in wanted}


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
    c, repeats = stacks.counted(config, Config, "decoder_layers")
    decoder, own, of_encoder = stack(c, flash=flash), None, None
    if wanted is not None:
        own = chosen_own(wanted, parameter_shapes(config)) | {MEMORY}
        of_encoder = [n.removeprefix(ENCODER) for n in own if n.startswith(ENCODER)]
    of_parts, rows = stacks.wanted_in(decoder.pieces, own), batch * sequence
    t, encoding = sequence if source is None else source, config.encoder_config
    encoded = encoder.calls(encoding, batch, t, flash=flash, wanted=of_encoder)
    shares = {"m": batch * t * c.width, "k": config.decoder_layers}
    summed = call("memory: every layer's gradient", fork, ("x",), **shares)
    lengths = {"name": "decoder layer", "m": batch, "s": sequence, "t": t}
    return [
        *(part._replace(name=f"encoder {part.name}") for part in encoded),
        Part("memory", 1, (summed,)),
        *stacks.calls(decoder, of_parts, rows, repeats, **lengths),
    ]
