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
from types import ModuleType
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
from backpass.models import stacks
from backpass.models._hugging_face import check_divides, check_fields
from backpass.models._parameters import (
    Shapes,
    check_config,
    check_unused,
    chosen_own,
    read,
)
from backpass.models.layers import encoder_layer
from backpass.models.layers.calls import Part
from backpass.models.layers.recomputed import Recompute
from backpass.models.stacks import Stack, piece
from backpass.ops import layer_norm

SHAPES = "norm1[h], x[*, s>0, h] -> y[*, s, h]"


@dataclass(frozen=True)
class Config:
    """The sizes of an encoder, and where its norms are.

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
        check_fields(self)
        check_divides(self, "heads", "width")


def stack(c: Config, *, flash: bool = True) -> Stack:
    """Return the layers, and a layer norm if there is a last one."""
    return stack_of(encoder_layer, c, c.layers, flash, final_norm=c.final_norm)


def stack_of(
    layer: ModuleType,
    c: Any,
    number: int,
    flash: bool,
    *,
    prefix: str = "",
    final_norm: bool = True,
) -> Stack:
    """Return a number of layers of an encoder or a decoder, and the last norm."""
    h, eps = c.width, {"eps": c.eps}
    lengths = {"h": h, "p": 3 * h, "f": c.feed_forward}
    options = {"heads": c.heads, "norm_first": c.norm_first, "flash": flash, **eps}
    names = [f"{prefix}layers.{i}" for i in range(number)]
    layers = [piece(name, layer, lengths, options) for name in names]
    norm = piece(f"{prefix}norm", layer_norm, {"n": h}, eps)
    return Stack((), layers, [norm] if final_norm else ())


def parameter_shapes(config: Config) -> Shapes:
    """Return the shape of each parameter, by its name."""
    return stack(stacks.complete(config, Config)).shapes


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
    of ``language_model.forward``. ``wanted`` names the parameters to train.

    Raises ValueError for parameters that do not fit the configuration, naming all of
    them, and for a shape of ``x`` that does not fit; TypeError if ``parameters`` is not
    a mapping, ``x`` is not a floating-point array, or its library, device, or dtype
    differs from the parameters'.
    """
    check_config(config, Config)
    own = stack(config, flash=flash)
    w, given, wanted = read(parameters, own.shapes, wanted)
    check_inputs(SHAPES, norm1=w[own.layers[0].names["norm_1_w"]], x=x)
    of_parts = stacks.wanted_in(own.pieces, wanted)
    y, parts = stacks.forward(own, x, w, of_parts, kernels=kernels, recompute=recompute)
    return y, Saved(parts, config, given, wanted, tuple(y.shape), kind(y))


def backward(dy: Array, saved: Saved) -> tuple[Array, dict[str, Array]]:
    """Return ``dx[*, s, h]``, and the gradient of each parameter that was wanted by the
    name under which it was given, from ``dy[*, s, h]``. Frees what forward saved.

    Raises TypeError unless ``saved`` is what forward returned second, and ValueError if
    backward has already run.
    """
    parts, c, given, wanted, shape, like = check_saved(saved, Saved)
    pieces = stack(c).pieces
    check_unused(parts, len(pieces))
    check_cotangent(dy, shape, like)
    d: dict[str, Any] = {}

    dx = dy
    for each in reversed(pieces):
        dx = stacks.backward(each, dx, parts.pop(), d)
    return dx, {name: d[own] for own, name in given.items() if own in wanted}


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
    (c, repeats), own = stacks.counted(config, Config), None
    layers = stack(c, flash=flash)
    if wanted is not None:
        own = chosen_own(wanted, layers.shapes)
    of_parts = stacks.wanted_in(layers.pieces, own)
    rows = batch * sequence
    return stacks.calls(layers, of_parts, rows, repeats, m=batch, s=sequence)
